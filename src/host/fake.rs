//! A deterministic engine for the host's tests: three groups, instant work, and a gate to hold a job at.

use super::desk::Desk;
use super::engine::{Engine, Exported, Job, JobError, Llm, Work};
use crate::control::{Figures, Side};
use crate::data::DataCard;
use crate::eval::{Metrics, TrialOutcome};
use crate::graph::{Graph, NodeId};
use crate::model::{Family, ModelInfo, Preprocess};
use crate::plan::testing::{profile, row, verdict};
use crate::plan::{Action, Author, Decision, DecisionId, Limit, Outcome, Status, Target, Trial, Verdict, plan_key};
use crate::profile::{Ladder, LatencyStats, Load, Paired, Profile, Ratio, SensCurve, SensTarget};
use crate::prune::{Group, GroupKind};
use crate::quant::Precision;
use crate::recover::{RepairStep, RepairUse};
use crate::session::{
    Built, Channel, Controlled, Evaluation, Event, Feed, LevelMade, LiveRow, Part, Proposer, SessionCard, State,
    Utterance,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Where a test holds the fake engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    Profile,
    Propose,
    Rehearse,
    Search,
    Control,
    Compress,
    Evaluate,
    Reflect,
}

#[derive(Debug, Default)]
pub struct Fake {
    /// The job that reaches this waits there until it is cancelled or the gate opens.
    pub gate: Mutex<Option<Gate>>,
    pub fail: Mutex<Option<&'static str>>,
    pub rehearses: Mutex<bool>,
    /// Whether levels can be made of its model.
    pub controls: Mutex<bool>,
    /// Precisions that its device has no kernel for.
    pub refused: Mutex<Vec<Precision>>,
    /// Whether a job has worked out how units rank.
    pub ranked: AtomicBool,
    pub profiles: AtomicU32,
    /// Searches that came to their end.
    pub searches: AtomicU32,
    /// What it proposes instead of half of everything.
    pub proposes: Mutex<Vec<(&'static str, Action)>>,
    /// What a rehearsal finds that a decision on a target costs; where nothing is said, every plan costs one.
    pub costs: Mutex<Vec<(&'static str, f64)>>,
    /// What it was given to build, run by run.
    pub built: Mutex<Vec<Vec<(Target, Action)>>>,
}

impl Fake {
    /// Takes what a run builds, as the real engine does.
    pub fn build(&self, state: &State, round: u32) -> Vec<(Target, Action)> {
        let actions = state.actions_of(round);
        self.built.lock().expect("built").push(actions.clone());
        actions
    }

    fn pass(&self, gate: Gate, job: &Job) -> Result<(), JobError> {
        while *self.gate.lock().expect("gate") == Some(gate) {
            job.cancel().check()?;
            job.progress("gate", "waiting", 1, 2);
            std::thread::sleep(Duration::from_millis(2));
        }
        let fail = *self.fail.lock().expect("fail");
        match fail {
            Some("panic") => panic!("the fake engine was told to"),
            Some(words) => Err(JobError::Failed(words.to_owned())),
            None => Ok(()),
        }
    }
}

fn evaluation(round: u32) -> Evaluation {
    let metrics = Metrics::of_classes(10, 9, 1.0, 0.0, Vec::new());
    Evaluation { round, metrics, weight_bytes: 100, params: 25, baseline_ms: 1.0, ..Evaluation::default() }
}

fn built(artifact: &str) -> Built {
    let (artifact, model_hash) = (artifact.to_owned(), "h".to_owned());
    Built { key: String::new(), artifact, model_hash, repairs: vec![], used: RepairUse::default() }
}

impl Engine for Fake {
    fn card(&self) -> SessionCard {
        let group = |id: &str| Group {
            id: id.to_owned(),
            kind: GroupKind::Channels,
            size: 8,
            granule: 1,
            members: Vec::new(),
            protected: None,
            block: None,
        };
        SessionCard {
            model: ModelInfo {
                name: "fake".to_owned(),
                family: Family::CifarResnet,
                classes: 2,
                class_names: None,
                preprocess: Preprocess::imagenet([4, 4]),
                source: "fake".into(),
                hash: "0".to_owned(),
                notes: Vec::new(),
                context: None,
            },
            graph: Graph { nodes: Vec::new(), output: NodeId(0), blocks: Vec::new() },
            groups: ["a", "b", "c"].map(group).to_vec(),
            data: DataCard::default(),
            calib: DataCard::default(),
            calib_is_eval: false,
            device: "cpu".to_owned(),
            device_note: None,
            threads: 1,
            batch: 1,
            seed: 0,
            metric: None,
            version: "test".to_owned(),
            recipe: None,
        }
    }

    fn desk(&self) -> &dyn Desk {
        self
    }

    fn export(&self, _: &State, round: u32, path: &str, format: &str, _: &Job) -> Result<Exported, JobError> {
        Ok(Exported {
            path: format!("{path}{round}"),
            format: format.to_owned(),
            hash: "h".to_owned(),
            bytes: 0,
            notes: Vec::new(),
        })
    }

    fn work(&self) -> Result<&dyn Work, JobError> {
        Ok(self)
    }
}

impl Work for Fake {
    fn beside_original(&self, _: &State, _: u32, _: &Job) -> Result<Option<Paired>, JobError> {
        let (base, new) = (LatencyStats { p50: 4.0, ..LatencyStats::default() }, LatencyStats::default());
        let ratio = Ratio { n: 9, value: 0.5, low: 0.4, high: 0.6, coverage: 0.95 };
        let new = LatencyStats { p50: 2.0, ..new };
        Ok(Some(Paired { base, new, ratio, doubt: None, load: Load::default() }))
    }

    fn profile(&self, _: &State, round: u32, job: &Job) -> Result<Profile, JobError> {
        for runs in 0..50 {
            job.live(runs, [LiveRow { name: "a".to_owned(), p50_ms: 1.0, p95_ms: f64::NAN, n: runs }]);
        }
        self.pass(Gate::Profile, job)?;
        // Another figure every time.
        let ms = f64::from(self.profiles.fetch_add(1, Ordering::Relaxed) + 1);
        Ok(profile(vec![row("a", ms, 12), row("b", ms, 12)], 2.0 * ms + f64::from(round)))
    }

    fn baseline(&self, _: &State, _: &Job) -> Result<Evaluation, JobError> {
        Ok(evaluation(0))
    }

    fn ladders(&self, _: &State, _: &Job) -> Result<Vec<Ladder>, JobError> {
        Ok(vec![Ladder::default()])
    }

    fn sense(&self, _: &State, job: &Job) -> Result<(), JobError> {
        for name in ["a", "b", "c"] {
            let curve = SensCurve { target: SensTarget::Group(name.to_owned()), points: Vec::new(), images: 1 };
            job.event(Event::Sensed { base_loss: 0.1, base_score: 0.9, curves: vec![curve] })?;
        }
        Ok(())
    }

    fn anchor(&self, _: &State, _: &Job) -> Result<(), JobError> {
        Ok(())
    }

    fn rehearse(&self, _: &State, actions: &[(Target, Action)], job: &Job) -> Result<(), JobError> {
        self.pass(Gate::Rehearse, job)?;
        job.cancel().check()?;
        let key = plan_key(actions);
        let built = Built { key: key.clone(), ..built("b.x") };
        job.event(Event::Built { built: Box::new(built) })?;
        let costs = self.costs.lock().expect("costs").clone();
        let cost = |(target, action): &(Target, Action)| match action {
            Action::Keep => 0.0,
            _ => costs.iter().find(|(name, _)| *name == target.name()).map_or(0.0, |(_, cost)| *cost),
        };
        let lost: f64 = if costs.is_empty() { 1.0 } else { actions.iter().map(cost).sum() };
        let outcome = TrialOutcome { d_quality: -lost, images: 10, by_kind: vec![-lost], ..TrialOutcome::default() };
        let trial = Trial { key, actions: actions.to_vec(), outcome, anchor: false };
        job.event(Event::Tried { trial: Box::new(trial), correction: None })
    }

    fn search(&self, _: &State, job: &Job) -> Result<(), JobError> {
        self.pass(Gate::Search, job)?;
        job.cancel().check()?;
        self.searches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn control(&self, state: &State, target: f64, job: &Job) -> Result<(), JobError> {
        self.pass(Gate::Control, job)?;
        job.cancel().check()?;
        if state.control_of(0).is_none_or(|c| c.target != target) {
            let time = Ratio { n: 9, value: 0.5, low: 0.4, high: 0.6, coverage: 0.95 };
            let level = |share| LevelMade { bytes: 9, share, time, divergence: 0.1, mlps: [1, 0, 0] };
            let made = Controlled { target, levels: vec![level(1.0), level(0.5)], ..Controlled::default() };
            job.event(Event::Controlled { control: Box::new(made) })?;
        }
        let mut tokens = 0;
        while !job.cancel().is_cancelled() {
            tokens += 1;
            let levels = vec![Side::default(); 2];
            job.levels(Figures { asked: job.dial().asked(), tokens, levels, ..Figures::default() });
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn propose(&self, state: &State, _: Proposer, _: &Llm, job: &Job) -> Result<(), JobError> {
        job.say(Feed::Turn { role: "planner".to_owned(), model: String::new() });
        for word in ["one ", "two ", "three"] {
            job.say(Feed::Token { role: "planner".to_owned(), channel: Channel::Text, text: word.to_owned() });
        }
        let utterance = Utterance {
            round: state.round,
            role: "planner".to_owned(),
            text: "one two three".to_owned(),
            tokens: 3,
            ..Utterance::default()
        };
        job.event(Event::Said { utterance: Box::new(utterance) })?;
        self.pass(Gate::Propose, job)?;
        let decision = |name: &str, action: Action| Decision {
            id: DecisionId(999),
            rationale: "because".to_owned(),
            status: Status::Approved,
            ..Decision::new(Target::Group(name.to_owned()), action, Author::Planner)
        };
        let told = self.proposes.lock().expect("proposes").clone();
        let half = |name| (name, Action::Prune { ratio: 0.5, kept: Vec::new() });
        let of = if told.is_empty() { ["a", "b", "c"].map(half).to_vec() } else { told };
        job.event(Event::Proposed { decisions: of.into_iter().map(|(name, action)| decision(name, action)).collect() })
    }

    fn reflect(&self, _: &State, _: u32, _: &Llm, job: &Job) -> Result<(), JobError> {
        self.pass(Gate::Reflect, job)
    }

    fn rank(&self, _: &Job) -> Result<(), JobError> {
        self.ranked.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn compress(&self, state: &State, round: u32, job: &Job) -> Result<Built, JobError> {
        let step = RepairStep {
            name: "refit a".to_owned(),
            loss_before: 1.0,
            loss_after: 0.5,
            samples: 64,
            kept: true,
            seconds: 0.0,
        };
        job.event(Event::Repaired { round, step })?;
        self.pass(Gate::Compress, job)?;
        Ok(built(&format!("{}.x", self.build(state, round).len())))
    }

    fn evaluate(
        &self,
        _: &State,
        round: u32,
        _: &str,
        until_clear: bool,
        job: &Job,
    ) -> Result<(Evaluation, Verdict), JobError> {
        self.pass(Gate::Evaluate, job)?;
        let part = until_clear.then_some(Part { of: 100, level: 0.995 });
        Ok((Evaluation { part, ..evaluation(round) }, verdict(Outcome::Reject)))
    }
}

impl Desk for Fake {
    fn refuses(&self, action: &Action) -> Option<String> {
        let refused = self.refused.lock().expect("refused");
        matches!(action, Action::Precision { precision } if refused.contains(precision))
            .then(|| "it has no kernel; hint: int8 has".into())
    }

    fn controls(&self) -> Result<(), String> {
        match *self.controls.lock().expect("controls") {
            true => Ok(()),
            false => Err("`fake` is no language model; hint: open one".to_owned()),
        }
    }

    fn heals(&self) -> Result<(), String> {
        Err("`fake` has no weights to train; hint: open a network".to_owned())
    }

    fn rehearses(&self) -> bool {
        *self.rehearses.lock().expect("rehearses")
    }

    fn resolve(&self, state: &State, target: &Target, action: &Action) -> Result<Action, String> {
        if !["a", "b", "c"].contains(&target.name()) {
            return Err(format!("no `{target}`; hint: a, b or c"));
        }
        match action {
            Action::Prune { ratio, .. } => {
                let mut ratio = *ratio;
                for c in state.constraints_on(target) {
                    match c.limit {
                        Limit::Freeze => return Err(format!("`{target}` is vetoed; hint: reopen it first")),
                        Limit::MaxRatio { ratio: most } => ratio = ratio.min(most),
                        Limit::MinRatio { ratio: least } => ratio = ratio.max(least),
                        Limit::KeepF32 | Limit::Together { .. } | Limit::Prefer { .. } => {}
                    }
                }
                let ratio = 1.0 - (8.0 * (1.0 - ratio)).round() / 8.0;
                Ok(Action::Prune { ratio, kept: self.kept(target.name(), ratio).unwrap_or_default() })
            }
            other => Ok(other.clone()),
        }
    }

    fn kept(&self, _: &str, ratio: f64) -> Option<Vec<u32>> {
        let units = (8.0 * (1.0 - ratio)).round() as u32;
        self.ranked.load(Ordering::Relaxed).then(|| (0..units).collect())
    }
}
