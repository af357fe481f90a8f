//! The soak: the real binary against servers, kills and faults at random moments, over and over, for as long as it is given.
//! By hand, since it takes minutes; each part prints one line of figures and fails on the first violation, naming the seed and
//! the step with which it comes again.
//!
//! ```sh
//! cargo test --test soak -- --ignored --nocapture --test-threads 1             # everything
//! SOAK_SECONDS=3600 SOAK_SEED=7 cargo test --test soak servers -- --ignored --nocapture
//! ```
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `SOAK_SEED` | what is chosen, when and how often | 1 |
//! | `SOAK_SECONDS` | servers and faults go on for so long, and always once through | 300 |
//! | `SOAK_KILLS` | kills of a session's processes; of exports as many, of runs a quarter | 120 |
//!
//! What is held against the program throughout: every event that a client heard and every command that was acknowledged is in
//! the journal afterwards; nothing is built that was not approved, and what is applied lies on disk as its recipe says; an
//! export is whole or absent; the key is in no file and no output; nothing that a server says steers a terminal; a host
//! answers within [`rig::PROMPT`]; its memory stays below [`rig::MEMORY`] beyond its model.
//!
//! *Beyond the model*: the largest resident set of the host since it started (`VmHWM`), with its program, its images and
//! SQLite, less the checkpoint's bytes on disk once. In every part the model is small, so this is nearly all of the process.

#[path = "../common/manifest.rs"]
mod manifest;
#[path = "../common/pty.rs"]
mod pty;
#[path = "../common/small.rs"]
mod small;

mod answers;
mod audit;
mod exports;
mod faults;
mod http;
mod kills;
mod rig;
mod server;
mod servers;
mod world;
