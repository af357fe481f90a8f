//! The columns of weights and gradients: what a profile and a healing tell, live, in every size and colour, and that nothing is shown of what
//! was not measured.

use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Settings};
use paring::graph::ParamRole;
use paring::profile::{BARS, Drawn, LayerParameters, Rank};
use paring::session::{Event, Feed, HostMsg, Record, State};
use paring::train::{Course, Healing, LayerPulse, Look, Spread};
use paring::tui::App;
use ratatui::style::Modifier;

/// The review session with weights whose figures grow along the network, the head's looked at in part.
fn state() -> State {
    let mut state = fixture::review().state;
    let graph = &state.card.as_ref().expect("opened").graph;
    let layers = graph.nodes.iter().filter(|n| n.param(ParamRole::Weight).is_some()).enumerate();
    let one = |(i, n): (usize, &paring::graph::Node)| {
        let matrix = n.op.is_conv_or_linear();
        let mut histogram = [0; BARS];
        histogram.iter_mut().enumerate().for_each(|(k, n)| *n = 100 - 12 * (8 - k as i32).unsigned_abs());
        LayerParameters {
            name: n.name.clone(),
            values: 589_824,
            l2: 10.0 + i as f32,
            zeros: if i % 3 == 0 { 0.0 } else { 0.01 * i as f32 },
            min: -0.51,
            max: 0.48,
            histogram,
            units: 768,
            dead: 0,
            rank: matrix.then_some(Rank { effective: 600.0 - 4.0 * i as f32, full: 768 }),
            scales: None,
            sampled: n.name.contains("head").then_some(Drawn { values: 40_000, l2: 0.013, zeros: 0.002 }),
        }
    };
    let parameters = layers.map(one).collect();
    state.rounds[0].profile.as_mut().expect("profiled").parameters = parameters;
    state
}

/// What the layers do at `step`.
fn pulse(state: &State, step: u32) -> Feed {
    let all = &state.rounds[0].profile.as_ref().expect("profiled").parameters;
    let one = |(i, p): (usize, &LayerParameters)| LayerPulse {
        name: p.name.clone(),
        values: p.values,
        weight: p.l2 + 0.1 * step as f32,
        moved: 0.001 * step as f32,
        gradient: 0.004 * (1.0 + i as f32) / (1.0 + step as f32),
        importance: 0.02 * (1.0 + i as f32) / (1.0 + step as f32),
        // One whose gradient is lost in noise.
        spread: Some(Spread { signal: if i == 1 { -1e-6 } else { 1e-6 }, variance: 1e-4 * (1.0 + step as f32) }),
    };
    Feed::Pulse { step, layers: all.iter().enumerate().map(one).collect() }
}

fn app(size: (u16, u16), settings: Settings) -> App {
    let mut app = fixture::app(state(), settings, size);
    press(&mut app, "w");
    app
}

fn feed(app: &mut App, feed: Feed) {
    app.host(HostMsg::Feed { feed });
}

#[test]
fn columns_at_every_size() {
    for (w, h) in [(80, 24), (120, 40), (200, 60)] {
        let mut app = app((w, h), Settings::default());
        let step = pulse(&app.state, 12);
        feed(&mut app, step);
        press(&mut app, "jj");
        insta::assert_snapshot!(format!("weights_{w}x{h}"), text(&drawn(&mut app)));
    }
}

/// The row of `name` in a picture.
fn row<'t>(picture: &'t str, name: &str) -> &'t str {
    picture.lines().find(|l| l.contains(name)).unwrap_or_else(|| panic!("no {name} in\n{picture}"))
}

