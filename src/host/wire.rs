//! Frames on a byte stream: a big-endian `u32` length, then one JSON message. The same code serves the Unix socket and
//! the in-memory transport.
//!
//! Invariants: no frame is larger than its receiver's bound; a frame that does not parse ends the connection, in words.

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec, LengthDelimitedCodecError};

/// Largest frame that a client accepts: a whole session's state with room to spare.
pub const MAX_FRAME: usize = 256 << 20;
/// Largest frame that a host accepts: a command, whose longest names thousands of units or decisions.
pub const MAX_COMMAND: usize = 1 << 20;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("connection lost: {0}")]
    Io(std::io::Error),
    #[error("a frame is larger than this side accepts; hint: shorten what it holds")]
    TooLarge,
    #[error("not a message of this protocol: {0}; hint: client and host must be the same version of paring")]
    Message(#[from] serde_json::Error),
}

impl From<std::io::Error> for WireError {
    fn from(e: std::io::Error) -> WireError {
        let too_large = e.get_ref().is_some_and(|e| e.is::<LengthDelimitedCodecError>());
        if too_large { WireError::TooLarge } else { WireError::Io(e) }
    }
}

fn codec(most: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(most).new_codec()
}

/// Receives messages of type `T`.
pub struct Receiver<R>(FramedRead<R, LengthDelimitedCodec>);

/// Sends messages.
pub struct Sender<W>(FramedWrite<W, LengthDelimitedCodec>);

impl<R: AsyncRead + Unpin> Receiver<R> {
    pub fn new(reader: R) -> Receiver<R> {
        Receiver::bounded(reader, MAX_FRAME)
    }

    /// As [`Receiver::new`], for frames of at most `most` bytes.
    pub fn bounded(reader: R, most: usize) -> Receiver<R> {
        Receiver(FramedRead::new(reader, codec(most)))
    }

    /// The next message; `None` at the end of the stream.
    pub async fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        match self.0.next().await {
            None => Ok(None),
            Some(frame) => Ok(Some(serde_json::from_slice(&frame?)?)),
        }
    }
}

impl<W: AsyncWrite + Unpin> Sender<W> {
    pub fn new(writer: W) -> Sender<W> {
        Sender(FramedWrite::new(writer, codec(MAX_FRAME)))
    }

    pub async fn send<T: Serialize>(&mut self, message: &T) -> Result<(), WireError> {
        let bytes = serde_json::to_vec(message)?;
        Ok(self.0.send(Bytes::from(bytes)).await?)
    }

    /// Ends the stream for the other side.
    pub async fn close(&mut self) {
        let closed: Result<(), std::io::Error> = SinkExt::<Bytes>::close(&mut self.0).await;
        drop(closed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn messages_survive_the_trip_and_nonsense_is_refused() {
        let (a, mut b) = tokio::io::duplex(1 << 10);
        let mut receiver = Receiver::new(a);
        Sender::new(&mut b).send(&vec![1, 2, 3]).await.expect("sent");
        assert_eq!(receiver.receive::<Vec<u8>>().await.expect("received"), Some(vec![1, 2, 3]));
        Sender::new(&mut b).send(&"words").await.expect("sent");
        assert!(matches!(receiver.receive::<Vec<u8>>().await, Err(WireError::Message(_))));
        b.write_all(&u32::MAX.to_be_bytes()).await.expect("written");
        assert!(matches!(receiver.receive::<Vec<u8>>().await, Err(WireError::TooLarge)));
    }
}
