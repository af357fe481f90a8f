//! Deciding about many rows with few keys: selections, whole blocks, and what is said of rows that cannot take it.

use crate::keys::{event, go, group, sent};
use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Settings};
use paring::plan::{Action, Author, Constraint, DecisionId, Limit, Status, Target};
use paring::quant::Precision;
use paring::session::{Command, Event, HostMsg};
use paring::tui::App;

fn reviewing(size: (u16, u16)) -> App {
    fixture::app(fixture::review().state, Settings::default(), size)
}

fn message(app: &App) -> &str {
    app.message.as_ref().map_or("", |(_, m)| m.as_str())
}

fn int8(layer: &str) -> (Target, Action) {
    (Target::Layer(layer.into()), Action::Precision { precision: Precision::Int8 })
}

/// The host takes what was sent.
fn land(app: &mut App, commands: &[Command]) {
    for (n, command) in commands.iter().enumerate() {
        app.posted(command, Some(n as u64));
        if let Command::DecideAll { actions } = command {
            let decisions = actions.iter().enumerate().map(|(k, (target, action))| {
                let mut d = fixture::decision(900 + k as u64, target.clone(), action.clone(), "");
                (d.status, d.author) = (Status::Edited, Author::Human);
                d
            });
            event(app, Event::Proposed { decisions: decisions.collect() });
        }
        app.host(HostMsg::Reply { id: n as u64, result: Ok(()) });
    }
    app.settle();
}

#[test]
fn a_range_follows_the_cursor_and_is_seen_at_three_sizes() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = reviewing(size);
        go(&mut app, "blocks.3.attn.qkv");
        press(&mut app, "Vjj");
        assert_eq!(app.selected().len(), 3, "{size:?}");
        insta::assert_snapshot!(format!("selected_{}x{}", size.0, size.1), text(&drawn(&mut app)));
        // Back over its beginning, and ended: what is picked stays where it is.
        press(&mut app, "k");
        assert_eq!(app.selected().len(), 2);
        press(&mut app, "VGg");
        assert_eq!(app.selected().len(), 2);
        press(&mut app, "<esc>");
        assert!(app.selected().is_empty() && app.list.filter.is_empty());
    }
    let plain = Settings { ascii: true, colors: ColorLevel::None, ..Settings::default() };
    let mut app = fixture::app(fixture::review().state, plain, (80, 24));
    go(&mut app, "blocks.3.norm1");
    press(&mut app, "V");
    let seen = text(&drawn(&mut app));
    let row = seen.lines().find(|l| l.contains("norm1")).expect("the row");
    assert!(seen.is_ascii() && row.contains("> | "), "{seen}");
}

#[test]
fn what_is_selected_is_decided_in_one_act() {
    let mut app = reviewing((120, 40));
    press(&mut app, ":select blocks.1*.attn.qkv<enter>");
    assert!(message(&app).starts_with("3 layers"), "{}", message(&app));
    // Those that are int8 already are passed over.
    let commands = sent(press(&mut app, ":precision w8<enter><enter>"));
    let w8 = |l: &str| (Target::Layer(l.into()), Action::Precision { precision: Precision::W8 });
    let all = ["blocks.1.attn.qkv", "blocks.10.attn.qkv", "blocks.11.attn.qkv"].map(w8).to_vec();
    assert_eq!(commands, [Command::DecideAll { actions: all }]);
    assert_eq!(app.sent.len(), 3);
    // Approved together once they are durable, as one act.
    assert_eq!(sent(press(&mut app, "a")), []);
    app.posted(&commands[0], Some(1));
    let Command::DecideAll { actions } = &commands[0] else { panic!() };
    let own = |(k, (target, action)): (usize, &(Target, Action))| {
        let mut d = fixture::decision(900 + k as u64, target.clone(), action.clone(), "");
        (d.status, d.author) = (Status::Edited, Author::Human);
        d
    };
    let decisions = actions.iter().enumerate().map(own).collect();
    let approves = sent(event(&mut app, Event::Proposed { decisions }));
    assert_eq!(approves, [Command::Approve { ids: [900, 901, 902].map(DecisionId).to_vec() }]);
    // A refusal drops them all.
    press(&mut app, ":precision w4<enter>");
    let commands = sent(press(&mut app, "<enter>"));
    app.posted(&commands[0], Some(7));
    app.host(HostMsg::Reply { id: 7, result: Err("no; hint: no".into()) });
    assert!(app.sent.is_empty());
}

