//! Keys to commands: tables over the default keymap, and the drafts between them.

use crate::{drawn, fixture, press, text};
use paring::config::Settings;
use paring::exec::KvFormat;
use paring::plan::{Action, Author, Constraint, DecisionId, Limit, Status, Target};
use paring::profile::Workload;
use paring::quant::Precision;
use paring::session::{Command, Event, Feed, HostMsg, Proposer, Record};
use paring::tui::{App, Effect, Exit, Pane, View};

fn reviewing() -> App {
    fixture::app(fixture::review().state, Settings::default(), (120, 40))
}

/// The commands among effects.
pub fn sent(effects: Vec<Effect>) -> Vec<Command> {
    effects
        .into_iter()
        .filter_map(|e| match e {
            Effect::Send(c) => Some(c),
            _ => None,
        })
        .collect()
}

pub fn go(app: &mut App, layer: &str) {
    press(app, &format!("z/{layer}<enter>"));
    press(app, "n<esc>");
}

fn id_of(app: &App, target: &Target) -> DecisionId {
    app.state.current(target).expect("decided").id
}

pub fn group(name: &str) -> Target {
    Target::Group(name.into())
}

fn keeps(kept: usize, of: usize) -> Action {
    Action::Prune { ratio: 1.0 - kept as f64 / of as f64, kept: vec![] }
}

pub fn event(app: &mut App, event: Event) -> Vec<Effect> {
    let record = Record { seq: app.state.seq + 1, at_ms: 0, event };
    let effects = app.host(HostMsg::Event { record: Box::new(record) });
    app.settle();
    effects
}

#[test]
fn deciding_on_a_row() {
    let fc1 = "blocks.11.mlp.fc1";
    type Makes = fn(DecisionId) -> Command;
    let cases: [(&str, Makes); 4] = [
        ("a", |id| Command::Approve { ids: vec![id] }),
        ("vtoo deep<enter>", |id| Command::Veto { ids: vec![id], reason: "too deep".into() }),
        // The present number is there, and typing replaces it.
        ("e1024<enter>", |_| Command::Decide { target: group("blocks.11.mlp.fc1"), action: keeps(1024, 3072) }),
        ("mkeep the heads<enter>", |_| Command::Note { text: "keep the heads".into() }),
    ];
    for (keys, wanted) in cases {
        let mut app = reviewing();
        go(&mut app, fc1);
        let id = id_of(&app, &group(fc1));
        let commands = sent(press(&mut app, keys));
        assert_eq!(commands, [wanted(id)], "{keys}");
    }
}

#[test]
fn an_exact_ratio_replaces_the_number_in_the_prompt() {
    let mut app = reviewing();
    go(&mut app, "blocks.11.mlp.fc1");
    let target = group("blocks.11.mlp.fc1");
    let commands = sent(press(&mut app, "e<bs>50%<enter>"));
    assert_eq!(commands, [Command::Decide { target, action: Action::Prune { ratio: 0.5, kept: vec![] } }]);
}

/// The newest act goes first, whether it was kept or not, and what goes is said.
#[test]
fn undo_takes_the_newest_act_first() {
    let mut app = reviewing();
    go(&mut app, "blocks.11.mlp.fc1");
    press(&mut app, "]");
    let limit = Constraint { target: group("blocks.5.mlp.fc1"), limit: Limit::Freeze, reason: String::new() };
    event(&mut app, Event::ConstraintSet { constraint: limit });
    assert_eq!(sent(press(&mut app, "u")), [Command::Undo], "the limit is newer");
    assert_eq!(app.drafts.len(), 1);
    event(&mut app, Event::Undone);
    assert_eq!(sent(press(&mut app, "u")), []);
    let said = app.message.clone().map_or(String::new(), |(_, m)| m);
    assert!(
        app.drafts.is_empty() && said.contains("blocks.11.mlp.fc1 is dropped") && said.contains("undoes next"),
        "{said}"
    );
}

