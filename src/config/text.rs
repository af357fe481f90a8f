//! Text fitted to the columns of a terminal: width, cutting, padding, wrapping; and names matched by a pattern. What makes
//! foreign text safe to show is [`crate::plain`], under the names that the screen uses.

use std::borrow::Cow;
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

pub use crate::plain::{line as clean, lines as clean_lines};

/// Columns that `s` takes on a terminal.
pub fn width(s: &str) -> usize {
    if plain(s) { s.len() } else { UnicodeWidthStr::width(s) }
}

/// Whether every byte of `s` is a letter of one column, as most text's are.
pub fn plain(s: &str) -> bool {
    s.bytes().all(|b| matches!(b, b' '..=b'~'))
}

/// `s` where it needs no cut: in at most `columns`, or nothing at all.
fn uncut(s: &str, columns: usize) -> Option<Cow<'_, str>> {
    if width(s) <= columns { Some(Cow::Borrowed(s)) } else { (columns == 0).then_some(Cow::Borrowed("")) }
}

/// As many of `graphemes` as `columns` hold.
fn holding<'a>(graphemes: impl Iterator<Item = &'a str>, columns: usize) -> impl Iterator<Item = &'a str> {
    let mut used = 0;
    graphemes.take_while(move |g| {
        used += width(g);
        used <= columns
    })
}

/// The start of `s` in at most `columns`, with `…` where something was cut.
pub fn fit(s: &str, columns: usize) -> Cow<'_, str> {
    uncut(s, columns).unwrap_or_else(|| Cow::Owned(holding(s.graphemes(true), columns - 1).chain(["…"]).collect()))
}

/// The end of `s` in at most `columns`, with `…` in front where something was cut: layer names differ at their ends.
pub fn fit_end(s: &str, columns: usize) -> Cow<'_, str> {
    uncut(s, columns).unwrap_or_else(|| {
        let mut kept: Vec<&str> = holding(s.graphemes(true).rev(), columns - 1).chain(["…"]).collect();
        kept.reverse();
        Cow::Owned(kept.concat())
    })
}

/// `s` cut and padded on the right to exactly `columns`.
pub fn left(s: &str, columns: usize) -> String {
    let mut s = fit(s, columns).into_owned();
    s.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(&s))));
    s
}

/// `s` cut and padded on the left to exactly `columns`.
pub fn right(s: &str, columns: usize) -> String {
    let s = fit(s, columns);
    let mut out = " ".repeat(columns.saturating_sub(width(&s)));
    out.push_str(&s);
    out
}

/// Words and the blanks between them, in order.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        let blank = rest.chars().next()? == ' ';
        let end = rest.find(|c: char| (c == ' ') != blank).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    })
}

/// Greedy word wrap of safe text to `columns`; a word longer than a line is split. Keeps leading blanks of a line.
pub fn wrap(s: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut out = Vec::new();
    for line in s.split('\n') {
        let mut current = String::new();
        let mut used = 0;
        for word in words(line) {
            let w = width(word);
            if used + w <= columns {
                current.push_str(word);
                used += w;
                continue;
            }
            if word.trim().is_empty() {
                out.push(std::mem::take(&mut current));
                used = 0;
                continue;
            }
            if used > 0 && w <= columns {
                out.push(current.trim_end().to_owned());
                current = word.to_owned();
                used = w;
                continue;
            }
            for g in word.graphemes(true) {
                let gw = width(g);
                if used + gw > columns {
                    out.push(std::mem::take(&mut current));
                    used = 0;
                }
                current.push_str(g);
                used += gw;
            }
        }
        out.push(current.trim_end().to_owned());
    }
    out
}

/// Shell-like match of a whole name: `*` stands for any run, `one` for any one character, everything else for itself. Linear
/// in time for one `*` at a time.
pub fn glob(pattern: &str, name: &str, one: Option<char>) -> bool {
    let (p, n): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut i, mut j) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while j < n.len() {
        match p.get(i) {
            Some('*') => {
                star = Some((i, j));
                i += 1;
            }
            Some(&c) if Some(c) == one || c == n[j] => {
                i += 1;
                j += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    (i, j) = (at + 1, from + 1);
                    star = Some((at, from + 1));
                }
                None => return false,
            },
        }
    }
    p[i..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (p, n, want) in [
            ("layer1.*", "layer1.0.conv1", true),
            ("layer1.*", "layer10.0", false),
            ("*conv?", "layer1.0.conv2", true),
            ("*conv?", "layer1.0.conv", false),
            ("*", "", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("", "x", false),
        ] {
            assert_eq!(glob(p, n, Some('?')), want, "{p} {n}");
            assert_eq!(glob(p, n, None), want && !p.contains('?'), "{p} {n}");
        }
    }

    #[test]
    fn fits_by_columns_not_chars() {
        assert_eq!(fit("abcdef", 4), "abc…");
        assert_eq!(fit("模型模型", 5), "模型…");
        assert_eq!(fit("模型模型", 4), "模…");
        assert_eq!(fit("abc", 0), "");
        assert_eq!(fit_end("blocks.11.mlp.fc1", 8), "…mlp.fc1");
        assert_eq!(left("模", 4), "模  ");
        assert_eq!(right("12", 4), "  12");
    }

    #[test]
    fn wraps_words_and_splits_long_ones() {
        assert_eq!(wrap("the quick brown fox", 9), ["the quick", "brown fox"]);
        assert_eq!(wrap("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrap("a\n\nb", 4), ["a", "", "b"]);
        assert_eq!(wrap("in blocks (all of them)", 11), ["in blocks", "(all of", "them)"]);
        for w in 1..20 {
            for line in wrap("模型 some words, and_a_very_long_identifier_here", w) {
                assert!(width(&line) <= w.max(2), "{line:?} at {w}");
            }
        }
    }
}
