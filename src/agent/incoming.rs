//! Reads one answer as it comes in, whatever form the server gave it.
//!
//! Not here: sending (`wire`), what a chunk means (`delta`). Invariants: every read has a bound in bytes, in events and in
//! time without content; nothing is read before what came before it was taken, so that a fast server waits for us and no
//! queue grows; the cost of reading is linear in what comes; a line that is no JSON is passed over, is one line in the log,
//! and of many the first few are.

use super::error::{LlmError, plain};
use super::wire::{MAX_ERROR, Wire, modest};
use bytes::Bytes;
use reqwest::Response;
use serde_json::{Value, json};
use sse_core::{SseDecoder, SseEvent};
use std::num::NonZeroUsize;
use tokio::time::{Instant, timeout};

/// Bytes that bring no content: a chunk is a few hundred, and one event or an answer in one piece may be so large.
const MAX_BARREN: usize = 16 << 20;
/// Events that bring no content: some servers send one for each token of reasoning that they keep to themselves.
const MAX_BARREN_EVENTS: u64 = 50_000;
/// Times the idle timeout for which a server may go on without content: it may load a model or read a long prompt, and
/// keep the connection alive meanwhile.
const BARREN_TIMES: u32 = 3;
/// Bytes of one whole answer: as many tokens as are taken, with far more around each than any server sends.
const MAX_ANSWER: u64 = 256 << 20;
/// Lines of one answer that are no JSON and are shown in the log.
const MAX_LOGGED: u32 = 5;
/// Bytes of an answer's beginning that are kept, to be shown when nothing in it could be read.
const BEGINNING: usize = 200;

/// What an answer turned out to be, by its first byte: servers' content types are not to be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Unknown,
    Events,
    /// JSON in one piece, as some servers answer whatever was asked for.
    Whole,
    /// A page of a proxy or a portal.
    Page,
    Over,
}

/// An answer coming in.
pub struct Incoming<'a> {
    wire: &'a Wire,
    response: Response,
    form: Form,
    decoder: SseDecoder,
    /// What has arrived and is not decoded yet.
    rest: Bytes,
    ended: bool,
    total: u64,
    /// Bytes and events since the last content, and when that was.
    barren: usize,
    barren_events: u64,
    since: Instant,
    /// JSON values that were read, and lines that were none.
    values: u64,
    bad: u32,
    begins: Vec<u8>,
}

impl<'a> Incoming<'a> {
    pub fn new(wire: &'a Wire, response: Response) -> Incoming<'a> {
        Incoming {
            wire,
            response,
            form: Form::Unknown,
            decoder: SseDecoder::with_limit(NonZeroUsize::new(MAX_BARREN).unwrap_or(NonZeroUsize::MIN)),
            rest: Bytes::new(),
            ended: false,
            total: 0,
            barren: 0,
            barren_events: 0,
            since: Instant::now(),
            values: 0,
            bad: 0,
            begins: Vec::new(),
        }
    }

    /// The next JSON values (mostly one); `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<Value>>, LlmError> {
        if self.form == Form::Unknown {
            self.form = self.look().await?;
        }
        let values = match self.form {
            Form::Unknown | Form::Over => None,
            Form::Events => self.event().await?,
            Form::Whole => Some(self.whole().await?),
            Form::Page => {
                let page = self.until(MAX_ERROR).await?;
                return Err(self.wire.nonsense(&format!("not JSON: {}", self.wire.line(&plain(&page), 80))));
            }
        };
        match &values {
            Some(v) => self.values += v.len() as u64,
            None if self.values == 0 => return Err(self.nothing()),
            None => {}
        }
        Ok(values)
    }

    /// What came had content: what may come without any is counted anew.
    pub fn had_content(&mut self) {
        (self.barren, self.barren_events, self.since) = (0, 0, Instant::now());
    }

    /// Waits for the first byte that is not white space.
    async fn look(&mut self) -> Result<Form, LlmError> {
        loop {
            let Some(bytes) = self.chunk().await? else { return Ok(Form::Over) };
            let first = bytes.iter().find(|b| !b.is_ascii_whitespace()).copied();
            self.rest = bytes;
            match first {
                None => {}
                Some(b'{' | b'[') => return Ok(Form::Whole),
                Some(b'<') => return Ok(Form::Page),
                Some(_) => return Ok(Form::Events),
            }
        }
    }

