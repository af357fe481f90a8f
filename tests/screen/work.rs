//! What the screen says of work under way, of notes and of what has just happened: true now, and only as long.

use crate::keys::go;
use crate::{drawn, fixture, press, text};
use paring::config::Settings;
use paring::plan::DecisionId;
use paring::session::{Event, Feed, HostMsg, Progress, Record, State};
use paring::tui::App;

fn app(state: State, size: (u16, u16)) -> App {
    fixture::app(state, Settings::default(), size)
}

fn feed(app: &mut App, feed: Feed) {
    app.host(HostMsg::Feed { feed });
}

fn progress(app: &mut App, job: &str, done: u64, total: u64) {
    let p = Progress { job: job.into(), label: "blocks.11.mlp.fc2".into(), done, total, rate: 3.0, eta_s: Some(9.0) };
    feed(app, Feed::Progress(p));
}

fn event(app: &mut App, event: Event) {
    let record = Record { seq: app.state.seq + 1, at_ms: fixture::START_MS, event };
    app.host(HostMsg::Event { record: Box::new(record) });
}

/// The line above the keys.
fn status(app: &mut App) -> String {
    let screen = text(&drawn(app));
    screen.lines().rev().nth(1).unwrap_or_default().to_owned()
}

/// The verdict of a round, as the host tells it.
fn verdict_given() -> Event {
    let verdict = fixture::verdict().state.rounds[1].verdict.clone().expect("a verdict");
    Event::VerdictGiven { round: 1, verdict }
}

/// A round that is being compressed.
fn running() -> State {
    let mut s = fixture::review();
    let ids: Vec<DecisionId> = s.state.pending().iter().map(|d| d.id).collect();
    s.push(Event::RunStarted { round: 1, ids, recipe: None, forecast: None });
    s.state
}

#[test]
fn a_stage_ends_where_the_next_begins() {
    let mut a = app(running(), (120, 40));
    progress(&mut a, "compress", 6, 7);
    assert!(status(&mut a).contains("compress"));
    progress(&mut a, "evaluate", 12, 40);
    let line = status(&mut a);
    assert!(line.contains("evaluate") && line.contains("12/40") && !line.contains("compress"), "{line}");
}

/// Names of the rows that are marked as worked on.
fn marked(app: &mut App) -> Vec<String> {
    let screen = text(&drawn(app));
    let rows = screen.lines().filter_map(|l| l.split_once('»')).map(|(_, r)| r.trim_start().to_owned());
    rows.filter_map(|r| r.split_whitespace().next().map(str::to_owned)).collect()
}

#[test]
fn rows_that_a_job_works_on_are_marked_and_what_was_last_lost_is_told() {
    use paring::profile::{SensCurve, SensPoint, SensTarget};
    use paring::quant::Precision;
    use paring::recover::RepairStep;
    let mut a = app(fixture::review().state, (200, 60));
    go(&mut a, "blocks.11.mlp.fc2");
    assert!(marked(&mut a).is_empty());
    let at = |a: &mut App, label: &str| {
        let p = Progress { job: "sensitivity".into(), label: label.into(), done: 3, total: 9, ..Progress::default() };
        feed(a, Feed::Progress(p));
        marked(a)
    };
    // A layer at a precision; a group, all of whose members go together; words before a name; what is no row.
    assert_eq!(at(&mut a, "blocks.11.mlp.fc2 int8"), ["mlp.fc2"]);
    let group = at(&mut a, "blocks.11.mlp.fc1");
    assert!(group.contains(&"mlp.fc1".to_owned()), "{group:?}");
    assert_eq!(at(&mut a, "refit blocks.11.mlp.fc2"), ["mlp.fc2"]);
    assert!(at(&mut a, "layers").is_empty());
    let curve = SensCurve {
        target: SensTarget::Layer("blocks.11.mlp.fc2".into(), Precision::Int8),
        points: vec![SensPoint { ratio: 0.0, d_loss: 0.01, kl: 0.0123, d_quality: -0.001 }],
        images: 64,
    };
    event(&mut a, Event::Sensed { base_loss: 0.5, base_score: 0.9, curves: vec![curve] });
    at(&mut a, "blocks.11.mlp.fc2 int8");
    let line = status(&mut a);
    assert!(line.contains("blocks.11.mlp.fc2 int8: KL .0123") || line.contains("fc2 int8: KL 0.0123"), "{line}");
    insta::assert_snapshot!("at_work_200x60", text(&drawn(&mut a)));
    let step = RepairStep {
        name: "refit blocks.11.mlp.fc2".into(),
        loss_before: 0.4821,
        loss_after: 0.4503,
        samples: 100,
        kept: true,
        seconds: 1.0,
    };
    event(&mut a, Event::Repaired { round: 1, step });
    let line = status(&mut a);
    assert!(line.contains("loss 0.4821 → 0.4503, kept"), "{line}");
    feed(&mut a, Feed::JobEnd { job: "sensitivity".into() });
    assert!(marked(&mut a).is_empty() && !status(&mut a).contains("0.4503"));
    for (size, ascii) in [((80, 24), true), ((120, 40), false)] {
        let settings = Settings { ascii, ..Settings::default() };
        let mut a = fixture::app(fixture::review().state, settings, size);
        go(&mut a, "blocks.11.mlp.fc2");
        at(&mut a, "blocks.11.mlp.fc2 int8");
        insta::assert_snapshot!(format!("at_work_{}x{}", size.0, size.1), text(&drawn(&mut a)));
    }
}

