//! # report
//! Texts for people from summaries and results.
//!
//! Owner of state: nobody; every function gives a string. Must never happen here: a judgement, a clock, a file, a
//! number that is not in the summary.

pub mod text;
