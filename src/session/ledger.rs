//! What authors expected of their plans, what came of them, and the record that this adds up to. Pure.
//!
//! Not here: the file that keeps entries across sessions (`host/ledger`). Invariants: an expectation is judged only where the
//! plan that it was told of is the plan that was built; who expected nothing is judged by what came alone; figures of
//! different metrics are never added up.

use super::{Round, State};
use crate::plan::{Action, Author, Decision, Estimate, Outcome, Status, Target, same_cut};
use crate::task::Metric;
use crate::words::counted;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Expectations that a session keeps, newest last.
pub const MOST_CLAIMS: usize = 64;
/// The planner's other plans that a session keeps.
pub const MOST_RIVALS: usize = 16;
/// Records of other sessions that a session keeps.
pub const MOST_RECORDS: usize = 64;
/// How far an expectation may lie outside of the measured interval, points: whoever says "nothing" and loses a tenth was right.
const SLACK: f64 = 0.5;

/// What an agent expected of the plan as it stood with its proposal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    pub round: u32,
    pub author: Author,
    /// Change of the task's metric in its unit, negative for worse; `None`: it told nothing.
    pub expects: Option<f64>,
    /// What it has proposed in the round so far: the plan that it speaks of.
    #[serde(default)]
    pub plan: Vec<(Target, Action)>,
    /// Which prompts it was asked with.
    #[serde(default)]
    pub prompts: String,
}

/// What the planner would do for the same budget where agents propose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rival {
    pub round: u32,
    pub actions: Vec<(Target, Action)>,
    /// Where it differs, with what was known of either.
    #[serde(default)]
    pub words: String,
}

/// What became of a judged round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    #[default]
    Open,
    Accepted,
    RolledBack,
}

/// One author in one judged round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub round: u32,
    /// See [`who`].
    pub who: String,
    pub prompts: String,
    pub family: String,
    /// Name of the metric that changes are of.
    pub metric: String,
    /// Of the round's new decisions, how many are this author's.
    pub decisions: usize,
    pub of: usize,
    /// All that it proposed was built, and nothing else was new.
    pub whole: bool,
    pub expected: Option<f64>,
    /// Change of the metric in its unit, negative for worse, with its 95 % interval.
    pub measured: Estimate,
    /// Whether what was expected came.
    pub held: Option<bool>,
    pub outcome: Outcome,
    /// There was no budget to meet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unbounded: bool,
    pub fate: Fate,
    /// By how much it was better than the planner's plan for the same budget, where held-back data has seen both.
    pub gain: Option<f64>,
}

/// What authors that are no models are known by.
const OWN: [&str; 3] = ["planner", "you", "rules"];

/// What an author is known by: a model, whatever role it had. None passes for the planner or a person by its name.
pub fn who(author: &Author) -> Cow<'_, str> {
    match author {
        Author::Planner => OWN[0].into(),
        Author::Agent { model, .. } if OWN.contains(&model.trim()) => format!("{} (a model)", model.trim()).into(),
        Author::Agent { model, .. } => model.as_str().into(),
        Author::Human => OWN[1].into(),
        Author::Rule { .. } => OWN[2].into(),
    }
}

/// What came of the judged round `round`, for each author of its new decisions.
pub fn entries(state: &State, round: u32) -> Vec<Entry> {
    let (Some(card), Some(this)) = (&state.card, state.round_at(round).filter(|_| round > 0)) else {
        return Vec::new();
    };
    let Some(verdict) = &this.verdict else { return Vec::new() };
    let new: Vec<&Decision> =
        this.ids.iter().filter_map(|id| state.decision(*id)).filter(|d| d.action != Action::Keep).collect();
    let mut names: Vec<Cow<'_, str>> = new.iter().map(|d| who(&d.author)).collect();
    names.sort_unstable();
    names.dedup();
    let metric = state.metric();
    let measured = Estimate { value: verdict.d_quality, low: verdict.d_quality_low, high: verdict.d_quality_high };
    let entry = |name: &str| {
        let own = |d: &&&Decision| who(&d.author) == name;
        // Whatever was trained afterwards is not what they spoke of.
        let trained = this.course.as_ref().is_some_and(|c| c.best.step > 0);
        let whole = !trained
            && new.iter().all(|d| who(&d.author) == name && d.edited_from.is_none())
            && all_built(state, this, name)
            && as_spoken(state, this, name, &new);
        let expected = expectation(state, this, name).filter(|_| whole);
        let slack = metric.of_points(SLACK);
        Entry {
            round,
            who: name.to_owned(),
            prompts: claim(state, round, name).map(|c| c.prompts.clone()).unwrap_or_default(),
            family: card.model.family.label().to_owned(),
            metric: metric.name.clone(),
            decisions: new.iter().filter(own).count(),
            of: new.len(),
            whole,
            expected: expected.map(|e| e.value),
            measured,
            held: expected.map(|e| e.high >= measured.low - slack && e.low <= measured.high + slack),
            outcome: verdict.outcome,
            unbounded: verdict.unbounded(),
            fate: match (this.accepted, &this.rolled_back) {
                (_, Some(_)) => Fate::RolledBack,
                (true, None) => Fate::Accepted,
                (false, None) => Fate::Open,
            },
            gain: gain(state, round).filter(|_| whole && name != who(&Author::Planner)),
        }
    };
    names.iter().map(|name| entry(name)).collect()
}

