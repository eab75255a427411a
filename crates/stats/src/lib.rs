//! The arithmetic of measurements: one definition of each figure that Proofload prints or judges by.
//!
//! | Word | Definition | Where |
//! |---|---|---|
//! | percentile p of n values | the value at rank `ceil(p/100 · n)`, from 1, in ascending order (nearest rank) | [`Percentile`] |
//! | low n | `n < 100 / (100 − p)`: the percentile is the maximum or could not be another value | [`Percentile::is_low_n`] |
//! | limit on a percentile | holds when at least `rank` values are at or below it; two counters decide it exactly | [`Percentile::within_limit`] |
//! | histogram percentile | upper end of the bucket that holds the rank, cut to minimum and maximum: never below the true value, at most 0.1 % above up to 24 h; first and last rank exact | [`Histogram`] |
//! | over range | values above 24 h: counted, in no bucket, read as the exact maximum | [`Histogram::over_range`] |
//! | count, sum, min, max | exact; minimum and maximum of nothing are `None` (`null`), a true 0 is a value | [`Histogram`], [`Summary`] |
//! | mean | exact sum over count, to the nearest microsecond, halves up | [`Summary`] |
//! | merge | equals one collection that saw all values, in any order and grouping | [`Histogram::merge`], [`Windows::merge`] |
//! | window | `[k·width, (k+1)·width)` from the start of the run; when full, neighbours merge and the width doubles | [`Windows`] |
//! | share against a limit | `part · 10⁹` against `limit_ppb · total` in whole numbers; equality is within the limit | [`ratio::exceeds`] |
//! | rate | count over span, compared by cross products; none for spans under 1 ms | [`Rate`] |
//! | goodput | sent requests that succeeded within all limits: as share of sent, or over time | [`Goodput`] |
//! | good, bad level | more of its runs passed than failed, or the reverse; a tie gets a deciding third run | [`next_level()`] |
//! | highest stable level | highest good level below the lowest bad one, both seen at least twice | [`Bracket`] |
//! | k of n | k over n with its 95 % Wilson interval | [`interval::wilson`] |
//! | change between runs | median of all pairwise ratios after/before, with the interval of the rank test and its true coverage | [`interval::ratio_of_runs`] |
//! | arrivals in `[0, t]` | `floor` of the integral of the rate | [`RateCurve::count_until`] |
//! | planned instant of arrival i, from 0 | first nanosecond at which the integral is at least i + 1 | [`RateCurve::instant_of`] |
//! | Poisson gap | `−ln((draw + 1) / 2⁶⁴)` arrivals, laid on the same integral | [`Due::plus_poisson_gap`] |
//!
//! State: every value here belongs to the caller that made it; nothing is shared or global. Each is bounded:
//! a histogram by its range, windows by their number, a search by its runs.
//!
//! What must never happen here: a clock, randomness (draws come in as values), network or files; a float in
//! a comparison that decides a verdict; 0 or NaN in place of "none"; foreign input believed before it adds up.
//!
//! ```
//! use stats::{Histogram, Next, Percentile, Purpose, SearchPlan, Steps, next_level};
//!
//! let latency: Histogram = [900, 1_000, 1_100].into_iter().collect();
//! assert_eq!(latency.percentile_us(Percentile::P50), Some(1_000));
//!
//! let steps = Steps::Factor { from: 8, to: 256, percent: 200 };
//! let plan = SearchPlan::new(steps, 50_000_000, 40)?;
//! assert_eq!(next_level(&plan, &[]), Next::Run { level: 8, purpose: Purpose::Step });
//! # Ok::<(), stats::SearchError>(())
//! ```

mod bounded;
pub mod histogram;
pub mod integral;
pub mod interval;
pub mod next_level;
mod packed;
pub mod rank;
pub mod ratio;
mod sparse;
mod summary;
pub mod windows;

pub use histogram::{Bucket, Histogram, RANGE_MAX_US, SIGNIFICANT_DIGITS};
pub use integral::{CurveTooLarge, Due, RateCurve};
pub use interval::{Interval, RatioOfRuns};
pub use next_level::{
    Bracket, LevelRun, Next, Outcome, Purpose, RUNS_MAX, SearchError, SearchPlan, Steps, next_level,
};
pub use packed::PackedHistogram;
pub use rank::{Percentile, PercentileError};
pub use ratio::{Fraction, Goodput, PerSecond, Rate};
pub use sparse::{BUCKETS_MAX, COUNT_MAX, HistogramError, SPARSE_VERSION, SparseHistogram};
pub use summary::Summary;
pub use windows::{Window, Windows, WindowsError, WindowsForm};
