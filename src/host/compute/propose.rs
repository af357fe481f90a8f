//! Proposals: from the built-in planner, or from the agents with the planner standing in. What either says streams out
//! while it is said; decisions become events, which the host numbers, checks and clamps.

use super::{Compute, JobError};
use crate::agent::{self, AgentInput, Endpoint, Listener, StandIn, Timeouts};
use crate::host::engine::{Job, Llm};
use crate::plan::planner::{self, PlannerInput, Proposal};
use crate::plan::{Action, Author, Decision, Forecaster};
use crate::session::{Ask, Channel, Event, Feed, State, Utterance};
use std::sync::Arc;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

const PLANNER: &str = "planner";

/// Asks the planner what it would propose now.
pub fn plan_now(state: &State, say: &mut dyn FnMut(&str)) -> Result<Vec<Decision>, String> {
    Ok(proposal_now(state, say)?.decisions)
}

/// As [`plan_now`], with the whole plan and its rivals.
pub(super) fn proposal_now(state: &State, say: &mut dyn FnMut(&str)) -> Result<Proposal, String> {
    let card = state.card.as_ref().ok_or("the session is not open; hint: open it first")?;
    let profile = state.profile_of(0).ok_or("nothing is profiled yet; hint: profile first")?;
    let in_force: Vec<Decision> = state.given().into_iter().cloned().collect();
    let input = PlannerInput {
        graph: &card.graph,
        groups: &card.groups,
        profile,
        ladders: &state.ladders,
        sensitivity: &state.sensitivity,
        budget: &state.budget,
        constraints: &state.constraints,
        round: state.round,
        first_id: state.next_decision,
        in_force: &in_force,
        quality: &state.quality_input(),
    };
    planner::plan(&input, say).map_err(|e| e.to_string())
}

/// What takes back the open proposals that a new plan is without: what would run is the new plan, not both.
fn given_up(state: &State, new: &[Decision]) -> Vec<Decision> {
    let given = state.given();
    let kept_anyway = |d: &Decision| {
        let stands = given.iter().find(|g| g.target == d.target).map_or(Action::Keep, |g| g.action.clone());
        let rationale = "An earlier proposal had it; this plan does without.".to_owned();
        (stands != d.action).then(|| Decision { rationale, ..Decision::new(d.target.clone(), stands, Author::Planner) })
    };
    let open = state.open().into_iter().filter(|d| !d.by_person() && !new.iter().any(|n| n.target == d.target));
    open.filter_map(kept_anyway).collect()
}

impl Compute {
    pub(super) fn ask_planner(&self, state: &State, job: &Job) -> Result<(), JobError> {
        let (planned, said) = self.planner_says(state, job, |say| plan_now(state, say));
        let mut decisions = planned.map_err(JobError::Failed)?;
        decisions.extend(given_up(state, &decisions));
        job.cancel().check()?;
        job.events(vec![said, Event::Proposed { decisions }])
    }

    /// What `speak` says in the planner's name, as it is said, and as the event that keeps it.
    pub(super) fn planner_says<T>(
        &self,
        state: &State,
        job: &Job,
        speak: impl FnOnce(&mut dyn FnMut(&str)) -> T,
    ) -> (T, Event) {
        let began = Instant::now();
        job.say(Feed::Turn { role: PLANNER.to_owned(), model: "built-in".to_owned() });
        let mut text = String::new();
        let done = speak(&mut |words| {
            text.push_str(words);
            job.say(Feed::Token { role: PLANNER.to_owned(), channel: Channel::Text, text: words.to_owned() });
        });
        job.say(Feed::TurnEnd { role: PLANNER.to_owned() });
        let said = Utterance {
            round: state.round,
            role: PLANNER.to_owned(),
            model: "built-in".to_owned(),
            tokens: text.split_whitespace().count() as u64,
            text,
            seconds: began.elapsed().as_secs_f64(),
            ..Utterance::default()
        };
        (done, Event::Said { utterance: Box::new(said) })
    }

