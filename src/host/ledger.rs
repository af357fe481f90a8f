//! The file that keeps, across sessions, what authors expected and what came: `ledger.jsonl` in the user's state folder, a line
//! an entry.
//!
//! Not here: what an entry is and what entries add up to (`session::ledger`). Invariants: lines are only ever added, each in one
//! write; of lines about the same author and round the newest counts; a line that is none is passed over; only the user's
//! own sessions write there, unless `PARING_LEDGER` names a file (`off`: none at all).

use crate::session::{Entry, Place, Standings, ledger, private};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Of a long file the newest part is read, bytes.
const MOST: u64 = 4 << 20;

/// The ledger as one session sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    path: PathBuf,
    session: String,
}

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Kept {
    session: String,
    at_ms: i64,
    #[serde(flatten)]
    entry: Entry,
}

/// Where the ledger is, for a session that is the user's `own` or not; `None`: nothing is kept.
fn place(own: bool, told: Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    match told.filter(|v| !v.is_empty()) {
        Some(off) if off == "off" => None,
        Some(path) => Some(path.into()),
        None => home.filter(|_| own).map(|h| h.join("ledger.jsonl")),
    }
}

fn of_process(own: bool) -> Option<PathBuf> {
    place(own, std::env::var_os("PARING_LEDGER"), crate::session::place::home().ok())
}

/// The round whose entry `event` writes or changes.
pub(super) fn judged(event: &crate::session::Event) -> Option<u32> {
    use crate::session::Event;
    match event {
        Event::VerdictGiven { round, .. } | Event::RoundAccepted { round } | Event::RolledBack { round, .. } => {
            Some(*round)
        }
        _ => None,
    }
}

impl Ledger {
    /// For the session at `session`.
    pub fn of(session: &Place) -> Option<Ledger> {
        let dir = std::path::absolute(&session.dir).unwrap_or_else(|_| session.dir.clone());
        let hash = blake3::hash(dir.as_os_str().as_encoded_bytes()).to_hex();
        Some(Ledger { path: of_process(session.is_own())?, session: format!("{} {}", session.name, &hash[..12]) })
    }

    /// What other sessions add up to. A file that cannot be read says nothing.
    pub fn recall(&self) -> Vec<Standings> {
        let kept: Vec<Entry> = (read(&self.path).unwrap_or_default().into_iter())
            .filter(|k| k.session != self.session)
            .map(|k| k.entry)
            .collect();
        let mut all = Standings::of(&kept);
        // Those with most to tell, where there are more than a session keeps.
        all.sort_by_key(|s| std::cmp::Reverse(s.rounds));
        all.truncate(ledger::MOST_RECORDS);
        all
    }

    /// Adds entries.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&self, entries: &[Entry], at_ms: i64) -> Result<(), String> {
        let fail = |e: io::Error| {
            format!("ledger `{}`: {e}; hint: PARING_LEDGER names another file, or `off`", self.path.display())
        };
        for entry in entries {
            let kept = Kept { session: self.session.clone(), at_ms, entry: entry.clone() };
            let line = serde_json::to_string(&kept).map_err(|e| fail(e.into()))? + "\n";
            let dir = self.path.parent().unwrap_or(Path::new("."));
            if !dir.as_os_str().is_empty() {
                private::make_dir(dir).map_err(fail)?;
            }
            private::append(&self.path).and_then(|mut f| f.write_all(line.as_bytes())).map_err(fail)?;
        }
        Ok(())
    }
}

/// What all sessions of this user add up to, and the file that it is from.
///
/// # Errors
/// In words: nothing is kept, or the file cannot be read.
pub fn all() -> Result<(PathBuf, Vec<Standings>), String> {
    let path = of_process(true).ok_or("no ledger is kept; hint: PARING_LEDGER is `off`, or no home folder is known")?;
    let kept = match read(&path) {
        Ok(kept) => kept,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(format!("ledger `{}`: {e}", path.display())),
    };
    let entries: Vec<Entry> = kept.into_iter().map(|k| k.entry).collect();
    Ok((path, Standings::of(&entries)))
}

