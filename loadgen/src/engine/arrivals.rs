//! When a stage starts its conversations: arrivals of one shard, each a pure function of stage, seed and index.

use std::sync::Arc;

use scenario::draw::{Field, draw};
use scenario::pipe::Shard;
use stats::{Due, RateCurve};

use crate::profile::resolve::{Kind, TraceArrival};
use crate::profile::weights;

/// Longest table of scenarios by arrival; weights that need more are rounded to it.
const TABLE_MAX: u64 = 10_000;

/// One arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Ordinal in the stage, over all shards.
    pub index: u64,
    /// From the start of the stage, microseconds; never before the exact instant.
    pub at_us: u64,
    /// Place of its scenario.
    pub scenario: usize,
}

enum Source {
    Even(RateCurve),
    Poisson { curve: RateCurve, due: Due, seed: u64, stage: u64 },
    Trace(Arc<[TraceArrival]>),
}

/// The arrivals of one shard of an open stage, in order.
pub struct Arrivals {
    source: Source,
    shard: Shard,
    index: u64,
    table: Vec<usize>,
}

impl Arrivals {
    /// The arrivals of a stage; `None` for a closed one.
    #[must_use]
    pub fn new(kind: &Kind, shard: Shard, seed: u64, stage: usize, weights: &[u64]) -> Option<Self> {
        let source = match kind {
            Kind::Closed { .. } => return None,
            Kind::Open { curve, poisson: false } => Source::Even(*curve),
            Kind::Open { curve, poisson: true } => {
                Source::Poisson { curve: *curve, due: Due::default(), seed, stage: stage as u64 }
            }
            Kind::Replay(arrivals) => Source::Trace(Arc::clone(arrivals)),
        };
        Some(Self { source, shard, index: 0, table: table(weights) })
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    /// The next one of this shard.
    fn next(&mut self) -> Option<Arrival> {
        loop {
            let index = self.index;
            let mine = index % self.shard.of == self.shard.shard;
            let mut named = None;
            let at_us = match &mut self.source {
                // Even arrivals of other shards need not be looked at.
                Source::Even(_) if !mine => 0,
                Source::Even(curve) => curve.instant_of(index)?.div_ceil(1_000),
                Source::Poisson { curve, due, seed, stage } => {
                    let fields = [
                        Field::Integer(*seed),
                        Field::Text("profile"),
                        Field::Text("arrival"),
                        Field::Integer(*stage),
                        Field::Integer(index),
                    ];
                    *due = due.plus_poisson_gap(draw(&fields));
                    curve.instant_due(*due)?.div_ceil(1_000)
                }
                Source::Trace(arrivals) => {
                    let arrival = arrivals.get(usize::try_from(index).ok()?)?;
                    named = arrival.scenario;
                    arrival.at_us
                }
            };
            self.index += 1;
            if mine {
                let place = usize::try_from(index % self.table.len() as u64).unwrap_or_default();
                return Some(Arrival { index, at_us, scenario: named.unwrap_or(self.table[place]) });
            }
        }
    }
}

/// Scenarios of a row of arrivals, repeated for ever: shares are exact over its length.
fn table(weights: &[u64]) -> Vec<usize> {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let divisor = weights.iter().copied().fold(0, gcd).max(1);
    let length = weights.iter().map(|weight| weight / divisor).sum::<u64>().clamp(1, TABLE_MAX);
    weights::spread(length, weights)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use stats::PerSecond;

    fn all(kind: &Kind, shard: u64, of: u64) -> Vec<Arrival> {
        Arrivals::new(kind, Shard { shard, of }, 7, 1, &[70, 20, 10]).unwrap().collect()
    }

    fn open(from: u64, to: u64, seconds: u64, poisson: bool) -> Kind {
        let rate = PerSecond::from_whole;
        Kind::Open { curve: RateCurve::ramp(rate(from), rate(to), seconds * 1_000_000_000).unwrap(), poisson }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn shards_merge_to_the_whole(from in 0_u64..60, to in 1_u64..60, of in 1_u64..6, poisson: bool) {
            let kind = open(from, to, 5, poisson);
            let whole = all(&kind, 0, 1);
            let mut merged: Vec<Arrival> = (0..of).flat_map(|shard| all(&kind, shard, of)).collect();
            merged.sort_by_key(|arrival| arrival.index);
            prop_assert_eq!(&merged, &whole);
            prop_assert!(whole.windows(2).all(|pair| pair[0].at_us <= pair[1].at_us));
        }

        #[test]
        fn what_is_due_is_the_floor_of_the_integral_at_any_tick(
            from in 0_u64..2_000, to in 1_u64..2_000, ticks in prop::collection::vec(0_u64..3_000_000, 1..40)
        ) {
            let Kind::Open { curve, .. } = open(from, to, 3, false) else { unreachable!() };
            let arrivals = all(&open(from, to, 3, false), 0, 1);
            for tick_us in ticks {
                let due = arrivals.iter().filter(|arrival| arrival.at_us <= tick_us).count() as u64;
                prop_assert_eq!(due, curve.count_until(tick_us * 1_000));
            }
        }
    }

    #[test]
    fn scenarios_follow_the_weights_exactly() {
        let arrivals = all(&open(100, 100, 10, false), 0, 1);
        let count = |place| arrivals.iter().filter(|arrival| arrival.scenario == place).count();
        assert_eq!([count(0), count(1), count(2)], [700, 200, 100]);
    }

    #[test]
    fn a_trace_is_played_as_it_is() {
        let trace = [TraceArrival { at_us: 5, scenario: Some(2) }, TraceArrival { at_us: 9, scenario: None }];
        let arrivals = all(&Kind::Replay(trace.into()), 0, 1);
        assert_eq!((arrivals[0].at_us, arrivals[0].scenario, arrivals.len()), (5, 2, 2));
    }
}
