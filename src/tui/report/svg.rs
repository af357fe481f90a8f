//! Pictures of a report as inline SVG: axes with ticks, points with the bars of their intervals, bars of named values.
//!
//! Colours are classes of the page's style sheet. Not here: what is shown (`figures`), the page around it (`html`). Invariant: every point lies
//! within its frame, whatever it is; what is no number is not drawn.

use super::document::{Axis, Bars, Dot, Line, Look, Plot, Series};
use super::html::escape;
use crate::config::text::{clean, fit};
use std::fmt::Write;

/// Room around a frame: left, top, right, bottom.
type Room = [f64; 4];

/// Where values lie on one axis, in pixels.
struct Scale {
    low: f64,
    high: f64,
    decades: bool,
    from: f64,
    to: f64,
}

impl Scale {
    fn new(axis: &Axis, values: impl Iterator<Item = f64>, (from, to): (f64, f64)) -> Scale {
        let values = values.chain(axis.upto).filter(|v| v.is_finite());
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        if let Some(foot) = axis.decades_from {
            let high = high.max(10.0 * foot).log10();
            return Scale { low: foot.log10(), high: high + 0.04 * (high - foot.log10()), decades: true, from, to };
        }
        let low = if axis.from_zero { low.min(0.0) } else { low };
        // A range of nothing would divide by it.
        let apart = if high - low > 1e-9 * high.abs().max(1e-9) { high - low } else { high.abs().max(1e-6) * 0.2 };
        let pad = 0.06 * apart;
        let low = if axis.from_zero && low >= 0.0 { low } else { low - pad };
        Scale { low, high: high + pad, decades: false, from, to }
    }

    fn at(&self, v: f64) -> f64 {
        let v = if self.decades { v.max(f64::MIN_POSITIVE).log10() } else { v };
        let part = ((v - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.from + part * (self.to - self.from)
    }

    /// Round values on the axis with their words, about so many.
    fn ticks(&self, about: f64) -> Vec<(f64, String)> {
        if self.decades {
            let whole = (self.low.ceil() as i32)..=(self.high.floor() as i32);
            return whole.map(|e| 10f64.powi(e)).map(|v| (v, format!("{v}"))).collect();
        }
        let raw = (self.high - self.low) / about;
        let unit = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * unit).find(|s| *s >= raw).unwrap_or(10.0 * unit);
        let digits = (-step.log10().floor()).max(0.0) as usize;
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last.min(first + 40)).map(|i| i as f64 * step).map(|v| (v, format!("{v:.digits$}"))).collect()
    }
}

/// A plot in its frame.
pub fn plot(p: &Plot) -> String {
    let ((w, h), [left, top, right, bottom]): ((f64, f64), Room) = match p.small {
        true => ((260.0, 170.0), [46.0, 8.0, 10.0, 34.0]),
        false => ((760.0, 380.0), [62.0, 14.0, 18.0, 46.0]),
    };
    let dots = || p.series.iter().flat_map(|s| &s.dots);
    let ends = |e: Option<(f64, f64)>| e.into_iter().flat_map(|(a, b)| [a, b]);
    let guides = |upright: bool| p.guides.iter().filter(move |g| g.upright == upright).map(|g| g.at);
    let x = Scale::new(&p.x, dots().flat_map(|d| ends(d.x_ends).chain([d.x])).chain(guides(true)), (left, w - right));
    let y = Scale::new(&p.y, dots().flat_map(|d| ends(d.y_ends).chain([d.y])).chain(guides(false)), (h - bottom, top));
    let mut o = format!("<svg viewBox=\"0 0 {w:.0} {h:.0}\" role=\"img\" aria-label=\"{}\">\n", escape(&p.title));
    let _ = writeln!(
        o,
        "<rect class=\"frame\" x=\"{left}\" y=\"{top}\" width=\"{:.1}\" height=\"{:.1}\"/>",
        w - left - right,
        h - top - bottom
    );
    let (columns, rows) = if p.small { (4.0, 4.0) } else { (8.0, 6.0) };
    for (v, text) in x.ticks(columns) {
        let at = x.at(v);
        let _ = writeln!(
            o,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{:.1}\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
            h - bottom,
            h - bottom + 14.0
        );
    }
    for (v, text) in y.ticks(rows) {
        let at = y.at(v);
        let _ = writeln!(
            o,
            "<line class=\"grid\" x1=\"{left}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            w - right,
            left - 5.0,
            at + 3.5
        );
    }
    let (middle, across) = ((left + w - right) / 2.0, (top + h - bottom) / 2.0);
    let _ = writeln!(
        o,
        "<text class=\"axis\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text class=\"axis\" transform=\"translate(11 {across:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        h - 6.0,
        escape(&p.x.title),
        escape(&p.y.title)
    );
    let mut taken = Labels { taken: Vec::new(), within: (left, top, w - right, h - bottom) };
    for g in p.guides.iter().filter(|g| g.at.is_finite()) {
        let ([x1, x2, y1, y2], beside) = match g.upright {
            true => ([x.at(g.at), x.at(g.at), top, h - bottom], (x.at(g.at) + 4.0, h - bottom - 5.0)),
            false => ([left, w - right, y.at(g.at), y.at(g.at)], (left + 4.0, y.at(g.at) - 4.0)),
        };
        let _ = writeln!(o, "<line class=\"guide\" x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\"/>");
        let (at, end) = beside;
        let _ = writeln!(o, "<text class=\"guide\" x=\"{at:.1}\" y=\"{end:.1}\">{}</text>", escape(&g.label));
        taken.taken.push((at, end - 10.0, at + 6.2 * g.label.len() as f64, end));
    }
    for d in dots().filter(|d| d.look != Look::None) {
        let (px, py) = (x.at(d.x), y.at(d.y));
        taken.taken.push((px - 5.0, py - 5.0, px + 5.0, py + 5.0));
    }
    for s in &p.series {
        series(&mut o, s, (&x, &y), p.small);
    }
    for s in &p.series {
        for d in s.dots.iter().filter(|d| !d.label.is_empty() && d.look != Look::None) {
            let _ = writeln!(o, "{}", taken.place((x.at(d.x), y.at(d.y)), &d.label, s.tone));
        }
    }
    o.push_str("</svg>");
    o
}

