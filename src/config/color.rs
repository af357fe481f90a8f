//! Colours as numbers, and the ladder truecolor → 256 → 16 → none that a terminal may force on us.
//!
//! Not for deciding what a colour means; that is [`super::Theme`].

use std::sync::LazyLock;

/// An sRGB colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rgb(pub u8, pub u8, pub u8);

/// How many colours the terminal shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ColorLevel {
    /// `NO_COLOR`, or a dumb terminal: bold, dim and reverse only.
    None,
    Ansi16,
    Ansi256,
    #[default]
    True,
}

impl ColorLevel {
    /// As settings and the command line say them.
    pub const WORDS: [(&str, ColorLevel); 4] = [
        ("truecolor", ColorLevel::True),
        ("256", ColorLevel::Ansi256),
        ("16", ColorLevel::Ansi16),
        ("none", ColorLevel::None),
    ];

    pub fn parse(word: &str) -> Option<ColorLevel> {
        ColorLevel::WORDS.iter().find(|(w, _)| *w == word).map(|(_, level)| *level)
    }

    /// Which level the environment announces.
    pub fn detect(env: &dyn Fn(&str) -> Option<String>) -> ColorLevel {
        if env("NO_COLOR").is_some_and(|v| !v.is_empty()) {
            return ColorLevel::None;
        }
        let term = env("TERM").unwrap_or_default();
        if term == "dumb" || term.ends_with("-mono") || term == "vt100" {
            return ColorLevel::None;
        }
        let colorterm = env("COLORTERM").unwrap_or_default();
        if colorterm == "truecolor" || colorterm == "24bit" || term.ends_with("-direct") {
            return ColorLevel::True;
        }
        if term.contains("256") { ColorLevel::Ansi256 } else { ColorLevel::Ansi16 }
    }
}

/// The xterm levels of the 6x6x6 cube.
const CUBE: [u8; 6] = [0, 95, 135, 175, 215, 255];

/// The sixteen colours by name, as xterm shows them; terminals differ, so roles name theirs (see [`super::Theme`]).
const ANSI: [(&str, Rgb); 16] = [
    ("black", Rgb(0, 0, 0)),
    ("red", Rgb(205, 0, 0)),
    ("green", Rgb(0, 205, 0)),
    ("yellow", Rgb(205, 205, 0)),
    ("blue", Rgb(0, 0, 238)),
    ("magenta", Rgb(205, 0, 205)),
    ("cyan", Rgb(0, 205, 205)),
    ("white", Rgb(229, 229, 229)),
    ("bright-black", Rgb(127, 127, 127)),
    ("bright-red", Rgb(255, 0, 0)),
    ("bright-green", Rgb(0, 255, 0)),
    ("bright-yellow", Rgb(255, 255, 0)),
    ("bright-blue", Rgb(92, 92, 255)),
    ("bright-magenta", Rgb(255, 0, 255)),
    ("bright-cyan", Rgb(0, 255, 255)),
    ("bright-white", Rgb(255, 255, 255)),
];

/// Names of the sixteen colours, in the terminal's order.
pub fn ansi_names() -> [&'static str; 16] {
    ANSI.map(|(name, _)| name)
}

impl Rgb {
    /// Parses `#rrggbb`.
    pub fn parse(s: &str) -> Option<Rgb> {
        let hex = s.strip_prefix('#')?;
        if hex.len() != 6 || !hex.is_ascii() {
            return None;
        }
        let n = u32::from_str_radix(hex, 16).ok()?;
        Some(Rgb((n >> 16) as u8, (n >> 8) as u8, n as u8))
    }

