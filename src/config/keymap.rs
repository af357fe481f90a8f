//! One table of keys, from which the footer, the help and the dispatch are made; users override it by name.
//!
//! Invariants: no default needs a modifier (tmux and terminals eat them), except the conventional Ctrl-C, Ctrl-L and
//! Ctrl-Z; no key has two meanings.

use super::diag::{Diagnostic, suggestion};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::HashMap;
use std::fmt;

/// A key as it is written in configuration: `a`, `A`, `space`, `ctrl-l`, `pgup`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    pub code: KeyCode,
    pub ctrl: bool,
    pub alt: bool,
}

const NAMED: &[(&str, KeyCode)] = &[
    ("space", KeyCode::Char(' ')),
    ("enter", KeyCode::Enter),
    ("esc", KeyCode::Esc),
    ("tab", KeyCode::Tab),
    ("shift-tab", KeyCode::BackTab),
    ("backspace", KeyCode::Backspace),
    ("delete", KeyCode::Delete),
    ("up", KeyCode::Up),
    ("down", KeyCode::Down),
    ("left", KeyCode::Left),
    ("right", KeyCode::Right),
    ("home", KeyCode::Home),
    ("end", KeyCode::End),
    ("pgup", KeyCode::PageUp),
    ("pgdn", KeyCode::PageDown),
];

impl Key {
    pub fn parse(text: &str) -> Option<Key> {
        let (mut rest, mut ctrl, mut alt) = (text, false, false);
        loop {
            match rest {
                r if r.starts_with("ctrl-") && !ctrl => (rest, ctrl) = (&r[5..], true),
                r if r.starts_with("alt-") && !alt => (rest, alt) = (&r[4..], true),
                _ => break,
            }
        }
        let named = NAMED.iter().find(|(n, _)| *n == rest).map(|(_, c)| *c);
        let mut chars = rest.chars();
        let single = match (chars.next(), chars.next()) {
            (Some(c), None) if !c.is_control() && c != ' ' => Some(KeyCode::Char(c)),
            _ => None,
        };
        let f = || {
            let n: u8 = rest.strip_prefix('f')?.parse().ok()?;
            (1..=12).contains(&n).then_some(KeyCode::F(n))
        };
        named.or(single).or_else(f).map(|code| Key { code, ctrl, alt })
    }

    /// What the terminal sent, with the shift of a character folded into the character.
    pub fn of(event: &KeyEvent) -> Key {
        let code = match event.code {
            KeyCode::Tab if event.modifiers.contains(KeyModifiers::SHIFT) => KeyCode::BackTab,
            c => c,
        };
        Key {
            code,
            ctrl: event.modifiers.contains(KeyModifiers::CONTROL),
            alt: event.modifiers.contains(KeyModifiers::ALT),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ctrl {
            write!(f, "ctrl-")?;
        }
        if self.alt {
            write!(f, "alt-")?;
        }
        match self.code {
            KeyCode::Char(' ') => write!(f, "space"),
            KeyCode::Char(c) => write!(f, "{c}"),
            KeyCode::F(n) => write!(f, "f{n}"),
            code => match NAMED.iter().find(|(_, c)| *c == code) {
                Some((n, _)) => write!(f, "{n}"),
                None => write!(f, "?"),
            },
        }
    }
}

macro_rules! acts {
    ($($section:literal { $($variant:ident $id:literal [$($key:literal),*] $short:literal $long:literal;)* })*) => {
        /// Everything a key can ask for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Act { $($($variant),*),* }

        /// The whole table, in help order.
        pub const ACTS: &[ActSpec] = &[$($(
            ActSpec { act: Act::$variant, id: $id, section: $section, keys: &[$($key),*], short: $short, long: $long },
        )*)*];
    };
}

/// One line of the table.
#[derive(Debug, Clone, Copy)]
pub struct ActSpec {
    pub act: Act,
    /// Name in `[keys]`.
    pub id: &'static str,
    /// Heading in the help.
    pub section: &'static str,
    /// Default keys; the first is the one shown.
    pub keys: &'static [&'static str],
    /// Footer label.
    pub short: &'static str,
    /// Help text.
    pub long: &'static str,
}

