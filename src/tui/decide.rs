//! Deciding: drafts while a ratio is dragged, and the commands that approve, veto, reopen and edit.
//!
//! A draft lives here only; it becomes durable when it is confirmed, when the cursor leaves its row, or when the row is
//! approved. The host rounds and clamps what it gets; the screen steps by the group's granule so that it agrees.

use super::app::{App, Draft, Level, Pane, Sent, Shown, View};
use super::list::RowRef;
use super::modal::Ask;
use super::standing;
use super::table::{Block, Layer};
use crate::config::Act;
use crate::config::text::clean;
use crate::plan::{Action, DecisionId, Limit, Target, same_cut};
use crate::prune::Group;
use crate::quant::Precision;
use crate::session::{Command, Standing};

const NO_BLOCK: &str = "this row lies in no block";

/// Can be approved: open, or a draft that is not durable yet.
pub(super) fn approvable(s: &Shown) -> bool {
    s.open() || s.drafting
}

pub(super) fn vetoable(s: &Shown) -> bool {
    !matches!(s.standing, Standing::Vetoed | Standing::Leaving { .. })
}

/// Waits for the engineer or for the next run.
fn refusable(s: &Shown) -> bool {
    s.open() || s.standing == Standing::Approved
}

fn in_force(s: &Shown) -> bool {
    matches!(s.standing, Standing::InForce { .. })
}

/// Approved, vetoed or rolled back: can be taken back to what it was.
pub(super) fn closed(s: &Shown) -> bool {
    match s.standing {
        Standing::Approved | Standing::Leaving { .. } | Standing::Vetoed | Standing::RolledBack => true,
        Standing::Free | Standing::Proposed | Standing::Edited | Standing::InForce { .. } => false,
    }
}

impl App {
    pub(super) fn row_layer(&self) -> Option<&Layer> {
        match self.list.current()? {
            RowRef::Layer(i) => self.table.layers.get(i),
            RowRef::Block(_) => None,
        }
    }

    fn row_block_index(&self) -> Option<usize> {
        match self.list.current()? {
            RowRef::Block(b) => Some(b),
            RowRef::Layer(i) => self.table.layers.get(i)?.block,
        }
    }

    pub(super) fn row_block(&self) -> Option<&Block> {
        self.table.blocks.get(self.row_block_index()?)
    }

    /// What approve, veto and reopen act on: the selected line of the card when it has the keys, else the rows that are selected, else the row
    /// or the block under the cursor.
    pub(super) fn chosen(&self) -> Vec<Shown> {
        if self.pane == Pane::Decision {
            return self.focused().into_iter().collect();
        }
        match self.list.current() {
            _ if !self.selection.is_empty() => {
                self.targets_of_rows(&self.selected()).iter().map(|t| self.shown(t)).collect()
            }
            Some(RowRef::Block(b)) => self.targets_in_block(b).iter().map(|t| self.shown(t)).collect(),
            _ => self.row_shown(),
        }
    }

    /// Whether anything can be decided now; says why not. `settling`: an edit in progress may be confirmed.
    fn may_decide(&mut self, settling: bool) -> bool {
        if self.view != View::Review {
            self.nothing("decisions are made in the review view (1)");
            return false;
        }
        let may = self.reviewable() || settling;
        if !may && self.state.phase == crate::session::Phase::Verdict {
            let (accept, back) = (self.label(Act::Accept), self.label(Act::RollBack));
            self.nothing(format!("the round waits: {accept} accepts it, {back} rolls it back"));
        } else if !may {
            self.nothing("a run is under way; decisions can be made again after it");
        }
        may
    }

    /// Does what a key asks for where decisions can be made now.
    pub(super) fn decide(&mut self, deed: impl Fn(&mut App)) {
        if self.may_decide(false) {
            deed(self);
        }
    }

