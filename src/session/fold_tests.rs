//! Tables for the fold: every act, its undo, and what a restart or a failure leaves behind.

use crate::plan::testing::{group, ids, verdict};
use crate::plan::{Action, Author, Budget, Constraint, Decision, DecisionId, Limit, Outcome, Status};
use crate::profile::{SensCurve, SensTarget};
use crate::quant::Precision;
use crate::session::{Event, Phase, Record, Standing, State};

fn decision(id: u64, name: &str, author: Author) -> Decision {
    let half = Action::Prune { ratio: 0.5, kept: vec![0, 1] };
    Decision { id: DecisionId(id), round: 1, ..Decision::new(group(name), half, author) }
}

struct Session {
    state: State,
    log: Vec<Record>,
}

impl Session {
    fn new() -> Session {
        let mut s = Session { state: State::default(), log: Vec::new() };
        s.push(Event::PhaseEntered { round: 0, phase: Phase::Profile });
        s.push(Event::PhaseEntered { round: 1, phase: Phase::Review });
        s.push(Event::Proposed {
            decisions: ["a", "b", "c"].iter().zip(0..).map(|(n, i)| decision(i, n, Author::Planner)).collect(),
        });
        s
    }

    fn push(&mut self, event: Event) -> &mut Session {
        let record = Record { seq: self.state.seq + 1, at_ms: 0, event };
        self.state.apply(&record);
        self.log.push(record);
        self
    }

    fn status(&self, name: &str) -> Status {
        self.state.current(&group(name)).expect("known target").status
    }

    fn run(&mut self, round: u32, run: &[u64]) -> &mut Session {
        self.push(Event::Approved { ids: ids(run) })
            .push(Event::RunStarted { round, ids: ids(run), recipe: None, forecast: None })
            .push(applied(round, ids(run)))
    }

    fn verdict(&mut self, round: u32) -> &mut Session {
        self.push(Event::VerdictGiven { round, verdict: verdict(Outcome::Accept) })
    }
}

fn applied(round: u32, ids: Vec<DecisionId>) -> Event {
    let (artifact, model_hash) = ("x.safetensors".to_owned(), "h".to_owned());
    Event::Applied { round, ids, artifact, model_hash, used: Default::default() }
}

/// Levels are known by the model that they are of: the same round with another model has none.
#[test]
fn a_controller_is_that_of_one_model() {
    use crate::session::Controlled;
    let mut s = Session::new();
    let of = |round: u32, of: Option<&str>| {
        let of = of.map(str::to_owned);
        Event::Controlled { control: Box::new(Controlled { round, of, target: 0.8, ..Controlled::default() }) }
    };
    assert!(s.state.control_of(0).is_none());
    s.push(of(0, None));
    assert_eq!(s.state.control_of(0).map(|c| c.target), Some(0.8));
    assert!(s.state.timeline.last().is_some_and(|t| t.text.contains("controller of the original")));
    s.run(1, &[0]).verdict(1).push(of(1, Some("x.safetensors")));
    assert!(s.state.control_of(0).is_none() && s.state.control_of(1).is_some());
    s.push(of(1, Some("other.safetensors")));
    assert!(s.state.control_of(1).is_none());
    // What was written is what is read, and a state without one has no word of it.
    let text = serde_json::to_string(&s.log).expect("written");
    let log: Vec<Record> = serde_json::from_str(&text).expect("read");
    assert_eq!(State::fold(&log), s.state);
    assert!(!serde_json::to_string(&State::default()).expect("written").contains("control"));
}

