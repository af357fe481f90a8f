//! What `paring` computes, without a terminal and without a network: a package of its own, so that a change of the screen
//! builds no kernels, and kernels are optimised in full where the rest need not be.
//!
//! The rooms and how they hang together: `src/lib.rs` and `src/README.md`.

// A stream that is closed or full must not panic: the program's own writer writes.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod control;
pub mod data;
pub mod eval;
pub mod exec;
pub mod files;
pub mod graph;
pub mod model;
pub mod plain;
pub mod profile;
pub mod prune;
pub mod quant;
pub mod recover;
pub mod task;
pub mod train;
pub mod words;
