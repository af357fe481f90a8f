//! Asks chat completions of any OpenAI-compatible server and hands the answers on while they stream.
//!
//! Not here: what is asked and what an answer means, bytes and their bounds (`wire`). Invariants: there is a connect and an
//! idle timeout, never a total one for an answer that goes on; a request is repeated only while nothing of its answer has
//! been handed on, and never sooner than the server asks; dropping the future closes the connection.

use super::answer::{Answer, Reply, Took};
use super::calls::Call;
use super::incoming::Incoming;
use super::tools::Tool;
use super::wire::{Failure, Wire};
use super::{AGENTS, Endpoint, LlmError, notice};
use crate::session::Feed;
use async_openai::config::{Config, OpenAIConfig};
use async_openai::types::chat::{
    ChatCompletionMessageToolCall, ChatCompletionMessageToolCalls, ChatCompletionRequestAssistantMessage,
    ChatCompletionRequestAssistantMessageContent, ChatCompletionRequestMessage, ChatCompletionRequestSystemMessage,
    ChatCompletionRequestToolMessage, ChatCompletionRequestToolMessageContent, ChatCompletionRequestUserMessage,
    ChatCompletionStreamOptions, ChatCompletionTool, ChatCompletionTools, CreateChatCompletionRequest, FunctionCall,
    FunctionObject,
};
use serde_json::{Value, json};
use std::time::Duration;

/// Longest wait for a server that says when to come back; for one that asks for more the planner need not wait.
const MAX_PAUSE: Duration = Duration::from_secs(120);

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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: &'static str,
    pub content: String,
    /// What an assistant called.
    pub calls: Vec<Call>,
    /// The id of the call that a tool's message answers.
    pub answers: String,
}

impl Message {
    /// Words alone.
    pub fn of(role: &'static str, content: impl Into<String>) -> Message {
        Message { role, content: content.into(), ..Message::default() }
    }
}

/// What is asked at once.
#[derive(Debug, Clone, Copy, Default)]
pub struct Question<'a> {
    pub role: &'a str,
    pub messages: &'a [Message],
    /// What may be called in the answer.
    pub tools: &'a [&'a Tool],
    /// The JSON schema that a server which can is to hold its answer to.
    pub form: Option<&'a Value>,
    /// Tokens of the answer that are taken, where there is a limit.
    pub most: Option<u64>,
}

impl<'a> Question<'a> {
    /// Words alone.
    pub fn of(role: &'a str, messages: &'a [Message]) -> Question<'a> {
        Question { role, messages, ..Question::default() }
    }
}

/// Request fields that this server turned out to refuse.
#[derive(Debug, Clone, Copy, Default)]
struct Quirks {
    no_usage: bool,
    no_system: bool,
    no_stream: bool,
    /// How a form is asked for.
    form: FormAs,
}

/// The ways in which servers take a schema, the standard one first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum FormAs {
    /// `response_format` of the kind `json_schema`: OpenAI, vLLM, llama.cpp, LM Studio, Ollama.
    #[default]
    Schema,
    /// Of the kind `json_object`, with the schema beside it: llama-cpp-python, Together; others know the kind alone.
    Object,
    /// Not at all.
    Not,
}

/// A connection to one endpoint, remembering what the server cannot do.
pub struct Chat {
    wire: Wire,
    /// As the server calls it: sent, never shown.
    model: Option<String>,
    timeouts: Timeouts,
    quirks: Quirks,
}

