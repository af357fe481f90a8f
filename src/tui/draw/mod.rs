//! Drawing: reads the app, writes cells, changes nothing.
//!
//! Invariants: nothing is written outside its area at any size; a forecast carries `~` and the forecast colour; after
//! everything is drawn no cell holds a hostile character.

mod agents;
pub(super) mod basis;
mod calibration;
mod card;
mod changed;
pub(super) mod classes;
pub mod control;
pub(super) mod evaluate;
pub(super) mod explain;
pub(super) mod footer;
mod header;
mod heal;
pub mod help;
mod icicle;
pub mod inspect;
pub(super) mod layers;
mod machine;
mod marks;
mod memory;
mod picker;
pub mod plans;
pub(super) mod plot;
pub(super) mod profile;
mod prompt;
mod roofline;
mod spread;
mod text;
mod tokens;
mod vitals;
mod weights;
mod whole;

use super::app::{App, Pane, View};
use super::layout::{Layout, inside, layout};
use super::palette::Palette;
use crate::config::Role;
use crate::config::text::{fit, plain, width};
use ratatui::Frame;
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Widget};

/// What a drawing function works with.
pub(super) struct Canvas<'a> {
    pub app: &'a App,
    pub pal: &'a Palette,
    pub buf: &'a mut Buffer,
    /// Where the terminal's cursor shall stand, if anywhere.
    pub caret: Option<Position>,
    /// Pictures of items, and where they go once all else is drawn.
    pub pictures: Vec<(usize, Rect)>,
}

impl Canvas<'_> {
    /// Writes a line into row `row` of `area`, cut at its edge.
    pub fn line(&mut self, area: Rect, row: u16, line: &Line<'_>) {
        let mut col = 0;
        for span in &line.spans {
            col = self.write(area, row, col, &span.content, line.style.patch(span.style));
        }
    }

    /// Writes text at a column of a row.
    pub fn put(&mut self, area: Rect, row: u16, col: u16, text: &str, style: Style) {
        self.write(area, row, col, text, style);
    }

    /// Writes text at a column of a row; returns the column behind it.
    fn write(&mut self, area: Rect, row: u16, col: u16, text: &str, style: Style) -> u16 {
        let twin = (self.pal.ascii && text.contains('±')).then(|| two_signs(text));
        let text = twin.as_deref().unwrap_or(text);
        if row >= area.height || area.width == 0 {
            return col;
        }
        let line = Rect { y: area.y + row, height: 1, ..area };
        let end = self.write_within(line, col, text, style);
        // Nothing ends at an edge as if it were whole.
        if width(text.trim_end()) > area.width.saturating_sub(col).into() {
            cells(self.buf, Rect { x: area.right() - 1, width: 1, ..line }).for_each(|c| _ = c.set_symbol("…"));
        }
        end
    }

    /// Writes as much of a text as there is room for behind a column of a line; returns the column behind it.
    fn write_within(&mut self, line: Rect, col: u16, text: &str, style: Style) -> u16 {
        if col >= line.width {
            return col;
        }
        let (x, y, room) = (line.x + col, line.y, line.width - col);
        // Most text has one letter a cell, which need not be looked for.
        if plain(text) {
            let place = Rect { x, y, width: room.min(text.len().try_into().unwrap_or(u16::MAX)), height: 1 };
            for (cell, letter) in cells(self.buf, place).zip(text.chars()) {
                cell.set_char(letter).set_style(style);
            }
            return col + place.width;
        }
        self.buf.set_stringn(x, y, text, room.into(), style).0 - line.x
    }

    /// Lays the ground of the cursor under row `row` of `area`.
    pub fn cursor(&mut self, area: Rect, row: u16) {
        let line = Rect { y: area.y + row, height: 1, ..area }.intersection(area);
        self.buf.set_style(line, self.pal.cursor());
    }

    /// The title of a pane, which stands out where the pane has the keys.
    pub fn title(&self, text: &str, focused: bool) -> Span<'static> {
        span(text, if focused { self.pal.bold(Role::Focus) } else { self.pal.fg(Role::Title) })
    }

    /// A bordered pane with its title; returns the inside.
    pub fn pane(&mut self, area: Rect, title: Vec<Span<'static>>, focused: bool) -> Rect {
        if area.width < 2 || area.height < 2 {
            return Rect { width: 0, height: 0, ..area };
        }
        let role = if focused { Role::Focus } else { Role::Border };
        let mut spans = vec![Span::raw(" ")];
        // What does not fit ends in a mark.
        let mut room = usize::from(area.width).saturating_sub(4);
        for mut part in title {
            let wide = part.width();
            if wide > room {
                part.content = fit(&part.content, room).into_owned().into();
                spans.push(part);
                break;
            }
            room -= wide;
            spans.push(part);
        }
        spans.push(Span::raw(" "));
        let edge =
            |borders| Block::new().borders(borders).border_set(self.pal.border()).border_style(self.pal.fg(role));
        // Edge by edge: a block lays its ground under all of its area, which has one already.
        let (last, right) = (area.bottom() - 1, area.right() - 1);
        let top = edge(Borders::TOP | Borders::LEFT | Borders::RIGHT).title(Line::from(spans));
        top.render(Rect { height: 1, ..area }, self.buf);
        edge(Borders::LEFT).render(Rect { width: 1, y: area.y + 1, height: area.height - 2, ..area }, self.buf);
        edge(Borders::RIGHT).render(Rect { x: right, width: 1, y: area.y + 1, height: area.height - 2 }, self.buf);
        edge(Borders::BOTTOM | Borders::LEFT | Borders::RIGHT).render(Rect { y: last, height: 1, ..area }, self.buf);
        inside(area)
    }

    /// A legend in the bottom border of a pane; parts at its end that do not fit are left out whole.
    pub fn legend(&mut self, area: Rect, mut spans: Vec<Span<'static>>) {
        if area.width < 6 || area.height < 2 {
            return;
        }
        while spans.len() > 1 && spans.iter().map(Span::width).sum::<usize>() + 6 > area.width as usize {
            spans.pop();
        }
        let line = Line::from(spans);
        let w = (line.width() as u16 + 2).min(area.width - 4);
        let at = Rect { x: area.x + 2, y: area.y + area.height - 1, width: w, height: 1 };
        self.put(at, 0, 0, " ", Style::new());
        let rest = Rect { x: at.x + 1, width: w.saturating_sub(1), ..at };
        self.line(rest, 0, &line);
        self.put(at, 0, w.saturating_sub(1), " ", Style::new());
    }

    pub fn clear(&mut self, area: Rect) {
        Clear.render(area, self.buf);
        self.buf.set_style(area, self.pal.base());
    }
}

