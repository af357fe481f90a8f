//! The screen through its public face: pictures of every view, what colours mean, what keys do, and that no size or
//! key sequence breaks it.

mod arrange;
mod bytes;
mod calibration;
mod columns;
mod control;
mod evaluate;
mod finds;
#[path = "../common/screen.rs"]
mod fixture;
mod header;
mod inspect;
mod keys;
mod latency;
mod looks;
mod many;
mod markdown;
mod matrix;
mod mouse;
mod picker;
mod plan;
mod plans;
mod profile;
mod report;
mod robust;
mod timeline;
mod tokens;
mod weights;
mod work;

use paring::tui::{App, UserInput, draw_on};
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;

/// Draws at the app's size.
pub fn drawn(app: &mut App) -> Buffer {
    app.settle();
    let area = Rect::new(0, 0, app.size.0, app.size.1);
    let mut buf = Buffer::empty(area);
    draw_on(app, area, &mut buf);
    buf
}

/// The screen as text, trailing blanks cut.
pub fn text(buf: &Buffer) -> String {
    let area = *buf.area();
    let mut out = String::new();
    for y in 0..area.height {
        let mut line = String::new();
        let mut x = 0;
        while x < area.width {
            let s = buf[(x, y)].symbol();
            line.push_str(s);
            x += paring::config::text::width(s).max(1) as u16;
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Types keys: single characters, or names such as `<enter>`.
pub fn press(app: &mut App, keys: &str) -> Vec<paring::tui::Effect> {
    let mut effects = Vec::new();
    let mut rest = keys;
    while let Some(c) = rest.chars().next() {
        let code = match rest.strip_prefix('<').and_then(|r| r.split_once('>')) {
            Some((name, after)) if !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase()) => {
                rest = after;
                match name {
                    "enter" => KeyCode::Enter,
                    "esc" => KeyCode::Esc,
                    "tab" => KeyCode::Tab,
                    "space" => KeyCode::Char(' '),
                    "down" => KeyCode::Down,
                    "up" => KeyCode::Up,
                    "pgdn" => KeyCode::PageDown,
                    "pgup" => KeyCode::PageUp,
                    "bs" => KeyCode::Backspace,
                    other => panic!("no key {other}"),
                }
            }
            _ => {
                rest = &rest[c.len_utf8()..];
                KeyCode::Char(c)
            }
        };
        effects.extend(app.input(UserInput::Key(KeyEvent::new(code, KeyModifiers::NONE))));
        app.settle();
    }
    effects
}
