//! Page of view 9: the activations that live at each step of a run, in the order in which steps run, and who holds the most.
//!
//! Not here: what is alive when (`plan/liveness`). Invariants: what a plan would change carries `~`; where the profile states another peak than
//! the one that is drawn, that is said, with why.

use super::profile::{nothing, say, title};
use super::{Canvas, span};
use crate::config::Role;
use crate::config::text::{clean, fit, fit_end, left, right, width};
use crate::tui::app::App;
use crate::tui::num::{bytes, percent};
use crate::tui::profile::Memory;
use crate::words::counted;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// Columns of the axis' figures.
const AXIS: u16 = 10;
/// Lines of a plot, and values of a step that are told, at most.
const MOST_LINES: u16 = 18;
const MOST_VALUES: usize = 8;

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect) {
    let title = title(c, area.width, "activations alive at each step, in the order in which steps run");
    let inner = c.pane(area, title, true);
    let (app, columns) = (c.app, usize::from(inner.width));
    let mut top = 0;
    if let Some(Ok(memory)) = &app.profiled.original
        && inner.height >= 8
        && inner.width >= 24
    {
        top = (inner.height * 9 / 20).min(MOST_LINES);
        plot(c, Rect { height: top, ..inner }, memory);
    }
    let rest = Rect { y: inner.y + top, height: inner.height - top, ..inner };
    for (row, line) in lines(app, columns).iter().skip(app.scroll).enumerate() {
        c.line(rest, u16::try_from(row).unwrap_or(u16::MAX), line);
    }
}

/// Bytes of the plan by the original's steps: nothing where a step goes.
fn planned(original: &Memory, plan: &Memory) -> Vec<u64> {
    let mut steps = plan.live.steps.iter().zip(&plan.course).peekable();
    let at = |name: &String| steps.next_if(|(step, _)| *step == name).map_or(0, |(_, bytes)| *bytes);
    original.live.steps.iter().map(at).collect()
}

fn plot(c: &mut Canvas<'_>, area: Rect, memory: &Memory) {
    let (app, pal) = (c.app, c.pal);
    let Some((peak, most)) = memory.live.peak() else { return };
    let plan = app.profiled.plan.as_ref().and_then(|p| p.as_ref().ok()).map(|p| planned(memory, p));
    let top = plan.iter().flatten().copied().max().unwrap_or(0).max(most).max(1) as f64;
    let plot = Rect { x: area.x + AXIS, width: area.width - AXIS, height: area.height - 1, ..area };
    let steps = memory.course.len();
    let column = |step: usize| (step * usize::from(plot.width) / steps.max(1)) as u16;
    // As many steps as share a column are as high as the highest of them.
    let highest = |of: &[u64], col: u16| {
        let from = usize::from(col) * steps / usize::from(plot.width);
        let to = (usize::from(col) + 1) * steps / usize::from(plot.width);
        of[from..to.max(from + 1).min(steps)].iter().copied().max().unwrap_or(0) as f64 / top
    };
    let at = app.profiled.at.as_ref().and_then(|name| memory.live.steps.iter().position(|s| s == name));
    for row in 0..plot.height {
        c.put(plot, row, 0, pal.glyph("│", "|"), pal.fg(Role::Faint));
    }
    for (row, part) in [(0, 1.0), (plot.height / 2, 1.0 - f64::from(plot.height / 2) / f64::from(plot.height.max(1)))] {
        c.put(area, row, 0, &right(&bytes((top * part) as u64), usize::from(AXIS) - 1), pal.fg(Role::Dim));
    }
    let rows = f64::from(plot.height);
    for col in 1..plot.width {
        let here = at.is_some_and(|at| (column(at)..column(at + 1).max(column(at) + 1)).contains(&col));
        let (whole, cut) = (highest(&memory.course, col), plan.as_ref().map(|p| highest(p, col)));
        for row in 0..plot.height {
            // Cells that are filled from below: how much of this one is.
            let fill = |part: f64| (part * rows - f64::from(plot.height - 1 - row)).clamp(0.0, 1.0);
            let (role, glyph) = match cut {
                Some(cut) if fill(cut) >= 0.5 => (Role::Forecast, pal.glyph("▓", "#").to_owned()),
                Some(_) if fill(whole) >= 0.5 => (Role::Bar, pal.glyph("░", ".").to_owned()),
                None if fill(whole) > 0.06 => (Role::Bar, pal.spark(fill(whole)).to_string()),
                _ => continue,
            };
            c.put(plot, row, col, &glyph, if here { pal.bold(Role::Accent) } else { pal.fg(role) });
        }
    }
    let foot = area.height - 1;
    let mut mark = |step: usize, glyph: &str, text: String, role: Role| {
        let col = column(step).max(1).min(plot.width.saturating_sub(1));
        let room = plot.width.saturating_sub(col + 2);
        c.put(area, foot, AXIS + col, glyph, pal.bold(role));
        let wide = width(&text) as u16;
        let from = if wide <= room { AXIS + col + 2 } else { (AXIS + col).saturating_sub(wide + 1) };
        c.put(area, foot, from, &text, pal.fg(role));
    };
    mark(peak, pal.glyph("▲", "^"), format!("peak {}", bytes(most)), Role::Warn);
    let apart = |at: &usize| column(*at).abs_diff(column(peak)) > 24;
    if let Some(at) = at.filter(apart) {
        mark(at, pal.glyph("●", "o"), bytes(memory.course[at]), Role::Accent);
    }
}

