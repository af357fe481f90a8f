//! What every view looks like at three sizes, and that colour says what the figures say.

use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Role, Settings, Theme};
use paring::profile::Reading;
use paring::session::{Channel, Feed, HostMsg, LiveRow, Machine, Progress};
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

fn feed(app: &mut paring::tui::App, feed: Feed) {
    app.host(HostMsg::Feed { feed });
}

/// Where `needle` starts.
fn find(buf: &Buffer, needle: &str) -> Option<(u16, u16)> {
    let area = *buf.area();
    let want: Vec<String> = needle.chars().map(|c| c.to_string()).collect();
    (0..area.height).flat_map(|y| (0..area.width).map(move |x| (x, y))).find(|&(x, y)| {
        x as usize + want.len() <= area.width as usize
            && want.iter().enumerate().all(|(i, w)| buf[(x + i as u16, y)].symbol() == w)
    })
}

fn rgb(theme: &Theme, role: Role) -> Color {
    let c = theme.color(role);
    Color::Rgb(c.0, c.1, c.2)
}

#[test]
fn every_view_after_a_round_at_three_sizes() {
    for size in SIZES {
        let mut app = fixture::app(fixture::verdict().state, Settings::default(), size);
        for (key, name) in [("1", "review"), ("2", "evaluate"), ("3", "agents"), ("4", "timeline"), ("5", "report")] {
            press(&mut app, key);
            insta::assert_snapshot!(format!("verdict_{name}_{}x{}", size.0, size.1), text(&drawn(&mut app)));
        }
    }
}

#[test]
fn reviewing_and_dragging_at_three_sizes() {
    for size in SIZES {
        let mut app = fixture::app(fixture::review().state, Settings::default(), size);
        press(&mut app, "j");
        insta::assert_snapshot!(format!("review_{}x{}", size.0, size.1), text(&drawn(&mut app)));
        press(&mut app, "]]]");
        insta::assert_snapshot!(format!("dragging_{}x{}", size.0, size.1), text(&drawn(&mut app)));
    }
}

#[test]
fn empty_states_say_what_to_do_next() {
    for size in SIZES {
        let mut app = paring::tui::App::new(Settings::default(), size);
        insta::assert_snapshot!(format!("opening_{}x{}", size.0, size.1), text(&drawn(&mut app)));
    }
    let mut app = fixture::app(fixture::profiled().state, Settings::default(), (120, 40));
    let t = text(&drawn(&mut app));
    assert!(t.contains("No endpoint set: the built-in planner") && t.contains("`:llm"), "{t}");
    press(&mut app, "/zzz");
    assert!(text(&drawn(&mut app)).contains("no layer matches `zzz`"));
}

#[test]
fn dialogs_help_and_long_work() {
    let mut app = fixture::app(fixture::review().state, Settings::default(), (120, 40));
    press(&mut app, "?");
    insta::assert_snapshot!("help_120x40", text(&drawn(&mut app)));
    press(&mut app, "<esc>jv");
    insta::assert_snapshot!("veto_120x40", text(&drawn(&mut app)));
    press(&mut app, "<esc>:t");
    insta::assert_snapshot!("command_120x40", text(&drawn(&mut app)));
    press(&mut app, "<esc>");
    feed(
        &mut app,
        Feed::Progress(Progress {
            job: "sensitivity".into(),
            label: "blocks.3.mlp.fc1".into(),
            done: 14,
            total: 38,
            rate: 0.8,
            eta_s: Some(30.0),
        }),
    );
    let t = text(&drawn(&mut app));
    for wanted in ["sensitivity", "14/38", "0.8/s", "~30 s left", "i interrupts"] {
        assert!(t.contains(wanted), "{wanted}: {t}");
    }
}

