//! View 9: its pages at three sizes and without colours, and what they say of what was measured.

use crate::keys::go;
use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Settings};
use paring::plan::Liveness;
use paring::profile::{Doubt, Profile, Reading};
use paring::session::{Feed, HostMsg, Machine, PROTOCOL, Progress, State};
use paring::tui::{App, Page, View};

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

/// Nodes without a row of their own run in the row before them, as a plan has them.
fn whole(state: &mut State) {
    let graph = state.card.as_ref().expect("opened").graph.clone();
    let profile = state.rounds[0].profile.as_mut().expect("profiled");
    let mut row: Option<usize> = None;
    for node in &graph.nodes {
        match (profile.rows.iter().position(|r| r.name == node.name), row) {
            (Some(at), _) => row = Some(at),
            (None, Some(at)) if !node.inputs.is_empty() => profile.rows[at].fused.push(node.name.clone()),
            (None, _) => {}
        }
    }
    let (_, most) = Liveness::of(&graph, profile).expect("shapes").peak().expect("steps");
    profile.peak_activation_bytes = most;
}

fn scattered(profile: &mut Profile) {
    for (i, row) in profile.rows.iter_mut().enumerate() {
        let spread = 0.01 + 0.002 * ((i * 7) % 23) as f64;
        (row.latency.spread, row.latency.p99) = (Some(spread), Some(row.latency.p50 * (1.1 + 3.0 * spread)));
    }
    let worst = &mut profile.rows[9];
    (worst.latency.spread, worst.latency.p95) = (Some(0.31), worst.latency.p50 * 4.0);
    worst.doubt = Some(Doubt::Scatter { spread: 0.31 });
}

fn state() -> State {
    let mut state = fixture::review().state;
    whole(&mut state);
    scattered(state.rounds[0].profile.as_mut().expect("profiled"));
    state
}

fn on(page: Page, size: (u16, u16), settings: Settings) -> App {
    let mut app = fixture::app(state(), settings, size);
    go(&mut app, "blocks.8.mlp.fc1");
    press(&mut app, "9");
    while app.profiled.page != page {
        press(&mut app, "<tab>");
    }
    app
}

/// Ten minutes in which a job runs, pauses and runs on, disturbed at its end.
fn watched(app: &mut App) {
    let gpu = Reading { power_w: Some(212.0), busy_percent: Some(64), ..Reading::default() };
    for s in (0..180).chain(260..420) {
        app.now_ms = 1000 * s;
        let job = if s < 120 { "profile" } else { "compress" };
        let job = if s >= 350 { "ladders" } else { job };
        let progress = Progress { job: job.into(), label: "conv1".into(), done: 1, total: 9, ..Progress::default() };
        app.host(HostMsg::Feed { feed: Feed::Progress(progress) });
        let now = Machine {
            processors: vec![(s % 100) as u8, 90],
            others: Some(if s >= 400 { 35 } else { 2 }),
            memory: Some((4_000_000_000 + 10_000_000 * s as u64, 33_000_000_000)),
            mhz: (s % 2 == 0).then_some(2900),
            gpu: (s >= 260).then_some(gpu),
        };
        app.host(HostMsg::Feed { feed: Feed::Machine(now) });
    }
    app.now_ms += 12_000;
}

#[test]
fn every_page_at_every_size() {
    let plain = Settings { ascii: true, colors: ColorLevel::Ansi16, ..Settings::default() };
    for page in Page::ALL.into_iter().filter(|p| *p != Page::Roofline) {
        for size in SIZES {
            let mut app = on(page, size, Settings::default());
            watched(&mut app);
            let seen = text(&drawn(&mut app));
            assert!(seen.contains(&format!("[{}]", page.name())), "{seen}");
            insta::assert_snapshot!(format!("profile_{}_{}x{}", page.name(), size.0, size.1), seen);
        }
        let mut app = on(page, (80, 24), plain.clone());
        watched(&mut app);
        let seen = text(&drawn(&mut app));
        assert!(seen.is_ascii(), "{seen}");
        insta::assert_snapshot!(format!("profile_{}_80x24_ascii", page.name()), seen);
    }
}

