//! Page of view 9: how far samples of the latency scatter, row by row beside the whole model, as far as a profile keeps it.
//!
//! Invariant: what is kept of samples are the least, the median and the 95th and 99th percentile; nothing between them is drawn as if it were known.

use super::profile::{nothing, say, title};
use super::{Canvas, span};
use crate::config::Role;
use crate::config::text::{clean, fit_end, left, right};
use crate::profile::{LatencyStats, LayerRow, Profile};
use crate::tui::app::App;
use crate::tui::num::{mark, ms};
use crate::tui::palette::Palette;
use crate::tui::profile::{by_spread, ends};
use crate::words::counted;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;

/// Columns of figures, and how far a strip may go at most, in medians.
const FIGURES: usize = 32;
const FARTHEST: f64 = 2.5;
/// The narrowest strip that tells anything.
const STRIP: usize = 12;

/// The scale that all strips share, in medians.
struct Scale {
    low: f64,
    high: f64,
    columns: usize,
}

impl Scale {
    fn of(profile: &Profile, columns: usize) -> Scale {
        let all = profile.rows.iter().map(|r| &r.latency).chain([&profile.whole]).filter_map(ends);
        let (mut low, mut tops) = (1.0f64, Vec::new());
        for (least, p95, p99) in all {
            low = low.min(least);
            tops.push(p95.max(p99.unwrap_or(0.0)));
        }
        tops.sort_by(f64::total_cmp);
        // Where four of five strips end: the others say that they go on.
        let high = tops.get(tops.len() * 4 / 5).copied().unwrap_or(1.0).max(1.1);
        Scale { low: (low - 0.02).max(0.0), high: (high + 0.02).min(FARTHEST), columns }
    }

    fn at(&self, part: f64) -> usize {
        let x = ((part - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        (x * self.columns.saturating_sub(1) as f64).round() as usize
    }

    /// From the least sample over the median to the 95th percentile, on to the 99th where there is one.
    fn strip(&self, pal: &Palette, s: &LatencyStats) -> String {
        let mut cells = vec![" "; self.columns];
        let Some((least, p95, p99)) = ends(s) else { return cells.concat() };
        let mid = self.at(1.0);
        let (from, to) = (self.at(least).min(mid), self.at(p95).max(mid));
        cells[from..=to].fill(pal.glyph("─", "-"));
        cells[from] = pal.glyph("├", "[");
        cells[to] = pal.glyph("┤", "]");
        if let Some(p99) = p99 {
            let end = self.at(p99);
            for cell in cells.iter_mut().take(end).skip(to + 1) {
                *cell = pal.glyph("┄", ".");
            }
            if end > to {
                cells[end] = pal.glyph("╎", ":");
            }
        }
        cells[mid] = pal.glyph("●", "o");
        if p95.max(p99.unwrap_or(0.0)) > self.high {
            cells[self.columns - 1] = pal.glyph("›", ">");
        }
        cells.concat()
    }

    /// Round parts of the median where they lie.
    fn axis(&self) -> String {
        let mut cells: Vec<char> = vec![' '; self.columns];
        let span = self.high - self.low;
        let step =
            [0.05, 0.1, 0.2, 0.5, 1.0].into_iter().find(|s| span / s * 7.0 <= self.columns as f64).unwrap_or(1.0);
        let mut part = (self.low / step).ceil() * step;
        while part <= self.high {
            let text = format!("{part:.2}x");
            let at = self.at(part).saturating_sub(2).min(self.columns.saturating_sub(text.len()));
            for (cell, c) in cells.iter_mut().skip(at).zip(text.chars()) {
                *cell = c;
            }
            part += step;
        }
        cells.into_iter().collect()
    }
}

/// Columns of names and of strips.
fn columns_of(profile: &Profile, columns: usize) -> (usize, usize) {
    let longest = profile.rows.iter().map(|r| crate::config::text::width(&r.name)).max().unwrap_or(0);
    let room = columns.saturating_sub(FIGURES + 2);
    let name = longest.clamp(11, 40).min(room.saturating_sub(STRIP).max(8));
    (name, room.saturating_sub(name).max(1))
}

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect) {
    let title = title(c, area.width, "how far samples scatter, the widest first");
    let inner = c.pane(area, title, true);
    let (app, columns) = (c.app, usize::from(inner.width));
    let Some(profile) = app.state.profile() else {
        let mut out = Vec::new();
        say(&mut out, &nothing(app), columns, c.pal.fg(Role::Dim));
        return out.iter().enumerate().for_each(|(row, line)| c.line(inner, row as u16, line));
    };
    let (head, rows) = (head(app, profile, columns), rows(app, profile, columns));
    let told = told(app, profile, columns);
    let foot = (told.len() as u16).min(inner.height.saturating_sub(head.len() as u16 + 4));
    let room = usize::from(inner.height.saturating_sub(head.len() as u16 + foot));
    let at = by_spread(profile).iter().position(|r| Some(&r.name) == app.profiled.at.as_ref()).unwrap_or(0);
    // The row that is marked stays in sight.
    let from = at.saturating_sub(room.saturating_sub(1) / 2).min(rows.len().saturating_sub(room));
    for (row, line) in head.iter().chain(rows.iter().skip(from).take(room)).enumerate() {
        c.line(inner, u16::try_from(row).unwrap_or(u16::MAX), line);
    }
    let rest = Rect { y: inner.y + inner.height - foot, height: foot, ..inner };
    for (row, line) in told.iter().enumerate() {
        c.line(rest, u16::try_from(row).unwrap_or(u16::MAX), line);
    }
}

/// Everything, for copying.
pub fn lines(app: &App, columns: usize) -> Vec<Line<'static>> {
    let Some(profile) = app.state.profile() else {
        let mut out = Vec::new();
        say(&mut out, &nothing(app), columns, app.palette.fg(Role::Dim));
        return out;
    };
    let mut out = head(app, profile, columns);
    out.extend(rows(app, profile, columns));
    out.extend(told(app, profile, columns));
    out
}

