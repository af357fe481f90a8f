//! The precision picker over the screen.

use super::inspect::Formats;
use super::prompt::{boxed, popup};
use super::{Canvas, span};
use crate::config::Role;
use crate::config::text::{clean, fit, fit_end, wrap};
use crate::tui::inspect::Format;
use crate::tui::picker::Picker;
use crate::words::counted;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// Lines below the list: what is under the cursor, in words.
const TOLD: u16 = 3;

pub(super) fn draw(c: &mut Canvas<'_>, body: Rect, p: &Picker) {
    let area = popup(body, 100, p.formats.len() as u16 + TOLD + 3);
    let mut title = match p.layers.as_slice() {
        [one] => format!("precision of {}", fit_end(&clean(one), 40)),
        all => format!("precision of {}", counted(all.len(), "row")),
    };
    // Ladders, and forecasts of a precision alone, are of the original.
    if p.layers.iter().any(|l| c.app.is_cut(l)) {
        title.push_str(", at the original's width");
    }
    let inner = boxed(c, area, &title);
    if inner.width < 20 || inner.height < 3 {
        return;
    }
    let (app, pal) = (c.app, c.pal);
    let columns = Formats::within(app, inner.width as usize - 2);
    c.line(inner, 0, &Line::from(span(format!("  {}", columns.head()), pal.fg(Role::Dim))));
    let told = TOLD.min(inner.height - 2);
    let list = Rect { y: inner.y + 1, height: inner.height - 1 - told, ..inner };
    let first = (p.at + 1).saturating_sub(list.height as usize);
    for (row, (i, f)) in p.formats.iter().enumerate().skip(first).take(list.height as usize).enumerate() {
        let row = row as u16;
        if i == p.at {
            c.cursor(list, row);
            c.put(list, row, 0, pal.glyph("❯", ">"), pal.bold(Role::Focus).patch(pal.cursor()));
        }
        let style = match (f.takes, f.shown) {
            (0, _) => Some(pal.fg(Role::Faint)),
            (_, true) => Some(pal.bold(Role::Accent)),
            _ => None,
        };
        let at = Rect { x: list.x + 2, width: list.width - 2, ..list };
        c.line(at, row, &Line::from(columns.row(app, f, style)));
    }
    let words = p.formats.get(p.at).map(|f| about(f, p.layers.len())).unwrap_or_default();
    let below = Rect { y: list.y + list.height, height: told, ..inner };
    let text = wrap(&clean(&words), inner.width as usize - 2);
    for (row, line) in text.iter().take(told as usize - 1).enumerate() {
        c.put(below, row as u16, 1, line, pal.fg(Role::Fg));
    }
    let keys =
        format!("j k moves, enter takes it, esc leaves{}? noisy, ~ forecast, {} not measured", pal.dot(), pal.none());
    c.put(below, told - 1, 1, &fit(&keys, inner.width as usize - 2), pal.fg(Role::Dim));
}

/// What is stored and computed, by what kernel, and who does not take it and why.
fn about(f: &Format, rows: usize) -> String {
    let kernel = match f.kernel {
        Some(true) => "; a kernel multiplies what is stored",
        Some(false) => "; no kernel here: unpacked to f32, as fast as that",
        None => "; no ladder says whether this device has a kernel of its own for it",
    };
    let takes = match (f.takes, f.why.as_deref(), rows) {
        (_, None, _) => String::new(),
        (_, Some(why), 1) => format!(". Not here: {why}"),
        (n, Some(why), of) => format!(". {n} of {of} rows take it: {why}"),
    };
    format!("{}: {}{kernel}{takes}", f.precision.label(), f.precision.describe())
}
