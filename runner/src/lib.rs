//! # runner
//! The control plane: starts an isolated stack, applies faults, drives loadgen, drains, collects, judges, and replays.
//!
//! Owner of state: [`life::dispatcher::Dispatcher`] owns the state of a run, [`guard`] owns every process of it.
//! Must never happen here: a judgement (crate `verdict` decides), a process that outlives its run, a secret in a file,
//! code of loadgen, mocks or refshard linked in: they are programs that could be others.

pub mod bundle;
pub mod cli;
pub mod clock;
pub mod collect;
pub mod commands;
pub mod control;
pub mod error;
pub mod guard;
pub mod input;
pub mod judge;
pub mod life;
pub mod pages;
pub mod stack;
pub mod view;