    /// After a verdict: what was forecast against what was measured; an endpoint's evaluation role argues from it.
    pub(super) fn compare_with_forecast(
        &self,
        state: &State,
        round: u32,
        llm: &Llm,
        job: &Job,
    ) -> Result<(), JobError> {
        if let Some(utterance) = agent::critic::utterance(state, round) {
            job.event(Event::Said { utterance: Box::new(utterance) })?;
        }
        // What it would argue from is what agents of a blind session are not told.
        if self.shelf.recipe.how.blind || (llm.base_url.is_none() && llm.model.is_none()) {
            return Ok(());
        }
        self.run_agents(Ask::Evaluate, state, llm, job)
    }

    /// Runs the pipeline on this thread and passes on what it says.
    pub(super) fn run_agents(&self, task: Ask, state: &State, llm: &Llm, job: &Job) -> Result<(), JobError> {
        let of = Arc::new(state.clone());
        let state = if self.shelf.recipe.how.blind { Arc::new(agent::blinded(state)) } else { of.clone() };
        let stand_in: StandIn = Arc::new(move || {
            let mut text = String::new();
            let decisions = plan_now(&of, &mut |words| text.push_str(words))?;
            Ok((decisions, text))
        });
        let (prompts, complaints) = agent::Prompts::of_user();
        for text in complaints {
            job.say(Feed::warn(text));
        }
        let refused = self.desk.refused.clone();
        let input = AgentInput { prompts, refused, ..AgentInput::new(task, state.clone(), stand_in) };
        let endpoint = Endpoint::from_env(llm.base_url.as_deref(), llm.model.as_deref());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(JobError::of)?;
        let cancel = job.token();
        let mut to = ToHost { job, forecaster: state.forecaster(), cancel: cancel.clone(), failed: None };
        runtime.block_on(agent::run(input, endpoint, Timeouts::default(), &mut to, &cancel));
        job.cancel().check()?;
        to.failed.map_or(Ok(()), Err)
    }
}

/// Hands on what agents say, until the host does not take it.
struct ToHost<'a> {
    job: &'a Job,
    forecaster: Option<Forecaster>,
    cancel: CancellationToken,
    failed: Option<JobError>,
}

impl Listener for ToHost<'_> {
    async fn feed(&mut self, feed: Feed) {
        if self.failed.is_none() {
            self.job.say_async(feed).await;
        }
    }

    async fn event(&mut self, mut event: Event) {
        if let Event::Proposed { decisions } = &mut event {
            for d in decisions.iter_mut().filter(|d| d.forecast.is_none()) {
                d.forecast = self.forecaster.as_ref().map(|f| f.decision(d));
            }
        }
        if self.failed.is_none()
            && let Err(e) = self.job.event_async(event).await
        {
            self.failed = Some(e);
            self.cancel.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{DecisionId, Status, Target};
    use crate::quant::Precision;

    #[test]
    fn what_a_new_plan_is_without_is_taken_back() {
        let decision = |id, layer: &str, author, status| Decision {
            id: DecisionId(id),
            status,
            ..Decision::new(Target::Layer(layer.into()), Action::Precision { precision: Precision::Int8 }, author)
        };
        let agent = Author::Agent { role: "pruning".into(), model: "m".into() };
        let decisions = vec![
            decision(0, "old", Author::Planner, Status::Proposed),
            decision(1, "again", Author::Planner, Status::Proposed),
            decision(2, "mine", Author::Human, Status::Edited),
            decision(3, "theirs", agent, Status::Proposed),
            decision(4, "approved", Author::Planner, Status::Approved),
        ];
        let state = State { decisions, ..State::default() };
        let new = [decision(5, "again", Author::Planner, Status::Proposed)];
        let back: Vec<(String, Action)> =
            given_up(&state, &new).iter().map(|d| (d.target.name().to_owned(), d.action.clone())).collect();
        assert_eq!(back, [("old".to_owned(), Action::Keep), ("theirs".to_owned(), Action::Keep)]);
    }
}