    pub(super) fn reopen(&mut self) {
        let closed: Vec<Shown> = self.chosen().into_iter().filter(closed).collect();
        let ids: Vec<DecisionId> = closed.iter().filter_map(|s| s.id).collect();
        // A veto of what nobody had decided on is a constraint alone.
        let alone: Vec<Target> = closed.into_iter().filter(|s| s.id.is_none()).map(|s| s.target).collect();
        if alone.is_empty() || !ids.is_empty() {
            return self.ids(ids, "nothing approved, vetoed or rolled back here", |ids| Command::Reopen { ids });
        }
        match alone.iter().find(|t| self.state.constraints_on(t).any(|c| c.limit != Limit::Freeze)) {
            Some(t) => {
                let text = format!("more than a veto binds {t}; hint: `:lift {}` lifts all of it", clean(t.name()));
                self.say(Level::Warn, text)
            }
            None => self.command(Command::Lift { targets: alone }),
        }
    }

    pub(super) fn remove_block(&mut self) {
        let Some(b) = self.row_block() else { return self.nothing(NO_BLOCK) };
        if !b.removable {
            return self.nothing("this block changes the shape, so it cannot be removed");
        }
        let target = Target::Block(b.name.clone());
        let action = match self.shown(&target).action {
            Action::RemoveBlock => Action::Keep,
            _ => Action::RemoveBlock,
        };
        self.set_draft(target, action)
    }

    /// Keeps the edit in progress; without one, opens what the row shows.
    pub(super) fn confirm(&mut self) {
        if !self.may_decide(true) {
            return;
        }
        if !self.drafts.is_empty() {
            return self.commit();
        }
        if let Some(RowRef::Block(_)) = self.list.current() {
            return self.act(Act::ToggleFold);
        }
        self.pane = if self.pane == Pane::Decision { Pane::Layers } else { Pane::Decision };
        self.outlook_stale = true;
    }

    pub(super) fn approve_block(&mut self) {
        let Some(block) = self.row_block_index() else { return self.nothing(NO_BLOCK) };
        let targets = self.targets_in_block(block);
        self.approve_targets(&targets)
    }

    /// Approves in all rows that the filter lets through, folded or not.
    pub(super) fn approve_shown(&mut self) {
        let rows = self.list.shown.iter().flat_map(|row| match *row {
            RowRef::Block(b) if self.list.filter.is_empty() => self.targets_in_block(b),
            row => self.targets_of(row),
        });
        let targets: Vec<Target> = rows.collect();
        self.approve_targets(&targets)
    }

    fn ids(&mut self, ids: Vec<DecisionId>, none: &str, f: impl Fn(Vec<DecisionId>) -> Command) {
        if ids.is_empty() {
            return self.nothing(none);
        }
        self.command(f(ids))
    }

    /// Keeps the edit in progress; then what of `targets` can be approved now. What is on its way is approved once it is
    /// durable, whether there is any such thing is told too: it may be refused, and what it was to replace must not be
    /// approved in its place.
    fn open_of(&mut self, targets: &[Target]) -> (Vec<DecisionId>, bool) {
        self.commit();
        let on_its_way = |t: &&Target| self.sent.iter().any(|s| s.draft.target == **t);
        let (later, now): (Vec<&Target>, Vec<&Target>) = targets.iter().partition(on_its_way);
        let ids = now.iter().map(|t| self.shown(t)).filter(Shown::open).filter_map(|s| s.id).collect();
        for t in &later {
            if !self.approve_next.contains(t) {
                self.approve_next.push((*t).clone());
            }
        }
        (ids, !later.is_empty())
    }

    fn approve_targets(&mut self, targets: &[Target]) {
        let before = self.effects.len();
        let (mut ids, _) = self.open_of(targets);
        ids.sort_unstable();
        ids.dedup();
        let (n, kept) = (ids.len(), self.effects.len());
        if n == 0 && kept > before {
            return;
        }
        self.ids(ids, "no open decision here", |ids| Command::Approve { ids });
        if self.effects.len() > kept {
            self.say(Level::Good, format!("approving {}", crate::words::counted(n, "decision")));
        }
    }

