//! The fixed vocabulary of the mock: 256 words, each with a character of several bytes, each with a small decimal
//! token id. Every word is multi-byte so that any content event can be cut inside a character.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{LazyLock, OnceLock};

use scenario::draw::{Field, draw};

/// Words of the vocabulary.
pub const WORDS: usize = 256;
/// Most alternatives of a log probability entry (contract mocks 3.5).
pub const TOP_MAX: usize = 20;
/// Token ids stay below this: validators refuse large ones (contract mocks 3.5, 3.10).
const TOKEN_ID_END: u64 = 100_000;
/// Distance between the alternatives of a word; odd, so that all alternatives of one entry differ.
const ALTERNATIVE_STEP: usize = 37;

const HEADS: [&str; 16] =
    ["ba", "ke", "li", "mo", "nu", "pa", "ri", "so", "ta", "ve", "za", "do", "fi", "gu", "ha", "je"];
const TAILS: [&str; 16] =
    ["né", "mü", "lø", "ça", "ñor", "šek", "ží", "rå", "ère", "söl", "ûn", "ïk", "dąt", "kęs", "ğa", "山"];

/// The vocabulary; there is one.
pub static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(Vocabulary::build);

/// Words, ids, and rendered log probability entries.
#[derive(Debug)]
pub struct Vocabulary {
    words: Vec<String>,
    ids: Vec<String>,
    by_id: HashMap<String, u8>,
    /// Rendered entries by word and number of alternatives, made when first asked for.
    entries: Vec<[OnceLock<String>; TOP_MAX + 1]>,
}

impl Vocabulary {
    fn build() -> Self {
        let words: Vec<String> =
            HEADS.iter().flat_map(|head| TAILS.iter().map(move |tail| format!(" {head}{tail}"))).collect();
        let mut by_id = HashMap::with_capacity(WORDS);
        let mut ids = Vec::with_capacity(WORDS);
        for index in 0..=u8::MAX {
            let word = &words[usize::from(index)];
            let mut id = draw(&[Field::Text("vocabulary"), Field::Text(word)]) % TOKEN_ID_END;
            // Two words must not share an id, or a replay could not tell them apart.
            while by_id.contains_key(&id.to_string()) {
                id = (id + 1) % TOKEN_ID_END;
            }
            by_id.insert(id.to_string(), index);
            ids.push(id.to_string());
        }
        let entries = words.iter().map(|_| Default::default()).collect();
        Self { words, ids, by_id, entries }
    }

    /// Text of a word, with its leading space. Needs no escapes in JSON.
    #[must_use]
    pub fn word(&self, index: u8) -> &str {
        &self.words[usize::from(index)]
    }

    /// Decimal token id of a word.
    #[must_use]
    pub fn id(&self, index: u8) -> &str {
        &self.ids[usize::from(index)]
    }

    /// The word with this token id.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<u8> {
        self.by_id.get(id).copied()
    }

    /// The log probability entry of a word with its first `top` alternatives (at most [`TOP_MAX`]), as JSON with
    /// sorted keys. The first alternative is the word itself.
    #[must_use]
    pub fn entry(&self, index: u8, top: usize) -> &str {
        let top = top.min(TOP_MAX);
        self.entries[usize::from(index)][top].get_or_init(|| {
            let alternatives: Vec<&str> = (0..top)
                .map(|rank| self.ids[(usize::from(index) + rank * ALTERNATIVE_STEP) % WORDS].as_str())
                .collect();
            self.render_entry(self.id(index), &alternatives)
        })
    }

    /// The entry of a chosen token id and its alternatives in order of rank. The log probability depends on the rank
    /// alone, so that an entry echoed from its ids equals the first one.
    #[must_use]
    pub fn render_entry(&self, chosen: &str, alternatives: &[&str]) -> String {
        let rank = alternatives.iter().position(|token| *token == chosen).unwrap_or(0);
        let mut out = String::from("{");
        self.push_token(&mut out, chosen, rank);
        out.push_str(",\"top_logprobs\":[");
        for (rank, token) in alternatives.iter().enumerate() {
            out.push_str(if rank == 0 { "{" } else { ",{" });
            self.push_token(&mut out, token, rank);
            out.push('}');
        }
        out.push_str("]}");
        out
    }

    /// Text that a token id stands for: its word, nothing for the sentinel of an empty output, else the id itself.
    #[must_use]
    pub fn text_of<'a>(&'a self, id: &'a str) -> &'a str {
        match self.find(id) {
            Some(index) => self.word(index),
            None if id == "<EMPTY>" => "",
            None => id,
        }
    }

    fn push_token(&self, out: &mut String, id: &str, rank: usize) {
        let bytes = self.text_of(id).as_bytes();
        out.push_str("\"bytes\":[");
        for (position, byte) in bytes.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            write!(out, "{comma}{byte}").expect("writing to a String can't fail");
        }
        let token = serde_json::Value::from(id);
        if rank == 0 {
            write!(out, "],\"logprob\":-0.1,\"token\":{token}").expect("writing to a String can't fail");
        } else {
            write!(out, "],\"logprob\":-{rank}.1,\"token\":{token}").expect("writing to a String can't fail");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn words_and_ids_are_distinct_small_and_multi_byte() {
        let vocabulary = &*VOCABULARY;
        let mut seen = BTreeSet::new();
        for index in 0..=u8::MAX {
            let word = vocabulary.word(index);
            assert!(seen.insert(word.to_owned()), "{word}");
            assert!(word.len() > word.chars().count(), "{word}");
            assert!(vocabulary.id(index).parse::<u64>().unwrap() < TOKEN_ID_END);
            assert_eq!(vocabulary.find(vocabulary.id(index)), Some(index));
        }
    }

    #[test]
    fn an_echoed_entry_equals_the_first_one() {
        for (index, top) in [(0, 5), (17, 0), (255, 20), (3, 1)] {
            let entry = VOCABULARY.entry(index, top).to_owned();
            let parsed: serde_json::Value = serde_json::from_str(&entry).unwrap();
            let alternatives: Vec<&str> = parsed["top_logprobs"]
                .as_array()
                .unwrap()
                .iter()
                .map(|alternative| alternative["token"].as_str().unwrap())
                .collect();
            assert_eq!(alternatives.len(), top);
            assert_eq!(alternatives.iter().collect::<BTreeSet<_>>().len(), top);
            assert_eq!(VOCABULARY.render_entry(VOCABULARY.id(index), &alternatives), entry);
        }
    }
}