#[test]
fn who_attaches_during_a_run_sees_that_it_runs() {
    for size in [(80, 24), (120, 40)] {
        let mut a = app(running(), size);
        let line = status(&mut a);
        assert!(line.contains("compressing") && line.contains("interrupts"), "{line}");
        assert!(!line.contains("approve") && !line.contains("evaluates"), "{line}");
        progress(&mut a, "compress", 2, 7);
        assert!(status(&mut a).contains("2/7"));
    }
}

/// A long line of the log shares the status with a bar, which comes first; a failure is told whole.
#[test]
fn a_doubt_does_not_hide_a_running_bar() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut a = app(running(), size);
        progress(&mut a, "evaluate", 12, 40);
        let text =
            "the latency factor 0.71x [0.66, 0.79] is in doubt: other programs had the processors in 31 % of the runs"
                .to_owned();
        feed(&mut a, Feed::Log { level: "warn".into(), text });
        let line = status(&mut a);
        assert!(line.contains("evaluate") && line.contains("12/40") && line.contains("the latency factor"), "{line}");
        event(&mut a, Event::Failed { what: "evaluate".into(), message: "no memory; hint: a smaller batch".into() });
        assert!(status(&mut a).contains("hint: a smaller batch"));
    }
}

#[test]
fn a_verdict_is_not_pushed_off_by_bars() {
    for (width, height) in [(60, 20), (80, 24), (120, 40)] {
        let mut a = app(fixture::verdict().state, (width, height));
        progress(&mut a, "evaluate", 4999, 5000);
        event(&mut a, verdict_given());
        for role in ["evaluation", "analysis"] {
            feed(&mut a, Feed::Turn { role: role.into(), model: "qwen3-32b".into() });
            let line = status(&mut a);
            assert!(line.contains("round 1 is over budget"), "{width}: {line}");
            assert!(!line.contains("4999"), "the bar is stale: {line}");
        }
    }
    // Even a bar that is not stale gives way.
    let mut a = app(fixture::verdict().state, (80, 24));
    event(&mut a, verdict_given());
    progress(&mut a, "evaluate", 12, 5000);
    let line = status(&mut a);
    assert!(line.contains("round 1 is over budget; C accepts it, B rolls it back"), "{line}");
}

#[test]
fn agents_that_speak_have_no_bar_beside_them() {
    let mut a = app(fixture::profiled().state, (120, 40));
    progress(&mut a, "sensitivity", 30, 30);
    feed(&mut a, Feed::Turn { role: "analysis".into(), model: "m".into() });
    let line = status(&mut a);
    assert!(line.contains("speaking") && !line.contains("sensitivity"), "{line}");
    feed(&mut a, Feed::JobEnd { job: "agents".into() });
    assert!(!status(&mut a).contains("speaking"), "a lost end of turn must not last");
}

#[test]
fn an_interrupted_comment_leaves_the_verdict() {
    let mut a = app(fixture::verdict().state, (80, 24));
    feed(&mut a, Feed::Turn { role: "evaluation".into(), model: "m".into() });
    press(&mut a, "i");
    event(&mut a, Event::Cancelled { what: "comment on round 1".into() });
    let line = status(&mut a);
    assert!(line.contains("comment on round 1 cancelled; the verdict stands"), "{line}");
}

