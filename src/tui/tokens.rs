//! A text token by token: what is asked of the host, the token under the cursor, and how tokens lie in so many columns.
//!
//! Not here: drawing (`draw/tokens`). Invariants: what is shown is of the item that is looked at; every token has a place, also one that is no
//! character; no piece is wider than a line.

use super::app::{App, Effect};
use super::evaluate::Part;
use crate::config::text::{clean_lines, width};
use crate::session::{Command, Tokens, Way, WhatTokens};
use unicode_segmentation::UnicodeSegmentation;

/// Stands for a token that is no character yet, and for a line break.
pub const NOTHING: (&str, &str) = ("◦", "'");
pub const BREAK: (&str, &str) = ("↵", "\\");

/// See the file's head.
#[derive(Debug, Default)]
pub struct Reading {
    told: Option<Tokens>,
    /// What was asked of the host last, and not answered yet.
    asked: Option<WhatTokens>,
    /// The token under the cursor: 0 is the one that the text begins with, which nothing foretells.
    pub at: usize,
    /// Where steps from line to line go, since the first of them.
    column: Option<usize>,
}

/// A part of a token in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// As [`Reading::at`] counts.
    pub token: usize,
    pub column: usize,
    pub text: String,
}

/// Lines that are being filled.
struct Lines {
    all: Vec<Vec<Piece>>,
    /// Columns of the last one that are taken.
    used: usize,
    columns: usize,
}

impl Lines {
    fn end(&mut self) {
        self.all.push(Vec::new());
        self.used = 0;
    }

    /// Adds what one token says in one line, which is not empty.
    fn add(&mut self, token: usize, text: &str, nothing: &str) {
        if self.used > 0 && self.used + width(text) > self.columns {
            self.end();
        }
        for g in text.graphemes(true) {
            // A letter of two columns where there is one.
            let g = if width(g) > self.columns { nothing } else { g };
            if self.used + width(g) > self.columns {
                self.end();
            }
            let Some(line) = self.all.last_mut() else { return };
            match line.last_mut().filter(|piece| piece.token == token) {
                Some(piece) => piece.text.push_str(g),
                None => line.push(Piece { token, column: self.used, text: g.to_owned() }),
            }
            self.used += width(g);
        }
    }
}

/// The lines that a text's tokens take in so many columns. A token goes to the next line where it does not fit, and is cut where it is
/// longer than one.
pub fn lay<'a>(tokens: impl Iterator<Item = &'a str>, columns: usize, ascii: bool) -> Vec<Vec<Piece>> {
    let glyph = |of: (&'static str, &'static str)| if ascii { of.1 } else { of.0 };
    let mut lines = Lines { all: vec![Vec::new()], used: 0, columns: columns.max(1) };
    let mut ended = false;
    for (token, text) in tokens.enumerate() {
        let text = clean_lines(text);
        // Marks that stand on no letter of their own are seen too.
        let text = if width(&text) == 0 && !text.contains('\n') { glyph(NOTHING) } else { &text };
        for part in text.split_inclusive('\n') {
            if std::mem::take(&mut ended) {
                lines.end();
            }
            ended = part.ends_with('\n');
            match part.strip_suffix('\n') {
                Some(part) => lines.add(token, &format!("{part}{}", glyph(BREAK)), glyph(NOTHING)),
                None => lines.add(token, part, glyph(NOTHING)),
            }
        }
    }
    lines.all
}

impl Reading {
    /// What is shown, where it is of `what`.
    pub fn of(&self, what: WhatTokens) -> Option<&Tokens> {
        self.told.as_ref().filter(|t| t.asked == what)
    }

    /// Nothing is known any more.
    pub fn forget(&mut self) {
        *self = Reading::default();
    }

    /// What could not be told may be told by now; whether that is so of what is shown.
    pub fn again(&mut self) -> bool {
        let untold = self.told.as_ref().is_some_and(|t| t.why.is_some());
        if untold {
            self.forget();
        }
        untold
    }
}

impl App {
    /// The text that is read token by token, where one is.
    pub fn read_by_token(&self) -> Option<WhatTokens> {
        let (changed, page) = (self.what_changed()?, self.page()?);
        let item = changed.items.get(self.looking.item.checked_sub(changed.asked.from)?)?;
        let large = self.looking.part == Part::Changed && self.looking.large;
        (large && changed.by_token && changed.asked == page)
            .then_some(WhatTokens { round: page.round, item: item.index })
    }

    /// Asks for the tokens that are looked at, unless they are here or on their way.
    pub(super) fn read(&mut self) {
        let Some(what) = self.read_by_token().filter(|_| self.connected) else { return };
        if self.looking.reading.of(what).is_none() && self.looking.reading.asked != Some(what) {
            self.looking.reading.asked = Some(what);
            self.effects.push(Effect::Send(Command::Tokens { what }));
        }
    }