    pub(super) fn approve(&mut self) {
        let targets: Vec<Target> = self.chosen().into_iter().map(|s| s.target).collect();
        let aside = self.without_open();
        let (ids, waits) = self.open_of(&targets);
        let n = ids.len();
        if !ids.is_empty() || !waits {
            let keys =
                [Act::RatioDown, Act::RatioUp, Act::Precision, Act::RemoveBlock, Act::Edit].map(|a| self.label(a));
            let [less, more, precision, block, edit] = keys;
            let none =
                format!("nothing open on this row; {less} {more} {precision} {block} or {edit} propose something");
            self.ids(ids, &none, |ids| Command::Approve { ids });
        }
        if let (Some(aside), 1..) = (aside, n) {
            self.say(Level::Info, format!("approving {}; {aside}", crate::words::counted(n, "decision")));
        }
    }

    /// Refuses what waits on the row, else what is in force there, else whatever may come: every row has something to veto.
    pub(super) fn veto(&mut self) {
        let all: Vec<Shown> = self.chosen().into_iter().filter(vetoable).collect();
        let many = !self.selection.is_empty() && self.pane != Pane::Decision;
        let kinds: [fn(&Shown) -> bool; 2] = [refusable, in_force];
        // Of several rows each is refused, whatever is decided there.
        let first = kinds.into_iter().find(|kind| !many && all.iter().any(kind));
        let chosen: Vec<Shown> = all.into_iter().filter(|s| first.is_none_or(|kind| kind(s))).collect();
        let Some(shown) = chosen.first() else {
            let reopen = self.label(Act::Reopen);
            return self.nothing(match self.chosen().is_empty() {
                true => "nothing can be decided here, so there is nothing to veto".to_owned(),
                false => format!("all of it is vetoed already; {reopen} or `:lift` takes a veto back"),
            });
        };
        let what = match (chosen.len(), &shown.target) {
            (1, Target::Group(n)) => format!("cutting {}", clean(n)),
            (1, Target::Layer(n)) => format!("{}'s precision", clean(n)),
            (1, Target::Weights(n)) => format!("{} of {}", standing::kind(&shown.target), clean(n)),
            (1, Target::Block(n)) => format!("removing {}", clean(n)),
            (n, _) if first.is_some() => format!("{n} decisions"),
            (n, _) => format!("whatever may be decided on {n} targets"),
        };
        let (title, hint) = match shown.standing {
            Standing::InForce { since } if first.is_some() => {
                let since =
                    if chosen.len() == 1 { format!(", in force since r{since}") } else { ", in force".to_owned() };
                (format!("veto {what}{since}"), "why? gone with the next run; binds later proposals for just this")
            }
            _ => (format!("veto {what}"), "why? the reason binds later proposals for just this"),
        };
        if !self.may_write() {
            return;
        }
        self.drafts.clear();
        let ids: Option<Vec<DecisionId>> = chosen.iter().map(|s| s.id).collect();
        let ask = match ids {
            // Each by the decision that was seen.
            Some(ids) if first.is_some() => Ask::Veto(ids),
            _ => Ask::VetoAll(chosen.into_iter().map(|s| s.target).collect()),
        };
        self.prompt(ask, title, hint, "")
    }

    /// The precision that `layer` would run in as `shown`: the original's where nothing else is decided.
    pub(super) fn precision_of(&self, shown: &Shown, layer: &str) -> Precision {
        let original = || self.state.profile_of(0)?.rows.iter().find(|r| r.name == layer).map(|r| r.precision);
        match shown.action {
            Action::Precision { precision } => precision,
            Action::Keep
            | Action::Prune { .. }
            | Action::RemoveBlock
            | Action::Sparsify { .. }
            | Action::Factorise { .. } => original().unwrap_or(Precision::F32),
        }
    }

    /// Units that `target`'s group keeps as things stand.
    pub(super) fn kept_of(&self, target: &Target) -> usize {
        let Some(g) = self.group(target.name()) else { return 0 };
        match self.shown(target).action {
            Action::Prune { ratio, kept } if kept.is_empty() => g.kept_at(ratio),
            Action::Prune { kept, .. } => kept.len().min(g.size),
            _ => g.size,
        }
    }

