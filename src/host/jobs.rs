//! What each job does, step by step, on its own thread. Every result is a durable event before the next step begins.

use super::engine::{Engine, Exported, Job, JobError, Llm, Work};
use crate::plan::{Action, Bisect, Decision, Step, Target, Verdict, plan_key};
use crate::session::{Evaluation, Event, Feed, Phase, Proposer, Record, Role, Utterance};
use crate::words::counted;

/// The jobs a host runs, one at a time.
#[derive(Debug, Clone, PartialEq)]
pub enum JobKind {
    /// A fresh session's start: profile, baseline, ladders, sensitivity, the planner's proposals.
    Open,
    Profile,
    /// One row again.
    Measure {
        layer: String,
    },
    Sense,
    Propose(Proposer),
    /// One role of the agents speaks.
    Ask(&'static Role),
    /// Build a plan and try it on held-back images. `asked`: by a command; otherwise anything else goes before it.
    Rehearse {
        actions: Vec<(Target, Action)>,
        asked: bool,
    },
    /// Build the planner's other plans for the budget and try them. `unasked`: what nobody asked for, by what it is done beside;
    /// anything else goes before it.
    Search {
        unasked: Option<String>,
    },
    /// Build a plan that a program outside asks about and try it: anything else goes before it.
    Try {
        actions: Vec<(Target, Action)>,
    },
    /// Find the decision of a plan that costs most.
    Bisect {
        actions: Vec<(Target, Action)>,
    },
    /// Levels of the model in force and a controller for `target` of its time a token; then they run until it is stopped.
    Control {
        target: f64,
    },
    /// Compress by the recipe, evaluate, judge.
    Run,
    /// Evaluate the round that waits for its verdict on all of the data, and judge it again.
    EvaluateAll,
    Export {
        round: u32,
        path: String,
        format: String,
    },
}

/// What is done for a program outside is known by a key that begins so.
pub const OUTSIDE: &str = "outside ";

/// The job whose levels can be asked for while it goes on.
pub const CONTROLLER: &str = "controller";

impl JobKind {
    pub fn label(&self) -> &'static str {
        match self {
            JobKind::Open => "first look",
            JobKind::Profile => "profile",
            JobKind::Measure { .. } => "measure",
            JobKind::Sense => "sensitivity",
            JobKind::Propose(Proposer::Planner) => "planner",
            JobKind::Propose(Proposer::Agents) | JobKind::Ask(_) => "agents",
            JobKind::Rehearse { .. } | JobKind::Try { .. } => "rehearsal",
            JobKind::Search { .. } => "search",
            JobKind::Bisect { .. } => "bisect",
            JobKind::Control { .. } => CONTROLLER,
            JobKind::Run => "run",
            JobKind::EvaluateAll => "evaluation",
            JobKind::Export { .. } => "export",
        }
    }
}

impl JobKind {
    /// What it is done for, where nobody asked for it: anything else goes before it.
    pub fn background(&self) -> Option<String> {
        match self {
            JobKind::Rehearse { actions, asked: false } => Some(plan_key(actions)),
            JobKind::Search { unasked } => unasked.clone(),
            JobKind::Try { actions } => Some(format!("{OUTSIDE}{}", plan_key(actions))),
            _ => None,
        }
    }
}

/// Agents when an endpoint was set, else the planner.
pub fn usual_proposer(llm: &Llm) -> Proposer {
    if llm.words().is_some() { Proposer::Agents } else { Proposer::Planner }
}

