//! First page of view 9: the roofline of the profile (Williams et al., 2009): what each row does a second against what it does for each byte that it moves, under
//! the ceilings that were measured on this device.
//!
//! Not here: where the figures come from (`profile`). Invariant: a row that has no multiplications, or whose bytes are not known, is counted and not
//! drawn.

use super::profile::{nothing, title};
use super::{Canvas, span};
use crate::config::Role;
use crate::config::text::{clean, fit, left, right, width};
use crate::profile::{Bound, Ceilings, Profile};
use crate::tui::app::App;
use crate::words::counted;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// A row's place.
#[derive(Debug, Clone, PartialEq)]
pub struct Dot {
    pub name: String,
    /// FLOP a byte moved.
    pub intensity: f64,
    /// Billions of FLOP a second.
    pub rate: f64,
    /// Part of all rows' time.
    pub share: f64,
    pub int8: bool,
    pub bound: Bound,
    pub efficiency: f64,
    pub doubtful: bool,
}

/// Rows that compute, the dearest first, and how many do not.
pub fn dots(profile: &Profile) -> (Vec<Dot>, usize) {
    let dot = |r: &crate::profile::LayerRow| {
        let flops = 2.0 * (r.macs.conv_linear + r.macs.attention) as f64 * profile.batch as f64;
        let rate = flops / r.latency.p50 / 1e6;
        let sound = rate.is_finite() && rate > 0.0 && r.intensity.is_finite() && r.intensity > 0.0;
        sound.then(|| Dot {
            name: r.name.clone(),
            intensity: r.intensity,
            rate,
            share: r.share,
            int8: r.kernel.contains("u8i8") || r.kernel.contains("i8i8") || r.precision.label().starts_with("int8"),
            bound: r.bound,
            efficiency: r.efficiency,
            doubtful: r.doubt.is_some(),
        })
    };
    let mut found: Vec<Dot> = profile.rows.iter().filter_map(dot).collect();
    found.sort_by(|a, b| b.share.total_cmp(&a.share));
    let rest = profile.rows.len() - found.len();
    (found, rest)
}

/// What is seen, in words.
const ABOUT: &str = "FLOP a second against FLOP a byte moved, a dot a row";
/// Columns of the list beside the plot, and the least that the plot has.
const LIST: u16 = 62;
const LEAST: u16 = 52;

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let Some(profile) = app.state.profile() else {
        let title = title(c, area.width, ABOUT);
        let inner = c.pane(area, title, true);
        return c.put(inner, 1, 1, &nothing(app), pal.fg(Role::Dim));
    };
    let (found, _) = dots(profile);
    let beside = if area.width >= LEAST + LIST { LIST } else { 0 };
    let below = if beside == 0 && area.height >= 18 { 6 } else { 0 };
    let plot = Rect { width: area.width - beside, height: area.height - below, ..area };
    let title = title(c, plot.width, ABOUT);
    let inner = c.pane(plot, title, true);
    scatter(c, inner, &found, &profile.ceilings);
    c.legend(
        plot,
        vec![
            span(format!("{} this row  ", pal.glyph("●", "o")), pal.bold(Role::Accent)),
            span(format!("{} dearest", pal.glyph("●", "o")), pal.bold(Role::Warn)),
            span(format!("  {} int8", pal.glyph("◆", "*")), pal.fg(Role::Fg)),
        ],
    );
    let rest = match (beside, below) {
        (0, 0) => return,
        (0, _) => Rect { y: area.y + plot.height, height: below, ..area },
        _ => Rect { x: area.x + plot.width, width: beside, ..area },
    };
    let inner = c.pane(rest, vec![span("rows by time", pal.fg(Role::Title))], false);
    for (row, line) in lines(app, inner.width as usize).iter().skip(app.scroll).enumerate() {
        c.line(inner, u16::try_from(row).unwrap_or(u16::MAX), line);
    }
}

