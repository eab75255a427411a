//! # stats
//! Histograms, rank rules, exact comparisons and intervals: the arithmetic that verdict, loadgen and report share.
//!
//! Owner of state: nobody; every item is a value. Must never happen here: a clock, a random source, a file, a socket,
//! or a number that is not finite.
//!
//! | Word | Definition |
//! |---|---|
//! | percentile p of n samples | nearest rank: the sample at position ⌈p·n/100⌉ of the sorted samples, from 1 |
//! | low n | fewer than 100/(100−p) samples: the percentile is then the maximum |
//! | a limit is broken | `failed · 10⁹ > limit_ppb · total`, in integers: exactly at the limit holds |
//! | interval of k of n | Wilson score interval, 95 % |

pub mod histogram;
pub mod interval;
pub mod rank;
pub mod ratio;