#[test]
fn the_machine_is_seen_while_a_job_runs_and_nothing_moves_for_it() {
    let gpu = Reading {
        power_w: Some(312.0),
        busy_percent: Some(97),
        memory_used: Some(12_400_000_000),
        memory_total: Some(85_000_000_000),
        ..Reading::default()
    };
    let now = Machine {
        processors: vec![12, 100],
        others: Some(40),
        memory: Some((4_100_000_000, 33_000_000_000)),
        mhz: Some(2900),
        gpu: Some(gpu),
    };
    for size in SIZES {
        let mut app = fixture::app(fixture::review().state, Settings::default(), size);
        press(&mut app, "j");
        if size.0 < 100 {
            // The decision's tab.
            press(&mut app, "<tab><tab>");
        }
        let still = text(&drawn(&mut app));
        feed(&mut app, Feed::Machine(now.clone()));
        let seen = text(&drawn(&mut app));
        let changed: Vec<(&str, &str)> = still.lines().zip(seen.lines()).filter(|(a, b)| a != b).collect();
        let [(border, strip)] = changed[..] else { panic!("{size:?}: {changed:#?}") };
        assert!(border.ends_with("──╯") && strip.ends_with('╯'), "{size:?}: {strip}");
        assert!(strip.contains("gpu █ 97 % · 12.40 GB of 85.00 GB · 312 W"), "{size:?}: {strip}");
        assert_eq!(strip.contains("others 40 %"), size.0 != 120, "{size:?}: {strip}");
        feed(&mut app, Feed::JobEnd { job: "profile".into() });
        assert_eq!(text(&drawn(&mut app)), still, "{size:?}");
    }
}

#[test]
fn heat_is_a_ground_colour_that_orders_as_the_figures_do() {
    let mut app = fixture::app(fixture::review().state, Settings::default(), (120, 40));
    let buf = drawn(&mut app);
    let theme = Theme::dark();
    let ground = |needle: &str| {
        let (_, y) = find(&buf, needle).unwrap_or_else(|| panic!("{needle} not shown"));
        let head = find(&buf, "p50 ms").expect("heading");
        match buf[(head.0 + 4, y)].bg {
            Color::Rgb(r, g, b) => paring::config::Rgb(r, g, b).luminance(),
            other => panic!("no heat: {other:?}"),
        }
    };
    let (fc1, qkv, proj, norm) = (ground("mlp.fc1"), ground("attn.qkv"), ground("attn.proj"), ground("norm2"));
    assert!(fc1 > qkv && qkv > proj && proj > norm, "{fc1} {qkv} {proj} {norm}");
    // The hottest layer's cell is the ramp's end.
    let end = theme.heat_at(1.0);
    let (x, y) = (find(&buf, "p50 ms").unwrap().0 + 4, find(&buf, "mlp.fc").unwrap().1);
    let shown: Vec<Color> = (0..2).map(|d| buf[(x, y + d)].bg).collect();
    assert!(shown.contains(&Color::Rgb(end.0, end.1, end.2)), "{shown:?}");
}

#[test]
fn forecasts_never_look_like_measurements() {
    let theme = Theme::dark();
    let mut app = fixture::app(fixture::review().state, Settings::default(), (120, 40));
    let buf = drawn(&mut app);
    let (x, y) = find(&buf, "~0.").expect("a forecast in the header");
    assert_eq!(y, 0);
    assert_eq!(buf[(x, y)].fg, rgb(&theme, Role::Forecast));
    // After a round the header's figure is measured: no tilde, another colour.
    let mut app = fixture::app(fixture::verdict().state, Settings::default(), (120, 40));
    let buf = drawn(&mut app);
    let (x, y) = find(&buf, "latency 0.62x").expect("measured in the header");
    assert_eq!(y, 0);
    assert_eq!(buf[(x + 8, y)].fg, rgb(&theme, Role::Bad), "0.62 is over 0.60");
    // On the card every expected figure carries the tilde.
    press(&mut app, "j");
    let t = text(&drawn(&mut app));
    let plan = t.lines().find(|l| l.contains("latency") && l.contains("ms")).unwrap_or_default().to_owned();
    assert!(plan.contains('~'), "{plan}");
}

#[test]
fn fewer_colours_say_the_same_with_glyphs() {
    for (level, name) in [(ColorLevel::Ansi16, "16"), (ColorLevel::None, "none")] {
        let settings = Settings { colors: level, ..Settings::default() };
        let mut app = fixture::app(fixture::review().state, settings, (120, 40));
        press(&mut app, "j");
        let buf = drawn(&mut app);
        insta::assert_snapshot!(format!("colors_{name}"), text(&buf));
        let area = *buf.area();
        for y in 0..area.height {
            for x in 0..area.width {
                let cell = &buf[(x, y)];
                for c in [cell.fg, cell.bg] {
                    match (level, c) {
                        (_, Color::Reset) => {}
                        (ColorLevel::None, c) => panic!("colour {c:?} under NO_COLOR at {x},{y}"),
                        (_, Color::Rgb(..) | Color::Indexed(_)) => panic!("{c:?} on 16 colours at {x},{y}"),
                        _ => {}
                    }
                }
            }
        }
        let t = text(&buf);
        assert!(t.contains('█') && t.contains('▒'), "density glyphs: {t}");
    }
    let settings = Settings { colors: ColorLevel::Ansi256, ..Settings::default() };
    let mut app = fixture::app(fixture::review().state, settings, (120, 40));
    let buf = drawn(&mut app);
    assert!(buf.content().iter().all(|c| !matches!(c.fg, Color::Rgb(..)) && !matches!(c.bg, Color::Rgb(..))));
    assert!(buf.content().iter().any(|c| matches!(c.bg, Color::Indexed(_))));
}

