//! The foot of the layer list: scales of heat, what figures are of, and where the cursor is.

use crate::config::{Act, Role};
use crate::profile::Workload;
use crate::tui::draw::{Canvas, span};
use crate::tui::num;
use crate::tui::table::Table;
use ratatui::layout::Rect;
use ratatui::text::Span;

pub(super) fn legend(c: &mut Canvas<'_>, area: Rect, p50: f64, t: &Table) {
    let (app, pal) = (c.app, c.pal);
    let (dim, dot) = (pal.fg(Role::Dim), pal.dot());
    let mut spans = vec![span("p50 0 ", dim)];
    for i in 0..=4 {
        let x = i as f64 / 4.0;
        let glyph = if pal.wants_density() { pal.density(x).to_string() } else { " ".into() };
        spans.push(span(format!("{glyph} "), pal.heat(x)));
    }
    let most = if p50 > 0.0 { format!(" {} ms", num::ms(p50)) } else { " not measured".to_owned() };
    spans.push(span(most, dim));
    if t.live_runs > 0 {
        let text = format!("{dot}live {}", crate::words::counted(t.live_runs, "run"));
        spans.push(span(text, pal.fg(Role::Accent)));
    }
    let noisy = t.layers.iter().filter(|l| l.fig.doubtful && !l.gone).count();
    if noisy > 0 && t.live_runs == 0 {
        let text = format!("{dot}? {noisy} noisy, {} measures again", app.label(Act::Measure));
        spans.push(span(text, pal.fg(Role::Warn)));
    }
    if let Some((ms, batch, doubtful, replayed)) = t.whole.filter(|_| t.live_runs == 0) {
        let mark = num::mark(doubtful);
        let how = if replayed { ", replayed" } else { "" };
        let text = match t.workload {
            Workload::Pass => format!("{dot}whole {}{mark} ms, batch {batch}{how}", num::ms(ms)),
            Workload::Decode { .. } => {
                format!("{dot}a token {}{mark} ms, {:.1}/s", num::ms(ms), 1e3 / ms.max(1e-9))
            }
        };
        spans.push(span(text, if doubtful { pal.fg(Role::Warn) } else { dim }));
    }
    if app.list.order_held {
        spans.push(span(format!("{dot}order held"), pal.fg(Role::Warn)));
    }
    if t.stale {
        let round = t.of_round.unwrap_or(0);
        spans.push(span(format!(" {} measured on round {round}", pal.glyph("†", "'")), pal.fg(Role::Warn)));
    }
    if t.live_runs == 0 {
        spans.push(span(format!("{dot}{}", app.palette.theme.heat_name), dim));
    }
    foot(c, area, spans);
}

/// The legend at the list's foot, and which row of how many the cursor is on.
pub(super) fn foot(c: &mut Canvas<'_>, area: Rect, spans: Vec<Span<'static>>) {
    let at = Rect { width: area.width.saturating_sub(9), ..area };
    c.legend(at, spans);
    let n = c.app.list.shown.len();
    if n > 0 && area.width > 60 {
        let text = format!(" {}/{n} ", c.app.list.cursor + 1);
        let x = area.width.saturating_sub(text.len() as u16 + 2);
        c.put(area, area.height.saturating_sub(1), x, &text, c.pal.fg(Role::Dim));
    }
}