#[test]
fn pages_follow_one_another_and_nine_begins_with_the_roofline() {
    let mut app = on(Page::Roofline, (120, 40), Settings::default());
    let shown = |app: &App| (app.view, app.profiled.page);
    for page in [Page::Memory, Page::Icicle] {
        press(&mut app, "9");
        assert_eq!(shown(&app), (View::Profile, page));
    }
    press(&mut app, "<tab><tab><tab>");
    assert_eq!(shown(&app), (View::Profile, Page::Roofline));
    press(&mut app, "<tab>19");
    assert_eq!(shown(&app), (View::Profile, Page::Roofline));
    // Nothing measured: every page says what to do, and no key moves what is not there.
    let mut app = fixture::app(State::default(), Settings::default(), (80, 24));
    for _ in Page::ALL {
        press(&mut app, "9jkgG<enter>");
        let seen = text(&drawn(&mut app));
        assert!(seen.contains("P measures") || seen.contains("nothing was read yet"), "{seen}");
    }
}

#[test]
fn memory_names_its_peak_who_holds_it_and_what_the_plan_makes_of_it() {
    let mut app = on(Page::Memory, (200, 60), Settings::default());
    let seen = text(&drawn(&mut app));
    let Some(Ok(memory)) = &app.profiled.original else { panic!("{seen}") };
    let (at, most) = memory.live.peak().expect("steps");
    let stated = app.state.profile_of(0).expect("profiled").peak_activation_bytes;
    assert_eq!((most, memory.live.holders(at).iter().map(|v| v.bytes).sum::<u64>()), (stated, stated));
    assert!(seen.contains("the profile states the same") && seen.contains("most: "), "{seen}");
    assert!(seen.contains(&format!("while {} runs", memory.live.steps[at])), "{seen}");
    let Some(Ok(plan)) = &app.profiled.plan else { panic!("{seen}") };
    assert!(seen.contains("if all approved: ~") && plan.course.iter().zip(&memory.course).any(|(a, b)| a < b));
    // What the cursor is on is told beside it, and moves.
    assert!(seen.contains("while blocks.8.mlp.fc1 runs"), "{seen}");
    press(&mut app, "j");
    let seen = text(&drawn(&mut app));
    assert!(!seen.contains("while blocks.8.mlp.fc1 runs") && seen.contains("of the most"), "{seen}");
    // A profile that counted otherwise is not passed over.
    let mut other = state();
    other.rounds[0].profile.as_mut().expect("profiled").peak_activation_bytes = 12_000_000;
    let mut app = fixture::app(other, Settings::default(), (120, 40));
    press(&mut app, "99");
    let seen = text(&drawn(&mut app));
    assert!(seen.contains("the profile states 12.0 MB: it counted"), "{seen}");
}

#[test]
fn enter_goes_to_the_row_in_the_list() {
    let mut app = on(Page::Icicle, (120, 40), Settings::default());
    press(&mut app, "j");
    let name = app.profiled.at.clone().expect("a row");
    assert_ne!(name, "blocks.8.mlp.fc1");
    assert!(text(&drawn(&mut app)).contains(&name));
    // A filter that hides it gives way, and its block unfolds.
    press(&mut app, "1/head<enter>9<tab><tab>");
    app.profiled.at = Some(name.clone());
    press(&mut app, "<enter>");
    let row = app.pointed().map(|l| l.name.clone());
    assert_eq!((app.view, row.as_deref()), (View::Review, Some(name.as_str())));
    assert!(app.list.filter.is_empty() && text(&drawn(&mut app)).contains("the filter hid the row"));
    // The footer says what keys do here.
    press(&mut app, "9");
    let seen = text(&drawn(&mut app));
    assert!(
        seen.contains("tab next page") && seen.contains("enter to the row") && seen.contains("K explain"),
        "{seen}"
    );
    // Measuring again is about the page's row.
    press(&mut app, "<tab>G");
    let last = app.profiled.at.clone().expect("a row");
    let sent = crate::keys::sent(press(&mut app, "M"));
    assert_eq!(sent, [paring::session::Command::Measure { layer: last }]);
}

