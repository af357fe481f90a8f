//! Monotone curves through measured points: sensitivity over the removed ratio, latency over width. Pure.
//!
//! Invariant: a [`Curve`] never falls; between points it is Fritsch and Carlson's monotone cubic (SIAM J. Numer. Anal.
//! 17, 1980), beyond the last it goes on with the last slope.

use crate::profile::{Ladder, LadderPoint};
use crate::quant::{Precision, WeightFormat};

/// A rising curve through points.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curve {
    x: Vec<f64>,
    y: Vec<f64>,
    slope: Vec<f64>,
}

impl Curve {
    /// Through `points` after sorting them and lifting each to at least the one before; points that are no numbers are
    /// left out, equal abscissae averaged.
    pub fn rising(points: impl IntoIterator<Item = (f64, f64)>) -> Curve {
        let mut p: Vec<(f64, f64)> = points.into_iter().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
        p.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut x, mut y): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
        let mut i = 0;
        while i < p.len() {
            let same = p[i..].iter().take_while(|q| q.0 - p[i].0 < 1e-9).count();
            let mean = p[i..i + same].iter().map(|q| q.1).sum::<f64>() / same as f64;
            x.push(p[i].0);
            y.push(y.last().map_or(mean, |&last: &f64| last.max(mean)));
            i += same;
        }
        let slope = slopes(&x, &y);
        Curve { x, y, slope }
    }

    /// Harm in nats over the removed ratio, from `(0, 0)`; nothing counts as doing good.
    pub fn of_harm(points: impl IntoIterator<Item = (f64, f64)>) -> Curve {
        let measured = points.into_iter().filter(|p| p.0 > 0.0).map(|(ratio, harm)| (ratio, harm.max(0.0)));
        Curve::rising(std::iter::once((0.0, 0.0)).chain(measured))
    }

    /// The last abscissa.
    pub fn end(&self) -> Option<f64> {
        self.x.last().copied()
    }

    /// The value at `at`: constant before the first point, 0 for an empty curve.
    pub fn at(&self, at: f64) -> f64 {
        let (Some(&first), Some(&last)) = (self.x.first(), self.x.last()) else { return 0.0 };
        if at <= first {
            return self.y[0];
        }
        if at >= last {
            let n = self.x.len() - 1;
            let chord = if n > 0 { (self.y[n] - self.y[n - 1]) / (self.x[n] - self.x[n - 1]) } else { 0.0 };
            return self.y[n] + chord.max(self.slope[n]) * (at - last);
        }
        let i = self.x.partition_point(|&x| x <= at) - 1;
        let h = self.x[i + 1] - self.x[i];
        let t = (at - self.x[i]) / h;
        let (t2, t3) = (t * t, t * t * t);
        (2.0 * t3 - 3.0 * t2 + 1.0) * self.y[i]
            + (t3 - 2.0 * t2 + t) * h * self.slope[i]
            + (3.0 * t2 - 2.0 * t3) * self.y[i + 1]
            + (t3 - t2) * h * self.slope[i + 1]
    }
}

fn slopes(x: &[f64], y: &[f64]) -> Vec<f64> {
    let n = x.len();
    if n < 2 {
        return vec![0.0; n];
    }
    let chord: Vec<f64> = (0..n - 1).map(|i| (y[i + 1] - y[i]) / (x[i + 1] - x[i])).collect();
    let mut m: Vec<f64> = (0..n)
        .map(|i| match i {
            0 => chord[0],
            _ if i == n - 1 => chord[n - 2],
            // The harmonic mean is monotone by itself.
            _ if chord[i - 1] * chord[i] <= 0.0 => 0.0,
            _ => 2.0 * chord[i - 1] * chord[i] / (chord[i - 1] + chord[i]),
        })
        .collect();
    for i in 0..n - 1 {
        let limit = 3.0 * chord[i];
        m[i] = m[i].min(limit);
        m[i + 1] = m[i + 1].min(limit);
    }
    m
}

