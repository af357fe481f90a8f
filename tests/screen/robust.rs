//! Nothing breaks the screen: no size, no key sequence, no name.

use crate::{drawn, fixture, text};
use paring::config::{ColorLevel, Settings};
use paring::session::{Channel, Feed, HostMsg, LiveRow, State};
use paring::tui::{App, UserInput};
use proptest::prelude::*;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::sync::LazyLock;

static STATES: LazyLock<Vec<State>> = LazyLock::new(|| {
    vec![State::default(), fixture::profiled().state, fixture::review().state, fixture::verdict().state]
});

fn key() -> impl Strategy<Value = KeyCode> {
    let named = [
        KeyCode::Enter,
        KeyCode::Esc,
        KeyCode::Tab,
        KeyCode::BackTab,
        KeyCode::Up,
        KeyCode::Down,
        KeyCode::PageUp,
        KeyCode::PageDown,
        KeyCode::Backspace,
        KeyCode::Left,
        KeyCode::Home,
        KeyCode::F(5),
    ];
    prop_oneof![
        4 => proptest::sample::select("jkhlgGzsStnNavoepx[]{}AYmuUPWrLRCBEiTfy12345:/? q0.%€模".chars().collect::<Vec<_>>())
            .prop_map(KeyCode::Char),
        1 => proptest::sample::select(named.to_vec()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn no_size_and_no_keys_break_it(
        which in 0usize..4,
        sizes in proptest::collection::vec((1u16..=300, 1u16..=100), 1..4),
        keys in proptest::collection::vec(key(), 0..60),
        level in proptest::sample::select(vec![ColorLevel::True, ColorLevel::Ansi16, ColorLevel::None]),
        ascii: bool,
    ) {
        let settings = Settings { colors: level, ascii, ..Settings::default() };
        let mut app = fixture::app(STATES[which].clone(), settings, sizes[0]);
        for (i, k) in keys.iter().enumerate() {
            app.input(UserInput::Key(KeyEvent::new(*k, KeyModifiers::NONE)));
            if i % 7 == 0 {
                let (w, h) = sizes[i / 7 % sizes.len()];
                app.input(UserInput::Resize(w, h));
                drawn(&mut app);
            }
        }
        drawn(&mut app);
        prop_assert!(app.list.cursor <= app.list.shown.len());
    }
}

#[test]
fn every_small_size_draws_every_view() {
    let mut app = fixture::app(STATES[3].clone(), Settings::default(), (1, 1));
    for w in (1..=130).step_by(7).chain([300]) {
        for h in [1, 2, 3, 4, 5, 7, 9, 12, 17, 24, 28, 33, 100] {
            for view in ['1', '2', '3', '4', '5', '?', ':'] {
                app.input(UserInput::Resize(w, h));
                app.input(UserInput::Key(KeyEvent::new(KeyCode::Char(view), KeyModifiers::NONE)));
                drawn(&mut app);
                app.input(UserInput::Key(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE)));
            }
        }
    }
}

#[test]
fn hostile_names_wide_letters_and_huge_figures() {
    let mut state = STATES[3].clone();
    let evil = "模型\x1b]52;c;aGk=\x07\u{202E}名前".repeat(6);
    if let Some(card) = &mut state.card {
        card.model.name = evil.clone();
        card.data.name = evil.clone();
        card.device = "\u{9b}31mgpu".into();
        card.data.class_names = vec![evil.clone(); 10];
        card.graph.blocks[0].name = evil.clone();
    }
    for r in &mut state.rounds {
        if let Some(e) = &mut r.evaluation {
            e.weight_bytes = u64::MAX / 4;
            e.params = u64::MAX;
            e.whole.p50 = f64::NAN;
            e.metrics.loss = f64::INFINITY;
        }
        if let Some(p) = &mut r.profile {
            p.rows[0].kernel = evil.clone();
            p.rows[0].latency.p50 = 1e300;
            p.rows[1].latency.p50 = f64::NAN;
            p.rows[2].weight_bytes = u64::MAX / 1000;
        }
    }
    for d in &mut state.decisions {
        d.rationale = evil.clone();
        d.veto_reason = Some(evil.clone());
    }
    for size in [(80, 24), (120, 40), (200, 60), (33, 9)] {
        let mut app = fixture::app(state.clone(), Settings::default(), size);
        app.host(HostMsg::Event {
            record: Box::new(paring::session::Record {
                seq: state.seq + 1,
                at_ms: i64::MIN,
                event: paring::session::Event::Failed { what: evil.clone(), message: evil.clone() },
            }),
        });
        app.host(HostMsg::Feed { feed: Feed::Turn { role: evil.clone(), model: evil.clone() } });
        let token = Feed::Token { role: evil.clone(), channel: Channel::Text, text: evil.repeat(20) };
        app.host(HostMsg::Feed { feed: token });
        let rows = vec![LiveRow { name: evil.clone(), p50_ms: f64::INFINITY, p95_ms: 0.0, n: u64::MAX }];
        app.host(HostMsg::Feed { feed: Feed::Live { runs: u64::MAX, rows } });
        for view in "12345".chars() {
            app.input(UserInput::Key(KeyEvent::new(KeyCode::Char(view), KeyModifiers::NONE)));
            let buf = drawn(&mut app);
            for c in buf.content() {
                let bad = c.symbol().chars().any(|c| c.is_control() || ('\u{202A}'..='\u{202E}').contains(&c));
                assert!(!bad, "{:?} in view {view}\n{}", c.symbol(), text(&buf));
            }
        }
    }
}

#[test]
fn a_line_never_runs_over_its_edge() {
    for size in [(80, 24), (120, 40)] {
        let mut app: App = fixture::app(STATES[2].clone(), Settings::default(), size);
        let t = text(&drawn(&mut app));
        for l in t.lines() {
            assert!(paring::config::text::width(l) <= size.0 as usize, "{l}");
        }
    }
}
