//! What passes between us and one server: requests out, answers in.
//!
//! Not here: what is asked and when it is asked again (`transport`), how an answer's stream is read (`incoming`), what a
//! chunk means (`delta`), what of it is handed on (`answer`). Invariants: every read has a bound in bytes and in time; an
//! error's words are masked before they are cut.

use super::{Endpoint, LlmError, clean};
use crate::mask::{self, Mask};
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{RequestBuilder, Response, Url};
use serde_json::Value;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, timeout, timeout_at};

/// Bytes of a list of models; OpenRouter's, of some hundreds, is below one MiB.
const MAX_LIST: usize = 4 << 20;
/// Bytes of an error's body.
pub const MAX_ERROR: usize = 64 << 10;
/// JSON values in one event or body. A value takes some ten times the memory of its shortest text.
const MAX_VALUES: usize = 1_000_000;

/// Why a request came to nothing, and how long the server asks to wait before another.
#[derive(Debug)]
pub struct Failure {
    pub error: LlmError,
    pub after: Option<Duration>,
}

impl From<LlmError> for Failure {
    fn from(error: LlmError) -> Failure {
        Failure { error, after: None }
    }
}

/// The line to one endpoint.
pub struct Wire {
    http: reqwest::Client,
    headers: HeaderMap,
    base: Url,
    /// The address as it may be shown.
    pub url: String,
    pub mask: Mask,
    /// Longest silence.
    pub idle: Duration,
}

impl Wire {
    /// `headers` go with every request; `idle` is the longest silence.
    pub fn new(
        http: reqwest::Client,
        endpoint: &Endpoint,
        mut headers: HeaderMap,
        idle: Duration,
    ) -> Result<Wire, LlmError> {
        let url = mask::address(&endpoint.base_url);
        let bad = |reason: String| LlmError::Connect { url: url.clone(), reason };
        let base = Url::parse(&endpoint.base_url).map_err(|e| bad(e.to_string()))?;
        if base.cannot_be_a_base() {
            return Err(bad("no address of a server".to_owned()));
        }
        // Compressed, a stream arrives in lumps. What comes compressed all the same is undone by the client.
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let mask = Mask::of(&endpoint.base_url, &endpoint.api_key);
        Ok(Wire { http, headers, base, url, mask, idle })
    }

    /// Foreign words as one line that may be shown. Masked first: half of a key is a key.
    pub fn line(&self, words: &str, max: usize) -> String {
        clean::line(&self.mask.text(&clean::text(words)), max)
    }

    /// The names under which the server lists its models. Raw, since they are sent back; never to be shown as they are.
    pub async fn models(&self) -> Result<Vec<String>, Failure> {
        let response = self.send(self.http.get(self.at(&["models"]))).await?;
        let (body, ended) = self.body(response, MAX_LIST).await;
        ended?;
        let body = String::from_utf8_lossy(&body);
        let list = json(&body).ok_or_else(|| self.nonsense(&format!("/models is not JSON: {}", self.line(&body, 80))));
        let list = list?;
        // Some servers answer what they do not know with 200 and an error.
        match list.get("error").filter(|e| !e.is_null()) {
            Some(said) => Err(LlmError::from_value(&self.url, None, &self.mask.value(said.clone())).into()),
            None => Ok(model_names(&list)),
        }
    }

    /// Sends a question; the answer is still to be read.
    pub async fn ask(&self, question: &impl serde::Serialize) -> Result<Response, Failure> {
        let body = serde_json::to_vec(question).map_err(|e| self.nonsense(&e.to_string()))?;
        let post = self.http.post(self.at(&["chat", "completions"]));
        self.send(post.header(header::CONTENT_TYPE, "application/json").body(body)).await
    }

    /// The base URL with `path` after its own; its query stays.
    fn at(&self, path: &[&str]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let sent = timeout(self.idle, request.headers(self.headers.clone()).send()).await;
        let response = sent.map_err(|_| self.silent())?.map_err(|e| self.broken(&e))?;
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        // The client removes the header of what it has decoded.
        let coded = response.headers().get(header::CONTENT_ENCODING).and_then(|v| v.to_str().ok());
        match coded.filter(|c| !c.trim().is_empty() && !c.eq_ignore_ascii_case("identity")) {
            Some(coding) => Err(self.nonsense(&format!("it is compressed (`{coding}`), unasked")).into()),
            None => Ok(response),
        }
    }

    async fn refusal(&self, response: Response) -> Failure {
        let status = response.status().as_u16();
        let after = retry_after(response.headers(), SystemTime::now());
        // However the body ended: what came of it is all there is to tell.
        let (body, _) = self.body(response, MAX_ERROR).await;
        let text = String::from_utf8_lossy(&body).into_owned();
        let said = self.mask.value(json(&text).unwrap_or(Value::String(text)));
        Failure { error: LlmError::from_value(&self.url, Some(status), &said), after }
    }

