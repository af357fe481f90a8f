//! Streams chat completions from any OpenAI-compatible server through async-openai's bring-your-own-types interface.
//!
//! Not here: what is asked and what an answer means. Invariants: there is a connect and an idle timeout, never a total
//! one; a request is repeated only while nothing of its answer has been handed on; dropping the future closes the
//! connection; what one answer may accumulate is bounded.

use super::delta::{self, Part, ThinkSplitter};
use super::{Endpoint, LlmError, clean};
use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::OpenAIError;
use async_openai::middleware::HttpRequestFactory;
use futures::StreamExt;
use serde_json::{Value, json};
use std::time::Duration;

/// How long to wait, how often to try, how much to take.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    pub connect: Duration,
    /// Longest silence, also before the first byte: a local server reads a long prompt first.
    pub idle: Duration,
    /// Further tries before the first token.
    pub retries: u32,
    /// First pause between tries; doubles.
    pub pause: Duration,
    /// Characters of reasoning and text taken from one answer before it is cut off.
    pub max_chars: usize,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(10),
            idle: Duration::from_secs(300),
            retries: 2,
            pause: Duration::from_millis(400),
            max_chars: 400_000,
        }
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    pub content: String,
}

/// What arrives while an answer streams; control characters are already neutralised.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    Reasoning(String),
    Text(String),
    /// A line for people: a retry, a field the server refused.
    Notice(String),
}

/// How an answer ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// Completion tokens by the server's count, or else the number of deltas.
    pub tokens: u64,
    /// The server said it stopped for length, or we cut the answer off.
    pub cut: bool,
}

/// Request fields that this server turned out to refuse.
#[derive(Debug, Clone, Copy, Default)]
struct Quirks {
    no_usage: bool,
    no_system: bool,
    no_stream: bool,
}

/// What our HTTP layer keeps of a refused request, before any strict type sees it.
#[derive(Debug, thiserror::Error)]
#[error("HTTP {status}")]
struct Refusal {
    status: u16,
    retry_after: Option<Duration>,
    body: String,
}

/// A connection to one endpoint, remembering what the server cannot do.
pub struct Chat {
    endpoint: Endpoint,
    client: Client<OpenAIConfig>,
    http: reqwest::Client,
    timeouts: Timeouts,
    quirks: Quirks,
}

impl Chat {
    pub fn open(endpoint: &Endpoint, timeouts: Timeouts) -> Result<Chat, LlmError> {
        endpoint.check()?;
        let url = &endpoint.base_url;
        let connect = |e: reqwest::Error| LlmError::Connect { url: url.clone(), reason: reason(&e) };
        let mut http =
            reqwest::Client::builder().connect_timeout(timeouts.connect).redirect(super::endpoint::redirects());
        if is_loopback(url) {
            http = http.no_proxy();
        }
        let http = http.build().map_err(connect)?;
        // async-openai would panic on such a value from the environment.
        let word = |name: &str| {
            std::env::var(name).ok().filter(|v| v.chars().all(|c| c.is_ascii_graphic())).unwrap_or_default()
        };
        let config = OpenAIConfig::new()
            .with_api_base(url)
            .with_api_key(&endpoint.api_key)
            .with_org_id(word("OPENAI_ORG_ID"))
            .with_project_id(word("OPENAI_PROJECT_ID"));
        let (sender, keyless) = (http.clone(), endpoint.api_key.is_empty());
        let service = tower::service_fn(move |factory: HttpRequestFactory| {
            let sender = sender.clone();
            async move {
                let mut request = factory.build().await?;
                if keyless {
                    request.headers_mut().remove(reqwest::header::AUTHORIZATION);
                }
                send(&sender, request).await
            }
        });
        let client = Client::with_config(config).with_http_service(service);
        Ok(Chat { endpoint: endpoint.clone(), client, http, timeouts, quirks: Quirks::default() })
    }

