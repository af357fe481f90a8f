//! How a healing goes, or went: what held-back images say of the weights, look by look, with the best marked.
//!
//! Not here: what it is judged by on evaluation data (`evaluate`). Invariant: every point was measured, on images that nothing was fitted on.

use super::{Canvas, span};
use crate::config::Role;
use crate::config::text::{left, right};
use crate::train::{Course, Look};
use crate::tui::app::App;
use crate::tui::num;
use crate::words::counted;
use ratatui::layout::Rect;

/// Columns of the axis.
const AXIS: usize = 9;

/// What goes on, or what the newest round's was; with the step and the loss where it goes on.
pub(super) fn course(app: &App) -> Option<(Option<(u32, f64)>, &Course)> {
    match &app.healing {
        Some((step, loss, course)) => Some((Some((*step, *loss)), course)),
        None => app.state.round_at(app.state.round).and_then(|r| r.course.as_ref()).map(|c| (None, c)),
    }
}

pub(super) fn pane(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let Some((live, course)) = course(app) else { return };
    if area.height < 5 || area.width < 24 {
        return;
    }
    let (dim, fg) = (pal.fg(Role::Dim), pal.fg(Role::Fg));
    let now = live.map_or_else(|| "healed".to_owned(), |_| "healing".to_owned());
    let steps = match live {
        Some((step, _)) => format!(" step {step} of {}", course.healing.steps),
        None => format!(", kept is step {} of {}", course.best.step, course.healing.steps),
    };
    let inner = c.pane(area, vec![span(now, pal.fg(Role::Title)), span(steps, dim)], false);
    let (Some(first), width) = (course.looks.first(), inner.width as usize) else { return };
    let best = &course.best;
    let change = format!(
        "held back  {} {} {} {}  classes {:.1} {} {:.1} %",
        course.healing.objective.loss(),
        num::scaled(first.loss, 1.0),
        pal.glyph("→", "->"),
        num::scaled(best.loss, 1.0),
        100.0 * first.agreement,
        pal.glyph("→", "->"),
        100.0 * best.agreement
    );
    c.put(inner, 0, 1, &change, fg);
    let images = counted(course.held_back as usize, "image");
    let said = match live {
        Some((_, loss)) => format!(
            "{images} judge; training loss {loss:.3}; {} ends it and keeps the best",
            app.label(crate::config::Act::Interrupt)
        ),
        None if best.step == 0 => format!("{images} judged: nothing got better, the model is as it was compressed"),
        None => format!("{images} judged; kept is step {}", best.step),
    };
    c.put(inner, 1, 1, &said, dim);
    let rows = (inner.height as usize).saturating_sub(2);
    if rows < 2 || width <= AXIS + 4 {
        return;
    }
    let (low, high) = range(&course.looks);
    for (row, value) in [(0, high), (rows - 1, low)] {
        c.put(inner, 2 + row as u16, 0, &right(&num::scaled(value, 1.0), AXIS - 1), dim);
    }
    for (column, row, look) in places(course, width - AXIS, rows) {
        let role = if look.step == best.step { Role::Good } else { Role::Accent };
        let glyph = if look.step == best.step { pal.glyph("◆", "*") } else { pal.glyph("•", "o") };
        c.put(inner, 2 + row as u16, (AXIS + column) as u16, &left(glyph, 1), pal.fg(role));
    }
}

fn range(looks: &[Look]) -> (f64, f64) {
    let bounds = looks.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), l| (a.min(l.loss), b.max(l.loss)));
    if bounds.1 > bounds.0 { bounds } else { (bounds.0, bounds.0 + 1e-9) }
}

/// Column and row of every look; later ones are drawn over earlier ones, the best over all.
fn places(course: &Course, columns: usize, rows: usize) -> Vec<(usize, usize, Look)> {
    let (low, high) = range(&course.looks);
    let steps = f64::from(course.healing.steps.max(1));
    let place = |look: &Look| {
        let x = (f64::from(look.step) / steps * (columns - 1) as f64).round() as usize;
        let y = ((high - look.loss) / (high - low) * (rows - 1) as f64).round() as usize;
        (x.min(columns - 1), y.min(rows - 1), *look)
    };
    course.looks.iter().chain([&course.best]).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::Healing;

    #[test]
    fn looks_fall_from_left_to_right_and_the_best_is_drawn_last() {
        let look = |step, loss| Look { step, loss, agreement: 0.5 };
        let looks = vec![look(0, 2.0), look(50, 1.0), look(100, 1.5)];
        let course = Course { healing: Healing::usual(100, true, 0), images: 1, held_back: 1, best: looks[1], looks };
        let at: Vec<_> = places(&course, 11, 3).into_iter().map(|(x, y, _)| (x, y)).collect();
        assert_eq!(at, [(0, 0), (5, 2), (10, 1), (5, 2)]);
        let alone = Course { looks: vec![look(0, 1.0)], ..course };
        assert_eq!(places(&alone, 11, 3)[0].0, 0);
    }
}