/// Words in a plot, none upon another as far as there is room.
struct Labels {
    taken: Vec<(f64, f64, f64, f64)>,
    within: (f64, f64, f64, f64),
}

impl Labels {
    fn place(&mut self, (px, py): (f64, f64), label: &str, tone: usize) -> String {
        let label = clean(label);
        let label = fit(&label, 28);
        let wide = 6.2 * label.chars().count() as f64;
        let (left, top, right, bottom) = self.within;
        let spots = [
            (9.0, -5.0),
            (9.0, 14.0),
            (-9.0 - wide, -5.0),
            (-9.0 - wide, 14.0),
            (9.0, -19.0),
            (9.0, 28.0),
            (-9.0 - wide, -19.0),
        ];
        let boxed = |(dx, dy): (f64, f64)| (px + dx, py + dy - 10.0, px + dx + wide, py + dy + 2.0);
        let free = |b: &(f64, f64, f64, f64)| {
            let inside = b.0 >= left && b.2 <= right && b.1 >= top && b.3 <= bottom;
            inside && !self.taken.iter().any(|t| b.0 < t.2 && t.0 < b.2 && b.1 < t.3 && t.1 < b.3)
        };
        let spot = spots.into_iter().map(boxed).find(free);
        let spot = spot.unwrap_or_else(|| boxed(if px + 9.0 + wide > right { spots[2] } else { spots[0] }));
        self.taken.push(spot);
        format!("<text class=\"name t{tone}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>", spot.0, spot.3 - 2.0, escape(&label))
    }
}

fn series(o: &mut String, s: &Series, (x, y): (&Scale, &Scale), small: bool) {
    let known = |d: &&Dot| d.x.is_finite() && d.y.is_finite();
    let tone = s.tone;
    let mut path = String::new();
    for (i, d) in s.dots.iter().filter(known).enumerate() {
        let (px, py) = (x.at(d.x), y.at(d.y));
        let _ = match (i, s.line) {
            (_, Line::None) => break,
            (0, _) => write!(path, "M{px:.1} {py:.1}"),
            (_, Line::Straight) => write!(path, "L{px:.1} {py:.1}"),
            (_, Line::Steps) => write!(path, "H{px:.1}V{py:.1}"),
        };
    }
    if !path.is_empty() {
        let steps = if s.line == Line::Steps { " steps" } else { "" };
        let _ = writeln!(o, "<path class=\"line t{tone}{steps}\" d=\"{path}\"/>");
    }
    for d in s.dots.iter().filter(known).filter(|d| d.look != Look::None) {
        let (px, py) = (x.at(d.x), y.at(d.y));
        let mut bar = |x1: f64, y1: f64, x2: f64, y2: f64| {
            let _ = writeln!(
                o,
                "<line class=\"bar t{tone}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
            );
        };
        if let Some((low, high)) = d.x_ends {
            bar(x.at(low), py, x.at(high), py);
        }
        if let Some((low, high)) = d.y_ends {
            bar(px, y.at(low), px, y.at(high));
        }
        let look = if d.look == Look::Hollow { "hollow" } else { "full" };
        let r = if small { 2.6 } else { 4.6 };
        let _ = writeln!(o, "<circle class=\"{look} t{tone}\" cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"{r}\"/>");
    }
}

