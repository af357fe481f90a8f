//! What is held against an author, and what is not: expectations, what came of them, and the record that this makes.

use crate::session;
use paring::agent::{context, critic};
use paring::plan::{Author, Decision, DecisionId, Outcome, Status, Trial, Verdict, plan_key};
use paring::prune::{Action, Target};
use paring::session::ledger::{self, Fate};
use paring::session::{Claim, Entry, Rival, Round, Standings, State};

fn agent(model: &str) -> Author {
    Author::Agent { role: "pruning".into(), model: model.into() }
}

fn cut(id: u64, group: &str, author: Author) -> Decision {
    let action = Action::Prune { ratio: 0.5, kept: vec![0, 1] };
    Decision { author, status: Status::Applied, ..session::decision(id, Target::Group(group.into()), action) }
}

/// One judged round of these decisions, of which `came` points came.
fn judged(decisions: Vec<Decision>, came: f64) -> State {
    let mut state = session::state();
    let ids: Vec<DecisionId> = decisions.iter().map(|d| d.id).collect();
    let verdict = Verdict {
        outcome: Outcome::Reject,
        lines: vec![],
        d_quality: came,
        d_quality_low: came - 0.8,
        d_quality_high: came + 0.8,
    };
    let mut evaluation = state.rounds[0].evaluation.clone().expect("a baseline");
    evaluation.round = 1;
    state.rounds.push(Round {
        number: 1,
        recipe: ids.clone(),
        ids,
        verdict: Some(verdict),
        evaluation: Some(evaluation),
        ..Round::default()
    });
    state.decisions = decisions;
    state
}

fn claim(state: &mut State, author: Author, expects: Option<f64>) {
    let plan = state.decisions.iter().map(Decision::planned).collect();
    state.claims.push(Claim { round: 1, author, expects, plan, prompts: "p".into() });
}

fn only(state: &State) -> Entry {
    let all = ledger::entries(state, 1);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone()
}

#[test]
fn an_expectation_came_when_the_measured_interval_holds_it() {
    for (expects, came, held) in [
        (-1.0, -1.2, true),
        (0.0, -1.2, true),
        (0.0, -1.4, false),
        (0.0, -12.0, false),
        (-9.0, -1.0, false),
        (-9.0, -9.9, true),
    ] {
        let mut state = judged(vec![cut(0, "layer1.0.conv1", agent("m"))], came);
        claim(&mut state, agent("m"), Some(expects));
        let e = only(&state);
        assert_eq!((e.who.as_str(), e.expected, e.held), ("m", Some(expects), Some(held)), "{expects} {came}");
        assert_eq!((e.decisions, e.of, e.fate, e.family.as_str()), (1, 1, Fate::Open, "cifar-resnet"));
    }
    // Who told nothing is held to nothing; not judged at all before there is a verdict.
    let mut state = judged(vec![cut(0, "layer1.0.conv1", agent("m"))], -12.0);
    claim(&mut state, agent("m"), None);
    assert_eq!((only(&state).expected, only(&state).held), (None, None));
    state.rounds[1].verdict = None;
    assert!(ledger::entries(&state, 1).is_empty() && state.standings_of(&agent("m")).is_none());
}

#[test]
fn only_the_plan_that_was_spoken_of_is_held_against_its_author() {
    let two = || vec![cut(0, "layer1.0.conv1", agent("m")), cut(1, "layer2.0.conv1", agent("m"))];
    let expected = |decisions: Vec<Decision>, built: &[u64]| {
        let mut state = judged(decisions, -12.0);
        state.rounds[1].ids = built.iter().map(|i| DecisionId(*i)).collect();
        claim(&mut state, agent("m"), Some(0.0));
        let all = ledger::entries(&state, 1);
        all.into_iter().find(|e| e.who == "m").expect("an entry").expected
    };
    assert_eq!(expected(two(), &[0, 1]), Some(0.0));
    // Another role of the same model speaks for it, too.
    let mut roles = two();
    roles[1].author = Author::Agent { role: "quantization".into(), model: "m".into() };
    assert_eq!(expected(roles, &[0, 1]), Some(0.0));
    // Vetoed, not built, edited, or mixed with somebody else's.
    let mut vetoed = two();
    vetoed[1].status = Status::Vetoed;
    assert_eq!(expected(vetoed, &[0]), None);
    assert_eq!(expected(two(), &[0]), None);
    let mut edited = two();
    edited[1].edited_from = Some(Action::Prune { ratio: 0.75, kept: vec![] });
    assert_eq!(expected(edited, &[0, 1]), None);
    let mut mixed = two();
    mixed[1].author = Author::Human;
    assert_eq!(expected(mixed, &[0, 1]), None);
    // Proposed otherwise than it was built: the engineer's own stood there.
    let mut state = judged(two(), -12.0);
    claim(&mut state, agent("m"), Some(0.0));
    state.claims[0].plan[1].1 = Action::Prune { ratio: 0.25, kept: vec![] };
    assert_eq!((only(&state).expected, only(&state).whole), (None, false));
    let words = state.standing_words(&agent("m")).expect("words");
    assert_eq!(words, "1 round judged, 0 built as proposed");
}

