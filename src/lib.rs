//! `paring`: human-in-the-loop neural-network compression at the terminal.
//!
//! # The map
//!
//! Rooms from [`graph`] to [`profile`], with [`files`], [`plain`] and [`words`], are the package `paring-engine` (`src/engine`).
//!
//! | room | what belongs there |
//! | --- | --- |
//! | [`args`] | the command line as it is typed |
//! | [`cli`] | validated settings, subcommands' entry points |
//! | [`config`] | layered settings, keymap, theme and prompt loading: a value plus every diagnostic |
//! | [`graph`] | pure IR, no tensors: the closed [`graph::Op`] enum, shapes, axis links, patches, costs |
//! | [`model`] | named parameters (views of their files), families, importers and exporters |
//! | [`exec`] | graph + params + precision plan → compiled plan; observers; kernels |
//! | [`profile`] | samples, timers, ladders, roofline, sensitivity |
//! | [`data`] | data sets, preprocessing, the synthetic demo set |
//! | [`task`] | what a model is for: scores of items, metrics, paired statistics; classification |
//! | [`eval`] | passes over a data set, trials on held-back images |
//! | [`prune`] | groups, importance, apply |
//! | [`quant`] | precision plans and the quantization arithmetic that kernels and checks share |
//! | [`recover`] | repair without training: least-squares re-fit, batch-norm re-estimation; ranges of static int8 inputs |
//! | [`train`] | training from labelled batches: trainer, objective, optimiser, schedule; the bundled demo models |
//! | [`control`] | levels of one language model that share weights and keys and values; who chooses one for every token |
//! | [`plan`] | decisions, constraints, budgets, forecasts, the built-in planner |
//! | [`agent`] | dialogue, prompt context, proposal parsing and validation, transport |
//! | [`session`] | events, state (a fold), journal, artifacts, the agents' roles |
//! | [`host`] | runtime: jobs, device worker, cancellation, socket server, lifecycle |
//! | [`tui`] | view state, update, views, widgets, input, frame scheduling, terminal guard |
//! | [`files`] | opening and replacing files, for all of them |
//! | [`headless`] | the same commands without a screen |
//! | [`mcp`] | a session for other programs, over the Model Context Protocol |
//! | [`serve`] | a language model behind OpenAI's HTTP interface |
//! | [`mask`] | secrets that are never shown: in addresses, in what a server echoes |
//! | [`words`], [`plain`] | small helps for all of them: nouns after numbers; foreign text made plain before it is shown |
//!
//! # Invariants
//!
//! 1. A compressed model is a pure function of (original weights, approved decisions, recipe seed).
//!    Original weights are read and never written; what was read of them stays what it was, or is noticed.
//! 2. The journal is the truth: session state = fold(events). A decision is durable before it takes effect.
//! 3. The screen never touches a tensor; compute never touches the terminal; compute never runs on the
//!    async runtime's threads.
//! 4. What is shown is what ran; a forecast always looks different from a measurement.
//! 5. Nothing an agent writes reaches an effect without being parsed, validated and clamped by code;
//!    nothing from a file or an agent reaches the terminal without control characters neutralised.
//! 6. An unsupported op, layer or format is a clear error that names it.
//!
//! Imports point one way: graph ← model ← {quant, task} ← {data, exec} ← {train, eval, prune, recover, profile} ← {control, plan} ← session
//! ← config ← agent ← host ← {tui, headless} ← {serve, mcp} ← cli. Session holds plain data; host wires everything; tui sees session state
//! and plan's data types only. `tests/tidy.rs` has the list and checks it.

// A stream that is closed or full must not panic: `headless::out` writes.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub use paring_engine::{
    control, data, eval, exec, files, graph, model, plain, profile, prune, quant, recover, task, train, words,
};

pub mod agent;
pub mod args;
pub mod cli;
pub mod config;
pub mod headless;
pub mod host;
pub mod mask;
pub mod mcp;
pub mod plan;
pub mod serve;
pub mod session;
pub mod tui;
