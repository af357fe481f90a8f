//! What goes wrong between here and a language model, in words that name the server's own message and a way out.
//!
//! Error bodies are read as JSON values, never as strict types: servers send integer codes, bare strings, `detail`
//! lists or HTML, and the message in them is what the engineer needs. Whoever brings one has masked it (`wire`, `answer`).

use super::clean;
use serde_json::Value;
use std::time::Duration;

/// Why a language model gave no (complete) answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LlmError {
    #[error("no connection to `{url}`: {reason}; hint: is the server running, and does OPENAI_BASE_URL end in /v1?")]
    Connect { url: String, reason: String },
    #[error("`{url}` said nothing for {} s; hint: a large model may still be loading; try again, or a smaller one", .after.as_secs())]
    Silent { url: String, after: Duration },
    #[error("`{url}` answered {}: {message}; hint: {}", .status.map_or("with an error".to_owned(), |s| s.to_string()), .kind.hint())]
    Api { url: String, status: Option<u16>, message: String, kind: ApiKind },
    #[error("the stream from `{url}` broke off: {reason}; hint: see the server's log; what had arrived is kept")]
    Broken { url: String, reason: String },
    #[error(
        "`{url}` sent no usable answer: {reason}; hint: does OPENAI_BASE_URL point at an OpenAI-compatible API (…/v1)?"
    )]
    Nonsense { url: String, reason: String },
    #[error(
        "`{url}` ended its answer without a word; hint: the prompt may be too long for it, see the server's log; or does OPENAI_BASE_URL not end in /v1?"
    )]
    Empty { url: String },
    #[error(
        "`{url}` goes on without an answer ({sent}) and was cut off; hint: see the server's log; the built-in planner works without it"
    )]
    Endless { url: String, sent: String },
    #[error(
        "the API key holds characters that cannot be sent; hint: OPENAI_API_KEY may contain a line break or a quote"
    )]
    Key,
    #[error("the endpoint is no http or https address; hint: such as http://localhost:8000/v1")]
    Address,
    #[error(
        "plain http to `{origin}` would show prompts and key to everybody on the way; hint: https, or an SSH tunnel to \
         localhost; where you trust the network, `trusted = [\"{origin}\"]` under [llm] in your own config.toml, or \
         PARING_LLM_TRUSTED={origin}"
    )]
    Clear { origin: String },
    #[error("`{url}` lists no models; hint: name one with --llm-model")]
    NoModel { url: String },
    #[error("`{url}` takes no tool calls: {message}; hint: another model, or the server's options for tools")]
    NoTools { url: String, message: String },
    #[error("the limit is reached: {what}; hint: `:limits tokens=…` or [llm] in the configuration raises it")]
    Limit { what: String },
}

/// What an API error is about, as far as its status and message tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiKind {
    Auth,
    /// Wrong path or unknown model.
    NotFound,
    /// A redirect to another origin, or in circles: nothing was sent there.
    Elsewhere,
    /// No credit: permanent, though some servers send it as 429.
    Quota,
    RateLimit,
    ContextTooLong,
    /// A request field the server does not know.
    Field,
    Server,
    Other,
}

impl ApiKind {
    fn hint(self) -> &'static str {
        match self {
            ApiKind::Auth => "check OPENAI_API_KEY",
            ApiKind::NotFound => "check --llm-model and that OPENAI_BASE_URL ends in /v1",
            ApiKind::Elsewhere => {
                "it sends on to another server, which got nothing; name that one with --llm-url if it is right"
            }
            ApiKind::Quota => "the account has no credit left; the built-in planner needs none",
            ApiKind::RateLimit => "wait a little, then propose again",
            ApiKind::ContextTooLong => "start the server with a larger context, or name a model with one",
            ApiKind::Field => "the server refuses a field of the request; see its log",
            ApiKind::Server => "see the server's log; the built-in planner works without it",
            ApiKind::Other => "see the server's log",
        }
    }
}

