//! The mouse: what is pressed, pulled and rolled is what the keys there do.

use crate::keys::{go, sent};
use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Settings};
use paring::plan::Action;
use paring::tui::{App, Pane, UserInput, View};
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use ratatui::style::Modifier;

const PRESS: MouseEventKind = MouseEventKind::Down(MouseButton::Left);
const PULL: MouseEventKind = MouseEventKind::Drag(MouseButton::Left);

fn reviewing(size: (u16, u16)) -> App {
    fixture::app(fixture::review().state, Settings::default(), size)
}

fn mouse(app: &mut App, kind: MouseEventKind, (column, row): (u16, u16)) {
    app.input(UserInput::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }));
    app.settle();
}

/// Where `needle` stands.
fn find(buf: &Buffer, needle: &str) -> (u16, u16) {
    let area = *buf.area();
    let letters: Vec<String> = needle.chars().map(String::from).collect();
    let at = |x: u16, y: u16| {
        let fits = x as usize + letters.len() <= area.width as usize;
        fits && letters.iter().enumerate().all(|(i, l)| buf[(x + i as u16, y)].symbol() == l)
    };
    let all = (0..area.height).flat_map(|y| (0..area.width).map(move |x| (x, y)));
    { all }.find(|&(x, y)| at(x, y)).unwrap_or_else(|| panic!("no `{needle}`: {}", text(buf)))
}

fn on(app: &mut App, needle: &str) -> (u16, u16) {
    find(&drawn(app), needle)
}

/// Where a key stands in the footer.
fn key(app: &mut App, label: &str) -> (u16, u16) {
    let shown = text(&drawn(app));
    let footer = shown.lines().last().unwrap_or_default();
    let at = footer.find(label).unwrap_or_else(|| panic!("no `{label}`: {footer}"));
    (footer[..at].chars().count() as u16, app.size.1 - 1)
}

#[test]
fn a_press_moves_the_cursor_and_twice_opens_what_is_there() {
    let mut app = reviewing((120, 40));
    go(&mut app, "blocks.8.mlp.fc1");
    press(&mut app, "t");
    let at = on(&mut app, "blocks.7.mlp.fc2");
    mouse(&mut app, PRESS, at);
    assert_eq!(app.row_shown().first().map(|s| s.target.name().to_owned()), Some("blocks.7.mlp.fc1".into()));
    app.now_ms += 100;
    mouse(&mut app, PRESS, at);
    assert_eq!(app.view, View::Inspect);
    // Too slow for one act, and of a block the second press folds.
    let mut app = reviewing((120, 40));
    go(&mut app, "blocks.8.mlp.fc1");
    let (at, rows) = (on(&mut app, "blocks.8"), app.list.shown.len());
    mouse(&mut app, PRESS, at);
    app.now_ms += 1000;
    mouse(&mut app, PRESS, at);
    assert_eq!(app.list.shown.len(), rows);
    app.now_ms += 100;
    mouse(&mut app, PRESS, at);
    assert_ne!(app.list.shown.len(), rows);
}

#[test]
fn panes_and_keys_of_the_footer_are_pressed() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = reviewing(size);
        let at = on(&mut app, "agents");
        mouse(&mut app, PRESS, at);
        assert_eq!(app.pane, Pane::Agents, "{size:?}");
        let at = on(&mut app, "decision");
        mouse(&mut app, PRESS, at);
        assert_eq!(app.pane, Pane::Decision, "{size:?}");
        press(&mut app, "2");
        let at = key(&mut app, "1 review");
        mouse(&mut app, PRESS, at);
        assert_eq!(app.view, View::Review, "{size:?}");
        let at = key(&mut app, "? help");
        mouse(&mut app, PRESS, (at.0 + 3, at.1));
        assert!(app.modal.is_some(), "{size:?}");
    }
}

#[test]
fn a_ratio_is_pulled_as_its_keys_move_it() {
    let mut app = reviewing((120, 40));
    go(&mut app, "blocks.11.mlp.fc1");
    let (x, row) = on(&mut app, "❯   mlp.fc1");
    let (plan, name) = (on(&mut app, "sens  plan").0 + 8, x + 6);
    // Over a name nothing is pulled.
    mouse(&mut app, PRESS, (name, row));
    mouse(&mut app, PULL, (name + 5, row));
    assert!(app.drafts.is_empty());
    mouse(&mut app, PRESS, (plan, row));
    mouse(&mut app, PULL, (plan + 2, row));
    mouse(&mut app, PULL, (plan + 3, row));
    let pulled = app.drafts.clone();
    let mut keys = reviewing((120, 40));
    go(&mut keys, "blocks.11.mlp.fc1");
    press(&mut keys, "]]]");
    assert!(matches!(pulled[..], [paring::tui::Draft { action: Action::Prune { .. }, .. }]));
    assert_eq!(pulled, keys.drafts);
    // Let go, it is an edit that waits; moves of the mouse do nothing more.
    mouse(&mut app, MouseEventKind::Up(MouseButton::Left), (plan + 3, row));
    mouse(&mut app, PULL, (plan + 9, row));
    assert_eq!(app.drafts, pulled);
    assert_eq!(sent(press(&mut app, "<enter>")).len(), 1);
}

