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
}
