//! What could follow in the command line: commands, and of each its values: names of rows, precisions, roles, files.
//!
//! Not here: what a line means (`command_line`). Invariant: an offer is a whole line, and what is offered of files and models holds no letter that
//! could steer a terminal.

use super::arrange::PRESETS;
use super::command_line::COMMANDS;
use crate::config::columns::{FIGURES, ORDER, SETS, variables};
use crate::config::{ColorLevel, MAC_CONVENTIONS, Theme};
use crate::model::formats::FORMATS;
use crate::quant::Precision;
use crate::session::ROLES;
use std::path::{Path, PathBuf};

/// Offers at most, and entries of a folder that are looked at.
const MOST: usize = 200;

/// What there is to name.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The user's own folder of themes.
    pub themes: Option<PathBuf>,
    /// Layers, then blocks.
    pub rows: Vec<String>,
    pub language: bool,
    /// Columns that the user wrote.
    pub own: Vec<String>,
    /// Rounds that can be pinned.
    pub rounds: Vec<u32>,
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}

impl Known {
    fn columns(&self) -> impl Iterator<Item = String> {
        FIGURES.iter().map(|f| f.name.to_owned()).chain(self.own.iter().cloned())
    }

    fn precisions(&self) -> Vec<String> {
        Precision::menu(self.language).iter().map(|p| p.label().to_owned()).collect()
    }

    /// What the argument at `at` of command `name` may be, behind `before` of its arguments; `word` is what of it is typed.
    fn values(&self, name: &str, at: usize, before: &str, word: &str) -> Vec<String> {
        let roles = || ROLES.iter().map(|r| format!("{} ", r.name)).collect::<Vec<_>>();
        match (name, at) {
            ("freeze" | "keep-f32" | "lift" | "select" | "together", 0) => {
                let none = (name == "select").then(|| "none".to_owned());
                none.into_iter().chain(self.rows.iter().cloned()).collect()
            }
            ("max-ratio" | "at-least", 0) => owned(&["12.5% ", "25% ", "50% "]),
            ("prefer", 0) => owned(&["cut ", "spare "]).into_iter().chain(self.precisions()).collect(),
            ("max-ratio" | "at-least" | "prefer", 1) => self.rows.clone(),
            ("precision", 0) => self.precisions(),
            ("filter", _) => self.rows.clone(),
            ("ask", 0) => roles(),
            ("llm", 0) => {
                let local = owned(&["http://localhost:11434/v1 ", "http://localhost:8000/v1 ", "off"]);
                local.into_iter().chain(roles()).collect()
            }
            ("llm", 1) if ROLES.iter().any(|r| r.name == before) => owned(&["planner", "off"]),
            ("budget", _) => {
                let (set, _) = word.rsplit_once(',').map_or(("", word), |(set, last)| (&word[..=set.len()], last));
                let items = crate::plan::Budget::default().items();
                items.iter().map(|(item, _)| format!("{set}{item}=")).collect()
            }
            ("explain", 0) => super::glossary::words().map(|w| w.term.to_owned()).collect(),
            ("theme", 0) => Theme::names(self.themes.as_deref()),
            ("sort", 0) => [ORDER.to_owned()].into_iter().chain(self.columns()).collect(),
            ("mac-convention", 0) => MAC_CONVENTIONS.iter().map(|(n, _)| (*n).to_owned()).collect(),
            ("colors", 0) => ColorLevel::WORDS.map(|(word, _)| word.to_owned()).to_vec(),
            ("columns", 0) => owned(&SETS).into_iter().chain(self.columns()).collect(),
            ("columns", _) => self.columns().filter(|c| !before.split(' ').any(|b| b == c)).collect(),
            ("column", 0) => self.own.iter().map(|o| format!("{o} = ")).collect(),
            ("column", at) if at > 1 => variables().map(|v| v.name.to_owned()).chain(owned(&["off"])).collect(),
            ("errors", 0) => owned(&["off"]),
            ("layout", 0) => {
                PRESETS.map(|(n, _)| n.to_owned()).into_iter().chain(owned(&["side ", "card ", "plot "])).collect()
            }
            ("layout", 1) => owned(&["40%", "50%", "60%"]),
            ("pin", 0) => {
                let rounds = self.rounds.iter().map(u32::to_string);
                owned(&["now", "off"]).into_iter().chain(rounds).collect()
            }
            ("export", 0) => FORMATS.iter().map(|f| format!("{f} ")).chain(paths(word)).collect(),
            ("export", 1) if FORMATS.contains(&before) => paths(word),
            ("report" | "constraints", 0) => paths(word),
            ("sparsify", 0) => owned(&["2:4", "4:8", "50%", "off"]),
            ("factors", 0) => owned(&["25%", "50%", "off"]),
            ("control", 0) => owned(&["0.8", "0.7", "off"]),
            ("heal", 0) => owned(&["10m", "off"]),
            ("level", 0) => owned(&["auto", "0", "1"]),
            ("looks" | "limits" | "bind", 0) => owned(&["off"]),
            ("mode", 0) => owned(&["propose", "iterate"]),
            ("propose", 0) => owned(&["planner", "agents"]),
            ("until-clear", 0) => owned(&["on", "off"]),
            _ => Vec::new(),
        }
    }
}