/// One layer's ladder, ready to be asked: time at a width and precision relative to full width in f32.
#[derive(Debug, Clone, Default)]
pub struct Steps {
    full: (usize, usize),
    by_precision: Vec<(Precision, Axes)>,
    /// As [`Ladder::own`].
    own: Vec<Precision>,
}

/// Time at full width, over the input width, over the output width, and both cut alike.
#[derive(Debug, Clone, Default)]
struct Axes {
    full_ms: f64,
    over_in: Vec<(f64, f64)>,
    over_out: Vec<(f64, f64)>,
    both: Vec<(f64, f64)>,
    /// The most that any rung took.
    most: f64,
}

/// How far two measurements of one layer or rung lie apart at least, as a part of what it takes; also where nobody looked or it
/// was by chance nothing.
pub(super) const REPEAT: f64 = 0.05;

impl Steps {
    /// `None` when the ladder has no usable point at full width in f32.
    pub fn of(ladder: &Ladder, full_in: usize, full_out: usize) -> Option<Steps> {
        let fraction = |p: &LadderPoint| (p.in_width as f64 / full_in as f64, p.out_width as f64 / full_out as f64);
        let mut by_precision = Vec::new();
        let mut precisions: Vec<Precision> = Vec::new();
        for p in &ladder.points {
            if !precisions.contains(&p.precision) {
                precisions.push(p.precision);
            }
        }
        for precision in precisions {
            let usable = |p: &&LadderPoint| p.precision == precision && p.ms.is_finite() && p.ms > 0.0 && !p.noisy;
            let points: Vec<&LadderPoint> = ladder.points.iter().filter(usable).collect();
            let Some(full) = points.iter().find(|p| p.in_width == full_in && p.out_width == full_out) else { continue };
            let most = points.iter().fold(1.0, |m: f64, p| m.max(p.ms / full.ms));
            let mut axes = Axes { full_ms: full.ms, most, ..Axes::default() };
            let (mut over_in, mut over_out) = (Vec::new(), Vec::new());
            for p in &points {
                let (i, o) = fraction(p);
                let (t, spread) = (p.ms / full.ms, p.spread.max(REPEAT));
                match (p.in_width == full_in, p.out_width == full_out) {
                    (true, true) => {
                        over_in.push((1.0, 1.0, spread));
                        over_out.push((1.0, 1.0, spread));
                    }
                    (false, true) => over_in.push((i, t, spread)),
                    (true, false) => over_out.push((o, t, spread)),
                    (false, false) => {}
                }
            }
            (axes.over_in, axes.over_out) = (levelled(over_in), levelled(over_out));
            // What both axes together take beyond the product of the two: overheads are paid once.
            let product: Vec<(f64, f64)> = points
                .iter()
                .filter(|p| p.in_width != full_in && p.out_width != full_out)
                .map(|p| {
                    let (i, o) = fraction(p);
                    (i.max(o), p.ms / full.ms / (line_at(&axes.over_in, i) * line_at(&axes.over_out, o)).max(1e-9))
                })
                .chain(std::iter::once((1.0, 1.0)))
                .collect();
            axes.both = product;
            axes.both.sort_by(|a, b| a.0.total_cmp(&b.0));
            by_precision.push((precision, axes));
        }
        let has_f32 = by_precision.iter().any(|(p, _)| *p == Precision::F32);
        has_f32.then_some(Steps { full: (full_in, full_out), by_precision, own: ladder.own.clone() })
    }

