//! Dialogs over the screen.

use super::{Canvas, explain, help, span};
use crate::config::Role;
use crate::config::text::{fit, width};
use crate::tui::layout::Layout;
use crate::tui::modal::{Ask, Modal};
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use tui_textarea::TextArea;

pub(super) fn draw(c: &mut Canvas<'_>, l: &Layout) {
    let Some(modal) = &c.app.modal else { return };
    match modal {
        Modal::Precisions(picker) => super::picker::draw(c, l.body, picker),
        Modal::Help { scroll } => help::draw(c, l.body, *scroll),
        Modal::Explain(e) => explain::draw(c, l.body, e),
        Modal::Stop => {
            let area = popup(l.body, 60, 4);
            let inner = boxed(c, area, "sure?");
            c.put(inner, 0, 1, "end the session's host? everything decided is kept", c.pal.fg(Role::Fg));
            c.put(inner, 1, 1, "y yes   any other key no", c.pal.fg(Role::Dim));
        }
        Modal::Prompt(p) if matches!(p.ask, Ask::Search(_) | Ask::Seek) => {
            let (field, used) = bottom(c, l, "/", &p.area);
            c.put(field, 0, used + 3, &p.hint, c.pal.fg(Role::Dim));
        }
        Modal::Prompt(p) => {
            let area = popup(l.body, 72, 5);
            let inner = boxed(c, area, &p.title);
            c.put(inner, 0, 1, c.pal.glyph("❯", ">"), c.pal.bold(Role::Accent));
            let field = Rect { x: inner.x + 3.min(inner.width), width: inner.width.saturating_sub(4), ..inner };
            text(c, field, &p.area);
            c.put(inner, 1, 1, &fit(&p.hint, inner.width.saturating_sub(2) as usize), c.pal.fg(Role::Dim));
            c.put(inner, 2, 1, "enter sends, esc leaves", c.pal.fg(Role::Dim));
        }
        Modal::Command(line) => {
            bottom(c, l, ":", &line.area);
            let at = bottom_line(l);
            let n = line.offers.len().min(12).min(l.body.height.saturating_sub(2) as usize);
            if n == 0 {
                return;
            }
            let w = 76.min(at.width);
            let h = n as u16 + 2;
            let area = Rect { x: at.x, y: at.y.saturating_sub(h), width: w, height: h };
            let inner = boxed(c, area, "commands");
            let first = line.chosen.map_or(0, |i| (i + 1).saturating_sub(n));
            for (row, (i, (offer, about))) in line.offers.iter().enumerate().skip(first).take(n).enumerate() {
                let chosen = line.chosen == Some(i);
                let style = if chosen { c.pal.bold(Role::Fg).patch(c.pal.cursor()) } else { c.pal.fg(Role::Fg) };
                if chosen {
                    c.cursor(inner, row as u16);
                }
                c.put(inner, row as u16, 1, offer, style);
                let at = 18.max(width(offer) as u16 + 2);
                let ground = if chosen { c.pal.cursor() } else { c.pal.base() };
                c.put(inner, row as u16, at, about, c.pal.fg(Role::Dim).patch(ground));
            }
        }
    }
}

/// A box in the middle of `body`, as large as wanted or as fits.
pub(super) fn popup(body: Rect, w: u16, h: u16) -> Rect {
    let (w, h) = (w.min(body.width), h.min(body.height));
    Rect { x: body.x + (body.width - w) / 2, y: body.y + (body.height - h) / 3, width: w, height: h }
}

fn bottom_line(l: &Layout) -> Rect {
    if l.status.height > 0 { l.status } else { l.footer }
}

/// A line at the foot of the screen that begins with `sign`: its field, and how much of that is used.
fn bottom(c: &mut Canvas<'_>, l: &Layout, sign: &str, area: &TextArea<'_>) -> (Rect, u16) {
    let at = bottom_line(l);
    c.clear(at);
    c.put(at, 0, 1, sign, c.pal.bold(Role::Accent));
    let field = Rect { x: at.x + 2.min(at.width), width: at.width.saturating_sub(2), ..at };
    (field, text(c, field, area))
}

pub(super) fn boxed(c: &mut Canvas<'_>, area: Rect, title: &str) -> Rect {
    let area = area.intersection(*c.buf.area());
    c.clear(area);
    let title = span(fit(title, area.width.saturating_sub(6) as usize).into_owned(), c.pal.bold(Role::Focus));
    c.pane(area, vec![title], true)
}

/// A one-line field: the text scrolled so that the cursor is seen, and the terminal's cursor on it.
fn text(c: &mut Canvas<'_>, field: Rect, area: &TextArea<'_>) -> u16 {
    if field.width == 0 || field.height == 0 {
        return 0;
    }
    let all = crate::config::text::clean(&area.lines().join(" ")).into_owned();
    let col = area.cursor().1;
    let before: String = all.chars().take(col).collect();
    let room = field.width.saturating_sub(1) as usize;
    let (shown, at) = if width(&before) > room {
        (crate::config::text::fit_end(&before, room).into_owned(), room)
    } else {
        (all.clone(), width(&before))
    };
    // What typing replaces stands out.
    let picked = if area.is_selecting() { c.pal.cursor() } else { Style::new() };
    c.line(field, 0, &Line::from(span(shown, c.pal.fg(Role::Fg).patch(picked))));
    c.caret = Some(Position { x: field.x + at as u16, y: field.y });
    width(&all) as u16
}
