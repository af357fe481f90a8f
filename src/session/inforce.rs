//! The one definition of what would run: per target what the next run builds there, and where the target stands. Screens,
//! reports, agents, the planner and the run itself all ask here, so that no two of them can speak of different plans.
//!
//! Invariants: a pure reading of [`State`]; the model that stands is what its round was made of, never what a status says;
//! a frozen target gets nothing new, and keeps what is in force on it unless that itself was vetoed.

use super::{Phase, Round, State};
use crate::plan::{self, Action, Constraint, Decision, DecisionId, Limit, Status, Target, same_cut};
use std::collections::HashMap;

/// Where a target stands, as a reader of the plan must tell it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Nothing is proposed and nothing in force: as in the original.
    Free,
    /// Waits for the engineer; what is in force stays until it is approved and run.
    Proposed,
    /// As [`Standing::Proposed`], changed by the engineer.
    Edited,
    /// Part of what the next run builds, and not of the model that stands.
    Approved,
    /// Part of the model that stands since the round, and of what the next run builds.
    InForce { since: u32 },
    /// Part of the model that stands since the round, but vetoed: the next run builds without it.
    Leaving { since: u32 },
    /// Vetoed or frozen, and nothing is in force: as in the original.
    Vetoed,
    /// What was tried here was rolled back, and nothing is in force: as in the original.
    RolledBack,
}

/// What is decided on one target.
#[derive(Debug, Clone, Copy, Default)]
pub struct Planned<'a> {
    /// Waits for the engineer: proposed or edited.
    pub open: Option<&'a Decision>,
    /// Approved and not run yet.
    pub approved: Option<&'a Decision>,
    /// What the model that stands has here, and the round that brought it.
    pub in_force: Option<(&'a Decision, u32)>,
    /// Forbids anything new here.
    pub frozen: Option<&'a Constraint>,
    /// The newest decision, whatever became of it.
    pub newest: Option<&'a Decision>,
}

impl<'a> Planned<'a> {
    /// What the next run builds here; `None`: as in the original.
    pub fn runs(&self) -> Option<&'a Decision> {
        self.approved.or_else(|| self.in_force.map(|(d, _)| d).filter(|d| d.status != Status::Vetoed))
    }

    pub fn standing(&self) -> Standing {
        let of = |s: Status| self.newest.is_some_and(|d| d.status == s);
        match (self.open, self.approved, self.in_force) {
            (Some(d), _, _) if d.status == Status::Edited => Standing::Edited,
            (Some(_), _, _) => Standing::Proposed,
            (None, Some(_), _) => Standing::Approved,
            (None, None, Some((d, since))) if d.status == Status::Vetoed => Standing::Leaving { since },
            (None, None, Some((_, since))) => Standing::InForce { since },
            (None, None, None) if self.frozen.is_some() || of(Status::Vetoed) => Standing::Vetoed,
            (None, None, None) if of(Status::RolledBack) => Standing::RolledBack,
            (None, None, None) => Standing::Free,
        }
    }

    /// The decision that a reader is shown: what waits, else what was approved, else what is in force, else the newest.
    pub fn shown(&self) -> Option<&'a Decision> {
        self.open.or(self.approved).or(self.in_force.map(|(d, _)| d)).or(self.newest)
    }

    /// What no proposal may take the place of: what the engineer approved, or an open decision that is their own or that
    /// they edited.
    pub fn settled(&self) -> Option<&'a Decision> {
        self.approved.or_else(|| self.open.filter(|d| d.by_person()))
    }

    /// Takes a decision into account; decisions come in the order of their ids.
    fn add(&mut self, d: &'a Decision, standing: &Lineage<'_>) {
        self.newest = Some(d);
        match d.status {
            Status::Proposed | Status::Edited => self.open = Some(d),
            Status::Approved => self.approved = Some(d),
            Status::Vetoed | Status::Applied | Status::RolledBack => {}
        }
        if let Some(since) = standing.since(d.id) {
            self.in_force = Some((d, since));
        }
    }
}

/// The rounds behind the model that stands, newest first.
struct Lineage<'a>(Vec<&'a Round>);

impl Lineage<'_> {
    /// The round that brought `id` into the model that stands; `None`: it is not part of that.
    fn since(&self, id: DecisionId) -> Option<u32> {
        let newest = self.0.first().filter(|r| r.recipe.contains(&id))?;
        Some(self.0.iter().find(|r| r.ids.contains(&id)).map_or(newest.number, |r| r.number))
    }
}

impl State {
    /// The round of the model that stands: the one that waits for its verdict, else the last accepted, else 0 (the
    /// original).
    pub fn model_round(&self) -> u32 {
        let waits = matches!(self.phase, Phase::Evaluate | Phase::Verdict);
        let made = self.round_at(self.round).is_some_and(|r| r.artifact.is_some());
        if waits && made { self.round } else { self.base_round() }
    }

