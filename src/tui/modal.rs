//! Dialogs over the screen: a prompt, the command line, a confirmation, the help, what words mean.

use super::command_line::{CommandLine, line};
use super::explain::Explain;
use super::picker::Picker;
use crate::plan::{DecisionId, Target};
use crate::session::{NOTE_BYTES, REASON_BYTES};
use tui_textarea::TextArea;

/// What a prompt's text is for.
#[derive(Debug, Clone, PartialEq)]
pub enum Ask {
    Veto(Vec<DecisionId>),
    /// Of rows that need not have a decision.
    VetoAll(Vec<Target>),
    Note,
    /// An exact ratio or number of units, of groups.
    Edit(Vec<Target>),
    RollBack,
    /// Filters as it is typed; holds the filter before.
    Search(String),
    /// Words to look for in a text.
    Seek,
}

#[derive(Debug, Clone)]
pub struct Prompt {
    pub ask: Ask,
    pub title: String,
    pub hint: String,
    pub area: TextArea<'static>,
}

#[derive(Debug, Clone)]
pub enum Modal {
    Prompt(Box<Prompt>),
    Command(Box<CommandLine>),
    Precisions(Box<Picker>),
    /// What words and figures mean.
    Explain(Box<Explain>),
    /// Whether the session's host shall end.
    Stop,
    Help {
        scroll: usize,
    },
}

impl Prompt {
    pub fn new(ask: Ask, title: impl Into<String>, hint: impl Into<String>, text: &str) -> Prompt {
        Prompt { ask, title: title.into(), hint: hint.into(), area: line(text) }
    }

    pub fn text(&self) -> String {
        self.area.lines().join(" ").trim().to_owned()
    }

    /// Most bytes that this prompt takes.
    fn most(&self) -> usize {
        match self.ask {
            Ask::Veto(_) | Ask::VetoAll(_) | Ask::RollBack => REASON_BYTES,
            Ask::Note => NOTE_BYTES,
            Ask::Edit(_) | Ask::Search(_) | Ask::Seek => LINE_BYTES,
        }
    }

    /// Takes what was pasted; what goes beyond the bound is left out, and that is said.
    pub fn paste(&mut self, text: &str) -> Option<String> {
        let most = self.most();
        paste(&mut self.area, text, most)
    }

    /// Whether another letter fits.
    pub fn has_room(&self) -> bool {
        used(&self.area) < self.most()
    }
}

/// Longest line for a filter, a number or a command: longer ones are pasted by accident.
pub const LINE_BYTES: usize = 4 << 10;

fn used(area: &TextArea<'_>) -> usize {
    area.lines().iter().map(|l| l.len() + 1).sum::<usize>().saturating_sub(1)
}

/// Inserts `text` at the cursor as far as `area` may hold it; says what was left out.
pub fn paste(area: &mut TextArea<'_>, text: &str, most: usize) -> Option<String> {
    let room = most.saturating_sub(used(area));
    let end = (0..=room.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    area.insert_str(&text[..end]);
    let rest = text.len() - end;
    (rest > 0).then(|| format!("{rest} bytes of the paste were left out: there is room for {most}"))
}

/// What an edit prompt's answer means for a group of `size` units: the number of units to keep.
/// `0.375`, `37.5%` and `-37.5 %` are ratios to remove; `keep 1920` or a whole number above 1 is a number to keep.
pub fn parse_kept(text: &str, size: usize) -> Result<usize, String> {
    let t = text.trim().trim_start_matches("keep").trim_start_matches(['-', '−']).trim();
    let hint = "hint: a ratio to remove such as `0.375` or `37.5%`, or a number to keep such as `1920`";
    if let Some(p) = t.strip_suffix('%') {
        let p: f64 = p.trim().parse().map_err(|_| format!("`{text}` is not a percentage; {hint}"))?;
        if !(0.0..100.0).contains(&p) {
            return Err(format!("`{text}` would leave nothing; {hint}"));
        }
        return Ok((size as f64 * (1.0 - p / 100.0)).round() as usize);
    }
    // One unit is a number to keep: as a ratio it would leave nothing.
    let one = t == "1";
    let v: f64 = t.parse().map_err(|_| format!("`{text}` is not a number; {hint}"))?;
    match v {
        v if v > 1.0 && v.fract() == 0.0 && v > size as f64 => Err(format!("there are only {size} units; {hint}")),
        v if one || (v > 1.0 && v.fract() == 0.0) => Ok(v as usize),
        v if (0.0..1.0).contains(&v) => Ok((size as f64 * (1.0 - v)).round() as usize),
        _ => Err(format!("a ratio lies from 0 to below 1; {hint}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paste_is_taken_as_far_as_there_is_room_and_the_rest_is_told_of() {
        let mut p = Prompt::new(Ask::RollBack, "", "", "");
        assert_eq!(p.paste("short"), None);
        let told = p.paste(&"é".repeat(3_000_000)).expect("told");
        assert!(told.contains("bytes of the paste") && told.contains(&REASON_BYTES.to_string()), "{told}");
        assert!(p.text().len() <= REASON_BYTES && p.text().starts_with("shorté"));
        assert!(p.text().len() >= REASON_BYTES - 1);
    }

    #[test]
    fn edits_are_understood_as_people_write_them() {
        for (text, kept) in [
            ("0.375", 1920),
            ("37.5%", 1920),
            ("−37.5 %", 1920),
            ("keep 1920", 1920),
            ("1920", 1920),
            ("1", 1),
            ("0", 3072),
        ] {
            assert_eq!(parse_kept(text, 3072), Ok(kept), "{text}");
        }
        for text in ["", "x", "100%", "1.0", "1.5", "4000", "nan", "inf", "-1e300"] {
            let e = parse_kept(text, 3072);
            assert!(e.as_ref().is_err_and(|e| e.contains("hint: ")), "{text}: {e:?}");
        }
    }
}
