//! Runs of the real programs from end to end. One program, so that runs which mostly wait share the machine: of a short
//! scenario most of the time is protocol limits and drain.

mod actions;
mod attach;
mod compose;
mod compose_faults;
mod compose_keep;
mod drain;
mod lifecycle;
mod namespaces;
mod real;
mod repro;
mod scenarios;
mod selftest;
mod services_misbehave;
mod support;
mod surroundings;
mod verdicts;
