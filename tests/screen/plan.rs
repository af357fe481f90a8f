//! The plan that is shown: which one a figure speaks of, what a row says after a roll-back, and what becomes of edits that
//! are refused.

use crate::keys::{event, go, group, sent};
use crate::{drawn, fixture, press, text};
use paring::config::Settings;
use paring::plan::{Action, Author, Basis, Decision, DecisionId, Outcome, Quality, Target, Verdict};
use paring::session::{Command, Event, Feed, HostMsg, PassedOver, Standing, Standings};
use paring::tui::App;

fn after_a_roll_back() -> App {
    fixture::app(fixture::rolled_back().state, Settings::default(), (120, 40))
}

fn reviewing() -> App {
    fixture::app(fixture::review().state, Settings::default(), (120, 40))
}

/// The row under the cursor.
fn row(app: &mut App) -> String {
    let t = text(&drawn(app));
    t.lines().skip(2).find(|l| l.contains('❯')).unwrap_or_else(|| panic!("no cursor in\n{t}")).to_owned()
}

/// What a plan is expected to lose, points.
fn loses(app: &App, plan: &[&Decision]) -> f64 {
    app.state.forecaster().expect("profiled").plan(plan).quality.value
}

#[test]
fn after_a_roll_back_rows_card_and_header_speak_of_one_plan() {
    let mut app = after_a_roll_back();
    go(&mut app, "blocks.9.mlp.fc1");
    let shown = row(&mut app);
    assert!(shown.contains("◆ −38% r1"), "in force, not kept: {shown}");
    let in_force = app.state.recipe_of(1);
    assert_eq!(in_force.len(), 17, "all but the veto");
    let (expected, wanted) = (app.expected.and_then(|e| e.quality).expect("forecast").value, loses(&app, &in_force));
    assert!((expected - wanted).abs() < 1e-9 && wanted < -0.01, "{expected} for {wanted}");
    // The card's column says which plan it is, and the header shows what was measured of the same one.
    let t = text(&drawn(&mut app));
    assert!(t.contains("as R runs it") && !t.contains("if all approved"), "{t}");
    let header = t.lines().next().expect("a header");
    assert!(header.contains("−0.32") && !header.contains("~"), "{header}");
    let story = app.story(&group("blocks.9.mlp.fc1"));
    assert_eq!(story.as_deref(), Some("in force since round 1; round 2's keep was rolled back"));
    assert!(t.contains("in force since round 1"), "{t}");
    press(&mut app, "z");
    go(&mut app, "blocks.5.mlp.fc1");
    assert!(row(&mut app).contains("◆ −38% r1"));
    // One more proposal: both forecasts count it, and say so.
    let new = Action::Precision { precision: paring::quant::Precision::Int8 };
    let d = fixture::decision(200, Target::Layer("blocks.0.attn.qkv".into()), new, "");
    event(&mut app, Event::Proposed { decisions: vec![d.clone()] });
    let t = text(&drawn(&mut app));
    let header = t.lines().next().expect("a header");
    assert!(t.contains("if all approved") && header.contains("~"), "{t}");
    let mut plan = app.state.recipe_of(1);
    plan.push(&d);
    let expected = app.expected.and_then(|e| e.quality).expect("forecast").value;
    assert!((expected - loses(&app, &plan)).abs() < 1e-9);
}

#[test]
fn two_decisions_on_a_row_are_both_told_where_one_is_in_force() {
    let mut app = after_a_roll_back();
    go(&mut app, "blocks.9.mlp.fc1");
    let new = Action::Precision { precision: paring::quant::Precision::Int8 };
    let d = fixture::decision(200, Target::Layer("blocks.9.mlp.fc1".into()), new, "");
    event(&mut app, Event::Proposed { decisions: vec![d] });
    let shown = row(&mut app);
    assert!(shown.contains("◆−38%") && shown.contains("int8"), "{shown}");
}

