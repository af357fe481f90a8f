//! The session as it is now, and what is sent to it: a client of its host that folds events as they come.
//!
//! Invariant: it never has the pen. The first request starts a host where none runs, as `paring attach` does; one that ended later stays so.

use crate::agent::clean;
use crate::host::client::{Client, Messages};
use crate::host::lifecycle;
use crate::plan::planner::trial_of;
use crate::plan::{Action, Target};
use crate::session::{Command, Feed, HostMsg, Place, State};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// How long a command may take to be judged.
const JUDGED: Duration = Duration::from_secs(30);

/// What is known of the session.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub state: Arc<State>,
    /// Jobs that ended since this client came.
    pub ended: u64,
    pub gone: bool,
    /// The newest warning.
    pub warned: Option<String>,
}

const GONE: &str = "the session's host ended meanwhile; hint: the engineer starts it again (`paring attach`)";

type Waiters = Arc<Mutex<HashMap<u64, oneshot::Sender<Result<(), String>>>>>;

#[derive(Debug, Clone)]
struct Link {
    client: Client,
    seen: watch::Receiver<Seen>,
    waiters: Waiters,
    name: String,
}

/// A session that is looked at.
#[derive(Debug)]
pub struct Live {
    place: Place,
    link: tokio::sync::Mutex<Option<Link>>,
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Live {
    pub fn new(place: Place) -> Live {
        Live { place, link: tokio::sync::Mutex::default() }
    }

    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Connects as `name`, unless that is so already.
    ///
    /// # Errors
    /// In words: the host cannot be reached or started.
    pub async fn open(&self, name: &str) -> Result<(), String> {
        self.linked(name).await.map(drop)
    }

    async fn linked(&self, name: &str) -> Result<Link, String> {
        let mut link = self.link.lock().await;
        if let Some(known) = link.as_ref().filter(|l| !l.seen.borrow().gone && l.name == name) {
            return Ok(known.clone());
        }
        let again = link.is_some();
        let name = clean::line(name, 60);
        // Who stopped it meant it.
        if again && !lifecycle::is_running(&self.place) {
            return Err(
                "the session's host was stopped, or ended; hint: the engineer starts it (`paring attach`)".to_owned()
            );
        }
        let (client, messages) =
            lifecycle::attach(&self.place, &name, true, |_| {}).await.map_err(|e| format!("{e:#}"))?;
        let (tx, mut seen) = watch::channel(Seen::default());
        let waiters = Waiters::default();
        tokio::spawn(follow(messages, tx, waiters.clone()));
        // The first message is the whole state.
        let greeted = seen.wait_for(|s| s.gone || s.state.seq > 0);
        match tokio::time::timeout(JUDGED, greeted).await {
            Ok(Ok(s)) if !s.gone => {}
            _ => return Err("the session's host does not answer; hint: `paring log` says why".to_owned()),
        }
        let new = Link { client, seen, waiters, name };
        *link = Some(new.clone());
        Ok(new)
    }

    /// The session as it is now.
    ///
    /// # Errors
    /// As [`Live::open`].
    pub async fn state(&self, name: &str) -> Result<Arc<State>, String> {
        let link = self.linked(name).await?;
        let state = link.seen.borrow().state.clone();
        Ok(state)
    }

    /// Sends `command`, and returns the session with all that followed from it.
    ///
    /// # Errors
    /// In the host's words.
    pub async fn command(&self, name: &str, command: Command) -> Result<Arc<State>, String> {
        let link = self.linked(name).await?;
        let (tx, rx) = oneshot::channel();
        {
            // The reply cannot come before somebody waits for it.
            let mut waiters = lock(&link.waiters);
            let id = link.client.post(command).map_err(|e| e.to_string())?;
            waiters.insert(id, tx);
        }
        match tokio::time::timeout(JUDGED, rx).await {
            Ok(Ok(result)) => result?,
            _ => return Err("the session's host did not answer; hint: try again".to_owned()),
        }
        let state = link.seen.borrow().state.clone();
        Ok(state)
    }

    /// What a rehearsal of `actions` showed, once it is over.
    ///
    /// # Errors
    /// In words: it failed, was cut short, or takes longer than `most`.
    pub async fn tried(&self, name: &str, actions: &[(Target, Action)], most: Duration) -> Result<Arc<State>, String> {
        let mut seen = self.linked(name).await?.seen;
        let (ended, warned) = {
            let now = seen.borrow();
            (now.ended, now.warned.clone())
        };
        let done = seen.wait_for(|s| s.gone || s.ended > ended || trial_of(&s.state.trials, actions).is_some());
        let seen = match tokio::time::timeout(most, done).await {
            Ok(Ok(seen)) => seen.clone(),
            Ok(Err(_)) => return Err(GONE.to_owned()),
            Err(_) => {
                let s = most.as_secs();
                return Err(format!("it takes longer than {s} s and goes on; hint: `frontier` has it once it is done"));
            }
        };
        match (trial_of(&seen.state.trials, actions), &seen.warned) {
            (Some(_), _) => Ok(seen.state),
            (None, _) if seen.gone => Err(GONE.to_owned()),
            (None, Some(why)) if seen.warned != warned => Err(why.clone()),
            (None, _) => {
                Err("it was cut short: something of the engineer's went before it; hint: try again".to_owned())
            }
        }
    }

    /// Waits for a note that was not there at `notes` of them.
    pub async fn note(&self, name: &str, round_notes: usize, most: Duration) -> Result<Option<String>, String> {
        let mut seen = self.linked(name).await?.seen;
        let done = seen.wait_for(|s| s.gone || s.state.notes.len() > round_notes);
        Ok(match tokio::time::timeout(most, done).await {
            Ok(Ok(seen)) if seen.gone => return Err(GONE.to_owned()),
            Ok(Ok(seen)) => seen.state.notes.last().map(|(_, text)| text.clone()),
            _ => None,
        })
    }
}

/// Folds what comes until the host is gone.
async fn follow(mut messages: Messages, tx: watch::Sender<Seen>, waiters: Waiters) {
    while let Some(message) = messages.recv().await {
        match message {
            HostMsg::Welcome { state, .. } => tx.send_modify(|s| s.state = Arc::new(*state)),
            HostMsg::Event { record } => tx.send_modify(|s| Arc::make_mut(&mut s.state).apply(&record)),
            HostMsg::Feed { feed: Feed::JobEnd { .. } } => tx.send_modify(|s| s.ended += 1),
            HostMsg::Feed { feed: Feed::Log { level, text } } if level == "warn" => {
                tx.send_modify(|s| s.warned = Some(text));
            }
            HostMsg::Reply { id, result } => {
                if let Some(waiter) = lock(&waiters).remove(&id) {
                    drop(waiter.send(result));
                }
            }
            HostMsg::Feed { .. } | HostMsg::Pen { .. } | HostMsg::Refused { .. } | HostMsg::Bye { .. } => {}
        }
    }
    tx.send_modify(|s| s.gone = true);
    lock(&waiters).clear();
}
