//! Deciding: drafts while a ratio is dragged, and the commands that approve, veto, reopen and edit.
//!
//! A draft lives here only; it becomes durable when it is confirmed, when the cursor leaves its row, or when the row is
//! approved. The host rounds and clamps what it gets; the screen steps by the group's granule so that it agrees.

use super::app::{App, Draft, Effect, Level, Pane, Shown, View};
use super::list::RowRef;
use super::modal::{Ask, Modal, Prompt};
use super::table::{Block, Layer};
use crate::config::Act;
use crate::plan::{Action, DecisionId, Status, Target};
use crate::prune::Group;
use crate::quant::Precision;
use crate::session::Command;

const NO_WEIGHTS: &str = "this row has no weights to quantize";

/// How many of a row's decisions stand where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Open, or a draft that is not durable yet.
    pub approvable: usize,
    pub vetoable: usize,
    /// Approved or vetoed: can be reopened.
    pub closed: usize,
}

pub fn sorted(shown: &[Shown]) -> Counts {
    let mut c = Counts::default();
    for s in shown {
        let open = matches!(s.status, Some(Status::Proposed | Status::Edited));
        c.approvable += usize::from(open || s.drafting);
        c.vetoable += usize::from(open || s.status == Some(Status::Approved));
        c.closed += usize::from(matches!(s.status, Some(Status::Approved | Status::Vetoed)));
    }
    c
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

    pub(super) fn row_block(&self) -> Option<&Block> {
        match self.list.current()? {
            RowRef::Block(b) => self.table.blocks.get(b),
            RowRef::Layer(i) => self.table.blocks.get(self.table.layers.get(i)?.block?),
        }
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

    /// Says why nothing can be decided now, where nothing can; `settling`: an edit in progress may be confirmed.
    fn no_decisions(&mut self, settling: bool) -> Option<Vec<Effect>> {
        if self.view != View::Review {
            self.say(Level::Info, "decisions are made in the review view (1)");
            return Some(Vec::new());
        }
        if self.reviewable() || settling {
            return None;
        }
        let text = if self.state.phase == crate::session::Phase::Verdict {
            let key = |a: Act| self.settings.keymap.label(a);
            format!("the round waits: {} accepts it, {} rolls it back", key(Act::Accept), key(Act::RollBack))
        } else {
            "a run is under way; decisions can be made again after it".to_owned()
        };
        Some(self.nothing(&text))
    }

    /// The row's layer at `precision`, as a draft.
    pub(super) fn set_precision(&mut self, precision: Precision) -> Vec<Effect> {
        if let Some(refused) = self.no_decisions(false) {
            return refused;
        }
        let Some(l) = self.row_weighty() else { return self.nothing(NO_WEIGHTS) };
        let target = Target::Layer(l.name.clone());
        self.set_draft(target, Action::Precision { precision })
    }

    pub(super) fn decide(&mut self, act: Act) -> Vec<Effect> {
        if let Some(refused) = self.no_decisions(act == Act::Confirm) {
            return refused;
        }
        match act {
            Act::Approve => self.approve(),
            Act::Veto => self.veto(),
            Act::Reopen => {
                let closed = |s: &Shown| matches!(s.status, Some(Status::Approved | Status::Vetoed));
                let ids: Vec<DecisionId> = self.chosen().iter().filter(|s| closed(s)).filter_map(|s| s.id).collect();
                self.ids(ids, "nothing approved or vetoed here", |ids| Command::Reopen { ids })
            }
            Act::Edit => {
                let Some(g) = self.row_group() else { return self.nothing("no group to prune on this row") };
                let (id, size, granule) = (g.id.clone(), g.size, g.granule);
                let kept = self.kept_of(&Target::Group(id.clone()));
                let title = format!("{} of {size} to keep", unit(g));
                let hint = format!("a ratio to remove (0.375, 37.5%) or a number to keep; steps of {granule}");
                let p = Prompt::new(Ask::Edit(Target::Group(id)), title, hint, &kept.to_string());
                self.modal = Some(Modal::Prompt(Box::new(p)));
                Vec::new()
            }
            Act::RatioUp => self.drag(1),
            Act::RatioDown => self.drag(-1),
            Act::RatioUpFast => self.drag(4),
            Act::RatioDownFast => self.drag(-4),
            Act::Precision => {
                let Some(l) = self.row_weighty() else { return self.nothing(NO_WEIGHTS) };
                let now = match self.shown(&Target::Layer(l.name.clone())).action {
                    Action::Precision { precision } => precision,
                    _ => l.precision,
                };
                let i = Precision::ALL.iter().position(|p| *p == now).unwrap_or(0);
                self.set_precision(Precision::ALL[(i + 1) % Precision::ALL.len()])
            }
            Act::RemoveBlock => {
                let Some(b) = self.row_block() else { return self.nothing("this row lies in no block") };
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
            Act::Confirm if self.draft.is_some() => self.commit(),
            Act::Confirm => match self.list.current() {
                Some(RowRef::Block(_)) => self.act(Act::ToggleFold),
                _ => {
                    self.pane = if self.pane == Pane::Decision { Pane::Layers } else { Pane::Decision };
                    self.outlook_stale = true;
                    Vec::new()
                }
            },
            Act::ApproveBlock => {
                let block = match self.list.current() {
                    Some(RowRef::Block(b)) => Some(b),
                    Some(RowRef::Layer(i)) => self.table.layers.get(i).and_then(|l| l.block),
                    None => None,
                };
                let Some(block) = block else { return self.nothing("this row lies in no block") };
                let targets = self.targets_in_block(block);
                self.approve_targets(&targets)
            }
            _ => {
                // Approve all shown: rows that the filter lets through, folded or not.
                let mut targets: Vec<Target> = Vec::new();
                for row in self.list.shown.clone() {
                    match row {
                        RowRef::Block(b) if self.list.filter.is_empty() => targets.extend(self.targets_in_block(b)),
                        _ => targets.extend(self.targets_of(row)),
                    }
                }
                self.approve_targets(&targets)
            }
        }
    }

    pub(super) fn nothing(&mut self, why: &str) -> Vec<Effect> {
        self.say(Level::Info, why);
        Vec::new()
    }

    fn ids(&mut self, ids: Vec<DecisionId>, none: &str, f: impl Fn(Vec<DecisionId>) -> Command) -> Vec<Effect> {
        if ids.is_empty() {
            return self.nothing(none);
        }
        self.command(f(ids))
    }

    fn approve_targets(&mut self, targets: &[Target]) -> Vec<Effect> {
        let mut effects = self.commit();
        let open = |s: &Shown| matches!(s.status, Some(Status::Proposed | Status::Edited));
        let mut ids: Vec<DecisionId> =
            targets.iter().map(|t| self.shown(t)).filter(open).filter_map(|s| s.id).collect();
        ids.sort_unstable();
        ids.dedup();
        let n = ids.len();
        let sent = self.ids(ids, "no open decision here", |ids| Command::Approve { ids });
        if !sent.is_empty() {
            self.say(Level::Good, format!("approving {n} decision{}", if n == 1 { "" } else { "s" }));
        }
        effects.extend(sent);
        effects
    }

    fn approve(&mut self) -> Vec<Effect> {
        let chosen = self.chosen();
        let drafted = self.draft.as_ref().map(|d| d.target.clone());
        let mut effects = self.commit();
        let mut ids = Vec::new();
        for s in &chosen {
            match (s.status, s.id) {
                (Some(Status::Proposed | Status::Edited), Some(id)) => ids.push(id),
                // An applied, refused or unheard-of target gets a fresh decision first; it is approved when durable.
                _ if Some(&s.target) == drafted.as_ref() && !effects.is_empty() => {
                    self.approve_next.push(s.target.clone());
                }
                _ => {}
            }
        }
        if ids.is_empty() && !effects.is_empty() {
            return effects;
        }
        let none = "nothing open on this row; [ ] p x or e propose something";
        effects.extend(self.ids(ids, none, |ids| Command::Approve { ids }));
        effects
    }

    fn veto(&mut self) -> Vec<Effect> {
        let refusable = |s: &Shown| matches!(s.status, Some(Status::Proposed | Status::Edited | Status::Approved));
        let chosen: Vec<Shown> = self.chosen().into_iter().filter(refusable).collect();
        let ids: Vec<DecisionId> = chosen.iter().filter_map(|s| s.id).collect();
        if ids.is_empty() {
            return self.nothing("nothing to veto on this row");
        }
        if !self.may_write() {
            return Vec::new();
        }
        self.draft = None;
        let name = chosen.first().map(|s| crate::config::text::clean(s.target.name()).into_owned()).unwrap_or_default();
        let title = if ids.len() == 1 { format!("veto {name}") } else { format!("veto {} decisions", ids.len()) };
        let p = Prompt::new(Ask::Veto(ids), title, "why? the reason binds and informs later proposals", "");
        self.modal = Some(Modal::Prompt(Box::new(p)));
        Vec::new()
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
    fn drag(&mut self, steps: isize) -> Vec<Effect> {
        let Some(g) = self.row_group() else {
            let why = self.row_layer().and_then(|l| self.protection(&l.name));
            return self.nothing(&why.unwrap_or_else(|| "no group to prune on this row".to_owned()));
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
        g.protected.as_ref().map(|p| crate::config::text::clean(p).into_owned())
    }

    /// Starts or changes the draft; another target's draft is kept first.
    pub(super) fn set_draft(&mut self, target: Target, action: Action) -> Vec<Effect> {
        if !self.may_write() {
            return Vec::new();
        }
        let effects = match &self.draft {
            Some(d) if d.target != target => self.commit(),
            _ => Vec::new(),
        };
        self.outlook_stale = true;
        self.draft = Some(Draft { target, action });
        effects
    }

    /// Sends the draft: an edit of the open decision on its target, or a decision of the engineer's own.
    pub(super) fn commit(&mut self) -> Vec<Effect> {
        let Some(draft) = self.draft.take() else { return Vec::new() };
        self.outlook_stale = true;
        let current = self.state.current(&draft.target);
        if current.is_some_and(|d| same(&d.action, &draft.action)) {
            return Vec::new();
        }
        let open = current.filter(|d| matches!(d.status, Status::Proposed | Status::Edited | Status::Approved));
        if open.is_none() && draft.action == Action::Keep && current.is_none() {
            return Vec::new();
        }
        let command = match open {
            Some(d) => Command::Edit { id: d.id, action: draft.action.clone() },
            None => Command::Decide { target: draft.target.clone(), action: draft.action.clone() },
        };
        let effects = self.command(command);
        if !effects.is_empty() {
            self.sent.push(draft);
        }
        effects
    }
}

/// The same but for exactly which units are kept.
fn same(a: &Action, b: &Action) -> bool {
    match (a, b) {
        (Action::Prune { ratio: x, .. }, Action::Prune { ratio: y, .. }) => (x - y).abs() < 1e-9,
        _ => a == b,
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
    }
}