/// `text` with two letters for each `±`, the second in place of a blank that only fills the text up, where there is one.
fn two_signs(text: &str) -> String {
    let mut out = text.replace('±', "+-");
    for _ in text.matches('±') {
        if out.starts_with("  ") {
            out.remove(0);
        } else if out.ends_with("  ") {
            out.pop();
        }
    }
    out
}

pub(super) fn span(text: impl Into<String>, style: Style) -> Span<'static> {
    Span::styled(text.into(), style)
}

pub(super) use text::event_lines;

/// Draws the whole screen.
pub fn draw(app: &App, frame: &mut Frame<'_>) {
    let area = frame.area();
    let caret = draw_on(app, area, frame.buffer_mut());
    if let Some(p) = caret.filter(|p| area.contains(*p)) {
        frame.set_cursor_position(p);
    }
}

/// Draws on a buffer; returns where the terminal's cursor shall stand.
pub fn draw_on(app: &App, area: Rect, buf: &mut Buffer) -> Option<Position> {
    let banners = app.banners();
    let l: Layout = layout(area, app.view, banners.len() as u16, app.shares);
    let ground = app.palette.base();
    cells(buf, area).for_each(|cell| _ = cell.set_style(ground));
    let mut c = Canvas { app, pal: &app.palette, buf, caret: None, pictures: Vec::new() };
    header::draw(&mut c, &l, &banners);
    match app.view {
        View::Review => {
            layers::draw(&mut c, l.list);
            if !l.tabs || app.pane == Pane::Agents {
                agents::draw(&mut c, l.agents, l.tabs);
            }
            if !l.tabs || app.pane != Pane::Agents {
                card::draw(&mut c, l.card, l.tabs);
                machine::draw(&mut c, l.card);
            }
            if !l.tabs {
                plot::pane(&mut c, l.plot);
            }
        }
        View::Evaluate => evaluate::draw(&mut c, l.body),
        View::Agents => agents::transcripts(&mut c, l.body),
        View::Timeline => text::timeline(&mut c, l.body),
        View::Report => text::report(&mut c, l.body),
        View::Control => control::draw(&mut c, l.body),
        View::Plans => plans::draw(&mut c, l.body),
        View::Inspect => inspect::draw(&mut c, l.body),
        View::Profile => profile::draw(&mut c, l.body),
    }
    footer::status(&mut c, l.status);
    footer::keys(&mut c, l.footer);
    prompt::draw(&mut c, &l);
    let (caret, pictures) = (c.caret, c.pictures);
    neutralise(buf, area, app.palette.ascii);
    // A protocol of pictures steers the terminal by what stands in cells. A dialog lies over all else.
    for (item, at) in pictures.into_iter().filter(|_| app.modal.is_none()) {
        app.looking.pictures.draw(item, at.intersection(area), (&app.palette, app.means), buf);
    }
    caret
}