/// The newest line about each author and round, in the order of their first lines.
fn read(path: &Path) -> io::Result<Vec<Kept>> {
    let mut file = private::open(path)?;
    let from = file.metadata()?.len().saturating_sub(MOST);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // Cut into, a line is none.
    let lines = text.lines().skip(usize::from(from > 0));
    let mut all: Vec<Kept> = Vec::new();
    let mut known = std::collections::HashMap::new();
    let sound = |k: &Kept| {
        let figures = [Some(k.entry.measured.value), k.entry.expected, k.entry.gain];
        figures.iter().flatten().all(|f| f.abs() <= 1e6)
    };
    for mut kept in lines.filter_map(|l| serde_json::from_str::<Kept>(l).ok()).filter(sound) {
        // Anybody may have written it.
        kept.entry.who = crate::agent::clean::line(&kept.entry.who, 120);
        let key = (kept.session.clone(), kept.entry.round, kept.entry.who.clone());
        match known.get(&key) {
            Some(&at) => {
                if let Some(slot) = all.get_mut(at) {
                    *slot = kept;
                }
            }
            None => {
                known.insert(key, all.len());
                all.push(kept);
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Estimate, Outcome};
    use crate::session::ledger::Fate;

    fn entry(who: &str, round: u32, expected: Option<f64>, came: f64) -> Entry {
        Entry {
            round,
            who: who.into(),
            prompts: String::new(),
            family: "resnet".into(),
            metric: "top-1".into(),
            decisions: 3,
            of: 3,
            whole: true,
            expected,
            measured: Estimate { value: came, low: came - 1.0, high: came + 1.0 },
            held: expected.map(|e| (e - came).abs() < 1.5),
            outcome: Outcome::Reject,
            unbounded: false,
            fate: Fate::Open,
            gain: None,
        }
    }

    #[test]
    fn what_other_sessions_saw_is_recalled_and_the_newest_line_counts() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("deep/ledger.jsonl");
        let of = |session: &str| Ledger { path: path.clone(), session: session.into() };
        of("a").keep(&[entry("m", 1, Some(0.0), -10.0), entry("planner", 1, None, -10.0)], 1).expect("written");
        let later = Entry { fate: Fate::RolledBack, ..entry("m", 1, Some(0.0), -10.0) };
        of("a").keep(&[later], 2).expect("written");
        of("b").keep(&[entry("m", 1, Some(-1.0), -1.2)], 3).expect("written");
        assert_eq!(
            of("c").recall().iter().map(|s| (s.who.as_str(), s.rounds)).collect::<Vec<_>>(),
            [("m", 2), ("planner", 1)]
        );
        let seen = of("b").recall();
        let m = seen.iter().find(|s| s.who == "m").expect("m is known");
        assert_eq!((m.rounds, m.rolled_back, m.told, m.held, m.off), (1, 1, 1, 0, -10.0));
    }

    #[test]
    fn lines_that_are_none_are_passed_over_and_a_long_file_is_read_from_its_end() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("ledger.jsonl");
        let of = |session: &str| Ledger { path: path.clone(), session: session.into() };
        of("old").keep(&[entry("old", 1, None, 0.0)], 1).expect("written");
        let mut file = private::append(&path).expect("opened");
        file.write_all("{\"session\": 3}\nnot json \u{1b}[2J\n".as_bytes()).expect("written");
        of("a").keep(&[entry("m", 1, None, 0.0)], 1).expect("written");
        assert_eq!(of("z").recall().len(), 2);
        file.write_all("x".repeat(1 << 20).as_bytes()).expect("written");
        for _ in 0..4 {
            file.write_all(("\n".to_owned() + &"x".repeat(1 << 20)).as_bytes()).expect("written");
        }
        file.write_all(b"\n").expect("written");
        of("b").keep(&[entry("m", 1, None, 0.0)], 1).expect("written");
        let seen = of("z").recall();
        assert_eq!(seen.iter().map(|s| (s.who.as_str(), s.rounds)).collect::<Vec<_>>(), [("m", 1)]);
    }

    #[test]
    fn only_own_sessions_are_kept_unless_a_file_is_named() {
        let home = || Some(PathBuf::from("/h"));
        assert_eq!(place(true, None, home()), Some("/h/ledger.jsonl".into()));
        assert_eq!(place(false, None, home()), None);
        assert_eq!(place(false, Some("/x".into()), home()), Some("/x".into()));
        assert_eq!(place(true, Some("off".into()), home()), None);
        assert_eq!(place(true, Some("".into()), None), None);
    }
}
