//! Themes: what each role on screen is coloured, loaded from TOML with `inherits`, and checked.
//!
//! Invariant: a [`Theme`] has a colour for every [`Role`]; a file may leave roles out only if what it inherits has them.

use super::MOST_BYTES;
use super::color::{Rgb, ansi_names};
use super::diag::{Diagnostic, suggestion};
use std::path::Path;

macro_rules! roles {
    ($($variant:ident $name:literal $what:literal),* $(,)?) => {
        /// What a colour is for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Role { $(#[doc = $what] $variant),* }

        impl Role {
            pub const ALL: &'static [Role] = &[$(Role::$variant),*];

            pub fn name(self) -> &'static str {
                match self { $(Role::$variant => $name),* }
            }
        }
    };
}

roles! {
    Bg "bg" "the screen's background",
    Fg "fg" "text",
    Dim "dim" "secondary text: labels, units",
    Faint "faint" "rules, bar backgrounds, disabled things",
    Border "border" "pane borders",
    Focus "focus" "border and title of the pane with the keys",
    Title "title" "pane titles",
    Accent "accent" "the current phase, sort column, search match, links",
    Good "good" "within budget, done",
    Warn "warn" "undecided, stale, warnings",
    Bad "bad" "over budget, failed",
    Forecast "forecast" "figures that are expected, not measured",
    Reasoning "reasoning" "an agent's reasoning",
    Cursor "cursor" "background of the cursor row",
    Open "open" "status: nothing proposed",
    Proposed "proposed" "status: proposed",
    Edited "edited" "status: edited",
    Approved "approved" "status: approved",
    Vetoed "vetoed" "status: vetoed",
    Applied "applied" "status: applied",
    RolledBack "rolled-back" "status: rolled back",
    Bar "bar" "filled part of bars and the slider",
    Key "key" "keys in the footer and help, code in what agents write",
}

/// Every role's colour, the heat ramp and the sixteen-colour fallbacks.
#[derive(Debug, Clone, PartialEq)]
pub struct Theme {
    pub name: String,
    /// Light text on a dark ground.
    pub dark: bool,
    colors: Vec<Rgb>,
    /// Index into the sixteen colours, or `None` for the terminal's default.
    ansi: Vec<Option<u8>>,
    /// Heat ramp from cold to hot, at least two stops.
    pub heat: Vec<Rgb>,
    /// What the legend calls the ramp.
    pub heat_name: String,
}

/// Themes that come with the program.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("dark", include_str!("../../themes/dark.toml")),
    ("light", include_str!("../../themes/light.toml")),
    ("cividis", include_str!("../../themes/cividis.toml")),
    ("contrast", include_str!("../../themes/contrast.toml")),
];

impl Theme {
    pub fn color(&self, role: Role) -> Rgb {
        self.colors.get(role as usize).copied().unwrap_or(Rgb(128, 128, 128))
    }

    pub fn ansi(&self, role: Role) -> Option<u8> {
        self.ansi.get(role as usize).copied().flatten()
    }

    /// The ramp's colour at `t`, 0 to 1.
    pub fn heat_at(&self, t: f64) -> Rgb {
        let t = if t.is_finite() { t.clamp(0.0, 1.0) } else { 0.0 };
        let last = self.heat.len().saturating_sub(1);
        let x = t * last as f64;
        let i = (x.floor() as usize).min(last);
        let a = self.heat.get(i).copied().unwrap_or_default();
        let b = self.heat.get((i + 1).min(last)).copied().unwrap_or(a);
        a.mix(b, x - i as f64)
    }

    /// The built-in dark theme.
    pub fn dark() -> Theme {
        let mut diagnostics = Vec::new();
        Theme::load("dark", None, &mut diagnostics).unwrap_or_else(|| Theme {
            name: "none".into(),
            dark: true,
            colors: vec![Rgb(128, 128, 128); Role::ALL.len()],
            ansi: vec![None; Role::ALL.len()],
            heat: vec![Rgb(0, 0, 0), Rgb(255, 255, 255)],
            heat_name: "grey".into(),
        })
    }

