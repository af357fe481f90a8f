//! Marks over text that is drawn already: the words that are looked for, and names of layers that a key goes to.

use super::{Canvas, cells};
use crate::config::Role;
use crate::tui::seek::names;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

/// The letters of a row of `area`, one a cell; what follows a wide letter is a blank.
fn row(c: &mut Canvas<'_>, area: Rect, y: u16) -> String {
    let line = Rect { y, height: 1, ..area };
    cells(c.buf, line).map(|cell| cell.symbol().chars().next().unwrap_or(' ')).collect()
}

fn mark(c: &mut Canvas<'_>, area: Rect, y: u16, at: usize, width: usize, style: Style) {
    let place = Rect { x: area.x + at as u16, y, width: width as u16, height: 1 };
    c.buf.set_style(place.intersection(area), style);
}

/// Where the words that are looked for are seen in `area`.
pub(super) fn sought(c: &mut Canvas<'_>, area: Rect) {
    let lower = |s: &str| s.chars().map(|c| c.to_lowercase().next().unwrap_or(c)).collect::<Vec<char>>();
    let words = lower(&c.app.sought.words);
    if words.is_empty() || !c.app.on_text() {
        return;
    }
    let style = c.pal.bold(Role::Accent).add_modifier(Modifier::REVERSED);
    for y in area.top()..area.bottom() {
        let letters = lower(&row(c, area, y));
        let starts = (0..letters.len()).filter(|i| letters[*i..].starts_with(&words)).collect::<Vec<_>>();
        for at in starts {
            mark(c, area, y, at, words.len(), style);
        }
    }
}

/// Names of layers and blocks in `area`.
pub(super) fn rows(c: &mut Canvas<'_>, area: Rect) {
    for y in area.top()..area.bottom() {
        let text = row(c, area, y);
        let known: Vec<(usize, usize)> = names(&text)
            .filter(|(_, name)| c.app.row_called(name).is_some())
            .map(|(at, name)| (text[..at].chars().count(), name.chars().count()))
            .collect();
        for (at, width) in known {
            mark(c, area, y, at, width, Style::new().add_modifier(Modifier::UNDERLINED));
        }
    }
}
