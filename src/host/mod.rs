//! The host: one process per session that owns the model, the device, the agents and the journal.
//!
//! Invariants: a command is validated, its event made durable, then applied and broadcast, in that order, by one thread;
//! compute runs on its own threads, never the async runtime's; a slow client never blocks anything; what a restart finds
//! half done is cancelled, not resumed.

mod aside;
pub mod client;
mod commands;
pub mod compute;
mod core;
pub mod desk;
pub mod dial;
pub mod engine;
mod error;
mod input;
mod jobs;
pub mod ledger;
pub mod lifecycle;
mod log;
mod machine;
mod outbox;
mod server;
pub mod spec;
mod wire;

pub use self::core::Auto;
pub use aside::Aside;
pub use engine::{Exported, JobError};
pub use spec::OpenSpec;

use self::core::Core;
use crate::config::Policy;
use crate::plan::Budget;
use crate::session::{Event, Journal, JournalError, Place, SessionCard, State};
use client::{Client, ConnectError, Messages};
use engine::{Engine, Llm};
use input::Input;
use ledger::Ledger;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Inputs that may wait for the heart before senders do.
const QUEUE: usize = 1024;

/// Why a host did not start.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Place(#[from] crate::session::place::PlaceError),
    /// In words, hint included.
    #[error("{0}")]
    Engine(String),
    #[error("socket `{path}`: {source}; hint: is the runtime folder writable?")]
    Socket { path: String, source: std::io::Error },
    #[error("cannot start the host: {0}; hint: is the machine out of threads or memory?")]
    Io(#[from] std::io::Error),
}

/// How a host behaves.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub auto: Auto,
    pub llm: Llm,
    /// The budget of a session that is new.
    pub budget: Budget,
    /// What binds a session that is new.
    pub rules: Policy,
    /// Where what authors expected and what came is kept across sessions.
    pub ledger: Option<Ledger>,
}

/// A running host in this process.
#[derive(Debug)]
pub struct Host {
    inputs: mpsc::Sender<Input>,
    ended: watch::Receiver<bool>,
    /// What opening the journal had to repair, in words.
    pub recovered: Option<String>,
}

impl Host {
    /// Opens the session at `place` and starts its heart. `open` makes the engine: from the session's card, or for a new
    /// session from whatever the caller holds.
    pub fn start(
        place: &Place,
        settings: Settings,
        open: impl FnOnce(Option<&SessionCard>) -> Result<Arc<dyn Engine>, String>,
    ) -> Result<Host, HostError> {
        let opened = Journal::open(&place.dir)?;
        let state = State::fold(&opened.records);
        let engine = open(state.card.as_ref()).map_err(HostError::Engine)?;
        let first = match &state.card {
            // A journal without a recipe gets one; a recipe that is another one now is written down before it counts.
            Some(old) => (engine.card().recipe)
                .filter(|new| old.recipe.as_ref() != Some(new))
                .map(|recipe| Event::RecipeSet { recipe })
                .into_iter()
                .collect(),
            None => {
                let opened = Event::Opened { card: Box::new(engine.card()), budget: settings.budget };
                let bound = commands::bound_by(&settings.rules, engine.card()).map_err(HostError::Engine)?;
                std::iter::once(opened).chain(bound).collect()
            }
        };
        let (inputs, rx) = mpsc::channel(QUEUE);
        let kept = (opened.journal, opened.recovered.clone());
        let mut core = Core::new(kept, state, engine, (settings.llm, settings.auto, settings.ledger), inputs.clone());
        core.begin(first).map_err(HostError::Engine)?;
        let (end, ended) = watch::channel(false);
        std::thread::Builder::new().name("session".to_owned()).spawn(move || {
            core.run(rx);
            let _ = end.send(true);
        })?;
        Ok(Host { inputs, ended, recovered: opened.recovered })
    }

    /// A client in this process, over the same frames as any other.
    pub async fn connect(&self, name: &str, watch: bool) -> Result<(Client, Messages), ConnectError> {
        let (near, far) = tokio::io::duplex(1 << 20);
        tokio::spawn(server::connection(far, self.inputs.clone()));
        Client::over(near, name, watch).await
    }

    /// Asks the host to end: running work is cancelled first.
    pub async fn stop(&self, reason: &str) {
        drop(self.inputs.send(Input::Stop { reason: reason.to_owned() }).await);
    }

    /// Resolves once the host has ended and the journal is closed.
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        drop(ended.wait_for(|e| *e).await);
    }

    /// Serves the session's socket until the host ends.
    pub async fn serve(&self, place: &Place) -> Result<(), HostError> {
        let path = place.socket()?;
        let socket = server::Socket::bind(&path)
            .map_err(|source| HostError::Socket { path: path.display().to_string(), source })?;
        socket.serve(self.inputs.clone(), self.ended()).await;
        Ok(())
    }
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
