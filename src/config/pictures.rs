//! How pictures are drawn in a terminal.

/// A protocol of terminals, or letters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum PictureKind {
    /// What the environment says of the terminal.
    #[default]
    Auto,
    /// Half blocks in two colours a cell: every terminal with colours.
    Blocks,
    Kitty,
    Iterm2,
    Sixel,
    /// Shades of letters.
    Off,
}

impl PictureKind {
    /// As settings say them.
    pub const WORDS: [(&str, PictureKind); 6] = [
        ("auto", PictureKind::Auto),
        ("blocks", PictureKind::Blocks),
        ("kitty", PictureKind::Kitty),
        ("iterm2", PictureKind::Iterm2),
        ("sixel", PictureKind::Sixel),
        ("off", PictureKind::Off),
    ];

    pub fn named(word: &str) -> Option<PictureKind> {
        Self::WORDS.iter().find(|(w, _)| *w == word).map(|(_, kind)| *kind)
    }

    /// As settings say it.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, kind)| *kind == self).map_or("auto", |(word, _)| word)
    }

    /// The protocol of terminals that say who they are. Multiplexers stand between and say nothing of the terminal behind them.
    pub fn of(env: impl Fn(&str) -> Option<String>) -> PictureKind {
        let is = |name: &str, what: &[&str]| env(name).is_some_and(|v| what.iter().any(|w| v.eq_ignore_ascii_case(w)));
        let has = |name: &str| env(name).is_some_and(|v| !v.is_empty());
        let term = env("TERM").unwrap_or_default();
        if has("TMUX") || has("STY") || has("ZELLIJ") || term.starts_with("screen") || term.starts_with("tmux") {
            return PictureKind::Blocks;
        }
        if term == "xterm-kitty" || term == "xterm-ghostty" || is("TERM_PROGRAM", &["ghostty", "kitty"]) {
            return PictureKind::Kitty;
        }
        let iterm = ["iTerm.app", "WezTerm", "mintty", "vscode", "rio"];
        if is("TERM_PROGRAM", &iterm) || is("LC_TERMINAL", &["iTerm2"]) {
            return PictureKind::Iterm2;
        }
        match term.as_str() {
            "foot" | "foot-extra" | "mlterm" | "mlterm-256color" | "contour" => PictureKind::Sixel,
            _ => PictureKind::Blocks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_that_say_who_they_are_are_believed_and_multiplexers_are_not_seen_through() {
        let of = |pairs: &[(&str, &str)]| {
            PictureKind::of(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
        };
        assert_eq!(of(&[("TERM", "xterm-kitty")]), PictureKind::Kitty);
        assert_eq!(of(&[("TERM", "xterm-256color"), ("TERM_PROGRAM", "WezTerm")]), PictureKind::Iterm2);
        assert_eq!(of(&[("TERM", "xterm-256color"), ("LC_TERMINAL", "iTerm2")]), PictureKind::Iterm2);
        assert_eq!(of(&[("TERM", "foot")]), PictureKind::Sixel);
        assert_eq!(of(&[("TERM", "xterm-256color")]), PictureKind::Blocks);
        assert_eq!(of(&[]), PictureKind::Blocks);
        assert_eq!(
            of(&[("TERM", "tmux-256color"), ("TMUX", "/tmp/x"), ("LC_TERMINAL", "iTerm2")]),
            PictureKind::Blocks
        );
        assert!(
            PictureKind::WORDS
                .iter()
                .all(|(word, kind)| kind.word() == *word && PictureKind::named(word) == Some(*kind))
        );
    }
}
