//! Reads one streamed chunk, whatever a server put in it, and separates reasoning from text. Pure.
//!
//! Nothing here rejects: a field that is missing, of another type or unknown is passed over.

use super::calls::Piece;
use crate::session::Channel;
use serde_json::Value;

/// What a chunk contained.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    Said(Channel, String),
    /// A piece of a call.
    Call(Piece),
    /// Completion tokens so far, by the server's count.
    Tokens(u64),
    /// Tokens of the prompt, by the server's count.
    Asked(u64),
    /// The server's word for why it stopped; never interpreted beyond `length`.
    Finish(String),
    /// An error sent inside the stream.
    Error(Value),
}

/// The parts of one chunk, in order. Also reads a whole (unstreamed) completion.
pub fn parts(chunk: &Value) -> Vec<Part> {
    let mut out = Vec::new();
    let top = match chunk {
        Value::Object(o) => o,
        Value::Array(a) => return a.iter().flat_map(parts).collect(),
        _ => return out,
    };
    if let Some(e) = top.get("error").filter(|e| truthy(e)) {
        out.push(Part::Error(e.clone()));
        return out;
    }
    if top.get("object").and_then(Value::as_str) == Some("error") {
        out.push(Part::Error(chunk.clone()));
        return out;
    }
    let choice = match top.get("choices") {
        Some(Value::Array(a)) => a.first(),
        other => other,
    };
    if let Some(choice) = choice {
        let said = ["delta", "message"].iter().filter_map(|k| choice.get(k)).find(|v| v.is_object());
        if let Some(said) = said {
            // One server version sent the same reasoning under both names.
            let reasoning = ["reasoning_content", "reasoning", "thinking"]
                .iter()
                .filter_map(|k| said.get(k))
                .map(flat)
                .find(|s| !s.is_empty())
                .unwrap_or_default();
            push(&mut out, Channel::Reasoning, reasoning);
            match said.get("content") {
                Some(Value::Array(items)) => {
                    for item in items {
                        let kind = item.get("type").and_then(Value::as_str).unwrap_or("text");
                        let thinks = matches!(kind, "thinking" | "reasoning");
                        push(&mut out, if thinks { Channel::Reasoning } else { Channel::Text }, flat(item));
                    }
                }
                Some(content) => push(&mut out, Channel::Text, flat(content)),
                None => {}
            }
            push(&mut out, Channel::Text, said.get("refusal").map(flat).unwrap_or_default());
            let calls = match said.get("tool_calls") {
                Some(Value::Array(list)) => list.as_slice(),
                Some(one @ Value::Object(_)) => std::slice::from_ref(one),
                _ => &[],
            };
            let old = said.get("function_call").filter(|c| c.is_object());
            out.extend(calls.iter().chain(old).filter_map(Piece::of).map(Part::Call));
        }
        if let Some(text) = choice.get("text").and_then(Value::as_str) {
            push(&mut out, Channel::Text, text.to_owned());
        }
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            out.push(Part::Finish(reason.to_owned()));
        }
        usage(choice.get("usage"), &mut out);
    }
    usage(top.get("usage"), &mut out);
    usage(top.get("x_groq").and_then(|x| x.get("usage")), &mut out);
    out
}

fn truthy(v: &Value) -> bool {
    match v {
        Value::Null => false,
        Value::Bool(b) => *b,
        Value::String(s) => !s.is_empty(),
        Value::Object(o) => !o.is_empty(),
        Value::Number(_) | Value::Array(_) => true,
    }
}

fn push(out: &mut Vec<Part>, channel: Channel, s: String) {
    if !s.is_empty() {
        out.push(Part::Said(channel, s));
    }
}

/// The text in a value: a string, an object's `text`, `thinking` or `content`, or a list of those.
fn flat(v: &Value) -> String {
    match v {
        Value::String(s) => s.clone(),
        Value::Array(a) => a.iter().map(flat).collect(),
        Value::Object(o) => ["text", "thinking", "reasoning", "content", "value"]
            .iter()
            .find_map(|k| o.get(*k))
            .map(flat)
            .unwrap_or_default(),
        _ => String::new(),
    }
}