    fn standing(&self) -> Lineage<'_> {
        let newest = self.model_round();
        let counts = |r: &&Round| r.number > 0 && (r.number == newest || (r.accepted && r.number < newest));
        let mut rounds: Vec<&Round> = self.rounds.iter().rev().filter(counts).collect();
        if newest == 0 {
            rounds.clear();
        }
        Lineage(rounds)
    }

    /// What is decided on `target`.
    pub fn planned(&self, target: &Target) -> Planned<'_> {
        let standing = self.standing();
        let mut out = Planned { frozen: self.frozen(target), ..Planned::default() };
        self.decisions.iter().filter(|d| &d.target == target).for_each(|d| out.add(d, &standing));
        out
    }

    /// Every target that was ever decided on, in the order of the newest decision on each.
    pub fn plan(&self) -> Vec<(&Target, Planned<'_>)> {
        let standing = self.standing();
        let mut at: HashMap<&Target, usize> = HashMap::new();
        let mut out: Vec<(&Target, Planned<'_>)> = Vec::new();
        for d in &self.decisions {
            let i = *at.entry(&d.target).or_insert_with(|| {
                out.push((&d.target, Planned { frozen: self.frozen(&d.target), ..Planned::default() }));
                out.len() - 1
            });
            if let Some((_, p)) = out.get_mut(i) {
                p.add(d, &standing);
            }
        }
        out.sort_by_key(|(_, p)| p.newest.map(|d| d.id));
        out
    }

    /// What `of` picks of every target's decisions, ascending by id.
    fn pick<'a>(&'a self, of: impl Fn(&Planned<'a>) -> Option<&'a Decision>) -> Vec<&'a Decision> {
        let mut out: Vec<&Decision> = self.plan().iter().filter_map(|(_, p)| of(p)).collect();
        out.sort_by_key(|d| d.id);
        out
    }

    /// What the next run builds, ascending by id.
    pub fn recipe(&self) -> Vec<&Decision> {
        self.pick(Planned::runs)
    }

    /// What the next run would build if everything open were approved first; what the constraints forbid cannot be.
    pub fn if_approved(&self) -> Vec<&Decision> {
        self.pick(|p| p.open.filter(|d| self.forbids(d).is_none()).or_else(|| p.runs()))
    }

    /// What must stay when others propose: what the next run builds, and over it the engineer's own open decisions.
    pub fn given(&self) -> Vec<&Decision> {
        self.pick(|p| p.open.filter(|d| d.by_person()).or_else(|| p.runs()))
    }

    /// Decisions that wait for the engineer: proposed or edited.
    pub fn open(&self) -> Vec<&Decision> {
        self.decisions.iter().filter(|d| matches!(d.status, Status::Proposed | Status::Edited)).collect()
    }

    /// Approved and not yet applied: what the next run adds.
    pub fn pending(&self) -> Vec<&Decision> {
        self.pick(|p| p.approved)
    }

    /// In force and vetoed since: what the next run takes away.
    pub fn leaving(&self) -> Vec<&Decision> {
        self.pick(|p| p.in_force.map(|(d, _)| d).filter(|d| d.status == Status::Vetoed && p.approved.is_none()))
    }

    /// How many decisions the next run adds or takes away; 0: it would build the model that stands.
    pub fn changes(&self) -> usize {
        self.pending().len() + self.leaving().len()
    }

    /// What the model that stands consists of, ascending by id.
    pub fn in_force(&self) -> Vec<&Decision> {
        self.recipe_of(self.model_round())
    }

    /// What the model of round `number` consists of, or of the run that is making it, ascending by id.
    pub fn recipe_of(&self, number: u32) -> Vec<&Decision> {
        let ids = self.round_at(number).map_or(&[][..], |r| &r.recipe);
        let mut out: Vec<&Decision> = ids.iter().filter_map(|id| self.decision(*id)).collect();
        out.sort_by_key(|d| d.id);
        out
    }

    /// [`State::recipe_of`] as it is applied to the original.
    pub fn actions_of(&self, number: u32) -> Vec<(Target, Action)> {
        self.recipe_of(number).into_iter().map(Decision::planned).collect()
    }

    /// Whether any round was made with `id`: then it is history, and neither edited nor proposed again in place.
    pub fn has_run(&self, id: DecisionId) -> bool {
        self.rounds.iter().any(|r| r.recipe.contains(&id))
    }

    /// The veto or constraint under which nothing new may be done to `target`.
    pub fn frozen(&self, target: &Target) -> Option<&Constraint> {
        self.constraints.iter().find(|c| &c.target == target && c.limit == Limit::Freeze)
    }

    /// Why the constraints forbid `decision` as it stands, in words, if they do.
    pub fn forbids(&self, d: &Decision) -> Option<String> {
        if self.constraints.is_empty() {
            return None;
        }
        let card = self.card.as_ref()?;
        match plan::check(&d.action, &d.target, &card.groups, &card.graph, &self.constraints) {
            // A constraint says how many may go, not which.
            Ok(action) if same_cut(&action, &d.action, 1e-9) => None,
            Ok(_) => Some(format!("your limit on `{}` forbids this ratio; hint: edit it, or lift the limit", d.target)),
            Err(e) => Some(e.to_string()),
        }
    }
}