#[test]
fn each_group_moves_by_its_own_steps_and_one_key_drops_it() {
    let mut app = reviewing((120, 40));
    press(&mut app, ":select blocks.5.*<enter>]]");
    let of = |app: &App| app.drafts.iter().map(|d| d.target.name().to_owned()).collect::<Vec<_>>();
    let moved = of(&app);
    assert!(moved.len() >= 2 && moved.contains(&"blocks.5.mlp.fc1".to_owned()), "{moved:?}");
    for d in &app.drafts {
        let g = app.group(d.target.name()).expect("a group");
        let Action::Prune { ratio, .. } = d.action else { panic!("{d:?}") };
        let kept = g.size as f64 * (1.0 - ratio);
        assert!((kept / g.granule as f64).fract().abs() < 1e-6 && kept < g.size as f64, "{}: {kept}", g.id);
    }
    assert!(message(&app).starts_with("ratio: ") && message(&app).contains("enter keeps"), "{}", message(&app));
    press(&mut app, "<esc>");
    assert!(app.drafts.is_empty() && !app.selected().is_empty(), "the edit goes first");
    // One number for all of them, each by its own steps.
    let commands = sent(press(&mut app, "e25%<enter>"));
    let [Command::DecideAll { actions }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(actions.len(), moved.len());
    land(&mut app, &commands);
    // What they have in common is there the next time.
    press(&mut app, "e");
    assert!(text(&drawn(&mut app)).contains("25.0%"));
    press(&mut app, "<esc>");
    // `u` takes back an edit in progress, and sends nothing.
    press(&mut app, "]");
    assert_eq!(sent(press(&mut app, "u")), []);
    assert!(app.drafts.is_empty());
}

/// Every selected row is accounted for: edits, and those that there are none for.
#[test]
fn rows_that_something_is_not_for_are_counted_with_why() {
    let mut app = reviewing((120, 40));
    press(&mut app, ":select blocks.5.*<enter>]");
    let (rows, edits) = (app.selected().len(), app.drafts.len());
    let said = message(&app).to_owned();
    assert!(edits < rows && said.starts_with(&format!("ratio: {edits} edits; ")), "{said}");
    assert!(said.contains("no group to prune") || said.contains("rows elsewhere"), "{said}");
    press(&mut app, "<esc>p");
    let said = message(&app).to_owned();
    assert!(said.contains("weights of"), "{said}");
    press(&mut app, "<esc>");
    let approved = sent(press(&mut app, "a"));
    assert!(matches!(&approved[..], [Command::Approve { .. }]), "{approved:?}");
    assert!(message(&app).contains("nothing open"), "{}", message(&app));
}

#[test]
fn rows_that_cannot_take_it_are_counted_and_named() {
    let mut app = reviewing((120, 40));
    let target = Target::Layer("blocks.3.attn.qkv".into());
    let constraint = Constraint { target, limit: Limit::KeepF32, reason: "the first looks".into() };
    event(&mut app, Event::ConstraintSet { constraint });
    press(&mut app, ":select blocks.3.attn.*<enter>p");
    let text = message(&app).to_owned();
    assert!(text.starts_with("int8: 1 edit; 1 not: blocks.3.attn.qkv (") && text.contains("the first looks"), "{text}");
    let commands = sent(press(&mut app, "<enter>"));
    let (target, action) = int8("blocks.3.attn.proj");
    assert_eq!(commands, [Command::Decide { target, action }]);
    // Alone, the row says why, and nothing is sent.
    let mut app = reviewing((120, 40));
    let limit = Constraint { target: group("blocks.5.mlp.fc1"), limit: Limit::Freeze, reason: "mine".into() };
    event(&mut app, Event::ConstraintSet { constraint: limit });
    go(&mut app, "blocks.5.mlp.fc1");
    assert_eq!(sent(press(&mut app, "]<enter>")), []);
    press(&mut app, "]");
    assert!(message(&app).contains("frozen: mine") && message(&app).contains("hint:"), "{}", message(&app));
    // A constraint that names no row is for those that are selected, in one step.
    let mut app = reviewing((120, 40));
    let commands = sent(press(&mut app, ":select blocks.5.mlp.*<enter>:max-ratio 25% thin<enter>"));
    let [Command::Bind { constraints }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(constraints.len(), 1);
    assert_eq!((&constraints[0].target, constraints[0].reason.as_str()), (&group("blocks.5.mlp.fc1"), "thin"));
}

#[test]
fn a_block_s_row_stands_for_its_rows() {
    let mut app = reviewing((120, 40));
    go(&mut app, "blocks.3.attn.qkv");
    press(&mut app, "h");
    let commands = sent(press(&mut app, "p<enter>"));
    let [Command::DecideAll { actions }] = &commands[..] else { panic!("{commands:?}") };
    let names: Vec<&str> = actions.iter().map(|(t, _)| t.name()).collect();
    let all = ["attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"].map(|l| format!("blocks.3.{l}"));
    assert_eq!(names, all);
    press(&mut app, "]");
    assert!(app.drafts.iter().any(|d| d.target == group("blocks.3.mlp.fc1")), "{:?}", app.drafts);
    assert!(app.drafts.iter().all(|d| d.target.name().starts_with("blocks.3.")), "{:?}", app.drafts);
    // Picked as a whole, it counts by its layers.
    press(&mut app, "<esc>,");
    let rows = app.table.blocks.iter().find(|b| b.name == "blocks.3").expect("a block").layers.len();
    assert_eq!(app.selected().len(), rows);
    press(&mut app, ",");
    assert!(app.selected().is_empty());
}

#[test]
fn every_row_can_be_vetoed_and_the_veto_taken_back() {
    // Nothing was decided here.
    let mut app = reviewing((120, 40));
    go(&mut app, "blocks.3.attn.proj");
    let commands = sent(press(&mut app, "vthe skip needs it<enter>"));
    let [Command::VetoAll { targets, reason }] = &commands[..] else { panic!("{commands:?}") };
    assert!(targets.contains(&Target::Layer("blocks.3.attn.proj".into())) && reason == "the skip needs it");
    let targets = targets.clone();
    let freeze = |target: &Target| Constraint { target: target.clone(), limit: Limit::Freeze, reason: reason.clone() };
    let constraints = targets.iter().map(freeze).collect();
    event(&mut app, Event::ConstraintsSet { constraints, vetoed: vec![] });
    press(&mut app, "v");
    assert!(message(&app).contains("vetoed already"), "{}", message(&app));
    assert_eq!(sent(press(&mut app, "o")), [Command::Lift { targets }]);
    // A selection is refused with one reason, whatever is decided on its rows.
    let mut app = reviewing((120, 40));
    let commands = sent(press(&mut app, ":select blocks.9.*<enter>vleave it<enter>"));
    let [Command::VetoAll { targets, .. }] = &commands[..] else { panic!("{commands:?}") };
    assert!(targets.contains(&group("blocks.9.mlp.fc1")) && targets.contains(&Target::Block("blocks.9".into())));
}

#[test]
fn the_end_of_a_ratio_answers_and_the_draft_stays() {
    let mut app = reviewing((120, 40));
    go(&mut app, "blocks.11.mlp.fc1");
    press(&mut app, &"[".repeat(90));
    let all = app.drafts.clone();
    press(&mut app, "[");
    assert!(message(&app).contains("all units are kept") && app.drafts == all, "{}", message(&app));
    press(&mut app, &"}".repeat(90));
    let least = app.drafts.clone();
    assert_ne!(least, all);
    press(&mut app, "}");
    assert!(message(&app).contains("no more can go") && app.drafts == least, "{}", message(&app));
}