acts! {
    "Move" {
        Down "down" ["j", "down"] "down" "next row or line";
        Up "up" ["k", "up"] "up" "previous row or line";
        PageDown "page-down" ["pgdn"] "page" "one page down";
        PageUp "page-up" ["pgup"] "page" "one page up";
        Top "top" ["g", "home"] "top" "first row";
        Bottom "bottom" ["G", "end"] "end" "last row; in a stream: follow it";
        NextPane "next-pane" ["tab"] "pane" "next pane, view, or page of the profile";
        PrevPane "prev-pane" ["shift-tab"] "pane" "previous one";
    }
    "Layers" {
        ToggleFold "fold" ["space"] "fold" "fold or unfold the block";
        Unfold "unfold" ["l", "right"] "unfold" "unfold the block, or into it; in a text of view 2 the next token";
        Fold "fold-close" ["h", "left"] "fold" "fold the block that the row lies in; in a text of view 2 the token before";
        FoldAll "fold-all" ["z"] "fold all" "fold all blocks, or unfold all";
        Sort "sort" ["s"] "sort" "sort by the next column";
        SortReverse "sort-reverse" ["S"] "reverse" "turn the sort order round";
        Flat "flat" ["t"] "flat" "list of layers without blocks, and back";
        Tokens "tokens" ["d"] "prompt/token" "of a language model: what a whole window takes, or one token after it, and back";
        Columns "columns" ["w"] "columns" "columns of costs, of weights and gradients, of speed, those that you picked, and back";
        Select "select" ["V"] "select" "begin a range of rows that follows the cursor, or end it; decisions are for all of them";
        Mark "mark" [","] "mark" "pick this row, or the rows of its block, or let them go";
        Search "search" ["/"] "find" "filter rows by name or kind; in a text, go to the words and mark them";
        NextMatch "next-match" ["n"] "next" "next match of the words";
        PrevMatch "prev-match" ["N"] "previous" "previous match";
        NextName "next-name" ["J"] "to row" "go to the row that the agents named last, then to the one named before";
    }
    "Decide" {
        Approve "approve" ["a"] "approve" "approve what is proposed for this row";
        Veto "veto" ["v"] "veto…" "veto it, with a reason that binds: what waits, else what is in force, else whatever may come";
        Reopen "reopen" ["o"] "reopen" "take back an approval or a veto; propose again what was rolled back";
        Edit "edit" ["e"] "edit…" "type an exact ratio or number of units to keep, over the present one";
        RatioDown "ratio-down" ["["] "ratio" "remove one step less of the group";
        RatioUp "ratio-up" ["]"] "ratio" "remove one step more of the group";
        RatioDownFast "ratio-down-fast" ["{"] "ratio" "remove four steps less";
        RatioUpFast "ratio-up-fast" ["}"] "ratio" "remove four steps more";
        Precision "precision" ["p"] "precision" "next precision for this layer";
        Precisions "precisions" ["O"] "precisions…" "choose a precision, with all that is known of the row in each";
        RemoveBlock "remove-block" ["x"] "remove block" "remove this residual block, or keep it after all";
        Confirm "confirm" ["enter"] "keep edit" "keep the edit under the cursor, or open what the row shows; in the timeline, go back to what was decided there";
        ApproveBlock "approve-block" ["A"] "block" "approve every open decision in this block";
        ApproveAll "approve-all" ["Y"] "all shown" "approve every open decision in the rows shown";
        Note "note" ["m"] "note…" "a note to the agents; goes into the next prompt";
        Undo "undo" ["u"] "undo" "undo the newest review action";
        Redo "redo" ["U"] "redo" "redo it";
        OtherWay "other-way" ["Z"] "lost/gained" "of items that a round's model answers otherwise: those that were lost, those that were gained";
        Fork "fork" ["F"] "keep plan…" "keep the plan that is shown under a name, to hold others against it";
        NextPlan "next-plan" [">"] "other plan" "hold the plan against the next one: the planner's, those kept, those of rounds";
        TakeRow "take-row" ["<"] "take row" "of two plans: take what the other has in this row, for you to approve";
        TakeBlock "take-block" ["X"] "take block" "the same in all rows of its block";
        TakeAll "take-all" ["*"] "take all" "the same in all rows where they differ";
    }
    "Session" {
        Profile "profile" ["P"] "profile" "measure every layer again, and the original that factors refer to";
        Measure "measure" ["M"] "measure row" "measure this row again; where a figure has a ?, do";
        Sense "sense" ["W"] "sensitivity" "measure what pruning each group would cost";
        Propose "propose" ["r"] "reason" "ask the agents, or the planner when no endpoint is set, to propose";
        Mode "mode" ["I"] "mode" "agents propose once, or rehearse and propose again by themselves until they have a question, and back";
        ProposePlanner "propose-planner" ["L"] "planner" "ask the built-in planner to propose";
        Bisect "bisect" ["b"] "worst" "find the decision that costs most: the plan is tried without halves of it";
        Run "run" ["R"] "run" "compress with all approved decisions, then evaluate";
        Accept "accept" ["C"] "accept round" "accept the evaluated round and go on from it";
        RollBack "roll-back" ["B"] "roll back…" "go back to the last accepted round, with a reason";
        Export "export" ["E"] "export…" "write the compressed model";
        Interrupt "interrupt" ["i", "ctrl-c"] "interrupt" "interrupt the agents or the running job";
        NextLevel "next-level" ["c"] "level" "of a running controller: what it says, the whole network, then each level, and back";
        TakePen "take-pen" ["T"] "take pen" "take the pen: one terminal decides, the others watch";
        Detach "detach" ["q"] "detach" "leave; the session keeps running (`paring attach` comes back)";
    }
    "View" {
        View1 "view-review" ["1"] "review" "review: layers, agents, decision";
        View2 "view-evaluate" ["2"] "evaluate" "evaluate: baseline and rounds side by side";
        View3 "view-agents" ["3"] "agents" "agents: transcripts and what was sent";
        View4 "view-timeline" ["4"] "timeline" "timeline: every event, with undo, and the way back to what was decided after any";
        View5 "view-report" ["5"] "report" "report: the session as Markdown";
        View6 "view-control" ["6"] "controller" "controller: levels of a language model, and who chooses one for every token";
        View7 "view-plans" ["7", "="] "plans" "plans: what is shown beside the planner's, a kept plan or an earlier round";
        View8 "view-row" ["8", "D"] "row" "all that is known of this row: its group at every width, its precisions, its place, what was decided";
        View9 "view-profile" ["9"] "profile" "profile, a page at a time: roofline, memory over the run, where the time goes, how it scatters, the machine";
        NextLayout "next-layout" ["|"] "layout" "share the review's panes out otherwise: as usual, more for the list, for the agents, for the card, and back";
        Grow "grow" [")"] "larger" "make the pane that has the keys larger";
        Shrink "shrink" ["("] "smaller" "make it smaller";
        Follow "follow" ["f"] "follow" "follow the stream, or stop following";
        Yank "yank" ["y"] "copy" "copy this pane's text to the clipboard and a file";
        Explain "explain" ["K"] "explain" "what the figures of this row and the words on this screen mean, and how they were measured";
        Command "command" [":"] "command" "command line";
        Help "help" ["?"] "help" "this help";
        Cancel "cancel" ["esc"] "back" "drop the edit, the filter or the dialog";
        Redraw "redraw" ["ctrl-l"] "redraw" "paint the whole screen again";
        Suspend "suspend" ["ctrl-z"] "suspend" "back to the shell until `fg`";
    }
}

