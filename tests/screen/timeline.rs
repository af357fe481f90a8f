//! View 4: a cursor on what happened, at three sizes, that stays on its event, and the way back to what was decided there.

use crate::keys::{event, sent};
use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Settings};
use paring::session::{Command, Event};
use paring::tui::App;

fn looking(settings: Settings, size: (u16, u16)) -> App {
    let mut app = fixture::app(fixture::review().state, settings, size);
    press(&mut app, "4");
    app
}

/// The number of the event under the cursor.
fn at(app: &App) -> u64 {
    app.past_event().expect("an event").seq
}

fn message(app: &App) -> &str {
    app.message.as_ref().map_or("", |(_, m)| m)
}

#[test]
fn the_cursor_at_three_sizes_and_without_colours() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = looking(Settings::default(), size);
        press(&mut app, "jj");
        let seen = text(&drawn(&mut app));
        let marked = seen.lines().find(|l| l.contains('❯') && l.contains(&at(&app).to_string()));
        assert!(marked.is_some() && seen.contains("goes back to what was decided after event"), "{seen}");
        insta::assert_snapshot!(format!("timeline_cursor_{}x{}", size.0, size.1), seen);
    }
    let plain = Settings { ascii: true, colors: ColorLevel::Ansi16, ..Settings::default() };
    let mut app = looking(plain, (80, 24));
    press(&mut app, "j");
    let seen = text(&drawn(&mut app));
    assert!(seen.is_ascii() && seen.lines().any(|l| l.contains(">  ") && l.contains(&at(&app).to_string())), "{seen}");
}

#[test]
fn it_goes_by_rows_pages_and_to_the_ends_and_stays_on_its_event() {
    let mut app = looking(Settings::default(), (80, 24));
    let all: Vec<u64> = app.state.timeline.iter().rev().map(|e| e.seq).collect();
    assert!(all.len() > 8, "{all:?}");
    assert_eq!(at(&app), all[0]);
    press(&mut app, "jjk");
    assert_eq!(at(&app), all[1]);
    press(&mut app, "G");
    assert_eq!(at(&app), *all.last().expect("events"));
    let seen = text(&drawn(&mut app));
    assert!(seen.lines().any(|l| l.contains('❯') && l.contains("opened")), "it is seen: {seen}");
    press(&mut app, "<pgdn>g");
    assert_eq!(at(&app), all[0]);
    press(&mut app, "jjj");
    let (here, before) = (at(&app), text(&drawn(&mut app)));
    let line = |s: &str| s.lines().position(|l| l.contains('❯')).expect("the cursor");
    // News arrive above; the row stays under the cursor.
    event(&mut app, Event::Noted { round: 1, text: "mind the heads".into() });
    assert_eq!(at(&app), here);
    let after = text(&drawn(&mut app));
    assert!(line(&after) == line(&before) || line(&after) == line(&before) + 1, "{after}");
    // On the newest it follows.
    press(&mut app, "g");
    event(&mut app, Event::Noted { round: 1, text: "and the norms".into() });
    assert_eq!(at(&app), app.state.seq);
    // Words that are looked for bring it along.
    press(&mut app, "/opened<enter>");
    assert_eq!(at(&app), *all.last().expect("events"));
}

#[test]
fn enter_goes_back_and_says_so_or_why_not() {
    let mut app = looking(Settings::default(), (120, 40));
    press(&mut app, "jjj");
    let seq = at(&app);
    assert_eq!(sent(press(&mut app, "<enter>")), [Command::Restore { seq }]);
    event(&mut app, Event::Restored { to: seq, decisions: Vec::new(), dropped: Vec::new() });
    assert!(
        message(&app).contains(&format!("after event {seq}")) && message(&app).contains("u undoes"),
        "{}",
        message(&app)
    );
    assert!(text(&drawn(&mut app)).contains(&format!("back to the decisions after event {seq}")));
    // A round that waits is answered first.
    let mut app = fixture::app(fixture::verdict().state, Settings::default(), (120, 40));
    assert_eq!(sent(press(&mut app, "4j<enter>")), []);
    assert!(message(&app).contains("C accepts it"), "{}", message(&app));
    // Who watches goes nowhere.
    let mut app = looking(Settings::default(), (120, 40));
    app.host(paring::session::HostMsg::Pen { holder: Some(7), holder_name: "other".into() });
    assert_eq!(sent(press(&mut app, "j<enter>")), []);
    assert!(message(&app).contains("takes the pen"), "{}", message(&app));
}

#[test]
fn no_size_breaks_it() {
    for size in [(1, 1), (2, 9), (7, 3), (20, 5), (260, 100)] {
        let mut app = looking(Settings::default(), size);
        press(&mut app, "jGgk<pgdn>j");
        drawn(&mut app);
    }
}
