//! Turns the chunks of one answer into tokens: apart by channel, neutralised, masked, and not more than may be taken.
//!
//! Not here: where the chunks come from (`wire`). Invariant: what is handed on is all that ever leaves of an answer.

use super::calls::{Call, Calls};
use super::circles::Circles;
use super::clean;
use super::delta::{self, Part, ThinkSplitter};
use super::error::LlmError;
use super::wire::Wire;
use crate::mask::Masked;
use crate::session::{Channel, Feed, Spent};
use serde_json::Value;

/// Why an answer is no whole one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The server said that it stopped for length, or we took no more.
    Length,
    /// It said the same again and again.
    Circles,
    /// The server's filter stopped it.
    Filter,
    /// A proposal may take no more tokens.
    Limit,
}

impl Cut {
    pub fn words(self) -> &'static str {
        match self {
            Cut::Length => "was cut off for length",
            Cut::Circles => "went round in circles and was cut off",
            Cut::Filter => "was stopped by the server's content filter",
            Cut::Limit => "was cut off, as a proposal may take no more tokens",
        }
    }
}

/// How an answer ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// Completion tokens by the server's count, or else the number of deltas.
    pub tokens: u64,
    /// That is the server's count.
    pub counted: bool,
    /// Tokens of the prompt by the server's count; 0 where it does not tell.
    pub asked: u64,
    pub cut: Option<Cut>,
    /// What the model wants to know before it goes on.
    pub calls: Vec<Call>,
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
pub struct Answer<'a, F> {
    wire: &'a Wire,
    role: &'a str,
    on: &'a mut F,
    think: ThinkSplitter,
    reasoning: Masked,
    text: Masked,
    /// Characters that may still be taken.
    room: usize,
    /// Characters that might be taken at first.
    whole: usize,
    /// Tokens that may be taken.
    most: Option<u64>,
    deltas: u64,
    tokens: Option<u64>,
    asked: u64,
    circles: Circles,
    cut: Option<Cut>,
    calls: Calls,
}

impl<'a, F: AsyncFnMut(Feed)> Answer<'a, F> {
    /// What `role` says, `room` characters and about `most` tokens of it at most, goes to `on`.
    pub fn new(wire: &'a Wire, role: &'a str, room: usize, most: Option<u64>, on: &'a mut F) -> Answer<'a, F> {
        let (think, reasoning, text) = (ThinkSplitter::default(), wire.mask.stream(), wire.mask.stream());
        Answer {
            wire,
            role,
            on,
            think,
            reasoning,
            text,
            room,
            whole: room,
            most,
            deltas: 0,
            tokens: None,
            asked: 0,
            circles: Circles::default(),
            cut: None,
            calls: Calls::default(),
        }
    }

    pub async fn chunk(&mut self, chunk: &Value) -> Result<Took, LlmError> {
        let before = self.room;
        for part in delta::parts(chunk) {
            match part {
                Part::Said(channel, said) => {
                    self.deltas += 1;
                    let apart = match channel {
                        Channel::Reasoning => vec![(channel, said)],
                        Channel::Text => self.think.push(&said),
                    };
                    self.give(apart).await;
                }
                Part::Call(piece) => {
                    self.deltas += 1;
                    // Arguments count as words: a flood of them ends as one of text does.
                    self.room -= (piece.name.len() + piece.arguments.len()).min(self.room);
                    self.calls.push(piece);
                }
                Part::Tokens(n) => self.tokens = Some(n),
                Part::Asked(n) => self.asked = n,
                Part::Finish(why) if matches!(why.as_str(), "length" | "max_tokens") => self.cut = Some(Cut::Length),
                Part::Finish(why) if why == "content_filter" => self.cut = Some(Cut::Filter),
                Part::Finish(_) => {}
                Part::Error(e) => return Err(LlmError::from_value(&self.wire.url, None, &self.wire.mask.value(e))),
            }
            if self.room == 0 {
                self.cut = Some(Cut::Length);
            }
            // A piece is a token where servers stream them one by one; others send many at once.
            let taken = self.deltas.max(Spent::about(self.whole - self.room));
            if self.most.is_some_and(|most| taken >= most) {
                self.cut = Some(Cut::Limit);
                return Ok(Took::Enough);
            }
            if self.room == 0 || self.cut == Some(Cut::Circles) {
                return Ok(Took::Enough);
            }
        }
        Ok(if self.room < before { Took::Content } else { Took::Nothing })
    }

    async fn give(&mut self, said: Vec<(Channel, String)>) {
        for (channel, text) in said {
            let masked = if channel == Channel::Text { &mut self.text } else { &mut self.reasoning };
            let known = masked.push(&clean::text(&text));
            self.hand_on(known, channel).await;
        }
    }

    async fn hand_on(&mut self, text: String, channel: Channel) {
        let text: String = text.chars().take(self.room).collect();
        self.room -= text.chars().count();
        if self.circles.push(&text) {
            self.cut = Some(Cut::Circles);
        }
        if !text.is_empty() {
            (self.on)(Feed::Token { role: self.role.to_owned(), channel, text }).await;
        }
    }

    /// Hands on what was held back. Also after an error: what had arrived is kept.
    pub async fn end(mut self) -> Reply {
        let last = self.think.finish();
        self.give(last).await;
        let (reasoning, text) = (self.reasoning.finish(), self.text.finish());
        self.hand_on(reasoning, Channel::Reasoning).await;
        self.hand_on(text, Channel::Text).await;
        let calls = self.calls.finish(|s| self.wire.mask.text(&clean::text(s)));
        let counted = self.tokens.is_some();
        Reply { tokens: self.tokens.unwrap_or(self.deltas), counted, asked: self.asked, cut: self.cut, calls }
    }
}