/// Does the job. What it says and finds goes out through `job`.
pub fn run(kind: JobKind, engine: &dyn Engine, llm: &Llm, job: &Job) -> Result<(), JobError> {
    if let JobKind::Export { round, path, format } = kind {
        let done = engine.export(&*job.state()?, round, &path, &format, job)?;
        let Exported { path, format, hash, bytes, notes } = done;
        return job.event(Event::Exported { path, format, hash, bytes, notes });
    }
    let engine = engine.work()?;
    match kind {
        JobKind::Open => {
            profile(engine, 0, job)?;
            ladders(engine, job)?;
            baseline(engine, job)?;
            sense(engine, job)?;
            let round = job.state()?.round;
            job.event(Event::PhaseEntered { round, phase: Phase::Reason })?;
            propose(engine, usual_proposer(llm), llm, job)
        }
        JobKind::Profile => measure_all(engine, job),
        JobKind::Measure { layer } => measure(engine, layer, job),
        JobKind::Sense => sense(engine, job),
        JobKind::Propose(by) => {
            ground(engine, job)?;
            propose(engine, by, llm, job)
        }
        JobKind::Ask(role) => {
            ground(engine, job)?;
            settle(engine, job)?;
            engine.ask(&*job.state()?, role, llm, job)
        }
        JobKind::Rehearse { actions, .. } | JobKind::Try { actions } => {
            baseline(engine, job)?;
            engine.rehearse(&*job.state()?, &actions, job)
        }
        JobKind::Search { .. } => {
            baseline(engine, job)?;
            engine.search(&*job.state()?, job)
        }
        JobKind::Bisect { actions } => {
            baseline(engine, job)?;
            bisect(engine, &actions, job)
        }
        JobKind::Control { target } => engine.control(&*job.state()?, target, job),
        JobKind::Run => {
            compress_and_evaluate(engine, job)?;
            let state = job.state()?;
            engine.reflect(&state, state.round, llm, job)
        }
        JobKind::EvaluateAll => evaluate_all(engine, job),
        // Done above: it needs no original.
        JobKind::Export { .. } => Ok(()),
    }
}

/// Proposals rest on measurements; a session that has none yet gets them first.
fn ground(engine: &dyn Work, job: &Job) -> Result<(), JobError> {
    let state = job.state()?;
    if state.profile().is_none() {
        profile(engine, 0, job)?;
        ladders(engine, job)?;
    }
    if state.sensitivity.curves.is_empty() {
        sense(engine, job)?;
    } else if state.trials.correction.is_none() {
        anchor(engine, job)?;
    }
    Ok(())
}

/// One row of the model in force again.
pub fn measure(engine: &dyn Work, layer: String, job: &Job) -> Result<(), JobError> {
    let state = job.state()?;
    let round = if state.profile_of(state.base_round()).is_some() { state.base_round() } else { 0 };
    let profile = Box::new(engine.profile(&state, round, job)?);
    job.event(Event::Remeasured { round, layer, profile })
}

/// Every row of the model in force, and the original that it is compared with.
pub fn measure_all(engine: &dyn Work, job: &Job) -> Result<(), JobError> {
    let state = job.state()?;
    profile(engine, 0, job)?;
    let round = state.base_round();
    if round > 0 {
        profile(engine, round, job)?;
        if let Some(latency) = engine.beside_original(&*job.state()?, round, job)?.map(Box::new) {
            job.event(Event::Paired { round, latency })?;
        }
    }
    ladders(engine, job)
}

fn profile(engine: &dyn Work, round: u32, job: &Job) -> Result<(), JobError> {
    let profile = Box::new(engine.profile(&*job.state()?, round, job)?);
    job.event(Event::Profiled { round, profile })?;
    decoding(engine, round, job)
}

/// What a token takes, where the model goes token by token.
fn decoding(engine: &dyn Work, round: u32, job: &Job) -> Result<(), JobError> {
    match engine.decoding(&*job.state()?, round, job)?.map(Box::new) {
        Some(profile) => job.event(Event::Profiled { round, profile }),
        None => Ok(()),
    }
}

/// Unless they are known and none of them is in doubt.
fn ladders(engine: &dyn Work, job: &Job) -> Result<(), JobError> {
    let state = job.state()?;
    let noisy = |l: &crate::profile::Ladder| l.points.iter().any(|p| p.noisy);
    if state.ladders.is_empty() || state.ladders.iter().any(noisy) {
        let ladders = engine.ladders(&state, job)?;
        job.event(Event::LaddersMeasured { ladders })?;
    }
    Ok(())
}