impl Act {
    pub fn spec(self) -> &'static ActSpec {
        // ACTS is generated from the same list as the enum, in the same order.
        &ACTS[self as usize]
    }
}

/// Keys to actions and back.
#[derive(Debug, Clone, PartialEq)]
pub struct Keymap {
    by_key: HashMap<Key, Act>,
    keys: Vec<Vec<Key>>,
    /// By action: the file that gave its keys; `None` while they are the defaults.
    given_by: Vec<Option<String>>,
}

impl Default for Keymap {
    fn default() -> Keymap {
        let keys: Vec<Vec<Key>> = ACTS.iter().map(|s| s.keys.iter().filter_map(|k| Key::parse(k)).collect()).collect();
        let mut map = Keymap { by_key: HashMap::new(), keys, given_by: vec![None; ACTS.len()] };
        map.index();
        map
    }
}

impl Keymap {
    fn index(&mut self) {
        self.by_key = ACTS.iter().zip(&self.keys).flat_map(|(s, keys)| keys.iter().map(move |k| (*k, s.act))).collect();
    }

    pub fn act(&self, key: Key) -> Option<Act> {
        self.by_key.get(&key).copied()
    }

    /// The keys of an action; the first is the one to show.
    pub fn keys(&self, act: Act) -> &[Key] {
        self.keys.get(act as usize).map_or(&[], Vec::as_slice)
    }