#[test]
fn dragging_is_local_until_it_is_kept() {
    let fc1 = group("blocks.11.mlp.fc1");
    let mut app = reviewing();
    go(&mut app, "blocks.11.mlp.fc1");
    let size = 3072.0;
    let before = app.expected.unwrap().macs.unwrap();
    assert_eq!(sent(press(&mut app, "]]")), [], "a drag sends nothing");
    let [draft] = app.drafts.clone().try_into().expect("one");
    let paring::tui::Draft { action: Action::Prune { ratio, .. }, .. } = draft else { panic!("{draft:?}") };
    assert!(ratio > 0.375 && ratio < 0.5, "{ratio}");
    assert_eq!((ratio * size).fract(), 0.0, "whole units");
    assert!(app.expected.unwrap().macs.unwrap() < before, "the plan's forecast follows the drag");
    // Every row of the group shows it.
    let t = text(&drawn(&mut app));
    let pct = format!("~−{:.0}%", ratio * 100.0);
    assert!(t.matches(&pct).count() >= 2, "{pct}: {t}");
    // Esc drops it, enter keeps it.
    press(&mut app, "<esc>");
    assert!(app.drafts.is_empty());
    let commands = sent(press(&mut app, "]<enter>"));
    assert!(matches!(&commands[..], [Command::Decide { target, .. }] if *target == fc1), "{commands:?}");
    // Leaving the row keeps an edit too.
    let mut app = reviewing();
    go(&mut app, "blocks.11.mlp.fc1");
    let commands = sent(press(&mut app, "[k"));
    assert!(matches!(&commands[..], [Command::Decide { .. }]), "{commands:?}");
    // Back to where it was: nothing to send.
    let mut app = reviewing();
    go(&mut app, "blocks.11.mlp.fc1");
    assert_eq!(sent(press(&mut app, "][<enter>")), []);
}