#[test]
fn a_plan_that_was_measured_is_no_forecast_to_anyones_record() {
    let mut round = fixture::verdict().state.rounds[1].clone();
    let forecast = Quality { basis: Basis::Rehearsed, value: -0.3, low: -0.5, high: -0.1, ..Quality::default() };
    round.forecast = Some(forecast);
    assert_eq!(round.expected(), Some(forecast));
    round.forecast = Some(Quality { basis: Basis::Measured, ..forecast });
    assert_eq!(round.expected(), None);
}

#[test]
fn what_a_round_took_beside_the_original_and_what_its_rows_add_up_to_are_told_apart() {
    let mut state = fixture::verdict().state;
    let whole = state.profile_of(1).expect("profiled").whole.p50;
    let e = state.rounds[1].evaluation.as_mut().expect("evaluated");
    (e.whole.n, e.whole.p50) = (100, 1.5 * whole);
    let mut app = fixture::app(state, Settings::default(), (200, 60));
    go(&mut app, "blocks.9.mlp.fc1");
    press(&mut app, "8");
    let t = text(&drawn(&mut app));
    assert!(t.contains("which its rows add up to"), "{t}");
}

#[test]
fn what_is_in_force_is_vetoed_with_its_key_and_the_row_follows() {
    let mut app = after_a_roll_back();
    go(&mut app, "blocks.9.mlp.fc1");
    let target = group("blocks.9.mlp.fc1");
    let id = app.state.recipe_of(1).iter().find(|d| d.target == target).expect("in force").id;
    press(&mut app, "v");
    let t = text(&drawn(&mut app));
    assert!(t.contains("in force since r1") && t.contains("gone with the next run"), "{t}");
    let commands = sent(press(&mut app, "too thin<enter>"));
    assert_eq!(commands, [Command::Veto { ids: vec![id], reason: "too thin".into() }]);
    event(&mut app, Event::Vetoed { ids: vec![id], reason: "too thin".into() });
    assert_eq!(app.shown(&target).standing, Standing::Leaving { since: 1 });
    let shown = row(&mut app);
    assert!(shown.contains("◇ orig r1"), "{shown}");
    assert_eq!(sent(press(&mut app, "R")), [Command::Run], "a run would take it back");
    assert_eq!(sent(press(&mut app, "o")), [Command::Reopen { ids: vec![id] }]);
    // A row with a proposal over what is in force: the veto is of the proposal.
    let mut app = after_a_roll_back();
    let d = fixture::decision(200, target.clone(), Action::Prune { ratio: 0.5, kept: (0..1536).collect() }, "");
    event(&mut app, Event::Proposed { decisions: vec![d] });
    go(&mut app, "blocks.9.mlp.fc1");
    let story = app.story(&target);
    assert_eq!(story.as_deref(), Some("until this runs, round 1's prune 37.5 % stays in force"));
    let commands = sent(press(&mut app, "vno<enter>"));
    assert_eq!(commands, [Command::Veto { ids: vec![DecisionId(200)], reason: "no".into() }]);
    event(&mut app, Event::Vetoed { ids: vec![DecisionId(200)], reason: "no".into() });
    assert_eq!(app.shown(&target).standing, Standing::InForce { since: 1 }, "what is in force stays");
}

#[test]
fn what_was_rolled_back_to_the_original_can_be_dragged_and_reopened() {
    let mut s = fixture::verdict();
    s.push(Event::RolledBack { round: 1, reason: "no".into() });
    let mut app = fixture::app(s.state, Settings::default(), (120, 40));
    go(&mut app, "blocks.9.mlp.fc1");
    let shown = row(&mut app);
    assert!(shown.contains("↺ orig"), "{shown}");
    let story = app.story(&group("blocks.9.mlp.fc1"));
    assert_eq!(story.as_deref(), Some("as in the original; round 1's prune 37.5 % was rolled back"));
    // The very cut that was rolled back is a new decision, not "nothing to send".
    let commands = sent(press(&mut app, "e<bs><bs><bs><bs>37.5%<enter>"));
    let action = Action::Prune { ratio: 0.375, kept: vec![] };
    assert_eq!(commands, [Command::Decide { target: group("blocks.9.mlp.fc1"), action }]);
    let mut app = fixture::app(app.state, Settings::default(), (120, 40));
    go(&mut app, "blocks.9.mlp.fc1");
    let id = app.shown(&group("blocks.9.mlp.fc1")).id.expect("decided");
    assert_eq!(sent(press(&mut app, "o")), [Command::Reopen { ids: vec![id] }]);
}