/// The list: what each row reaches, and of which ceiling that is how much.
pub fn lines(app: &App, columns: usize) -> Vec<Line<'static>> {
    let pal = &app.palette;
    let Some(profile) = app.state.profile() else {
        return vec![Line::from(span(format!(" {}", nothing(app)), pal.fg(Role::Dim)))];
    };
    let (found, rest) = dots(profile);
    let name = columns.saturating_sub(37).clamp(10, 48);
    let head =
        format!(" {} {}{}{}  bound", left("row", name), right("FLOP/B", 8), right("GFLOP/s", 9), right("of it", 7));
    let mut out = vec![Line::from(span(fit(&head, columns), pal.fg(Role::Dim)))];
    let current = app.pointed().map(|l| l.name.clone());
    for d in &found {
        let bound = match d.bound {
            Bound::Memory => "memory",
            Bound::Compute => "compute",
            Bound::Unknown => "not known",
        };
        let part = if d.efficiency > 0.0 { format!("{:.0} %", 100.0 * d.efficiency) } else { pal.none().to_owned() };
        let mark = if d.doubtful { "?" } else { "" };
        let text = format!(
            " {} {}{}{}  {bound}",
            left(&fit(&clean(&d.name), name), name),
            right(&format!("{:.1}", d.intensity), 8),
            right(&format!("{:.1}{mark}", d.rate), 9),
            right(&part, 7)
        );
        let style = if current.as_ref() == Some(&d.name) { pal.bold(Role::Accent) } else { pal.fg(Role::Fg) };
        out.push(Line::from(span(fit(&text, columns), style)));
    }
    let ceilings = &profile.ceilings;
    let told = |v: f64, unit: &str| if v > 0.0 { format!("{v:.0} {unit}") } else { "not measured".to_owned() };
    let mut say = |text: String| {
        for part in crate::config::text::wrap(&text, columns.saturating_sub(2).max(10)) {
            out.push(Line::from(span(format!(" {part}"), pal.fg(Role::Dim))));
        }
    };
    say(format!(
        "ceilings as measured on this device: f32 {}, int8 {}, memory {}",
        told(ceilings.f32_gflops, "GFLOP/s"),
        told(ceilings.int8_gops, "Gop/s"),
        told(ceilings.bandwidth_gbs, "GB/s")
    ));
    if found.iter().any(|d| d.efficiency > 1.05 && d.bound == Bound::Compute) {
        say("a row above its flat shows that the ceiling was measured while the machine was busier: measure again when it is quiet".to_owned());
    }
    say(format!(
        "GFLOP/s are of a row's own median with observers; its ms in the list are {:.2} times that, so that rows add up to the whole",
        profile.scale()
    ));
    say("bytes are weights, inputs and outputs; what a cache holds need not be moved, so that a row may lie above the slope".to_owned());
    if rest > 0 {
        say(format!("{} without multiplications", counted(rest, "more row")));
    }
    out
}

/// A scale of powers, from the least to the greatest value that is to be seen.
struct Scale {
    low: f64,
    high: f64,
    cells: u16,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64>, cells: u16) -> Scale {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for v in values.filter(|v| *v > 0.0 && v.is_finite()) {
            (low, high) = (low.min(v.log10()), high.max(v.log10()));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let pad = ((high - low) * 0.06).max(0.15);
        Scale { low: low - pad, high: high + pad, cells }
    }

    /// The cell of a value; `None` beyond the ends.
    fn at(&self, v: f64) -> Option<u16> {
        let part = (v.log10() - self.low) / (self.high - self.low);
        (0.0..=1.0).contains(&part).then(|| (part * f64::from(self.cells.max(1) - 1)).round() as u16)
    }

    fn value(&self, cell: u16) -> f64 {
        let part = f64::from(cell) / f64::from(self.cells.max(2) - 1);
        10f64.powf(self.low + part * (self.high - self.low))
    }

    /// Whole powers of ten on it; of fewer than three, twice and five times those as well.
    fn ticks(&self) -> Vec<f64> {
        let powers = (self.low.floor() as i32)..=(self.high.ceil() as i32);
        let within = |v: &f64| (self.low..=self.high).contains(&v.log10());
        let whole: Vec<f64> = powers.clone().map(|p| 10f64.powi(p)).filter(within).collect();
        match whole.len() {
            0..3 => powers.flat_map(|p| [1.0, 2.0, 5.0].map(|k| k * 10f64.powi(p))).filter(within).collect(),
            _ => whole,
        }
    }
}

