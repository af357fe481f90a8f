//! Runs a template over messages as transformers' `apply_chat_template` does: blocks trimmed, loop controls, Python's methods,
//! `raise_exception`, `strftime_now`, `tojson`.
//!
//! Not here: whose process that is. Fuel bounds what is done and written, but not all of it: joining a list to itself again and again, formats of
//! any width, or constants that are computed when a template is read, cost little fuel and much time or memory. Whoever renders what is not their own does so where both have an end.

use super::{ChatError, ChatMessage, ChatTemplate, MAX_MESSAGES, python};
use crate::model::printable;
use chrono::{DateTime, Local, NaiveDateTime};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt::Write;
use std::time::SystemTime;

/// Instructions, each of them worth 64 bytes written, of a render of nothing, and for each message and byte more.
const FUEL: (u64, u64, u64) = (100_000, 1_000, 2);

/// Nested blocks and calls: a macro takes some ten.
const DEPTH: usize = 200;

/// Templates nest values and expressions as deeply as their fuel and length go. Only what is used of a stack is memory.
const STACK: usize = 512 << 20;

/// Bytes of the text at most.
pub(super) const MAX_TEXT: usize = 2 * MAX_MESSAGES;

/// Bytes of a date.
const MAX_DATE: usize = 256;

/// What `raise_exception` was called with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// The text that stands before what comes after `messages`; `answer` says that this is an answer (`add_generation_prompt`).
    ///
    /// # Errors
    /// What the template refuses, its mistakes, and what is larger than it may be.
    pub fn render(&self, messages: &[ChatMessage], answer: bool) -> Result<String, ChatError> {
        self.render_at(messages, answer, SystemTime::now())
    }

    /// As [`ChatTemplate::render`], at another time.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_at(&self, messages: &[ChatMessage], answer: bool, now: SystemTime) -> Result<String, ChatError> {
        let bytes = messages.iter().map(|m| m.role.len() + m.content.len()).sum();
        if bytes > MAX_MESSAGES {
            return Err(ChatError::TooLarge { what: "a conversation", bytes, most: MAX_MESSAGES });
        }
        let now = DateTime::<Local>::from(now).naive_local();
        let run = || self.run(messages, bytes, answer, now);
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK).spawn_scoped(scope, run);
            let failed = |why: &str| ChatError::Failed { why: why.to_owned() };
            let thread = thread.map_err(|e| failed(&format!("there is no thread for it: {e}")))?;
            thread.join().unwrap_or_else(|_| Err(failed("it ended in a panic")))
        })
    }

    fn run(
        &self,
        messages: &[ChatMessage],
        bytes: usize,
        answer: bool,
        now: NaiveDateTime,
    ) -> Result<String, ChatError> {
        let mut env = environment(now).map_err(told)?;
        let (least, message, byte) = FUEL;
        env.set_fuel(Some(least + message * messages.len() as u64 + bytes as u64 / byte));
        let source = without_generation(&self.source);
        env.add_template("chat_template", &source).map_err(told)?;
        let mut context: BTreeMap<&str, Value> =
            self.tokens.iter().map(|(name, token)| (name.as_str(), Value::from(token.as_str()))).collect();
        let message = |m: &ChatMessage| Value::from_pairs([("role", m.role.as_str()), ("content", m.content.as_str())]);
        context.insert("messages", messages.iter().map(message).collect());
        context.insert("add_generation_prompt", Value::from(answer));
        // transformers names what is not given, so that templates find it not there.
        context.insert("tools", Value::from(()));
        context.insert("documents", Value::from(()));
        let text = env.get_template("chat_template").and_then(|t| t.render(context)).map_err(told)?;
        match text.len() {
            bytes if bytes > MAX_TEXT => Err(ChatError::TooLarge { what: "a prompt", bytes, most: MAX_TEXT }),
            _ => Ok(text),
        }
    }
}

/// As transformers makes it (`chat_template_utils._compile_jinja_template`).
fn environment(now: NaiveDateTime) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_recursion_limit(DEPTH);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(python::method);
    env.add_filter("tojson", python::tojson);
    env.add_function("raise_exception", |why: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "refused").with_source(Raised(why)))
    });
    env.add_function("strftime_now", move |format: &str, _: Kwargs| -> Result<String, Error> {
        let mut text = String::new();
        // What it cannot write is an error of the writer's, not a panic.
        let written = write!(text, "{}", now.format(format));
        match written.is_ok() && text.len() <= MAX_DATE {
            true => Ok(text),
            false => Err(Error::new(ErrorKind::InvalidOperation, "strftime_now was given no format of a date")),
        }
    });
    Ok(env)
}

/// In words: what was raised, or the mistake and its line.
fn told(e: Error) -> ChatError {
    let mut cause = e.source();
    while let Some(inner) = cause {
        if let Some(Raised(why)) = inner.downcast_ref::<Raised>() {
            return ChatError::Refused { why: printable(why) };
        }
        cause = inner.source();
    }
    let line = e.line().map_or_else(String::new, |n| format!(" in line {n}"));
    let why = match e.detail() {
        Some(detail) => format!("{}: {detail}{line}", e.kind()),
        None => format!("{}{line}", e.kind()),
    };
    ChatError::Failed { why: printable(&why) }
}

/// `{% generation %}` marks what an assistant said, for training; it changes no text.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        out.push_str(before);
        out.push_str("{%");
        rest = tag;
        let Some((inside, _)) = tag.split_once("%}") else { break };
        let word = inside.trim_matches(['-', '+']).trim();
        let instead = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        out.push_str(&inside.replacen(word, instead, 1));
        rest = &tag[inside.len()..];
    }
    out.push_str(rest);
    out
}
