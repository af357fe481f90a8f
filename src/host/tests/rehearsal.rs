//! Rehearsals: begun when a plan stands still, in nobody's way, and taken by the run that follows.

use super::*;
use crate::plan::plan_key;
use crate::quant::Precision;
use crate::session::Offer;

/// A session under review whose three proposals are open; `gate` holds its rehearsals.
async fn reviewed(gate: Option<Gate>) -> Rig {
    let mut r = Rig::new(false, gate).await;
    *r.fake.rehearses.lock().expect("rehearses") = true;
    r.ok(Command::Propose { by: Proposer::Planner }).await;
    r.until("proposals", |s| s.phase == Phase::Review && s.decisions.len() == 3).await;
    r
}

fn rehearsed(s: &State) -> bool {
    s.trials.of(&s.shown_actions()).is_some()
}

#[tokio::test]
async fn a_plan_that_stands_still_is_rehearsed_once() {
    let mut r = reviewed(None).await;
    assert!(r.state.trials.list.is_empty(), "not at once");
    r.until("a rehearsal", rehearsed).await;
    let shown = r.state.shown_actions();
    assert_eq!(r.state.built.last().map(|b| b.key.clone()), Some(plan_key(&shown)), "built, then tried");
    assert!(r.state.decisions.iter().all(|d| d.status == Status::Proposed), "nothing is approved by it");
    assert_eq!(r.state.phase, Phase::Review);
    r.ok(Command::Note { text: "nothing that the plan depends on".to_owned() }).await;
    let n = r.state.trials.list.len();
    tokio::time::sleep(Duration::from_millis(1600)).await;
    r.ok(Command::Approve { ids: ids(&[0, 1, 2]) }).await;
    tokio::time::sleep(Duration::from_millis(1600)).await;
    r.ok(Command::Note { text: "now".to_owned() }).await;
    r.until("the note", |s| s.notes.len() == 2).await;
    assert_eq!(r.state.trials.list.len(), n, "the same plan, approved, needs no other");
}

#[tokio::test]
async fn an_edit_interrupts_it_and_the_new_plan_is_next() {
    let mut r = reviewed(Some(Gate::Rehearse)).await;
    let first = r.state.shown_actions();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    r.ok(Command::Edit { id: DecisionId(0), action: prune(0.25) }).await;
    r.gate(None);
    r.until("the new plan's rehearsal", |s| s.trials.of(&s.shown_actions()).is_some()).await;
    assert!(r.state.trials.of(&first).is_none() && r.state.shown_actions() != first);
    let ends = |r: &Rig| r.state.timeline.iter().filter(|t| t.text.contains("cancelled")).count();
    assert_eq!(ends(&r), 0, "no event tells of what nobody asked for");
}

#[tokio::test]
async fn everything_else_goes_first_and_a_run_takes_what_was_built() {
    let mut r = reviewed(Some(Gate::Rehearse)).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    // Commands that refuse while something runs do not refuse for a rehearsal.
    r.ok(Command::Approve { ids: ids(&[0, 1, 2]) }).await;
    r.ok(Command::Run).await;
    r.until("verdict", |s| s.phase == Phase::Verdict).await;
    assert!(r.state.trials.list.is_empty());
    r.idle().await;
    r.ok(Command::RollBack { reason: String::new() }).await;
    r.gate(None);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let forecast = r.state.rounds[1].forecast.expect("journalled with the run");
    assert_eq!(forecast.basis, crate::plan::Basis::Unmeasured, "nothing was tried");
}

#[tokio::test]
async fn an_interrupted_rehearsal_is_not_begun_again_until_the_plan_changes() {
    let mut r = reviewed(Some(Gate::Rehearse)).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    r.ok(Command::Cancel).await;
    r.idle().await;
    r.gate(None);
    tokio::time::sleep(Duration::from_millis(1800)).await;
    r.ok(Command::Note { text: "still".to_owned() }).await;
    r.until("the note", |s| s.notes.len() == 1).await;
    assert!(r.state.trials.list.is_empty(), "begun again by itself");
    r.ok(Command::Edit { id: DecisionId(1), action: prune(0.25) }).await;
    r.until("a rehearsal", rehearsed).await;
}

/// So many searches came to their end; noted, so that whatever was on its way has been.
async fn searches(r: &mut Rig) -> u32 {
    tokio::time::sleep(Duration::from_millis(1800)).await;
    let notes = r.state.notes.len() + 1;
    r.ok(Command::Note { text: "nothing that the plan depends on".to_owned() }).await;
    r.until("the note", |s| s.notes.len() == notes).await;
    tokio::time::sleep(Duration::from_millis(1800)).await;
    r.fake.searches.load(std::sync::atomic::Ordering::Relaxed)
}

