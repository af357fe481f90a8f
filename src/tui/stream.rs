//! What the agents said, as turns that grow while they stream, and their wrapped lines.
//!
//! Invariant: only safe text is kept; what was read of a turn for good (`markdown`) is neither read nor wrapped again unless the width changes.

use super::markdown::{self, Look, Place, Rendered};
use crate::config::text::{clean, clean_lines, wrap};
use crate::session::{Channel, Utterance};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// One agent's (or the planner's) turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// No other turn of this process has it.
    id: u64,
    pub round: Option<u32>,
    pub role: String,
    pub model: String,
    /// Alternating reasoning and text, as they arrived.
    pub pieces: Vec<(bool, String)>,
    pub prompt: String,
    /// Exact once the turn was kept; before that estimated from the text.
    pub tokens: u64,
    pub exact: bool,
    pub seconds: f64,
    pub started_ms: i64,
    pub live: bool,
    pub interrupted: bool,
    /// The durable utterance has arrived.
    pub kept: bool,
    /// Grows with every change.
    pub rev: u64,
    /// Grows when what was said is replaced, not continued.
    replaced: u64,
}

/// How many turns there were.
static TURNS: AtomicU64 = AtomicU64::new(1);

impl Turn {
    pub fn begin(role: &str, model: &str, now_ms: i64) -> Turn {
        Turn {
            id: TURNS.fetch_add(1, Ordering::Relaxed),
            role: clean(role).into_owned(),
            model: clean(model).into_owned(),
            started_ms: now_ms,
            live: true,
            ..Turn::default()
        }
    }

    pub fn of(u: &Utterance) -> Turn {
        let mut t = Turn { live: false, ..Turn::begin(&u.role, &u.model, 0) };
        t.keep(u);
        t
    }

    /// The durable record replaces what was streamed (deltas may have been dropped on a slow line).
    pub fn keep(&mut self, u: &Utterance) {
        let said = [(true, &u.reasoning), (false, &u.text)].into_iter().filter(|(_, text)| !text.is_empty());
        let pieces: Vec<_> = said.map(|(reasoning, text)| (reasoning, clean_lines(text))).collect();
        let streamed: usize = self.pieces.iter().map(|(_, t)| t.len()).sum();
        let durable: usize = pieces.iter().map(|(_, t)| t.len()).sum();
        // The stream interleaves reasoning and text truly; keep it when nothing is missing.
        if streamed < durable {
            self.pieces = pieces;
        }
        self.round = Some(u.round);
        self.model = clean(&u.model).into_owned();
        self.prompt = clean_lines(&u.prompt);
        self.tokens = u.tokens;
        self.exact = true;
        self.seconds = u.seconds;
        self.interrupted = u.interrupted;
        self.live = false;
        self.kept = true;
        self.replaced += 1;
        self.rev += 1;
    }

    pub fn push(&mut self, channel: Channel, text: &str, now_ms: i64) {
        let reasoning = channel == Channel::Reasoning;
        let text = clean_lines(text);
        match self.pieces.last_mut().filter(|(r, _)| *r == reasoning) {
            Some((_, t)) => t.push_str(&text),
            None => self.pieces.push((reasoning, text)),
        }
        let chars: usize = self.pieces.iter().map(|(_, t)| t.len()).sum();
        self.tokens = (chars as u64).div_ceil(4);
        self.seconds = (now_ms - self.started_ms).max(0) as f64 / 1000.0;
        self.rev += 1;
    }

    /// Nothing more is streamed.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.live) {
            self.rev += 1;
        }
    }

    /// Tokens a second, once there is enough to say.
    pub fn rate(&self) -> Option<f64> {
        (self.seconds > 0.3 && self.tokens > 3).then(|| self.tokens as f64 / self.seconds)
    }
}

/// What a wrapped line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LineKind {
    Head,
    Reasoning,
    Text,
    Prompt,
    Blank,
    Note,
}

/// A line with the looks of its bytes, in order, where they are not plain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrappedLine {
    pub kind: LineKind,
    pub text: String,
    pub looks: Vec<(Range<usize>, Look)>,
}

impl WrappedLine {
    fn plain(kind: LineKind, text: &str) -> WrappedLine {
        WrappedLine { kind, text: text.to_owned(), looks: Vec::new() }
    }
}

/// A turn's lines as far as they were made.
#[derive(Debug, Clone, Default)]
struct Told {
    /// The turn, its revision, and how often what it said was replaced.
    of: (u64, u64, u64),
    lines: Vec<WrappedLine>,
    /// Lines that stay as they are: those of the pieces before `piece`, and of that one up to `place`.
    settled: usize,
    piece: usize,
    place: Place,
}

/// The wrapped lines of all turns at one width, with a scroll position.
#[derive(Debug, Clone, Default)]
pub struct Scroll {
    width: usize,
    with_prompts: bool,
    cache: Vec<Told>,
    /// Lines from the end; 0 is following.
    pub back: usize,
    pub follow: bool,
    total: usize,
}

impl Scroll {
    pub fn new(with_prompts: bool) -> Scroll {
        Scroll { with_prompts, follow: true, ..Scroll::default() }
    }

    /// Wraps what changed. While not following, the view keeps its place.
    pub fn update(&mut self, turns: &[Turn], width: usize) {
        if width != self.width {
            self.cache.clear();
            self.width = width;
        }
        self.cache.resize_with(turns.len(), Told::default);
        for (told, turn) in self.cache.iter_mut().zip(turns) {
            told.go_on(turn, width, self.with_prompts);
        }
        let total = self.cache.iter().map(|told| told.lines.len()).sum();
        if self.follow {
            self.back = 0;
        } else if total > self.total {
            self.back += total - self.total;
        }
        self.total = total;
    }

