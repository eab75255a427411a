//! Prompt texts and request bodies: made again from the plan line, never stored.

use serde_json::json;

use crate::digest::blake3_hex;
use crate::draw::{Field, below};
use crate::identity::{RequestId, marker};
use crate::plan::{PlanLine, PromptRecipe};

/// Characters that count as one token when a prompt is sized.
const TOKEN_LEN: usize = 4;

/// Words of three letters: with their blank each is one token of the size rule.
const WORDS: [&str; 64] = [
    "arc", "ash", "bay", "bee", "bow", "cab", "cap", "cob", "cup", "dam", "dew", "dot", "ear", "eel", "elk",
    "elm", "fan", "fig", "fir", "fog", "gem", "gum", "hat", "hay", "hen", "hop", "hut", "ice", "ink", "ivy",
    "jam", "jar", "jug", "key", "kit", "lab", "lid", "log", "map", "mat", "mud", "net", "nut", "oak", "oar",
    "oat", "owl", "pan", "pea", "peg", "pod", "ray", "rim", "rye", "sap", "sea", "sky", "tap", "tin", "urn",
    "vat", "wax", "yam", "zip",
];

/// Words that are drawn one by one; a longer text repeats them, since drawing millions would take seconds.
const WORDS_DRAWN_MAX: usize = 16_384;

/// The text of a recipe, without marker and salt: about four characters a token, drawn by seed and index. Short texts
/// may be equal by chance; what makes every body differ is the marker in front of them.
#[must_use]
pub fn text(recipe: &PromptRecipe) -> String {
    let count = recipe.input_tokens as usize;
    let mut text = String::with_capacity(count * TOKEN_LEN);
    for position in 0..count.min(WORDS_DRAWN_MAX) {
        let fields = [
            Field::Integer(recipe.seed),
            Field::Text("prompt"),
            Field::Text("word"),
            Field::Integer(recipe.index),
            Field::Integer(position as u64),
        ];
        let word = below(&fields, WORDS.len() as u64);
        if position > 0 {
            text.push(' ');
        }
        text.push_str(WORDS[usize::try_from(word).unwrap_or_default() % WORDS.len()]);
    }
    let block = text.clone();
    while text.len() < (count * TOKEN_LEN).saturating_sub(1) {
        let left = count * TOKEN_LEN - 1 - text.len();
        text.push(' ');
        // All words are ASCII and of one length, so that any place is a boundary.
        text.push_str(&block[..block.len().min(left - 1)]);
    }
    text
}

/// Digest of a recipe's text.
#[must_use]
pub fn digest(recipe: &PromptRecipe) -> String {
    blake3_hex(text(recipe).as_bytes())
}

/// The exact request body of a plan line. A line that repeats another one carries that one's marker; no body ever
/// carries a seed, which belongs to the host (design section 5).
///
/// # Panics
/// Never: a value made of text, numbers and booleans serialises.
#[must_use]
pub fn body(line: &PlanLine, salt: &str, model: &str) -> Vec<u8> {
    let id = match line.duplicate_of {
        Some(index) => repeated_id(&line.id, index),
        None => line.id.clone(),
    };
    let content = format!("{} {}", marker(&id, salt), text(&line.prompt));
    let body = json!({
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "stream": line.stream,
        "max_tokens": line.max_tokens,
    });
    serde_json::to_vec(&body).expect("text, numbers and booleans serialise")
}

/// The id of another index of the same plan: everything before the last dash stays.
fn repeated_id(own: &RequestId, index: u64) -> RequestId {
    let stem = own.as_str().rsplit_once('-').map_or("", |(stem, _)| stem);
    RequestId::from_text(format!("{stem}-{index:06}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::find_marker;
    use crate::plan::PLAN_VERSION;

    fn line(index: u64, duplicate_of: Option<u64>) -> PlanLine {
        let prompt = PromptRecipe { seed: 42, index: duplicate_of.unwrap_or(index), input_tokens: 16 };
        PlanLine {
            v: PLAN_VERSION,
            index,
            id: RequestId::new("ml-5xx", 42, index),
            stream: true,
            max_tokens: 8,
            cancel: None,
            rules: vec![],
            prompt_digest: digest(&prompt),
            prompt,
            duplicate_of,
            checks: vec![],
        }
    }

    #[test]
    fn a_body_carries_marker_and_salt_and_no_seed() {
        let body = String::from_utf8(body(&line(7, None), "saltsaltsalt", "m")).unwrap();
        let found = find_marker(&body).unwrap();
        assert_eq!((found.id, found.salt), ("ml-5xx-42-000007", Some("saltsaltsalt")));
        assert!(!body.contains("seed"));
    }

    #[test]
    fn a_repeated_line_has_the_same_bytes() {
        assert_eq!(body(&line(9, Some(7)), "s", "m"), body(&line(7, None), "s", "m"));
        assert_ne!(body(&line(9, None), "s", "m"), body(&line(7, None), "s", "m"));
    }

    #[test]
    fn texts_have_the_asked_size_and_differ() {
        assert_eq!(text(&line(1, None).prompt).len(), 16 * TOKEN_LEN - 1);
        assert_ne!(text(&line(1, None).prompt), text(&line(2, None).prompt));
        for tokens in [16_383, 16_384, 16_385, 50_000] {
            let recipe = PromptRecipe { seed: 1, index: 1, input_tokens: tokens };
            assert_eq!(text(&recipe).len(), tokens as usize * TOKEN_LEN - 1, "{tokens}");
        }
    }
}
