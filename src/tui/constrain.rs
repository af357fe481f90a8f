//! Binding rows: what `:freeze`, `:keep-f32`, `:max-ratio` and `:lift` mean, for the row under the cursor, for one that is named, and for all that a
//! pattern matches.
//!
//! Not here: what a constraint refuses (`plan/check`).

use super::app::{App, Level};
use super::list::RowRef;
use crate::config::text::{clean, glob};
use crate::config::{Act, Policy};
use crate::plan::{Constraint, Limit, Target, Wish};
use crate::session::Command;
use std::path::Path;

impl App {
    pub(super) fn constrain(&mut self, limit: Limit, reason: String) {
        let about = limit.clone();
        let fits = |t: &Target| match &about {
            Limit::Freeze | Limit::Prefer { wish: Wish::Cut | Wish::Spare } => {
                matches!(t, Target::Group(_) | Target::Block(_))
            }
            Limit::MaxRatio { .. } | Limit::MinRatio { .. } => matches!(t, Target::Group(_)),
            Limit::KeepF32 | Limit::Prefer { wish: Wish::Precision { .. } } => matches!(t, Target::Layer(_)),
            Limit::Together { .. } => matches!(t, Target::Group(_) | Target::Layer(_)),
        };
        // Whoever begins with a name means what is called so, not the row under the cursor; a pattern means all that it matches.
        let word = reason.split_whitespace().next().unwrap_or_default();
        if word.contains('*') {
            let rest = reason.trim_start().strip_prefix(word).unwrap_or_default().trim().to_owned();
            return self.constrain_all(word, limit, &rest, fits);
        }
        let layer = self.table.layers.iter().position(|l| l.name == word).map(RowRef::Layer);
        let named = layer.or_else(|| self.table.blocks.iter().position(|b| b.name == word).map(RowRef::Block));
        let reason = match named {
            Some(_) => reason.trim_start().strip_prefix(word).unwrap_or_default().trim().to_owned(),
            None => reason,
        };
        if named.is_none() && !self.selection.is_empty() {
            let mut targets = self.targets_of_rows(&self.selected());
            targets.retain(fits);
            let undo = format!("{} takes that back", self.label(Act::Undo));
            return self.bind_all(targets, limit, &reason, "in the rows that are selected", &undo);
        }
        let target = named.or(self.list.current()).and_then(|r| self.targets_of(r).into_iter().find(fits));
        let Some(target) = target else { return self.nothing("there is nothing that could be bound so") };
        let bound = match limit {
            Limit::Freeze => format!("{target}: nothing new here from now on"),
            Limit::MaxRatio { ratio } => format!("{target}: at most {:.0} % of it may go", 100.0 * ratio),
            Limit::MinRatio { ratio } => format!("{target}: at least {:.0} % of it shall go", 100.0 * ratio),
            Limit::KeepF32 => format!("{target}: stays f32"),
            Limit::Together { .. } => return self.nothing("several are kept together; hint: `:together layer1.*`"),
            Limit::Prefer { wish } => format!("{target}: {wish}"),
        };
        if self.sends(Command::Constrain { constraint: Constraint { target, limit, reason } }) {
            self.say(Level::Good, bound);
        }
    }

    /// Binds everything that `pattern` matches and `fits`.
    fn constrain_all(&mut self, pattern: &str, limit: Limit, reason: &str, fits: impl Fn(&Target) -> bool) {
        let layers = (0..self.table.layers.len()).map(RowRef::Layer);
        let rows: Vec<RowRef> = layers.chain((0..self.table.blocks.len()).map(RowRef::Block)).collect();
        let mut targets: Vec<Target> = rows.into_iter().flat_map(|row| self.targets_of(row)).collect();
        targets.retain(|t| fits(t) && glob(pattern, t.name(), None));
        targets.sort();
        targets.dedup();
        self.bind_all(targets, limit, reason, &format!("called `{pattern}`"), &format!("`:lift {pattern}` lifts that"))
    }

    /// Binds `targets`, which are all that there are `of` something, in one step; `back` says how that is taken back.
    fn bind_all(&mut self, targets: Vec<Target>, limit: Limit, reason: &str, of: &str, back: &str) {
        if targets.is_empty() {
            return self.nothing(format!("nothing that could be bound so is {of}"));
        }
        let count = crate::words::counted(targets.len(), "target");
        let bind = |target| Constraint { target, limit: limit.clone(), reason: reason.to_owned() };
        if self.sends(Command::Bind { constraints: targets.into_iter().map(bind).collect() }) {
            self.say(Level::Good, format!("{count} bound; {back}"));
        }
    }

    /// Binds what the rules of a file name, in one step.
    pub(super) fn bind_rules(&mut self, file: &str) {
        let Some(card) = &self.state.card else { return self.nothing("no session is open") };
        let bound = Policy::of_file(Path::new(file.trim())).and_then(|rules| rules.bind(card));
        match bound {
            Err(why) => self.say(Level::Bad, why),
            Ok(constraints) if constraints.is_empty() => self.nothing("the file binds nothing"),
            Ok(constraints) => {
                let count = crate::words::counted(constraints.len(), "target");
                if self.sends(Command::Bind { constraints }) {
                    self.say(Level::Good, format!("{count} bound by `{}`; undo takes that back", clean(file.trim())));
                }
            }
        }
    }

    /// Lifts what binds this row or those that are selected, or where a pattern is given everything that is called so.
    pub(super) fn lift(&mut self, pattern: &str) {
        let of_row = || match self.selection.is_empty() {
            true => self.list.current().map(|r| self.targets_of(r)).unwrap_or_default(),
            false => self.targets_of_rows(&self.selected()),
        };
        let named = |t: &Target| glob(pattern, t.name(), None);
        let all = self.state.constraints.iter().map(|c| c.target.clone());
        let targets: Vec<Target> = if pattern.is_empty() { of_row() } else { all.filter(named).collect() };
        let mut bound: Vec<Target> =
            targets.into_iter().filter(|t| self.state.constraints_on(t).next().is_some()).collect();
        bound.sort();
        bound.dedup();
        if bound.is_empty() {
            let what = if pattern.is_empty() { "this row".to_owned() } else { format!("what is called `{pattern}`") };
            self.say(Level::Info, format!("no constraint on {what}"));
        }
        match <[Target; 1]>::try_from(bound) {
            Ok([target]) => self.command(Command::Unconstrain { target }),
            Err(targets) if targets.is_empty() => {}
            Err(targets) => self.command(Command::Lift { targets }),
        }
    }
}