    /// The model to use: as named, or the first that the server lists (then `say` is told).
    pub async fn model(&mut self, say: &mut (dyn FnMut(String) + Send)) -> Result<String, LlmError> {
        if let Some(m) = &self.endpoint.model {
            return Ok(m.clone());
        }
        let url = self.endpoint.base_url.clone();
        let mut attempt = 0;
        let list = loop {
            match self.list().await {
                Ok(v) => break v,
                Err((e, after)) if e.retryable() && attempt < self.timeouts.retries => {
                    self.wait(attempt, after).await;
                    attempt += 1;
                    say(format!("trying again: {e}"));
                }
                Err((e, _)) => return Err(e),
            }
        };
        let names = model_names(&list);
        let other = ["embed", "whisper", "tts", "dall-e", "moderation", "rerank"];
        let chats = names.iter().find(|n| !other.iter().any(|o| n.to_lowercase().contains(o)));
        let Some(name) = chats.or(names.first()) else { return Err(LlmError::NoModel { url }) };
        let shown = clean::line(name, 80);
        say(match names.len() {
            1 => format!("no model named: using `{shown}`, the only one that {url} lists"),
            n => format!(
                "no model named: using `{shown}`, the first of {n} that {url} lists (--llm-model names another)"
            ),
        });
        self.endpoint.model = Some(name.clone());
        Ok(name.clone())
    }

    async fn list(&self) -> Result<Value, (LlmError, Option<Duration>)> {
        let url = format!("{}/models", self.endpoint.base_url);
        let mut request = self.http.get(&url);
        if !self.endpoint.api_key.is_empty() {
            request = request.bearer_auth(&self.endpoint.api_key);
        }
        let get = async {
            let request = request.build().map_err(OpenAIError::Reqwest)?;
            let response = send(&self.http, request).await?;
            response.text().await.map_err(OpenAIError::Reqwest)
        };
        let body = self.timed(get).await?;
        serde_json::from_str(&body).map_err(|_| {
            let reason = format!("/models is not JSON: {}", clean::line(&body, 80));
            (LlmError::Nonsense { url: self.endpoint.base_url.clone(), reason }, None)
        })
    }

    /// Streams the answer to `messages`, handing each piece to `on`. On an error, what was handed on stays valid.
    pub async fn ask(
        &mut self,
        model: &str,
        messages: &[Message],
        on: &mut (dyn FnMut(Piece) + Send),
    ) -> Result<Reply, LlmError> {
        let mut attempt = 0;
        loop {
            let mut begun = false;
            let mut watch = |p: Piece| {
                begun = true;
                on(p);
            };
            let (error, after) = match self.once(model, messages, &mut watch).await {
                Ok(reply) => return Ok(reply),
                Err(e) => e,
            };
            if begun {
                return Err(error);
            }
            if let Some(said) = self.adapt(&error) {
                on(Piece::Notice(said));
                continue;
            }
            if !error.retryable() || attempt >= self.timeouts.retries {
                return Err(error);
            }
            on(Piece::Notice(format!("trying again ({} of {}): {error}", attempt + 1, self.timeouts.retries)));
            self.wait(attempt, after).await;
            attempt += 1;
        }
    }

    /// Learns from a refusal; `Some` when asking again, differently, may work.
    fn adapt(&mut self, error: &LlmError) -> Option<String> {
        let q = &mut self.quirks;
        match error {
            LlmError::Api { status: Some(400 | 422), message, .. } => {
                let m = message.to_lowercase();
                if m.contains("stream_options") && !q.no_usage {
                    q.no_usage = true;
                    Some("the server refuses stream_options: asking without token counts".into())
                } else if m.contains("system") && m.contains("role") && !q.no_system {
                    q.no_system = true;
                    Some("the model takes no system message: sending it with the question".into())
                } else {
                    None
                }
            }
            LlmError::Nonsense { .. } if !q.no_stream => {
                q.no_stream = true;
                Some("the server did not stream: asking for the answer in one piece".into())
            }
            _ => None,
        }
    }

