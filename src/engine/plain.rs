//! Text from outside made plain: the one judgement of which characters may reach a terminal, a log or another reader,
//! and the few shapes in which everything that prints uses it.
//!
//! Names in model files, class names, settings files, paths, agents' words and servers' messages are all foreign. What
//! prints goes through [`Plain`] (standard output, standard error, the log) or through the screen's last check, so a
//! caller that forgets loses nothing but a nicer substitute.
//!
//! Invariant: nothing that these functions return holds a character for which [`hostile`] holds, but for the line breaks
//! that [`lines`] and [`Plain`] keep. No second such table belongs anywhere in this crate.

use std::borrow::Cow;
use std::io;

/// Stands for a character that was neutralised, one column wide.
const SUBSTITUTE: char = '\u{FFFD}';

/// Characters of [`name`] at most: an error's line stays a line.
const NAME: usize = 160;

/// Whether `c` could steer a terminal, reorder what is read, or hide: controls (C0, DEL, C1), line and paragraph
/// separators, and whatever Unicode calls Default_Ignorable_Code_Point (UAX #44: marks, embeddings, overrides and
/// isolates of direction, zero-width characters, fillers, tags), with the interlinear annotations. Only the variation
/// selectors U+FE00 to U+FE0F are left alone: they choose an emoji's or a CJK glyph's look and carry one bit.
pub fn hostile(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    c.is_control()
        || matches!(c,
            '\u{AD}' | '\u{34F}' | '\u{61C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}' | '\u{180B}'..='\u{180F}'
            | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{3164}' | '\u{FEFF}'
            | '\u{FFA0}' | '\u{FFF0}'..='\u{FFFB}' | '\u{1BCA0}'..='\u{1BCA3}' | '\u{1D173}'..='\u{1D17A}'
            | '\u{E0000}'..='\u{E0FFF}')
}

/// One line: a line break or tab becomes a space, every other hostile character a substitute.
pub fn line(s: &str) -> Cow<'_, str> {
    if !s.chars().any(hostile) {
        return Cow::Borrowed(s);
    }
    Cow::Owned(
        s.chars()
            .map(|c| match c {
                '\t' | '\n' => ' ',
                c if hostile(c) => SUBSTITUTE,
                c => c,
            })
            .collect(),
    )
}

/// Several lines: `\n` stays, `\r\n` becomes `\n`, a tab becomes four spaces, the rest as in [`line`].
pub fn lines(s: &str) -> String {
    // Most of what streams has nothing to be replaced.
    if s.bytes().all(|b| matches!(b, b' '..=b'~' | b'\n')) {
        return s.to_owned();
    }
    let mut out = String::with_capacity(s.len());
    let mut chars = s.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\n' => out.push('\n'),
            '\r' if chars.peek() == Some(&'\n') => {}
            '\t' => out.push_str("    "),
            c if hostile(c) => out.push(SUBSTITUTE),
            c => out.push(c),
        }
    }
    out
}

/// Without hostile characters: for names that are kept and compared, where a substitute would be part of the name.
pub fn stripped(s: &str) -> String {
    s.chars().filter(|c| !hostile(*c)).collect()
}

/// A foreign name in an error: hostile characters are written as `\u{..}`, so that two names that differ look
/// different; cut to 160 characters.
pub fn name(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(NAME));
    for (i, c) in text.chars().enumerate() {
        if i == NAME {
            out.push('…');
            break;
        }
        if hostile(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// JSON text that says the same in plain characters: what is hostile can only stand inside a string there (line breaks
/// of pretty printing apart), where `\uXXXX` means the same.
pub fn json(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| c != '\n' && hostile(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        if c == '\n' || !hostile(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            out.push_str(&format!("\\u{unit:04x}"));
        }
    }
    Cow::Owned(out)
}

/// A stream that only plain text reaches: line breaks and tabs pass, other hostile characters become substitutes.
///
/// Bytes are judged write by write, which is right for text: formatted output arrives as whole `str`s.
#[derive(Debug)]
pub struct Plain<W>(pub W);

impl<W: io::Write> io::Write for Plain<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let steers = |c: char| !matches!(c, '\n' | '\t') && hostile(c);
        match text.chars().any(steers) {
            // As it came, so that a short write says the truth.
            false if matches!(text, Cow::Borrowed(_)) => self.0.write(bytes),
            _ => {
                let text: String = text.chars().map(|c| if steers(c) { SUBSTITUTE } else { c }).collect();
                self.0.write_all(text.as_bytes()).map(|()| bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn neutralises_what_could_steer_a_terminal() {
        assert_eq!(line("layer1.0\x1b[2J"), "layer1.0\u{FFFD}[2J");
        assert_eq!(line("a\u{202E}b\u{9b}c\x07"), "a\u{FFFD}b\u{FFFD}c\u{FFFD}");
        assert_eq!(line("ok — 模型"), "ok — 模型");
        assert_eq!(line("two\nlines\there"), "two lines here");
        assert_eq!(lines("a\r\nb\tc\x1b]52;c;x\x07"), "a\nb    c\u{FFFD}]52;c;x\u{FFFD}");
        assert_eq!(stripped(" n\x1b[1m \u{61c}x"), " n[1m x");
    }

    #[test]
    fn names_in_errors_stay_apart() {
        assert_eq!(name("a\x1b[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(name("x\u{202e}y\u{9b}"), "x\\u{202e}y\\u{9b}");
        assert_eq!(name("layer1.0.conv1.weight é 层"), "layer1.0.conv1.weight é 层");
        assert_eq!(name(&"a".repeat(500)).chars().count(), 161);
    }

    #[test]
    fn every_way_to_reorder_or_hide_is_hostile() {
        let ranges =
            ['\u{202A}'..='\u{202E}', '\u{2066}'..='\u{2069}', '\u{200B}'..='\u{200F}', '\u{E0001}'..='\u{E007F}'];
        for c in ranges.into_iter().flatten().chain(['\u{61C}', '\u{AD}', '\u{2060}', '\u{FEFF}', '\u{180E}', '\x7f']) {
            assert!(hostile(c), "{c:?}");
        }
        for c in ['a', ' ', 'é', '模', '\u{FE0F}', '…', '🔬', '\u{301}', SUBSTITUTE] {
            assert!(!hostile(c), "{c:?}");
        }
    }

    #[test]
    fn json_says_the_same_plainly() {
        let value = serde_json::json!({"a\u{202e}\x7f": ["\x1b[2J", "\u{e0041}", "模"]});
        for text in [value.to_string(), format!("{value:#}")] {
            let plain = json(&text);
            assert!(!plain.chars().any(|c| c != '\n' && hostile(c)), "{plain}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&plain).unwrap(), value);
        }
    }

    #[test]
    fn streams_pass_lines_and_nothing_that_steers() {
        let mut out = Plain(Vec::new());
        let (a, b) = ("a\x1b[2J", "b\u{202e}\r");
        writeln!(out, "{a}\t{b}").unwrap();
        out.write_all(&[b'c', 0xff, b'\n']).unwrap();
        assert_eq!(String::from_utf8(out.0).unwrap(), "a\u{FFFD}[2J\tb\u{FFFD}\u{FFFD}\nc\u{FFFD}\n");
    }
}
