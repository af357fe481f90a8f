//! Points per nat of harm, fitted to whole plans that were tried: the most likely weights, and how sure those plans make of
//! them.
//!
//! Here: arithmetic on points. What the points are, and what else a forecast rests on, is the model's (`super`).

/// Kinds of actions: cuts, removed blocks, precisions, masks, precisions of few bits.
pub(in crate::plan) const KINDS: usize = 5;
/// Relative error of a fit nobody has checked yet, and how many checked plans that is worth.
pub(super) const DOUBT: (f64, f64) = (0.5, 3.0);

/// One plan that was tried: its harms, the drop that was seen, and that drop's error, both in points of top-1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub h: [f64; KINDS],
    pub drop: f64,
    pub sd: f64,
}

/// Fitted weights; `drop = most · (1 − exp(−Σ w_k h_k / most))`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Fit {
    /// Logarithms of the weights.
    log: [f64; KINDS],
    /// Points that can be lost at all.
    most: f64,
    /// Covariance of the logarithms.
    covariance: [[f64; KINDS]; KINDS],
}

/// Prior of a weight's logarithm about their mean.
const KIND_SPREAD: f64 = 1.0;
/// A weak pull to the level that the points suggest keeps what no plan touched in place.
const PULL: f64 = 1e-3;

impl Fit {
    /// Maximum a posteriori, a coordinate at a time by golden section; the posterior is smooth and nearly separable. `start`
    /// is a solution for nearly the same points.
    pub fn of(points: &[Point], most: f64, start: Option<&Fit>) -> Fit {
        // The level that the points themselves suggest, weighted by how much they can say.
        let (mut sum, mut mass) = (0.0, 0.0);
        for p in points {
            let h: f64 = p.h.iter().sum();
            let drop = p.drop.clamp(0.02, 0.98 * most);
            let u = -most * (1.0 - drop / most).ln();
            let weight = 1.0 / ((p.sd / drop).powi(2) + DOUBT.0 * DOUBT.0);
            sum += weight * (u / h).ln();
            mass += weight;
        }
        let level = sum / mass.max(1e-12);
        let (sweeps, reach) = if start.is_some() { (3, 1.0) } else { (12, 3.0) };
        let cost = |log: &[f64; KINDS]| -> f64 {
            let mean = log.iter().sum::<f64>() / KINDS as f64;
            let prior: f64 = log.iter().map(|l| ((l - mean) / KIND_SPREAD).powi(2)).sum();
            let misfit: f64 = points
                .iter()
                .map(|p| {
                    let drop = saturated(&p.h, log, most);
                    ((p.drop - drop) / error(p, drop, DOUBT.0)).powi(2)
                })
                .sum();
            prior + misfit + PULL * log.iter().map(|l| (l - level).powi(2)).sum::<f64>()
        };
        let mut log = start.map_or([level; KINDS], |s| s.log);
        for _ in 0..sweeps {
            for k in 0..KINDS {
                let at = |v: f64| {
                    let mut l = log;
                    l[k] = v;
                    cost(&l)
                };
                log[k] = golden(at, log[k] - reach, log[k] + reach);
            }
        }
        Fit { log, most, covariance: [[0.0; KINDS]; KINDS] }
    }

    /// How sure chance in these points leaves the weights (Laplace's approximation with the Gauss-Newton Hessian); by what
    /// part of itself a plan lies off any weights is another matter.
    pub fn sure(mut self, points: &[Point]) -> Fit {
        let even = 1.0 / (KIND_SPREAD * KIND_SPREAD);
        let mut hessian = [[-even / KINDS as f64; KINDS]; KINDS];
        for (k, row) in hessian.iter_mut().enumerate() {
            row[k] += even + PULL;
        }
        for p in points {
            let (slope, sd) = (self.slope(&p.h), error(p, 0.0, 0.0));
            for (row, a) in hessian.iter_mut().zip(slope) {
                for (v, b) in row.iter_mut().zip(slope) {
                    *v += a * b / (sd * sd);
                }
            }
        }
        self.covariance = inverse(hessian);
        self
    }

    pub fn weights(&self) -> [f64; KINDS] {
        self.log.map(f64::exp)
    }

    /// Harms in points, before they saturate.
    pub fn sum(&self, h: &[f64; KINDS]) -> f64 {
        summed(h, &self.log)
    }

    /// Points that a plan with these harms loses.
    pub fn drop(&self, h: &[f64; KINDS]) -> f64 {
        saturated(h, &self.log, self.most)
    }

    /// Error of [`Fit::drop`], in points, from that of the weights; of a difference where there is something beside.
    pub fn sd(&self, h: &[f64; KINDS], beside: Option<&[f64; KINDS]>) -> f64 {
        let mut slope = self.slope(h);
        for (s, b) in slope.iter_mut().zip(beside.map_or([0.0; KINDS], |b| self.slope(b))) {
            *s -= b;
        }
        let row = |row: &[f64; KINDS]| row.iter().zip(slope).map(|(c, s)| c * s).sum::<f64>();
        slope.iter().zip(&self.covariance).map(|(s, r)| s * row(r)).sum::<f64>().max(0.0).sqrt()
    }