    /// The host told of tokens; another terminal may have asked.
    pub(super) fn heard_tokens(&mut self, told: Tokens) {
        if self.looking.reading.asked == Some(told.asked) {
            self.looking.reading.asked = None;
        }
        if self.read_by_token() == Some(told.asked) {
            // What one came to see.
            let way = if self.looking.way == Way::Lost { 1.0 } else { -1.0 };
            let by = |k: &usize| way * told.tokens[*k].change();
            let most = (0..told.tokens.len()).max_by(|a, b| by(a).total_cmp(&by(b)));
            (self.looking.reading.at, self.looking.reading.column) = (most.map_or(0, |k| k + 1), None);
            self.looking.reading.told = Some(told);
            self.outlook_stale = true;
        }
    }

    /// Columns that a text has.
    pub fn text_columns(&self) -> usize {
        (self.layout().body.width as usize).saturating_sub(4)
    }

    /// The lines of the text that is read.
    pub fn laid(&self, told: &Tokens) -> Vec<Vec<Piece>> {
        let all = std::iter::once(told.first.as_str()).chain(told.tokens.iter().map(|t| t.text.as_str()));
        lay(all, self.text_columns(), self.palette.ascii)
    }

    /// Moves the cursor by so many tokens of the text that is read; `false` where none is.
    pub(super) fn step_token(&mut self, by: isize) -> bool {
        let Some(told) = self.read_by_token().and_then(|what| self.looking.reading.of(what)) else { return false };
        let last = told.tokens.len();
        let reading = &mut self.looking.reading;
        (reading.at, reading.column) = (reading.at.saturating_add_signed(by).min(last), None);
        true
    }

    /// The same by lines: to the token that stands above or below.
    pub(super) fn step_token_line(&mut self, by: isize) -> bool {
        let Some(told) = self.read_by_token().and_then(|what| self.looking.reading.of(what)) else { return false };
        let (lines, at) = (self.laid(told), self.looking.reading.at);
        let holds = |line: &Vec<Piece>| line.iter().any(|p| p.token == at);
        let from = if by < 0 { lines.iter().position(holds) } else { lines.iter().rposition(holds) };
        let Some(from) = from else { return true };
        let to = from.saturating_add_signed(by).min(lines.len() - 1);
        let here = || lines[from].iter().find(|p| p.token == at).map_or(0, |p| p.column);
        let column = self.looking.reading.column.unwrap_or_else(here);
        let nearest = lines[to].iter().min_by_key(|p| p.column.abs_diff(column)).map_or(at, |p| p.token);
        (self.looking.reading.at, self.looking.reading.column) = (nearest, Some(column));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laid(tokens: &[&str], columns: usize) -> Vec<Vec<(usize, usize, String)>> {
        let lines = lay(tokens.iter().copied(), columns, false);
        lines.into_iter().map(|l| l.into_iter().map(|p| (p.token, p.column, p.text)).collect()).collect()
    }

    fn line(of: &[(usize, usize, &str)]) -> Vec<(usize, usize, String)> {
        of.iter().map(|(t, c, s)| (*t, *c, (*s).to_owned())).collect()
    }

    #[test]
    fn tokens_go_to_the_next_line_whole_and_breaks_are_seen() {
        let lines = laid(&["Once", " upon", "\n", "a\n\nb", "", "\u{1b}[31m"], 10);
        assert_eq!(lines[0], line(&[(0, 0, "Once"), (1, 4, " upon"), (2, 9, "↵")]));
        assert_eq!(lines[1..3], [line(&[(3, 0, "a↵")]), line(&[(3, 0, "↵")])]);
        assert_eq!(lines[3], line(&[(3, 0, "b"), (4, 1, "◦"), (5, 2, "\u{fffd}[31m")]));
        assert_eq!(laid(&["ab", "cdefgh"], 4), [line(&[(0, 0, "ab")]), line(&[(1, 0, "cdef")]), line(&[(1, 0, "gh")])]);
    }

    #[test]
    fn no_line_is_wider_than_there_are_columns_and_every_token_has_a_place() {
        let tokens = [
            "模型",
            "e\u{301}",
            "\u{301}",
            " 👩\u{200d}👩\u{200d}👧",
            "\r\n",
            "\t",
            "longer than a line is",
            "\u{202e}",
            "",
        ];
        for columns in 0..24 {
            for ascii in [false, true] {
                let lines = lay(tokens.iter().copied(), columns, ascii);
                for l in &lines {
                    let used: usize = l.iter().map(|p| width(&p.text)).sum();
                    assert!(used <= columns.max(1), "{l:?} in {columns}");
                    assert!(l.iter().all(|p| !p.text.chars().any(crate::plain::hostile)), "{l:?}");
                }
                let there = |k: usize| lines.iter().flatten().any(|p| p.token == k && width(&p.text) > 0);
                assert!((0..tokens.len()).all(there), "{lines:?} in {columns}");
            }
        }
    }
}
