//! View 7's data and keys: the plan that is shown beside another one, where they differ, and what taking each row over would change.
//!
//! Not here: which other plans there are and where two differ (`session/plans`), drawing (`draw/plans`). Invariant: both plans are forecast by
//! the one forecaster, with the same tables; nothing is taken without the host.

use super::app::{App, View};
use super::outlook::{Expected, Measured};
use crate::config::Act;
use crate::plan::{Action, Decision, Target, same_plan};
use crate::session::{Command, Difference, OtherPlan, differences};

/// Rows whose effect is worked out; a plan that differs in more shows theirs without.
const MOST_FORECAST: usize = 256;

/// The view's own state.
#[derive(Default)]
pub struct Plans {
    /// Which of the other plans; counted from the first, beyond the last again.
    chosen: usize,
    /// The row under the cursor.
    pub cursor: usize,
    /// Rows are on their way: the command's id, and how many differed before.
    taking: Option<(u64, usize)>,
    /// What is shown, while the view is.
    pub beside: Option<Beside>,
}

/// Two plans.
pub struct Beside {
    /// The other one's place among so many, from 0.
    pub at: usize,
    pub of: usize,
    pub here: Side,
    pub there: Side,
    pub rows: Vec<Row>,
}

/// One of them.
pub struct Side {
    pub name: String,
    /// Decisions that change anything.
    pub decisions: usize,
    pub expected: Expected,
    /// What was measured of the round that was made of it.
    pub measured: Option<Measured>,
}

/// A row where they differ.
pub struct Row {
    pub what: Difference,
    /// The block that it lies in.
    pub block: Option<String>,
    /// What the plan that is shown would come to with the other's decision here.
    pub taken: Option<Expected>,
    /// What that changes of the metric, by scans alone: forecasts of two plans may rest on unlike trials.
    pub quality: Option<f64>,
}

impl App {
    /// Works out what view 7 shows.
    pub(super) fn compare_plans(&mut self) {
        let beside = self.other_plan().map(|(at, of, other)| {
            let shown = self.plan(&[]);
            let here: Vec<(Target, Action)> = shown.iter().map(Decision::planned).collect();
            // What a round was made of was measured.
            let made = self.state.rounds.iter().rev().filter(|r| r.number > 0 && r.rolled_back.is_none());
            let made = made.map(|r| r.number).find(|r| same_plan(&self.state.actions_of(*r), &here));
            let rows = differences(&here, &other.actions);
            let scanned = self.forecasts.scanned(&self.state, &shown);
            let row = |(i, what)| self.plan_row((&shown, scanned), what, i < MOST_FORECAST);
            let rows: Vec<Row> = rows.into_iter().enumerate().map(row).collect();
            Beside {
                at,
                of,
                rows,
                here: self.side("shown".to_owned(), shown, made),
                there: self.side(other.name.clone(), self.as_plan(&other), other.round),
            }
        });
        self.plans.cursor = self.plans.cursor.min(beside.as_ref().map_or(0, |b| b.rows.len().saturating_sub(1)));
        self.plans.beside = beside;
    }

    /// The plan that is compared with, its place among the others, and how many those are.
    fn other_plan(&self) -> Option<(usize, usize, OtherPlan)> {
        let mut others = self.state.other_plans();
        let (of, at) = (others.len(), self.plans.chosen % others.len().max(1));
        (at < of).then(|| (at, of, others.swap_remove(at)))
    }

    fn as_plan(&self, other: &OtherPlan) -> Vec<Decision> {
        other.actions.iter().map(|(target, action)| self.fresh(target, action.clone())).collect()
    }

    fn side(&self, name: String, plan: Vec<Decision>, round: Option<u32>) -> Side {
        let decisions = plan.iter().filter(|d| d.action != Action::Keep).count();
        let expected = self.forecasts.plan(&self.state, &plan);
        let measured = round.filter(|r| *r > 0).and_then(|r| Measured::of_round(&self.state, r));
        Side { name, decisions, expected, measured }
    }

