//! Proposals: from the built-in planner, or from the agents with the planner standing in. What either says streams out
//! while it is said; decisions become events, which the host numbers, checks and clamps.

use super::{Compute, JobError};
use crate::agent::tools::{self, Asked, Does, Tool};
use crate::agent::{self, AgentInput, Endpoint, Listener, StandIn, Timeouts};
use crate::host::commands::rehearsable;
use crate::host::engine::{Job, Llm, Work};
use crate::host::jobs;
use crate::plan::planner::{self, PlannerInput, Proposal, trial_of};
use crate::plan::{Action, Author, Basis, Decision, Forecaster, GIVEN_UP, Status, Target, plan_key, same_cut};
use crate::session::{
    Answers, Ask, Channel, Event, Feed, NOTE_BYTES, QUESTION, ROLES, Rival, Role, Round, Spent, State, Utterance,
    differences,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const PLANNER: &str = "planner";
/// Longest question to the engineer, characters.
const MOST_ASKED: usize = 600;
/// How often it is looked whether there is an answer.
const ASKS_EVERY: Duration = Duration::from_millis(250);

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
    let proposal = planner::plan(&input, say).map_err(|e| e.to_string())?;
    if let Some(words) = near_rolled_back(state, &proposal.actions) {
        say(&words);
    }
    Ok(proposal)
}

/// Ratios that are as good as the same to who rolled one back.
const NEAR: f64 = 0.05;

/// What to say of a plan that is near one that was rolled back: why the engineer did that is nothing that a planner knows.
fn near_rolled_back(state: &State, plan: &[(Target, Action)]) -> Option<String> {
    let plan: Vec<&(Target, Action)> = plan.iter().filter(|(_, a)| *a != Action::Keep).collect();
    let near = |round: &Round| {
        let built: Vec<_> = state.actions_of(round.number).into_iter().filter(|(_, a)| *a != Action::Keep).collect();
        let there = |(t, a): &(Target, Action)| built.iter().any(|(of, b)| of == t && same_cut(a, b, NEAR));
        let alike = plan.iter().filter(|of| there(of)).count();
        (alike > 0 && 10 * alike >= 8 * built.len().max(plan.len())).then_some((round.number, alike))
    };
    let (round, alike) = state.rounds.iter().rev().filter(|r| r.rolled_back.is_some()).find_map(near)?;
    let words = "decisions are as there, cuts within five points";
    Some(format!(
        "Mind that this is near what round {round} was, which was rolled back ({alike} of {} {words}); a veto or a limit keeps me from a row. ",
        plan.len()
    ))
}

/// What takes back the open proposals that a new plan is without, of those that its author `may` decide: what would run is the new plan,
/// not both.
pub(super) fn given_up(
    state: &State,
    new: &[Decision],
    author: &Author,
    may: impl Fn(&Target) -> bool,
) -> Vec<Decision> {
    let given = state.given();
    let kept_anyway = |d: &Decision| {
        let stands = given.iter().find(|g| g.target == d.target).map_or(Action::Keep, |g| g.action.clone());
        let rationale = GIVEN_UP.to_owned();
        (stands != d.action).then(|| Decision { rationale, ..Decision::new(d.target.clone(), stands, author.clone()) })
    };
    let left = |d: &&Decision| may(&d.target) && !d.by_person() && !new.iter().any(|n| n.target == d.target);
    state.open().into_iter().filter(left).filter_map(kept_anyway).collect()
}

/// The same of what agents propose: each role answers with a whole plan of what it may decide, and the planner that stands in for some
/// with theirs.
fn given_up_by_agents(state: &State, new: &[Decision]) -> Vec<Decision> {
    let Some(author) = new.first().map(|d| d.author.clone()) else { return Vec::new() };
    let roles: Vec<&Role> = match &author {
        Author::Agent { role, .. } => ROLES.iter().filter(|r| r.name == role).collect(),
        _ => ROLES.iter().filter(|r| new.iter().any(|d| r.may(d.target.kind()))).collect(),
    };
    given_up(state, new, &author, |target| roles.iter().any(|r| r.may(target.kind())))
}