    /// Whether units of a layer, or those that it reads, go by what is shown.
    pub(super) fn is_cut(&self, layer: &str) -> bool {
        let mut of = self.groups().iter().filter(|g| g.members.iter().any(|m| m.node == layer));
        of.any(|g| self.kept_of(&Target::Group(g.id.clone())) < g.size)
    }

    /// Why a row's group must not be pruned, if it must not.
    pub(super) fn protection(&self, layer: &str) -> Option<String> {
        let protected = |g: &&Group| g.protected.is_some() && g.members.iter().any(|m| m.node == layer);
        let g = self.groups().iter().find(protected)?;
        g.protected.as_ref().map(|p| clean(p).into_owned())
    }

    /// Starts or changes a draft; those of other targets are kept first.
    pub(super) fn set_draft(&mut self, target: Target, action: Action) {
        self.set_drafts(vec![Draft { target, action }])
    }

    /// Starts or changes drafts, which are kept or dropped together. Those of other targets are kept first; where the two have a target in
    /// common, these take the place of those.
    pub(super) fn set_drafts(&mut self, drafts: Vec<Draft>) {
        if drafts.is_empty() || !self.may_write() {
            return;
        }
        if self.drafts.iter().all(|old| drafts.iter().all(|new| new.target != old.target)) {
            self.commit();
        }
        self.outlook_stale = true;
        // An edit that goes on is as old as it was.
        if self.drafts.is_empty() {
            self.drafted_at = self.state.seq;
        }
        self.drafts = drafts;
    }

    /// Forgets the edits in progress; whether there were any.
    pub(super) fn drop_drafts(&mut self) -> bool {
        !std::mem::take(&mut self.drafts).is_empty()
    }

    /// Takes back the newest act: the edit in progress, unless something was decided after it was begun. What was dropped is said.
    pub(super) fn undo(&mut self) {
        let newer = self.state.undo.last().is_some_and(|u| u.seq > self.drafted_at);
        let Some(first) = self.drafts.first().filter(|_| !newer) else {
            return self.command(Command::Undo);
        };
        let (name, n) = (clean(first.target.name()).into_owned(), self.drafts.len());
        let what = if n == 1 { format!("of {name}") } else { format!("of {name} and {} more", n - 1) };
        self.drop_drafts();
        self.outlook_stale = true;
        let next = match self.state.undo.last() {
            Some(point) => format!("; {} undoes next: {}", self.label(Act::Undo), clean(&point.text)),
            None => String::new(),
        };
        self.nothing(format!("the edit {what} is dropped, it was not kept yet{next}"));
    }

    /// Sends the drafts, which the host takes as edits of what waits on their targets, or as decisions of the engineer's own.
    pub(super) fn commit(&mut self) {
        let mut drafts = std::mem::take(&mut self.drafts);
        if drafts.is_empty() {
            return;
        }
        self.outlook_stale = true;
        drafts.retain(|d| !same_cut(&self.shown(&d.target).action, &d.action, 1e-9));
        // By target, not by id: a proposal that comes in between takes the place of the decision, not of this edit.
        let command = match drafts.as_slice() {
            [] => return,
            [one] => Command::Decide { target: one.target.clone(), action: one.action.clone() },
            all => Command::DecideAll { actions: all.iter().map(|d| (d.target.clone(), d.action.clone())).collect() },
        };
        if self.sends(command) {
            self.sent.extend(drafts.into_iter().map(|draft| Sent { draft, reply: None }));
        }
    }
}

/// What a group's units are called.
pub fn unit(g: &Group) -> &'static str {
    use crate::prune::GroupKind;
    match g.kind {
        GroupKind::Channels | GroupKind::Residual => "channels",
        GroupKind::Neurons => "neurons",
        GroupKind::Heads => "heads",
        GroupKind::Width => "width",
        GroupKind::Experts => "experts",
    }
}