fn usage(v: Option<&Value>, out: &mut Vec<Part>) {
    let count = |names: [&str; 2]| {
        let count = v.and_then(|u| names.iter().find_map(|name| u.get(*name)));
        count.and_then(|c| c.as_u64().or_else(|| c.as_f64().filter(|f| *f >= 0.0).map(|f| f as u64)))
    };
    out.extend(count(["prompt_tokens", "input_tokens"]).map(Part::Asked));
    out.extend(count(["completion_tokens", "output_tokens"]).map(Part::Tokens));
}

/// Splits `<think>…</think>` (or `<thinking>`) out of streamed content. A tag opens only at the start of a line, so a
/// quoted one stays text; tags may be cut anywhere by the stream.
#[derive(Debug, Default)]
pub struct ThinkSplitter {
    /// Text held back because it may be the beginning of a tag.
    held: String,
    thinking: bool,
    /// Something other than white space stands before on this line.
    line_dirty: bool,
}

const OPEN: [&str; 2] = ["<think>", "<thinking>"];
const CLOSE: [&str; 2] = ["</think>", "</thinking>"];

impl ThinkSplitter {
    /// Feeds content; returns what is certain by now. The cost is linear, whatever the content.
    pub fn push(&mut self, text: &str) -> Vec<(Channel, String)> {
        let mut out = Vec::new();
        let all = std::mem::take(&mut self.held) + text;
        let mut rest = all.as_str();
        while let Some(at) = rest.find('<') {
            let (before, from) = rest.split_at(at);
            self.give(before, &mut out);
            let tags = if self.thinking { &CLOSE } else { &OPEN };
            let may_tag = self.thinking || !self.line_dirty;
            rest = if let Some(tag) = tags.iter().find(|t| may_tag && from.starts_with(**t)) {
                self.thinking = !self.thinking;
                self.line_dirty = false;
                &from[tag.len()..]
            } else if may_tag && tags.iter().any(|t| t.starts_with(from)) {
                self.held = from.to_owned();
                return out;
            } else {
                self.give("<", &mut out);
                &from[1..]
            };
        }
        self.give(rest, &mut out);
        out
    }

    /// What was held back, at the end of the stream.
    pub fn finish(&mut self) -> Vec<(Channel, String)> {
        let mut out = Vec::new();
        let rest = std::mem::take(&mut self.held);
        self.give(&rest, &mut out);
        out
    }

    fn give(&mut self, s: &str, out: &mut Vec<(Channel, String)>) {
        if s.is_empty() {
            return;
        }
        let tail = s.rsplit('\n').next().unwrap_or("");
        let fresh = s.contains('\n');
        self.line_dirty = (self.line_dirty && !fresh) || !tail.trim().is_empty();
        let channel = if self.thinking { Channel::Reasoning } else { Channel::Text };
        match out.last_mut() {
            Some((last, t)) if *last == channel => t.push_str(s),
            _ => out.push((channel, s.to_owned())),
        }
    }
}

