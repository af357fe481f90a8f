//! The view of a controller: what is made, what it does beside every fixed level, which key switches it.

use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Settings};
use paring::control::{Asked, Figures, Learner, Regret, Side};
use paring::profile::Ratio;
use paring::session::{Command, Controlled, Event, Feed, HostMsg, LevelMade};
use paring::task::Estimate;
use paring::tui::{App, Effect};

fn made() -> Controlled {
    let level = |i: usize| {
        let value = 1.0 - 0.15 * i as f64;
        let time = Ratio { n: 40, value, low: value - 0.01, high: value + 0.01, coverage: 0.95 };
        let bytes = 135_000_000 - 20_000_000 * i as u64;
        LevelMade { bytes, share: value, time, divergence: 0.02 * i as f64, mlps: [30 - 4 * i, i, 3 * i] }
    };
    Controlled {
        target: 0.8,
        learner: Learner::Bandit,
        seed: 7,
        prompt: 16,
        levels: (0..4).map(level).collect(),
        artifact: "0f.json".into(),
        own_bytes: 31_000_000,
        taught: 12_288,
        table: 2_000,
        promised: (0.0123, 0.803),
        regret: Some(-0.0011),
        device: "cpu, 2 threads".into(),
        ..Controlled::default()
    }
}

fn side(time: f64, divergence: f64) -> Side {
    let p50 = 21.4 * time;
    Side { time, wall: time + 0.01, p50, p95: 1.2 * p50, rate: 1e3 / p50, divergence, perplexity: 12.0 }
}

fn figures(asked: Asked) -> Figures {
    Figures {
        asked,
        tokens: 9000,
        counted: 4032,
        windows: 9,
        recent: (0..256u32).map(|i| ((i * i / 7) % 4) as u8).collect(),
        shares: vec![0.41, 0.2, 0.09, 0.3],
        own: side(0.81, 0.0131),
        levels: (0..4).map(|i| side(1.0 - 0.15 * f64::from(i), 0.02 * f64::from(i))).collect(),
        best: Some(2),
        regret: Some(Regret {
            levels: [1, 2],
            share: 0.73,
            divergence: 0.0254,
            by: Estimate { value: -0.0123, range: Some((-0.0161, -0.0085)) },
        }),
    }
}

/// A session with levels, in their view.
fn with_levels(size: (u16, u16), settings: Settings) -> App {
    let mut story = fixture::review();
    story.push(Event::Controlled { control: Box::new(made()) });
    let mut app = fixture::app(story.state, settings, size);
    press(&mut app, "6");
    app
}

fn levels(app: &mut App, figures: Figures) {
    app.host(HostMsg::Feed { feed: Feed::Levels(Box::new(figures)) });
}

/// A pane's text as if none of its lines were broken.
fn flowing(seen: &str) -> String {
    let words = seen.lines().flat_map(|l| l.trim_matches(|c| c == '│' || c == ' ').split_whitespace());
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn what_is_made_and_what_it_does_at_three_sizes() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = with_levels(size, Settings::default());
        insta::assert_snapshot!(format!("control_made_{}x{}", size.0, size.1), text(&drawn(&mut app)));
        levels(&mut app, figures(Asked::Auto));
        let seen = text(&drawn(&mut app));
        for figure in ["❯ auto", "0.81x", "0.0131", "−0.0123 [−0.0161, −0.0085]", "73 % level 1, else level 2", "41 %"]
        {
            assert!(flowing(&seen).contains(figure), "{size:?}: no {figure} in\n{seen}");
        }
        insta::assert_snapshot!(format!("control_live_{}x{}", size.0, size.1), seen);
        app.host(HostMsg::Feed { feed: Feed::JobEnd { job: "controller".into() } });
        assert!(text(&drawn(&mut app)).contains("controller stopped"), "{size:?}");
    }
}

#[test]
fn a_key_goes_from_what_it_says_to_every_level_and_back() {
    let mut app = with_levels((120, 40), Settings::default());
    assert!(press(&mut app, "c").is_empty());
    assert!(text(&drawn(&mut app)).contains("no controller runs"));
    levels(&mut app, figures(Asked::Auto));
    let sent = |app: &mut App, keys: &str| -> Vec<Asked> {
        let asked = |e| match e {
            Effect::Send(Command::Level { asked }) => Some(asked),
            _ => None,
        };
        press(app, keys).into_iter().filter_map(asked).collect()
    };
    // Quicker than figures come.
    let all = [0, 1, 2, 3].map(Asked::Pinned);
    assert_eq!(sent(&mut app, "ccccc"), [&all[..], &[Asked::Auto]].concat());
    levels(&mut app, figures(Asked::Pinned(3)));
    assert!(text(&drawn(&mut app)).contains("at level 3, auto is asked for"));
    levels(&mut app, figures(Asked::Auto));
    assert!(!text(&drawn(&mut app)).contains("asked for"));
    assert!(text(&drawn(&mut app)).lines().last().is_some_and(|keys| keys.contains("c level")));
}

#[test]
fn without_colours_the_levels_are_still_told_apart() {
    for (colors, ascii) in [(ColorLevel::Ansi16, false), (ColorLevel::None, true)] {
        let mut app = with_levels((80, 24), Settings { colors, ascii, ..Settings::default() });
        levels(&mut app, figures(Asked::Auto));
        let seen = text(&drawn(&mut app));
        let strip = seen.lines().find(|l| l.contains("newest")).unwrap_or_default();
        assert!(["0", "1", "2", "3"].iter().filter(|d| strip.contains(**d)).count() >= 3, "{strip}");
        assert!(!ascii || seen.is_ascii(), "{seen}");
    }
}

#[test]
fn a_session_that_has_none_says_how_to_make_one() {
    let mut app = fixture::app(fixture::review().state, Settings::default(), (80, 24));
    press(&mut app, "6");
    assert!(text(&drawn(&mut app)).contains("this session's model is none"));
    press(&mut app, ":level 1<enter>");
    assert!(app.modal.is_none());
}
