//! From roles to terminal styles at the colours the terminal has, and the glyphs with their ASCII twins.
//!
//! Invariant: every meaning that a colour carries is also carried by a glyph, a word or a number.

use crate::config::{ColorLevel, Rgb, Role, Theme};
use crate::plan::Outcome;
use crate::session::Standing;
use ratatui::style::{Color, Modifier, Style};

/// A theme at a colour level.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Palette {
    pub theme: Theme,
    pub level: ColorLevel,
    pub ascii: bool,
}

/// The sixteen colours in the terminal's order.
pub(super) const ANSI: [Color; 16] = [
    Color::Black,
    Color::Red,
    Color::Green,
    Color::Yellow,
    Color::Blue,
    Color::Magenta,
    Color::Cyan,
    Color::Gray,
    Color::DarkGray,
    Color::LightRed,
    Color::LightGreen,
    Color::LightYellow,
    Color::LightBlue,
    Color::LightMagenta,
    Color::LightCyan,
    Color::White,
];

/// Text on a dark and on a light heat cell.
const ON_DARK: Rgb = Rgb(238, 240, 244);
const ON_LIGHT: Rgb = Rgb(16, 18, 24);

impl Palette {
    pub fn color(&self, role: Role) -> Color {
        match self.level {
            ColorLevel::True => rgb(self.theme.color(role)),
            ColorLevel::Ansi256 => Color::Indexed(self.theme.color(role).to_256()),
            ColorLevel::Ansi16 => {
                self.theme.ansi(role).and_then(|i| ANSI.get(i as usize)).copied().unwrap_or(Color::Reset)
            }
            ColorLevel::None => Color::Reset,
        }
    }

    /// Foreground style of a role.
    pub fn fg(&self, role: Role) -> Style {
        use Role::*;
        let s = Style::new().fg(self.color(role));
        match (self.level, role) {
            (ColorLevel::None, Title | Focus | Accent | Bad | Warn | Key) => Style::new().add_modifier(Modifier::BOLD),
            (ColorLevel::None, Dim | Faint | Border | Forecast | Reasoning | Open) => {
                Style::new().add_modifier(Modifier::DIM)
            }
            (ColorLevel::None, _) => Style::new(),
            (ColorLevel::Ansi16, Forecast) => s.add_modifier(Modifier::DIM),
            (_, Reasoning) => s.add_modifier(Modifier::ITALIC),
            _ => s,
        }
    }

    pub fn bold(&self, role: Role) -> Style {
        self.fg(role).add_modifier(Modifier::BOLD)
    }

    /// The screen's ground.
    pub fn base(&self) -> Style {
        match self.level {
            ColorLevel::None => Style::new(),
            _ => Style::new().fg(self.color(Role::Fg)).bg(self.color(Role::Bg)),
        }
    }

    /// Added to the cells of the cursor row that carry no heat.
    pub fn cursor(&self) -> Style {
        match self.level {
            ColorLevel::None => Style::new().add_modifier(Modifier::REVERSED),
            _ => Style::new().bg(self.color(Role::Cursor)),
        }
    }

    /// A heat cell, `t` from 0 to 1. Below 256 colours there is no ground colour: the density glyph says it.
    pub fn heat(&self, t: f64) -> Style {
        match self.ground(self.theme.heat_at(t)) {
            Some(style) => style,
            None if t > 0.66 => self.bold(Role::Fg),
            None => self.fg(Role::Fg),
        }
    }

    /// A cell of a ramp with two ends, `t` from −1 (better) over 0 (the screen's ground) to 1 (worse). What is better is underlined besides;
    /// below 256 colours there is no ground colour: [`Palette::leaning`] says it.
    pub fn diverging(&self, t: f64) -> Style {
        let t = if t.is_finite() { t.clamp(-1.0, 1.0) } else { 0.0 };
        let end = if t > 0.0 { Role::Bad } else { Role::Good };
        let style = self.ground(self.theme.color(Role::Bg).mix(self.theme.color(end), t.abs()));
        let style = style.unwrap_or_else(|| if quarters(t) == 0 { self.fg(Role::Fg) } else { self.fg(end) });
        if t < 0.0 && quarters(t) > 0 && !self.wants_density() {
            style.add_modifier(Modifier::UNDERLINED)
        } else {
            style
        }
    }