impl LlmError {
    /// An error from an HTTP status and body.
    pub fn from_body(url: &str, status: u16, body: &str) -> LlmError {
        let value = serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned()));
        LlmError::from_value(url, Some(status), &value)
    }

    /// An error from what a server says about it: an HTTP status' body (text as a string), or with `None` a chunk that
    /// came inside a stream, whose code may be a status.
    pub(super) fn from_value(url: &str, status: Option<u16>, said: &Value) -> LlmError {
        let (message, code) = message_of(said).unwrap_or_else(|| (said.to_string(), String::new()));
        let coded = || code.split(' ').find_map(|word| word.parse().ok().filter(|s| (400..600).contains(s)));
        let status = status.or_else(coded);
        let message = plain(&message);
        let mut shown = clean::line(&message, 400);
        if shown.is_empty() {
            shown = "no message".to_owned();
        }
        LlmError::Api { url: url.to_owned(), status, kind: classify(status, &message, &code), message: shown }
    }

    /// Whether asking the same thing again soon may help.
    pub fn retryable(&self) -> bool {
        match self {
            LlmError::Connect { .. } | LlmError::Broken { .. } => true,
            LlmError::Api { kind, .. } => matches!(kind, ApiKind::RateLimit | ApiKind::Server),
            LlmError::Silent { .. }
            | LlmError::Nonsense { .. }
            | LlmError::Empty { .. }
            | LlmError::Endless { .. }
            | LlmError::NoModel { .. }
            | LlmError::NoTools { .. }
            | LlmError::Limit { .. } => false,
            LlmError::Key | LlmError::Address | LlmError::Clear { .. } => false,
        }
    }

    /// The server's words, where it refuses a request for the tools in it. `answered`: there are answers of tools, which some models'
    /// templates take for a turn out of order.
    pub fn refuses_tools(&self, answered: bool) -> Option<&str> {
        let LlmError::Api { status: Some(400 | 404 | 405 | 422 | 500 | 501), message, kind, .. } = self else {
            return None;
        };
        if *kind == ApiKind::ContextTooLong {
            return None;
        }
        let m = message.to_lowercase();
        let order = answered && m.contains("alternate");
        (m.contains("tool") || m.contains("function call") || order).then_some(message)
    }

    /// Whether the other roles can expect nothing better.
    pub fn hopeless(&self) -> bool {
        match self {
            LlmError::Api { kind, .. } => {
                use ApiKind::{Auth, Elsewhere, NotFound, Quota, RateLimit};
                matches!(kind, Auth | NotFound | Elsewhere | Quota | RateLimit)
            }
            LlmError::Connect { .. } | LlmError::Nonsense { .. } | LlmError::NoModel { .. } => true,
            LlmError::Key | LlmError::Address | LlmError::Clear { .. } | LlmError::Limit { .. } => true,
            LlmError::Silent { .. } | LlmError::Empty { .. } | LlmError::Endless { .. } => true,
            LlmError::Broken { .. } | LlmError::NoTools { .. } => false,
        }
    }

    pub fn context_too_long(&self) -> bool {
        matches!(self, LlmError::Api { kind: ApiKind::ContextTooLong, .. })
    }

    /// Whether a shorter prompt may get an answer. Some servers end a stream in silence where others say why.
    pub fn perhaps_too_long(&self) -> bool {
        self.context_too_long() || matches!(self, LlmError::Empty { .. })
    }
}

/// The message and code of an error body, whatever its shape; `None` when there is none to be found.
fn message_of(v: &Value) -> Option<(String, String)> {
    match v {
        Value::String(s) => Some((s.clone(), String::new())),
        Value::Object(o) => {
            if let Some(found) = o.get("error").filter(|e| !e.is_null()).and_then(message_of) {
                return Some(found);
            }
            let word = |k: &str| match o.get(k) {
                Some(Value::String(s)) => Some(s.clone()),
                Some(Value::Number(n)) => Some(n.to_string()),
                _ => None,
            };
            let code = [word("code"), word("type"), word("status")].into_iter().flatten().collect::<Vec<_>>().join(" ");
            let message = word("message").or_else(|| word("msg")).or_else(|| word("detail"));
            let listed = || o.get("detail").or_else(|| o.get("errors")).filter(|d| d.is_array() || d.is_object());
            Some((message.or_else(|| listed().map(Value::to_string))?, code))
        }
        Value::Array(a) => a.first().and_then(message_of),
        _ => None,
    }
}

/// The readable part of a body that is not JSON (often an HTML page of a proxy).
pub(super) fn plain(body: &str) -> String {
    if !body.trim_start().starts_with('<') {
        return body.to_owned();
    }
    let mut out = String::new();
    let mut inside = false;
    for c in body.chars() {
        match c {
            '<' => inside = true,
            '>' => {
                inside = false;
                out.push(' ');
            }
            c if !inside => out.push(c),
            _ => {}
        }
    }
    out
}