/// Roles that are asked elsewhere than the others, and those that the planner answers for.
fn elsewhere(llm: &Llm) -> (BTreeMap<&'static str, Endpoint>, Vec<&'static str>) {
    let usual = Endpoint::from_env(llm.base_url.as_deref(), llm.model.as_deref());
    let (mut others, mut planned) = (BTreeMap::new(), Vec::new());
    for role in &ROLES {
        match llm.roles.get(role.name) {
            None => {}
            Some(Answers::Planner) => planned.push(role.name),
            Some(Answers::Model { model, base_url }) => {
                let url = base_url.as_deref().or(llm.base_url.as_deref());
                others.extend(Endpoint::from_env(url, Some(model)).map(|e| (role.name, e.beside(usual.as_ref()))));
            }
        }
    }
    (others, planned)
}

impl Compute {
    pub(super) fn ask_planner(&self, state: &State, job: &Job) -> Result<(), JobError> {
        let (planned, said) = self.planner_says(state, job, |say| plan_now(state, say));
        let mut decisions = planned.map_err(JobError::Failed)?;
        decisions.extend(given_up(state, &decisions, &Author::Planner, |_| true));
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
        let seconds = began.elapsed().as_secs_f64();
        let said = Utterance { seconds, ..Utterance::whole(state.round, PLANNER, "built-in", text) };
        (done, Event::Said { utterance: Box::new(said) })
    }

    /// After a verdict: an endpoint's evaluation role argues from what the critic told.
    pub(super) fn argue(&self, state: &State, llm: &Llm, job: &Job) -> Result<(), JobError> {
        // What it would argue from is what agents of a blind session are not told.
        if self.shelf.recipe.how.blind || (llm.base_url.is_none() && llm.model.is_none()) {
            return Ok(());
        }
        self.speak(Speech::of(Ask::Evaluate), state, llm, &mut Spent::default(), job).map(drop)
    }

    /// One role speaks, with what the others said in this round.
    pub(super) fn ask_role(&self, state: &State, role: &'static Role, llm: &Llm, job: &Job) -> Result<(), JobError> {
        if self.shelf.recipe.how.blind && role.task == Ask::Evaluate {
            return Err(JobError::Failed("what it would argue from is not told to agents of this session".to_owned()));
        }
        let speech = Speech { only: Some(role), ..Speech::of(role.task) };
        self.speak(speech, state, llm, &mut Spent::default(), job)?;
        if role.proposes() { self.beside(job) } else { Ok(()) }
    }

    /// Agents propose, as often as they may by themselves; then the planner says what it would do.
    pub(super) fn ask_agents(&self, state: &State, llm: &Llm, job: &Job) -> Result<(), JobError> {
        let mut spent = Spent::default();
        let unanswered = self.speak(Speech::of(Ask::Propose), state, llm, &mut spent, job)?;
        if llm.looks.turns > 1 && !unanswered && (llm.base_url.is_some() || llm.model.is_some()) {
            self.iterate(llm, &mut spent, job)?;
        }
        self.beside(job)
    }

    /// Runs the pipeline on this thread and passes on what it says; what it takes is added to `spent`. Whether they put a question that
    /// nobody answered.
    pub(super) fn speak(
        &self,
        speech: Speech,
        state: &State,
        llm: &Llm,
        spent: &mut Spent,
        job: &Job,
    ) -> Result<bool, JobError> {
        let Speech { task, news, only } = speech;
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
        // A run by policy has nobody who could answer, and a verdict is not kept waiting.
        let asks = task == Ask::Propose && !self.shelf.recipe.how.blind;
        let (others, planned) = elsewhere(llm);
        let told = AgentInput::new(task, state.clone(), stand_in);
        let (looks, limits) = (llm.looks, llm.limits);
        let spent_before = *spent;
        let input = AgentInput {
            prompts,
            refused,
            looks,
            limits,
            spent: spent_before,
            only,
            asks,
            news,
            others,
            planned,
            ..told
        };
        let endpoint = Endpoint::from_env(llm.base_url.as_deref(), llm.model.as_deref());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(JobError::of)?;
        let cancel = job.token();
        let mut to = ToHost {
            compute: self,
            job,
            forecaster: state.forecaster(),
            cancel: cancel.clone(),
            unanswered: false,
            failed: None,
        };
        *spent = runtime.block_on(agent::run(input, endpoint, Timeouts::default(), &mut to, &cancel)).spent;
        job.cancel().check()?;
        to.failed.map_or(Ok(to.unanswered), Err)
    }