#[test]
fn review_acts_undo_and_redo_exactly() {
    let acts = [
        Event::Approved { ids: ids(&[0, 2]) },
        Event::Vetoed { ids: ids(&[1]), reason: "no".to_owned() },
        Event::Edited { id: DecisionId(0), action: Action::Keep, author: Author::Human },
        Event::ConstraintSet {
            constraint: Constraint { target: group("c"), limit: Limit::MaxRatio { ratio: 0.2 }, reason: String::new() },
        },
        Event::BudgetSet { budget: Budget { macs: Some(0.5), ..Budget::default() } },
        Event::Reopened { ids: ids(&[1]) },
        Event::ConstraintLifted { target: group("c") },
        Event::ConstraintsSet {
            constraints: ["a", "c"]
                .map(|of| Constraint { target: group(of), limit: Limit::Freeze, reason: "both".to_owned() })
                .to_vec(),
            vetoed: Vec::new(),
        },
        Event::ConstraintsLifted { targets: vec![group("a"), group("c")] },
        Event::Proposed { decisions: vec![decision(3, "b", Author::Human), decision(4, "z", Author::Human)] },
        Event::Restored { to: 2, decisions: vec![decision(5, "a", Author::Human)], dropped: ids(&[0, 4]) },
    ];
    let mut s = Session::new();
    let view = |s: &State| (s.decisions.clone(), s.constraints.clone(), s.budget);
    let mut steps = vec![view(&s.state)];
    for act in &acts {
        s.push(act.clone());
        assert_ne!(Some(&view(&s.state)), steps.last(), "{act:?} changes something");
        steps.push(view(&s.state));
    }
    for want in steps.iter().rev().skip(1) {
        s.push(Event::Undone);
        assert_eq!(&view(&s.state), want);
    }
    s.push(Event::Undone);
    assert_eq!(view(&s.state), steps[0], "nothing left to undo");
    assert_eq!(s.state.timeline.iter().filter(|e| e.undone).count(), acts.len());
    for want in steps.iter().skip(1) {
        s.push(Event::Redone);
        assert_eq!(&view(&s.state), want);
    }
    assert!(s.state.timeline.iter().all(|e| !e.undone));
    assert_eq!(State::fold(&s.log), s.state);
}

#[test]
fn a_new_act_forgets_what_could_be_redone() {
    let mut s = Session::new();
    s.push(Event::Approved { ids: ids(&[0]) }).push(Event::Undone).push(Event::Approved { ids: ids(&[1]) });
    assert!(s.state.redo.is_empty());
    s.push(Event::Redone);
    assert_eq!((s.status("a"), s.status("b")), (Status::Proposed, Status::Approved));
}

#[test]
fn veto_freezes_and_reopen_lifts() {
    let mut s = Session::new();
    s.push(Event::Vetoed { ids: ids(&[1]), reason: "keep it".to_owned() });
    assert_eq!(s.status("b"), Status::Vetoed);
    assert_eq!(
        s.state.constraints,
        vec![Constraint { target: group("b"), limit: Limit::Freeze, reason: "keep it".to_owned() }]
    );
    s.push(Event::Reopened { ids: ids(&[1]) });
    assert_eq!(s.status("b"), Status::Proposed);
    assert!(s.state.constraints.is_empty());
}

#[test]
fn newer_proposals_replace_open_ones_only() {
    let mut s = Session::new();
    s.push(Event::Approved { ids: ids(&[0]) });
    s.push(Event::Proposed { decisions: vec![decision(3, "a", Author::Planner), decision(4, "b", Author::Planner)] });
    let on = |s: &State, name: &str| -> Vec<u64> {
        s.decisions.iter().filter(|d| d.target == group(name)).map(|d| d.id.0).collect()
    };
    assert_eq!(on(&s.state, "a"), [0, 3], "an approved decision stays");
    assert_eq!(on(&s.state, "b"), [4]);
    assert_eq!(s.state.recipe().iter().map(|d| d.id.0).collect::<Vec<_>>(), [0]);
    assert_eq!(s.state.next_decision, 5);
}

#[test]
fn undo_leaves_what_came_later_alone() {
    let mut s = Session::new();
    s.push(Event::Edited { id: DecisionId(1), action: Action::Keep, author: Author::Human });
    s.push(Event::Proposed { decisions: vec![decision(3, "b", Author::Planner)] });
    s.push(Event::Undone);
    let on: Vec<u64> = s.state.decisions.iter().filter(|d| d.target == group("b")).map(|d| d.id.0).collect();
    assert_eq!(on, [3], "the superseded one does not come back beside its successor");
}

