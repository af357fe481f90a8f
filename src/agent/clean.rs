//! Bounds what servers and agents say before it reaches a prompt or the journal, without its hostile characters (what
//! those are, [`crate::plain`] says): removed, not replaced, so that JSON among the text stays JSON.

use crate::plain::hostile;

/// Text with newlines kept, tabs as spaces, everything hostile removed. Works on any split of a stream: a character is
/// judged alone, and without its introducer an escape sequence is harmless text.
pub fn text(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '\t' => out.push_str("  "),
            '\n' | '\u{2028}' | '\u{2029}' => out.push('\n'),
            c if hostile(c) => {}
            c => out.push(c),
        }
    }
    out
}

/// One line of at most `max` characters: white space collapsed, hostile characters removed, `…` where it was cut.
pub fn line(s: &str, max: usize) -> String {
    let clean = text(s);
    let joined = clean.split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&joined, max)
}

/// At most `max` characters, with `…` where it was cut.
pub fn cut(s: &str, max: usize) -> String {
    match s.char_indices().nth(max) {
        None => s.to_owned(),
        Some(_) => {
            let mut out: String = s.chars().take(max.saturating_sub(1)).collect();
            out.push('…');
            out
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_lose_their_introducers() {
        assert_eq!(text("a\u{1b}[31mred\u{1b}]0;title\u{7}\nb\tc\r"), "a[31mred]0;title\nb  c");
        assert_eq!(text("\u{9b}2J\u{202e}evil\u{2066}"), "2Jevil");
        assert_eq!(text("naïve 模型 ❤️"), "naïve 模型 ❤️");
        assert_eq!(text("\u{feff}{\u{61c}}\u{e0041}"), "{}");
    }

    #[test]
    fn lines_are_bounded_in_characters() {
        assert_eq!(line("  a \n b\u{1b}\tc ", 10), "a b c");
        assert_eq!(line("äöüäöü", 4), "äöü…");
        assert_eq!(cut("abc", 3), "abc");
    }
}
