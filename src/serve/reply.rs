//! Answers in OpenAI's shapes: chats and completions, whole and chunk by chunk, and the lists of models.

use super::worker::{Done, Finish};
use bytes::Bytes;
use serde_json::{Value, json};
use std::time::SystemTime;

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Which interface asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Chat,
    Text,
}

/// What all parts of one answer share.
#[derive(Debug, Clone)]
pub struct Shape {
    pub kind: Kind,
    id: String,
    created: u64,
    model: String,
    /// A last chunk tells the tokens.
    pub usage: bool,
}

impl Shape {
    pub fn new(kind: Kind, model: &str, usage: bool) -> Shape {
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        let id = format!("{prefix}-{:024x}", rand::random::<u128>() >> 32);
        Shape { kind, id, created: now(), model: model.to_owned(), usage }
    }

    /// The whole answer.
    pub fn whole(&self, text: &str, done: Done) -> Value {
        let reason = reason(done.finish);
        let (object, choice) = match self.kind {
            Kind::Chat => (
                "chat.completion",
                json!({
                    "index": 0, "message": { "role": "assistant", "content": text, "refusal": null },
                    "logprobs": null, "finish_reason": reason,
                }),
            ),
            Kind::Text => {
                ("text_completion", json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": reason }))
            }
        };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": [choice], "usage": usage(done),
        })
    }

    /// The chunk that comes before all others of a chat.
    pub fn first(&self) -> Option<Value> {
        (self.kind == Kind::Chat).then(|| self.chunk(Some(json!({ "role": "assistant", "content": "" })), "", None))
    }

    /// A chunk of text.
    pub fn text(&self, text: &str) -> Value {
        self.chunk(Some(json!({ "content": text })), text, None)
    }

    /// The last chunks: why it ended, and the tokens where they are asked for.
    pub fn last(&self, done: Done) -> Vec<Value> {
        let mut all = vec![self.chunk(Some(json!({})), "", Some(reason(done.finish)))];
        if self.usage {
            let mut last = self.chunk(None, "", None);
            last["usage"] = usage(done);
            all.push(last);
        }
        all
    }

    /// One with a choice of `delta` (or, of a completion, `text`), or with none.
    fn chunk(&self, delta: Option<Value>, text: &str, reason: Option<&str>) -> Value {
        let choice = delta.map(|delta| match self.kind {
            Kind::Chat => json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason }),
            Kind::Text => json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": reason }),
        });
        let object = if self.kind == Kind::Chat { "chat.completion.chunk" } else { "text_completion" };
        let choices: Vec<Value> = choice.into_iter().collect();
        let mut chunk = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
        });
        if self.usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

/// As one server-sent event.
pub fn event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}

/// After the last chunk.
pub const END: &str = "data: [DONE]\n\n";

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

fn usage(done: Done) -> Value {
    json!({
        "prompt_tokens": done.prompt, "completion_tokens": done.written, "total_tokens": done.prompt + done.written,
    })
}

/// The one model that there is.
pub fn model(name: &str, created: u64) -> Value {
    json!({ "id": name, "object": "model", "created": created, "owned_by": "paring" })
}
