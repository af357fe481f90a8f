//! View 7: the plan that is shown beside the planner's, a kept one or an earlier round's, at three sizes; what is taken over, and what is not.

use crate::keys::{event, group, sent};
use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Settings};
use paring::plan::{Action, Decision, DecisionId, Status, Target};
use paring::session::{Command, Event, HostMsg, KeptPlan, Rival, action_text};
use paring::tui::{App, View};

fn cut(ratio: f64) -> Action {
    Action::Prune { ratio, kept: (0..(3072.0 * (1.0 - ratio)) as u32).collect() }
}

/// The round under review, where the planner would cut the first blocks of the agents' plan less and the last more, and leave precisions.
fn planner() -> Event {
    let fc1 = |b: usize| Target::Group(format!("blocks.{b}.mlp.fc1"));
    let ratio = |b: usize| if b < 6 { 0.25 } else { 0.375 };
    let actions = (0..12).filter(|b| *b != 2).map(|b| (fc1(b), cut(ratio(b)))).collect();
    Event::Rivalled { rival: Rival { round: 1, actions, words: "otherwise at some places".into() } }
}

fn beside(size: (u16, u16), settings: Settings) -> App {
    let mut story = fixture::review();
    story.push(planner());
    let mut app = fixture::app(story.state, settings, size);
    press(&mut app, "7");
    app
}

fn taken(commands: &[Command]) -> Vec<(String, String)> {
    let [Command::Take { actions, from }] = commands else { panic!("{commands:?}") };
    assert_eq!(from, "the planner's");
    actions.iter().map(|(t, a)| (t.name().to_owned(), action_text(a))).collect()
}

#[test]
fn two_plans_at_three_sizes() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = beside(size, Settings::default());
        let seen = text(&drawn(&mut app));
        insta::assert_snapshot!(format!("plans_{}x{}", size.0, size.1), seen);
        for words in ["shown beside the planner's", "differ", "blocks.0.mlp.fc1", "prune 25.0 %", "what that changes"] {
            assert!(seen.contains(words), "{words}: {seen}");
        }
    }
    let plain = Settings { ascii: true, colors: ColorLevel::None, ..Settings::default() };
    let seen = text(&drawn(&mut beside((80, 24), plain)));
    assert!(seen.is_ascii() && seen.contains("> blocks.0.mlp.fc1"), "{seen}");
}

#[test]
fn a_row_its_block_or_everything_is_taken_over() {
    let mut app = beside((120, 40), Settings::default());
    let rows = taken(&sent(press(&mut app, "*")));
    // Blocks 0, 1 and 3 are cut more, 4 and 5 less, the edited one anew; what is approved in 9 and 10 stays as it is but for their precisions.
    assert!(rows.contains(&("blocks.0.mlp.fc1".into(), "prune 25.0 %".into())), "{rows:?}");
    assert!(rows.contains(&("blocks.8.mlp.fc1".into(), "prune 37.5 %".into())), "{rows:?}");
    assert!(rows.contains(&("blocks.8.attn.qkv".into(), "keep".into())), "{rows:?}");
    assert!(!rows.iter().any(|(name, _)| name == "blocks.9.mlp.fc1" || name == "blocks.2.mlp.fc1"), "{rows:?}");
    // One row, and the row and what else is in its block.
    let at = |app: &App| app.plans.beside.as_ref().expect("plans").rows[app.plans.cursor].what.target.clone();
    while at(&app) != group("blocks.8.mlp.fc1") {
        press(&mut app, "j");
    }
    assert_eq!(taken(&sent(press(&mut app, "<"))), [("blocks.8.mlp.fc1".to_owned(), "prune 37.5 %".to_owned())]);
    let block = taken(&sent(press(&mut app, "X")));
    let names: Vec<&str> = block.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["blocks.8.mlp.fc1", "blocks.8.attn.qkv"]);
    // What became of them is said when it is durable, and how many that were.
    let command = sent(press(&mut app, "<")).remove(0);
    app.posted(&command, Some(7));
    let mine = Decision {
        id: DecisionId(app.state.next_decision),
        status: Status::Proposed,
        ..app.fresh(&group("blocks.8.mlp.fc1"), cut(0.375))
    };
    event(&mut app, Event::Proposed { decisions: vec![mine] });
    app.host(HostMsg::Reply { id: 7, result: Ok(()) });
    let (_, said) = app.message.clone().expect("it is said");
    assert!(said.starts_with("1 row taken from the planner's, ") && said.contains("u undoes it"), "{said}");
    // Elsewhere the keys take nothing.
    press(&mut app, "1");
    assert_eq!(sent(press(&mut app, "<X*")), []);
}

#[test]
fn other_plans_are_gone_through_and_what_a_row_would_change_is_told() {
    let mut app = beside((200, 60), Settings::default());
    let shown = app.state.shown_actions();
    event(&mut app, Event::PlanKept { plan: KeptPlan { name: "cautious".into(), actions: shown } });
    assert!(app.message.as_ref().is_some_and(|(_, m)| m.contains("kept as cautious")), "{:?}", app.message);
    let names = |app: &App| app.plans.beside.as_ref().map(|b| (b.there.name.clone(), b.rows.len())).expect("plans");
    press(&mut app, ">");
    assert_eq!(names(&app), ("cautious".into(), 0));
    let seen = text(&drawn(&mut app));
    assert!(seen.contains("the two plans are the same; > compares another"), "{seen}");
    assert_eq!(sent(press(&mut app, "<")), []);
    press(&mut app, ">");
    assert_eq!(names(&app).0, "the original");
    // Without any decision everything is as in the original: so each row says what that decision costs and saves.
    let b = app.plans.beside.as_ref().expect("plans");
    let (here, row) = (b.here.expected, &b.rows[0]);
    let taken = row.taken.expect("a forecast");
    assert!(taken.macs.expect("MACs") > here.macs.expect("MACs"), "{taken:?} {here:?}");
    assert!(b.there.decisions == 0 && row.what.there == Action::Keep);
    press(&mut app, ">");
    assert_eq!(names(&app).0, "the planner's");
    // `=` is another way in, and `F` asks for a name.
    press(&mut app, "1=");
    assert_eq!(app.view, View::Plans);
    assert_eq!(sent(press(&mut app, "Fbold<enter>")), [Command::Fork { name: "bold".into() }]);
}

#[test]
fn the_plan_of_a_round_says_what_was_measured_of_it() {
    let mut app = fixture::app(fixture::verdict().state, Settings::default(), (120, 40));
    press(&mut app, "7");
    let seen = text(&drawn(&mut app));
    assert!(seen.contains("shown beside round 1") && seen.contains("measured in round 1"), "{seen}");
}
