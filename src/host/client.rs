//! The client's end: sends commands, receives the host's messages. Screens, headless runs and tests use nothing else.
//!
//! Invariant: `Welcome` comes first and again after a resync; the state folded from it and the events after it is the
//! host's. Replies to [`Client::command`] go to the caller, replies to [`Client::post`] come as messages.

use super::outbox::{Limits, Outbox};
use super::wire::{self, WireError};
use crate::session::{ClientMsg, Command, HostMsg, PROTOCOL};
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};

/// Why a command had no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// In the host's words, hint included.
    #[error("{0}")]
    Refused(String),
    #[error("the host is gone; hint: `paring attach` starts it again where it was")]
    Gone,
}

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("no host answers at `{path}`: {source}; hint: `paring ls` lists sessions")]
    Unreachable { path: String, source: std::io::Error },
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("the host closed the connection before its greeting; hint: see `paring log`")]
    Closed,
}

/// Who waits for which reply; `None` once the connection is gone.
type Pending = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Result<(), String>>>>>>;

/// Sends commands. Cheap to clone; dropping the last one detaches.
#[derive(Debug, Clone)]
pub struct Client {
    outgoing: mpsc::Sender<ClientMsg>,
    pending: Pending,
    next: Arc<AtomicU64>,
}

/// Receives what the host sends. The feed coalesces while nobody reads; events do not.
#[derive(Debug)]
pub struct Messages(Arc<Outbox>);

impl Drop for Messages {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Messages {
    /// The next message; `None` once the host is gone.
    pub async fn recv(&mut self) -> Option<HostMsg> {
        self.0.next().await.message()
    }

    /// The next message if there is one now.
    pub fn try_recv(&mut self) -> Option<HostMsg> {
        self.0.try_next()?.message()
    }
}

impl Client {
    /// Connects to a host's socket. `name` is how others see this client; a watcher never gets the pen by itself.
    pub async fn connect(path: &Path, name: &str, watch: bool) -> Result<(Client, Messages), ConnectError> {
        let stream = tokio::net::UnixStream::connect(path)
            .await
            .map_err(|source| ConnectError::Unreachable { path: path.display().to_string(), source })?;
        Client::over(stream, name, watch).await
    }

    /// Speaks over any byte stream; returns once the host has welcomed us (its `Welcome` is the first message).
    pub async fn over<S>(stream: S, name: &str, watch: bool) -> Result<(Client, Messages), ConnectError>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (reader, writer) = tokio::io::split(stream);
        let (mut reader, mut writer) = (wire::Receiver::new(reader), wire::Sender::new(writer));
        let hello = ClientMsg::Hello { protocol: PROTOCOL, client: name.to_owned(), watch };
        // A host that refuses may close before it has read us; what it said is worth more than the write's error.
        let greeted = writer.send(&hello).await;
        let first = match reader.receive::<HostMsg>().await? {
            Some(HostMsg::Refused { message }) => return Err(ConnectError::Refused(message)),
            Some(first) => first,
            None => return Err(ConnectError::Closed),
        };
        greeted?;
        let inbox = Arc::new(Outbox::new(Limits { events: usize::MAX / 16, ..Limits::default() }));
        inbox.push(first);
        let pending: Pending = Arc::new(Mutex::new(Some(HashMap::new())));
        let (outgoing, mut queue) = mpsc::channel::<ClientMsg>(256);
        tokio::spawn(async move {
            while let Some(message) = queue.recv().await {
                if writer.send(&message).await.is_err() {
                    break;
                }
            }
            // The last handle is gone: the host sees the stream's end and detaches us.
            writer.close().await;
        });
        let (inbox2, pending2) = (inbox.clone(), pending.clone());
        tokio::spawn(async move {
            while let Ok(Some(message)) = reader.receive::<HostMsg>().await {
                match message {
                    HostMsg::Reply { id, result } => match take(&pending2, id) {
                        Some(waiter) => drop(waiter.send(result)),
                        None => inbox2.push(HostMsg::Reply { id, result }),
                    },
                    other => inbox2.push(other),
                }
            }
            inbox2.close();
            pending2.lock().unwrap_or_else(PoisonError::into_inner).take();
        });
        Ok((Client { outgoing, pending, next: Arc::new(AtomicU64::new(1)) }, Messages(inbox)))
    }

    /// Sends `command` and waits until the host has made it durable or refused it.
    pub async fn command(&self, command: Command) -> Result<(), CommandError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (tx, rx) = oneshot::channel();
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).as_mut().ok_or(CommandError::Gone)?.insert(id, tx);
        if self.outgoing.send(ClientMsg::Command { id, command }).await.is_err() {
            take(&self.pending, id);
            return Err(CommandError::Gone);
        }
        rx.await.map_err(|_| CommandError::Gone)?.map_err(CommandError::Refused)
    }

    /// Sends `command` without waiting, for a screen's event loop; its reply comes as a message with the returned id.
    pub fn post(&self, command: Command) -> Result<u64, CommandError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.outgoing.try_send(ClientMsg::Command { id, command }).map_err(|_| CommandError::Gone)?;
        Ok(id)
    }
}

fn take(pending: &Pending, id: u64) -> Option<oneshot::Sender<Result<(), String>>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner).as_mut()?.remove(&id)
}
