//! Turns the chunks of one answer into pieces: apart by channel, neutralised, masked, and not more than may be taken.
//!
//! Not here: where the chunks come from (`wire`). Invariant: what is handed on is all that ever leaves of an answer.

use super::clean;
use super::delta::{self, Part, ThinkSplitter};
use super::error::LlmError;
use super::wire::Wire;
use crate::mask::Masked;
use serde_json::Value;

/// What arrives while an answer streams; control characters are already neutralised, secrets masked.
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

/// What a chunk brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Took {
    Nothing,
    Content,
    /// As much as may be taken has been.
    Enough,
}

/// One answer on its way to whoever listens.
pub struct Answer<'a> {
    wire: &'a Wire,
    on: &'a mut (dyn FnMut(Piece) + Send),
    think: ThinkSplitter,
    reasoning: Masked,
    text: Masked,
    /// Characters that may still be taken.
    room: usize,
    deltas: u64,
    tokens: Option<u64>,
    cut: bool,
}

impl<'a> Answer<'a> {
    pub fn new(wire: &'a Wire, room: usize, on: &'a mut (dyn FnMut(Piece) + Send)) -> Answer<'a> {
        let (reasoning, text) = (wire.mask.stream(), wire.mask.stream());
        Answer { wire, on, think: ThinkSplitter::default(), reasoning, text, room, deltas: 0, tokens: None, cut: false }
    }

    pub fn chunk(&mut self, chunk: &Value) -> Result<Took, LlmError> {
        let before = self.room;
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
                Part::Error(e) => return Err(LlmError::from_value(&self.wire.url, None, &self.wire.mask.value(e))),
            }
            if self.room == 0 {
                self.cut = true;
                return Ok(Took::Enough);
            }
        }
        Ok(if self.room < before { Took::Content } else { Took::Nothing })
    }

    fn give(&mut self, part: Part) {
        let known = match &part {
            Part::Reasoning(t) => self.reasoning.push(&clean::text(t)),
            Part::Text(t) => self.text.push(&clean::text(t)),
            Part::Tokens(_) | Part::Finish(_) | Part::Error(_) => return,
        };
        self.hand_on(known, matches!(part, Part::Reasoning(_)));
    }

    fn hand_on(&mut self, text: String, reasoning: bool) {
        let text: String = text.chars().take(self.room).collect();
        self.room -= text.chars().count();
        if !text.is_empty() {
            (self.on)(if reasoning { Piece::Reasoning(text) } else { Piece::Text(text) });
        }
    }

    /// Hands on what was held back. Also after an error: what had arrived is kept.
    pub fn end(mut self) -> Reply {
        for p in self.think.finish() {
            self.give(p);
        }
        let (reasoning, text) = (self.reasoning.finish(), self.text.finish());
        self.hand_on(reasoning, true);
        self.hand_on(text, false);
        Reply { tokens: self.tokens.unwrap_or(self.deltas), cut: self.cut }
    }
}