fn classify(status: Option<u16>, message: &str, code: &str) -> ApiKind {
    let text = format!("{message} {code}").to_lowercase();
    let says = |words: &[&str]| words.iter().any(|w| text.contains(w));
    if says(&[
        "insufficient_quota",
        "exceeded your current quota",
        "billing",
        "insufficient credit",
        "payment required",
    ]) {
        return ApiKind::Quota;
    }
    if says(&[
        "context_length_exceeded",
        "maximum context length",
        "exceed_context_size",
        "exceeds the available context",
        "context window",
        "context size",
        "prompt is too long",
        "input is too long",
        "greater than the context length",
        "max_model_len",
        "model's context length",
        "loaded with context length",
        "`inputs` must have less than",
        "`inputs` tokens + `max_new_tokens` must be",
        "reduce your message size",
    ]) {
        return ApiKind::ContextTooLong;
    }
    match status {
        Some(300..400) => ApiKind::Elsewhere,
        // A body that is too large for a gateway, or a prompt for what one may have in a minute.
        Some(413) => ApiKind::ContextTooLong,
        Some(401 | 403) => ApiKind::Auth,
        Some(400) if says(&["api key not valid", "api_key_invalid", "invalid_api_key", "invalid api key"]) => {
            ApiKind::Auth
        }
        Some(402) => ApiKind::Quota,
        Some(404 | 405) => ApiKind::NotFound,
        Some(429) => ApiKind::RateLimit,
        Some(400 | 422)
            if says(&["stream_options", "system role", "unsupported", "unknown field", "extra_forbidden"]) =>
        {
            ApiKind::Field
        }
        Some(s) if s >= 500 => ApiKind::Server,
        _ if says(&["rate_limit", "rate limit", "too many requests", "overloaded"]) => ApiKind::RateLimit,
        _ if says(&["invalid_api_key", "unauthorized"]) => ApiKind::Auth,
        _ if says(&["model_not_found", "does not exist", "unexpected endpoint"]) => ApiKind::NotFound,
        _ => ApiKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: u16, body: &str) -> (String, ApiKind) {
        match LlmError::from_body("u", status, body) {
            LlmError::Api { message, kind, .. } => (message, kind),
            e => panic!("{e}"),
        }
    }

    #[test]
    fn every_shape_of_error_body_keeps_its_message() {
        for (status, body, message, kind) in [
            (401, r#"{"error":{"message":"bad key","type":"x","code":"invalid_api_key"}}"#, "bad key", ApiKind::Auth),
            (404, r#"{"error":{"message":"no model m","code":404}}"#, "no model m", ApiKind::NotFound),
            (
                400,
                r#"{"error":"'response_format.type' must be 'json_schema'"}"#,
                "'response_format.type' must be 'json_schema'",
                ApiKind::Other,
            ),
            (
                400,
                r#"{"object":"error","message":"This model's maximum context length is 4096","code":400}"#,
                "This model's maximum context length is 4096",
                ApiKind::ContextTooLong,
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}"#,
                "the request exceeds the available context size",
                ApiKind::ContextTooLong,
            ),
            (
                422,
                r#"{"detail":[{"msg":"extra_forbidden","loc":["stream_options"]}]}"#,
                r#"[{"msg":"extra_forbidden","loc":["stream_options"]}]"#,
                ApiKind::Field,
            ),
            (
                429,
                r#"{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}"#,
                "You exceeded your current quota",
                ApiKind::Quota,
            ),
            (429, r#"{"error":{"message":"slow down"}}"#, "slow down", ApiKind::RateLimit),
            (503, "Service Unavailable", "Service Unavailable", ApiKind::Server),
            (
                502,
                "<html><head><title>502</title></head><body>Bad\u{1b}[1m Gateway</body></html>",
                "502 Bad[1m Gateway",
                ApiKind::Server,
            ),
            (413, "Request Entity Too Large", "Request Entity Too Large", ApiKind::ContextTooLong),
            (500, "", "no message", ApiKind::Server),
            (400, "[]", "[]", ApiKind::Other),
        ] {
            assert_eq!(read(status, body), (message.to_owned(), kind), "{body}");
        }
    }

    #[test]
    fn quota_is_permanent_and_rate_limits_are_not() {
        let quota = LlmError::from_body("u", 429, r#"{"error":{"message":"x","code":"insufficient_quota"}}"#);
        assert!(!quota.retryable() && quota.hopeless());
        let rate = LlmError::from_body("u", 429, r#"{"error":"later"}"#);
        assert!(rate.retryable());
        assert!(rate.to_string().contains("hint: "));
    }

    #[test]
    fn chunk_errors_take_integer_codes() {
        let v: Value = serde_json::json!({"error": {"code": 500, "message": "CUDA out of memory"}});
        let e = LlmError::from_value("http://h/v1", None, &v["error"]);
        assert_eq!(
            e.to_string(),
            "`http://h/v1` answered 500: CUDA out of memory; hint: see the server's log; the built-in planner works without it"
        );
        // With the type beside the code, as vLLM has it.
        let v = serde_json::json!({"object": "error", "message": "m", "type": "InternalServerError", "code": 500});
        assert!(LlmError::from_value("u", None, &v).retryable());
        assert!(LlmError::from_value("u", None, &serde_json::json!("gone")).to_string().contains("gone"));
    }
}
