//! Layer H of the self-test: recorded runs, spoilt or damaged in single facts, and what must come of each. One program
//! for all of it: the story that every part tells is compiled once.

#[path = "../support/mod.rs"]
mod support;

mod classes;
mod damage;
mod defects;
mod good_run;
mod known;
mod own_part;
mod random_places;
mod registry;
mod rules;
mod twins;