    /// Time at this width and precision over the time at full width in f32; `None` when the precision has no rung, and neither
    /// has the one whose kernel runs it where the device has none of its own for it.
    pub fn factor(&self, in_width: usize, out_width: usize, precision: Precision) -> Option<f64> {
        let of = |p: Precision| self.by_precision.iter().find(|(q, _)| *q == p).map(|(_, a)| a);
        let (base, timed) = (of(Precision::F32)?, of(precision));
        let axes = match timed {
            None if !self.has_own(precision) => of(precision.timed_as())?,
            timed => timed?,
        };
        let (i, o) = (in_width as f64 / self.full.0.max(1) as f64, out_width as f64 / self.full.1.max(1) as f64);
        // A precision that was only timed at full width takes its shape over width from the one of its kernel, or from f32.
        let wide = |axes: &&Axes| axes.over_in.len() + axes.over_out.len() > 2;
        let kernel = match precision.weights() {
            WeightFormat::Int4 { .. } => of(Precision::W4).filter(wide),
            // All of GGML's formats are unpacked by kernels of one kind, and the layer's own was timed at all widths.
            WeightFormat::Block(_) => {
                let blocks = self.by_precision.iter().filter(|(p, _)| matches!(p, Precision::Block(_)));
                blocks.map(|(_, axes)| axes).find(wide)
            }
            _ => None,
        };
        let shape = Some(axes).filter(wide).or(kernel).unwrap_or(base);
        let both = if (i - 1.0).abs() < 1e-9 || (o - 1.0).abs() < 1e-9 { 1.0 } else { line_at(&shape.both, i.max(o)) };
        // No width takes longer than the slowest that was measured.
        let width = (line_at(&shape.over_in, i) * line_at(&shape.over_out, o) * both).min(shape.most);
        Some(axes.full_ms / base.full_ms * width)
    }
}

impl Steps {
    /// Whether the device has a kernel of its own for `precision`, so that only its own time would do.
    pub fn has_own(&self, precision: Precision) -> bool {
        self.own.contains(&precision)
    }

    /// Whether `precision` has a usable time at full width.
    pub fn times(&self, precision: Precision) -> bool {
        self.by_precision.iter().any(|(p, _)| *p == precision)
    }
}

/// Points `(width, time, spread)` as a line over width: where a narrower one took longer than the next wider one by no more than
/// both spread, the two are one level (pooling adjacent violators, as in isotonic regression: Barlow et al., *Statistical
/// Inference under Order Restrictions*, 1972). What is slower beyond that is slower.
fn levelled(mut points: Vec<(f64, f64, f64)>) -> Vec<(f64, f64)> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Widths on a level, and its time and spread.
    let mut levels: Vec<(Vec<f64>, f64, f64)> = Vec::new();
    for (width, time, spread) in points {
        levels.push((vec![width], time, spread));
        while let [.., a, b] = levels.as_slice() {
            let slower = a.1 > b.1;
            let beyond = a.1 * (1.0 - a.2) > b.1 * (1.0 + b.2);
            if !slower || beyond {
                break;
            }
            let (na, nb) = (a.0.len() as f64, b.0.len() as f64);
            let mean = (a.1 * na + b.1 * nb) / (na + nb);
            let merged = ([a.0.as_slice(), b.0.as_slice()].concat(), mean, a.2.max(b.2));
            levels.truncate(levels.len() - 2);
            levels.push(merged);
        }
    }
    levels.into_iter().flat_map(|(widths, time, _)| widths.into_iter().map(move |w| (w, time))).collect()
}