    /// The glyph of that ramp: densities for worse, lines for better, nothing within an eighth of the middle.
    pub fn leaning(&self, t: f64) -> char {
        let better: [char; 5] = if self.ascii { [' ', '-', '~', '=', '%'] } else { [' ', '╴', '─', '═', '≡'] };
        if t < 0.0 { better[quarters(t)] } else { self.density(quarters(t) as f64 / 4.0) }
    }

    /// Readable text on a ground of this colour; `None` below 256 colours.
    fn ground(&self, c: Rgb) -> Option<Style> {
        let on = |c: Rgb| if c.contrast(ON_DARK) >= c.contrast(ON_LIGHT) { ON_DARK } else { ON_LIGHT };
        match self.level {
            ColorLevel::True => Some(Style::new().bg(rgb(c)).fg(rgb(on(c)))),
            ColorLevel::Ansi256 => {
                let shown = crate::config::from_256(c.to_256());
                Some(Style::new().bg(Color::Indexed(c.to_256())).fg(Color::Indexed(on(shown).to_256())))
            }
            ColorLevel::Ansi16 | ColorLevel::None => None,
        }
    }

    /// Whether heat needs its density glyph.
    pub fn wants_density(&self) -> bool {
        self.level < ColorLevel::Ansi256
    }

    /// The density glyph for `t`, 0 to 1.
    pub fn density(&self, t: f64) -> char {
        let ramp: [char; 5] = if self.ascii { [' ', '.', ':', '*', '#'] } else { [' ', '░', '▒', '▓', '█'] };
        let t = if t.is_finite() { t.clamp(0.0, 1.0) } else { 0.0 };
        ramp[((t * 4.0).ceil() as usize).min(4)]
    }

    /// One of eight heights, for sparklines.
    pub fn spark(&self, t: f64) -> char {
        let ramp: [char; 8] = if self.ascii {
            ['_', '.', ',', '-', '=', '+', '*', '#']
        } else {
            ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
        };
        let t = if t.is_finite() { t.clamp(0.0, 1.0) } else { 1.0 };
        ramp[((t * 7.0).round() as usize).min(7)]
    }

    /// A horizontal bar of `columns` cells filled to `t`, with eighths where glyphs allow.
    pub fn bar(&self, t: f64, columns: usize) -> String {
        let t = if t.is_finite() { t.clamp(0.0, 1.0) } else { 0.0 };
        if self.ascii {
            let n = (t * columns as f64).round() as usize;
            return "=".repeat(n) + &" ".repeat(columns - n);
        }
        let eighths = (t * columns as f64 * 8.0).round() as usize;
        let (full, rest) = (eighths / 8, eighths % 8);
        let mut s = "█".repeat(full);
        if rest > 0 && full < columns {
            s.push(['▏', '▏', '▎', '▍', '▌', '▋', '▊', '▉'][rest]);
        }
        let used = full + usize::from(rest > 0 && full < columns);
        s + &" ".repeat(columns - used)
    }

    /// Picks the glyph or its ASCII twin.
    pub fn glyph<'a>(&self, unicode: &'a str, ascii: &'a str) -> &'a str {
        if self.ascii { ascii } else { unicode }
    }

    /// The tick of an outcome, and its role.
    pub fn outcome(&self, outcome: Outcome) -> (&'static str, Role) {
        match outcome {
            Outcome::Accept => (self.glyph("✓", "ok"), Role::Good),
            Outcome::Reject => (self.glyph("✗", "no"), Role::Bad),
            Outcome::Undecided => ("?", Role::Warn),
        }
    }

