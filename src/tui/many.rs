//! Deciding about one row or many with the same keys: of the selection, else of the block under the cursor, else of its row.
//!
//! Each group moves by its own steps, each layer takes what fits it; rows that cannot take something are counted, and why is said. Not here:
//! which rows are selected (`select`), what becomes of drafts (`decide`).

use super::app::{App, Draft, Level, Pane};
use super::decide::unit;
use super::list::RowRef;
use super::modal::{Ask, parse_kept};
use crate::config::Act;
use crate::config::text::clean;
use crate::plan::{Action, Target, check};
use crate::prune::{Group, Rank, Sparsity};
use crate::quant::Precision;
use crate::words::counted;
use std::collections::BTreeSet;

/// Rows that are named, of those that cannot take something.
const NAMED: usize = 2;

/// Of one row, and of several.
const NO_WEIGHTS: (&str, &str) = ("has no weights of its own", "have no weights of their own");

/// Why a row takes nothing, with its name.
type Left = (String, String);

impl App {
    /// Layers that a decision is for.
    pub(super) fn acted(&self) -> BTreeSet<usize> {
        let selected = self.selected();
        match self.list.current() {
            _ if !selected.is_empty() => selected,
            Some(row) => self.layers_of(row).into_iter().collect(),
            None => BTreeSet::new(),
        }
    }

    /// A decision is for more than the row under the cursor.
    pub(super) fn many(&self) -> bool {
        !self.selection.is_empty() || matches!(self.list.current(), Some(RowRef::Block(_)))
    }

    /// Groups that the ratio keys move for `rows`: of several rows those that they lead, since a group that only runs through them reaches
    /// far beyond; where they lead none, theirs.
    pub(super) fn groups_of(&self, rows: &BTreeSet<usize>) -> Vec<&Group> {
        let layers = || rows.iter().filter_map(|i| self.table.layers.get(*i));
        let led = |l: &&super::table::Layer| l.leads;
        let mut all: Vec<usize> = match rows.len() > 1 && layers().any(|l| l.leads) {
            true => layers().filter(led).filter_map(|l| l.group).collect(),
            false => layers().filter_map(|l| l.group).collect(),
        };
        all.sort_unstable();
        all.dedup();
        all.into_iter().filter_map(|g| self.groups().get(g)).collect()
    }

    /// Names of the layers among `rows` that have a precision to choose.
    pub(super) fn precise(&self, rows: &BTreeSet<usize>) -> Vec<String> {
        let layers = rows.iter().filter_map(|i| self.table.layers.get(*i));
        layers.filter(|l| l.weighty || l.caches).map(|l| l.name.clone()).collect()
    }

    /// All that is or could be decided on `rows`, and on blocks that lie among them whole.
    pub(super) fn targets_of_rows(&self, rows: &BTreeSet<usize>) -> Vec<Target> {
        let mut out: Vec<Target> = Vec::new();
        let whole = |b: &&super::table::Block| b.removable && b.layers.iter().all(|i| rows.contains(i));
        out.extend(self.table.blocks.iter().filter(whole).map(|b| Target::Block(b.name.clone())));
        out.extend(self.groups_of(rows).into_iter().map(|g| Target::Group(g.id.clone())));
        for name in self.precise(rows) {
            out.push(Target::Layer(name.clone()));
            let weights = Target::Weights(name);
            if self.shown(&weights).decided() {
                out.push(weights);
            }
        }
        out
    }

    /// Why `action` cannot be decided on `target`, as far as that is known without the host.
    pub(super) fn refuses(&self, target: &Target, action: &Action) -> Option<String> {
        let card = self.state.card.as_ref()?;
        let here = self.state.planned(target);
        if here.frozen.is_some() && here.open.is_none() && here.approved.is_none() {
            let reopen = self.label(Act::Reopen);
            return Some(format!(
                "{target} is vetoed or frozen; hint: {reopen} reopens it, or `:lift {}`",
                target.name()
            ));
        }
        let constraints = &self.state.constraints;
        check(action, target, &card.groups, &card.graph, constraints).err().map(|e| e.to_string())
    }

