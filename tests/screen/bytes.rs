//! The bytes that a terminal receives: read back by a terminal emulator they are the screen, and none come when idle.

use crate::{fixture, text};
use paring::config::Settings;
use paring::session::{Channel, Feed, HostMsg};
use paring::tui::{App, UserInput, draw_on, paint};
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

/// Feeds an emulator and keeps what was written last.
#[derive(Clone)]
struct Emulator(Rc<RefCell<(vt100::Parser, Vec<u8>)>>);

impl Write for Emulator {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut inner = self.0.borrow_mut();
        inner.0.process(buf);
        inner.1.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Pair {
    app: App,
    screen: Terminal<CrosstermBackend<Emulator>>,
    emulator: Emulator,
    size: (u16, u16),
}

impl Pair {
    fn new(size: (u16, u16)) -> Pair {
        let emulator = Emulator(Rc::new(RefCell::new((vt100::Parser::new(size.1, size.0, 0), Vec::new()))));
        let options = TerminalOptions { viewport: Viewport::Fixed(Rect::new(0, 0, size.0, size.1)) };
        let screen = Terminal::with_options(CrosstermBackend::new(emulator.clone()), options).expect("an emulator");
        let mut p =
            Pair { app: fixture::app(fixture::review().state, Settings::default(), size), screen, emulator, size };
        p.app.dirty = true;
        p.frame();
        p
    }

    /// Paints, and returns what was written.
    fn frame(&mut self) -> Vec<u8> {
        self.emulator.0.borrow_mut().1.clear();
        paint(&mut self.app, &mut self.screen).expect("an emulator");
        self.emulator.0.borrow().1.clone()
    }

    fn key(&mut self, c: char) {
        self.app.input(UserInput::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE)));
    }

    fn agrees(&mut self) {
        let mut buf = Buffer::empty(Rect::new(0, 0, self.size.0, self.size.1));
        draw_on(&self.app, *buf.area(), &mut buf);
        let inner = self.emulator.0.borrow();
        let seen: Vec<String> = inner.0.screen().rows(0, self.size.0).map(|r| r.trim_end().to_owned()).collect();
        let drawn = text(&buf);
        let drawn: Vec<&str> = drawn.lines().collect();
        assert_eq!(seen, drawn);
    }
}

#[test]
fn an_emulator_sees_what_was_drawn() {
    for size in [(80, 24), (120, 40)] {
        let mut p = Pair::new(size);
        p.agrees();
        for c in "jj]]2345?1/fc".chars() {
            p.key(c);
            let bytes = p.frame();
            // Each frame is one synchronized update.
            let all = String::from_utf8_lossy(&bytes);
            assert!(all.starts_with("\x1b[?2026h") && all.ends_with("\x1b[?2026l"), "{c}");
            p.agrees();
        }
    }
}

#[test]
fn an_idle_screen_writes_nothing_and_a_token_little() {
    let mut p = Pair::new((120, 40));
    for _ in 0..100 {
        assert_eq!(p.frame(), b"");
    }
    p.app.host(HostMsg::Feed { feed: Feed::Turn { role: "pruning".into(), model: "m".into() } });
    p.frame();
    let feed = Feed::Token { role: "pruning".into(), channel: Channel::Text, text: " knee".into() };
    p.app.host(HostMsg::Feed { feed });
    let bytes = p.frame();
    assert!(!bytes.is_empty() && bytes.len() < 2000, "{} bytes for a token", bytes.len());
    assert_eq!(p.frame(), b"");
    p.agrees();
}