fn line(name: &str, cols: (usize, usize), strip: &str, figures: [String; 4], style: Style) -> Line<'static> {
    let [p50, spread, p95, n] = figures;
    let text = format!(
        " {} {strip} {}{}{}{}",
        left(&fit_end(name, cols.0), cols.0),
        right(&p50, 9),
        right(&spread, 7),
        right(&p95, 8),
        right(&n, 6)
    );
    Line::from(span(text, style))
}

fn head(app: &App, profile: &Profile, columns: usize) -> Vec<Line<'static>> {
    let pal = &app.palette;
    let cols = columns_of(profile, columns);
    let scale = Scale::of(profile, cols.1);
    let titles = ["p50 ms", pal.glyph("±", "+-"), "p95/p50", "n"].map(str::to_owned);
    let whole = &profile.whole;
    let figures = figures(whole, whole.p50, profile.doubt.is_some());
    vec![
        line("row", cols, &scale.axis(), titles, pal.fg(Role::Dim)),
        line("whole model", cols, &scale.strip(pal, whole), figures, pal.bold(Role::Fg)),
    ]
}

fn figures(s: &LatencyStats, shown: f64, doubtful: bool) -> [String; 4] {
    let tail = if s.p50 > 0.0 { format!("{:.2}", s.p95 / s.p50) } else { String::new() };
    [format!("{}{}", ms(shown), mark(doubtful)), format!("{:.1}%", 100.0 * s.spread()), tail, s.n.to_string()]
}

fn rows(app: &App, profile: &Profile, columns: usize) -> Vec<Line<'static>> {
    let pal = &app.palette;
    let cols = columns_of(profile, columns);
    let scale = Scale::of(profile, cols.1);
    let row = |r: &&LayerRow| {
        let style = match (Some(&r.name) == app.profiled.at.as_ref(), r.doubt.is_some()) {
            (true, _) => pal.bold(Role::Accent),
            (_, true) => pal.fg(Role::Warn),
            _ => pal.fg(Role::Fg),
        };
        let figures = figures(&r.latency, profile.ms(r), r.doubt.is_some());
        line(&clean(&r.name), cols, &scale.strip(pal, &r.latency), figures, style)
    };
    by_spread(profile).iter().map(row).collect()
}

/// The marked row in words, and what a strip is.
fn told(app: &App, profile: &Profile, columns: usize) -> Vec<Line<'static>> {
    let pal = &app.palette;
    let mut out = Vec::new();
    if let Some(row) = profile.rows.iter().find(|r| Some(&r.name) == app.profiled.at.as_ref()) {
        let (s, scale) = (&row.latency, profile.scale());
        let p99 = match s.p99() {
            Some(p99) => format!("p99 {}", ms(p99 * scale)),
            None => format!("no p99 of fewer than {} samples", LatencyStats::TAIL),
        };
        // Earlier versions kept no quartiles.
        let middle = match s.middle {
            m if m > 0.0 => format!("; from quartile to quartile {:.1}% of the median", 100.0 * m),
            _ => String::new(),
        };
        let text = format!(
            "{}: {}, least {}, p50 {}, mean {}, p95 {}, {p99} ms{middle}",
            clean(&row.name),
            counted(s.n, "sample"),
            ms(s.min * scale),
            ms(s.p50 * scale),
            ms(s.mean * scale),
            ms(s.p95 * scale)
        );
        say(&mut out, &text, columns, pal.bold(Role::Accent));
        if let Some(why) = profile.doubt_of(row) {
            say(&mut out, &format!("? {why}"), columns, pal.fg(Role::Warn));
        }
    }
    let (least, p50, p95, p99) = (pal.glyph("├", "["), pal.glyph("●", "o"), pal.glyph("┤", "]"), pal.glyph("╎", ":"));
    let text = format!(
        "{least} least  {p50} p50  {p95} p95  {p99} p99, in medians of the row; single samples are not kept. {} half the 95 % interval of the median, at least what two measurements of the same differ by",
        pal.glyph("±", "+-")
    );
    say(&mut out, &text, columns, pal.fg(Role::Dim));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_lie_on_one_scale_and_say_where_it_ends() {
        let pal = Palette { ascii: true, ..Palette::default() };
        let of = |n, min, p95, p99| LatencyStats { n, p50: 2.0, p95, p99, min, mean: 2.0, ..LatencyStats::default() };
        let scale = Scale { low: 0.5, high: 1.5, columns: 21 };
        assert_eq!(scale.strip(&pal, &of(200, 1.8, 2.2, Some(2.6))), "        [-o-]...:    ");
        // Too few samples for a 99th percentile, and what lies beyond the scale.
        assert_eq!(scale.strip(&pal, &of(20, 1.8, 9.0, Some(9.9))), "        [-o--------->");
        assert_eq!(scale.strip(&pal, &LatencyStats::default()), " ".repeat(21));
        assert_eq!(scale.axis(), "0.50x   1.00x   1.50x");
    }
}
