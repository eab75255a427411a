//! Planned arrivals: the count at any time is the floor of the integral, and instants are its inverse.

use proptest::collection::vec;
use proptest::prelude::*;
use stats::{Due, PerSecond, RateCurve};

/// One arrival in the unit of a thousandth a second times a nanosecond.
const ARRIVAL: u128 = 1_000_000_000_000;

/// Rates up to 100 000 a second over up to 100 s, among them 0, equal ends and slow ones.
fn curve() -> impl Strategy<Value = (u64, u64, u64)> {
    let rate = || prop_oneof![Just(0_u64), 1_u64..5_000, 1_u64..100_000_000];
    let ends = prop_oneof![(rate(), rate()), rate().prop_map(|same| (same, same))];
    (ends, prop_oneof![0_u64..1_000, 0_u64..100_000_000_000]).prop_map(|((from, to), ns)| (from, to, ns))
}

fn build((from, to, duration_ns): (u64, u64, u64)) -> RateCurve {
    RateCurve::ramp(PerSecond::from_milli(from), PerSecond::from_milli(to), duration_ns)
        .expect("these rates and times fit")
}

/// Floor of the integral by the area of a trapezoid, apart from the formula that the crate uses.
fn area((from, to, duration_ns): (u64, u64, u64), at_ns: u64) -> u64 {
    if duration_ns == 0 {
        return 0;
    }
    let (from, to) = (u128::from(from), u128::from(to));
    let (at, whole) = (u128::from(at_ns.min(duration_ns)), u128::from(duration_ns));
    // the rate reached at this time, times the duration
    let reached = from * (whole - at) + to * at;
    u64::try_from((from * whole + reached) * at / (2 * whole * ARRIVAL)).expect("a count of this test")
}

proptest! {
    #[test]
    fn a_pacer_with_any_ticks_sends_the_floor_of_the_integral(
        shape in curve(),
        ticks in vec(0_u64..120_000_000_000, 1..40),
    ) {
        let curve = build(shape);
        let mut ticks = ticks;
        ticks.sort_unstable();
        let mut sent = 0;
        for now in ticks {
            // the pacer of the count, which sends what is due in one batch
            sent += curve.count_until(now) - sent;
            prop_assert_eq!(sent, area(shape, now));
            // the pacer of the instants agrees on both sides of the boundary
            if let Some(last) = sent.checked_sub(1) {
                prop_assert!(curve.instant_of(last).unwrap() <= now);
            }
            prop_assert!(curve.instant_of(sent).is_none_or(|next| next > now));
        }
    }

    #[test]
    fn an_instant_is_the_first_nanosecond_at_which_its_arrival_is_due(
        shape in curve(),
        place in any::<prop::sample::Index>(),
    ) {
        let curve = build(shape);
        let total = curve.total();
        prop_assert_eq!(curve.instant_of(total), None);
        prop_assume!(total > 0);
        let index = place.index(usize::try_from(total).unwrap()) as u64;
        let instant = curve.instant_of(index).unwrap();
        prop_assert!(instant <= curve.duration_ns());
        prop_assert!(curve.count_until(instant) > index);
        prop_assert!(instant == 0 || curve.count_until(instant - 1) <= index);
    }

    #[test]
    fn poisson_instants_rise_and_lie_within_the_stage(shape in curve(), draws in vec(any::<u64>(), 1..50)) {
        let curve = build(shape);
        let mut due = Due::default();
        let mut before = 0;
        for draw in draws {
            due = due.plus_poisson_gap(draw);
            let Some(instant) = curve.instant_due(due) else { break };
            prop_assert!(before <= instant && instant <= curve.duration_ns());
            // no earlier than the whole arrivals in what is due
            prop_assert!(u128::from(curve.count_until(instant)) >= due.parts() / ARRIVAL);
            before = instant;
        }
    }
}

/// Even draws from a counter, so that the test is the same every time.
fn draws() -> impl Iterator<Item = u64> {
    (1_u64..).map(|count| {
        let mut mixed = count.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    })
}

fn poisson_instants(curve: &RateCurve) -> Vec<u64> {
    let mut due = Due::default();
    let next = |draw| {
        due = due.plus_poisson_gap(draw);
        curve.instant_due(due)
    };
    draws().map_while(next).collect()
}

#[test]
fn poisson_gaps_have_the_mean_and_spread_of_their_law() {
    let curve = build((1_000_000, 1_000_000, 100_000_000_000));
    let instants = poisson_instants(&curve);
    // 100 000 expected, standard deviation 316
    assert!((98_700..101_300).contains(&instants.len()), "{}", instants.len());
    let gaps: Vec<f64> = instants.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    // an exponential law has a standard deviation equal to its mean
    assert!((mean / 1e6 - 1.0).abs() < 0.013, "{mean}");
    assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "{variance}");
    let longer = gaps.iter().filter(|gap| **gap > mean).count() as f64 / gaps.len() as f64;
    assert!((longer - (-1.0_f64).exp()).abs() < 0.006, "{longer}");
}

#[test]
fn poisson_follows_a_ramp() {
    // from 0 to 2000 a second over 100 s: a quarter of the arrivals lie in the first half
    let curve = build((0, 2_000_000, 100_000_000_000));
    let instants = poisson_instants(&curve);
    assert!((98_700..101_300).contains(&instants.len()), "{}", instants.len());
    let early = instants.iter().filter(|instant| **instant < 50_000_000_000).count();
    assert!((24_300..25_700).contains(&early), "{early}");
}

#[test]
fn poisson_instants_are_the_same_everywhere() {
    let curve = build((4_000_000, 4_000_000, 1_000_000_000));
    let instants = poisson_instants(&curve);
    // computed apart, with decimals of 60 digits
    assert_eq!(instants[..4], [31_020, 241_126, 1_149_404, 1_156_792]);
}
