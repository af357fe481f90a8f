//! Page of view 9: where the time goes, as parts within parts: a level of names a line, as wide as what its rows take.
//!
//! Not here: how names nest (`tui/icicle`). Invariant: what is narrower than a column is folded into `…` with its like, never left out: widths add up.

use super::Canvas;
use super::profile::{nothing, say, title};
use crate::config::text::{clean, fit, width};
use crate::config::{Act, Role};
use crate::profile::Profile;
use crate::tui::app::App;
use crate::tui::icicle::{Part, parts};
use crate::tui::num::{mark, ms, percent};
use crate::words::counted;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::Line;

/// Lines of a level at most.
const TALLEST: u16 = 5;

/// What stands in one place of a level: a part, or several that are too narrow to tell apart.
struct Cell<'a> {
    parts: Vec<&'a Part>,
    from: u16,
    to: u16,
}

/// The cells of a level in so many columns.
fn cells<'a>(level: &[&'a Part], columns: u16) -> Vec<Cell<'a>> {
    let place = |x: f64| (x * f64::from(columns)).round() as u16;
    let narrow = |p: &Part| (p.to - p.from) * f64::from(columns) < 1.0;
    let mut out: Vec<Cell<'a>> = Vec::new();
    for &p in level {
        match out.last_mut() {
            Some(last) if narrow(p) && last.parts.iter().all(|q| narrow(q) && q.parent == p.parent) => {
                last.parts.push(p);
                last.to = place(p.to);
            }
            _ => out.push(Cell { parts: vec![p], from: place(p.from), to: place(p.to) }),
        }
    }
    out
}

/// The part that is the cursor's row.
fn marked(app: &App, profile: &Profile, all: &[Part]) -> Option<usize> {
    let name = app.profiled.at.as_ref()?;
    all.iter().position(|p| p.row.is_some_and(|r| profile.rows.get(r).is_some_and(|r| r.name == *name)))
}

