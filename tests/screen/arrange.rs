//! Panes of the review that share the screen otherwise: presets, keys, borders that are pulled, at every size.

use crate::{drawn, fixture, press, text};
use paring::config::Settings;
use paring::tui::{App, Effect, Pane, Shares, UserInput};
use ratatui::crossterm::event::{KeyModifiers, MouseButton, MouseEvent, MouseEventKind};

const PRESS: MouseEventKind = MouseEventKind::Down(MouseButton::Left);
const PULL: MouseEventKind = MouseEventKind::Drag(MouseButton::Left);
const LEAVE: MouseEventKind = MouseEventKind::Up(MouseButton::Left);

fn reviewing(size: (u16, u16)) -> App {
    let mut app = fixture::app(fixture::review().state, Settings::default(), size);
    press(&mut app, "j");
    app
}

fn mouse(app: &mut App, kind: MouseEventKind, (column, row): (u16, u16)) -> Vec<Effect> {
    let effects = app.input(UserInput::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }));
    app.settle();
    effects
}

fn said(app: &App) -> String {
    app.message.clone().map(|(_, m)| m).unwrap_or_default()
}

fn kept(effects: Vec<Effect>) -> Vec<Shares> {
    let shares = |e| match e {
        Effect::Arrange(shares) => Some(shares),
        _ => None,
    };
    effects.into_iter().filter_map(shares).collect()
}

#[test]
fn presets_at_every_size() {
    for size in [(120, 40), (200, 60)] {
        for name in ["list", "agents", "card"] {
            let mut app = reviewing(size);
            let effects = press(&mut app, &format!(":layout {name}<enter>"));
            assert_eq!(kept(effects), [app.shares]);
            insta::assert_snapshot!(format!("layout_{name}_{}x{}", size.0, size.1), text(&drawn(&mut app)));
        }
    }
    // Where panes are tabs nothing moves, and that is said.
    let mut app = reviewing((80, 24));
    let before = text(&drawn(&mut app));
    press(&mut app, "|");
    let after = text(&drawn(&mut app));
    assert!(said(&app).contains("from 108x28 on"), "{}", said(&app));
    let rows = |t: &str| t.lines().take(22).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(rows(&before), rows(&after));
    press(&mut app, "()");
    assert!(said(&app).contains("panes are tabs"), "{}", said(&app));
}

#[test]
fn a_key_goes_round_the_presets_and_two_move_the_border_of_the_pane_with_the_keys() {
    let mut app = reviewing((120, 40));
    let usual = app.layout();
    for name in ["list", "agents", "card", "usual"] {
        press(&mut app, "|");
        assert!(said(&app).starts_with(&format!("layout: {name}; list ")), "{}", said(&app));
    }
    assert_eq!(app.layout(), usual);
    press(&mut app, "(");
    assert_eq!(app.layout().list.width, usual.list.width - 4);
    press(&mut app, "))");
    // Forty-eight columns are the least for decisions, and what they have here.
    assert_eq!((app.layout().list.width, usual.list.width), (72, 72));
    assert!(said(&app).starts_with("no further"), "{}", said(&app));
    app.pane = Pane::Decision;
    press(&mut app, ")");
    assert_eq!(app.layout().card.height, usual.card.height + 2);
    app.pane = Pane::Agents;
    press(&mut app, "))");
    assert_eq!(app.layout().card.height, usual.card.height - 2);
    for _ in 0..30 {
        press(&mut app, ")");
    }
    assert!(said(&app).starts_with("no further"), "{}", said(&app));
    press(&mut app, ":layout card 200%<enter>");
    assert!(said(&app).contains("hint: `:layout card 50%`"), "{}", said(&app));
    press(&mut app, ":layout side 50%<enter>");
    assert_eq!(app.layout().agents.width, 60);
}

#[test]
fn borders_are_pulled_and_kept_when_they_are_let_go() {
    for size in [(120, 40), (200, 60)] {
        let mut app = reviewing(size);
        let l = app.layout();
        let (x, y) = (l.agents.x, l.body.y + 5);
        assert!(kept(mouse(&mut app, PRESS, (x, y))).is_empty());
        let to = x - 6;
        assert!(kept(mouse(&mut app, PULL, (to, y))).is_empty(), "not while it moves");
        assert_eq!(app.layout().agents.x, to, "{size:?}");
        assert_eq!(kept(mouse(&mut app, LEAVE, (to, y))), [app.shares]);
        // Let go, it stays.
        mouse(&mut app, PULL, (x, y));
        assert_eq!(app.layout().agents.x, to);
        // The title of the card is its border: pressed it has the keys, pulled it moves.
        let card = app.layout().card;
        mouse(&mut app, PRESS, (card.x + 4, card.y));
        assert_eq!(app.pane, Pane::Decision);
        assert!(kept(mouse(&mut app, LEAVE, (card.x + 4, card.y))).is_empty(), "nothing moved");
        mouse(&mut app, PRESS, (card.x + 4, card.y));
        mouse(&mut app, PULL, (card.x + 4, card.y - 2));
        assert_eq!(app.layout().card.y, card.y - 2);
        // Never so far that nothing is left.
        mouse(&mut app, PULL, (card.x + 4, 0));
        mouse(&mut app, LEAVE, (card.x + 4, 0));
        assert!(app.layout().agents.height >= 5);
        let plot = app.layout().plot;
        if plot.height > 0 {
            mouse(&mut app, PRESS, (plot.x + 4, plot.y));
            mouse(&mut app, PULL, (plot.x + 4, plot.y + 3));
            assert_eq!(app.layout().plot.height, plot.height - 3);
        }
        drawn(&mut app);
    }
}

#[test]
fn no_shares_break_any_size() {
    for size in [(1, 1), (9, 4), (80, 24), (108, 28), (179, 45), (180, 45), (260, 100)] {
        for line in ["layout side 0", "layout side 100", "layout card 0", "layout card 100", "layout plot 100%"] {
            let mut app = reviewing(size);
            press(&mut app, &format!(":{line}<enter>"));
            drawn(&mut app);
        }
    }
}
