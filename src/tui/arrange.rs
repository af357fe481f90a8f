//! How the review's panes share the screen: presets, keys and borders that are pulled, and the file that keeps it across sessions.
//!
//! Not here: what a share comes to at a size, and the limits (`layout`). Invariants: a file that is damaged is told of once and put aside; only its owner
//! reads it.

use super::app::{App, Effect, Level, Pane, View};
use super::layout::{Border, Shares, WHOLE};
use crate::session::private;
use ratatui::layout::Position;
use std::io;
use std::path::{Path, PathBuf};

/// Longest file that is read, bytes.
const FILE: u64 = 1 << 10;
/// What a key moves a border by.
const COLUMNS: i32 = 4;
const ROWS: i32 = 2;

/// Arrangements that have a name.
pub const PRESETS: [(&str, Shares); 4] = [
    ("usual", Shares { side: None, card: None, plot: None }),
    ("list", Shares { side: Some(0), card: None, plot: None }),
    ("agents", Shares { side: Some(550), card: Some(0), plot: Some(0) }),
    ("card", Shares { side: Some(550), card: Some(WHOLE), plot: Some(0) }),
];

/// Where it is kept; `None`: nowhere.
pub fn place() -> Option<PathBuf> {
    crate::session::place::home().ok().map(|home| home.join("layout"))
}

/// What is kept there; of a file that is damaged why, after it was put aside.
pub fn load(path: &Path) -> (Shares, Option<String>) {
    let usual = Shares::default();
    let text = match private::read(path, FILE) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return (usual, None),
        Err(e) => return (usual, Some(format!("`{}` cannot be read: {e}; panes are as usual", path.display()))),
    };
    match toml::from_str::<Shares>(&text).map_err(|e| e.message().to_owned()).and_then(Shares::checked) {
        Ok(shares) => (shares, None),
        Err(why) => {
            let aside = path.with_extension("damaged");
            let moved = match std::fs::rename(path, &aside) {
                Ok(()) => format!("it lies in `{}` now", aside.display()),
                Err(e) => format!("it could not be put aside: {e}"),
            };
            (usual, Some(format!("the layout that was kept is damaged ({why}); panes are as usual, {moved}")))
        }
    }
}

/// Keeps `shares`.
///
/// # Errors
/// The file cannot be written.
pub fn keep(path: &Path, shares: Shares) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        private::make_dir(dir)?;
    }
    let text = toml::to_string(&shares).map_err(io::Error::other)?;
    let text = format!("# Thousandths of the review's width and height; what is not here is as usual.\n{text}");
    crate::files::write_privately(path, text)
}

impl App {
    /// Takes what was kept.
    pub(super) fn arranged(&mut self, (shares, damaged): (Shares, Option<String>)) {
        self.shares = shares;
        if let Some(why) = damaged {
            self.say(Level::Warn, why);
        }
    }

    /// `:layout list`, `:layout card 50%`.
    pub(super) fn arrange(&mut self, words: &str) {
        let words: Vec<&str> = words.split_whitespace().collect();
        let part = |w: &str| {
            let percent = w.trim_end_matches('%').parse::<f64>().ok().filter(|p| (0.0..=100.0).contains(p));
            percent.map(|p| (p * 10.0).round() as u16)
        };
        let shares = match words.as_slice() {
            [name] => PRESETS.iter().find(|(n, _)| n == name).map(|(_, shares)| *shares),
            [pane, w] => match (*pane, part(w)) {
                ("side", Some(p)) => Some(Shares { side: Some(p), ..self.shares }),
                ("card", Some(p)) => Some(Shares { card: Some(p), ..self.shares }),
                ("plot", Some(p)) => Some(Shares { plot: Some(p), ..self.shares }),
                _ => None,
            },
            _ => None,
        };
        match shares {
            Some(shares) => self.share(shares),
            None => {
                let names = PRESETS.map(|(name, _)| name).join(", ");
                let said = format!(
                    "`:layout` takes {names}, or side, card or plot with a percentage; hint: `:layout card 50%`"
                );
                self.say(Level::Bad, said);
            }
        }
    }