impl Chat {
    pub fn open(endpoint: &Endpoint, timeouts: Timeouts) -> Result<Chat, LlmError> {
        endpoint.check()?;
        let url = &endpoint.base_url;
        // Refused where one is in place already, which is as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http =
            reqwest::Client::builder().connect_timeout(timeouts.connect).redirect(super::endpoint::redirects());
        if crate::config::Origin::of(url).is_some_and(|o| o.is_local()) {
            http = http.no_proxy();
        }
        let http = http.build().map_err(|e| LlmError::Connect {
            url: crate::mask::address(url),
            reason: super::clean::line(&e.to_string(), 200),
        })?;
        // async-openai would panic on such a value from the environment.
        let word = |name: &str| {
            std::env::var(name).ok().filter(|v| v.chars().all(|c| c.is_ascii_graphic())).unwrap_or_default()
        };
        let config = OpenAIConfig::new()
            .with_api_base(url)
            .with_api_key(&endpoint.api_key)
            .with_org_id(word("OPENAI_ORG_ID"))
            .with_project_id(word("OPENAI_PROJECT_ID"));
        let mut headers = config.headers();
        if endpoint.api_key.is_empty() {
            headers.remove(reqwest::header::AUTHORIZATION);
        }
        let wire = Wire::new(http, endpoint, headers, timeouts.idle)?;
        Ok(Chat { wire, model: endpoint.model.clone(), timeouts, quirks: Quirks::default() })
    }

    /// Settles which model is asked: the one that was named, or the first that the server lists (then `on` is told).
    /// Returns its name as it may be shown.
    pub async fn model(&mut self, on: &mut impl AsyncFnMut(Feed)) -> Result<String, LlmError> {
        if let Some(m) = &self.model {
            return Ok(self.wire.line(m, 120));
        }
        let mut attempt = 0;
        let names = loop {
            match self.wire.models().await {
                Ok(names) => break names,
                Err(failure) => self.again(failure, &mut attempt, AGENTS, on).await?,
            }
        };
        let url = &self.wire.url;
        let other = ["embed", "whisper", "tts", "dall-e", "moderation", "rerank"];
        let chats = names.iter().find(|n| !other.iter().any(|o| n.to_lowercase().contains(o)));
        let Some(name) = chats.or(names.first()) else { return Err(LlmError::NoModel { url: url.clone() }) };
        let shown = self.wire.line(name, 80);
        let said = match names.len() {
            1 => format!("no model named: using `{shown}`, the only one that {url} lists"),
            n => format!(
                "no model named: using `{shown}`, the first of {n} that {url} lists (--llm-model names another)"
            ),
        };
        on(notice(AGENTS, &said)).await;
        self.model = Some(name.clone());
        Ok(shown)
    }

    /// Waits before another try, and says so; the failure's error when there is to be none.
    async fn again(
        &self,
        failure: Failure,
        attempt: &mut u32,
        role: &str,
        on: &mut impl AsyncFnMut(Feed),
    ) -> Result<(), LlmError> {
        let Failure { error, after } = failure;
        let tries = self.timeouts.retries;
        if !error.retryable() || *attempt >= tries {
            return Err(error);
        }
        let seconds = |d: Duration| d.as_secs_f64().ceil();
        let pause = self.timeouts.pause.saturating_mul(2u32.saturating_pow(*attempt));
        *attempt += 1;
        let when = match after.filter(|a| !a.is_zero()) {
            Some(after) if after > MAX_PAUSE => {
                let most = seconds(MAX_PAUSE);
                let asks =
                    format!("the server asks to wait {} s, and {most} s is the most that is waited", seconds(after));
                on(notice(role, &asks)).await;
                return Err(error);
            }
            Some(after) => format!(", in {} s as the server asks", seconds(after)),
            None => String::new(),
        };
        on(notice(role, &format!("trying again ({attempt} of {tries}){when}: {error}"))).await;
        tokio::time::sleep(after.map_or(pause, |a| a.max(pause))).await;
        Ok(())
    }