fn baseline(engine: &dyn Work, job: &Job) -> Result<(), JobError> {
    let state = job.state()?;
    if state.baseline().is_none() {
        let evaluation = Box::new(engine.baseline(&state, job)?);
        job.event(Event::Evaluated { evaluation })?;
    }
    Ok(())
}

/// Sensitivities, and what they are fitted to.
pub fn sense(engine: &dyn Work, job: &Job) -> Result<(), JobError> {
    settle(engine, job)?;
    engine.sense(&*job.state()?, job)?;
    anchor(engine, job)
}

/// Trials are set to the original's error on new images, so that has to be measured first.
fn anchor(engine: &dyn Work, job: &Job) -> Result<(), JobError> {
    if engine.desk().rehearses() {
        baseline(engine, job)?;
    }
    engine.anchor(&*job.state()?, job)
}

/// Tries the plan, then without parts of it, and says in the planner's name which decision costs most. What was tried before is not tried again.
fn bisect(engine: &dyn Work, actions: &[(Target, Action)], job: &Job) -> Result<(), JobError> {
    let forecaster = job.state()?.forecaster();
    // Back to what a layer is in anyway is no change.
    let idle = |one: &(Target, Action)| {
        let Some(f) = forecaster.as_ref().filter(|_| matches!(one.1, Action::Precision { .. })) else { return false };
        let (one, base) = (std::slice::from_ref(one), f.costs.base());
        f.harm(one) == (0.0, 0) && f.costs.cost(one).is_ok_and(|c| c.bytes == base.bytes && c.macs == base.macs)
    };
    let changes = actions.iter().filter(|one| one.1 != Action::Keep && !idle(one));
    let actions: Vec<(Target, Action)> = changes.cloned().collect();
    let most = actions.len().next_power_of_two().ilog2() as usize + 2;
    let mut made = 0;
    let mut change = |actions: &[(Target, Action)]| -> Result<f64, JobError> {
        job.cancel().check()?;
        job.progress("bisect", "plans", made, most);
        made += 1;
        // Nothing is left of it: that is the original.
        if actions.is_empty() {
            return Ok(0.0);
        }
        if job.state()?.trials.of(actions).is_none() {
            engine.rehearse(&*job.state()?, actions, job)?;
        }
        let told = job.state()?.trials.of(actions).map(|t| t.outcome.d_quality);
        told.ok_or_else(|| {
            JobError::Failed("a part of the plan could not be tried; hint: rehearse it first".to_owned())
        })
    };
    let whole = change(&actions)?;
    let harm: Vec<f64> =
        actions.iter().map(|one| forecaster.as_ref().map_or(0.0, |f| f.harm(std::slice::from_ref(one)).0)).collect();
    let Some(mut bisect) = Bisect::new(&harm, whole).filter(|_| whole < 0.0) else {
        let words = if actions.len() < 2 {
            "there are no two decisions that change anything"
        } else {
            "the plan loses nothing that its rehearsal on held-back data could tell, which is not what a round measures"
        };
        job.say(Feed::Log { level: "info".to_owned(), text: format!("{words}: nothing to look for") });
        return Ok(());
    };
    let found = loop {
        match bisect.step() {
            Step::Found(found) => break found,
            Step::Without(left_out) => {
                let rest =
                    actions.iter().enumerate().filter(|(i, _)| !left_out.contains(i)).map(|(_, one)| one.clone());
                let rest: Vec<_> = rest.collect();
                bisect.told(change(&rest)?);
            }
        }
    };
    let state = job.state()?;
    let (target, action) = &actions[found.at];
    let metric = state.metric();
    let gives = found.gives;
    // The same figures as everywhere: what held-back data showed, as far as that speaks for new data.
    let forecaster = state.forecaster();
    let without: Vec<_> = actions.iter().filter(|(t, _)| t != target).cloned().collect();
    let shown = |plan: &[(Target, Action)]| {
        let quality = forecaster.as_ref().map(|f| f.quality(plan)).unwrap_or_default();
        format!("{} {}", metric.change_words(quality.value), metric.range_words(quality.low, quality.high))
    };
    let ends = if gives <= 0.0 {
        "none of them costs anything that these trials could tell"
    } else if gives > -2.0 / 3.0 * found.whole {
        "most of the loss is there"
    } else {
        "no single decision has most of the loss"
    };
    let words = format!(
        "The {} come to {}, and without {target} ({}) to {}. On held-back {}s alone that is {} and {}: {ends}. Found by {}.",
        counted(actions.len(), "decision"),
        shown(&actions),
        crate::session::action_text(action),
        shown(&without),
        metric.item,
        metric.change_words(found.whole),
        metric.change_words(found.whole + gives),
        counted(found.trials, "trial"),
    );
    let utterance = Utterance::whole(state.round, "planner", "built-in", words);
    job.event(Event::Said { utterance: Box::new(utterance) })
}