#[test]
fn the_engineers_own_decision_is_approved_once_it_is_durable() {
    let mut app = fixture::app(fixture::profiled().state, Settings::default(), (120, 40));
    go(&mut app, "blocks.5.mlp.fc1");
    let commands = sent(press(&mut app, "]]]]a"));
    let [Command::Decide { target, action }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(target, &group("blocks.5.mlp.fc1"));
    let mut d = fixture::decision(77, target.clone(), action.clone(), "");
    (d.status, d.author) = (Status::Edited, Author::Human);
    let effects = event(&mut app, Event::Proposed { decisions: vec![d] });
    assert_eq!(sent(effects), [Command::Approve { ids: vec![DecisionId(77)] }]);
    assert!(app.sent.is_empty(), "nothing is pending any more");
}

#[test]
fn a_refused_edit_goes_back_to_what_is_durable() {
    let mut app = reviewing();
    go(&mut app, "blocks.11.mlp.fc1");
    let commands = sent(press(&mut app, "]<enter>"));
    assert_eq!(app.sent.len(), 1);
    app.posted(&commands[0], Some(1));
    app.host(HostMsg::Reply { id: 1, result: Err("`blocks.11.mlp.fc1` is frozen; hint: `:lift`".into()) });
    app.settle();
    assert!(app.sent.is_empty());
    assert!(text(&drawn(&mut app)).contains("is frozen"));
}

#[test]
fn precision_blocks_and_everything_shown() {
    let mut app = reviewing();
    go(&mut app, "blocks.3.attn.qkv");
    let commands = sent(press(&mut app, "p<enter>"));
    let int8 = Action::Precision { precision: Precision::Int8 };
    assert_eq!(commands, [Command::Decide { target: Target::Layer("blocks.3.attn.qkv".into()), action: int8 }]);

    let mut app = reviewing();
    go(&mut app, "blocks.3.attn.qkv");
    let commands = sent(press(&mut app, "x<enter>"));
    assert_eq!(commands, [Command::Decide { target: Target::Block("blocks.3".into()), action: Action::RemoveBlock }]);

    let mut app = reviewing();
    go(&mut app, "blocks.7.mlp.fc1");
    let wanted = vec![id_of(&app, &group("blocks.7.mlp.fc1")), id_of(&app, &Target::Layer("blocks.7.attn.qkv".into()))];
    assert_eq!(sent(press(&mut app, "A")), [Command::Approve { ids: wanted }]);

    let mut app = reviewing();
    let mut open: Vec<DecisionId> = app.state.open().iter().map(|d| d.id).collect();
    open.sort_unstable();
    assert_eq!(sent(press(&mut app, "Y")), [Command::Approve { ids: open }]);
}

#[test]
fn the_decision_pane_acts_on_its_selected_line_alone() {
    let mut app = reviewing();
    go(&mut app, "blocks.7.attn.qkv");
    assert!(app.row_shown().len() >= 2, "a heads group and a precision");
    press(&mut app, "<enter>");
    assert_eq!(app.pane, Pane::Decision);
    press(&mut app, "j");
    let id = id_of(&app, &Target::Layer("blocks.7.attn.qkv".into()));
    assert_eq!(sent(press(&mut app, "a")), [Command::Approve { ids: vec![id] }]);
}

#[test]
fn session_keys() {
    for (keys, wanted) in [
        ("P", vec![Command::Profile]),
        ("W", vec![Command::Sense]),
        ("r", vec![Command::Propose { by: Proposer::Planner }]),
        ("L", vec![Command::Propose { by: Proposer::Planner }]),
        // Of an edit that would be left out it warns first.
        ("R", vec![]),
        ("RR", vec![Command::Run]),
        ("u", vec![Command::Undo]),
        ("U", vec![Command::Redo]),
        ("C", vec![Command::Accept]),
        ("Btoo slow<enter>", vec![]),
        ("T", vec![Command::TakePen]),
        ("E/tmp/out<enter>", vec![Command::Export { path: "/tmp/out".into(), format: String::new() }]),
        (":budget macs=0.5<enter>", vec![Command::SetBudget { budget: "macs=0.5".parse().unwrap() }]),
        (
            ":llm http://h:1/v1 qwen<enter>r",
            vec![
                Command::SetLlm { base_url: Some("http://h:1/v1".into()), model: Some("qwen".into()) },
                Command::Propose { by: Proposer::Agents },
            ],
        ),
        (":stop<enter>n", vec![]),
        (":stop<enter>y", vec![Command::Stop]),
    ] {
        let mut app = reviewing();
        assert_eq!(sent(press(&mut app, keys)), wanted, "{keys}");
    }
    // Whom the host asks, not what this terminal's environment says.
    let mut app = reviewing();
    for (at, by) in [(Some("qwen at http://h:1/v1"), Proposer::Agents), (None, Proposer::Planner)] {
        app.host(HostMsg::Feed { feed: Feed::Agents { at: at.map(str::to_owned), turns: 1, limits: String::new() } });
        assert_eq!(sent(press(&mut app, "r")), [Command::Propose { by }]);
    }
    let mut app = fixture::app(fixture::verdict().state, Settings::default(), (120, 40));
    assert_eq!(sent(press(&mut app, "Btoo slow<enter>")), [Command::RollBack { reason: "too slow".into() }]);
    let mut app = reviewing();
    assert_eq!(press(&mut app, "q"), [Effect::Quit(Exit::Detached)]);
    let mut app = reviewing();
    go(&mut app, "blocks.4.mlp.fc1");
    let bound =
        Constraint { target: group("blocks.4.mlp.fc1"), limit: Limit::MaxRatio { ratio: 0.25 }, reason: "deep".into() };
    assert_eq!(sent(press(&mut app, ":max-ratio 25% deep<enter>")), [Command::Constrain { constraint: bound }]);
    // Whoever names another row means that one, and is told which it was.
    let bound =
        Constraint { target: group("blocks.7.mlp.fc1"), limit: Limit::Freeze, reason: "the skip needs it".into() };
    let typed = ":freeze blocks.7.mlp.fc1 the skip needs it<enter>";
    assert_eq!(sent(press(&mut app, typed)), [Command::Constrain { constraint: bound }]);
    assert!(text(&drawn(&mut app)).contains("group blocks.7.mlp.fc1: nothing new here"));
}

#[test]
fn a_pattern_binds_and_lifts_all_that_it_matches() {
    let mut app = reviewing();
    let bound = |commands: Vec<Command>| -> Vec<(Target, Limit, String)> {
        let [Command::Bind { constraints }] = &commands[..] else { panic!("{commands:?}") };
        constraints.iter().map(|c| (c.target.clone(), c.limit.clone(), c.reason.clone())).collect()
    };
    let limits = bound(sent(press(&mut app, ":max-ratio 25% blocks.1*.mlp.fc1 late ones are thin<enter>")));
    let names: Vec<&str> = limits.iter().map(|(t, ..)| t.name()).collect();
    assert_eq!(names, ["blocks.1.mlp.fc1", "blocks.10.mlp.fc1", "blocks.11.mlp.fc1"]);
    let limit = Limit::MaxRatio { ratio: 0.25 };
    assert!(limits.iter().all(|(t, l, why)| *t == group(t.name()) && *l == limit && why == "late ones are thin"));
    assert!(text(&drawn(&mut app)).contains("3 targets bound; `:lift blocks.1*.mlp.fc1` lifts that"));
    assert_eq!(bound(sent(press(&mut app, ":keep-f32 *.attn.qkv<enter>"))).len(), 12);
    assert_eq!(sent(press(&mut app, ":freeze nowhere.* x<enter>")), []);
    assert!(app.message.as_ref().is_some_and(|(_, m)| m.contains("is called `nowhere.*`")), "{:?}", app.message);
    for (target, limit, reason) in limits {
        event(&mut app, Event::ConstraintSet { constraint: Constraint { target, limit, reason } });
    }
    let lifted = sent(press(&mut app, ":lift blocks.1?.mlp.fc1<enter>"));
    assert_eq!(lifted, [], "a question mark is a letter of a name here");
    let lifted = sent(press(&mut app, ":lift blocks.1*<enter>"));
    assert!(matches!(&lifted[..], [Command::Lift { targets }] if targets.len() == 3), "{lifted:?}");
}

#[test]
fn a_watcher_sends_nothing_but_the_wish_for_the_pen() {
    let mut app = reviewing();
    go(&mut app, "blocks.7.mlp.fc1");
    app.host(HostMsg::Pen { holder: Some(9), holder_name: "other".into() });
    for keys in ["a", "]", "Y", "R", "u", ":budget macs=0.5<enter>", "A", "p", "x"] {
        assert_eq!(sent(press(&mut app, keys)), [], "{keys}");
        assert!(app.drafts.is_empty());
        assert!(app.message.as_ref().is_some_and(|(_, m)| m.contains("T takes the pen")), "{keys}: {:?}", app.message);
    }
    assert_eq!(sent(press(&mut app, "T")), [Command::TakePen]);
}

#[test]
fn views_panes_and_the_list() {
    let mut app = reviewing();
    press(&mut app, "2");
    assert_eq!(app.view, View::Evaluate);
    press(&mut app, "a");
    assert!(app.message.is_some(), "decisions are made in review");
    press(&mut app, "<esc>");
    assert_eq!(app.view, View::Review);
    press(&mut app, "<tab>");
    assert_eq!(app.pane, Pane::Agents);
    press(&mut app, "<tab><tab>");
    assert_eq!(app.pane, Pane::Layers);
    // Filter, fold, flat: the cursor stays on its layer.
    go(&mut app, "blocks.9.mlp.fc2");
    let here = app.list.current();
    press(&mut app, "sS");
    assert_eq!(app.list.current(), here);
    press(&mut app, "t");
    assert_eq!(app.list.current(), here);
    press(&mut app, "th");
    assert_ne!(app.list.current(), here, "folding moves to the block");
    press(&mut app, "G");
    assert_eq!(app.list.cursor, app.list.shown.len() - 1);
    press(&mut app, "g");
    assert_eq!(app.list.cursor, 0);
}

#[test]
fn the_report_holds_the_tables_and_copies_as_text() {
    let mut app = fixture::app(fixture::verdict().state, Settings::default(), (120, 40));
    press(&mut app, "5");
    let Some(Effect::Yank(report)) = press(&mut app, "y").pop() else { panic!("nothing copied") };
    for wanted in [
        "# vit_b16",
        "## Rounds",
        "−0.32 [−0.61, −0.03]",
        "## Decisions",
        "early blocks carry the texture",
        "## Layers",
    ] {
        assert!(report.contains(wanted), "{wanted}");
    }
    let mut written = |line: &str| match press(&mut app, line).pop() {
        Some(Effect::Write(files)) => files,
        other => panic!("{other:?}"),
    };
    assert_eq!(written(":report out.md<enter>"), [("out.md".to_owned(), report.clone())]);
    assert!(written(":report out.html<enter>")[0].1.starts_with("<!DOCTYPE html>"));
    // Without a path both, beside each other.
    let both = written(":report<enter>");
    assert_eq!(
        both.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(),
        ["paring-report.md", "paring-report.html"]
    );
    assert_eq!(both[0].1, report);
    press(&mut app, "1");
    let Some(Effect::Yank(rows)) = press(&mut app, "y").pop() else { panic!() };
    assert!(rows.contains("blocks.8") && rows.contains('\t'));
}

#[test]
fn themes_and_colours_change_while_running() {
    let mut app = reviewing();
    let dark = drawn(&mut app)[(2, 3)].clone();
    let kept = |line: &str| Effect::Remember(line.into());
    assert_eq!(press(&mut app, ":theme light<enter>"), [kept("theme light"), Effect::Repaint]);
    assert_ne!(drawn(&mut app)[(2, 3)].bg, dark.bg);
    assert_eq!(press(&mut app, ":theme lihgt<enter>"), [kept("theme lihgt")]);
    assert!(app.message.as_ref().is_some_and(|(_, m)| m.contains("did you mean `light`?")), "{:?}", app.message);
}

/// Of a language model there are two profiles; of what is none the key only says so, and the footer is silent of it.
#[test]
fn a_token_s_figures_and_back() {
    let mut app = fixture::app(fixture::review().state, Settings::default(), (120, 40));
    let before = text(&drawn(&mut app));
    press(&mut app, "d");
    let all_but_the_answer = |screen: &str| {
        screen.lines().enumerate().filter(|(i, _)| *i != 38).map(|(_, l)| l.to_owned()).collect::<Vec<_>>()
    };
    let after = text(&drawn(&mut app));
    assert_eq!(all_but_the_answer(&after), all_but_the_answer(&before));
    assert!(after.contains("measured of language models only"), "{after}");

    let graph = fixture::graph();
    let mut token = fixture::profile(&graph, 0.125, &Default::default());
    token.workload = Workload::Decode { context: 512, kv: KvFormat::F16 };
    let pass = app.state.profile_of(0).cloned();
    event(&mut app, Event::Profiled { round: 0, profile: Box::new(token.clone()) });
    assert_eq!((app.state.profile_of(0), app.state.decoding_of(0)), (pass.as_ref(), Some(&token)));
    assert!(
        app.state.timeline.last().is_some_and(|e| e.text.contains("a token after 512") && e.text.contains("tokens/s"))
    );
    let shown = text(&drawn(&mut app));
    assert!(!shown.contains("a token after 512"), "{shown}");
    press(&mut app, "d");
    let shown = text(&drawn(&mut app));
    let rate = format!("{:.1}/s", 1e3 / token.whole.p50);
    assert!(shown.contains("a token after 512") && shown.contains(&rate), "{shown}");
    press(&mut app, "d");
    assert!(!text(&drawn(&mut app)).contains("a token after 512"));
}