#[test]
fn a_run_applies_accepts_and_ends_undo() {
    let mut s = Session::new();
    s.run(1, &[0, 1]);
    assert_eq!((s.status("a"), s.status("c")), (Status::Applied, Status::Proposed));
    assert_eq!(s.state.phase, Phase::Evaluate);
    assert!(s.state.undo.is_empty());
    s.push(Event::Undone);
    assert_eq!(s.status("a"), Status::Applied, "no undo across a run");
    s.verdict(1);
    assert_eq!(s.state.phase, Phase::Verdict);
    s.push(Event::RoundAccepted { round: 1 });
    assert_eq!((s.state.round, s.state.phase, s.state.base_round()), (2, Phase::Review, 1));
}

#[test]
fn roll_back_restores_the_round_before() {
    let mut s = Session::new();
    s.run(1, &[0, 1]).verdict(1).push(Event::RoundAccepted { round: 1 });
    let mut deeper = decision(3, "a", Author::Human);
    deeper.action = Action::Prune { ratio: 0.75, kept: vec![0] };
    s.push(Event::Proposed { decisions: vec![deeper] });
    s.run(2, &[3]).verdict(2);
    let recipe = |s: &State| s.recipe().iter().map(|d| d.id.0).collect::<Vec<_>>();
    assert_eq!(recipe(&s.state), [1, 3]);
    s.push(Event::RolledBack { round: 2, reason: "too deep".to_owned() });
    assert_eq!(recipe(&s.state), [0, 1]);
    assert_eq!(s.state.decision(DecisionId(3)).map(|d| d.status), Some(Status::RolledBack));
    assert_eq!((s.state.round, s.state.base_round()), (3, 1));
    s.push(Event::Reopened { ids: ids(&[3]) });
    assert_eq!(s.status("a"), Status::Proposed);
}

#[test]
fn what_stands_is_what_its_round_was_made_of() {
    let mut s = Session::new();
    s.run(1, &[0, 1]).verdict(1).push(Event::RoundAccepted { round: 1 });
    let standing = |s: &State, name: &str| s.planned(&group(name)).standing();
    s.push(Event::Vetoed { ids: ids(&[0]), reason: "no".to_owned() });
    assert_eq!(standing(&s.state, "a"), Standing::Leaving { since: 1 });
    assert_eq!((s.state.in_force().len(), s.state.recipe().len(), s.state.changes()), (2, 1, 1));
    // Round 2 is made without it, and says so: `a` is neither in force nor comes back when the veto is lifted.
    let recipe = Some(s.state.recipe().iter().map(|d| d.id).collect());
    s.push(Event::RunStarted { round: 2, ids: Vec::new(), recipe, forecast: None });
    s.push(applied(2, Vec::new())).verdict(2).push(Event::RoundAccepted { round: 2 });
    assert_eq!((standing(&s.state, "a"), standing(&s.state, "b")), (Standing::Vetoed, Standing::InForce { since: 1 }));
    s.push(Event::Reopened { ids: ids(&[0]) });
    assert_eq!((standing(&s.state, "a"), s.state.recipe().len()), (Standing::RolledBack, 1));
    // Back in round 1, the cut is in force again.
    s.push(Event::RolledBack { round: 2, reason: String::new() });
    assert_eq!(standing(&s.state, "a"), Standing::InForce { since: 1 });
    assert_eq!((s.state.base_round(), s.state.round), (1, 3));
    s.push(Event::RolledBack { round: 1, reason: String::new() });
    assert_eq!((s.state.base_round(), s.state.round), (0, 3), "numbers do not go back");
    assert_eq!((standing(&s.state, "b"), s.state.changes()), (Standing::RolledBack, 0));
    assert_eq!(State::fold(&s.log), s.state);
}

#[test]
fn an_undo_does_not_put_back_what_was_rolled_back() {
    let mut s = Session::new();
    s.run(1, &[0]).verdict(1).push(Event::RoundAccepted { round: 1 });
    s.push(Event::Vetoed { ids: ids(&[0]), reason: "no".to_owned() });
    s.push(Event::RolledBack { round: 1, reason: String::new() }).push(Event::Undone);
    assert_eq!((s.status("a"), s.state.constraints.len()), (Status::RolledBack, 0));
}