    /// Streams the answer to `on`, and lines for people in between. On an error, what was handed on stays valid. [`Chat::model`]
    /// comes first.
    pub async fn ask(&mut self, asked: Question<'_>, on: &mut impl AsyncFnMut(Feed)) -> Result<Reply, LlmError> {
        let Question { role, messages, tools, .. } = asked;
        let mut attempt = 0;
        // Of a stream that ended without a word. It says nothing about the next question: a prompt that is too long
        // ends so too, and asked in one piece the server may say what is wrong.
        let mut empty: Option<LlmError> = None;
        loop {
            let mut begun = false;
            let mut watch = async |token: Feed| {
                begun = true;
                on(token).await;
            };
            let stream = empty.is_none() && !self.quirks.no_stream;
            let formed = asked.form.is_some() && self.quirks.form != FormAs::Not;
            let failure = match self.once(asked, stream, &mut watch).await {
                Ok(reply) => return Ok(reply),
                Err(e) => e,
            };
            if begun {
                return Err(failure.error);
            }
            if formed && let Some(said) = self.formless(&failure.error) {
                on(notice(role, said)).await;
                continue;
            }
            let answered = messages.iter().any(|m| m.role == "tool");
            if let Some(message) = failure.error.refuses_tools(answered).filter(|_| answered || !tools.is_empty()) {
                return Err(LlmError::NoTools { url: self.wire.url.clone(), message: message.to_owned() });
            }
            if stream && matches!(failure.error, LlmError::Empty { .. }) {
                on(notice(role, "the server ended the stream without a word: asking for the whole answer")).await;
                empty = Some(failure.error);
            } else if let Some(said) = self.adapt(&failure.error) {
                on(notice(role, &said)).await;
            } else if let (Some(empty), LlmError::Empty { .. } | LlmError::Broken { .. }) = (&empty, &failure.error) {
                return Err(empty.clone());
            } else {
                self.again(failure, &mut attempt, role, on).await?;
            }
        }
    }

    /// Learns from the refusal of a form; `Some` when that is what was refused.
    fn formless(&mut self, error: &LlmError) -> Option<&'static str> {
        let LlmError::Api { status: Some(400 | 404 | 422 | 500 | 501), message, .. } = error else { return None };
        let m = message.to_lowercase();
        let words = [
            "response_format",
            "response format",
            "json_schema",
            "json_object",
            "json schema",
            "structured",
            "grammar",
            "guided",
        ];
        if !words.iter().any(|w| m.contains(w)) {
            return None;
        }
        let (next, said) = match self.quirks.form {
            FormAs::Schema => (FormAs::Object, "the server takes no JSON schema: asking for a JSON object"),
            FormAs::Object | FormAs::Not => {
                (FormAs::Not, "the server holds answers to no form: asking for the fenced block")
            }
        };
        self.quirks.form = next;
        Some(said)
    }

    /// Learns from a refusal; `Some` when asking again, differently, may work.
    fn adapt(&mut self, error: &LlmError) -> Option<String> {
        let LlmError::Api { status: Some(400 | 422), message, .. } = error else { return None };
        let q = &mut self.quirks;
        let m = message.to_lowercase();
        let says = |words: &[&str]| words.iter().any(|w| m.contains(w));
        if m.contains("stream_options") && !q.no_usage {
            q.no_usage = true;
            Some("the server refuses stream_options: asking without token counts".into())
        } else if m.contains("system") && m.contains("role") && !q.no_system {
            q.no_system = true;
            Some("the model takes no system message: sending it with the question".into())
        } else if m.contains("stream") && says(&["not support", "unsupported", "not implemented"]) && !q.no_stream {
            q.no_stream = true;
            Some("the server does not stream: asking for answers in one piece".into())
        } else {
            None
        }
    }

    async fn once(&self, asked: Question<'_>, stream: bool, on: &mut impl AsyncFnMut(Feed)) -> Result<Reply, Failure> {
        let question = self.question(asked.messages, asked.tools, stream);
        let response = match asked.form.and_then(|schema| self.form(schema)) {
            None => self.wire.ask(&question).await?,
            Some(form) => {
                let mut body = serde_json::to_value(&question).map_err(|e| self.wire.nonsense(&e.to_string()))?;
                body["response_format"] = form;
                self.wire.ask(&body).await?
            }
        };
        let mut incoming = Incoming::new(&self.wire, response);
        let mut answer = Answer::new(&self.wire, asked.role, self.timeouts.max_chars, asked.most, on);
        let ended = listen(&mut incoming, &mut answer).await;
        let reply = answer.end().await;
        Ok(ended.map(|()| reply)?)
    }

    /// How the server is asked to hold its answer to `schema`.
    fn form(&self, schema: &Value) -> Option<Value> {
        match self.quirks.form {
            FormAs::Schema => Some(json!({
                "type": "json_schema",
                // Strict schemas may leave nothing out; a decision's ratio or precision is.
                "json_schema": { "name": "proposal", "strict": false, "schema": schema },
            })),
            FormAs::Object => Some(json!({ "type": "json_object", "schema": schema })),
            FormAs::Not => None,
        }
    }

    fn question(&self, messages: &[Message], tools: &[&Tool], stream: bool) -> CreateChatCompletionRequest {
        let mut list = Vec::new();
        let mut carried = String::new();
        for m in messages {
            if self.quirks.no_system && m.role == "system" {
                carried = format!("{}\n\n", m.content);
            } else {
                list.push(message(m, format!("{}{}", std::mem::take(&mut carried), m.content)));
            }
        }
        let usage = ChatCompletionStreamOptions { include_usage: Some(true), ..Default::default() };
        CreateChatCompletionRequest {
            model: self.model.clone().unwrap_or_default(),
            messages: list,
            stream: Some(stream),
            stream_options: (stream && !self.quirks.no_usage).then_some(usage),
            tools: (!tools.is_empty()).then(|| tools.iter().map(|t| function(t)).collect()),
            ..Default::default()
        }
    }
}