/// Straight lines between points; below the first point in proportion to a line towards a tenth of it at width zero,
/// because some cost never goes away.
fn line_at(points: &[(f64, f64)], at: f64) -> f64 {
    let Some(&(x0, y0)) = points.first() else { return 1.0 };
    if points.len() == 1 {
        // Nothing but full width was timed: in proportion, with a floor.
        return if x0 > 0.0 { y0 * (0.1 + 0.9 * (at / x0)) } else { y0 };
    }
    if at <= x0 {
        return if x0 > 0.0 { y0 * (0.1 + 0.9 * at / x0) } else { y0 };
    }
    for w in points.windows(2) {
        let ((xa, ya), (xb, yb)) = (w[0], w[1]);
        if at <= xb {
            return if xb - xa < 1e-12 { yb } else { ya + (yb - ya) * (at - xa) / (xb - xa) };
        }
    }
    points.last().map_or(1.0, |p| p.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::ggml::Block;
    use crate::plan::testing::rung;

    #[test]
    fn curve_passes_through_its_points_and_never_falls() {
        let points = [(0.0, 0.0), (0.125, 0.01), (0.25, 0.03), (0.5, 0.02), (0.75, 0.9)];
        let c = Curve::rising(points);
        assert!((c.at(0.125) - 0.01).abs() < 1e-12 && (c.at(0.75) - 0.9).abs() < 1e-12);
        assert!((c.at(0.5) - 0.03).abs() < 1e-12, "a dip is lifted");
        let mut last = -1.0;
        for i in 0..=1000 {
            let y = c.at(i as f64 / 1000.0);
            assert!(y >= last - 1e-12, "falls at {i}: {y} < {last}");
            last = y;
        }
        assert!(c.at(1.0) > 0.9 + 0.5, "goes on rising past the last point");
    }

    #[test]
    fn degenerate_curves() {
        assert_eq!(Curve::rising([]).at(0.5), 0.0);
        assert_eq!(Curve::rising([(0.2, 3.0)]).at(0.9), 3.0);
        let nan = Curve::rising([(0.0, 0.0), (0.5, f64::NAN), (1.0, 2.0)]);
        assert!((nan.at(0.5) - 1.0).abs() < 1e-12);
        let twice = Curve::rising([(0.0, 0.0), (1.0, 1.0), (1.0, 3.0)]);
        assert!((twice.at(1.0) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn formats_of_blocks_take_their_shape_over_width_from_the_one_that_has_it() {
        let [own, other] = [Block::Q4_1, Block::Q8_0].map(Precision::Block);
        let f = Precision::F32;
        let points = vec![
            rung(64, 32, f, 4.0),
            rung(32, 32, f, 2.4),
            rung(64, 32, own, 5.0),
            rung(32, 32, own, 2.0),
            rung(64, 32, other, 3.0),
        ];
        let ladder = Ladder { points, own: vec![f, own, other], ..Ladder::default() };
        let s = Steps::of(&ladder, 64, 32).expect("full width is there");
        let near = |a: Option<f64>, b: f64| assert!(a.is_some_and(|a| (a - b).abs() < 1e-9), "{a:?} {b}");
        near(s.factor(64, 32, own), 1.25);
        near(s.factor(32, 32, own), 0.5);
        near(s.factor(64, 32, other), 0.75);
        near(s.factor(32, 32, other), 0.75 * 0.4);
        assert!(s.times(other) && !s.times(Precision::Block(Block::Q6_K)));
    }

    #[test]
    fn ladder_answers_at_and_between_rungs() {
        let (f, q) = (Precision::F32, Precision::Int8);
        let points = vec![
            rung(16, 32, f, 4.0),
            rung(8, 32, f, 2.4),
            rung(16, 16, f, 2.0),
            rung(8, 16, f, 1.5),
            rung(16, 32, q, 1.0),
        ];
        let s = Steps::of(&Ladder { points, ..Ladder::default() }, 16, 32).expect("full width is there");
        let near = |a: Option<f64>, b: f64| assert!(a.is_some_and(|a| (a - b).abs() < 1e-9), "{a:?} {b}");
        near(s.factor(16, 32, f), 1.0);
        near(s.factor(8, 32, f), 0.6);
        near(s.factor(12, 32, f), 0.8);
        near(s.factor(8, 16, f), 1.5 / 4.0);
        near(s.factor(16, 32, q), 0.25);
        near(s.factor(8, 32, q), 0.25 * 0.6);
        assert_eq!(s.factor(16, 32, f), s.factor(16, 32, Precision::W8), "computed in f32");
        let tiny = s.factor(1, 32, f).expect("extrapolates");
        assert!(tiny > 0.06 && tiny < 0.2, "{tiny}");
        assert!(Steps::of(&Ladder { points: vec![rung(8, 8, f, 1.0)], ..Ladder::default() }, 16, 32).is_none());
    }

    /// On a GPU half precision has a kernel of its own; on a CPU it is computed in f32 and has no rung.
    #[test]
    fn a_precision_that_was_timed_answers_for_itself() {
        let half = Precision::F16;
        let gpu = steps(vec![rung(16, 32, Precision::F32, 4.0), rung(16, 32, half, 1.0)]);
        assert_eq!((gpu.factor(16, 32, half), gpu.factor(16, 32, Precision::Bf16)), (Some(0.25), Some(1.0)));
        let cpu = steps(vec![rung(16, 32, Precision::F32, 4.0)]);
        assert_eq!((cpu.factor(16, 32, half), cpu.factor(16, 32, Precision::Int8)), (Some(1.0), None));
    }

    /// A kernel whose rung came to nothing is no f32 kernel.
    #[test]
    fn nothing_stands_in_for_a_kernel_of_its_own() {
        let (f, w4) = (Precision::F32, Precision::W4);
        let lost = LadderPoint { noisy: true, ..rung(16, 32, w4, 1.0) };
        let points = vec![rung(16, 32, f, 4.0), rung(16, 32, Precision::W4g32, 1.0), lost];
        let of = |own: &[Precision]| {
            let ladder = Ladder { points: points.clone(), own: own.to_vec(), ..Ladder::default() };
            Steps::of(&ladder, 16, 32).expect("full width is there")
        };
        let (cpu, gpu) = (of(&[f, Precision::Int8]), of(&[f, Precision::Int8, w4, Precision::W4g32]));
        assert_eq!((cpu.factor(16, 32, w4), gpu.factor(16, 32, w4)), (Some(1.0), None));
        assert_eq!(gpu.factor(16, 32, Precision::W4g32), Some(0.25));
        // Its shape over width is its kernel's.
        let widths = [(16, 32, 1.0), (16, 16, 0.9)].map(|(i, o, ms)| rung(i, o, w4, ms));
        let mut all = vec![rung(16, 32, f, 4.0), rung(16, 16, f, 2.0), rung(16, 32, Precision::W4g32, 1.0)];
        all.extend(widths);
        let near = steps(all).factor(16, 16, Precision::W4g32).expect("timed");
        assert!((near - 0.9 / 4.0).abs() < 1e-9, "{near}");
    }

    fn steps(points: Vec<LadderPoint>) -> Steps {
        Steps::of(&Ladder { points, ..Ladder::default() }, 16, 32).expect("full width is there")
    }

    /// A width that took three times as long once is no step of the ladder.
    #[test]
    fn a_noisy_rung_advises_nothing() {
        let f = Precision::F32;
        let spike = LadderPoint { noisy: true, ..rung(16, 28, f, 12.0) };
        let with = steps(vec![rung(16, 32, f, 4.0), rung(16, 16, f, 2.0), spike]);
        let without = steps(vec![rung(16, 32, f, 4.0), rung(16, 16, f, 2.0)]);
        for o in 1..=32 {
            assert_eq!(with.factor(16, o, f), without.factor(16, o, f), "{o}");
        }
        let full = LadderPoint { noisy: true, ..rung(16, 32, f, 4.0) };
        assert!(Steps::of(&Ladder { points: vec![full, rung(16, 16, f, 2.0)], ..Ladder::default() }, 16, 32).is_none());
    }

    #[test]
    fn dips_within_the_spread_are_level_and_real_ones_stay() {
        let f = Precision::F32;
        // 24 seems 4 % slower than 28, within what two measurements differ by; 16 is half as slow again, beyond it.
        let s = steps(vec![rung(16, 32, f, 4.0), rung(16, 28, f, 3.0), rung(16, 24, f, 3.12), rung(16, 16, f, 4.5)]);
        let at = |o| s.factor(16, o, f).expect("timed");
        assert!((at(28) - 3.06 / 4.0).abs() < 1e-9 && (at(24) - at(28)).abs() < 1e-12);
        assert!((at(16) - 4.5 / 4.0).abs() < 1e-9);
        // And nothing is slower than the slowest that was measured, cut in whatever way.
        let s = steps(vec![rung(16, 32, f, 4.0), rung(8, 32, f, 5.0), rung(16, 16, f, 5.0)]);
        for (i, o) in [(8, 16), (4, 8), (8, 31), (15, 16)] {
            assert!(s.factor(i, o, f).expect("timed") <= 5.0 / 4.0 + 1e-9, "{i} {o}");
        }
    }
}
