//! What is said in a conversation: a pure function of seed, scenario and conversation, so that every machine, thread
//! and rerun says the same.

use scenario::draw::{Field, below, draw};

use super::resolve::Text;

/// Characters that count as one token when a prompt is sized.
const TOKEN_LEN: usize = 4;
/// Length of a conversation id.
const UUID_LEN: usize = 36;
/// Words of three letters: with their blank each is one token of the size rule.
const WORDS: [&str; 32] = [
    "arc", "bay", "cab", "dam", "ear", "fan", "gem", "hat", "ice", "jam", "key", "lab", "map", "nut", "oak",
    "pan", "ray", "sea", "tap", "urn", "vat", "wax", "yam", "zip", "ash", "bee", "cup", "dew", "elm", "fig",
    "hut", "ink",
];

/// Names one conversation of a run: its place in the plan, never who ran it or when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Stage.
    pub stage: u64,
    /// User of a closed loop, 0 in an open one.
    pub user: u64,
    /// Ordinal of the conversation: of that user, or of the stage's arrivals.
    pub ordinal: u64,
}

/// Draws of one conversation.
#[derive(Clone, Copy, Debug)]
pub struct Draws<'a> {
    /// Seed of the run.
    pub seed: u64,
    /// Scenario name.
    pub scenario: &'a str,
    /// Which conversation.
    pub place: Place,
}

impl Draws<'_> {
    fn fields<'f>(&'f self, purpose: &'f str, number: u64) -> [Field<'f>; 7] {
        [
            Field::Integer(self.seed),
            Field::Text("profile"),
            Field::Text(purpose),
            Field::Text(self.scenario),
            Field::Integer(self.place.stage),
            Field::Integer(self.place.user << 40 | self.place.ordinal),
            Field::Integer(number),
        ]
    }

    /// A number below `len`.
    #[must_use]
    pub fn below(&self, purpose: &str, number: u64, len: u64) -> u64 {
        below(&self.fields(purpose, number), len)
    }

    /// Whether a share selects.
    #[must_use]
    pub fn selects(&self, purpose: &str, number: u64, share: scenario::units::Ppb) -> bool {
        let drawn = draw(&self.fields(purpose, number));
        u128::from(drawn) * 1_000_000_000 < u128::from(share.get()) << 64
    }

    /// The conversation id: a UUID by its form, drawn by seed.
    #[must_use]
    pub fn uuid(&self) -> String {
        let high = draw(&self.fields("uuid", 0));
        let low = mix(high);
        let high = high & !0xf000 | 0x4000;
        let low = low & !(0b11 << 62) | 0b10 << 62;
        let mut text = String::with_capacity(UUID_LEN);
        // Group by group: one is drawn for each request.
        for (bits, digits) in [(high >> 32, 8), (high >> 16, 4), (high, 4), (low >> 48, 4), (low, 12)] {
            if !text.is_empty() {
                text.push('-');
            }
            let mut group = [0; 12];
            for (place, digit) in group[..digits].iter_mut().rev().enumerate() {
                *digit = b"0123456789abcdef"[(bits >> (4 * place)) as usize & 0xf];
            }
            text.extend(group[..digits].iter().map(|digit| char::from(*digit)));
        }
        text
    }
}

/// The text of a turn and, when it is one of a few that come again and again, its number.
#[must_use]
pub fn text(content: &Text, draws: Draws<'_>, turn: u32) -> (String, Option<usize>) {
    match content {
        Text::Pool(prompts) => {
            let drawn = draws.below("prompt", u64::from(turn), prompts.len() as u64);
            let place = usize::try_from(drawn).unwrap_or_default();
            (prompts[place].clone(), Some(place))
        }
        Text::Scripted(script) => {
            let place = turn as usize % script.len();
            (script[place].clone(), Some(place))
        }
        Text::Sized { tokens, same: true } => (sized(*tokens, 0), Some(0)),
        Text::Sized { tokens, same: false } => {
            (sized(*tokens, draw(&draws.fields("sized", u64::from(turn)))), None)
        }
        Text::Dataset(lines) => {
            // In order, as people expect of a data set; users and turns shift it.
            let at = draws.place.ordinal + draws.place.user + u64::from(turn);
            let place = usize::try_from(at % lines.len() as u64).unwrap_or_default();
            (lines[place].clone(), None)
        }
    }
}

/// A number that looks like chance, from a number (SplitMix64).
fn mix(state: u64) -> u64 {
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// About four characters a token, from a number.
fn sized(tokens: u32, from: u64) -> String {
    let count = tokens as usize;
    let mut text = String::with_capacity(count * TOKEN_LEN);
    let mut state = from;
    for position in 0..count {
        // One draw gives the whole text, and a long prompt costs no hash a word.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = mix(state);
        if position > 0 {
            text.push(' ');
        }
        text.push_str(WORDS[usize::try_from(mixed >> 59).unwrap_or_default()]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(ordinal: u64) -> Draws<'static> {
        Draws { seed: 1, scenario: "s", place: Place { stage: 0, user: 0, ordinal } }
    }

    #[test]
    fn ids_look_like_uuids_and_follow_the_seed() {
        let id = draws(0).uuid();
        assert_eq!((id.len(), &id[14..15], id.matches('-').count()), (36, "4", 4), "{id}");
        assert_eq!(id, draws(0).uuid());
        assert_eq!(id, "7dae6fdf-2623-4b6e-8bbb-7159fd35bf2b", "ids of a seed are the same for ever");
        let ids: std::collections::BTreeSet<String> =
            (0..1_000).map(|ordinal| draws(ordinal).uuid()).collect();
        assert_eq!(ids.len(), 1_000);
        assert_ne!(id, Draws { seed: 2, ..draws(0) }.uuid());
    }

    #[test]
    fn sized_texts_have_their_size_and_differ() {
        let content = Text::Sized { tokens: 50, same: false };
        let (first, _) = text(&content, draws(0), 0);
        assert_eq!(first.len(), 50 * TOKEN_LEN - 1);
        assert_ne!(first, text(&content, draws(1), 0).0);
        assert_ne!(first, text(&content, draws(0), 1).0);
        let same = Text::Sized { tokens: 50, same: true };
        assert_eq!(text(&same, draws(0), 0), text(&same, draws(1), 1));
    }
}