#[test]
fn a_refused_reply_drops_its_own_edit_alone() {
    let mut app = reviewing();
    go(&mut app, "blocks.11.mlp.fc1");
    let first = sent(press(&mut app, "]<enter>"));
    press(&mut app, "z");
    go(&mut app, "blocks.7.mlp.fc1");
    let second = sent(press(&mut app, "]<enter>"));
    for (commands, id) in [(&first, 1), (&second, 2)] {
        let [command @ Command::Decide { .. }] = &commands[..] else { panic!("{commands:?}") };
        app.posted(command, Some(id));
    }
    // A refusal of something else touches neither.
    app.host(HostMsg::Reply { id: 9, result: Err("nothing to undo; hint: none".into()) });
    assert_eq!(app.sent.len(), 2);
    app.host(HostMsg::Reply { id: 2, result: Err("`blocks.7.mlp.fc1` is frozen; hint: `:lift`".into()) });
    app.settle();
    let left: Vec<&str> = app.sent.iter().map(|s| s.draft.target.name()).collect();
    assert_eq!(left, ["blocks.11.mlp.fc1"]);
    assert!(app.shown(&group("blocks.11.mlp.fc1")).drafting && !app.shown(&group("blocks.7.mlp.fc1")).drafting);
}

#[test]
fn a_refused_edit_approves_nothing_in_its_place() {
    for keys in ["]a", "]A", "]Y"] {
        let mut app = reviewing();
        go(&mut app, "blocks.11.mlp.fc1");
        let target = group("blocks.11.mlp.fc1");
        let id = app.shown(&target).id.expect("proposed");
        let commands = sent(press(&mut app, keys));
        let Some(edit @ Command::Decide { action, .. }) = commands.first() else { panic!("{commands:?}") };
        let approves = |cs: &[Command]| cs.iter().any(|c| matches!(c, Command::Approve { ids } if ids.contains(&id)));
        assert!(!approves(&commands), "{keys}: the agents' version must not be approved: {commands:?}");
        app.posted(edit, Some(1));
        let mut refused = fixture::app(app.state.clone(), Settings::default(), (120, 40));
        (refused.sent, refused.approve_next) = (app.sent.clone(), app.approve_next.clone());
        refused.host(HostMsg::Reply { id: 1, result: Err("no; hint: none".into()) });
        assert!(refused.approve_next.is_empty() && refused.sent.is_empty());
        // Durable, it is approved.
        let edited = Event::Edited { id, action: action.clone(), author: Author::Human };
        assert!(approves(&sent(event(&mut app, edited))), "{keys}");
    }
}

#[test]
fn a_run_does_not_go_on_without_an_edit_in_progress() {
    let mut app = reviewing();
    go(&mut app, "blocks.9.mlp.fc1");
    assert_eq!(sent(press(&mut app, "]R")), []);
    assert!(app.message.as_ref().is_some_and(|(_, m)| m.contains("an edit is not approved yet")), "{:?}", app.message);
    assert!(!app.drafts.is_empty());
    assert_eq!(sent(press(&mut app, "<esc>R")), [], "another edit is not approved");
    assert!(app.message.as_ref().is_some_and(|(_, m)| m.contains("R again runs without")), "{:?}", app.message);
    assert_eq!(sent(press(&mut app, "R")), [Command::Run]);
}