/// Files and folders that begin as `typed` does; folders end in a slash, hidden ones are for those who begin with a dot.
fn paths(typed: &str) -> Vec<String> {
    let (dir, begin) = typed.rsplit_once('/').map_or(("", typed), |(dir, begin)| (&typed[..=dir.len()], begin));
    let folder = if dir.is_empty() { Path::new(".") } else { Path::new(dir) };
    let entries = std::fs::read_dir(folder).into_iter().flatten().take(MOST * 10).flatten();
    let shown = |name: &String| {
        name.starts_with(begin)
            && (begin.starts_with('.') || !name.starts_with('.'))
            && !name.chars().any(crate::plain::hostile)
    };
    let named = |e: std::fs::DirEntry| {
        let slash = if e.path().is_dir() { "/" } else { "" };
        e.file_name().into_string().ok().filter(shown).map(|name| format!("{dir}{name}{slash}"))
    };
    let mut out: Vec<String> = entries.filter_map(named).collect();
    out.sort();
    out
}

/// Whole lines that `text` may become, each with what it does.
pub fn offers(text: &str, known: &Known) -> Vec<(String, String)> {
    let text = text.trim_start();
    let Some((name, rest)) = text.split_once(' ') else {
        let of = |c: &super::command_line::Spec| {
            let space = if c.args.is_empty() { "" } else { " " };
            (format!("{}{space}", c.name), format!("{} — {}", c.args, c.about).trim_start_matches(" — ").to_owned())
        };
        return COMMANDS.iter().filter(|c| c.name.starts_with(text)).map(of).collect();
    };
    let rest = rest.trim_start();
    let (before, word) = rest.rsplit_once(' ').unwrap_or(("", rest));
    let at = before.split_whitespace().count();
    let gap = if before.is_empty() { "" } else { " " };
    let values = known.values(name, at, before.trim(), word);
    // Those that begin so, then rows that have it in their names.
    let (begin, others): (Vec<String>, Vec<String>) = values.into_iter().partition(|v| v.starts_with(word));
    let inside = others.into_iter().filter(|v| word.len() > 1 && known.rows.contains(v) && v.contains(word));
    let all = begin.into_iter().chain(inside).take(MOST);
    all.map(|v| (format!("{name} {before}{gap}{v}"), String::new())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, known: &Known) -> Vec<String> {
        offers(text, known).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn values_are_offered_where_they_go() {
        let rows = owned(&["blocks.0.attn.qkv", "blocks.0.mlp.fc1", "blocks.1.mlp.fc1", "blocks.0"]);
        let known = Known { rows, ..Known::default() };
        assert_eq!(lines("freeze blocks.1", &known), ["freeze blocks.1.mlp.fc1"]);
        assert_eq!(lines("freeze fc1", &known), ["freeze blocks.0.mlp.fc1", "freeze blocks.1.mlp.fc1"]);
        assert_eq!(lines("max-ratio 25% blocks.0.a", &known), ["max-ratio 25% blocks.0.attn.qkv"]);
        assert_eq!(lines("freeze blocks.0 because", &known), [] as [String; 0], "a reason is nobody's to guess");
        assert_eq!(lines("precision w4g1", &known), ["precision w4g128"]);
        assert_eq!(lines("prefer sp", &known), ["prefer spare "]);
        assert_eq!(lines("ask pru", &known), ["ask pruning "]);
        assert_eq!(lines("llm pruning pl", &known), ["llm pruning planner"]);
        assert_eq!(lines("budget latency=0.6,dr", &known), ["budget latency=0.6,drop="]);
        assert!(lines("precision ", &known).len() > 5 && lines("select n", &known) == ["select none"]);
    }

    #[test]
    fn files_are_offered_folder_by_folder() {
        let dir = std::env::temp_dir().join(format!("paring-complete-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("models")).expect("a folder");
        for name in ["models/a.onnx", "models/.hidden", "mine.toml", "models/b\u{202e}.onnx"] {
            std::fs::write(dir.join(name), "").expect("a file");
        }
        let at = dir.display().to_string();
        let known = Known::default();
        let wanted = [format!("constraints {at}/mine.toml"), format!("constraints {at}/models/")];
        assert_eq!(lines(&format!("constraints {at}/m"), &known), wanted);
        assert_eq!(lines(&format!("export onnx {at}/models/"), &known), [format!("export onnx {at}/models/a.onnx")]);
        assert_eq!(lines(&format!("report {at}/models/.h"), &known), [format!("report {at}/models/.hidden")]);
        assert_eq!(lines("report /nowhere/at/all/", &known), [] as [String; 0]);
        std::fs::remove_dir_all(dir).expect("removed");
    }
}