#[test]
fn the_wheel_scrolls_what_is_under_it_whatever_has_the_keys() {
    let mut app = reviewing((120, 40));
    let said = paring::session::Utterance { role: "critic".into(), text: "so\n".repeat(60), ..Default::default() };
    crate::keys::event(&mut app, paring::session::Event::Said { utterance: Box::new(said) });
    let list = on(&mut app, "layer");
    mouse(&mut app, MouseEventKind::ScrollDown, (list.0, list.1 + 3));
    assert_eq!((app.list.cursor, app.pane), (3, Pane::Layers));
    let agents = on(&mut app, "agents");
    mouse(&mut app, MouseEventKind::ScrollUp, (agents.0, agents.1 + 2));
    assert!(!app.brief.follow && app.pane == Pane::Layers && app.list.cursor == 3);
    // Nowhere does it break, nor over a dialog.
    for keys in ["", "O", "?", ":th", "v"] {
        for size in [(1, 1), (9, 4), (80, 24), (120, 40), (260, 100)] {
            let mut app = reviewing(size);
            press(&mut app, keys);
            for kind in [MouseEventKind::ScrollDown, MouseEventKind::ScrollUp, PRESS, PULL, MouseEventKind::Moved] {
                for at in [(0, 0), (5, 5), (79, 23), (100, 30), (300, 300)] {
                    mouse(&mut app, kind, at);
                }
            }
            drawn(&mut app);
        }
    }
}

#[test]
fn words_are_found_and_marked_in_texts_and_nothing_is_filtered() {
    let mut app = fixture::app(fixture::verdict().state, Settings::default(), (120, 40));
    press(&mut app, "5");
    let whole = text(&drawn(&mut app));
    press(&mut app, "/blocks.<enter>");
    let said = app.message.clone().map(|(_, m)| m).unwrap_or_default();
    assert!(said.starts_with("line 1 of "), "{said}");
    let buf = drawn(&mut app);
    let body = (2..38).flat_map(|y| (0..120).map(move |x| (x, y)));
    let marked = { body }.filter(|at| buf[*at].modifier.contains(Modifier::REVERSED)).count();
    assert!(marked >= 7 && marked % 7 == 0, "{marked} cells");
    press(&mut app, "n");
    assert!(app.message.as_ref().is_some_and(|(_, m)| m.starts_with("line 2 of ")), "{:?}", app.message);
    press(&mut app, "N");
    assert!(app.message.as_ref().is_some_and(|(_, m)| m.starts_with("line 1 of ")), "{:?}", app.message);
    press(&mut app, "/zzz<enter>");
    assert!(app.message.as_ref().is_some_and(|(_, m)| m.contains("no line here has `zzz`")), "{:?}", app.message);
    // Esc lets the words go, then the view.
    press(&mut app, "<esc>");
    assert_eq!(app.view, View::Report);
    app.scroll = 0;
    press(&mut app, "g");
    let lines = |t: &str| t.lines().take(30).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(&text(&drawn(&mut app))), lines(&whole));
    for view in ["3", "4"] {
        press(&mut app, &format!("{view}/round<enter>"));
        assert!(app.message.as_ref().is_some_and(|(_, m)| m.starts_with("line 1 of ")), "{view}: {:?}", app.message);
        press(&mut app, "<esc>");
    }
}

#[test]
fn layers_that_agents_name_are_marked_and_a_key_goes_to_them() {
    let plain = Settings { colors: ColorLevel::None, ..Settings::default() };
    let mut app = fixture::app(fixture::review().state, plain, (120, 40));
    let turn = paring::session::Utterance {
        role: "pruning".into(),
        text: "First blocks.3.mlp.fc1, then `blocks.5.attn.qkv`; nothing of blocks.99.mlp.fc1.".into(),
        ..Default::default()
    };
    crate::keys::event(&mut app, paring::session::Event::Said { utterance: Box::new(turn) });
    let buf = drawn(&mut app);
    let (x, y) = find(&buf, "blocks.3.mlp.fc1,");
    assert!((0..16).all(|i| buf[(x + i, y)].modifier.contains(Modifier::UNDERLINED)));
    assert!(!buf[(x - 2, y)].modifier.contains(Modifier::UNDERLINED));
    let row = |app: &App| app.row_shown().last().map(|s| s.target.name().to_owned());
    press(&mut app, "J");
    assert_eq!(row(&app).as_deref(), Some("blocks.5.attn.qkv"));
    press(&mut app, "J");
    assert_eq!(row(&app).as_deref(), Some("blocks.3.mlp.fc1"));
    let mut app = fixture::app(fixture::profiled().state, Settings::default(), (120, 40));
    press(&mut app, "J");
    assert!(app.message.as_ref().is_some_and(|(_, m)| m.contains("named no layer")), "{:?}", app.message);
}