/// What is alive at the peak and at the cursor, by whom it is held, and what it is a figure of.
pub fn lines(app: &App, columns: usize) -> Vec<Line<'static>> {
    let pal = &app.palette;
    let (fg, dim) = (pal.fg(Role::Fg), pal.fg(Role::Dim));
    let mut out = Vec::new();
    let (memory, profile) = match (&app.profiled.original, app.state.profile_of(0)) {
        (Some(Ok(memory)), Some(profile)) => (memory, profile),
        (Some(Err(why)), _) => {
            say(&mut out, &format!("what lives when is not known: {}", clean(why)), columns, pal.fg(Role::Warn));
            return out;
        }
        _ => {
            say(&mut out, &nothing(app), columns, dim);
            return out;
        }
    };
    let Some((peak, most)) = memory.live.peak() else { return out };
    let name = |step: usize| clean(&memory.live.steps[step]).into_owned();
    let item = app.state.metric().items(profile.batch);
    say(
        &mut out,
        &format!("most: {} while {} runs, a batch of {item}, 4 bytes an element", bytes(most), name(peak)),
        columns,
        pal.bold(Role::Warn),
    );
    match &app.profiled.plan {
        Some(Ok(plan)) => {
            let (at, bytes_then) = plan.live.peak().unwrap_or_default();
            let change = 1.0 - bytes_then as f64 / most.max(1) as f64;
            let step = plan.live.steps.get(at).map(|s| clean(s).into_owned()).unwrap_or_default();
            let less = if bytes_then == most { "as much".to_owned() } else { format!("{} less", percent(change)) };
            let text = format!("{}: ~{} while {step} runs, {less}", app.plan_words(), bytes(bytes_then));
            say(&mut out, &text, columns, pal.fg(Role::Forecast));
        }
        Some(Err(why)) => {
            say(&mut out, &format!("{}: not known, {}", app.plan_words(), clean(why)), columns, pal.fg(Role::Warn))
        }
        None => {}
    }
    holders(app, memory, peak, columns, &mut out);
    let at = app.profiled.at.as_ref().and_then(|name| memory.live.steps.iter().position(|s| s == name));
    if let Some(at) = at.filter(|at| *at != peak) {
        let part = memory.course[at] as f64 / most.max(1) as f64;
        let text = format!("{} while {} runs, {} of the most", bytes(memory.course[at]), name(at), percent(part));
        say(&mut out, &text, columns, pal.bold(Role::Accent));
        holders(app, memory, at, columns, &mut out);
    }
    say(&mut out, &stated(app, most), columns, if profile.peak_activation_bytes == most { dim } else { fg });
    let cache = if profile.cache_bytes > 0 || app.state.card.as_ref().is_some_and(|c| c.graph.is_language_model()) {
        ", nor the keys and values of earlier tokens"
    } else {
        ""
    };
    let more = format!(
        "not in it: {} of weights, what kernels need meanwhile{cache}. A CPU runs a share of the batch a thread, in an arena with gaps where values do not fit together",
        bytes(profile.weight_bytes)
    );
    say(&mut out, &more, columns, dim);
    out
}

/// How the peak that is drawn goes with the one that the profile states.
fn stated(app: &App, most: u64) -> String {
    let Some(profile) = app.state.profile_of(0) else { return String::new() };
    let told = bytes(profile.peak_activation_bytes);
    match (profile.peak_activation_bytes == most, &profile.gpu) {
        (true, _) => format!("the profile states the same: {told} of values at the peak"),
        (false, Some(_)) => format!(
            "the profile states {told}: a GPU's memory pool at its most beyond weights and input, with what kernels need meanwhile"
        ),
        (false, None) => {
            format!("the profile states {told}: it counted the steps as they ran, of which rows here may join some")
        }
    }
}

fn holders(app: &App, memory: &Memory, step: usize, columns: usize, out: &mut Vec<Line<'static>>) {
    let pal = &app.palette;
    let all = memory.live.holders(step);
    let total = memory.course[step].max(1) as f64;
    let name = columns.saturating_sub(60).clamp(14, 44).min(columns.saturating_sub(24));
    let head = format!("   {}{}{}  alive", left("held", name), right("size", 11), right("share", 7));
    out.push(Line::from(span(fit(&head, columns).into_owned(), pal.fg(Role::Dim))));
    for v in all.iter().take(MOST_VALUES) {
        let read = memory.live.steps.get(v.last).map(|s| clean(s).into_owned()).unwrap_or_default();
        let until = match (v.last == step, v.last + 1 == memory.live.steps.len()) {
            (_, true) if v.first == v.last => "the network's answer".to_owned(),
            (true, _) if v.first == step => "written here".to_owned(),
            (true, _) => "read here for the last time".to_owned(),
            (false, _) if v.first == step => format!("written here, read until {read}"),
            (false, _) => format!("until {read}"),
        };
        let label = if v.input { format!("{} (input)", clean(&v.name)) } else { clean(&v.name).into_owned() };
        let text = format!(
            "   {}{}{}  {until}",
            left(&fit_end(&label, name), name),
            right(&bytes(v.bytes), 11),
            right(&percent(v.bytes as f64 / total), 7)
        );
        out.push(Line::from(span(fit(&text, columns).into_owned(), pal.fg(Role::Fg))));
    }
    if all.len() > MOST_VALUES {
        let rest: u64 = all.iter().skip(MOST_VALUES).map(|v| v.bytes).sum();
        let text = format!("   {}, {}", counted(all.len() - MOST_VALUES, "smaller value"), bytes(rest));
        out.push(Line::from(span(fit(&text, columns).into_owned(), pal.fg(Role::Dim))));
    }
}