/// The newest expectation of `name` in `round`.
fn claim<'a>(state: &'a State, round: u32, name: &str) -> Option<&'a Claim> {
    state.claims.iter().rev().find(|c| c.round == round && who(&c.author) == name)
}

/// What `name` expected of the whole plan: a figure, or the planner's forecast with its range.
fn expectation(state: &State, round: &Round, name: &str) -> Option<Estimate> {
    if name == who(&Author::Planner) {
        return round.expected().map(|q| q.estimate());
    }
    let value = claim(state, round.number, name)?.expects?;
    Some(Estimate { value, low: value, high: value })
}

/// Nothing that `name` proposed in the round was refused or changed.
fn all_built(state: &State, round: &Round, name: &str) -> bool {
    let own = |d: &&Decision| d.round == round.number && who(&d.author) == name && d.action != Action::Keep;
    state.decisions.iter().filter(own).all(|d| round.ids.contains(&d.id) && d.status != Status::Vetoed)
}

/// The plan that `name` spoke of is what was built, where it spoke of one.
fn as_spoken(state: &State, round: &Round, name: &str, new: &[&Decision]) -> bool {
    let Some(claim) = claim(state, round.number, name) else { return true };
    let built = state.actions_of(round.number);
    let there = |(target, action): &(Target, Action)| {
        *action == Action::Keep || built.iter().any(|(t, a)| t == target && same_cut(a, action, 0.02))
    };
    claim.plan.iter().all(there) && new.iter().all(|d| claim.plan.iter().any(|(t, _)| *t == d.target))
}

/// The round's plan against the planner's for the same budget, on held-back data.
fn gain(state: &State, round: u32) -> Option<f64> {
    let rival = state.rivals.iter().rev().find(|r| r.round == round)?;
    let seen = |actions: &[(Target, Action)]| state.trials.of(actions).map(|t| t.outcome.d_quality);
    Some(seen(&state.actions_of(round))? - seen(&rival.actions)?)
}

/// What an author's entries of one metric and family add up to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Standings {
    pub who: String,
    pub family: String,
    pub metric: String,
    /// Judged rounds, those that were built as it proposed, how many of these met the budget, and rounds that were rolled back.
    pub rounds: usize,
    pub whole: usize,
    pub met: usize,
    /// Of those that were built as it proposed, how many had no budget to meet.
    #[serde(default)]
    pub unbounded: usize,
    pub rolled_back: usize,
    /// Rounds of which something was expected, and those where it came.
    pub told: usize,
    pub held: usize,
    /// Sum over those of measured minus expected: negative is hopeful.
    pub off: f64,
    /// Rounds that were compared with the planner's plan, and the sum of what they gained over it.
    pub against: usize,
    pub gained: f64,
}

impl Standings {
    /// What `entries` add up to, by author, family and metric.
    pub fn of(entries: &[Entry]) -> Vec<Standings> {
        let mut all: Vec<Standings> = Vec::new();
        for e in entries {
            let at = all.iter().position(|s| s.who == e.who && s.family == e.family && s.metric == e.metric);
            let at = at.unwrap_or_else(|| {
                let (who, family, metric) = (e.who.clone(), e.family.clone(), e.metric.clone());
                all.push(Standings { who, family, metric, ..Standings::default() });
                all.len() - 1
            });
            if let Some(s) = all.get_mut(at) {
                s.take(e);
            }
        }
        all
    }