#[test]
fn what_goes_on_meanwhile_does_not_talk_over_the_verdict() {
    let mut app = reviewing();
    let round = app.state.round;
    let verdict =
        Verdict { outcome: Outcome::Accept, lines: vec![], d_quality: 0.0, d_quality_low: 0.0, d_quality_high: 0.0 };
    event(&mut app, Event::VerdictGiven { round, verdict });
    let log =
        |level: &str| HostMsg::Feed { feed: Feed::Log { level: level.into(), text: "agents: no model named".into() } };
    let asks = |app: &App| app.message.as_ref().is_some_and(|(_, m)| m.contains("accepts it"));
    assert!(asks(&app), "{:?}", app.message);
    app.host(log("info"));
    assert!(asks(&app), "{:?}", app.message);
    // What warns is more than what goes on.
    app.host(log("warn"));
    assert!(!asks(&app), "{:?}", app.message);
}

#[test]
fn a_proposal_that_gave_way_is_told() {
    let mut app = reviewing();
    let gave_way = PassedOver {
        target: group("blocks.0.mlp.fc1"),
        action: Action::Prune { ratio: 0.25, kept: vec![] },
        author: Author::Agent { role: "pruning".into(), model: "qwen3-32b".into() },
        stands: "your edit".into(),
    };
    event(&mut app, Event::PassedOver { proposals: vec![gave_way] });
    let words = "pruning/qwen3-32b proposed prune 25.0 % for group blocks.0.mlp.fc1, your edit stands";
    let t = text(&drawn(&mut app));
    assert!(t.contains(words), "{t}");
    press(&mut app, "4<esc>");
    assert!(app.state.timeline.iter().any(|e| e.text == words));
}

#[test]
fn an_agents_record_stands_on_the_card_of_what_it_proposes() {
    let record = Standings {
        who: "qwen3-32b".into(),
        family: "vit".into(),
        metric: "top-1".into(),
        rounds: 4,
        whole: 4,
        met: 3,
        told: 4,
        held: 1,
        off: -12.0,
        ..Standings::default()
    };
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = fixture::app(fixture::review().state, Settings::default(), size);
        let target = group("blocks.9.mlp.fc1");
        let author = Author::Agent { role: "pruning".into(), model: "qwen3-32b".into() };
        let action = Action::Prune { ratio: 0.25, kept: (0..768).collect() };
        let id = DecisionId(app.state.next_decision);
        let decision = Decision { id, round: app.state.round, ..Decision::new(target, action, author) };
        event(&mut app, Event::Proposed { decisions: vec![decision] });
        go(&mut app, "blocks.9.mlp.fc1");
        let t = text(&drawn(&mut app));
        assert!(!t.contains("so far:"), "nothing is known of it yet: {t}");
        event(&mut app, Event::Recalled { records: vec![record.clone()] });
        let t = text(&drawn(&mut app));
        assert!(size == (80, 24) || t.contains("so far: 4 rounds judged"), "{size:?}: {t}");
    }
}

#[test]
fn a_veto_says_what_it_binds() {
    let mut app = reviewing();
    go(&mut app, "blocks.7.mlp.fc1");
    press(&mut app, "v");
    let t = text(&drawn(&mut app));
    assert!(t.contains("veto cutting blocks.7.mlp.fc1"), "{t}");
    assert!(t.contains("binds later proposals for just this"), "{t}");
    let id = app.shown(&group("blocks.7.mlp.fc1")).id.expect("proposed");
    press(&mut app, "<esc>");
    event(&mut app, Event::Vetoed { ids: vec![id], reason: "thin".into() });
    let t = text(&drawn(&mut app));
    assert!(t.contains("cuts frozen"), "the card says which of the row's choices is closed: {t}");
    assert_eq!(app.shown(&Target::Layer("blocks.7.mlp.fc1".into())).standing, Standing::Free);
}
