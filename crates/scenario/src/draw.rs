//! Seeded draws (design section 5): the only source of chance in a run.
//!
//! A draw is BLAKE3 over a domain string and fields, each field preceded by its length as u32 little-endian;
//! integers enter as u64 little-endian. The first eight bytes of the hash, little-endian, are `u`. Run id, salt,
//! time, arrival order and node order never enter, so that a rerun selects the same requests.

use crate::units::Ppb;

/// Domain string of version 1; changing how fields enter means a new one.
pub const DOMAIN: &str = "proofload/draw/v1";

/// Room for the fields of a usual draw.
const INPUT_BYTES: usize = 256;

/// One field of a draw.
#[derive(Clone, Copy, Debug)]
pub enum Field<'a> {
    /// UTF-8 text, as given.
    Text(&'a str),
    /// An integer: eight bytes, little-endian.
    Integer(u64),
}

/// The 64-bit draw over the given fields in their order. Inlined, since a load generator that is compiled for speed draws
/// for each request, and this crate is not.
#[inline]
#[must_use]
pub fn draw(fields: &[Field<'_>]) -> u64 {
    // All in one piece: hashing field by field costs more than the hash itself.
    let mut input = Vec::with_capacity(INPUT_BYTES);
    put(&mut input, DOMAIN.as_bytes());
    for field in fields {
        match field {
            Field::Text(text) => put(&mut input, text.as_bytes()),
            Field::Integer(number) => put(&mut input, &number.to_le_bytes()),
        }
    }
    let mut first = [0_u8; 8];
    first.copy_from_slice(&blake3::hash(&input).as_bytes()[..8]);
    u64::from_le_bytes(first)
}

#[inline]
fn put(input: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("a draw field is far shorter than 4 GiB");
    input.extend_from_slice(&length.to_le_bytes());
    input.extend_from_slice(bytes);
}

/// Whether `request_id` is selected by `rule` for `purpose` under `seed`: `u·10⁹ < ppb·2⁶⁴` in u128.
#[must_use]
pub fn selected(seed: u64, rule: &str, purpose: &str, request_id: &str, fraction: Ppb) -> bool {
    let u = selection_draw(seed, rule, purpose, request_id);
    u128::from(u) * 1_000_000_000 < u128::from(fraction.get()) << 64
}

/// The draw behind [`selected`].
#[must_use]
pub fn selection_draw(seed: u64, rule: &str, purpose: &str, request_id: &str) -> u64 {
    draw(&[Field::Integer(seed), Field::Text(rule), Field::Text(purpose), Field::Text(request_id)])
}

/// What a value draw belongs to: the selection fields, then attempt and event index.
#[derive(Clone, Copy, Debug)]
pub struct ValueKey<'a> {
    /// Seed of the scenario.
    pub seed: u64,
    /// Rule or profile that asks.
    pub rule: &'a str,
    /// What the value is for, for example `ttft`.
    pub purpose: &'a str,
    /// Request id of the marker.
    pub request_id: &'a str,
    /// Ordinal of calls of that id and kind at that node, from 1.
    pub attempt: u64,
    /// Index of the event inside the answer, from 0.
    pub event: u64,
}

/// A value in the closed range `[low, high]`, in the unit of the bounds (microseconds in this project):
/// `low + ((u·(high−low+1)) >> 64)`. Bounds in the wrong order are taken as given by swapping them.
#[must_use]
pub fn in_range(key: ValueKey<'_>, low: u64, high: u64) -> u64 {
    let (low, high) = if low <= high { (low, high) } else { (high, low) };
    let u = draw(&[
        Field::Integer(key.seed),
        Field::Text(key.rule),
        Field::Text(key.purpose),
        Field::Text(key.request_id),
        Field::Integer(key.attempt),
        Field::Integer(key.event),
    ]);
    let width = u128::from(high - low) + 1;
    let offset = (u128::from(u) * width) >> 64;
    low + u64::try_from(offset).expect("the offset is below the width of a u64 range")
}

/// An index below `len` (0 when `len` is 0), used for weighted picks and word lists.
#[inline]
#[must_use]
pub fn below(fields: &[Field<'_>], len: u64) -> u64 {
    let offset = (u128::from(draw(fields)) * u128::from(len)) >> 64;
    u64::try_from(offset).expect("an index below a u64 length fits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_of_zero_selects_nothing_and_one_selects_all() {
        for index in 0..2_000 {
            let id = format!("s-42-{index:06}");
            assert!(!selected(42, "r", "select", &id, Ppb::ZERO));
            assert!(selected(42, "r", "select", &id, Ppb::ONE));
        }
    }

    #[test]
    fn field_borders_can_not_be_moved() {
        let left = draw(&[Field::Text("ab"), Field::Text("c")]);
        let right = draw(&[Field::Text("a"), Field::Text("bc")]);
        assert_ne!(left, right);
    }

    #[test]
    fn a_range_is_closed_on_both_sides() {
        let key = |event| ValueKey { seed: 1, rule: "r", purpose: "p", request_id: "x", attempt: 1, event };
        let drawn: Vec<u64> = (0..200).map(|event| in_range(key(event), 3, 5)).collect();
        assert!(drawn.iter().all(|value| (3..=5).contains(value)));
        assert!(drawn.contains(&3) && drawn.contains(&5));
        assert_eq!(in_range(key(0), 7, 7), 7);
        assert!(in_range(key(0), 0, u64::MAX) > 0);
    }
}
