//! What is shown of the plan through a whole host: after roll-backs and vetoes, under constraints, and while agents speak.

use super::*;
use crate::config::Settings as ScreenSettings;
use crate::session::{PROTOCOL, Standing};
use crate::tui::{App, markdown};

/// A screen that has just been welcomed.
fn screen(state: &State) -> App {
    let mut app = App::new(ScreenSettings::default(), (120, 40));
    app.host(HostMsg::Welcome { protocol: PROTOCOL, state: Box::new(state.clone()), you: 1, pen: Some(1) });
    app.settle();
    app
}

fn plan_of(app: &App) -> Vec<(String, Action)> {
    let mut out: Vec<(String, Action)> =
        app.plan(&[]).into_iter().map(|d| (d.target.name().to_owned(), d.action)).collect();
    out.sort_by(|a, b| a.0.cmp(&b.0));
    out
}

fn kept(n: u32) -> Action {
    Action::Prune { ratio: 1.0 - f64::from(n) / 8.0, kept: (0..n).collect() }
}

fn named(actions: &[(&str, Action)]) -> Vec<(String, Action)> {
    actions.iter().map(|(n, a)| ((*n).to_owned(), a.clone())).collect()
}

impl Rig {
    fn built(&self) -> Vec<(String, Action)> {
        let all = self.fake.built.lock().expect("built");
        let mut last: Vec<(String, Action)> =
            all.last().expect("a run").iter().map(|(t, a)| (t.name().to_owned(), a.clone())).collect();
        last.sort_by(|a, b| a.0.cmp(&b.0));
        last
    }

