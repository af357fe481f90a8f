//! Connections: frames in, commands to the heart; outbox to frames. One path for sockets and for the in-memory transport.

use super::input::Input;
use super::outbox::{Limits, Next, Outbox};
use super::wire;
use crate::session::{ClientMsg, HostMsg, PROTOCOL};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

/// How long a new connection may take to greet.
const GREETING: Duration = Duration::from_secs(10);
/// How long goodbyes may take to be written.
const GOODBYE: Duration = Duration::from_secs(2);

/// Speaks with one client until either side ends it.
pub async fn connection<S>(stream: S, inputs: mpsc::Sender<Input>)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, writer) = tokio::io::split(stream);
    let (mut reader, mut writer) = (wire::Receiver::bounded(reader, wire::MAX_COMMAND), wire::Sender::new(writer));
    let greeting = match tokio::time::timeout(GREETING, reader.receive::<ClientMsg>()).await {
        Ok(Ok(Some(ClientMsg::Hello { protocol: PROTOCOL, client, watch }))) => Ok((client, watch)),
        Ok(Ok(Some(ClientMsg::Hello { protocol, .. }))) => Err(format!(
            "this host speaks protocol {PROTOCOL}, you speak {protocol}; hint: `paring stop` it with the paring that \
                 started it, then attach again"
        )),
        Ok(Ok(Some(ClientMsg::Command { .. }))) => {
            Err("the first message must be a greeting; hint: connect with `paring attach`".to_owned())
        }
        // Somebody who only looked whether anyone answers.
        Ok(Ok(None)) | Err(_) => return,
        Ok(Err(e)) => Err(e.to_string()),
    };
    let (name, watch) = match greeting {
        Ok(greeting) => greeting,
        Err(message) => return drop(writer.send(&HostMsg::Refused { message }).await),
    };
    let outbox = Arc::new(Outbox::new(Limits::default()));
    let (reply, welcome) = oneshot::channel();
    let attach = Input::Attach { name, watch, outbox: outbox.clone(), reply };
    if inputs.send(attach).await.is_err() {
        return;
    }
    let Ok(client) = welcome.await else { return };
    let (inputs2, refused) = (inputs.clone(), outbox.clone());
    let incoming = async move {
        loop {
            let message = match reader.receive::<ClientMsg>().await {
                Ok(Some(ClientMsg::Command { id, command })) => {
                    if inputs2.send(Input::Command { client, id, command }).await.is_err() {
                        // The host ends; its goodbye is still to be written.
                        std::future::pending::<()>().await;
                    }
                    continue;
                }
                Ok(None) => return,
                Ok(Some(ClientMsg::Hello { .. })) => "you are greeted already; hint: send commands".to_owned(),
                Err(e) => e.to_string(),
            };
            // What comes behind a frame that is none cannot be made out; but what was wrong can be said, after what is
            // still to be sent. The connection ends with it.
            refused.push(HostMsg::Refused { message });
            refused.close();
            tokio::time::sleep(GOODBYE).await;
            return;
        }
    };
    let (inputs3, outbox2) = (inputs.clone(), outbox.clone());
    let outgoing = async move {
        loop {
            match outbox2.next().await {
                Next::Message(message) => {
                    if writer.send(&message).await.is_err() {
                        return;
                    }
                }
                Next::Resync => drop(inputs3.send(Input::Resync { client }).await),
                Next::Closed => return,
            }
        }
    };
    tokio::select! {
        () = incoming => {}
        () = outgoing => {}
    }
    outbox.close();
    drop(inputs.send(Input::Detach { client }).await);
}

/// A socket that is removed when it is no longer served.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Socket {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.path));
    }
}

impl Socket {
    /// Binds `path` for this user alone. The caller holds the session's lock, so a socket that lies there is stale.
    pub fn bind(path: &Path) -> std::io::Result<Socket> {
        drop(std::fs::remove_file(path));
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Socket { listener, path: path.to_owned() })
    }

    /// Serves connections until `ended` resolves, then lets goodbyes be written.
    pub async fn serve(self, inputs: mpsc::Sender<Input>, ended: impl Future<Output = ()>) {
        let mut connections = tokio::task::JoinSet::new();
        tokio::pin!(ended);
        loop {
            tokio::select! {
                () = &mut ended => break,
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => drop(connections.spawn(connection(stream, inputs.clone()))),
                    Err(error) => {
                        // Out of descriptors, most likely: others may close theirs.
                        tracing::warn!(%error, "accept");
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
        drop(inputs);
        let all = async { while connections.join_next().await.is_some() {} };
        drop(tokio::time::timeout(GOODBYE, all).await);
    }
}