    /// After agents proposed: what the planner would do for the same budget, and where that differs.
    fn beside(&self, job: &Job) -> Result<(), JobError> {
        let state = job.state()?;
        let by_agents = |d: &&Decision| matches!(d.author, Author::Agent { .. });
        if state.round == 0 || !state.open().into_iter().any(|d| by_agents(&d)) {
            return Ok(());
        }
        // Without what agents have open, as if nobody had proposed yet.
        let mut alone = (*state).clone();
        alone.decisions.retain(|d| !(by_agents(&d) && d.status == Status::Proposed));
        let Ok(planned) = plan_now(&alone, &mut |_| {}) else { return Ok(()) };
        let given: Vec<(Target, Action)> =
            alone.recipe_actions().into_iter().filter(|(t, _)| !planned.iter().any(|d| d.target == *t)).collect();
        let actions = given.into_iter().chain(planned.iter().map(Decision::planned)).collect();
        let Ok(actions) = rehearsable(&state, &self.desk, actions) else { return Ok(()) };
        let shown = state.shown_actions();
        if plan_key(&shown) == plan_key(&actions) {
            return Ok(());
        }
        let words = difference(&state, &shown, &actions);
        job.say(Feed::Log { level: "info".to_owned(), text: format!("{PLANNER}: {words}") });
        job.event(Event::Rivalled { rival: Rival { round: state.round, actions, words } })
    }
}

/// Two plans for one budget, in words.
fn difference(state: &State, theirs: &[(Target, Action)], own: &[(Target, Action)]) -> String {
    let changes = |plan: &[(Target, Action)]| plan.iter().filter(|(_, a)| *a != Action::Keep).count();
    let rows: Vec<String> = differences(theirs, own).iter().map(|d| d.target.to_string()).collect();
    let named = rows.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
    let more = if rows.len() > 4 { format!(" and {} more", rows.len() - 4) } else { String::new() };
    let metric = state.metric();
    let told = |plan: &[(Target, Action)]| {
        let Some(f) = state.forecaster().map(|f| f.actions(plan)) else { return "no forecast".to_owned() };
        let lines = f.against(&state.budget);
        let factors: Vec<String> = (lines.iter().filter(|l| l.is_factor()))
            .map(|l| format!(", {} {:.2}x", l.name, l.forecast.value))
            .collect();
        let q = match f.quality.basis {
            Basis::Unmeasured => format!("{} not measured", metric.name),
            basis => {
                let words = metric.forecast_words(f.quality.value, f.quality.low, f.quality.high);
                format!("{words} ({})", basis.label())
            }
        };
        format!("{q}{}", factors.concat())
    };
    format!(
        "For the same budget I would plan otherwise at {}: {named}{more}. As known now, mine ({}): {}; theirs ({}): {}. \
         Both are tried on held-back data while nothing else runs; asked for a plan, I lay mine before you instead.",
        crate::words::counted(rows.len(), "place"),
        crate::words::counted(changes(own), "decision"),
        told(own),
        crate::words::counted(changes(theirs), "decision"),
        told(theirs),
    )
}

/// What agents are asked for.
#[derive(Debug)]
pub(super) struct Speech {
    pub task: Ask,
    /// Told the roles besides the facts.
    pub news: String,
    /// The one role that is asked, where not all are.
    pub only: Option<&'static Role>,
}

impl Speech {
    pub fn of(task: Ask) -> Speech {
        Speech { task, news: String::new(), only: None }
    }
}

/// Hands on what agents say, until the host does not take it.
struct ToHost<'a> {
    compute: &'a Compute,
    job: &'a Job,
    forecaster: Option<Forecaster>,
    cancel: CancellationToken,
    /// The engineer was asked something, and did not answer.
    unanswered: bool,
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
            // As it is now: while they spoke, the engineer may have decided.
            let state = self.job.state_async().await;
            let left = state.map(|state| given_up_by_agents(&state, decisions)).unwrap_or_default();
            decisions.extend(left);
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

    async fn state(&mut self) -> Option<Arc<State>> {
        let state = self.job.state_async().await.ok()?;
        Some(if self.compute.shelf.recipe.how.blind { Arc::new(agent::blinded(&state)) } else { state })
    }

    async fn call(&mut self, tool: &'static Tool, asked: Map<String, Value>) -> Result<Value, String> {
        // As it is now, not as it was when they were asked.
        let state = self.job.state_async().await.map_err(|e| e.to_string())?;
        match tool.does {
            Does::Looks => tools::answer(tool, &asked, &state),
            Does::Rehearses => apart(|| rehearsed(self.compute, tool, &asked, &state, self.job)),
            Does::Measures => apart(|| measured(self.compute, tool, &asked, &state, self.job)),
            Does::Asks => self.ask(tool, &asked, &state.notes).await,
            Does::Proposes => Err(format!("`{}` is not answered here", tool.name)),
        }
    }
}