/// The part and all that hold it.
fn path(all: &[Part], at: Option<usize>) -> Vec<usize> {
    let mut out = Vec::new();
    let mut next = at;
    while let Some(i) = next {
        out.push(i);
        next = all.get(i).map(|p| p.parent).filter(|parent| *parent != i);
    }
    out
}

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect) {
    let title = title(c, area.width, "where the time goes, by names");
    let inner = c.pane(area, title, true);
    let (app, pal) = (c.app, c.pal);
    let below = lines(app, usize::from(inner.width));
    let Some(profile) = app.state.profile() else {
        return below.iter().enumerate().for_each(|(row, line)| c.line(inner, row as u16, line));
    };
    let all = parts(profile);
    let levels = all.iter().map(|p| p.depth + 1).max().unwrap_or(0) as u16;
    let text = (below.len() as u16).min(inner.height.saturating_sub(levels + 2).max(1));
    let room = inner.height.saturating_sub(text + 1);
    let tall = (room / levels.max(1)).clamp(1, TALLEST);
    let on = path(&all, marked(app, profile, &all));
    let most = |leaves: bool, depth: usize| {
        let of = all.iter().filter(|p| p.row.is_some() == leaves && (leaves || p.depth == depth));
        of.map(|p| p.to - p.from).fold(0.0, f64::max)
    };
    let leaf = most(true, 0);
    let mut used = 0;
    for depth in 0..usize::from(levels) {
        let level: Vec<&Part> = all.iter().filter(|p| p.depth == depth).collect();
        let scale = most(false, depth);
        let top = depth as u16 * tall;
        if top + tall > room {
            break;
        }
        used = top + tall;
        for cell in cells(&level, inner.width) {
            let wide = cell.to.saturating_sub(cell.from);
            let (Some(first), true) = (cell.parts.first(), wide > 0) else { continue };
            let here = cell.parts.iter().any(|p| on.iter().any(|i| std::ptr::eq(*p, &all[*i])));
            let share: f64 = cell.parts.iter().map(|p| p.to - p.from).sum();
            let of = if first.row.is_some() { leaf } else { scale };
            // Several in one cell are as hot as the hottest of them, not as all together.
            let hottest = cell.parts.iter().map(|p| p.to - p.from).fold(0.0, f64::max);
            let heat = if of > 0.0 && depth > 0 { hottest / of } else { 0.0 };
            let label = match (cell.parts.len(), depth) {
                (1, 0) => format!("whole {}{} ms", ms(profile.whole.p50), mark(profile.doubt.is_some())),
                (1, _) => clean(&first.label).into_owned(),
                _ => pal.glyph("…", "~").to_owned(),
            };
            let mut style = if depth == 0 { pal.fg(Role::Fg) } else { pal.heat(heat) };
            if here {
                style = style.add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
            }
            let inside = usize::from(wide.saturating_sub(1));
            let labelled = match inside {
                0 => String::new(),
                _ => {
                    let both = format!("{label} {}", percent(share));
                    let fits = width(&both) <= inside;
                    fit(if fits && depth > 0 { &both } else { &label }, inside).into_owned()
                }
            };
            for line in 0..tall {
                let ground = if pal.wants_density() && depth > 0 { pal.density(heat) } else { ' ' };
                let blank: String = std::iter::repeat_n(ground, usize::from(wide)).collect();
                c.put(inner, top + line, cell.from, &blank, style);
                let edge =
                    if cell.parts.len() > 1 && wide == 1 { pal.glyph("…", "~") } else { pal.glyph("▏", "|") };
                c.put(inner, top + line, cell.from, edge, style);
            }
            // On a ground of glyphs a word ends with a blank.
            let apart = if pal.wants_density() && width(&labelled) < inside { " " } else { "" };
            c.put(inner, top + tall / 2, cell.from + 1, &format!("{labelled}{apart}"), style);
        }
    }
    if let Some(p) = on.first().and_then(|i| all.get(*i)) {
        let col = ((p.from + p.to) / 2.0 * f64::from(inner.width)) as u16;
        c.put(inner, used, col.min(inner.width.saturating_sub(1)), pal.glyph("▲", "^"), pal.bold(Role::Accent));
    }
    let rest = Rect { y: inner.y + used + 1, height: inner.height.saturating_sub(used + 1), ..inner };
    for (row, line) in below.iter().enumerate() {
        c.line(rest, u16::try_from(row).unwrap_or(u16::MAX), line);
    }
}

/// The row that is marked, and what widths are.
pub fn lines(app: &App, columns: usize) -> Vec<Line<'static>> {
    let pal = &app.palette;
    let mut out = Vec::new();
    let Some(profile) = app.state.profile() else {
        say(&mut out, &nothing(app), columns, pal.fg(Role::Dim));
        return out;
    };
    let all = parts(profile);
    match marked(app, profile, &all).and_then(|i| profile.rows.get(all[i].row?)) {
        Some(row) => {
            let doubt = profile.doubt_of(row);
            let text = format!(
                "{}  {}{} ms, {} of all rows  {}, {}",
                clean(&row.name),
                ms(profile.ms(row)),
                mark(doubt.is_some()),
                percent(row.share),
                clean(&row.kind),
                clean(&row.kernel)
            );
            say(&mut out, &text, columns, pal.bold(Role::Accent));
            if let Some(why) = doubt {
                say(&mut out, &format!("? {why}"), columns, pal.fg(Role::Warn));
            }
        }
        None => {
            let (down, up) = (app.label(Act::Down), app.label(Act::Up));
            say(&mut out, &format!("{down} and {up} mark a row"), columns, pal.fg(Role::Dim));
        }
    }
    let narrow = |p: &&Part| p.row.is_some() && (p.to - p.from) * columns as f64 + 1e-9 < 1.0;
    let folded = all.iter().filter(narrow).count();
    let more = if folded > 0 {
        format!(
            "; {} narrower than a column {} folded into {}",
            counted(folded, "row"),
            if folded == 1 { "is" } else { "are" },
            pal.glyph("…", "~")
        )
    } else {
        String::new()
    };
    let text = format!(
        "widths are medians as observed, parts of the sum of {}, left to right as they first run{more}",
        counted(profile.rows.len(), "row")
    );
    say(&mut out, &text, columns, pal.fg(Role::Dim));
    out
}
