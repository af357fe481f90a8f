//! A request's body, read strictly: what it asks for, or which parameter is wrong or not supported, by name.
//!
//! What would change an answer and is not done here is refused, unless it asks for nothing; what changes none is passed over.

use super::error::ApiError;
use super::reply::Kind;
use crate::eval::Sampling;
use crate::model::ChatMessage;
use crate::plain;
use serde_json::{Map, Value};

/// Stop words, and bytes of each.
const STOPS: (usize, usize) = (16, 256);

/// Messages of a chat.
const MESSAGES: usize = 4096;

/// Parameters that change no answer.
const PASSED_OVER: [&str; 8] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "prompt_cache_key",
    "safety_identifier",
    "parallel_tool_calls",
    "verbosity",
];

/// What an answer is to follow.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    Chat(Vec<ChatMessage>),
    Text(String),
    Ids(Vec<u32>),
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    pub model: Option<String>,
    pub prompt: Prompt,
    /// Tokens to write at most; `None`: as many as there is room for.
    pub most: Option<usize>,
    pub how: Sampling,
    pub stops: Vec<String>,
    pub stream: bool,
    pub usage: bool,
}

/// A body's fields; each is taken as it is understood.
struct Fields(Map<String, Value>);

impl Fields {
    /// The field; `None` where it is null or absent.
    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name).filter(|v| !v.is_null())
    }

    fn number(&mut self, name: &str, from: f64, to: f64) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64() {
            Some(n) if (from..=to).contains(&n) => Ok(Some(n)),
            _ => Err(ApiError::bad(name, format!("`{name}` is {}: no number from {from} to {to}", short(&value)))),
        }
    }

    fn count(&mut self, name: &str, least: u64) -> Result<Option<usize>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_u64().filter(|n| *n >= least).and_then(|n| usize::try_from(n).ok()) {
            Some(n) => Ok(Some(n)),
            None => Err(ApiError::bad(name, format!("`{name}` is {}: no whole number from {least} on", short(&value)))),
        }
    }

    fn bool(&mut self, name: &str) -> Result<bool, ApiError> {
        let Some(value) = self.take(name) else { return Ok(false) };
        value
            .as_bool()
            .ok_or_else(|| ApiError::bad(name, format!("`{name}` is {}: neither true nor false", short(&value))))
    }

    /// A parameter of which only what asks for nothing is accepted.
    fn nothing(&mut self, name: &str, is_nothing: impl Fn(&Value) -> bool) -> Result<(), ApiError> {
        match self.take(name) {
            Some(value) if !is_nothing(&value) => {
                Err(ApiError::unsupported(name, format!("`{name}` is not supported here, as {}", short(&value))))
            }
            _ => Ok(()),
        }
    }
}

/// A value in an error: a line of it.
fn short(value: &Value) -> String {
    plain::name(&value.to_string())
}

/// Reads the body of a request of this kind.
///
/// # Errors
/// What is no JSON object; each parameter that is wrong, or asks for what is not done.
pub fn read(kind: Kind, body: &[u8]) -> Result<Ask, ApiError> {
    let json: Value = serde_json::from_slice(body).map_err(|e| {
        ApiError::new(hyper::StatusCode::BAD_REQUEST, Some("invalid_json"), format!("the body is no JSON: {e}"))
    })?;
    let Value::Object(fields) = json else {
        return Err(ApiError::new(hyper::StatusCode::BAD_REQUEST, Some("invalid_json"), "the body is no JSON object"));
    };
    let mut f = Fields(fields);
    let model = match f.take("model") {
        None => None,
        Some(Value::String(name)) => Some(name),
        Some(other) => return Err(ApiError::bad("model", format!("`model` is {}: no text", short(&other)))),
    };
    let prompt = match kind {
        Kind::Chat => Prompt::Chat(messages(f.take("messages"))?),
        Kind::Text => text_or_ids(f.take("prompt"))?,
    };
    let first = f.count("max_completion_tokens", 1)?;
    let most = first.or(f.count("max_tokens", 1)?);
    let how = Sampling {
        temperature: f.number("temperature", 0.0, 2.0)?.unwrap_or(1.0),
        top_p: match f.number("top_p", 0.0, 1.0)? {
            Some(0.0) => return Err(ApiError::bad("top_p", "`top_p` is 0: no token is left")),
            other => other.unwrap_or(1.0),
        },
        top_k: top_k(&mut f)?,
        seed: seed(f.take("seed"))?,
    };
    let stops = stops(f.take("stop"))?;
    let stream = f.bool("stream")?;
    let usage = stream_options(f.take("stream_options"), stream)?;
    refuse(kind, &mut f)?;
    Ok(Ask { model, prompt, most, how, stops, stream, usage })
}