    /// A body, at most `most` bytes of it and as much as comes within the idle time, and whether that was all.
    async fn body(&self, mut response: Response, most: usize) -> (Vec<u8>, Result<(), LlmError>) {
        let deadline = Instant::now() + self.idle;
        let mut body = Vec::new();
        loop {
            match timeout_at(deadline, response.chunk()).await {
                Err(_) => return (body, Err(self.silent())),
                Ok(Err(e)) => return (body, Err(self.broken(&e))),
                Ok(Ok(None)) => return (body, Ok(())),
                Ok(Ok(Some(bytes))) if body.len() + bytes.len() > most => {
                    body.extend_from_slice(&bytes[..most - body.len()]);
                    return (body, Err(self.endless(format!("more than {} KiB", most >> 10))));
                }
                Ok(Ok(Some(bytes))) => body.extend_from_slice(&bytes),
            }
        }
    }

    pub fn silent(&self) -> LlmError {
        LlmError::Silent { url: self.url.clone(), after: self.idle }
    }

    pub fn endless(&self, sent: String) -> LlmError {
        LlmError::Endless { url: self.url.clone(), sent }
    }

    pub fn nonsense(&self, reason: &str) -> LlmError {
        LlmError::Nonsense { url: self.url.clone(), reason: self.line(reason, 200) }
    }

    pub fn broken(&self, e: &reqwest::Error) -> LlmError {
        let (url, reason) = (self.url.clone(), self.line(&innermost(e), 200));
        if e.is_connect() || e.is_builder() {
            LlmError::Connect { url, reason }
        } else {
            LlmError::Broken { url, reason }
        }
    }
}

/// Whether reading it as JSON takes no more memory than it may.
pub fn modest(text: &str) -> bool {
    text.len() < MAX_VALUES || text.bytes().filter(|b| matches!(b, b',' | b'[' | b'{')).count() < MAX_VALUES
}

/// One JSON value, if that is what it is.
fn json(text: &str) -> Option<Value> {
    if modest(text) { serde_json::from_str(text).ok() } else { None }
}

/// How long the server asks to wait: seconds, or a date by its own clock where it tells the time.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let word = |name| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
    let date = |name| word(name).and_then(|v| httpdate::parse_http_date(v).ok());
    match word(header::RETRY_AFTER)?.parse::<f64>() {
        Ok(seconds) if seconds.is_nan() => None,
        Ok(seconds) => Some(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)),
        Err(_) => {
            let now = date(header::DATE).unwrap_or(now);
            Some(date(header::RETRY_AFTER)?.duration_since(now).unwrap_or_default())
        }
    }
}

/// The innermost cause, which is the part that says something.
fn innermost(e: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = e;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

fn model_names(v: &Value) -> Vec<String> {
    let list = match v {
        Value::Array(a) => Some(a),
        v => v.get("data").or_else(|| v.get("models")).and_then(Value::as_array),
    };
    let name = |m: &Value| match m {
        Value::String(s) => Some(s.clone()),
        m => ["id", "name", "model"].iter().find_map(|k| m.get(*k)?.as_str()).map(str::to_owned),
    };
    list.map(|l| l.iter().filter_map(name).filter(|n| !n.trim().is_empty()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_say_when_to_come_back_in_seconds_or_as_a_date() {
        let at = |date: &str| httpdate::parse_http_date(date).unwrap();
        let now = at("Wed, 21 Oct 2015 07:28:00 GMT");
        for (after, date, want) in [
            ("120", "", Some(120.0)),
            ("1.5", "", Some(1.5)),
            ("-3", "", Some(0.0)),
            ("Wed, 21 Oct 2015 07:29:30 GMT", "", Some(90.0)),
            // By the server's clock, which is a minute ahead of ours.
            ("Wed, 21 Oct 2015 07:29:30 GMT", "Wed, 21 Oct 2015 07:29:00 GMT", Some(30.0)),
            ("Wed, 21 Oct 2015 07:00:00 GMT", "", Some(0.0)),
            ("soon", "", None),
            ("NaN", "", None),
            ("1e99", "", Some(Duration::MAX.as_secs_f64())),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_str(after).unwrap());
            if !date.is_empty() {
                headers.insert(header::DATE, HeaderValue::from_str(date).unwrap());
            }
            assert_eq!(retry_after(&headers, now).map(|d| d.as_secs_f64()), want, "{after}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn json_that_would_grow_is_not_read() {
        assert!(modest(&format!("\"{}\"", "x".repeat(12 << 20))));
        assert!(!modest(&format!("[{}0]", "0,".repeat(MAX_VALUES))));
    }
}