/// Works out how units rank, and picks those of cuts that were decided before it was known.
fn settle(engine: &dyn Work, job: &Job) -> Result<(), JobError> {
    engine.rank(job)?;
    let state = job.state()?;
    let picked = |d: &Decision| match &d.action {
        Action::Prune { ratio, kept } if kept.is_empty() => Some((d.id, engine.desk().kept(d.target.name(), *ratio)?)),
        _ => None,
    };
    let kept: Vec<_> = state.decisions.iter().filter_map(picked).collect();
    if kept.is_empty() { Ok(()) } else { job.event(Event::Resolved { kept }) }
}

fn propose(engine: &dyn Work, by: Proposer, llm: &Llm, job: &Job) -> Result<(), JobError> {
    settle(engine, job)?;
    engine.propose(&*job.state()?, by, llm, job)
}

fn compress_and_evaluate(engine: &dyn Work, job: &Job) -> Result<(), JobError> {
    // The verdict needs the original's figures; a session that was cancelled early has none.
    baseline(engine, job)?;
    settle(engine, job)?;
    let state = job.state()?;
    let round = state.round;
    let ids = state.round_at(round).map(|r| r.ids.clone()).unwrap_or_default();
    let made = engine.compress(&state, round, job)?;
    job.cancel().check()?;
    let made = match state.round_at(round).and_then(|r| r.heal) {
        Some(heal) => engine.heal(&state, round, heal, &made, job)?,
        None => made,
    };
    job.cancel().check()?;
    let (artifact, model_hash) = (made.artifact.clone(), made.model_hash);
    job.event(Event::Applied { round, ids, artifact, model_hash, used: made.used })?;
    let state = job.state()?;
    let judged = engine.evaluate(&state, round, &made.artifact, state.until_clear, job)?;
    job.cancel().check()?;
    decoding(engine, round, job)?;
    tell_verdict(engine, round, judged, job)
}

/// What a round is worth on all of the data, where its evaluation ended before.
fn evaluate_all(engine: &dyn Work, job: &Job) -> Result<(), JobError> {
    let state = job.state()?;
    let round = state.round;
    let Some(artifact) = state.round_at(round).and_then(|r| r.artifact.clone()) else {
        return Err(JobError::Failed("the round has no model; hint: run again".to_owned()));
    };
    let judged = engine.evaluate(&state, round, &artifact, false, job)?;
    job.cancel().check()?;
    tell_verdict(engine, round, judged, job)
}

/// A round's figures, its verdict, and what the critic says of them.
fn tell_verdict(
    engine: &dyn Work,
    round: u32,
    (evaluation, verdict): (Evaluation, Verdict),
    job: &Job,
) -> Result<(), JobError> {
    let mut events =
        vec![Event::Evaluated { evaluation: Box::new(evaluation) }, Event::VerdictGiven { round, verdict }];
    let mut after = (*job.state()?).clone();
    for event in &events {
        after.apply(&Record { seq: after.seq + 1, at_ms: 0, event: event.clone() });
    }
    events.extend(engine.critique(&after, round).map(|said| Event::Said { utterance: Box::new(said) }));
    job.events(events)
}