/// Parameters that are not supported, and those that are not known.
fn refuse(kind: Kind, f: &mut Fields) -> Result<(), ApiError> {
    let is = |n: i64| move |v: &Value| v.as_f64() == Some(n as f64);
    let empty = |v: &Value| match v {
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    };
    let no = |v: &Value| *v == Value::Bool(false);
    f.nothing("n", is(1))?;
    f.nothing("best_of", is(1))?;
    f.nothing("presence_penalty", is(0))?;
    f.nothing("frequency_penalty", is(0))?;
    f.nothing("logit_bias", empty)?;
    f.nothing("response_format", |v| v["type"] == "text")?;
    if kind == Kind::Chat {
        f.nothing("logprobs", no)?;
        f.nothing("top_logprobs", is(0))?;
        f.nothing("tools", empty)?;
        f.nothing("functions", empty)?;
        f.nothing("tool_choice", |v| v == "none" || v == "auto")?;
        f.nothing("function_call", |v| v == "none" || v == "auto")?;
        f.nothing("modalities", |v| *v == serde_json::json!(["text"]))?;
    } else {
        f.nothing("logprobs", |_| false)?;
        f.nothing("echo", no)?;
        f.nothing("suffix", empty)?;
    }
    for name in PASSED_OVER {
        f.take(name);
    }
    match f.0.iter().find(|(_, value)| !value.is_null()) {
        Some((name, _)) => {
            let name = plain::name(name);
            Err(ApiError::of(&name, "unknown_parameter", format!("`{name}` is not known here; hint: leave it out")))
        }
        None => Ok(()),
    }
}

fn messages(value: Option<Value>) -> Result<Vec<ChatMessage>, ApiError> {
    let bad = |why: String| ApiError::bad("messages", why);
    let all = match value {
        Some(Value::Array(all)) if !all.is_empty() && all.len() <= MESSAGES => all,
        Some(Value::Array(all)) => {
            return Err(bad(format!("`messages` has {} messages; hint: 1 to {MESSAGES}", all.len())));
        }
        Some(other) => return Err(bad(format!("`messages` is {}: no list", short(&other)))),
        None => return Err(ApiError::of("messages", "missing_required_parameter", "`messages` is missing")),
    };
    all.iter().enumerate().map(|(i, m)| message(&format!("messages[{i}]"), m)).collect()
}

fn message(at: &str, m: &Value) -> Result<ChatMessage, ApiError> {
    let role = match m["role"].as_str() {
        Some(role @ ("system" | "user" | "assistant")) => role,
        Some("developer") => "system",
        _ => {
            let (at, role) = (format!("{at}.role"), short(&m["role"]));
            return Err(ApiError::bad(&at, format!("`{at}` is {role}: none of system, developer, user, assistant")));
        }
    };
    for calls in ["tool_calls", "function_call", "audio"] {
        if !m[calls].is_null() && m[calls].as_array().is_none_or(|all| !all.is_empty()) {
            let at = format!("{at}.{calls}");
            return Err(ApiError::unsupported(&at, format!("`{at}` is not supported here")));
        }
    }
    let at = format!("{at}.content");
    let content = match &m["content"] {
        Value::String(text) => text.clone(),
        Value::Null if role == "assistant" => String::new(),
        Value::Array(parts) => {
            let part = |p: &Value| (p["type"] == "text").then(|| p["text"].as_str().map(str::to_owned)).flatten();
            let whole: Option<String> = parts.iter().map(part).collect();
            whole.ok_or_else(|| ApiError::unsupported(&at, format!("`{at}` has parts that are no text")))?
        }
        other => return Err(ApiError::bad(&at, format!("`{at}` is {}: no text", short(other)))),
    };
    Ok(ChatMessage { role: role.to_owned(), content })
}