#[test]
fn scatter_is_sorted_and_no_sample_is_made_up() {
    let mut app = on(Page::Spread, (120, 40), Settings::default());
    press(&mut app, "g");
    let seen = text(&drawn(&mut app));
    let rows: Vec<&str> = seen.lines().filter(|l| l.contains('├') && !l.contains("least")).collect();
    let spread = |line: &str| -> f64 {
        line.split_whitespace().find_map(|w| w.strip_suffix('%')).expect("a spread").parse().expect("a number")
    };
    // The whole model first, then rows from the widest on.
    assert!(rows[0].contains("whole model") && rows[1].contains("31.0%") && rows[1].contains('?'), "{seen}");
    assert!(rows[1].contains('›'), "beyond the scale: {seen}");
    assert!(rows[1..].windows(2).all(|w| spread(w[0]) >= spread(w[1])), "{seen}");
    assert!(seen.contains("single samples are not kept") && seen.contains("its samples scatter"), "{seen}");
    assert!(seen.contains("200 samples"), "{seen}");
}

#[test]
fn the_machine_is_kept_for_minutes_with_its_pauses() {
    let mut app = on(Page::Machine, (200, 60), Settings::default());
    assert!(text(&drawn(&mut app)).contains("nothing was read yet"));
    watched(&mut app);
    let seen = text(&drawn(&mut app));
    let line = |name: &str| {
        seen.lines().find(|l| l.contains(&format!("│ {name} "))).unwrap_or_else(|| panic!("{name}: {seen}"))
    };
    // While no job ran nothing was read, and nothing is drawn.
    let sparks: Vec<char> = line("cpu").chars().skip(13).take(140).collect();
    assert!(sparks.iter().filter(|c| **c == ' ').count() > 20, "{seen}");
    assert!(line("gpu power").contains("212 W") && line("clock").contains("2900 MHz"), "{seen}");
    assert!(line("others").contains("35 %") && line("ram").contains("8.19 GB"), "{seen}");
    assert!(line("measuring").contains('▲') && line("measuring").contains('·'), "{seen}");
    assert!(seen.contains("in 20 of 190 readings while latency was measured"), "{seen}");
    assert!(seen.contains("340 readings, the newest 12 s ago"), "{seen}");
    // Copying takes what is shown.
    assert!(app.pane_text().contains("measuring"));
    // A session that is joined again keeps what this screen saw.
    let state = Box::new(app.state.clone());
    app.host(HostMsg::Welcome { protocol: PROTOCOL, state, you: 1, pen: Some(1) });
    assert!(text(&drawn(&mut app)).contains("340 readings"));
}

#[test]
fn k_explains_what_is_on_the_screen_and_one_word_on_request() {
    for size in SIZES {
        let mut app = fixture::app(state(), Settings::default(), size);
        go(&mut app, "blocks.8.mlp.fc1");
        press(&mut app, "K");
        insta::assert_snapshot!(format!("explain_{}x{}", size.0, size.1), text(&drawn(&mut app)));
    }
    let mut app = fixture::app(state(), Settings::default(), (200, 60));
    go(&mut app, "blocks.8.mlp.fc1");
    press(&mut app, "K");
    let seen = text(&drawn(&mut app));
    for words in ["sorted by p50 ms", "the median of 200 runs of a batch of 8", "on this screen", "p50 ms", "share"] {
        assert!(seen.contains(words), "{words}: {seen}");
    }
    // What is not on the screen is told after it.
    press(&mut app, "ladder");
    let seen = text(&drawn(&mut app));
    assert!(seen.contains("called so") && seen.contains("each rung measured") && seen.contains("/ ladder"), "{seen}");
    assert!(!seen.contains("sorted by"), "{seen}");
    press(&mut app, "zzz");
    assert!(text(&drawn(&mut app)).contains("no word like `ladderzzz`"));
    press(&mut app, "<esc>");
    assert!(app.modal.is_none());
    press(&mut app, ":explain 2:4<enter>");
    assert!(text(&drawn(&mut app)).contains("two of every four"));
    press(&mut app, "<enter>:explain latancy<enter>");
    assert!(app.modal.is_none() && text(&drawn(&mut app)).contains("did you mean `latency`?"));
    press(&mut app, ":explain rou");
    assert!(text(&drawn(&mut app)).contains("explain round"));
}