/// Lines of the view that scrolls as text.
pub fn text_lines(app: &App) -> usize {
    match app.view {
        View::Report => report_rows(app).len(),
        View::Evaluate => evaluate::lines(app),
        View::Control => control::lines(app, inside(app.layout().body).width as usize).len(),
        View::Inspect => inspect::lines(app, inside(app.layout().body).width as usize).len(),
        View::Profile => profile::lines(app, inside(app.layout().body).width as usize).len(),
        View::Review | View::Agents | View::Plans | View::Timeline => 0,
    }
}

/// The report as it is scrolled.
pub fn report_rows(app: &App) -> Vec<String> {
    text::report_lines(app, app.layout().body)
}

/// The cells of `area`, row by row.
fn cells(buf: &mut Buffer, area: Rect) -> impl Iterator<Item = &mut Cell> {
    let (whole, area) = (buf.area, area.intersection(buf.area));
    let [above, left] = [area.y - whole.y, area.x - whole.x].map(usize::from);
    let rows = buf.content.chunks_exact_mut(whole.width.max(1).into()).skip(above).take(area.height.into());
    rows.flat_map(move |row| row.iter_mut().skip(left).take(area.width.into()))
}

/// The last line of defence: no cell may steer the terminal, and none may need what it cannot show.
fn neutralise(buf: &mut Buffer, area: Rect, ascii: bool) {
    for cell in cells(buf, area).filter(|cell| !plain(cell.symbol())) {
        if ascii && !cell.symbol().is_ascii() {
            let twin = match cell.symbol() {
                "−" | "–" | "—" => "-",
                "±" => "+",
                "…" => "~",
                "·" | "│" => "|",
                "≤" => "<",
                "≥" => ">",
                "→" => ">",
                "’" | "‘" => "'",
                "“" | "”" => "\"",
                _ => "?",
            };
            // A wide letter also owns the next cell, which is blank.
            cell.set_symbol(twin);
        } else if cell.symbol().chars().any(crate::plain::hostile) {
            cell.set_symbol("\u{FFFD}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_of_two_letters_moves_no_column() {
        assert_eq!(two_signs("   ±0.0"), "  +-0.0");
        assert_eq!(two_signs("~−0.20 ms ±0.095   "), "~−0.20 ms +-0.095  ");
        assert_eq!(two_signs("  ±0.0 [±0.1]   "), " +-0.0 [+-0.1]  ", "one before, one behind");
        assert_eq!(two_signs("±1"), "+-1");
    }

    #[test]
    fn no_cell_keeps_what_could_steer_or_reorder() {
        let area = Rect::new(0, 0, 8, 1);
        let mut buf = Buffer::empty(area);
        for (x, symbol) in ["a", "\x1b", "\u{202e}", "\u{9b}", "e\u{61c}", "模", "", "\u{200d}"].iter().enumerate() {
            buf[(x as u16, 0)].set_symbol(symbol);
        }
        neutralise(&mut buf, area, false);
        let left: String = (0..8).map(|x| buf[(x, 0)].symbol()).collect();
        assert!(!left.chars().any(crate::plain::hostile) && left.starts_with('a') && left.contains('模'), "{left:?}");
    }
}