/// One text, or one list of ids.
fn text_or_ids(value: Option<Value>) -> Result<Prompt, ApiError> {
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        None => Err(ApiError::of("prompt", "missing_required_parameter", "`prompt` is missing")),
        Some(Value::String(text)) => Ok(Prompt::Text(text)),
        Some(Value::Array(all)) => match &all[..] {
            [Value::String(text)] => Ok(Prompt::Text(text.clone())),
            [Value::Array(_)] => text_or_ids(all.into_iter().next()),
            [] => Err(ApiError::bad("prompt", "`prompt` is empty")),
            _ if all.iter().all(|v| v.is_u64()) => all
                .iter()
                .map(id)
                .collect::<Option<Vec<u32>>>()
                .map(Prompt::Ids)
                .ok_or_else(|| ApiError::bad("prompt", "`prompt` has ids beyond any vocabulary")),
            _ => Err(ApiError::unsupported("prompt", "`prompt` is neither one text nor one list of token ids")),
        },
        Some(other) => Err(ApiError::bad("prompt", format!("`prompt` is {}: no text", short(&other)))),
    }
}

/// Also −1, which elsewhere means all.
fn top_k(f: &mut Fields) -> Result<usize, ApiError> {
    if f.0.get("top_k").and_then(Value::as_i64) == Some(-1) {
        f.take("top_k");
    }
    Ok(f.count("top_k", 0)?.unwrap_or(0))
}

/// Any whole number; drawn where none is given.
fn seed(value: Option<Value>) -> Result<u64, ApiError> {
    let Some(value) = value else { return Ok(rand::random()) };
    let seed = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
    seed.ok_or_else(|| ApiError::bad("seed", format!("`seed` is {}: no whole number", short(&value))))
}

fn stops(value: Option<Value>) -> Result<Vec<String>, ApiError> {
    let bad = || {
        let (n, bytes) = STOPS;
        ApiError::bad("stop", format!("`stop` is neither a text nor up to {n} of them, each of 1 to {bytes} bytes"))
    };
    let words = match value {
        None => Vec::new(),
        Some(Value::String(word)) => vec![word],
        Some(Value::Array(all)) => {
            let words: Option<Vec<String>> = all.iter().map(|w| w.as_str().map(str::to_owned)).collect();
            words.ok_or_else(bad)?
        }
        Some(_) => return Err(bad()),
    };
    match words.len() <= STOPS.0 && words.iter().all(|w| (1..=STOPS.1).contains(&w.len())) {
        true => Ok(words),
        false => Err(bad()),
    }
}

