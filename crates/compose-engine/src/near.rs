//! The nearest known word, for messages about unknown ones.

/// The closest candidate, when it is close enough to be what was meant.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate));
    let best = scored.min_by_key(|(distance, candidate)| (*distance, candidate.len()))?;
    (best.0 <= 2.max(word.len() / 3)).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let known = ["healthcheck", "image", "depends_on"];
        assert_eq!(nearest("helthcheck", known.into_iter()), Some("healthcheck"));
        assert_eq!(nearest("depend_on", known.into_iter()), Some("depends_on"));
        assert_eq!(nearest("zzzzzz", known.into_iter()), None);
    }
}