/// Takes what comes in until it ends or is enough.
async fn listen(incoming: &mut Incoming<'_>, answer: &mut Answer<'_, impl AsyncFnMut(Feed)>) -> Result<(), LlmError> {
    while let Some(values) = incoming.next().await? {
        let mut most = Took::Nothing;
        for value in &values {
            most = most.max(answer.chunk(value).await?);
        }
        match most {
            Took::Nothing => {}
            Took::Content => incoming.had_content(),
            Took::Enough => break,
        }
    }
    Ok(())
}

fn function(tool: &Tool) -> ChatCompletionTools {
    let function = FunctionObject {
        name: tool.name.to_owned(),
        description: Some(tool.what.to_owned()),
        parameters: Some(tool.schema().into()),
        strict: None,
    };
    ChatCompletionTools::Function(ChatCompletionTool { function })
}

/// `m` with these words.
fn message(m: &Message, content: String) -> ChatCompletionRequestMessage {
    match m.role {
        "system" => ChatCompletionRequestSystemMessage::from(content).into(),
        "assistant" => {
            // Servers refuse arguments that are no JSON, also where their own model wrote them.
            let said = |call: &Call| FunctionCall {
                name: call.name.clone(),
                arguments: call.asked().map_or_else(|_| "{}".to_owned(), |asked| Value::Object(asked).to_string()),
            };
            let call = |c: &Call| {
                ChatCompletionMessageToolCalls::Function(ChatCompletionMessageToolCall {
                    id: c.id.clone(),
                    function: said(c),
                })
            };
            let content = ChatCompletionRequestAssistantMessageContent::from(content);
            let mut message = ChatCompletionRequestAssistantMessage::from(content);
            message.tool_calls = (!m.calls.is_empty()).then(|| m.calls.iter().map(call).collect());
            message.into()
        }
        "tool" => ChatCompletionRequestToolMessage {
            content: ChatCompletionRequestToolMessageContent::Text(content),
            tool_call_id: m.answers.clone(),
        }
        .into(),
        _ => ChatCompletionRequestUserMessage::from(content).into(),
    }
}