    fn proposes(&self, actions: &[(&'static str, Action)]) {
        *self.fake.proposes.lock().expect("proposes") = actions.to_vec();
    }

    fn standing(&self, name: &str) -> Standing {
        self.state.planned(&group(name)).standing()
    }

    /// `Y`, `R`, and the end of the comments on the verdict.
    async fn all_and_run(&mut self) {
        let open: Vec<DecisionId> = self.state.open().iter().map(|d| d.id).collect();
        if !open.is_empty() {
            self.ok(Command::Approve { ids: open }).await;
        }
        self.run().await;
    }

    /// `C`, and the proposals of the next round.
    async fn accept(&mut self) {
        let round = self.state.round;
        self.ok(Command::Accept).await;
        self.until("the next round", |s| s.round > round && s.phase == Phase::Review && !s.open().is_empty()).await;
        self.idle().await;
    }

    /// `Y R`, `C`, `Y R`, `B`: round 1 cut everything by half, round 2 took `a` back and cut `b` deeper.
    async fn second_round_rolled_back() -> Rig {
        let mut r = Rig::proposed().await;
        r.all_and_run().await;
        r.proposes(&[("a", Action::Keep), ("b", prune(0.75))]);
        r.accept().await;
        r.all_and_run().await;
        assert_eq!(r.built(), named(&[("a", Action::Keep), ("b", kept(2)), ("c", kept(4))]));
        r.ok(Command::RollBack { reason: "too deep".to_owned() }).await;
        r.until("rolled back", |s| s.round == 3).await;
        r
    }
}

#[tokio::test]
async fn after_a_roll_back_the_round_before_is_what_is_shown_and_what_runs() {
    let mut r = Rig::second_round_rolled_back().await;
    let halves = named(&[("a", kept(4)), ("b", kept(4)), ("c", kept(4))]);
    for name in ["a", "b", "c"] {
        assert_eq!(r.standing(name), Standing::InForce { since: 1 }, "{name}");
    }
    let app = screen(&r.state);
    assert_eq!(plan_of(&app), halves, "the whole plan's forecast counts what still runs");
    assert!(!app.plan_is_open() && !app.plan_differs());
    assert_eq!(app.shown(&group("a")).action, kept(4), "the row shows round 1's cut, not round 2's keep");
    let report = markdown(&app);
    let row = report.lines().find(|l| l.starts_with("| group b ")).expect("b is in the report");
    let wanted = "| group b | prune 50.0 % | in force since round 1; round 2's prune 75.0 % was rolled back |";
    assert!(row.starts_with(wanted), "{row}");
    let row = report.lines().find(|l| l.starts_with("| group c ")).expect("c is in the report");
    assert!(row.starts_with("| group c | prune 50.0 % | in force since round 1 |"), "{row}");
    // Nothing is approved, so there is nothing to run; one more cut, and the others come along.
    assert!(r.refused(Command::Run).await.contains("nothing is approved"));
    r.ok(Command::Decide { target: group("c"), action: prune(0.25) }).await;
    r.until("the decision", |s| !s.open().is_empty()).await;
    let shown = plan_of(&screen(&r.state));
    r.all_and_run().await;
    assert_eq!(r.built(), shown);
    assert_eq!(r.built(), named(&[("a", kept(4)), ("b", kept(4)), ("c", kept(6))]));
}

#[tokio::test]
async fn a_veto_of_what_is_in_force_takes_it_back_with_the_next_run() {
    let mut r = Rig::second_round_rolled_back().await;
    let a = r.state.planned(&group("a")).shown().expect("in force").id;
    r.ok(Command::Veto { ids: vec![a], reason: "the head needs it".to_owned() }).await;
    r.until("vetoed", |s| !s.leaving().is_empty()).await;
    assert_eq!(r.standing("a"), Standing::Leaving { since: 1 });
    assert_eq!(r.state.in_force().len(), 3, "the model that stands still has it");
    let without = named(&[("b", kept(4)), ("c", kept(4))]);
    assert_eq!(plan_of(&screen(&r.state)), without);
    // Undone and done again, it is as it was.
    r.ok(Command::Undo).await;
    r.until("undone", |s| s.leaving().is_empty()).await;
    assert_eq!((r.standing("a"), r.state.constraints.len()), (Standing::InForce { since: 1 }, 0));
    r.ok(Command::Redo).await;
    r.until("redone", |s| !s.leaving().is_empty()).await;
    // With nothing else approved, the next run builds without it.
    r.all_and_run().await;
    assert_eq!(r.built(), without);
    r.proposes(&[("a", prune(0.25)), ("b", prune(0.75))]);
    r.accept().await;
    assert_eq!(r.standing("a"), Standing::Vetoed, "bound in every later round");
    let passed = r.state.timeline.iter().filter(|e| e.text.contains("your veto stands")).count();
    assert_eq!(passed, 1, "and it is told");
    // Back to round 1's model: it has the cut, and the veto still stands against it.
    r.ok(Command::RollBack { reason: String::new() }).await;
    r.until("rolled back", |s| s.base_round() == 1).await;
    assert_eq!(r.standing("a"), Standing::Leaving { since: 1 });
    assert_eq!(r.state.round, 4, "round numbers never go back: each names one model");
    r.ok(Command::Reopen { ids: vec![a] }).await;
    r.until("reopened", |s| s.leaving().is_empty()).await;
    assert_eq!((r.standing("a"), r.state.constraints.len()), (Standing::InForce { since: 1 }, 0));
    let before = r.state.clone();
    let r = r.restart().await;
    assert_eq!(r.state, before);
}

#[tokio::test]
async fn a_persons_edit_wins_over_a_late_proposal() {
    let mut r = Rig::proposed().await;
    r.proposes(&[("a", prune(0.25)), ("b", prune(0.25)), ("c", prune(0.25))]);
    r.gate(Some(Gate::Propose));
    r.ok(Command::Propose { by: Proposer::Agents }).await;
    r.until("reasoning", |s| s.phase == Phase::Reason && s.utterances.len() == 2).await;
    r.ok(Command::Edit { id: DecisionId(0), action: prune(0.5) }).await;
    r.ok(Command::Edit { id: DecisionId(1), action: prune(0.75) }).await;
    r.gate(None);
    r.until("proposals", |s| s.phase == Phase::Review).await;
    r.idle().await;
    let shown: Vec<(&str, Status, &Action)> =
        r.state.open().iter().map(|d| (d.target.name(), d.status, &d.action)).collect();
    assert_eq!(
        shown,
        [("a", Status::Edited, &kept(4)), ("b", Status::Edited, &kept(2)), ("c", Status::Proposed, &kept(6))],
        "what nobody touched gives way, the edits stand"
    );
    let told: Vec<&str> = r.state.timeline.iter().map(|e| e.text.as_str()).filter(|t| t.contains("stands")).collect();
    assert_eq!(told, ["planner proposed prune 25.0 % for group a, your edit stands; 1 more gave way"]);
    r.all_and_run().await;
    assert_eq!(r.built(), named(&[("a", kept(4)), ("b", kept(2)), ("c", kept(6))]), "`Y` approves the engineer's");
}

#[tokio::test]
async fn a_constraint_that_comes_after_an_approval_binds_it() {
    let mut r = Rig::proposed().await;
    r.ok(Command::Approve { ids: ids(&[0, 1]) }).await;
    // A freeze is a veto of what waits there.
    r.ok(Command::Constrain { constraint: freeze("b", "mine") }).await;
    r.until("vetoed", |s| s.constraints.len() == 1).await;
    assert_eq!((r.status("b"), r.standing("b")), (Status::Vetoed, Standing::Vetoed));
    // Lifted, it is open again: no veto is left that binds nobody.
    r.ok(Command::Unconstrain { target: group("b") }).await;
    r.until("lifted", |s| s.constraints.is_empty()).await;
    assert_eq!(r.standing("b"), Standing::Proposed);
    // A limit below what was approved: the run says so instead of building it.
    r.ok(Command::Constrain { constraint: limit("a", 0.25) }).await;
    let words = r.refused(Command::Run).await;
    assert!(words.contains("`group a`") && words.contains("limit"), "{words}");
    assert_eq!(plan_of(&screen(&r.state)), named(&[("a", kept(4)), ("b", kept(4)), ("c", kept(4))]));
    r.ok(Command::Edit { id: DecisionId(0), action: prune(0.5) }).await;
    r.ok(Command::Approve { ids: ids(&[0]) }).await;
    r.until("approved", |s| s.decision(DecisionId(0)).is_some_and(|d| d.status == Status::Approved)).await;
    r.ok(Command::Veto { ids: ids(&[1, 2]), reason: String::new() }).await;
    r.until("vetoed", |s| s.open().is_empty()).await;
    assert!(r.refused(Command::Decide { target: group("b"), action: Action::Keep }).await.contains("frozen"));
    r.all_and_run().await;
    assert_eq!(r.built(), named(&[("a", kept(6))]));
}

#[tokio::test]
async fn what_was_rolled_back_is_proposed_again_and_stays_history() {
    let mut r = Rig::second_round_rolled_back().await;
    let of_round_2 = r.state.actions_of(2);
    let deeper = r.state.current(&group("b")).expect("round 2's").id;
    r.ok(Command::Reopen { ids: vec![deeper] }).await;
    r.until("open again", |s| s.open().len() == 1).await;
    let again = r.state.open()[0].clone();
    assert!(again.id != deeper && again.by_person() && again.action == kept(2), "{again:?}");
    assert!(r.refused(Command::Reopen { ids: vec![deeper] }).await.contains("newer decision"));
    r.ok(Command::Edit { id: again.id, action: prune(0.625) }).await;
    r.until("edited", |s| s.open().iter().any(|d| d.status == Status::Edited)).await;
    assert_eq!(r.state.actions_of(2), of_round_2, "what round 2 was made of does not change with it");
    r.all_and_run().await;
    assert_eq!(r.built(), named(&[("a", kept(4)), ("b", kept(3)), ("c", kept(4))]));
}
