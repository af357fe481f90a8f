//! View 8: all that is known of the row under the cursor, at three sizes and without colours.

use crate::keys::go;
use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Settings};
use paring::quant::Precision;
use paring::session::{Activations, Command, Feed, HostMsg, Progress};
use paring::tui::{App, Effect};

fn inspecting(size: (u16, u16), settings: Settings, layer: &str) -> App {
    let mut app = fixture::app(fixture::review().state, settings, size);
    go(&mut app, layer);
    press(&mut app, "8");
    app
}

/// View 9 at every size, in colours and without glyphs; the list tells what the dots show.
#[test]
fn the_roofline_at_every_size() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = inspecting(size, Settings::default(), "blocks.8.mlp.fc1");
        press(&mut app, "9");
        insta::assert_snapshot!(format!("roofline_{}x{}", size.0, size.1), text(&drawn(&mut app)));
    }
    let plain = Settings { ascii: true, colors: ColorLevel::Ansi16, ..Settings::default() };
    let mut app = inspecting((80, 24), plain, "blocks.8.mlp.fc1");
    press(&mut app, "9");
    let seen = text(&drawn(&mut app));
    assert!(seen.is_ascii() && seen.contains("GFLOP/s") && seen.contains("FLOP/B"), "{seen}");
    // The row under the cursor is named where it lies.
    let mut app = inspecting((200, 60), Settings::default(), "blocks.8.mlp.fc1");
    press(&mut app, "9");
    let seen = text(&drawn(&mut app));
    assert!(seen.matches("blocks.8.mlp.fc1").count() >= 2, "{seen}");
}

/// Bars come with the figures that only the host has: asked for when the view opens, drawn when they are told.
#[test]
fn units_are_asked_for_and_drawn_by_importance() {
    let mut app = inspecting((120, 40), Settings::default(), "blocks.8.mlp.fc1");
    let asked = app.wanted();
    let group = asked.iter().find_map(|e| match e {
        Effect::Send(Command::Units { group }) => Some(group.clone()),
        _ => None,
    });
    let group = group.unwrap_or_else(|| panic!("{asked:?}"));
    assert!(!text(&drawn(&mut app)).contains("importance "), "nothing is known yet");
    let scores: Vec<f32> = (0..64).map(|i| 1.0 - i as f32 / 64.0).collect();
    app.host(HostMsg::Feed { feed: Feed::Units { group, scores } });
    let seen = text(&drawn(&mut app));
    assert!(seen.contains("importance") && seen.contains("the most important first"), "{seen}");
    assert!(app.wanted().is_empty(), "once is enough");
}

/// What runs the model is asked for only where no job measures, once; what cannot be told says why.
#[test]
fn activations_are_asked_for_between_jobs_and_told_beside_every_precision() {
    let layer = "blocks.8.mlp.fc1";
    let asks = |app: &mut App| app.wanted().iter().any(|e| matches!(e, Effect::Send(Command::Activations { .. })));
    let mut app = fixture::app(fixture::review().state, Settings::default(), (120, 40));
    let work = Progress { job: "ladders".into(), label: layer.into(), ..Progress::default() };
    app.host(HostMsg::Feed { feed: Feed::Progress(work) });
    go(&mut app, layer);
    press(&mut app, "8");
    assert!(text(&drawn(&mut app)).contains("looked at when the job has ended") && !asks(&mut app));
    app.host(HostMsg::Feed { feed: Feed::JobEnd { job: "ladders".into() } });
    assert!(text(&drawn(&mut app)).contains("being looked at") && asks(&mut app) && !asks(&mut app));
    let found = Activations {
        items: 64,
        values: 64 * 197 * 768,
        lo: -3.25,
        hi: 4.5,
        zeros: 0.0,
        bars: vec![1, 2, 9, 30, 64, 40, 8, 1],
        off: vec![(Precision::F32, 0.0), (Precision::Int8, 0.0123), (Precision::W4, f32::INFINITY)],
        why: None,
    };
    let told = |app: &mut App, found: Activations| {
        app.host(HostMsg::Feed { feed: Feed::Activations { layer: layer.into(), found: Box::new(found) } });
        text(&drawn(app))
    };
    let seen = told(&mut app, found.clone());
    assert!(seen.contains("−3.25 to +4.50, 0% zeros") && seen.contains("of 64 items of calibration"), "{seen}");
    assert!(seen.contains("output off") && seen.contains("1.2%") && seen.contains("broken"), "{seen}");
    insta::assert_snapshot!("inputs_120x40", seen);
    for (size, settings) in [
        ((80, 24), Settings { ascii: true, ..Settings::default() }),
        ((200, 60), Settings { colors: ColorLevel::Ansi16, ..Settings::default() }),
    ] {
        let mut app = inspecting(size, settings, layer);
        insta::assert_snapshot!(format!("inputs_{}x{}", size.0, size.1), told(&mut app, found.clone()));
    }
    let why = Some("the data is gone".to_owned());
    let seen = told(&mut app, Activations { why, ..Activations::default() });
    assert!(seen.contains("the data is gone"), "{seen}");
}