    pub fn up(&mut self, by: usize, height: usize) {
        self.back = (self.back + by).min(self.total.saturating_sub(height));
        self.follow = self.back == 0;
    }

    pub fn down(&mut self, by: usize) {
        self.back = self.back.saturating_sub(by);
        self.follow = self.back == 0;
    }

    /// All lines, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &WrappedLine> {
        self.cache.iter().flat_map(|told| &told.lines)
    }

    /// Moves so that `line` is the first of `height`, or as near as the end allows.
    pub fn show(&mut self, line: usize, height: usize) {
        self.back = self.total.saturating_sub(line + height);
        self.follow = self.back == 0;
    }

    /// The `height` lines in view, oldest first.
    pub fn window(&self, height: usize) -> Vec<&WrappedLine> {
        let end = self.total.saturating_sub(self.back.min(self.total.saturating_sub(height)));
        let start = end.saturating_sub(height);
        self.cache.iter().flat_map(|told| &told.lines).skip(start).take(end - start).collect()
    }
}

impl Told {
    /// Brings the lines up to what `turn` says by now.
    fn go_on(&mut self, turn: &Turn, width: usize, with_prompts: bool) {
        let of = (turn.id, turn.rev, turn.replaced);
        if self.of == of {
            return;
        }
        let width = width.max(8);
        if (self.of.0, self.of.2) != (of.0, of.2) || self.lines.is_empty() {
            *self = Told { lines: opening(turn, width, with_prompts), ..Told::default() };
            self.settled = self.lines.len();
        }
        self.of = of;
        self.lines.truncate(self.settled);
        self.lines[0] = head(turn, width, with_prompts);
        for (i, (reasoning, text)) in turn.pieces.iter().enumerate().skip(self.piece) {
            let kind = if *reasoning { LineKind::Reasoning } else { LineKind::Text };
            let text = text.trim_end_matches('\n');
            let mut fresh: Vec<Rendered> = Vec::new();
            markdown::settle(text, &mut self.place, width - 2, &mut fresh);
            self.settled += fresh.len();
            // Only the last piece grows.
            let last = i + 1 == turn.pieces.len();
            markdown::rest(text, &self.place, turn.live && last, width - 2, &mut fresh);
            self.lines.extend(fresh.into_iter().map(|l| WrappedLine { kind, text: l.text, looks: l.looks }));
            if !last {
                (self.settled, self.piece, self.place) = (self.lines.len(), i + 1, Place::default());
            }
        }
        self.lines.push(WrappedLine::plain(LineKind::Blank, ""));
    }
}

/// Who speaks, and at what length.
fn head(t: &Turn, width: usize, with_figures: bool) -> WrappedLine {
    let model = if t.model.is_empty() { String::new() } else { format!(" · {}", t.model) };
    let mut head = format!("{}{model}", t.role);
    if with_figures {
        if let Some(r) = t.round {
            head.push_str(&format!(" · round {r}"));
        }
        let about = if t.exact { "" } else { "~" };
        if t.tokens > 0 {
            head.push_str(&format!(" · {about}{} tok · {}", t.tokens, super::num::duration(t.seconds)));
        }
    }
    if t.interrupted {
        head.push_str(" · interrupted");
    }
    WrappedLine::plain(LineKind::Head, &crate::config::text::fit(&head, width))
}

/// What stands before an answer: who speaks, and what was sent, as it was.
fn opening(t: &Turn, width: usize, with_prompts: bool) -> Vec<WrappedLine> {
    let mut out = vec![head(t, width, with_prompts)];
    if with_prompts && !t.prompt.is_empty() {
        out.push(WrappedLine::plain(LineKind::Note, "sent:"));
        out.extend(wrap(&t.prompt, width - 2).iter().map(|text| WrappedLine::plain(LineKind::Prompt, text)));
        out.push(WrappedLine::plain(LineKind::Note, "answered:"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_follows_until_scrolled_and_keeps_its_place() {
        let mut turns = vec![Turn::begin("pruning", "m", 0)];
        let mut s = Scroll::new(false);
        for i in 0..30 {
            turns[0].push(Channel::Text, &format!("line {i}\n"), i * 10);
        }
        s.update(&turns, 40);
        let last = |s: &Scroll| s.window(5).iter().rev().find(|l| !l.text.is_empty()).unwrap().text.clone();
        assert_eq!(last(&s), "line 29");
        s.up(10, 5);
        let seen = last(&s);
        turns[0].push(Channel::Text, "line 30\nline 31\n", 400);
        s.update(&turns, 40);
        assert_eq!(last(&s), seen, "new text must not move what is read");
        s.down(100);
        assert!(s.follow);
        s.update(&turns, 40);
        assert_eq!(last(&s), "line 31");
        s.up(1000, 5);
        assert_eq!(s.window(5)[0].kind, LineKind::Head);
    }

    #[test]
    fn the_durable_record_fills_what_the_stream_lost_and_is_neutralised() {
        let u = Utterance {
            round: 1,
            role: "pruning".into(),
            model: "m\x1b[31m".into(),
            reasoning: "because\x07".into(),
            text: "I propose".into(),
            tokens: 12,
            seconds: 2.0,
            ..Utterance::default()
        };
        let mut t = Turn::begin("pruning", "m", 0);
        t.push(Channel::Text, "I pro", 100);
        t.keep(&u);
        assert_eq!(t.pieces, [(true, "because\u{FFFD}".to_owned()), (false, "I propose".to_owned())]);
        assert_eq!((t.tokens, t.exact, t.live), (12, true, false));
        assert!(!t.model.contains('\x1b'));
    }
}
