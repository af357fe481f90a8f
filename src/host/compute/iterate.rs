//! Agents that go on by themselves: what they propose is rehearsed, they are told what came of it and asked again, until there is a reason to
//! stop; then the best of their plans is what lies open. Nothing is approved, and nobody's decision but their own is changed.
//!
//! The reasons are those of ProfilingAgent's iteration agent and of a person who watches: nothing better twice, a plan that was there before,
//! the limit of turns, a question that nobody answered, a decision of the engineer's meanwhile.

use super::propose::{Speech, given_up};
use super::{Compute, JobError};
use crate::host::commands::rehearsable;
use crate::host::engine::{Job, Llm, Work};
use crate::plan::planner::trial_of;
use crate::plan::{Action, Author, Basis, Budget, Decision, Forecaster, Status, Target, plan_key};
use crate::session::{Ask, Event, Feed, Spent, State, Utterance};
use std::sync::Arc;

/// Who speaks of it.
const ITERATION: &str = "iteration";
/// Turns in a row that brought nothing better.
const FLAT: usize = 2;
/// Factors that are this near are one.
const NEAR: f64 = 1e-3;

/// How good a plan is, for what was asked.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Worth {
    /// How far it is beyond the budget, summed over its items; 0 within.
    over: f64,
    /// Change of the metric, negative for worse.
    quality: f64,
    /// What of that nobody can tell apart.
    doubt: f64,
}

impl Worth {
    fn of(forecaster: &Forecaster, budget: &Budget, plan: &[(Target, Action)], points: f64) -> Worth {
        let f = forecaster.actions(plan);
        let beyond = |l: &crate::plan::BudgetLine| match l.is_factor() {
            true => l.beyond(),
            // A point is as bad as a hundredth.
            false => ((l.forecast.value - l.target) / points / 100.0).max(0.0),
        };
        let over: f64 = f.against(budget).iter().map(beyond).filter(|v| v.is_finite()).sum();
        let unknown = f.quality.basis == Basis::Unmeasured;
        let quality = if unknown { f64::NEG_INFINITY } else { f.quality.value };
        Worth { over: if over < NEAR { 0.0 } else { over }, quality, doubt: 0.02 * points }
    }

    fn better(&self, than: &Worth) -> bool {
        match (self.over - than.over).abs() < NEAR {
            true => self.quality > than.quality + self.doubt,
            false => self.over < than.over,
        }
    }
}

/// What the agents have open.
fn theirs(state: &State) -> Vec<Decision> {
    let by_agents = |d: &&Decision| d.status == Status::Proposed && !d.by_person();
    state.open().into_iter().filter(by_agents).cloned().collect()
}

/// What only the engineer decides; a note is for the next turn.
fn of_the_engineer(state: &State) -> (usize, Vec<u64>, Budget) {
    let settled = |d: &&Decision| d.by_person() || d.status != Status::Proposed;
    let ids = state.decisions.iter().filter(settled).map(|d| d.id.0).collect();
    (state.constraints.len(), ids, state.budget)
}

impl Compute {
    /// After the agents' first proposal.
    pub(super) fn iterate(&self, llm: &Llm, spent: &mut Spent, job: &Job) -> Result<(), JobError> {
        if !self.desk.rehearses {
            job.say(Feed::warn("nothing is held back to rehearse plans on: the agents propose once"));
            return Ok(());
        }
        let most = llm.looks.turns;
        let before = of_the_engineer(&*job.state()?);
        let (mut seen, mut flat): (Vec<String>, usize) = (Vec::new(), 0);
        let mut best: Option<(usize, Worth, String, Vec<Decision>)> = None;
        let why = loop {
            let turn = seen.len() + 1;
            let state = job.state()?;
            let (open, plan) = (theirs(&state), state.shown_actions());
            if open.is_empty() {
                break "they have nothing open".to_owned();
            }
            let key = plan_key(&plan);
            if seen.contains(&key) {
                break "the plan is one that they had before".to_owned();
            }
            seen.push(key.clone());
            let state = match self.tried(state, &plan, job)? {
                Ok(state) => state,
                Err(words) => break words,
            };
            let Some(forecaster) = state.forecaster() else { break "nothing can be forecast".to_owned() };
            let worth = Worth::of(&forecaster, &state.budget, &plan, state.metric().of_points(1.0));
            let better = best.as_ref().is_none_or(|(_, than, ..)| worth.better(than));
            flat = if better { 0 } else { flat + 1 };
            let came = self.came(&state, &forecaster, &plan);
            let stands = match &best {
                Some((at, ..)) if !better => format!("; turn {at} had a better one"),
                _ => String::new(),
            };
            self.say_of(job, &state, format!("Turn {turn} of {most}: rehearsed, {came}{stands}."))?;
            if better {
                best = Some((turn, worth, key, open));
            }
            if flat >= FLAT {
                break format!("{FLAT} turns brought nothing better");
            }
            if turn >= most {
                break "that was the last turn".to_owned();
            }
            if of_the_engineer(&state) != before {
                break "you decided something meanwhile".to_owned();
            }
            let news = format!(
                "\nYour plan was built and rehearsed on held-back data: {came}{stands}. This is turn {} of {most}: propose a better whole plan, or \
                 the same again if you know of none.\n",
                turn + 1
            );
            if let Some(what) = llm.limits.reached(spent, 0) {
                break format!("the limit is reached: {what}");
            }
            if self.speak(Speech { news, ..Speech::of(Ask::Propose) }, &state, llm, spent, job)? {
                break "a question waits for your answer".to_owned();
            }
        };
        self.settle_on(best, why, job)
    }