/// What stands for a series in a legend.
pub fn key(s: &Series) -> String {
    let mut o = "<svg class=\"key\" viewBox=\"0 0 22 12\" aria-hidden=\"true\">".to_owned();
    if s.line != Line::None {
        let steps = if s.line == Line::Steps { " steps" } else { "" };
        let _ = write!(o, "<path class=\"line t{}{steps}\" d=\"M1 6L21 6\"/>", s.tone);
    }
    if let Some(look) = s.dots.first().map(|d| d.look).filter(|l| *l != Look::None) {
        let all = s.dots.iter().all(|d| d.look == Look::Hollow);
        let look = if all || look == Look::Hollow && s.dots.len() == 1 { "hollow" } else { "full" };
        let _ = write!(o, "<circle class=\"{look} t{}\" cx=\"11\" cy=\"6\" r=\"4\"/>", s.tone);
    }
    o + "</svg>"
}

/// Named values to both sides of zero.
pub fn bars(b: &Bars) -> String {
    const ROW: f64 = 20.0;
    let (w, name, value) = (760.0, 190.0, 60.0);
    let h = ROW * b.bars.len() as f64 + 26.0;
    let values = || b.bars.iter().map(|(_, v, _)| *v).filter(|v| v.is_finite());
    let (low, high) = (values().fold(0.0, f64::min), values().fold(0.0, f64::max));
    let unit = (w - name - 2.0 * value) / (high - low).max(1e-9);
    let zero = name + value - low * unit;
    let mut o = format!("<svg viewBox=\"0 0 {w:.0} {h:.0}\" role=\"img\" aria-label=\"{}\">\n", escape(&b.title));
    let _ = writeln!(o, "<line class=\"grid\" x1=\"{zero:.1}\" x2=\"{zero:.1}\" y1=\"0\" y2=\"{:.1}\"/>", h - 22.0);
    for (i, (label, v, text)) in b.bars.iter().enumerate().filter(|(_, (_, v, _))| v.is_finite()) {
        let top = ROW * i as f64;
        let long = unit * v.abs();
        let (from, tone) = if *v < 0.0 { (zero - long, 3) } else { (zero, 1) };
        let (at, anchor) = if *v < 0.0 { (zero - long - 5.0, "end") } else { (zero + long + 5.0, "start") };
        let _ = writeln!(
            o,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><rect class=\"full t{tone}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{long:.1}\" height=\"{:.1}\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            name - 8.0,
            top + 14.0,
            escape(&fit(&clean(label), 28)),
            top + 4.0,
            ROW - 8.0,
            top + 14.0,
            escape(text)
        );
    }
    let _ = write!(
        o,
        "<text class=\"axis\" x=\"{zero:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text></svg>",
        h - 6.0,
        escape(&b.unit)
    );
    o
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_their_axis() {
        let of = |low: f64, high: f64| Scale::new(&Axis::default(), [low, high].into_iter(), (0.0, 100.0));
        for (low, high) in [(0.37, 1.0), (91.2, 91.9), (-3.0, 1e6), (5.0, 5.0), (0.0, 0.0)] {
            let s = of(low, high);
            let ticks = s.ticks(6.0);
            assert!((2..=14).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
            assert!(ticks.iter().all(|(v, _)| (s.low..=s.high).contains(v)), "{low} to {high}: {ticks:?}");
            assert!(s.at(low) >= 0.0 && s.at(high) <= 100.0 && s.at(low) <= s.at(high));
        }
        let words: Vec<String> = of(0.4, 1.0).ticks(6.0).into_iter().map(|(_, t)| t).collect();
        assert_eq!(words, ["0.4", "0.6", "0.8", "1.0"]);
    }

    #[test]
    fn what_lies_below_the_foot_of_decades_is_drawn_there() {
        let axis = Axis { decades_from: Some(1e-4), ..Axis::default() };
        let s = Scale::new(&axis, [0.0, 3.0].into_iter(), (100.0, 0.0));
        assert_eq!((s.at(0.0), s.at(1e-6), s.at(1e-4)), (100.0, 100.0, 100.0));
        assert_eq!(s.ticks(4.0).len(), 5);
    }

    #[test]
    fn what_is_no_number_is_not_drawn() {
        let dots = vec![Dot { x: 1.0, y: f64::NAN, ..Dot::default() }, Dot { x: 1.0, y: 2.0, ..Dot::default() }];
        let p = Plot { series: vec![Series { dots, line: Line::Straight, ..Series::default() }], ..Plot::default() };
        let s = plot(&p);
        assert!(s.matches("<circle").count() == 1 && !s.contains("NaN"), "{s}");
    }
}