    /// What of `edits` can stand, and why the others cannot.
    fn sift(&self, edits: Vec<(Target, Action)>) -> (Vec<Draft>, Vec<Left>) {
        let (mut fit, mut left): (Vec<Draft>, Vec<Left>) = Default::default();
        for (target, action) in edits {
            match self.refuses(&target, &action) {
                Some(why) => left.push((clean(target.name()).into_owned(), why)),
                None => fit.push(Draft { target, action }),
            }
        }
        (fit, left)
    }

    /// Makes a draft of each of `edits` that can stand, and says of the others why not; `what` names what was asked for, `aside` the rows that it
    /// is not for.
    fn draft_all(&mut self, what: &str, edits: Vec<(Target, Action)>, aside: &str) {
        let (fit, left) = self.sift(edits);
        let keys = format!("; {} keeps, {} drops it", self.label(Act::Confirm), self.label(Act::Cancel));
        self.tell_of(what, fit.len(), &left, &format!("{aside}{}", if fit.is_empty() { "" } else { &keys }));
        self.set_drafts(fit);
    }

    /// Rows among `rows` that the ratio keys leave alone while they move `groups`, in words with why; empty where there are none.
    fn unmoved(&self, rows: &BTreeSet<usize>, groups: &[&Group]) -> String {
        let layers = || rows.iter().filter_map(|i| self.table.layers.get(*i));
        let moved = |g: usize| self.groups().get(g).is_some_and(|g| groups.iter().any(|m| m.id == g.id));
        let none = layers().filter(|l| l.group.is_none()).count();
        let elsewhere = layers().filter(|l| l.group.is_some_and(|g| !moved(g))).count();
        aside(&[
            (none, "has no group to prune", "have no group to prune"),
            (elsewhere, "goes with rows elsewhere", "go with rows elsewhere"),
        ])
    }

    /// Selected rows without a decision that waits, in words; none where each has one, or nothing is selected.
    pub(super) fn without_open(&self) -> Option<String> {
        let rows = if self.pane == Pane::Decision { BTreeSet::new() } else { self.selected() };
        let waits = |i: &usize| {
            let targets = self.targets_of_rows(&BTreeSet::from([*i]));
            targets.iter().any(|t| super::decide::approvable(&self.shown(t)))
        };
        let idle = rows.iter().filter(|i| !waits(i)).count();
        (idle > 0)
            .then(|| aside(&[(idle, "has nothing open", "have nothing open")]).trim_start_matches("; ").to_owned())
    }

    /// Says how many rows take what was asked for, and which do not and why; nothing of one row that takes it, which shows it.
    fn tell_of(&mut self, what: &str, fit: usize, left: &[Left], keys: &str) {
        match (fit, left) {
            (0, [(_, why), ..]) if !self.many() => self.say(Level::Warn, why.clone()),
            (_, []) if !self.many() => {}
            (n, left) => {
                let names = left.iter().take(NAMED).map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
                let more = if left.len() > NAMED { ", …" } else { "" };
                let rest = left.first().map(|(_, why)| format!("; {} not: {names}{more} ({why})", left.len()));
                let level = if left.is_empty() { Level::Info } else { Level::Warn };
                self.say(level, format!("{what}: {}{}{keys}", counted(n, "edit"), rest.unwrap_or_default()));
            }
        }
    }