    /// The next preset, after the one that is shown.
    pub(super) fn next_layout(&mut self) {
        let at = PRESETS.iter().position(|(_, shares)| *shares == self.shares);
        let (_, shares) = PRESETS[at.map_or(0, |at| (at + 1) % PRESETS.len())];
        self.share(shares);
    }

    /// Makes the pane that has the keys larger, or smaller with -1.
    pub(super) fn grow(&mut self, way: i32) {
        let l = self.layout();
        if self.view != View::Review || l.tabs {
            return self.nothing(TABS);
        }
        let moved = |size: u16, by: i32| u16::try_from(i32::from(size) + way * by).unwrap_or(0);
        let sized = match self.pane {
            Pane::Layers => Shares { side: Some(l.width_share(moved(l.agents.width, -COLUMNS))), ..self.shares },
            Pane::Agents => Shares { card: Some(l.height_share(moved(l.card.height, -ROWS))), ..self.shares },
            Pane::Decision => Shares { card: Some(l.height_share(moved(l.card.height, ROWS))), ..self.shares },
        };
        let before = self.shares;
        self.shares = sized;
        let after = self.layout();
        if (after.list, after.card) == (l.list, l.card) {
            self.shares = before;
            return self.nothing("no further: what is decided by would be cut");
        }
        self.share(sized);
    }

    /// The border that is pulled goes to where the pointer is.
    pub(super) fn pull_border(&mut self, border: Border, at: Position) {
        let l = self.layout();
        let rows = |bottom: u16| bottom.saturating_sub(at.y);
        self.shares = match border {
            Border::Side => Shares { side: Some(l.width_share(l.body.right().saturating_sub(at.x))), ..self.shares },
            Border::Card => Shares { card: Some(l.height_share(rows(l.card.bottom()))), ..self.shares },
            Border::Plot => Shares { plot: Some(l.height_share(rows(l.body.bottom()))), ..self.shares },
        };
        self.told_layout();
    }

    /// Takes an arrangement, and has it kept.
    fn share(&mut self, shares: Shares) {
        self.shares = shares;
        self.told_layout();
        self.keep_layout();
    }

    pub(super) fn keep_layout(&mut self) {
        self.effects.push(Effect::Arrange(self.shares));
    }

    fn told_layout(&mut self) {
        (self.dirty, self.outlook_stale) = (true, true);
        let name = PRESETS.iter().find(|(_, s)| *s == self.shares).map_or("your own", |(name, _)| name);
        let l = self.layout();
        if self.view != View::Review || l.tabs {
            return self.nothing(format!("layout: {name}; {TABS}"));
        }
        let plot = if l.plot.height > 0 { format!(", plot {}", l.plot.height) } else { String::new() };
        let (list, side, agents, card) = (l.list.width, l.agents.width, l.agents.height, l.card.height);
        let text =
            format!("layout: {name}; list {list} and side {side} columns, agents {agents} and card {card} rows{plot}");
        self.nothing(text);
    }
}

/// Why nothing is seen of it.
const TABS: &str = "it is seen in the review from 108x28 on; below that panes are tabs";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_and_what_is_damaged_is_told_once() {
        let dir = std::env::temp_dir().join(format!("paring-layout-{}", std::process::id()));
        let path = dir.join("layout");
        assert_eq!(load(&path), (Shares::default(), None));
        for (_, shares) in PRESETS {
            keep(&path, shares).expect("written");
            assert_eq!(load(&path), (shares, None));
        }
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        for odd in ["side = 1001", "side = -1", "side = \"x\"", "sides = 3", "\u{0}\u{1b}[2J", "side = ["] {
            std::fs::write(&path, odd).expect("written");
            let (shares, why) = load(&path);
            assert_eq!(shares, Shares::default(), "{odd}");
            assert!(why.is_some_and(|w| w.contains("damaged")), "{odd}");
            assert_eq!(load(&path), (Shares::default(), None), "told once");
        }
        std::fs::remove_dir_all(dir).expect("removed");
    }
}