    /// Between words.
    pub fn dot(&self) -> &'static str {
        self.glyph(" · ", " | ")
    }

    /// Where a figure is not known.
    pub fn none(&self) -> &'static str {
        self.glyph("—", "-")
    }

    pub fn standing_glyph(&self, standing: Standing) -> &'static str {
        let (u, a) = match standing {
            Standing::Free => ("○", "."),
            Standing::Proposed => ("●", "o"),
            Standing::Edited => ("✎", "e"),
            Standing::Approved => ("✔", "+"),
            Standing::Vetoed => ("✘", "x"),
            Standing::InForce { .. } => ("◆", "*"),
            Standing::Leaving { .. } => ("◇", "-"),
            Standing::RolledBack => ("↺", "<"),
        };
        if self.ascii { a } else { u }
    }

    pub fn standing_role(&self, standing: Standing) -> Role {
        match standing {
            Standing::Free => Role::Open,
            Standing::Proposed => Role::Proposed,
            Standing::Edited => Role::Edited,
            Standing::Approved => Role::Approved,
            Standing::Vetoed | Standing::Leaving { .. } => Role::Vetoed,
            Standing::InForce { .. } => Role::Applied,
            Standing::RolledBack => Role::RolledBack,
        }
    }

    pub fn border(&self) -> ratatui::symbols::border::Set<'static> {
        use ratatui::symbols::border;
        if self.ascii {
            border::Set {
                top_left: "+",
                top_right: "+",
                bottom_left: "+",
                bottom_right: "+",
                vertical_left: "|",
                vertical_right: "|",
                horizontal_top: "-",
                horizontal_bottom: "-",
            }
        } else {
            border::ROUNDED
        }
    }
}

/// The nearest quarter to `t`, −1 to 1, whichever its sign.
fn quarters(t: f64) -> usize {
    if t.is_finite() { (t.abs().min(1.0) * 4.0).round() as usize } else { 0 }
}

fn rgb(c: Rgb) -> Color {
    Color::Rgb(c.0, c.1, c.2)
}

/// Every standing once, for legends.
pub const STANDINGS: [Standing; 8] = [
    Standing::Free,
    Standing::Proposed,
    Standing::Edited,
    Standing::Approved,
    Standing::Vetoed,
    Standing::InForce { since: 1 },
    Standing::Leaving { since: 1 },
    Standing::RolledBack,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn palette(level: ColorLevel, ascii: bool) -> Palette {
        Palette { theme: Theme::dark(), level, ascii }
    }

    #[test]
    fn every_glyph_has_an_ascii_twin() {
        let p = palette(ColorLevel::None, true);
        let mut seen = std::collections::HashSet::new();
        for s in STANDINGS {
            assert!(p.standing_glyph(s).is_ascii());
            assert!(seen.insert(p.standing_glyph(s)), "{s:?} shares its glyph");
        }
        for i in 0..=10 {
            let t = i as f64 / 10.0;
            assert!(p.density(t).is_ascii() && p.spark(t).is_ascii() && p.bar(t, 7).is_ascii());
            assert_eq!(p.bar(t, 7).len(), 7);
            assert!(p.leaning(t).is_ascii() && p.leaning(-t).is_ascii());
            assert!(i < 2 || p.leaning(t) != p.leaning(-t), "worse and better look alike at {t}");
        }
    }

    #[test]
    fn bars_are_as_wide_as_asked() {
        let p = palette(ColorLevel::True, false);
        for w in 0..12 {
            for t in [-1.0, 0.0, 0.01, 0.5, 0.99, 1.0, 3.0, f64::NAN] {
                assert_eq!(crate::config::text::width(&p.bar(t, w)), w, "{t} in {w}");
            }
        }
    }

    #[test]
    fn heat_text_stays_readable_on_every_step_of_every_theme() {
        for (name, _) in crate::config::BUILT_IN {
            let theme = Theme::load(name, None, &mut Vec::new()).unwrap();
            let p = Palette { theme, ..palette(ColorLevel::True, false) };
            let steps = (0..=50).flat_map(|i| [(i, p.heat(i as f64 / 50.0)), (i, p.diverging(i as f64 / 25.0 - 1.0))]);
            for (i, s) in steps {
                let (Some(Color::Rgb(a, b, c)), Some(Color::Rgb(x, y, z))) = (s.bg, s.fg) else { panic!() };
                let contrast = Rgb(a, b, c).contrast(Rgb(x, y, z));
                assert!(contrast >= 4.0, "{name} at {i}: {contrast:.2}");
            }
        }
    }
}