    /// Removes `steps` more steps of each group, or fewer.
    pub(super) fn drag(&mut self, steps: isize) {
        let rows = self.acted();
        let groups = self.groups_of(&rows);
        if groups.is_empty() {
            let why = self.row_layer().and_then(|l| self.protection(&l.name));
            let none = || if self.many() { "no group to prune in these rows" } else { "no group to prune on this row" };
            return self.nothing(why.unwrap_or_else(|| none().to_owned()));
        }
        // At an end a key has an answer too.
        if groups.iter().all(|g| self.moved(g, steps) == self.kept_of(&Target::Group(g.id.clone()))) {
            let (ends, words) = match (steps > 0, groups.as_slice()) {
                (true, [one]) => {
                    (format!("{} of {} are left", one.granule.max(1).min(one.size), one.size), "no more can go")
                }
                (true, _) => ("the least is left of each".to_owned(), "no more can go"),
                (false, _) => ("all units are kept".to_owned(), "none to bring back"),
            };
            return self.nothing(format!("{ends}: {words}"));
        }
        let aside = self.unmoved(&rows, &groups);
        let edits = groups.iter().map(|g| self.dragged(g, steps)).collect();
        self.draft_all("ratio", edits, &aside);
    }

    /// Units of a group that are left with `steps` more of its steps removed.
    fn moved(&self, g: &Group, steps: isize) -> usize {
        let (size, granule) = (g.size, g.granule.max(1));
        // A step of at least 1/64 keeps wide groups draggable.
        let step = granule * (size / granule / 64).max(1);
        let now = self.kept_of(&Target::Group(g.id.clone())) as isize;
        (now - steps * step as isize).clamp(granule.min(size) as isize, size as isize) as usize
    }

    /// A group with `steps` more of its steps removed.
    fn dragged(&self, g: &Group, steps: isize) -> (Target, Action) {
        (Target::Group(g.id.clone()), keeping(g, self.moved(g, steps)))
    }

    /// The rows at `precision`.
    pub(super) fn set_precision(&mut self, precision: Precision) {
        let rows = self.acted();
        let layers = self.precise(&rows);
        if layers.is_empty() {
            return self.nothing("there are no weights to quantize here");
        }
        let others = aside(&[(rows.len() - layers.len(), NO_WEIGHTS.0, NO_WEIGHTS.1)]);
        let edit = |name: String| (Target::Layer(name), Action::Precision { precision });
        self.draft_all(precision.label(), layers.into_iter().map(edit).collect(), &others)
    }

    /// The next precision that any of the rows takes, for all that take it.
    pub(super) fn next_precision(&mut self) {
        let layers = self.precise(&self.acted());
        let target = |name: &String| Target::Layer(name.clone());
        let drafted = layers.iter().find(|l| self.drafts.iter().any(|d| d.target == target(l)));
        let Some(first) = drafted.or(layers.first()) else {
            return self.nothing("there are no weights to quantize here");
        };
        let now = self.precision_of(&self.shown(&target(first)), first);
        let takes = |p: &Precision| layers.iter().any(|l| self.precisions(l).contains(p));
        let language = self.state.card.as_ref().is_some_and(|c| c.graph.is_language_model());
        let all: Vec<Precision> = Precision::menu(language).iter().copied().filter(takes).collect();
        let i = all.iter().position(|p| *p == now).unwrap_or(0);
        if let Some(next) = all.get((i + 1) % all.len().max(1)).copied() {
            self.set_precision(next);
        }
    }

    /// Zeros among the rows' weights, or none after all.
    pub(super) fn set_sparsity(&mut self, sparsity: Option<Sparsity>) {
        let what = sparsity.map_or("no zeros".to_owned(), |s| s.to_string());
        let action = sparsity.map_or(Action::Keep, |sparsity| Action::Sparsify { sparsity });
        self.set_weights(&what, |_| Ok(action.clone()))
    }

    /// Gives the rows' weights low-rank factors, or takes the wish for them back.
    pub(super) fn set_factors(&mut self, rank: Option<Rank>) {
        let graph = self.state.card.as_ref().map(|c| c.graph.clone());
        self.set_weights("factors", |name| match (rank, &graph) {
            (Some(rank), Some(graph)) => {
                let node = graph.by_name(name).map(|id| graph.node(id));
                let rank = node.map(|node| rank.of(&node.op)).transpose()?;
                Ok(rank.map_or(Action::Keep, |rank| Action::Factorise { rank }))
            }
            _ => Ok(Action::Keep),
        })
    }

