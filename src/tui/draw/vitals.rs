//! Page of view 9: the machine over the last minutes, as sparklines of what the strip under the decision shows at a moment.
//!
//! Not here: the ring that they are of (`tui/vitals`). Invariants: a column without a reading is blank; a line's scale ends at what there is in all, where
//! that is known.

use super::profile::{say, title};
use super::{Canvas, span};
use crate::config::text::{left, right};
use crate::config::{Act, Role};
use crate::tui::app::App;
use crate::tui::num::{bytes, duration};
use crate::tui::vitals::{Moment, OTHERS, Series, Unit};
use crate::words::counted_as;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// Columns of a line's name and of its figures.
const NAME: usize = 11;
const FIGURE: usize = 10;
/// The narrowest line of sparks that tells anything.
const SPARKS: usize = 12;

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect) {
    let title = title(c, area.width, "the machine while jobs ran");
    let inner = c.pane(area, title, true);
    for (row, line) in lines(c.app, usize::from(inner.width)).iter().skip(c.app.scroll).enumerate() {
        c.line(inner, u16::try_from(row).unwrap_or(u16::MAX), line);
    }
}

/// Which column each moment falls into, the newest in the last, and how many seconds a column is.
fn places(app: &App, columns: usize) -> (Vec<usize>, i64) {
    let Some((first, last)) = app.profiled.vitals.span() else { return (Vec::new(), 1) };
    let seconds = (last - first).max(0) / 1000 + 1;
    let each = (seconds + columns as i64 - 1) / columns.max(1) as i64;
    let back = |m: &Moment| usize::try_from((last - m.at_ms).max(0) / 1000 / each.max(1)).unwrap_or(usize::MAX);
    (app.profiled.vitals.moments().map(|m| columns.saturating_sub(1).saturating_sub(back(m))).collect(), each.max(1))
}

fn figure(unit: Unit, v: f64, degrees: &str) -> String {
    match unit {
        Unit::Percent => format!("{v:.0} %"),
        Unit::Bytes => bytes(v as u64),
        Unit::Megahertz => format!("{v:.0} MHz"),
        Unit::Watts => format!("{v:.0} W"),
        Unit::Celsius => format!("{v:.0}{degrees}"),
    }
}

/// All lines.
pub fn lines(app: &App, columns: usize) -> Vec<Line<'static>> {
    let pal = &app.palette;
    let (fg, dim) = (pal.fg(Role::Fg), pal.fg(Role::Dim));
    let mut out = Vec::new();
    let vitals = &app.profiled.vitals;
    let Some((_, last)) = vitals.span() else {
        let text = format!(
            "nothing was read yet: the host reads its machine once a second while a job runs, such as {} (measure every layer)",
            app.label(Act::Profile)
        );
        say(&mut out, &text, columns, dim);
        return out;
    };
    // The newest, least, mean and most of each where there is room for them.
    let shown = columns.saturating_sub(NAME + SPARKS + 2).div_euclid(FIGURE).min(4);
    let wide = columns.saturating_sub(NAME + 2 + shown * FIGURE).max(1);
    let (at, each) = places(app, wide);
    let heads: String = ["newest", "least", "mean", "most"].iter().take(shown).map(|h| right(h, FIGURE)).collect();
    let axis = format!("{} before", duration((each * wide as i64) as f64));
    out.push(Line::from(span(format!(" {}{}{heads}", left("", NAME), left(&axis, wide)), dim)));
    for s in vitals.series(true) {
        out.push(series(app, &s, &at, wide, shown));
    }
    let mut marks = vec![None; wide];
    for (m, col) in vitals.moments().zip(&at).filter(|(m, _)| m.timing) {
        if let Some(cell) = marks.get_mut(*col) {
            *cell = Some(cell.unwrap_or(false) || m.disturbed());
        }
    }
    if marks.iter().any(Option::is_some) {
        let mut spans = vec![span(format!(" {}", left("measuring", NAME)), dim)];
        spans.extend(marks.iter().map(|m| match m {
            Some(true) => span(pal.glyph("▲", "^"), pal.bold(Role::Bad)),
            Some(false) => span(pal.glyph("·", "."), pal.fg(Role::Good)),
            None => Span::raw(" "),
        }));
        out.push(Line::from(spans));
    }
    out.push(Line::default());
    let timed = vitals.moments().filter(|m| m.timing).count();
    let disturbed = vitals.moments().filter(|m| m.disturbed()).count();
    if timed > 0 {
        let text = format!(
            "{} others had {OTHERS} % of the processors or more in {} of {} while latency was measured; a figure that this disturbed has a ?",
            pal.glyph("▲", "^"),
            disturbed,
            counted_as(timed, "reading", "readings")
        );
        say(&mut out, &text, columns, if disturbed > 0 { pal.fg(Role::Warn) } else { dim });
    }
    let ago = ((app.now_ms - last).max(0) / 1000) as f64;
    let text = format!(
        "{}, the newest {} ago; a column is the mean of {} s, blank where no job ran and nothing was read",
        counted_as(vitals.moments().len(), "reading", "readings"),
        duration(ago),
        each
    );
    say(&mut out, &text, columns, fg);
    let text = "others: what other programs took of all processors; ram: of the container where one is bounded; clock: the fastest processor's; lines end at what there is in all, else at the most that was seen";
    say(&mut out, text, columns, dim);
    out
}

fn series(app: &App, s: &Series, at: &[usize], wide: usize, shown: usize) -> Line<'static> {
    let pal = &app.palette;
    let degrees = pal.glyph(" °C", " C");
    let mut sums = vec![(0.0, 0usize); wide];
    for (v, col) in s.values.iter().zip(at) {
        if let (Some(v), Some(cell)) = (v, sums.get_mut(*col)) {
            *cell = (cell.0 + v, cell.1 + 1);
        }
    }
    let mut spans = vec![span(format!(" {}", left(&s.name, NAME)), pal.fg(Role::Fg))];
    for (sum, n) in sums {
        if n == 0 {
            spans.push(Span::raw(" "));
            continue;
        }
        let v = sum / n as f64;
        let busy = s.name == "others" && v >= f64::from(OTHERS);
        let role = if busy { Role::Warn } else { Role::Bar };
        spans.push(span(pal.spark(v / s.top).to_string(), pal.fg(role)));
    }
    let newest = s.values.last().copied().flatten();
    let range = s.range();
    let figures = [newest, range.map(|r| r.0), range.map(|r| r.1), range.map(|r| r.2)];
    for v in figures.into_iter().take(shown) {
        let text = v.map_or_else(|| pal.none().to_owned(), |v| figure(s.unit, v, degrees));
        spans.push(span(right(&text, FIGURE), pal.fg(Role::Dim)));
    }
    Line::from(spans)
}