    /// The state with the plan tried, or why it cannot be.
    fn tried(
        &self,
        state: Arc<State>,
        plan: &[(Target, Action)],
        job: &Job,
    ) -> Result<Result<Arc<State>, String>, JobError> {
        if trial_of(&state.trials, plan).is_some() {
            return Ok(Ok(state));
        }
        match rehearsable(&state, &self.desk, plan.to_vec()) {
            Err(words) => Ok(Err(words)),
            Ok(actions) => {
                self.rehearse(&state, &actions, job)?;
                Ok(Ok(job.state()?))
            }
        }
    }

    /// What came of a plan, in words.
    fn came(&self, state: &State, forecaster: &Forecaster, plan: &[(Target, Action)]) -> String {
        let (f, metric) = (forecaster.actions(plan), state.metric());
        let quality = match f.quality.basis {
            Basis::Unmeasured => format!("{} not measured", metric.name),
            _ => metric.forecast_words(f.quality.value, f.quality.low, f.quality.high),
        };
        let line =
            |l: &crate::plan::BudgetLine| format!(", {} {:.3}x of {:.3}x asked", l.name, l.forecast.value, l.target);
        let factors: String = f.against(&state.budget).iter().filter(|l| l.is_factor()).map(line).collect();
        format!("{quality}{factors}")
    }

    /// Leaves the best plan open, and says why they stopped.
    fn settle_on(
        &self,
        best: Option<(usize, Worth, String, Vec<Decision>)>,
        why: String,
        job: &Job,
    ) -> Result<(), JobError> {
        let state = job.state()?;
        let Some((turn, _, key, decisions)) = best else {
            return self.say_of(job, &state, format!("The agents stop: {why}."));
        };
        let here = plan_key(&state.shown_actions()) == key;
        let words = if here { "what is open" } else { "laid before you again" };
        if !here {
            let author = decisions.first().map_or(Author::Planner, |d| d.author.clone());
            let gone = given_up(&state, &decisions, &author, |_| true);
            job.event(Event::Proposed { decisions: decisions.into_iter().chain(gone).collect() })?;
        }
        self.say_of(
            job,
            &state,
            format!("The agents stop: {why}. The plan of turn {turn} is the best of them, {words}."),
        )
    }

    fn say_of(&self, job: &Job, state: &State, words: String) -> Result<(), JobError> {
        job.say(Feed::Log { level: "info".to_owned(), text: format!("{ITERATION}: {words}") });
        let said = Utterance::whole(state.round, ITERATION, "built-in", words);
        job.event(Event::Said { utterance: Box::new(said) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_within_the_budget_is_better_than_one_that_keeps_more() {
        let worth = |over, quality| Worth { over, quality, doubt: 0.02 };
        assert!(worth(0.0, -3.0).better(&worth(0.1, -0.1)));
        assert!(!worth(0.1, -0.1).better(&worth(0.0, -3.0)));
        // Within it what keeps more, by more than a trial can tell.
        assert!(worth(0.0, -1.0).better(&worth(0.0, -1.1)) && !worth(0.0, -1.0).better(&worth(0.0, -1.01)));
        assert!(!worth(0.0, f64::NEG_INFINITY).better(&worth(0.0, -9.0)));
        assert!(!worth(0.0, -1.0).better(&worth(0.0, -1.0)));
    }
}