#[test]
fn journals_that_name_no_recipe_fold_as_they_ran() {
    let old: Event = serde_json::from_str(r#"{"event":"run_started","round":2,"ids":[3]}"#).expect("reads");
    let mut s = Session::new();
    s.run(1, &[0, 1]).verdict(1).push(Event::RoundAccepted { round: 1 });
    // A freeze on what was in force never kept it from running.
    let freeze = Constraint { target: group("b"), limit: Limit::Freeze, reason: String::new() };
    s.push(Event::ConstraintSet { constraint: freeze });
    s.push(Event::Proposed { decisions: vec![decision(3, "a", Author::Human)] });
    s.push(Event::Approved { ids: ids(&[3]) }).push(old);
    assert_eq!(s.state.rounds[2].recipe, ids(&[1, 3]));
}

#[test]
fn an_aborted_run_leaves_approved_decisions_approved() {
    let ends = [
        Event::Cancelled { what: "compress".to_owned() },
        Event::Failed { what: "evaluate".to_owned(), message: "no data".to_owned() },
    ];
    for end in ends {
        let mut s = Session::new();
        s.run(1, &[0, 1]).push(end.clone());
        assert_eq!((s.status("a"), s.status("b")), (Status::Approved, Status::Approved), "{end:?}");
        assert_eq!((s.state.round, s.state.phase), (1, Phase::Review));
        assert_eq!(s.state.rounds[1].artifact, None);
        assert_eq!(s.state.failure.is_some(), matches!(end, Event::Failed { .. }));
        s.push(Event::RunStarted { round: 1, ids: ids(&[0, 1]), recipe: None, forecast: None });
        assert_eq!(s.state.failure, None);
    }
}

#[test]
fn a_failure_is_news_until_anything_else_happens() {
    let exported = Event::Exported {
        path: "m".to_owned(),
        format: "onnx".to_owned(),
        hash: "0".to_owned(),
        bytes: 0,
        notes: Vec::new(),
    };
    let noted = Event::Noted { round: 1, text: "again".to_owned() };
    for next in [exported, noted, Event::Approved { ids: ids(&[0]) }, Event::Proposed { decisions: Vec::new() }] {
        let mut s = Session::new();
        s.push(Event::Failed { what: "export".to_owned(), message: "no space".to_owned() });
        assert_eq!(s.state.failure.as_deref(), Some("export: no space"));
        s.push(next.clone());
        assert_eq!(s.state.failure, None, "{next:?}");
    }
}

#[test]
fn sensitivities_merge_by_target() {
    let curve = |name: &str, images| SensCurve {
        target: SensTarget::Layer(name.to_owned(), Precision::Int8),
        points: Vec::new(),
        images,
    };
    let mut s = Session::new();
    s.push(Event::Sensed { base_loss: 1.0, base_score: 0.9, curves: vec![curve("a", 1), curve("b", 1)] });
    s.push(Event::Sensed { base_loss: 1.0, base_score: 0.9, curves: vec![curve("b", 2), curve("c", 2)] });
    assert_eq!(s.state.sensitivity.curves.iter().map(|c| c.images).collect::<Vec<_>>(), [1, 2, 2]);
}

#[test]
fn histories_are_bounded_and_foreign_rounds_are_ignored() {
    let mut s = Session::new();
    for _ in 0..200 {
        s.push(Event::Approved { ids: ids(&[0]) }).push(Event::Reopened { ids: ids(&[0]) });
    }
    assert_eq!(s.state.undo.len(), State::UNDO_DEPTH);
    for i in 0..3000 {
        s.push(Event::Noted { round: 1, text: i.to_string() });
    }
    assert!(s.state.timeline.len() <= 2000 && s.state.notes.len() <= 200);
    let before = (s.state.round, s.state.rounds.len());
    s.push(Event::PhaseEntered { round: 4_000_000_000, phase: Phase::Reason });
    assert_eq!((s.state.round, s.state.rounds.len()), before);
}

#[test]
fn a_record_counts_once() {
    let mut s = Session::new();
    s.push(Event::Approved { ids: ids(&[0]) });
    let again = s.state.clone();
    let last = s.log.last().expect("logged").clone();
    s.state.apply(&last);
    assert_eq!(s.state, again);
}
