//! Lines of the command line that were entered before, across sessions: a file in the state folder, a line each.
//!
//! Invariants: at most [`MOST`] lines, newest last, none twice in a row; a line that holds a key or a password is kept nowhere; only its owner reads
//! the file.

use crate::config::text::clean;
use crate::mask;
use crate::session::private;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Lines that are kept.
pub const MOST: usize = 200;
/// Longest line that is kept, and longest file that is read, bytes.
const LINE: usize = 1 << 10;
const FILE: u64 = (MOST * (LINE + 1)) as u64;

/// Where it is; `None`: nothing is kept.
pub fn place() -> Option<PathBuf> {
    crate::session::place::home().ok().map(|home| home.join("lines"))
}

/// The lines as the screen has them.
#[derive(Debug, Clone, Default)]
pub struct History {
    lines: Vec<String>,
}

impl History {
    /// Of a file's text: what is no plain line is passed over.
    pub fn of(text: &str) -> History {
        let mut all = History::default();
        for line in text.lines() {
            all.add(line);
        }
        all
    }

    pub fn load(path: &Path) -> History {
        let bytes = private::read(path, FILE).unwrap_or_default();
        History::of(&String::from_utf8_lossy(&bytes))
    }

    /// Takes a line that was entered; whether it is kept.
    pub fn add(&mut self, line: &str) -> bool {
        let line = line.trim();
        let plain = !line.is_empty() && line.len() <= LINE && clean(line) == line;
        if !plain || mask::holds_secret(line) {
            return false;
        }
        if self.lines.last().is_none_or(|last| last != line) {
            self.lines.push(line.to_owned());
        }
        let extra = self.lines.len().saturating_sub(MOST);
        self.lines.drain(..extra);
        true
    }

    /// The line `back` lines before the end, from 1.
    pub fn back(&self, back: usize) -> Option<&str> {
        self.lines.len().checked_sub(back).and_then(|i| self.lines.get(i)).map(String::as_str)
    }

    /// How far back the next line with `words` in it is, beyond `from`.
    pub fn find(&self, words: &str, from: usize) -> Option<usize> {
        (from + 1..=self.lines.len()).find(|back| self.back(*back).is_some_and(|l| l.contains(words)))
    }
}

/// Adds `line` to the file, behind what other terminals have added meanwhile.
///
/// # Errors
/// The file cannot be read or written.
pub fn remember(path: &Path, line: &str) -> io::Result<()> {
    let mut all = History::load(path);
    if !all.add(line) {
        return Ok(());
    }
    if let Some(dir) = path.parent() {
        private::make_dir(dir)?;
    }
    let mut file = private::create(path)?;
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all((all.lines.join("\n") + "\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_plain_and_hold_no_secret() {
        let mut h = History::default();
        for line in ["budget macs=0.5", "budget macs=0.5", "  freeze layer1.*  "] {
            assert!(h.add(line));
        }
        assert_eq!((h.back(1), h.back(2), h.back(3)), (Some("freeze layer1.*"), Some("budget macs=0.5"), None));
        for line in [
            "llm http://me:secret@h/v1 m",
            "llm http://h/v1?api-key=abcdef m",
            "note the key is sk-abcdef0123456789",
            "note api_key=abcdef",
            "note Bearer abcdef0123",
            "",
            "a\u{1b}[2Jb",
            &"x".repeat(LINE + 1),
        ] {
            assert!(!h.add(line), "{line:?}");
        }
        assert!((0..2 * MOST).all(|i| h.add(&format!("filter {i}"))));
        assert_eq!((h.lines.len(), h.back(1), h.back(MOST)), (MOST, Some("filter 399"), Some("filter 200")));
        assert_eq!((h.find("20", 0), h.find("20", 80), h.find("nothing", 0)), (Some(80), Some(180), None));
    }

    #[test]
    fn the_file_is_its_owner_s_and_goes_on() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("paring-lines-{}", std::process::id()));
        let path = dir.join("lines");
        assert!(History::load(&path).back(1).is_none());
        for line in ["theme light", "llm http://me:secret@h/v1 m", "sort p50"] {
            remember(&path, line).expect("written");
        }
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "theme light\nsort p50\n");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(History::load(&path).back(2), Some("theme light"));
        std::fs::remove_dir_all(dir).expect("removed");
    }
}
