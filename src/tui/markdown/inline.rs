//! Words with their looks, wrapped to columns; and which marks of emphasis are not part of a name.

use crate::config::text::wrap;
use std::ops::Range;

/// How words look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Look {
    pub strong: bool,
    pub emphasis: bool,
    pub code: bool,
    pub heading: bool,
    pub link: bool,
    /// Drawn for what is a mark in the source: a list's, a quote's, a rule.
    pub mark: bool,
}

/// Words with the looks of their bytes, in order, where they are not plain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    pub text: String,
    pub looks: Vec<(Range<usize>, Look)>,
}

impl Rendered {
    /// A line of marks.
    pub fn marked(text: String) -> Rendered {
        let look = Look { mark: true, ..Look::default() };
        let looks = if text.is_empty() { Vec::new() } else { vec![(0..text.len(), look)] };
        Rendered { text, looks }
    }

    /// The line behind `before`, which is a mark.
    pub fn behind(self, before: &str) -> Rendered {
        if before.is_empty() {
            return self;
        }
        let mut out = Rendered::marked(before.to_owned());
        out.append(&self);
        out
    }

    pub fn append(&mut self, other: &Rendered) {
        let at = self.text.len();
        self.text.push_str(&other.text);
        self.looks.extend(other.looks.iter().map(|(r, look)| (r.start + at..r.end + at, *look)));
    }

    pub fn push(&mut self, text: &str, look: Look) {
        let from = self.text.len();
        self.text.push_str(text);
        if look == Look::default() || text.is_empty() {
            return;
        }
        match self.looks.last_mut().filter(|(r, l)| r.end == from && *l == look) {
            Some((r, _)) => r.end = self.text.len(),
            None => self.looks.push((from..self.text.len(), look)),
        }
    }

    /// Without blanks and line breaks at its end.
    pub fn trim_end(&mut self) {
        let kept = self.text.trim_end().len();
        self.text.truncate(kept);
        self.looks.retain(|(r, _)| r.start < kept);
        self.looks.iter_mut().for_each(|(r, _)| r.end = r.end.min(kept));
    }

    /// Lines of at most `columns`.
    pub fn wrapped(&self, columns: usize) -> Vec<Rendered> {
        let mut out = Vec::new();
        let (mut from, mut first) = (0, 0);
        for line in self.text.split('\n') {
            let mut at = from;
            for part in wrap(line, columns) {
                // Blanks that a break stands for are skipped.
                while !self.text[at..].starts_with(&part) && at < from + line.len() {
                    at += self.text[at..].chars().next().map_or(1, char::len_utf8);
                }
                let end = (at + part.len()).min(self.text.len());
                while self.looks.get(first).is_some_and(|(r, _)| r.end <= at) {
                    first += 1;
                }
                let within = self.looks[first..].iter().take_while(|(r, _)| r.start < end);
                let looks = within.map(|(r, look)| (r.start.max(at) - at..r.end.min(end) - at, *look));
                out.push(Rendered { looks: looks.filter(|(r, _)| r.start < r.end).collect(), text: part });
                at = end;
            }
            from += line.len() + 1;
        }
        out
    }
}

/// Letters that names of layers and patterns of them are made of.
pub(super) fn in_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '_' | '/' | '*' | '?')
}

/// Whether the `marks` at both ends of `range` are emphasis, and not of a name: `*such words*` and `**word**` are, `blocks.*.mlp`, `*conv*`,
/// `_x_` and `__init__` are not.
pub(super) fn hides(source: &str, range: &Range<usize>, marks: usize) -> bool {
    let inner = &source[range.start + marks..range.end - marks];
    let before = source[..range.start].chars().next_back().unwrap_or(' ');
    let mut after = source[range.end..].chars();
    let next = after.next().unwrap_or(' ');
    // A full stop ends a sentence, or goes on with a name; of strong words one may stand after the other.
    let joins = |c: char| in_name(c) && c != '?' && c != '*' && (c != '/' || marks == 1);
    let goes_on = if next == '.' { after.next().is_some_and(in_name) } else { joins(next) };
    let apart = !joins(before) && !goes_on;
    let single = !inner.contains(char::is_whitespace);
    let pattern = |c: char| matches!(c, '.' | '/' | '?');
    let named = match (marks, source[range.start..].starts_with('_')) {
        (_, true) => single,
        (1, false) => single || inner.ends_with(pattern) || inner.starts_with(pattern),
        _ => inner.starts_with(pattern),
    };
    // Of three marks together the inner ones are the outer ones' business.
    let nested = inner.starts_with('*') && inner.ends_with('*');
    apart && (!named || (nested && marks == 1))
}
