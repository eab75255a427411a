//! # report
//! Texts, pages and tables for people and machines from summaries and results: nothing here is judged again.
//!
//! Owner of state: nobody; every function gives a string. Must never happen here: a judgement, a clock, a file, a
//! number that is not in the evidence, a page that loads anything, foreign text that becomes markup.

pub mod chart;
pub mod html;
pub mod live;
pub mod run;
pub mod text;
pub mod units;