    fn set_weights(&mut self, what: &str, action: impl Fn(&str) -> Result<Action, String>) {
        let acted = self.acted();
        let rows = acted.iter().filter_map(|i| self.table.layers.get(*i)).filter(|l| l.weighty);
        let edits: Vec<(String, Result<Action, String>)> = rows.map(|l| (l.name.clone(), action(&l.name))).collect();
        let others = aside(&[(acted.len() - edits.len(), NO_WEIGHTS.0, NO_WEIGHTS.1)]);
        match edits.iter().find_map(|(_, a)| a.as_ref().err()) {
            _ if edits.is_empty() => return self.nothing("this row has no weights of its own"),
            Some(why) if edits.iter().all(|(_, a)| a.is_err()) => return self.nothing(why.clone()),
            _ => {}
        }
        let fit = edits.into_iter().filter_map(|(name, action)| Some((Target::Weights(name), action.ok()?)));
        self.draft_all(what, fit.collect(), &others)
    }

    /// Asks for an exact ratio or number of units, beginning with the one that is there.
    pub(super) fn edit(&mut self) {
        let rows = self.acted();
        let groups = self.groups_of(&rows);
        let Some(first) = groups.first() else { return self.nothing("no group to prune here") };
        let target = |g: &Group| Target::Group(g.id.clone());
        let (title, hint) = match groups.len() {
            1 => (
                format!("{} of {} to keep", unit(first), first.size),
                format!("a ratio to remove (0.375, 37.5%) or a number to keep; steps of {}", first.granule),
            ),
            n => (
                format!("part of {n} groups to remove"),
                "a ratio (0.375, 37.5%), or a number of units to keep of each; each by its own steps".to_owned(),
            ),
        };
        let kept = |g: &Group| self.kept_of(&target(g));
        let ratio = |g: &Group| format!("{:.1}%", 100.0 * g.ratio_of(kept(g)));
        let now = match groups.len() {
            1 => kept(first).to_string(),
            // What they have in common, if anything.
            _ if groups.iter().all(|g| ratio(g) == ratio(first)) => ratio(first),
            _ => String::new(),
        };
        let targets = groups.iter().map(|g| target(g)).collect();
        self.prompt_over(Ask::Edit(targets), title, hint, &now)
    }

    /// Takes the answer to [`App::edit`].
    pub(super) fn edited(&mut self, targets: &[Target], text: &str) {
        let groups: Vec<Group> = targets.iter().filter_map(|t| self.group(t.name()).cloned()).collect();
        let (mut edits, mut left): (Vec<(Target, Action)>, Vec<Left>) = Default::default();
        for g in &groups {
            match parse_kept(text, g.size) {
                Ok(kept) => edits.push((Target::Group(g.id.clone()), keeping(g, g.kept_at(g.ratio_of(kept))))),
                Err(why) => left.push((clean(&g.id).into_owned(), why)),
            }
        }
        if let (true, Some((_, why))) = (edits.is_empty(), left.first()) {
            return self.say(Level::Bad, why.clone());
        }
        let (fit, refused) = self.sift(edits);
        left.extend(refused);
        self.tell_of(text, fit.len(), &left, "");
        self.set_drafts(fit);
        self.commit();
    }
}

/// Rows that something is not for, each kind with its reason for one row and for several; nothing of kinds without rows.
fn aside(kinds: &[(usize, &str, &str)]) -> String {
    let told = kinds.iter().filter(|(n, ..)| *n > 0);
    told.map(|(n, one, more)| format!("; {} {}", counted(*n, "row"), if *n == 1 { one } else { more })).collect()
}

/// A cut of `g` that keeps so many; none where all stay.
fn keeping(g: &Group, kept: usize) -> Action {
    match kept >= g.size {
        true => Action::Keep,
        false => Action::Prune { ratio: 1.0 - kept as f64 / g.size.max(1) as f64, kept: Vec::new() },
    }
}
