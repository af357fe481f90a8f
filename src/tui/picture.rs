//! A screen as an SVG picture: cells to rectangles and text, for the README and for reports.
//!
//! Not a terminal emulator: it draws a ratatui [`Buffer`] as it stands.

use super::app::{App, Effect};
use super::palette::ANSI;
use super::update::UserInput;
use crate::config::{Key, Rgb, Role, Settings, from_256};
use crate::session::{Command, Feed, HostMsg, PROTOCOL, State};
use crossterm::event::{KeyEvent, KeyModifiers};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};
use std::fmt::Write;

const CELL_W: f64 = 8.4;
const CELL_H: f64 = 18.0;

/// What a host would tell when it is asked; `None` where that cannot be told here.
pub type Told<'a> = &'a mut dyn FnMut(&State, &Command) -> Option<Feed>;

/// The screen that a terminal of `size` cells would show of `state` after `keys`, as SVG. What it asks of its host `told` answers.
pub fn session(state: State, settings: Settings, size: (u16, u16), keys: &[Key], told: Told<'_>) -> String {
    let mut app = still(state, settings, size);
    for k in keys {
        let mut modifiers = KeyModifiers::NONE;
        modifiers.set(KeyModifiers::CONTROL, k.ctrl);
        modifiers.set(KeyModifiers::ALT, k.alt);
        app.input(UserInput::Key(KeyEvent::new(k.code, modifiers)));
        app.settle();
        for effect in app.wanted() {
            let Effect::Send(command) = &effect else { continue };
            if let Some(feed) = told(&app.state, command) {
                app.host(HostMsg::Feed { feed });
                app.settle();
            }
        }
    }
    screen(&mut app, size.0, size.1)
}

/// A screen that shows `state`, which no host changes.
pub(super) fn still(state: State, settings: Settings, size: (u16, u16)) -> App {
    let mut app = App::new(settings, size);
    app.host(HostMsg::Welcome { protocol: PROTOCOL, state: Box::new(state), you: 1, pen: Some(1) });
    app.settle();
    app
}

/// Draws `app` at `width` x `height` cells and returns the picture.
pub fn screen(app: &mut App, width: u16, height: u16) -> String {
    app.size = (width, height);
    app.settle();
    let area = Rect::new(0, 0, width, height);
    let mut buf = Buffer::empty(area);
    super::draw::draw_on(app, area, &mut buf);
    let theme = &app.palette.theme;
    svg(&buf, theme.color(Role::Fg), theme.color(Role::Bg))
}

/// The buffer as SVG; `fg` and `bg` stand for the terminal's default colours.
pub fn svg(buf: &Buffer, fg: Rgb, bg: Rgb) -> String {
    let area = *buf.area();
    let (w, h) = (area.width as f64 * CELL_W + 16.0, area.height as f64 * CELL_H + 16.0);
    let mut o = String::new();
    let _ = write!(
        o,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w:.0} {h:.0}\" width=\"{w:.0}\" height=\"{h:.0}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{}\"/>\n\
         <g font-family=\"'JetBrains Mono','DejaVu Sans Mono',Menlo,Consolas,monospace\" font-size=\"14\">\n",
        bg.hex()
    );
    for y in area.top()..area.bottom() {
        let mut x = area.left();
        while x < area.right() {
            let Some(cell) = buf.cell((x, y)) else { break };
            let (cell_fg, cell_bg) = colours(cell.fg, cell.bg, cell.modifier, fg, bg);
            // One run of cells with the same look.
            let start = x;
            let mut text = String::new();
            while x < area.right() {
                let Some(c) = buf.cell((x, y)) else { break };
                if colours(c.fg, c.bg, c.modifier, fg, bg) != (cell_fg, cell_bg) || c.modifier != cell.modifier {
                    break;
                }
                text.push_str(c.symbol());
                x += crate::config::text::width(c.symbol()).max(1) as u16;
            }
            let cells = x - start;
            let (px, py) = (8.0 + (start - area.left()) as f64 * CELL_W, 8.0 + (y - area.top()) as f64 * CELL_H);
            if cell_bg != bg {
                let wide = cells as f64 * CELL_W + 0.3;
                let _ = writeln!(
                    o,
                    "<rect x=\"{px:.1}\" y=\"{py:.1}\" width=\"{wide:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
                    CELL_H + 0.3,
                    cell_bg.hex()
                );
            }
            if text.trim().is_empty() {
                continue;
            }
            let mut style = String::new();
            for (modifier, attribute) in [
                (Modifier::BOLD, " font-weight=\"bold\""),
                (Modifier::ITALIC, " font-style=\"italic\""),
                (Modifier::UNDERLINED, " text-decoration=\"underline\""),
                (Modifier::CROSSED_OUT, " text-decoration=\"line-through\""),
                (Modifier::DIM, " opacity=\"0.65\""),
            ] {
                if cell.modifier.contains(modifier) {
                    style.push_str(attribute);
                }
            }
            let _ = writeln!(
                o,
                "<text x=\"{px:.1}\" y=\"{:.1}\" textLength=\"{:.1}\" lengthAdjust=\"spacingAndGlyphs\" fill=\"{}\"{style}>{}</text>",
                py + CELL_H * 0.74,
                cells as f64 * CELL_W,
                cell_fg.hex(),
                escape(&text)
            );
        }
    }
    o.push_str("</g>\n</svg>\n");
    o
}

fn colours(fg: Color, bg: Color, m: Modifier, default_fg: Rgb, default_bg: Rgb) -> (Rgb, Rgb) {
    let (f, b) = (rgb(fg, default_fg), rgb(bg, default_bg));
    if m.contains(Modifier::REVERSED) { (b, f) } else { (f, b) }
}

fn rgb(c: Color, default: Rgb) -> Rgb {
    match c {
        Color::Reset => default,
        Color::Rgb(r, g, b) => Rgb(r, g, b),
        Color::Indexed(i) => from_256(i),
        named => ANSI.iter().position(|a| *a == named).map_or(default, |i| from_256(i as u8)),
    }
}

/// Blanks do not break: browsers make one of several, and none at an end, whatever `xml:space` says.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace(' ', "\u{a0}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::style::Style;

    #[test]
    fn cells_become_escaped_text_and_coloured_rectangles() {
        let mut buf = Buffer::empty(Rect::new(0, 0, 6, 1));
        buf.set_string(0, 0, "a<b", Style::new().fg(Color::Rgb(1, 2, 3)));
        buf.set_string(3, 0, "模", Style::new().bg(Color::Indexed(196)));
        let s = svg(&buf, Rgb(255, 255, 255), Rgb(0, 0, 0));
        assert!(s.contains(">a&lt;b</text>") && s.contains("#010203"), "{s}");
        assert!(s.contains("fill=\"#ff0000\"") && s.contains('模'), "{s}");
        assert_eq!(s.matches("<svg").count(), 1);
        let mut buf = Buffer::empty(Rect::new(0, 0, 9, 1));
        buf.set_string(0, 0, "  a   b  ", Style::new());
        let s = svg(&buf, Rgb(255, 255, 255), Rgb(0, 0, 0));
        assert!(s.contains(">\u{a0}\u{a0}a\u{a0}\u{a0}\u{a0}b\u{a0}\u{a0}</text>"), "as wide as its cells: {s}");
    }
}
