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
use crate::plan::{Action, DecisionId, Target, same_cut};
use crate::prune::{Group, Rank};
use crate::quant::Precision;
use crate::session::{Command, Standing};

const NO_WEIGHTS: &str = "this row has no weights to quantize";
const NO_BLOCK: &str = "this row lies in no block";

/// Can be approved: open, or a draft that is not durable yet.
pub(super) fn approvable(s: &Shown) -> bool {
    s.open() || s.drafting
}

pub(super) fn vetoable(s: &Shown) -> bool {
    refusable(s) || in_force(s)
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

    /// The group that the ratio keys move.
    pub(super) fn row_group(&self) -> Option<&Group> {
        self.row_layer()?.group.and_then(|g| self.groups().get(g))
    }

    pub(super) fn row_weighty(&self) -> Option<&Layer> {
        self.row_layer().filter(|l| l.weighty)
    }

    /// The row's layer if it has a precision to choose: of its weights, or of the keys and values that it keeps.
    pub(super) fn row_precise(&self) -> Option<&Layer> {
        self.row_layer().filter(|l| l.weighty || l.caches)
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

    /// What approve, veto and reopen act on: the selected line of the card when it has the keys, else the whole row.
    pub(super) fn chosen(&self) -> Vec<Shown> {
        if self.pane == Pane::Decision {
            return self.focused().into_iter().collect();
        }
        match self.list.current() {
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

    /// The row's layer at `precision`, as a draft.
    pub(super) fn set_precision(&mut self, precision: Precision) {
        if !self.may_decide(false) {
            return;
        }
        let Some(l) = self.row_precise() else { return self.nothing(NO_WEIGHTS) };
        let target = Target::Layer(l.name.clone());
        self.set_draft(target, Action::Precision { precision })
    }

    /// Does what a key asks for where decisions can be made now.
    pub(super) fn decide(&mut self, deed: impl Fn(&mut App)) {
        if self.may_decide(false) {
            deed(self);
        }
    }

    pub(super) fn reopen(&mut self) {
        let ids: Vec<DecisionId> = self.chosen().iter().filter(|s| closed(s)).filter_map(|s| s.id).collect();
        self.ids(ids, "nothing approved, vetoed or rolled back here", |ids| Command::Reopen { ids })
    }

    pub(super) fn edit(&mut self) {
        let Some(g) = self.row_group() else { return self.nothing("no group to prune on this row") };
        let title = format!("{} of {} to keep", unit(g), g.size);
        let hint = format!("a ratio to remove (0.375, 37.5%) or a number to keep; steps of {}", g.granule);
        let target = Target::Group(g.id.clone());
        let kept = self.kept_of(&target);
        self.prompt(Ask::Edit(target), title, hint, &kept.to_string())
    }

    pub(super) fn next_precision(&mut self) {
        let Some(l) = self.row_precise() else { return self.nothing(NO_WEIGHTS) };
        let now = self.precision_of(&self.shown(&Target::Layer(l.name.clone())), &l.name);
        let all = self.precisions(&l.name);
        let i = all.iter().position(|p| *p == now).unwrap_or(0);
        self.set_precision(all[(i + 1) % all.len()])
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
        if self.draft.is_some() {
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
        let (ids, waits) = self.open_of(&targets);
        if !ids.is_empty() || !waits {
            let none = "nothing open on this row; [ ] p x or e propose something";
            self.ids(ids, none, |ids| Command::Approve { ids });
        }
    }

    /// Refuses what waits on the row; where nothing does, takes back what is in force.
    pub(super) fn veto(&mut self) {
        let all = self.chosen();
        let waits = all.iter().any(refusable);
        let chosen: Vec<&Shown> = all.iter().filter(|s| if waits { refusable(s) } else { in_force(s) }).collect();
        let ids: Vec<DecisionId> = chosen.iter().filter_map(|s| s.id).collect();
        let (Some(first), false) = (chosen.first(), ids.is_empty()) else {
            return self.nothing("nothing to veto on this row");
        };
        let what = match (ids.len(), &first.target) {
            (1, Target::Group(n)) => format!("cutting {}", clean(n)),
            (1, Target::Layer(n)) => format!("{}'s precision", clean(n)),
            (1, Target::Weights(n)) => format!("{} of {}", standing::kind(&first.target), clean(n)),
            (1, Target::Block(n)) => format!("removing {}", clean(n)),
            (n, _) => format!("{n} decisions"),
        };
        let (title, hint) = match first.standing {
            Standing::InForce { since } => {
                let since = if ids.len() == 1 { format!(", in force since r{since}") } else { ", in force".to_owned() };
                (format!("veto {what}{since}"), "why? gone with the next run; binds later proposals for just this")
            }
            _ => (format!("veto {what}"), "why? the reason binds later proposals for just this"),
        };
        if !self.may_write() {
            return;
        }
        self.draft = None;
        self.prompt(Ask::Veto(ids), title, hint, "")
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

    /// Gives the row's weights low-rank factors, or takes the wish for them back.
    pub(super) fn set_factors(&mut self, rank: Option<Rank>) {
        let Some(name) = self.row_weighty().map(|l| l.name.clone()) else {
            return self.nothing("this row has no weights of its own");
        };
        let node = self.state.card.as_ref().and_then(|c| Some(c.graph.node(c.graph.by_name(&name)?)));
        let action = match (rank, node) {
            (Some(rank), Some(node)) => match rank.of(&node.op) {
                Ok(rank) => Action::Factorise { rank },
                Err(why) => return self.nothing(why),
            },
            _ => Action::Keep,
        };
        self.set_draft(Target::Weights(name), action)
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

    /// Removes `steps` granules more (or fewer) of the row's group.
    pub(super) fn drag(&mut self, steps: isize) {
        let Some(g) = self.row_group() else {
            let why = self.row_layer().and_then(|l| self.protection(&l.name));
            return self.nothing(why.unwrap_or_else(|| "no group to prune on this row".to_owned()));
        };
        let (id, size) = (g.id.clone(), g.size);
        let granule = g.granule.max(1);
        // A step of at least 1/64 keeps wide groups draggable.
        let step = granule * (size / granule / 64).max(1);
        let target = Target::Group(id);
        let now = self.kept_of(&target) as isize;
        let kept = (now - steps * step as isize).clamp(granule.min(size) as isize, size as isize) as usize;
        let ratio = 1.0 - kept as f64 / size.max(1) as f64;
        let action = if kept == size { Action::Keep } else { Action::Prune { ratio, kept: Vec::new() } };
        self.set_draft(target, action)
    }

    /// Why a row's group must not be pruned, if it must not.
    pub(super) fn protection(&self, layer: &str) -> Option<String> {
        let protected = |g: &&Group| g.protected.is_some() && g.members.iter().any(|m| m.node == layer);
        let g = self.groups().iter().find(protected)?;
        g.protected.as_ref().map(|p| clean(p).into_owned())
    }

    /// Starts or changes the draft; another target's draft is kept first.
    pub(super) fn set_draft(&mut self, target: Target, action: Action) {
        if !self.may_write() {
            return;
        }
        if self.draft.as_ref().is_some_and(|d| d.target != target) {
            self.commit();
        }
        self.outlook_stale = true;
        self.draft = Some(Draft { target, action });
    }

    /// Sends the draft, which the host takes as an edit of what waits on its target, or as a decision of the engineer's own.
    pub(super) fn commit(&mut self) {
        let Some(draft) = self.draft.take() else { return };
        self.outlook_stale = true;
        if same_cut(&self.shown(&draft.target).action, &draft.action, 1e-9) {
            return;
        }
        // By target, not by id: a proposal that comes in between takes the place of the decision, not of this edit.
        let command = Command::Decide { target: draft.target.clone(), action: draft.action.clone() };
        if self.sends(command) {
            self.sent.push(Sent { draft, reply: None });
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