    /// The key to show for an action, or `-` when the user unbound it.
    pub fn label(&self, act: Act) -> String {
        self.keys(act).first().map_or_else(|| "-".into(), Key::to_string)
    }

    /// Takes a `[keys]` table: `approve = "a"` or `approve = ["a", "y"]`; an empty list unbinds.
    pub fn merge(&mut self, table: &toml::Table, origin: &str, diagnostics: &mut Vec<Diagnostic>) {
        let mut changed: Vec<usize> = Vec::new();
        for (id, value) in table {
            let mut complain = |message: String, hint: String| {
                diagnostics.push(Diagnostic::new(origin, format!("keys.{id}"), message, hint));
            };
            let Some(i) = ACTS.iter().position(|s| s.id == id) else {
                complain("unknown action".into(), suggestion(id, ACTS.iter().map(|s| s.id)));
                continue;
            };
            let words: Option<Vec<&str>> = match value {
                toml::Value::String(s) => Some(vec![s.as_str()]),
                toml::Value::Array(a) => a.iter().map(|v| v.as_str()).collect(),
                _ => None,
            };
            let Some(words) = words else {
                complain(
                    "is neither a key nor a list of keys".into(),
                    "for example \"a\" or [\"a\", \"ctrl-a\"]".into(),
                );
                continue;
            };
            match words.iter().map(|w| Key::parse(w).ok_or(*w)).collect::<Result<Vec<Key>, &str>>() {
                Ok(keys) => {
                    self.keys[i] = keys;
                    self.given_by[i] = Some(origin.to_owned());
                    changed.push(i);
                }
                Err(word) => {
                    let names = NAMED.iter().map(|(n, _)| *n);
                    complain(format!("`{word}` is not a key"), format!("a character, or {}", suggestion(word, names)));
                }
            }
        }
        for &i in &changed {
            self.settle(i, &changed, origin, diagnostics);
        }
        self.index();
    }