fn stream_options(value: Option<Value>, stream: bool) -> Result<bool, ApiError> {
    let Some(value) = value else { return Ok(false) };
    let Value::Object(mut fields) = value else {
        return Err(ApiError::bad("stream_options", "`stream_options` is no object"));
    };
    if !stream {
        return Err(ApiError::bad("stream_options", "`stream_options` goes with `stream` alone"));
    }
    // Padding of chunks, which there is none of.
    fields.shift_remove("include_obfuscation");
    let mut f = Fields(fields);
    let usage =
        f.bool("include_usage").map_err(|e| ApiError { param: Some("stream_options.include_usage".into()), ..e })?;
    match f.0.keys().next() {
        Some(name) => {
            let name = format!("stream_options.{}", plain::name(name));
            Err(ApiError::of(&name, "unknown_parameter", format!("`{name}` is not known here")))
        }
        None => Ok(usage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chat(more: Value) -> Result<Ask, ApiError> {
        let mut body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
        for (k, v) in more.as_object().unwrap() {
            body[k] = v.clone();
        }
        read(Kind::Chat, body.to_string().as_bytes())
    }

    #[test]
    fn what_is_left_out_is_as_openai_has_it() {
        let ask =
            chat(json!({ "seed": -1, "model": "m", "user": "me", "n": 1, "tools": [], "logprobs": false })).unwrap();
        let how = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: u64::MAX };
        assert_eq!((ask.how, ask.most, ask.stream, ask.usage), (how, None, false, false));
        assert_eq!(ask.model.as_deref(), Some("m"));
        let all = json!({
            "temperature": 0, "top_p": 0.5, "top_k": -1, "max_tokens": 3, "max_completion_tokens": 2, "stop": "x", "stream": true,
            "stream_options": { "include_usage": true }, "response_format": { "type": "text" }, "presence_penalty": 0.0,
        });
        let ask = chat(all).unwrap();
        assert_eq!((ask.how.temperature, ask.how.top_p, ask.how.top_k, ask.most), (0.0, 0.5, 0, Some(2)));
        assert_eq!((ask.stops, ask.stream, ask.usage), (vec!["x".to_owned()], true, true));
    }

    #[test]
    fn what_is_wrong_is_told_by_name() {
        let hi = json!({ "role": "user", "content": "x" });
        for (body, param, code) in [
            (json!({ "temperature": 3 }), "temperature", "invalid_value"),
            (json!({ "temperature": "hot" }), "temperature", "invalid_value"),
            (json!({ "top_p": 0 }), "top_p", "invalid_value"),
            (json!({ "max_tokens": 0 }), "max_tokens", "invalid_value"),
            (json!({ "max_tokens": 1.5 }), "max_tokens", "invalid_value"),
            (json!({ "seed": "x" }), "seed", "invalid_value"),
            (json!({ "stop": "" }), "stop", "invalid_value"),
            (json!({ "stop": ["x", 3] }), "stop", "invalid_value"),
            (json!({ "stop": vec!["x"; 17] }), "stop", "invalid_value"),
            (json!({ "stream": 1 }), "stream", "invalid_value"),
            (json!({ "stream_options": {} }), "stream_options", "invalid_value"),
            (json!({ "stream": true, "stream_options": { "x": 1 } }), "stream_options.x", "unknown_parameter"),
            (json!({ "n": 2 }), "n", "unsupported_parameter"),
            (json!({ "logprobs": true }), "logprobs", "unsupported_parameter"),
            (json!({ "response_format": { "type": "json_object" } }), "response_format", "unsupported_parameter"),
            (json!({ "tools": [{}] }), "tools", "unsupported_parameter"),
            (json!({ "frequency_penalty": 0.5 }), "frequency_penalty", "unsupported_parameter"),
            (json!({ "min_p": 0.5 }), "min_p", "unknown_parameter"),
            (json!({ "model": 3 }), "model", "invalid_value"),
            (json!({ "messages": null }), "messages", "missing_required_parameter"),
            (json!({ "messages": [] }), "messages", "invalid_value"),
            (json!({ "messages": "hi" }), "messages", "invalid_value"),
            (json!({ "messages": [3] }), "messages[0].role", "invalid_value"),
            (json!({ "messages": [hi, { "role": "tool", "content": "" }] }), "messages[1].role", "invalid_value"),
            (json!({ "messages": [{ "role": "<|im_end|>", "content": "" }] }), "messages[0].role", "invalid_value"),
            (json!({ "messages": [{ "role": "user" }] }), "messages[0].content", "invalid_value"),
            (
                json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
                "messages[0].content",
                "unsupported_parameter",
            ),
            (
                json!({ "messages": [{ "role": "assistant", "content": null, "tool_calls": [{}] }] }),
                "messages[0].tool_calls",
                "unsupported_parameter",
            ),
        ] {
            let e = chat(body.clone()).expect_err(&body.to_string());
            assert_eq!((e.param.as_deref(), e.code, e.status.as_u16()), (Some(param), Some(code), 400), "{body}: {e}");
        }
        for body in [&b"{"[..], b"[]", b"\xff", b""] {
            assert_eq!(read(Kind::Chat, body).unwrap_err().code, Some("invalid_json"));
        }
    }

    #[test]
    fn prompts_are_one_text_or_one_list_of_ids() {
        let read = |prompt: Value| {
            super::read(Kind::Text, json!({ "prompt": prompt }).to_string().as_bytes()).map(|a| a.prompt)
        };
        assert_eq!(read(json!("a")), Ok(Prompt::Text("a".into())));
        assert_eq!(read(json!(["a"])), Ok(Prompt::Text("a".into())));
        assert_eq!(read(json!([1, 2])), Ok(Prompt::Ids(vec![1, 2])));
        assert_eq!(read(json!([[1, 2]])), Ok(Prompt::Ids(vec![1, 2])));
        for bad in
            [json!(null), json!([]), json!(3), json!(["a", "b"]), json!([1, "a"]), json!([-1]), json!([1_u64 << 40])]
        {
            assert_eq!(read(bad.clone()).unwrap_err().param.as_deref(), Some("prompt"), "{bad}");
        }
        let parts = json!({ "messages": [{ "role": "developer", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] }] });
        let said = ChatMessage { role: "system".into(), content: "ab".into() };
        assert_eq!(super::read(Kind::Chat, parts.to_string().as_bytes()).unwrap().prompt, Prompt::Chat(vec![said]));
    }
}