    /// The next event with something in it.
    async fn event(&mut self) -> Result<Option<Vec<Value>>, LlmError> {
        loop {
            while let Some(event) = self.decoder.next(&mut self.rest) {
                let message = match event {
                    Ok(SseEvent::Message(message)) => message,
                    Ok(SseEvent::Retry(_)) => continue,
                    Err(e) => return Err(self.wire.endless(e.to_string())),
                };
                if message.data.trim() == "[DONE]" {
                    self.form = Form::Over;
                    return Ok(None);
                }
                self.barren_events += 1;
                if self.barren_events > MAX_BARREN_EVENTS {
                    return Err(self.wire.endless(format!("more than {MAX_BARREN_EVENTS} events")));
                }
                let mut values = self.read(&message.data);
                if message.event == "error" {
                    values = values.into_iter().map(named_error).collect();
                }
                if !values.is_empty() {
                    return Ok(Some(values));
                }
            }
            if self.ended {
                self.form = Form::Over;
                return Ok(None);
            }
            self.rest = match self.chunk().await? {
                Some(bytes) => bytes,
                None => {
                    // A last event without the blank line after it is one.
                    self.ended = true;
                    Bytes::from_static(b"\n\n")
                }
            };
        }
    }

    async fn whole(&mut self) -> Result<Vec<Value>, LlmError> {
        let text = self.until(MAX_BARREN).await?;
        self.form = Form::Over;
        let values = self.read(&text);
        if values.is_empty() { Err(self.nothing()) } else { Ok(values) }
    }

    /// The body from here to its end, at most about `most` bytes of it.
    async fn until(&mut self, most: usize) -> Result<String, LlmError> {
        let mut body = std::mem::take(&mut self.rest).to_vec();
        while body.len() < most {
            let Some(bytes) = self.chunk().await? else { break };
            body.extend_from_slice(&bytes);
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// The values in an event's data: one, or one a line where a server leaves out the blank lines between.
    fn read(&mut self, data: &str) -> Vec<Value> {
        let mut values = Vec::new();
        if modest(data) {
            values.extend(serde_json::Deserializer::from_str(data).into_iter().map_while(Result::<Value, _>::ok));
        }
        // Passed over: the next may be one.
        if values.is_empty() && !data.trim().is_empty() {
            self.bad = self.bad.saturating_add(1);
            if self.bad <= MAX_LOGGED {
                tracing::warn!("{} sent a line that is not JSON: {}", self.wire.url, self.wire.line(data, 80));
            }
        }
        values
    }

    /// The next bytes. Nothing else reads the answer.
    async fn chunk(&mut self) -> Result<Option<Bytes>, LlmError> {
        let wire = self.wire;
        let read = timeout(wire.idle, self.response.chunk()).await.map_err(|_| wire.silent())?;
        let Some(bytes) = read.map_err(|e| wire.broken(&e))? else { return Ok(None) };
        self.total += bytes.len() as u64;
        self.barren += bytes.len();
        if self.begins.len() < BEGINNING {
            self.begins.extend_from_slice(&bytes[..bytes.len().min(BEGINNING - self.begins.len())]);
        }
        let longest = wire.idle.saturating_mul(BARREN_TIMES);
        if self.barren > MAX_BARREN || self.total > MAX_ANSWER {
            Err(wire.endless(format!("{} MiB", self.total >> 20)))
        } else if self.since.elapsed() > longest {
            Err(wire.endless(format!("{} s", longest.as_secs())))
        } else {
            Ok(Some(bytes))
        }
    }

    /// Why nothing could be read.
    fn nothing(&self) -> LlmError {
        let begins = String::from_utf8_lossy(&self.begins);
        let begins = begins.trim_start();
        let field = ["data:", "event:", "id:", "retry:", ":"].iter().any(|f| begins.starts_with(f));
        if self.bad == 0 && (begins.is_empty() || field) {
            LlmError::Empty { url: self.wire.url.clone() }
        } else {
            self.wire.nonsense(&format!("not JSON: {}", self.wire.line(begins, 80)))
        }
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        if self.bad > MAX_LOGGED {
            tracing::warn!("{}: {} more of its lines were not JSON", self.wire.url, self.bad - MAX_LOGGED);
        }
    }
}

/// Data of an event that is called `error`, as an error.
fn named_error(value: Value) -> Value {
    if value.get("error").is_some() { value } else { json!({ "error": value }) }
}