    /// Loads `name` from `dir` (`NAME.toml`) or else from the built-in ones. `None` with diagnostics on failure.
    pub fn load(name: &str, dir: Option<&Path>, diagnostics: &mut Vec<Diagnostic>) -> Option<Theme> {
        let before = diagnostics.len();
        let mut partial = Partial::default();
        partial.read(name, dir, diagnostics, &mut Vec::new());
        if diagnostics.len() > before {
            return None;
        }
        partial.finish(name, diagnostics)
    }

    /// Names that [`Theme::load`] would find, built-in ones first.
    pub fn names(dir: Option<&Path>) -> Vec<String> {
        let mut names: Vec<String> = BUILT_IN.iter().map(|(n, _)| (*n).to_owned()).collect();
        let entries = dir.and_then(|d| std::fs::read_dir(d).ok()).into_iter().flatten().flatten();
        let mut own: Vec<String> = entries
            .filter_map(|e| e.file_name().to_str().and_then(|n| n.strip_suffix(".toml")).map(str::to_owned))
            .filter(|n| !names.contains(n))
            .collect();
        own.sort();
        names.extend(own);
        names
    }
}

impl Default for Theme {
    fn default() -> Theme {
        Theme::dark()
    }
}

/// A theme while its chain of `inherits` is read, the root first.
#[derive(Default)]
struct Partial {
    dark: Option<bool>,
    colors: std::collections::BTreeMap<Role, Rgb>,
    ansi: std::collections::BTreeMap<Role, Option<u8>>,
    heat: Option<Vec<Rgb>>,
    heat_name: Option<String>,
}

impl Partial {
    fn read(&mut self, name: &str, dir: Option<&Path>, diagnostics: &mut Vec<Diagnostic>, seen: &mut Vec<String>) {
        // A name is one part of a path: a project file may say it, and what lies elsewhere is none of its business.
        let plain = !name.contains(['/', '\0']) && !name.starts_with('.');
        let own = dir
            .filter(|_| plain)
            .map(|d| d.join(format!("{name}.toml")))
            .filter(|p| std::fs::symlink_metadata(p).is_ok());
        let origin = own.as_ref().map_or_else(|| format!("theme `{name}`"), |p| p.display().to_string());
        let mut complain =
            |key: &str, message: String, hint: String| diagnostics.push(Diagnostic::new(&origin, key, message, hint));
        if seen.iter().any(|s| s == name) {
            complain("inherits", format!("theme `{name}` inherits itself"), "cut the circle".into());
            return;
        }
        seen.push(name.to_owned());
        let text = match &own {
            Some(path) => match crate::files::read_text(path, MOST_BYTES) {
                Ok(t) => t,
                Err(e) => return complain("", format!("cannot be read: {e}"), "check its permissions".into()),
            },
            None => match BUILT_IN.iter().find(|(n, _)| *n == name) {
                Some((_, t)) => (*t).to_owned(),
                None => {
                    let names = Theme::names(dir);
                    let hint = suggestion(name, names.iter().map(String::as_str));
                    return complain("", format!("unknown theme `{name}`"), hint);
                }
            },
        };
        let table: toml::Table = match text.parse() {
            Ok(t) => t,
            Err(e) => return complain("", format!("is not TOML: {}", e.message()), "fix the syntax".into()),
        };
        if let Some(parent) = table.get("inherits") {
            match parent.as_str() {
                Some(p) => self.read(p, dir, diagnostics, seen),
                None => complain("inherits", "is not a string".into(), "name a theme".into()),
            }
        }
        self.take(&table, &origin, diagnostics);
    }