/// Where a chat template has put the opening tag into the prompt, the reply holds only the closing one: what stands
/// before it is reasoning. Returns `(reasoning, text)`.
pub fn split_orphan_close(text: &str) -> Option<(&str, &str)> {
    CLOSE.iter().find_map(|tag| text.split_once(tag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_what_servers_really_send() {
        let t = |s: &str| Part::Said(Channel::Text, s.into());
        let r = |s: &str| Part::Said(Channel::Reasoning, s.into());
        let f = |s: &str| Part::Finish(s.into());
        for (chunk, want) in [
            (json!({"choices":[{"delta":{"content":"a"},"finish_reason":null}]}), vec![t("a")]),
            (json!({"choices":[{"delta":{"reasoning":"b","reasoning_content":"b","content":""}}]}), vec![r("b")]),
            (
                json!({"choices":[{"delta":{"content":[{"type":"text","text":"x"},{"type":"thinking","thinking":"y"}]}}]}),
                vec![t("x"), r("y")],
            ),
            (
                json!({"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"deep"}]}]}}]}),
                vec![r("deep")],
            ),
            (
                json!({"choices":[{"delta":{"content":null,"role":""},"finish_reason":"eos"}],"created":1.5}),
                vec![f("eos")],
            ),
            (json!({"choices":[{"finish_reason":""}]}), vec![f("")]),
            (json!({"choices":[{"delta":{},"finish_reason":7}]}), vec![]),
            (json!({"choices":[],"usage":{"completion_tokens":12}}), vec![Part::Tokens(12)]),
            (json!({"usage":{"completion_tokens":3.0,"prompt_tokens":1}}), vec![Part::Asked(1), Part::Tokens(3)]),
            (json!({"choices":{"delta":{"content":"obj"}}}), vec![t("obj")]),
            (json!({"choices":[{"message":{"content":"whole","reasoning":"r"}}]}), vec![r("r"), t("whole")]),
            (json!({"choices":[{"text":"legacy"}]}), vec![t("legacy")]),
            (json!({"error":null,"choices":[{"delta":{"content":"ok"}}]}), vec![t("ok")]),
            (json!({"error":"boom"}), vec![Part::Error(json!("boom"))]),
            (json!({"object":"error","message":"m"}), vec![Part::Error(json!({"object":"error","message":"m"}))]),
            (
                json!({"choices":[{"delta":{"tool_calls":[{"type":"","function":{"name":"x","arguments":{}}}]}}]}),
                vec![Part::Call(Piece { name: "x".into(), arguments: "{}".into(), whole: true, ..Piece::default() })],
            ),
            (json!([{"choices":[{"delta":{"content":"l"}}]}]), vec![t("l")]),
            (json!(null), vec![]),
            (json!("junk"), vec![]),
            (json!({"choices":[null]}), vec![]),
        ] {
            assert_eq!(parts(&chunk), want, "{chunk}");
        }
    }

    fn run(pieces: &[&str]) -> (String, String) {
        let mut s = ThinkSplitter::default();
        let (mut reasoning, mut text) = (String::new(), String::new());
        let mut all: Vec<_> = pieces.iter().flat_map(|p| s.push(p)).collect();
        all.extend(s.finish());
        for (channel, said) in all {
            match channel {
                Channel::Reasoning => reasoning.push_str(&said),
                Channel::Text => text.push_str(&said),
            }
        }
        (reasoning, text)
    }

    #[test]
    fn think_tags_split_wherever_the_stream_cuts() {
        let whole = "<think>\nif a < b\n</think>\nso a <think> is text, 1<2 & <b>\n{\"x\":\"<think>\"}";
        let want = ("\nif a < b\n".to_owned(), "\nso a <think> is text, 1<2 & <b>\n{\"x\":\"<think>\"}".to_owned());
        assert_eq!(run(&[whole]), want);
        for size in 1..9 {
            let chars: Vec<char> = whole.chars().collect();
            let pieces: Vec<String> = chars.chunks(size).map(|c| c.iter().collect()).collect();
            let refs: Vec<&str> = pieces.iter().map(String::as_str).collect();
            assert_eq!(run(&refs), want, "in pieces of {size}");
        }
    }

    #[test]
    fn unclosed_thinking_and_half_tags_are_kept() {
        assert_eq!(run(&["<thinking>x"]), ("x".into(), String::new()));
        assert_eq!(run(&["a\n<thi"]), (String::new(), "a\n<thi".into()));
        assert_eq!(split_orphan_close("plan</think>answer"), Some(("plan", "answer")));
        assert_eq!(split_orphan_close("answer"), None);
    }
}