#[test]
fn a_failure_goes_when_something_else_happens() {
    let mut a = app(fixture::verdict().state, (120, 40));
    event(&mut a, Event::Failed { what: "export".into(), message: "disk full; hint: free some space".into() });
    assert!(text(&drawn(&mut a)).contains("▲ failed: export: disk full"));
    let exported = Event::Exported {
        path: "/x/m.onnx".into(),
        format: "onnx".into(),
        hash: "0".into(),
        bytes: 0,
        notes: Vec::new(),
    };
    event(&mut a, exported);
    let screen = text(&drawn(&mut a));
    assert!(!screen.contains("disk full") && screen.contains("exported onnx to /x/m.onnx"), "{screen}");
    let notes = vec!["2 tensors in fp8: F16 is written".to_owned(), "layers 3 are gone".to_owned()];
    let exported =
        Event::Exported { path: "/x/m.gguf".into(), format: "gguf".into(), hash: "0".into(), bytes: 2_500_000, notes };
    event(&mut a, exported);
    let line = status(&mut a);
    assert!(
        line.contains("exported gguf to /x/m.gguf, 2.5 MB; 2 tensors in fp8: F16 is written; 1 more in `paring log`"),
        "{line}"
    );
}

#[test]
fn assumed_preprocessing_is_said() {
    let mut state = fixture::review().state;
    for size in [(80, 24), (120, 40), (200, 60)] {
        assert!(!text(&drawn(&mut app(state.clone(), size))).contains("assumed"));
    }
    state.card.as_mut().expect("card").model.preprocess = paring::model::Preprocess::imagenet([224, 224]);
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut a = app(state.clone(), size);
        let screen = text(&drawn(&mut a));
        assert!(
            screen.contains("preprocessing is assumed (family default): --mean, --std; esc hides this"),
            "{screen}"
        );
        press(&mut a, "<esc>");
        assert!(!text(&drawn(&mut a)).contains("assumed"), "put away");
        // Where accuracy is told, and in the report, it stays.
        press(&mut a, "2");
        assert!(text(&drawn(&mut a)).contains("preprocessing assumed"));
        press(&mut a, "5");
        assert!(text(&drawn(&mut a)).contains("**assumed**"));
    }
}

#[test]
fn the_devices_note_is_said_once() {
    let mut state = fixture::review().state;
    state.card.as_mut().expect("card").device_note = Some("the NVIDIA GPU of this machine is not used: no CUDA".into());
    let mut a = app(state, (120, 40));
    assert!(status(&mut a).contains("NVIDIA GPU of this machine is not used"));
    press(&mut a, "j");
    assert!(!text(&drawn(&mut a)).contains("NVIDIA"), "it does not stand on every screen");
    press(&mut a, "5");
    assert!(text(&drawn(&mut a)).contains("NVIDIA GPU of this machine is not used"), "the report keeps it");
}

#[test]
fn one_is_singular() {
    let mut state = fixture::review().state;
    state.utterances.truncate(1);
    let mut a = app(state, (120, 40));
    press(&mut a, "3");
    let screen = text(&drawn(&mut a));
    assert!(screen.contains("1 turn,") && !screen.contains("1 turns"), "{screen}");
}

#[test]
fn a_group_counts_its_layers_and_not_the_rows_of_a_profile() {
    let title = |state: State| {
        let mut a = app(state, (120, 40));
        press(&mut a, ":filter blocks.3.mlp.fc1<enter>n");
        let screen = text(&drawn(&mut a));
        let at = screen.find("group of ").unwrap_or_else(|| panic!("{screen}"));
        screen[at..].chars().take(17).collect::<String>()
    };
    let mut profiled = fixture::profiled().state;
    let card = profiled.card.clone().expect("card");
    // A step between the layers that runs by itself, as batch norms and layer scales do on some devices.
    let between = card.graph.nodes.iter().find(|n| matches!(n.op, paring::graph::Op::Activation { .. }));
    let between = between.expect("the activation").name.clone();
    let groups = &mut profiled.card.as_mut().expect("card").groups;
    let group = groups.iter_mut().find(|g| g.id == "blocks.3.mlp.fc1").expect("a group");
    let member = paring::prune::Member { node: between.clone(), ..group.members[0].clone() };
    group.members.push(member);
    let (id, before) = (group.id.clone(), title(State { rounds: Vec::new(), ..profiled.clone() }));
    let rows = &mut profiled.rounds[0].profile.as_mut().expect("a profile").rows;
    let row = rows.iter().find(|r| r.name == id).expect("a row").clone();
    rows.push(paring::profile::LayerRow { name: between, kind: "gelu".into(), params: 0, ..row });
    assert_eq!(before, "group of 2 layers");
    assert_eq!(title(profiled), before);
}