    /// A row, where the plan that is shown comes to `scanned` by scans alone.
    fn plan_row(&self, (shown, scanned): (&[Decision], Option<f64>), what: Difference, forecast: bool) -> Row {
        let (taken, quality) = if forecast {
            let mut plan: Vec<Decision> = shown.iter().filter(|d| d.target != what.target).cloned().collect();
            plan.push(self.fresh(&what.target, what.there.clone()));
            let new = self.forecasts.scanned(&self.state, &plan);
            (Some(self.forecasts.plan(&self.state, &plan)), new.zip(scanned).map(|(new, old)| new - old))
        } else {
            (None, None)
        };
        let block = match &what.target {
            Target::Block(name) => Some(name.clone()),
            Target::Group(id) => self.group(id).and_then(|g| g.block.clone()).or_else(|| self.block_of(id)),
            Target::Layer(name) | Target::Weights(name) => self.block_of(name),
        };
        Row { what, block, taken, quality }
    }

    /// The block that the row of a layer lies in.
    fn block_of(&self, layer: &str) -> Option<String> {
        let at = self.table.layers.iter().find(|l| l.name == layer)?.block?;
        self.table.blocks.get(at).map(|b| b.name.clone())
    }

    /// Shows the plans, or of them the next other one.
    pub(super) fn next_plan(&mut self) {
        if self.view == View::Plans {
            self.plans.chosen = self.plans.beside.as_ref().map_or(0, |b| (b.at + 1) % b.of.max(1));
            self.plans.cursor = 0;
        }
        self.show(View::Plans);
    }

    /// Moves the cursor over the rows that differ.
    pub(super) fn step_plans(&mut self, by: isize) {
        let last = self.plans.beside.as_ref().map_or(0, |b| b.rows.len().saturating_sub(1));
        self.plans.cursor = self.plans.cursor.saturating_add_signed(by).min(last);
    }

    /// Takes what the other plan has: in the row under the cursor, in its block, or everywhere.
    pub(super) fn take(&mut self, act: Act) {
        let Some(beside) = self.plans.beside.as_ref().filter(|_| self.view == View::Plans) else {
            let key = self.label(Act::View7);
            return self.nothing(format!("plans are compared in their view ({key}); rows are taken over there"));
        };
        let Some(row) = beside.rows.get(self.plans.cursor) else {
            return self.nothing("the two plans are the same: there is nothing to take");
        };
        let among = |other: &&Row| match act {
            Act::TakeAll => true,
            Act::TakeBlock if row.block.is_some() => other.block == row.block,
            _ => other.what.target == row.what.target,
        };
        let pick = |r: &Row| (r.what.target.clone(), r.what.there.clone());
        let actions: Vec<(Target, Action)> = beside.rows.iter().filter(among).map(pick).collect();
        let from = beside.there.name.clone();
        self.with_commit(Command::Take { actions, from });
    }

    /// Rows were sent for under this id.
    pub(super) fn takes(&mut self, reply: Option<u64>) {
        let differed = self.plans.beside.as_ref().map_or(0, |b| b.rows.len());
        self.plans.taking = reply.map(|id| (id, differed));
    }

    /// The host has taken them over, or some of them: says how many.
    pub(super) fn took(&mut self, id: u64) {
        let Some((_, differed)) = self.plans.taking.take_if(|(taking, _)| *taking == id) else { return };
        let Some((_, _, other)) = self.other_plan() else { return };
        let left = differences(&self.state.shown_actions(), &other.actions).len();
        let rows = crate::words::counted(differed.saturating_sub(left), "row");
        // The host takes what can stand.
        let stay = if left == 0 { String::new() } else { format!(", {left} not (vetoed, frozen or limited)") };
        let undo = self.label(Act::Undo);
        self.nothing(format!("{rows} taken from {}{stay}: they wait for your approval, {undo} undoes it", other.name));
    }
}