/// The cut and the knee of a curve that has one, in bars and words.
#[test]
fn the_knee_stands_beside_the_cut() {
    let at = |scores: Vec<f32>, settings: Settings| {
        let mut app = inspecting((120, 40), settings, "blocks.8.mlp.fc1");
        let group = "blocks.8.mlp.fc1".to_owned();
        app.host(HostMsg::Feed { feed: Feed::Units { group, scores } });
        text(&drawn(&mut app))
    };
    let bent: Vec<f32> =
        (0..97).map(|i| if i < 24 { 1.0 - i as f32 * 0.04 } else { 0.05 - (i - 24) as f32 * 5e-4 }).collect();
    let seen = at(bent.clone(), Settings::default());
    assert!(seen.contains("◂ cut at 2304, k knee at 768"), "{seen}");
    let marks = seen.lines().find(|l| l.contains('k') && l.contains('◂') && !l.contains("cut")).expect("marks");
    assert!(marks.find('k') < marks.find('◂'), "{marks}");
    insta::assert_snapshot!("row_with_a_knee", seen);
    let plain = Settings { ascii: true, colors: ColorLevel::None, ..Settings::default() };
    let seen = at(bent, plain);
    assert!(seen.is_ascii() && seen.contains("< cut at 2304, k knee at 768"), "{seen}");
    assert!(!at(vec![1.0; 64], Settings::default()).contains("knee"), "a constant curve has none");
}

#[test]
fn a_row_in_full_at_three_sizes() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = inspecting(size, Settings::default(), "blocks.8.mlp.fc1");
        let seen = text(&drawn(&mut app));
        insta::assert_snapshot!(format!("row_{}x{}", size.0, size.1), seen);
        for words in ["in the graph", "3072 neurons", "made by", "read by", "keep", "2304◂", "KL alone"] {
            assert!(seen.contains(words), "{words}: {seen}");
        }
        assert!(size.1 == 24 || (seen.contains("precisions") && seen.contains("int8")), "{seen}");
    }
    let plain = Settings { ascii: true, colors: ColorLevel::None, ..Settings::default() };
    let seen = text(&drawn(&mut inspecting((80, 24), plain, "blocks.8.mlp.fc1")));
    assert!(seen.is_ascii() && seen.contains("2304<"), "{seen}");
}

#[test]
fn what_was_measured_of_a_cut_alone_stands_apart_from_what_is_forecast() {
    let mut app = inspecting((200, 60), Settings::default(), "blocks.8.mlp.fc1");
    let seen = text(&drawn(&mut app));
    let row =
        |label: &str| seen.lines().find(|l| l.contains(label)).unwrap_or_else(|| panic!("{label}: {seen}")).to_owned();
    assert!(!row("KL alone").contains('~') && row("whole ms").contains("~−") && row("top-1").contains("~−"), "{seen}");
    // The whole width is no change.
    let kept: Vec<String> =
        row("keep ").split_whitespace().filter(|w| w.starts_with(char::is_numeric)).map(str::to_owned).collect();
    assert_eq!(kept[0], "3072", "{kept:?}");
    let i = app.inspected.as_ref().expect("a row");
    let widths = &i.group.as_ref().expect("a group").widths;
    assert!(widths[0].forecast.is_none() && widths[0].kl == Some(0.0) && widths.len() <= 9, "{widths:?}");
    assert!(widths.is_sorted_by(|a, b| a.kept > b.kept));
    // What was decided on it, by whom and why; the engineer's edit is the newest.
    assert!(seen.contains("by you: prune 25.0 %, edited"), "{seen}");
    // Another row.
    let mut app = fixture::app(fixture::review().state, Settings::default(), (200, 60));
    go(&mut app, "blocks.7.attn.qkv");
    press(&mut app, "D");
    let seen = text(&drawn(&mut app));
    assert!(seen.contains("int8◂") && seen.contains("by quantization/"), "{seen}");
    // Nothing of it is lost where there is no room: it scrolls.
    let mut small = inspecting((80, 24), Settings::default(), "blocks.8.mlp.fc1");
    let before = text(&drawn(&mut small));
    assert!(!before.contains("edited"), "all of it fits");
    press(&mut small, "G");
    assert!(text(&drawn(&mut small)).contains("edited"));
    // In the whole model's rows a block has none of these.
    press(&mut small, "1zg8");
    assert!(text(&drawn(&mut small)).contains("stand on a layer"));
}