#[test]
fn gradients_move_while_a_run_heals_and_rows_do_not() {
    let mut app = app((120, 40), Settings::default());
    press(&mut app, "jj");
    let none = text(&drawn(&mut app));
    // Weights were measured, gradients were not: no figure, and never a zero.
    let of = |t: &str| {
        row(t, "attn.qkv")
            .chars()
            .take(72)
            .collect::<String>()
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let before = of(&none);
    assert_eq!(before.iter().filter(|w| *w == "—").count(), 3, "{before:?}");
    assert!(none.contains("gradients come with :heal"), "{none}");
    let step = pulse(&app.state, 1);
    feed(&mut app, step);
    let first = text(&drawn(&mut app));
    let step = pulse(&app.state, 9);
    feed(&mut app, step);
    let buf = drawn(&mut app);
    let second = text(&buf);
    assert!(first.contains("live, step 1") && second.contains("live, step 9"), "{second}");
    let (a, b) = (of(&first), of(&second));
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(&b).filter(|(a, b)| a != b).count() >= 4, "norm, gradient, importance, noise: {a:?} {b:?}");
    let names = |t: &str| -> Vec<String> { t.lines().skip(4).map(|l| l.chars().skip(1).take(14).collect()).collect() };
    assert_eq!(names(&first)[..20], names(&second)[..20], "rows moved under the cursor");
    // What is on its way is italic.
    let y = second.lines().position(|l| l.contains("attn.qkv")).expect("a row") as u16;
    let italic = (0..72).filter(|x| buf[(*x, y)].modifier.contains(Modifier::ITALIC)).count();
    assert!(italic > 20, "{italic} cells");
    // Told on the card with its units.
    assert!(second.contains("noise 1000 images") && second.contains("effective rank"), "{second}");
    // The healing ends without having been kept: there are no gradients any more.
    feed(&mut app, Feed::JobEnd { job: "run".into() });
    assert_eq!(of(&text(&drawn(&mut app))), before);
}

#[test]
fn what_layers_did_stays_with_the_round_that_was_healed() {
    let mut app = app((120, 40), Settings::default());
    let Feed::Pulse { step, layers } = pulse(&app.state, 40) else { panic!("a pulse") };
    feed(&mut app, Feed::Pulse { step, layers: layers.clone() });
    let look = Look { step: 40, loss: 0.1, agreement: 0.9 };
    let healing = Healing::usual(40, true, 0);
    let course = Box::new(Course { healing, images: 900, held_back: 100, looks: vec![look], best: look });
    let started = Event::RunStarted { round: 1, ids: vec![], recipe: Some(vec![]), forecast: None };
    for event in [started, Event::Healed { round: 1, course, layers: layers.to_vec() }] {
        let record = Record { seq: app.state.seq + 1, at_ms: 0, event };
        app.host(HostMsg::Event { record: Box::new(record) });
    }
    for _ in 0..2 {
        let seen = text(&drawn(&mut app));
        assert!(seen.contains("gradients as healing ended") && !seen.contains("live, step"), "{seen}");
        let figures = row(&seen, "attn.qkv").chars().take(72).collect::<String>();
        assert!(!figures.contains('—'), "{figures}");
        // Whatever becomes of the job.
        feed(&mut app, Feed::JobEnd { job: "run".into() });
    }
}

#[test]
fn few_colours_and_ascii_say_the_same() {
    for (colors, ascii) in [(ColorLevel::Ansi16, false), (ColorLevel::None, true)] {
        let mut app = app((80, 24), Settings { colors, ascii, ..Settings::default() });
        let step = pulse(&app.state, 3);
        feed(&mut app, step);
        let seen = text(&drawn(&mut app));
        assert!(!ascii || seen.is_ascii(), "{seen}");
        for word in ["|w|", "zeros%", "rank %", "|g|", "|gw|", "noise", "live, step 3"] {
            assert!(seen.contains(word), "{word}\n{seen}");
        }
        // Heat without colours is a glyph.
        assert!(seen.contains(if ascii { '#' } else { '█' }), "{seen}");
    }
}

#[test]
fn columns_are_chosen_and_sorted_by_key_and_by_command() {
    let mut app = app((120, 40), Settings::default());
    // What was looked at in part is no measurement of all.
    press(&mut app, ":filter head<enter>");
    assert!(row(&text(&drawn(&mut app)), "❯  head").contains('~'), "{}", text(&drawn(&mut app)));
    press(&mut app, ":filter<enter>:columns costs<enter>");
    assert!(text(&drawn(&mut app)).contains("MACs M"));
    press(&mut app, ":sort gradient<enter>");
    assert!(text(&drawn(&mut app)).contains("gradient norm") && text(&drawn(&mut app)).contains("|gw|"));
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..8 {
        press(&mut app, "s");
        seen.insert(app.columns.label(app.list.sort).to_owned());
    }
    assert!(seen.contains("importance") && seen.contains("latency") && !seen.contains("MACs"), "{seen:?}");
}