/// Does what waits for the host, which nothing on a runtime's thread may do.
fn apart<T: Send>(does: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| scope.spawn(does).join().unwrap_or_else(|_| Err("the work broke off".to_owned())))
}

/// Something is measured again, as a command of the engineer's would have it.
fn measured(
    compute: &Compute,
    tool: &Tool,
    asked: &Map<String, Value>,
    state: &State,
    job: &Job,
) -> Result<Value, String> {
    let asked = Asked::of(tool, asked)?;
    let whole = |state: &State| state.profile().map(|p| json!({ "p50_ms": p.whole.p50, "p95_ms": p.whole.p95 }));
    let before = whole(state);
    let done = match (asked.text("what"), asked.text("name")) {
        (Some("layer"), None) => return Err("`layer` needs `name`; hint: names are those of `layers`".to_owned()),
        (Some("layer"), Some(name)) => {
            if !state.profile().is_some_and(|p| p.rows.iter().any(|r| r.name == name)) {
                let name = agent::clean::line(name, 80);
                return Err(format!("`{name}` is no row of the model in force; hint: names are those of `layers`"));
            }
            jobs::measure(compute, name.to_owned(), job)
        }
        (Some("layers"), _) => jobs::measure_all(compute, job),
        _ => jobs::sense(compute, job),
    };
    done.map_err(|e| e.to_string())?;
    let state = job.state().map_err(|e| e.to_string())?;
    match asked.text("name").filter(|_| asked.text("what") == Some("layer")) {
        Some(name) => {
            let again = Map::from_iter([("name".to_owned(), json!(name))]);
            tools::answer(tools::find("profile").ok_or("no tool tells of it")?, &again, &state)
        }
        None => Ok(json!({
            "measured": asked.text("what"),
            "whole_model_before": before,
            "whole_model_now": whole(&state),
            "sensitivities": state.sensitivity.curves.len(),
        })),
    }
}

impl ToHost<'_> {
    /// Puts a question to the engineer, and waits for the note that answers it: the first after `notes`.
    async fn ask(&mut self, tool: &Tool, asked: &Map<String, Value>, notes: &[(u32, String)]) -> Result<Value, String> {
        let asked = Asked::of(tool, asked)?;
        // On one line, so that nothing in it looks like somebody else's words.
        let question = agent::clean::line(asked.text("question").unwrap_or_default(), MOST_ASKED);
        if question.is_empty() {
            return Err("the question is empty; hint: ask something".to_owned());
        }
        self.job.say_async(Feed::warn(format!("the agents ask: {question} (`:note …` answers)"))).await;
        let round = self.job.state_async().await.map_err(|e| e.to_string())?.round;
        let said = Utterance::whole(round, QUESTION, "agents", question);
        self.job.event_async(Event::Said { utterance: Box::new(said) }).await.map_err(|e| e.to_string())?;
        let wait = Duration::from_secs(asked.count("wait_s", 120, 600) as u64);
        let began = Instant::now();
        while began.elapsed() < wait && !self.cancel.is_cancelled() {
            tokio::time::sleep(ASKS_EVERY).await;
            let state = self.job.state_async().await.map_err(|e| e.to_string())?;
            if let Some((_, answer)) = state.notes.last().filter(|_| state.notes != notes) {
                return Ok(json!({ "answer": agent::clean::line(answer, NOTE_BYTES) }));
            }
        }
        self.unanswered = true;
        Ok(
            json!({ "answer": null, "note": "nobody answered in time; go on with what you know, and say what you assumed" }),
        )
    }
}

