//! Text that came from outside (names in files, agents' words, paths), made safe and fitted for a terminal.
//!
//! Invariant: what [`clean`] returns holds no control character, no escape and no bidirectional override, so it cannot
//! move the cursor, recolour the screen or reorder what is read.

use std::borrow::Cow;
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Stands for a character that was neutralised.
const SUBSTITUTE: char = '\u{FFFD}';

fn unsafe_char(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}')
        || ('\u{E0000}'..='\u{E007F}').contains(&c)
}

/// One line of safe text: every control character, newline included, becomes a substitute; a tab becomes a space.
pub fn clean(s: &str) -> Cow<'_, str> {
    if !s.chars().any(unsafe_char) {
        return Cow::Borrowed(s);
    }
    Cow::Owned(
        s.chars()
            .map(|c| match c {
                '\t' | '\n' => ' ',
                c if unsafe_char(c) => SUBSTITUTE,
                c => c,
            })
            .collect(),
    )
}

/// Safe text of several lines: `\n` stays, `\r\n` becomes `\n`, a tab becomes four spaces.
pub fn clean_lines(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut chars = s.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\n' => out.push('\n'),
            '\r' if chars.peek() == Some(&'\n') => {}
            '\t' => out.push_str("    "),
            c if unsafe_char(c) => out.push(SUBSTITUTE),
            c => out.push(c),
        }
    }
    out
}

/// Columns that `s` takes on a terminal.
pub fn width(s: &str) -> usize {
    UnicodeWidthStr::width(s)
}

/// The start of `s` in at most `columns`, with `…` where something was cut.
pub fn fit(s: &str, columns: usize) -> Cow<'_, str> {
    if width(s) <= columns {
        return Cow::Borrowed(s);
    }
    if columns == 0 {
        return Cow::Borrowed("");
    }
    let mut out = String::new();
    let mut used = 0;
    for g in s.graphemes(true) {
        let w = width(g);
        if used + w > columns - 1 {
            break;
        }
        out.push_str(g);
        used += w;
    }
    out.push('…');
    Cow::Owned(out)
}

/// The end of `s` in at most `columns`, with `…` in front where something was cut: layer names differ at their ends.
pub fn fit_end(s: &str, columns: usize) -> Cow<'_, str> {
    if width(s) <= columns {
        return Cow::Borrowed(s);
    }
    if columns == 0 {
        return Cow::Borrowed("");
    }
    let mut kept: Vec<&str> = Vec::new();
    let mut used = 0;
    for g in s.graphemes(true).rev() {
        let w = width(g);
        if used + w > columns - 1 {
            break;
        }
        kept.push(g);
        used += w;
    }
    kept.push("…");
    Cow::Owned(kept.into_iter().rev().collect())
}

/// `s` cut and padded on the right to exactly `columns`.
pub fn left(s: &str, columns: usize) -> String {
    let s = fit(s, columns);
    let pad = columns.saturating_sub(width(&s));
    format!("{s}{}", " ".repeat(pad))
}

/// `s` cut and padded on the left to exactly `columns`.
pub fn right(s: &str, columns: usize) -> String {
    let s = fit(s, columns);
    let pad = columns.saturating_sub(width(&s));
    format!("{}{s}", " ".repeat(pad))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neutralises_what_could_steer_a_terminal() {
        assert_eq!(clean("layer1.0\x1b[2J"), "layer1.0\u{FFFD}[2J");
        assert_eq!(clean("a\u{202E}b\u{9b}c\x07"), "a\u{FFFD}b\u{FFFD}c\u{FFFD}");
        assert_eq!(clean("ok — 模型"), "ok — 模型");
        assert_eq!(clean("two\nlines\there"), "two lines here");
        assert_eq!(clean_lines("a\r\nb\tc\x1b]52;c;x\x07"), "a\nb    c\u{FFFD}]52;c;x\u{FFFD}");
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