    fn take(&mut self, table: &toml::Table, origin: &str, diagnostics: &mut Vec<Diagnostic>) {
        let mut complain = |key: String, message: String, hint: String| {
            diagnostics.push(Diagnostic::new(origin, key, message, hint));
        };
        let hex = "write colours as \"#rrggbb\"";
        for (key, value) in table {
            match (key.as_str(), value) {
                ("inherits", _) | ("about", toml::Value::String(_)) => {}
                ("dark", toml::Value::Boolean(b)) => self.dark = Some(*b),
                (section @ ("colors" | "ansi"), toml::Value::Table(t)) => {
                    for (name, v) in t {
                        let key = format!("{section}.{name}");
                        let Some(&role) = Role::ALL.iter().find(|r| r.name() == name) else {
                            let hint = suggestion(name, Role::ALL.iter().map(|r| r.name()));
                            complain(key, "unknown role".into(), hint);
                            continue;
                        };
                        if section == "colors" {
                            match v.as_str().and_then(Rgb::parse) {
                                Some(c) => drop(self.colors.insert(role, c)),
                                None => complain(key, format!("`{v}` is not a colour"), hex.into()),
                            }
                            continue;
                        }
                        let word = v.as_str().unwrap_or_default();
                        match ansi_names().iter().position(|n| *n == word) {
                            Some(i) => drop(self.ansi.insert(role, Some(i as u8))),
                            None if word == "default" => drop(self.ansi.insert(role, None)),
                            None => {
                                let hint = suggestion(word, ansi_names());
                                complain(key, format!("`{word}` is not one of the sixteen colours"), hint);
                            }
                        }
                    }
                }
                ("heat", toml::Value::Table(t)) => {
                    for (name, v) in t {
                        match (name.as_str(), v) {
                            ("name", toml::Value::String(s)) => self.heat_name = Some(s.clone()),
                            ("stops", toml::Value::Array(a)) => {
                                let stops: Option<Vec<Rgb>> =
                                    a.iter().map(|c| c.as_str().and_then(Rgb::parse)).collect();
                                match stops {
                                    Some(s) if s.len() >= 2 => self.heat = Some(s),
                                    _ => complain("heat.stops".into(), "needs two or more colours".into(), hex.into()),
                                }
                            }
                            _ => {
                                let hint = suggestion(name, ["name", "stops"]);
                                complain(format!("heat.{name}"), "unknown key or wrong type".into(), hint);
                            }
                        }
                    }
                }
                (other, _) => {
                    let hint = suggestion(other, ["inherits", "about", "dark", "colors", "ansi", "heat"]);
                    complain(other.to_owned(), "unknown key or wrong type".into(), hint);
                }
            }
        }
    }