fn scatter(c: &mut Canvas<'_>, area: Rect, found: &[Dot], ceilings: &Ceilings) {
    let pal = c.pal;
    if found.is_empty() || area.height < 6 || area.width < 24 {
        return c.put(area, 0, 1, "no row that computes is measured", pal.fg(Role::Dim));
    }
    let axis = 8u16;
    let plot = Rect { x: area.x + axis, width: area.width - axis, height: area.height - 2, ..area };
    let int8 = found.iter().any(|d| d.int8);
    let tops = [ceilings.f32_gflops, if int8 { ceilings.int8_gops } else { 0.0 }];
    let ridge = |top: f64| if ceilings.bandwidth_gbs > 0.0 { top / ceilings.bandwidth_gbs } else { 0.0 };
    let x = Scale::of(found.iter().map(|d| d.intensity).chain(tops.map(ridge)), plot.width);
    let y = Scale::of(found.iter().map(|d| d.rate).chain(tops), plot.height);
    let row = |v: f64| y.at(v).map(|r| plot.height - 1 - r);
    for r in 0..plot.height {
        c.put(plot, r, 0, pal.glyph("│", "|"), pal.fg(Role::Faint));
    }
    for tick in y.ticks() {
        if let Some(r) = row(tick) {
            c.put(area, r, 0, &right(&figure(tick), 7), pal.fg(Role::Dim));
            c.put(plot, r, 0, pal.glyph("┤", "+"), pal.fg(Role::Faint));
        }
    }
    c.put(area, 0, 0, "GFLOP/s", pal.fg(Role::Dim));
    // Below the plot, in the pane: the axis and its figures.
    let foot = plot.height;
    for col in 1..plot.width {
        c.put(area, foot, axis + col, pal.glyph("─", "-"), pal.fg(Role::Faint));
    }
    for tick in x.ticks() {
        let Some(col) = x.at(tick).filter(|col| *col > 0) else { continue };
        c.put(area, foot, axis + col, pal.glyph("┴", "+"), pal.fg(Role::Faint));
        let label = figure(tick);
        c.put(area, foot + 1, axis + col.saturating_sub(width(&label) as u16 / 2), &label, pal.fg(Role::Dim));
    }
    c.put(area, foot + 1, 0, "FLOP/B", pal.fg(Role::Dim));
    // The slope, then the flats, each as far as it is the lower one.
    for (n, (top, name)) in [(tops[0], "f32"), (tops[1], "int8")].into_iter().enumerate() {
        if top <= 0.0 {
            continue;
        }
        let role = if n == 0 { Role::Bar } else { Role::Good };
        for col in 1..plot.width {
            let slope = x.value(col) * ceilings.bandwidth_gbs;
            let (roof, glyph) = match ceilings.bandwidth_gbs > 0.0 && slope < top {
                true => (slope, pal.glyph("·", ".")),
                false => (top, pal.glyph("─", "-")),
            };
            if let Some(r) = row(roof) {
                c.put(plot, r, col, glyph, pal.fg(role));
            }
        }
        if let Some(r) = row(top) {
            let text = format!("{name} {}", figure(top));
            let at = plot.width.saturating_sub(width(&text) as u16 + 1);
            c.put(plot, r.saturating_sub(1), at, &text, pal.fg(role));
        }
    }
    let most = found.first().map_or(1.0, |d| d.share).max(1e-9);
    let current = c.app.pointed().map(|l| l.name.clone());
    // The dearest last, so that it lies on top, and the current one on all.
    let order = found.iter().rev().filter(|d| current.as_ref() != Some(&d.name));
    for d in order.chain(found.iter().filter(|d| current.as_ref() == Some(&d.name))) {
        let (Some(col), Some(r)) = (x.at(d.intensity), row(d.rate)) else { continue };
        let here = current.as_ref() == Some(&d.name);
        let glyph = if d.int8 { pal.glyph("◆", "*") } else { pal.glyph("●", "o") };
        let style = match here {
            true => pal.bold(Role::Accent),
            false if d.share >= 0.5 * most => pal.bold(Role::Warn),
            false => pal.fg(Role::Fg),
        };
        c.put(plot, r, col, glyph, style);
        if here {
            let name = clean(&d.name).into_owned();
            let room = plot.width.saturating_sub(col + 2) as usize;
            let at = if width(&name) <= room { col + 2 } else { col.saturating_sub(width(&name) as u16 + 1) };
            c.put(plot, r, at, &name, style);
        }
    }
}

/// Three digits, or as many as a whole number has.
fn figure(v: f64) -> String {
    match v {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.1}").trim_end_matches(".0").to_owned(),
        v => format!("{v:.3}").trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_hold_what_they_are_made_of_and_nothing_beyond() {
        let s = Scale::of([1.0, 100.0].into_iter(), 41);
        assert!(s.at(1.0).is_some() && s.at(100.0).is_some());
        assert_eq!(s.at(10.0), Some(20), "the middle of the powers");
        assert!(s.at(1e6).is_none() && s.at(1e-6).is_none() && s.at(0.0).is_none());
        assert_eq!(s.ticks(), [1.0, 10.0, 100.0]);
        assert!((s.value(20) - 10.0).abs() < 0.5);
        // Without anything to hold there is still a scale.
        assert!(Scale::of(std::iter::empty(), 10).at(5.0).is_some());
        assert_eq!(
            (figure(0.01), figure(1.0), figure(12.34), figure(1234.5)),
            ("0.01".into(), "1".into(), "12.3".into(), "1234".into())
        );
    }
}