    /// Makes action `i`'s keys its own. A default of another action gives way, as long as that keeps a key; two bindings
    /// of the user's own are a conflict, whichever files they stand in, and so is taking the only key of an action: what
    /// it does could no longer be asked for, without a word.
    fn settle(&mut self, i: usize, changed: &[usize], origin: &str, diagnostics: &mut Vec<Diagnostic>) {
        let mine = self.keys[i].clone();
        for j in (0..self.keys.len()).filter(|j| *j != i) {
            let Some(k) = self.keys[j].iter().find(|k| mine.contains(k)).copied() else { continue };
            let (id, other) = (ACTS[i].id, ACTS[j].id);
            let mut complain = |id: &str, message: String, hint: String| {
                diagnostics.push(Diagnostic::new(origin, format!("keys.{id}"), message, hint));
            };
            let another = "give one of them another key".to_owned();
            match &self.given_by[j] {
                // Told once, at the later of the two.
                Some(_) if changed.contains(&j) && j < i => {}
                Some(_) if changed.contains(&j) => complain(other, format!("`{k}` is also bound to `{id}`"), another),
                Some(file) => complain(id, format!("`{k}` is also bound to `{other}`, in {file}"), another),
                None if self.keys[j].iter().all(|k| mine.contains(k)) => {
                    let hint = format!("give `{other}` another key as well, or `{other} = []` to do without");
                    complain(id, format!("`{k}` is the only key of `{other}`"), hint);
                }
                None => self.keys[j].retain(|k| !mine.contains(k)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_default_table_is_sound() {
        let map = Keymap::default();
        let mut seen = HashSet::new();
        for spec in ACTS {
            assert_eq!(spec.act.spec().id, spec.id);
            assert_eq!(map.keys(spec.act).len(), spec.keys.len(), "{}: a key does not parse", spec.id);
            for key in map.keys(spec.act) {
                assert!(seen.insert(*key), "{key} is bound twice");
                assert_eq!(Key::parse(&key.to_string()), Some(*key));
                assert_eq!(map.act(*key), Some(spec.act));
            }
            let needs_modifier = map.keys(spec.act).iter().all(|k| k.ctrl || k.alt);
            let conventional = matches!(spec.act, Act::Redraw | Act::Suspend);
            assert!(!needs_modifier || conventional, "{} needs a modifier", spec.id);
            assert!(!spec.short.is_empty() && !spec.long.is_empty());
        }
    }

    #[test]
    fn users_override_by_name() {
        let mut map = Keymap::default();
        let mut d = Vec::new();
        map.merge(&"approve = [\"+\", \"ctrl-a\"]\nveto = \"j\"".parse().unwrap(), "test", &mut d);
        assert!(d.is_empty(), "{d:?}");
        let key = |s| Key::parse(s).unwrap();
        assert_eq!(map.act(key("+")), Some(Act::Approve));
        assert_eq!(map.act(key("a")), None);
        assert_eq!(map.act(key("j")), Some(Act::Veto), "the user's choice wins over another action's default");
        assert_eq!(map.keys(Act::Down), [key("down")]);
        assert_eq!(map.label(Act::Approve), "+");

        map.merge(&"aprove = \"a\"\nveto = \"ctrl-\"\nrun = 3".parse().unwrap(), "test", &mut d);
        let text: Vec<String> = d.iter().map(ToString::to_string).collect();
        assert_eq!(d.len(), 3, "{text:?}");
        assert!(text[0].contains("did you mean `approve`?"), "{text:?}");
        d.clear();
        map.merge(&"run = \"=\"\naccept = \"=\"".parse().unwrap(), "test", &mut d);
        assert_eq!(d.len(), 1);
        assert!(d[0].message.contains("also bound"), "{}", d[0]);
    }

    #[test]
    fn conflicts_are_refused_with_both_names() {
        let said = |files: &[&str]| -> Vec<String> {
            let (mut map, mut d) = (Keymap::default(), Vec::new());
            for (i, text) in files.iter().enumerate() {
                map.merge(&text.parse().unwrap(), &format!("file {i}"), &mut d);
            }
            d.iter().map(ToString::to_string).collect()
        };
        for files in [
            &["run = \"=\"\naccept = \"=\""][..],
            &["run = \"=\"", "accept = [\"+\", \"=\"]"],
            &["accept = \"R\""],
            &["run = \"C\""],
        ] {
            let said = said(files);
            assert_eq!(said.len(), 1, "{files:?}: {said:?}");
            assert!(said[0].contains("`keys.") && said[0].contains("accept") && said[0].contains("run"), "{}", said[0]);
        }
        for sound in [
            &["accept = \"R\"\nrun = \"C\""][..],
            &["accept = \"R\"\nrun = []"],
            &["veto = \"j\""],
            &["run = \"=\"", "run = \"+\"\naccept = \"=\""],
        ] {
            assert_eq!(said(sound), [] as [String; 0], "{sound:?}");
        }
    }
}