    async fn wait(&self, attempt: u32, after: Option<Duration>) {
        let pause = self.timeouts.pause.saturating_mul(2u32.saturating_pow(attempt));
        tokio::time::sleep(after.unwrap_or(pause).min(Duration::from_secs(20))).await;
    }

    /// Runs a request under the idle timeout and names its failure.
    async fn timed<T>(
        &self,
        request: impl Future<Output = Result<T, OpenAIError>>,
    ) -> Result<T, (LlmError, Option<Duration>)> {
        match tokio::time::timeout(self.timeouts.idle, request).await {
            Ok(Ok(v)) => Ok(v),
            Ok(Err(e)) => Err(self.read(e)),
            Err(_) => Err((self.silent(), None)),
        }
    }

    fn silent(&self) -> LlmError {
        LlmError::Silent { url: self.endpoint.base_url.clone(), after: self.timeouts.idle }
    }

    async fn once(
        &self,
        model: &str,
        messages: &[Message],
        on: &mut (dyn FnMut(Piece) + Send),
    ) -> Result<Reply, (LlmError, Option<Duration>)> {
        let body = self.body(model, messages);
        let chat = self.client.chat();
        let mut take = Taker::new(&self.endpoint, self.timeouts.max_chars, on);
        if self.quirks.no_stream {
            let whole: Value = self.timed(chat.create_byot(body)).await?;
            take.chunk(&whole).map_err(|e| (e, None))?;
            return Ok(take.end());
        }
        let mut stream = self.timed(chat.create_stream_byot::<Value, Value>(body)).await?;
        let mut events = 0u64;
        loop {
            match tokio::time::timeout(self.timeouts.idle, stream.next()).await {
                Err(_) => return Err((self.silent(), None)),
                Ok(None) => break,
                Ok(Some(Ok(chunk))) => {
                    events += 1;
                    if take.chunk(&chunk).map_err(|e| (e, None))? {
                        break;
                    }
                }
                // One line that is not JSON: passed over, the next may be.
                Ok(Some(Err(OpenAIError::JSONDeserialize(e, _)))) => tracing::debug!("chunk is not JSON: {e}"),
                Ok(Some(Err(e))) => return Err(self.read(e)),
            }
        }
        if events == 0 {
            let reason = "the answer holds no events".to_owned();
            return Err((LlmError::Nonsense { url: self.endpoint.base_url.clone(), reason }, None));
        }
        Ok(take.end())
    }

    fn body(&self, model: &str, messages: &[Message]) -> Value {
        let mut list: Vec<Value> = Vec::new();
        let mut carried = String::new();
        for m in messages {
            if self.quirks.no_system && m.role == "system" {
                carried = format!("{}\n\n", m.content);
            } else {
                list.push(json!({"role": m.role, "content": format!("{}{}", std::mem::take(&mut carried), m.content)}));
            }
        }
        let mut body = json!({"model": model, "messages": list, "stream": !self.quirks.no_stream});
        if !self.quirks.no_usage && !self.quirks.no_stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }

    fn read(&self, e: OpenAIError) -> (LlmError, Option<Duration>) {
        let url = self.endpoint.base_url.clone();
        let error = match e {
            OpenAIError::Boxed(inner) => match inner.downcast::<Refusal>() {
                Ok(r) => return (self.hide(LlmError::from_body(&url, r.status, &r.body)), r.retry_after),
                Err(other) => LlmError::Nonsense { url, reason: clean::line(&other.to_string(), 200) },
            },
            OpenAIError::Reqwest(e) if e.is_connect() || e.is_builder() => {
                LlmError::Connect { url, reason: reason(&e) }
            }
            OpenAIError::Reqwest(e) => LlmError::Broken { url, reason: reason(&e) },
            OpenAIError::StreamError(e) => LlmError::Broken { url, reason: clean::line(&e.to_string(), 200) },
            OpenAIError::JSONDeserialize(_, content) => {
                LlmError::Nonsense { url, reason: format!("not JSON: {}", clean::line(&content, 80)) }
            }
            other => LlmError::Nonsense { url, reason: clean::line(&other.to_string(), 200) },
        };
        (error, None)
    }