#[test]
fn ascii_screens_hold_only_ascii() {
    let settings = Settings { ascii: true, colors: ColorLevel::None, ..Settings::default() };
    let mut app = fixture::app(fixture::verdict().state, settings, (120, 40));
    for key in ["1j", "2"] {
        press(&mut app, key);
        let buf = drawn(&mut app);
        let odd: Vec<&str> = buf.content().iter().map(|c| c.symbol()).filter(|s| !s.is_ascii()).collect();
        assert!(odd.is_empty(), "{odd:?}\n{}", text(&buf));
    }
}

#[test]
fn live_samples_change_figures_but_move_nothing() {
    let mut app = fixture::app(fixture::profiled().state, Settings::default(), (120, 40));
    press(&mut app, "jjj");
    let before = text(&drawn(&mut app));
    let rows = |ms: f64| vec![LiveRow { name: "blocks.1.attn.proj".into(), p50_ms: ms, p95_ms: ms, n: 12 }];
    feed(&mut app, Feed::Live { runs: 12, rows: rows(99.0) });
    let after = text(&drawn(&mut app));
    let names = |t: &str| -> Vec<String> { t.lines().skip(3).map(|l| l.chars().skip(1).take(16).collect()).collect() };
    assert_eq!(names(&before), names(&after), "rows moved under the cursor");
    assert!(after.contains("live 12 runs") && after.contains("order held"), "{after}");
    press(&mut app, "sSs");
    assert!(!text(&drawn(&mut app)).contains("order held"));
}

#[test]
fn agents_stream_with_dimmed_reasoning() {
    let theme = Theme::dark();
    let mut app = fixture::app(fixture::profiled().state, Settings::default(), (120, 40));
    feed(&mut app, Feed::Turn { role: "pruning".into(), model: "qwen3-32b".into() });
    let token = |app: &mut paring::tui::App, channel, text: &str| {
        app.now_ms += 500;
        feed(app, Feed::Token { role: "pruning".into(), channel, text: text.into() });
    };
    token(&mut app, Channel::Reasoning, "the knee is cheap\x1b[2J here");
    token(&mut app, Channel::Text, "I propose 1920 neurons");
    let buf = drawn(&mut app);
    let t = text(&buf);
    assert!(!t.contains('\x1b') && t.contains("cheap\u{FFFD}[2J"), "{t}");
    let (x, y) = find(&buf, "the knee").unwrap();
    assert_eq!(buf[(x, y)].fg, rgb(&theme, Role::Reasoning));
    assert!(buf[(x, y)].modifier.contains(Modifier::ITALIC));
    let (x, y) = find(&buf, "I propose").unwrap();
    assert_eq!(buf[(x, y)].fg, rgb(&theme, Role::Fg));
    assert!(t.contains("tok") && t.contains("/s") && t.contains("pruning ●"), "{t}");
    assert!(t.contains("i interrupts"));
}

#[test]
fn warnings_stay_on_screen() {
    let mut state = fixture::review().state;
    state.failure = Some("evaluate: disk full; hint: free some space".into());
    if let Some(card) = &mut state.card {
        card.calib_is_eval = true;
        card.device_note = Some("cuda:0 asked, no driver found: running on the CPU".into());
    }
    for size in SIZES {
        let mut app = fixture::app(state.clone(), Settings::default(), size);
        let t = text(&drawn(&mut app));
        for wanted in ["disk full", "calibration images are evaluation images", "no driver found"] {
            assert!(t.contains(wanted), "{wanted} at {size:?}: {t}");
        }
    }
}

#[test]
fn another_terminals_pen_is_shown_and_respected() {
    let mut app = fixture::app(fixture::review().state, Settings::default(), (120, 40));
    app.host(HostMsg::Pen { holder: Some(2), holder_name: "lab\x07box".into() });
    let t = text(&drawn(&mut app));
    assert!(t.contains("watching (lab\u{FFFD}box has the pen)") && t.contains("T take pen"), "{t}");
}
