//! Making foreign text safe to print: names from files reach terminals only through here.

/// `text` with control, bidirectional-override and other invisible formatting characters written as `\u{..}`, cut to
/// 160 characters.
pub fn printable(text: &str) -> String {
    const LIMIT: usize = 160;
    let mut out = String::with_capacity(text.len().min(LIMIT));
    for (i, c) in text.chars().enumerate() {
        if i == LIMIT {
            out.push('…');
            break;
        }
        if hides(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// Characters that move the cursor, reorder or hide text.
pub(super) fn hides(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_cannot_reach_a_terminal() {
        assert_eq!(printable("a\x1b[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(printable("x\u{202e}y\u{9b}"), "x\\u{202e}y\\u{9b}");
        assert_eq!(printable("layer1.0.conv1.weight é 层"), "layer1.0.conv1.weight é 层");
        assert_eq!(printable(&"a".repeat(500)).chars().count(), 161);
    }
}