    /// The nearest of the 240 fixed colours of a 256-colour terminal (16 to 255).
    pub fn to_256(self) -> u8 {
        let near = |v: u8| (0..6).min_by_key(|&i| (CUBE[i] as i32 - v as i32).abs()).unwrap_or(0);
        let (r, g, b) = (near(self.0), near(self.1), near(self.2));
        let cube = Rgb(CUBE[r], CUBE[g], CUBE[b]);
        let mean = (self.0 as u32 + self.1 as u32 + self.2 as u32) / 3;
        let step = ((mean.saturating_sub(3)) / 10).min(23) as u8;
        let level = 8 + 10 * step;
        let grey = Rgb(level, level, level);
        if grey.distance(self) < cube.distance(self) { 232 + step } else { (16 + 36 * r + 6 * g + b) as u8 }
    }

    fn distance(self, o: Rgb) -> u32 {
        let d = |a: u8, b: u8| (a as i32 - b as i32).pow(2) as u32;
        2 * d(self.0, o.0) + 4 * d(self.1, o.1) + 3 * d(self.2, o.2)
    }

    /// Relative luminance, 0 to 1 (WCAG 2).
    pub fn luminance(self) -> f64 {
        // Every cell with heat asks, and its power costs more than the rest of the cell.
        static LINEAR: LazyLock<[f64; 256]> = LazyLock::new(|| {
            std::array::from_fn(|v| {
                let v = v as f64 / 255.0;
                if v <= 0.03928 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) }
            })
        });
        let c = |v: u8| LINEAR[usize::from(v)];
        0.2126 * c(self.0) + 0.7152 * c(self.1) + 0.0722 * c(self.2)
    }

    /// Contrast ratio with another colour, 1 to 21 (WCAG 2).
    pub fn contrast(self, o: Rgb) -> f64 {
        let (a, b) = (self.luminance(), o.luminance());
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// Between `self` (0) and `o` (1).
    pub fn mix(self, o: Rgb, t: f64) -> Rgb {
        let t = t.clamp(0.0, 1.0);
        let m = |a: u8, b: u8| (a as f64 + (b as f64 - a as f64) * t).round() as u8;
        Rgb(m(self.0, o.0), m(self.1, o.1), m(self.2, o.2))
    }

    pub fn hex(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}

/// The colour a 256-colour terminal shows for `index`.
pub fn from_256(index: u8) -> Rgb {
    match index {
        0..=15 => ANSI[index as usize].1,
        16..=231 => {
            let i = index as usize - 16;
            Rgb(CUBE[i / 36], CUBE[i / 6 % 6], CUBE[i % 6])
        }
        232..=255 => {
            let v = 8 + 10 * (index - 232);
            Rgb(v, v, v)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_rounds_to_the_palette() {
        assert_eq!(Rgb::parse("#0080ff"), Some(Rgb(0, 128, 255)));
        assert_eq!(Rgb::parse("0080ff"), None);
        assert_eq!(Rgb::parse("#08f"), None);
        for i in 16..=255u8 {
            assert_eq!(from_256(from_256(i).to_256()), from_256(i), "index {i}");
        }
    }

    #[test]
    fn contrast_is_the_known_extremes() {
        assert!((Rgb(0, 0, 0).contrast(Rgb(255, 255, 255)) - 21.0).abs() < 1e-9);
        assert!((Rgb(9, 9, 9).contrast(Rgb(9, 9, 9)) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn environment_decides_the_level() {
        let level = |pairs: &'static [(&str, &str)]| {
            ColorLevel::detect(&move |k| pairs.iter().find(|(n, _)| *n == k).map(|(_, v)| (*v).to_owned()))
        };
        assert_eq!(level(&[("TERM", "xterm-256color"), ("COLORTERM", "truecolor")]), ColorLevel::True);
        assert_eq!(level(&[("TERM", "xterm-256color")]), ColorLevel::Ansi256);
        assert_eq!(level(&[("TERM", "xterm")]), ColorLevel::Ansi16);
        assert_eq!(level(&[("TERM", "xterm-256color"), ("NO_COLOR", "1")]), ColorLevel::None);
        assert_eq!(level(&[("TERM", "xterm-256color"), ("NO_COLOR", "")]), ColorLevel::Ansi256);
        assert_eq!(level(&[("TERM", "dumb")]), ColorLevel::None);
    }
}