#[tokio::test]
async fn beside_a_tried_plan_others_are_looked_for_once_a_plan_and_budget() {
    let mut r = reviewed(None).await;
    r.until("a rehearsal", rehearsed).await;
    assert_eq!(searches(&mut r).await, 0, "no budget, nothing to look for");
    assert!(r.refused(Command::Search).await.contains("no plan for a budget"));
    r.ok(Command::SetBudget { budget: "macs=0.6".parse().expect("a budget") }).await;
    assert_eq!(searches(&mut r).await, 1, "and not again");
    r.ok(Command::SetBudget { budget: "macs=0.5".parse().expect("a budget") }).await;
    assert_eq!(searches(&mut r).await, 2);
    r.ok(Command::Search).await;
    r.idle().await;
    assert_eq!(r.fake.searches.load(std::sync::atomic::Ordering::Relaxed), 3, "asked for, it is done again");
}

#[tokio::test]
async fn a_search_is_in_nobodys_way_and_does_not_come_back_when_it_was_interrupted() {
    let mut r = reviewed(Some(Gate::Search)).await;
    r.ok(Command::SetBudget { budget: "macs=0.6".parse().expect("a budget") }).await;
    r.until("a rehearsal", rehearsed).await;
    assert_eq!(searches(&mut r).await, 0, "held");
    r.ok(Command::Cancel).await;
    r.gate(None);
    assert_eq!(searches(&mut r).await, 0, "it was interrupted");
    r.gate(Some(Gate::Search));
    r.ok(Command::Edit { id: DecisionId(1), action: prune(0.25) }).await;
    r.until("a rehearsal", rehearsed).await;
    tokio::time::sleep(Duration::from_millis(1800)).await;
    // Commands that wait for jobs do not wait for this one.
    r.ok(Command::Approve { ids: ids(&[0, 1, 2]) }).await;
    r.ok(Command::Run).await;
    r.until("verdict", |s| s.phase == Phase::Verdict).await;
    assert_eq!(r.fake.searches.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[tokio::test]
async fn asking_for_one_waits_for_nothing_and_needs_a_plan() {
    let mut r = Rig::new(false, None).await;
    assert!(r.refused(Command::Rehearse).await.contains("held back"));
    *r.fake.rehearses.lock().expect("rehearses") = true;
    assert!(r.refused(Command::Rehearse).await.contains("nothing is decided"));
    r.ok(Command::Propose { by: Proposer::Planner }).await;
    r.until("proposals", |s| s.phase == Phase::Review && s.decisions.len() == 3).await;
    r.idle().await;
    r.ok(Command::Approve { ids: ids(&[2]) }).await;
    r.ok(Command::Rehearse).await;
    r.until("the recipe's rehearsal", |s| s.trials.of(&s.recipe_actions()).is_some()).await;
    r.idle().await;
    // What is approved was tried: now what is shown.
    r.ok(Command::Rehearse).await;
    r.until("the shown plan's rehearsal", rehearsed).await;
    r.idle().await;
    let tried = r.state.trials.list.len();
    r.ok(Command::Rehearse).await;
    r.ok(Command::Run).await;
    r.until("verdict", |s| s.phase == Phase::Verdict).await;
    assert_eq!(r.state.trials.list.len(), tried, "both were tried");
}

#[tokio::test]
async fn a_bisect_finds_the_decision_that_costs_most_and_changes_nothing() {
    let mut r = Rig::new(false, None).await;
    assert!(r.refused(Command::Bisect).await.contains("held back"));
    *r.fake.rehearses.lock().expect("rehearses") = true;
    assert!(r.refused(Command::Bisect).await.contains("no two decisions"));
    *r.fake.costs.lock().expect("costs") = vec![("a", 0.1), ("b", 3.0), ("c", 0.2)];
    r.ok(Command::Propose { by: Proposer::Planner }).await;
    r.until("proposals", |s| s.phase == Phase::Review && s.decisions.len() == 3).await;
    r.idle().await;
    r.ok(Command::Bisect).await;
    let said = |s: &State| s.utterances.iter().any(|u| u.text.contains("most of the loss is there"));
    r.until("what was found", said).await;
    let words = r.state.utterances.last().expect("said").text.clone();
    assert!(words.contains("without group b") && words.contains("3 decisions"), "{words}");
    // The plan, and without parts of it.
    assert!(r.state.trials.list.len() <= 4, "{}", r.state.trials.list.len());
    assert!(r.state.decisions.iter().all(|d| d.status == Status::Proposed));
    r.idle().await;
    // What was tried is not tried again.
    let tried = r.state.trials.list.len();
    r.ok(Command::Bisect).await;
    r.until("said again", |s| s.utterances.iter().filter(|u| u.text.contains("without group b")).count() == 2).await;
    assert_eq!(r.state.trials.list.len(), tried);
}

#[tokio::test]
async fn a_program_outside_proposes_and_rehearses_without_the_pen() {
    let mut r = reviewed(None).await;
    r.until("a rehearsal", rehearsed).await;
    let (outside, _messages) = r.host.connect("friend 7 (mcp)", true).await.expect("connects");
    let target = |name: &str| Target::Group(name.to_owned());
    let offer = |decisions| Command::Offer {
        offer: Offer { decisions, summary: "\u{1b}[2Jbetter".into(), expects: Some(0.4), by: "you".into() },
    };
    let own = outside.command(Command::Approve { ids: ids(&[0]) }).await.expect_err("the pen is elsewhere");
    assert!(own.to_string().contains("the pen is with"), "{own}");
    // What the engineer approved stays.
    r.ok(Command::Approve { ids: ids(&[0]) }).await;
    let both = vec![(target("a"), prune(0.125), "mine".to_owned()), (target("b"), prune(0.25), "mine".to_owned())];
    outside.command(offer(both)).await.expect("one of them waits");
    r.until("it waits", |s| s.decision(DecisionId(3)).is_some()).await;
    let new = r.state.decisions.last().expect("a decision").clone();
    assert_eq!((new.target, new.status), (target("b"), Status::Proposed));
    assert_eq!(new.author.to_string(), "outside/friend 7 (mcp)", "by the name that it greeted with");
    assert_eq!(
        r.state.utterances.last().map(|u| u.text.as_str()),
        Some("[2Jbetter (in the place of 1 open proposal of others)")
    );
    // What cannot stand is refused whole; so is nothing at all, and too much.
    for (decisions, why) in [
        (vec![(target("z"), prune(0.5), String::new())], "no `group z`"),
        (vec![], "no decision"),
        (vec![(target("a"), prune(0.5), String::new()); 2000], "too many"),
    ] {
        let refused = outside.command(offer(decisions)).await.expect_err("refused").to_string();
        assert!(refused.contains(why), "{refused}");
    }
    let plan = vec![(target("c"), prune(0.25))];
    outside.command(Command::Try { actions: plan.clone(), by: String::new() }).await.expect("it is tried");
    r.until("the trial", |s| s.trials.list.iter().any(|t| t.actions.len() == 1)).await;
    r.idle().await;
    // While one goes on, another waits; the engineer's run does not.
    r.gate(Some(Gate::Rehearse));
    let other = vec![(target("c"), prune(0.5))];
    outside.command(Command::Try { actions: other.clone(), by: String::new() }).await.expect("it begins");
    let again = outside.command(Command::Try { actions: vec![(target("c"), prune(0.625))], by: String::new() }).await;
    assert!(again.expect_err("one at a time").to_string().contains("being tried"));
    r.ok(Command::Run).await;
    r.gate(None);
    r.until("verdict", |s| s.phase == Phase::Verdict).await;
    assert!(r.state.trials.of(&other).is_none(), "it gave way");
    r.idle().await;
    r.ok(Command::Accept).await;
    r.until("the next round", |s| s.phase == Phase::Review && s.round == 2).await;
    r.idle().await;
    let refused = outside.command(Command::Try { actions: vec![(target("c"), Action::Keep)], by: String::new() }).await;
    assert!(refused.expect_err("nothing").to_string().contains("changes nothing"));
    outside.command(Command::Ask { question: "why?\u{7}".into(), by: String::new() }).await.expect("asked");
    r.until("the question", |s| s.utterances.iter().any(|u| u.text.starts_with("asks: why?"))).await;
    assert!(outside.command(Command::Ask { question: " ".into(), by: String::new() }).await.is_err());
    assert!(r.state.pending().is_empty(), "nobody approved anything since");
}

/// A session that was decided on a CPU and goes on where a GPU is.
#[tokio::test]
async fn what_was_decided_for_another_device_is_not_run_on_this_one() {
    let mut r = Rig::new(false, None).await;
    *r.fake.rehearses.lock().expect("rehearses") = true;
    let (target, precision) = (Target::Layer("a".to_owned()), Precision::W4);
    r.ok(Command::Decide { target, action: Action::Precision { precision } }).await;
    r.until("a decision", |s| s.decisions.len() == 1).await;
    r.ok(Command::Approve { ids: ids(&[0]) }).await;
    r.fake.refused.lock().expect("refused").push(precision);
    for command in [Command::Run, Command::Rehearse] {
        let words = r.refused(command).await;
        assert!(words.contains("another device") && words.contains("no kernel"), "{words}");
    }
    r.fake.refused.lock().expect("refused").clear();
    r.ok(Command::Run).await;
    r.until("verdict", |s| s.phase == Phase::Verdict).await;
}