    /// What the drop gains with each weight's logarithm.
    fn slope(&self, h: &[f64; KINDS]) -> [f64; KINDS] {
        let left = (-self.sum(h) / self.most).exp();
        let weights = self.weights();
        std::array::from_fn(|k| h[k] * weights[k] * left)
    }
}

fn summed(h: &[f64; KINDS], log: &[f64; KINDS]) -> f64 {
    h.iter().zip(log).map(|(h, l)| h * l.exp()).sum()
}

fn saturated(h: &[f64; KINDS], log: &[f64; KINDS], most: f64) -> f64 {
    most * (1.0 - (-summed(h, log) / most).exp())
}

/// A point's error about a fit that says `drop`: its own, and a part of the larger of both, so that no weight grows for the
/// sake of a wide error.
fn error(p: &Point, drop: f64, doubt: f64) -> f64 {
    (p.sd * p.sd + (doubt * 0.5 * (drop.abs() + p.drop.abs())).powi(2) + 1e-6).sqrt()
}

/// The inverse of a symmetric positive definite matrix, by Gauss-Jordan elimination.
fn inverse(mut m: [[f64; KINDS]; KINDS]) -> [[f64; KINDS]; KINDS] {
    let mut out: [[f64; KINDS]; KINDS] = std::array::from_fn(|i| std::array::from_fn(|j| f64::from(u8::from(i == j))));
    for k in 0..KINDS {
        let pivot = m[k][k];
        for j in 0..KINDS {
            (m[k][j], out[k][j]) = (m[k][j] / pivot, out[k][j] / pivot);
        }
        let (row, its) = (m[k], out[k]);
        for i in (0..KINDS).filter(|i| *i != k) {
            let factor = m[i][k];
            for j in 0..KINDS {
                m[i][j] -= factor * row[j];
                out[i][j] -= factor * its[j];
            }
        }
    }
    out
}

/// Where `f` is least between `low` and `high`, by golden section.
fn golden(f: impl Fn(f64) -> f64, mut low: f64, mut high: f64) -> f64 {
    let ratio = 0.5 * (5f64.sqrt() - 1.0);
    let (mut a, mut b) = (high - ratio * (high - low), low + ratio * (high - low));
    let (mut fa, mut fb) = (f(a), f(b));
    for _ in 0..28 {
        if fa < fb {
            (high, b, fb) = (b, a, fa);
            a = high - ratio * (high - low);
            fa = f(a);
        } else {
            (low, a, fa) = (a, b, fb);
            b = low + ratio * (high - low);
            fb = f(b);
        }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_times_its_inverse_is_one() {
        let m: [[f64; KINDS]; KINDS] =
            std::array::from_fn(|i| std::array::from_fn(|j| 1.0 / (1.0 + i as f64 + j as f64)));
        let m = std::array::from_fn(|i| std::array::from_fn(|j| m[i][j] + f64::from(u8::from(i == j))));
        let inv = inverse(m);
        for (i, row) in m.iter().enumerate() {
            for j in 0..KINDS {
                let v: f64 = row.iter().zip(&inv).map(|(a, b)| a * b[j]).sum();
                assert!((v - f64::from(u8::from(i == j))).abs() < 1e-12, "{i} {j} {v}");
            }
        }
    }

    #[test]
    fn a_weight_is_known_as_well_as_the_plans_tell() {
        let point = |h: f64, kind: usize, drop: f64, sd: f64| {
            let mut at = [0.0; KINDS];
            at[kind] = h;
            Point { h: at, drop, sd }
        };
        let fit = |points: &[Point]| Fit::of(points, 80.0, None).sure(points);
        let cuts = [point(0.1, 0, 2.0, 0.1), point(0.4, 0, 7.6, 0.1)];
        // A drop that is lost in noise is known no better than the noise, whatever was fitted.
        let noise = point(0.02, 2, 0.0, 0.5);
        let f = fit(&[cuts[0], cuts[1], noise]);
        assert!(f.sd(&cuts[1].h, None) < 0.02 * f.drop(&cuts[1].h), "{f:?}");
        let unsure = f.sd(&noise.h, None);
        assert!((0.15..=0.5).contains(&unsure), "{unsure}");
        // The same of a hundred times as many images.
        let f = fit(&[cuts[0], cuts[1], point(0.02, 2, 0.0, 0.05)]);
        assert!(f.sd(&noise.h, None) < 0.5 * unsure, "{} {unsure}", f.sd(&noise.h, None));
        assert!(f.sd(&cuts[1].h, Some(&cuts[1].h)) < 1e-9, "nothing between a plan and itself");
    }
}