    fn take(&mut self, e: &Entry) {
        self.rounds += 1;
        self.whole += usize::from(e.whole);
        // Parts of a plan meet nothing by themselves.
        self.met += usize::from(e.whole && !e.unbounded && e.outcome == Outcome::Accept);
        self.unbounded += usize::from(e.whole && e.unbounded);
        self.rolled_back += usize::from(e.fate == Fate::RolledBack);
        if let (Some(expected), Some(held)) = (e.expected, e.held) {
            self.told += 1;
            self.held += usize::from(held);
            self.off += e.measured.value - expected;
        }
        if let Some(gain) = e.gain {
            self.against += 1;
            self.gained += gain;
        }
    }

    fn join(&mut self, other: &Standings) {
        self.rounds += other.rounds;
        self.whole += other.whole;
        self.met += other.met;
        self.unbounded += other.unbounded;
        self.rolled_back += other.rolled_back;
        self.told += other.told;
        self.held += other.held;
        self.off += other.off;
        self.against += other.against;
        self.gained += other.gained;
    }

    /// In a sentence, with changes as `metric` words them.
    pub fn words(&self, metric: &Metric) -> String {
        let mut parts = vec![format!("{} judged", counted(self.rounds, "round"))];
        if self.told > 0 {
            let mean = self.off / self.told as f64;
            let way = match mean {
                m if m < -metric.of_points(SLACK) => "too hopeful by ",
                m if m > metric.of_points(SLACK) => "too gloomy by ",
                _ => "off by ",
            };
            let by = format!("{:.*} {}", metric.digits, mean.abs(), metric.change_unit);
            parts.push(format!("{way}{}", by.trim_end()));
            parts.push(format!("its range met the measured one in {} of {}", self.held, self.told));
        }
        let without = match self.unbounded {
            0 => String::new(),
            n => format!(", {n} had none"),
        };
        match (self.whole == self.rounds, self.whole == self.unbounded) {
            (true, true) => {}
            (true, false) => parts.push(format!("{} met the budget{without}", self.met)),
            (false, true) => parts.push(format!("{} built as proposed", self.whole)),
            (false, false) => {
                parts.push(format!("{} built as proposed, of which {} met the budget{without}", self.whole, self.met));
            }
        }
        if self.rolled_back > 0 {
            parts.push(format!("{} rolled back", self.rolled_back));
        }
        if self.against > 0 {
            let mean = metric.change_words(self.gained / self.against as f64);
            parts.push(format!("{mean} against the planner's plans on held-back data ({} tried)", self.against));
        }
        parts.join(", ")
    }
}

/// An expected change, as it is shown, in the metric's unit and negative for worse; `None` for one that could not come.
pub fn expected(metric: &Metric, shown: f64) -> Option<f64> {
    (shown.abs() <= metric.of_points(100.0)).then(|| metric.shown(shown))
}

impl State {
    /// What `author` expects of the plan in this round.
    pub fn expected_by(&self, author: &Author) -> Option<f64> {
        claim(self, self.round, &who(author))?.expects
    }

    /// What is known of `author` for networks of this family, from this session and from earlier ones; of other families where
    /// there is nothing of this one. `None`: nothing of it was judged yet.
    pub fn standings_of(&self, author: &Author) -> Option<Standings> {
        let name = who(author);
        let card = self.card.as_ref()?;
        let metric = self.metric().name;
        let own: Vec<Entry> = (1..self.rounds.len() as u32).flat_map(|r| entries(self, r)).collect();
        let own = Standings::of(&own);
        let all: Vec<&Standings> =
            own.iter().chain(&self.records).filter(|s| s.who == name && s.metric == metric).collect();
        let here = |s: &&&Standings| s.family == card.model.family.label();
        let any_here = all.iter().any(|s| here(&s));
        let mut sum: Option<Standings> = None;
        for s in all.iter().filter(|s| !any_here || here(s)) {
            match &mut sum {
                Some(sum) => sum.join(s),
                None => sum = Some((*s).clone()),
            }
        }
        sum
    }

    /// The same in words of every agent that has a decision here, by [`who`] it is.
    pub fn agents_records(&self) -> BTreeMap<String, String> {
        let agents = self.decisions.iter().map(|d| &d.author).filter(|a| matches!(a, Author::Agent { .. }));
        let each: BTreeMap<Cow<'_, str>, &Author> = agents.map(|a| (who(a), a)).collect();
        let told =
            each.into_iter().filter_map(|(name, author)| Some((name.into_owned(), self.standing_words(author)?)));
        told.collect()
    }

    /// The same in words; for streams and prompts.
    pub fn standing_words(&self, author: &Author) -> Option<String> {
        Some(self.standings_of(author)?.words(&self.metric()))
    }
}