    fn finish(self, name: &str, diagnostics: &mut Vec<Diagnostic>) -> Option<Theme> {
        let missing: Vec<&str> = Role::ALL.iter().filter(|r| !self.colors.contains_key(r)).map(|r| r.name()).collect();
        let origin = format!("theme `{name}`");
        if !missing.is_empty() {
            let message = format!("no colour for {}", missing.join(", "));
            diagnostics.push(Diagnostic::new(&origin, "colors", message, "add them or `inherits = \"dark\"`"));
            return None;
        }
        let Some(heat) = self.heat else {
            let hint = "add [heat] stops or `inherits = \"dark\"`";
            diagnostics.push(Diagnostic::new(&origin, "heat.stops", "no heat ramp", hint));
            return None;
        };
        Some(Theme {
            name: name.to_owned(),
            dark: self.dark.unwrap_or(true),
            colors: Role::ALL.iter().filter_map(|r| self.colors.get(r).copied()).collect(),
            ansi: Role::ALL.iter().map(|r| self.ansi.get(r).copied().flatten()).collect(),
            heat,
            heat_name: self.heat_name.unwrap_or_else(|| "heat".into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_theme_is_whole_and_readable() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("themes");
        let mut files: Vec<String> = std::fs::read_dir(&dir)
            .unwrap()
            .filter_map(|e| e.unwrap().file_name().to_str().unwrap().strip_suffix(".toml").map(str::to_owned))
            .collect();
        files.sort();
        let mut shipped: Vec<String> = BUILT_IN.iter().map(|(n, _)| (*n).to_owned()).collect();
        shipped.sort();
        assert_eq!(files, shipped, "themes/*.toml and the built-in list differ");
        for name in &files {
            let mut diagnostics = Vec::new();
            let theme = Theme::load(name, Some(&dir), &mut diagnostics);
            assert!(diagnostics.is_empty(), "{name}: {diagnostics:?}");
            let theme = theme.unwrap();
            let bg = theme.color(Role::Bg);
            assert_eq!(theme.dark, bg.luminance() < 0.5, "{name}");
            for (role, least) in [
                (Role::Fg, 7.0),
                (Role::Dim, 4.0),
                (Role::Forecast, 4.0),
                (Role::Reasoning, 4.0),
                (Role::Title, 4.5),
                (Role::Focus, 3.0),
                (Role::Accent, 4.0),
                (Role::Good, 4.0),
                (Role::Warn, 4.0),
                (Role::Bad, 4.0),
                (Role::Key, 4.0),
                (Role::Proposed, 3.0),
                (Role::Edited, 3.0),
                (Role::Approved, 3.0),
                (Role::Vetoed, 3.0),
                (Role::Applied, 3.0),
                (Role::Border, 1.3),
            ] {
                let c = theme.color(role).contrast(bg);
                assert!(c >= least, "{name}: {} on bg is {c:.2}, wants {least}", role.name());
            }
            let fg = theme.color(Role::Fg).contrast(theme.color(Role::Cursor));
            assert!(fg >= 6.0, "{name}: text on the cursor row is {fg:.2}");
        }
    }

    /// Heat must be ordered by lightness alone, so that it reads without hue.
    #[test]
    fn heat_ramps_are_monotone_in_lightness() {
        for (name, _) in BUILT_IN {
            let theme = Theme::load(name, None, &mut Vec::new()).unwrap();
            let l: Vec<f64> = (0..=20).map(|i| theme.heat_at(i as f64 / 20.0).luminance()).collect();
            let up = l.windows(2).all(|w| w[1] >= w[0] - 1e-3);
            let down = l.windows(2).all(|w| w[1] <= w[0] + 1e-3);
            assert!(up || down, "{name}: {l:?}");
            assert!((l[0] - l[20]).abs() > 0.25, "{name}: ramp too flat");
        }
    }

    #[test]
    fn inherits_overrides_and_complains_with_the_nearest_name() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("mine.toml", "inherits = \"light\"\n[colors]\naccent = \"#123456\"\n");
        let mut d = Vec::new();
        let mine = Theme::load("mine", Some(dir.path()), &mut d).unwrap();
        assert_eq!(mine.color(Role::Accent), Rgb(0x12, 0x34, 0x56));
        assert_eq!(mine.color(Role::Fg), Theme::load("light", None, &mut d).unwrap().color(Role::Fg));

        write("bad.toml", "inherits = \"dark\"\n[colors]\nacent = \"#123456\"\nfg = \"red\"\n");
        assert!(Theme::load("bad", Some(dir.path()), &mut d).is_none());
        let text: Vec<String> = d.iter().map(ToString::to_string).collect();
        assert!(text.iter().any(|t| t.contains("did you mean `accent`?")), "{text:?}");
        assert!(text.iter().any(|t| t.contains("#rrggbb")), "{text:?}");

        write("a.toml", "inherits = \"b\"\n");
        write("b.toml", "inherits = \"a\"\n");
        assert!(Theme::load("a", Some(dir.path()), &mut Vec::new()).is_none());
        d.clear();
        assert!(Theme::load("drak", None, &mut d).is_none());
        assert!(d[0].to_string().contains("did you mean `dark`?"), "{}", d[0]);
    }
}