    /// A server may echo the key in its message.
    fn hide(&self, e: LlmError) -> LlmError {
        match e {
            LlmError::Api { url, status, message, kind } if self.endpoint.api_key.len() >= 8 => {
                LlmError::Api { url, status, message: message.replace(&self.endpoint.api_key, "…"), kind }
            }
            e => e,
        }
    }
}

/// Turns chunks into pieces, within bounds.
struct Taker<'a> {
    endpoint: &'a Endpoint,
    on: &'a mut (dyn FnMut(Piece) + Send),
    think: ThinkSplitter,
    room: usize,
    deltas: u64,
    tokens: Option<u64>,
    cut: bool,
}

impl<'a> Taker<'a> {
    fn new(endpoint: &'a Endpoint, room: usize, on: &'a mut (dyn FnMut(Piece) + Send)) -> Taker<'a> {
        Taker { endpoint, on, think: ThinkSplitter::default(), room, deltas: 0, tokens: None, cut: false }
    }

    /// `Ok(true)`: enough was taken.
    fn chunk(&mut self, chunk: &Value) -> Result<bool, LlmError> {
        for part in delta::parts(chunk) {
            match part {
                Part::Text(t) => {
                    self.deltas += 1;
                    for p in self.think.push(&t) {
                        self.give(p);
                    }
                }
                Part::Reasoning(t) => {
                    self.deltas += 1;
                    self.give(Part::Reasoning(t));
                }
                Part::Tokens(n) => self.tokens = Some(n),
                Part::Finish(why) => self.cut |= matches!(why.as_str(), "length" | "max_tokens"),
                Part::Error(e) => return Err(LlmError::from_chunk(&self.endpoint.base_url, &e)),
            }
            if self.room == 0 {
                self.cut = true;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn give(&mut self, part: Part) {
        let (raw, make): (String, fn(String) -> Piece) = match part {
            Part::Reasoning(t) => (t, Piece::Reasoning),
            Part::Text(t) => (t, Piece::Text),
            Part::Tokens(_) | Part::Finish(_) | Part::Error(_) => return,
        };
        let text: String = clean::text(&raw).chars().take(self.room).collect();
        self.room -= text.chars().count();
        if !text.is_empty() {
            (self.on)(make(text));
        }
    }

    fn end(mut self) -> Reply {
        for p in self.think.finish() {
            self.give(p);
        }
        Reply { tokens: self.tokens.unwrap_or(self.deltas), cut: self.cut }
    }
}

/// Sends a request; a status that is no success becomes a [`Refusal`] with at most 64 KiB of its body.
async fn send(http: &reqwest::Client, request: reqwest::Request) -> Result<reqwest::Response, OpenAIError> {
    let mut response = http.execute(request).await.map_err(OpenAIError::Reqwest)?;
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status().as_u16();
    let after = response.headers().get(reqwest::header::RETRY_AFTER);
    let retry_after = after.and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok()).map(Duration::from_secs);
    let mut body = Vec::new();
    while let Ok(Some(bytes)) = response.chunk().await {
        body.extend_from_slice(&bytes);
        if body.len() > 65_536 {
            break;
        }
    }
    let body = String::from_utf8_lossy(&body).into_owned();
    Err(OpenAIError::Boxed(Box::new(Refusal { status, retry_after, body })))
}

/// The innermost cause, which is the part that says something.
fn reason(e: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = e;
    while let Some(next) = cause.source() {
        cause = next;
    }
    clean::line(&cause.to_string(), 200)
}

fn is_loopback(url: &str) -> bool {
    crate::config::Origin::of(url).is_some_and(|o| o.is_local())
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