#[test]
fn a_record_falls_with_every_empty_promise_and_reaches_prompt_critic_and_engineer() {
    let mut state = judged(vec![cut(0, "layer1.0.conv1", agent("hope"))], -10.0);
    claim(&mut state, agent("hope"), Some(0.0));
    let now = state.standings_of(&agent("hope")).expect("a record");
    assert_eq!((now.rounds, now.met, now.told, now.held, now.off), (1, 0, 1, 0, -10.0));
    // An earlier session knew better of it; another family does not count beside this one's.
    let earlier = Standings {
        who: "hope".into(),
        family: "cifar-resnet".into(),
        metric: "top-1".into(),
        rounds: 3,
        whole: 3,
        met: 3,
        told: 3,
        held: 3,
        off: 0.3,
        ..Standings::default()
    };
    state.records = vec![earlier.clone(), Standings { family: "vit".into(), rounds: 50, ..earlier.clone() }];
    let sum = state.standings_of(&agent("hope")).expect("a record");
    assert_eq!((sum.rounds, sum.met, sum.told, sum.held), (4, 3, 4, 3));
    // Where nothing of this family is known, others speak; never another metric, never another author.
    let mut fresh = session::state();
    fresh.records = vec![Standings { family: "vit".into(), ..earlier.clone() }];
    assert_eq!(fresh.standings_of(&agent("hope")).map(|s| s.rounds), Some(3));
    fresh.records = vec![Standings { metric: "perplexity".into(), ..earlier.clone() }];
    assert!(fresh.standings_of(&agent("hope")).is_none());
    assert!(state.standings_of(&agent("other")).is_none());

    let words = state.standing_words(&agent("hope")).expect("words");
    assert_eq!(
        words,
        "4 rounds judged, too hopeful by 2.42 points, its range met the measured one in 3 of 4, 3 met the budget"
    );
    // Where nothing was asked, nothing was met.
    let free = |rounds, unbounded, met| Standings { rounds, whole: 3, unbounded, met, ..Standings::default() };
    let metric = state.metric();
    assert_eq!(free(3, 3, 0).words(&metric), "3 rounds judged");
    assert_eq!(free(3, 1, 2).words(&metric), "3 rounds judged, 2 met the budget, 1 had none");
    assert_eq!(free(4, 3, 0).words(&metric), "4 rounds judged, 3 built as proposed");
    let role = crate::role("pruning");
    assert!(context::standing(&state, role, "hope").contains(&format!("Your record: {words}.")));
    assert!(!context::standing(&state, role, "other").contains("Your record"));
    let said = critic::utterance(&state, 1).expect("a comparison").text;
    assert!(said.contains("hope: expected +0.00 points, which did not come; so far: 4 rounds judged"), "{said}");
}

#[test]
fn both_plans_on_the_same_data_tell_who_was_better() {
    let mut state = judged(vec![cut(0, "layer1.0.conv1", agent("m"))], -3.0);
    let rival: Vec<(Target, Action)> = vec![cut(9, "layer3.0.conv1", Author::Planner).planned()];
    state.rivals.push(Rival { round: 1, actions: rival.clone(), words: String::new() });
    assert_eq!(only(&state).gain, None, "nobody tried them");
    let mut tried = |actions: Vec<(Target, Action)>, d_quality: f64| {
        let outcome = paring::eval::TrialOutcome { d_quality, ..Default::default() };
        state.trials.add(Trial { key: plan_key(&actions), actions, outcome, anchor: false });
    };
    tried(vec![cut(0, "layer1.0.conv1", agent("m")).planned()], -2.0);
    tried(rival, -5.5);
    assert_eq!(only(&state).gain, Some(3.5));
    assert!(state.standing_words(&agent("m")).expect("words").contains("+3.50 points against the planner's plans"));
}