/// What a plan turns out to be when it is built and tried on held-back data.
fn rehearsed(
    compute: &Compute,
    tool: &Tool,
    asked: &Map<String, Value>,
    state: &State,
    job: &Job,
) -> Result<Value, String> {
    let asked = Asked::of(tool, asked)?;
    let plan = tools::wanted(asked.list("decisions"), asked.text("on").unwrap_or("approved"), state)?;
    if let Some(error) = plan.errors.first() {
        return Err(error.clone());
    }
    if let Some(known) = trial_of(&state.trials, &plan.actions) {
        let mut told = tools::tried(state, &known.actions, &plan.remarks)?;
        // Nothing was built for it: it costs no rehearsal.
        told[tools::KNOWN] = true.into();
        return Ok(told);
    }
    if state.baseline().is_none() {
        return Err("the original is not evaluated yet; hint: `forecast` needs no trial".to_owned());
    }
    let actions = rehearsable(state, &compute.desk, plan.actions)?;
    compute.rehearse(state, &actions, job).map_err(|e| e.to_string())?;
    let state = job.state().map_err(|e| e.to_string())?;
    tools::tried(&state, &actions, &plan.remarks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::DecisionId;
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
        let back: Vec<(String, Action)> = given_up(&state, &new, &Author::Planner, |_| true)
            .iter()
            .map(|d| (d.target.name().to_owned(), d.action.clone()))
            .collect();
        assert_eq!(back, [("old".to_owned(), Action::Keep), ("theirs".to_owned(), Action::Keep)]);
    }

    #[test]
    fn a_plan_near_one_that_was_rolled_back_says_so() {
        let cut = |name: &str, ratio| (Target::Group(name.into()), Action::Prune { ratio, kept: Vec::new() });
        let built = [cut("a", 0.5), cut("b", 0.25)];
        let decision = |(i, (t, a)): (usize, &(Target, Action))| Decision {
            id: DecisionId(i as u64),
            ..Decision::new(t.clone(), a.clone(), Author::Planner)
        };
        let decisions: Vec<Decision> = built.iter().enumerate().map(decision).collect();
        let mut round = Round { number: 1, recipe: decisions.iter().map(|d| d.id).collect(), ..Round::default() };
        let of = |round: &Round| State {
            decisions: decisions.clone(),
            rounds: vec![Round::default(), round.clone()],
            ..State::default()
        };
        assert_eq!(near_rolled_back(&of(&round), &built), None, "it was not rolled back");
        round.rolled_back = Some("too slow".into());
        let state = of(&round);
        let words = near_rolled_back(&state, &[cut("a", 0.52), cut("b", 0.27)]).expect("within five points");
        assert!(words.contains("round 1") && words.contains("2 of 2"), "{words}");
        assert_eq!(near_rolled_back(&state, &[cut("a", 0.7), cut("b", 0.27)]), None);
        assert_eq!(near_rolled_back(&state, &[]), None);
    }

    #[test]
    fn a_role_takes_back_what_it_may_decide_and_no_more() {
        let by = |role: &str| Author::Agent { role: role.into(), model: "m".into() };
        let decision = |id, target: Target, action, author| Decision {
            id: DecisionId(id),
            ..Decision::new(target, action, author)
        };
        let int8 = Action::Precision { precision: Precision::Int8 };
        let cut = Action::Prune { ratio: 0.5, kept: Vec::new() };
        let decisions = vec![
            decision(0, Target::Layer("a".into()), int8.clone(), by("quantization")),
            decision(1, Target::Layer("b".into()), int8.clone(), Author::Planner),
            decision(2, Target::Group("g".into()), cut.clone(), by("pruning")),
            decision(3, Target::Group("h".into()), cut.clone(), by("pruning")),
        ];
        let state = State { decisions, ..State::default() };
        let back = |new: &[Decision]| -> Vec<(String, Author)> {
            given_up_by_agents(&state, new).into_iter().map(|d| (d.target.name().to_owned(), d.author)).collect()
        };
        let quant = by("quantization");
        assert_eq!(back(&[decision(0, Target::Layer("b".into()), int8, quant.clone())]), [("a".to_owned(), quant)]);
        let pruning = by("pruning");
        assert_eq!(
            back(&[decision(0, Target::Group("g".into()), cut.clone(), pruning.clone())]),
            [("h".to_owned(), pruning)]
        );
        let stand_in = decision(0, Target::Group("g".into()), cut, Author::Planner);
        assert_eq!(back(&[stand_in]), [("h".to_owned(), Author::Planner)]);
        assert_eq!(back(&[]), []);
    }
}
