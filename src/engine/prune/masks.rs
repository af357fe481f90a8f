//! Which weights of a linear layer become zero, by what the layer reads, and what the others become.
//!
//! Wanda (Sun et al. 2023, arXiv 2306.11695): the lowest `|w| · ‖x‖` go, and nothing else changes. SparseGPT (Frantar and Alistarh 2023,
//! arXiv 2301.00774): column after column the lowest `w² / [H⁻¹]` go, and later columns make up for them. Ours begins with the best weights
//! for what the layer should give and SparseGPT's choice among them, then goes on: the weights that are left are solved for, and a weight
//! that is zero changes places with one that is not wherever that lowers the error.
//!
//! Invariants: as many weights are zero as the pattern says; the learnt ones are no worse on the sums than SparseGPT's. Not here: where sums
//! come from and whether what was learnt stays (`recover`).

use super::normal::{Normal, add, damped};
use super::sparsity::Sparsity;
use crate::quant::{Factor, ROWS};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// How masks over the linear layers of a language model are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Masks {
    /// The smallest magnitudes go (Han et al. 2015). What journals say that do not say it.
    Magnitude,
    Wanda,
    SparseGpt,
    /// Masks and the weights that are left, by least squares; kept where they have less error on text that they were not fitted on.
    #[default]
    Learnt,
}

impl Masks {
    pub const ALL: [Masks; 4] = [Masks::Magnitude, Masks::Wanda, Masks::SparseGpt, Masks::Learnt];

    pub fn label(self) -> &'static str {
        match self {
            Masks::Magnitude => "magnitude",
            Masks::Wanda => "wanda",
            Masks::SparseGpt => "sparsegpt",
            Masks::Learnt => "learnt",
        }
    }
}

impl std::str::FromStr for Masks {
    type Err = String;

    fn from_str(s: &str) -> Result<Masks, String> {
        let known = Masks::ALL.map(Masks::label).join(", ");
        let found = Masks::ALL.into_iter().find(|m| m.label() == s.trim().to_lowercase());
        found.ok_or_else(|| format!("unknown masks `{s}`; hint: one of {known}"))
    }
}

/// `weight` `[outputs, inputs]` with the lowest `|w| · ‖x‖` at zero, of each output as many. `None` where counts disagree.
pub fn wanda(weight: &[f32], gram: &[f64], pattern: Sparsity) -> Option<Vec<f32>> {
    let d = gram.len().isqrt();
    if d == 0 || !weight.len().is_multiple_of(d) {
        return None;
    }
    let norms: Vec<f32> = (0..d).map(|i| gram[i * d + i].max(0.0).sqrt() as f32).collect();
    let mut out = weight.to_vec();
    for row in out.chunks_exact_mut(d) {
        let scores: Vec<f32> = row.iter().zip(&norms).map(|(w, n)| w.abs() * n).collect();
        pattern.lowest(&scores, &[1, d]).into_iter().for_each(|i| row[i] = 0.0);
    }
    Some(out)
}

/// Columns whose zeros are chosen at once where the pattern is of the whole matrix; the paper's.
const TOGETHER: usize = 128;

/// `weight` `[outputs, inputs]` by the published algorithm, columns in their order. `None` where counts disagree, or the matrix is none of a
/// sum of squares.
pub fn sparsegpt(weight: &[f32], gram: &[f64], pattern: Sparsity) -> Option<Vec<f32>> {
    let d = gram.len().isqrt();
    if d == 0 || !weight.len().is_multiple_of(d) {
        return None;
    }
    Some(surgical(weight, &Factor::in_order(gram, (0..d).collect())?, pattern))
}

/// SparseGPT in the order of `factor`, in which columns that a pattern puts together are neighbours.
fn surgical(weight: &[f32], factor: &Factor, pattern: Sparsity) -> Vec<f32> {
    let order = &factor.order;
    let d = order.len();
    let rows = weight.len() / d;
    let mut left: Vec<f64> = (0..rows).flat_map(|r| order.iter().map(move |c| f64::from(weight[r * d + c]))).collect();
    let score = |w: f64, j: usize| (w / factor.upper[j * d + j]).powi(2) as f32;
    // Column `j` of a row: where it goes, those after it make up for it.
    let settle = |row: &mut [f64], j: usize, goes: bool| {
        if goes {
            let line = &factor.upper[j * d..][..d];
            let off = row[j] / line[j];
            row[j + 1..].iter_mut().zip(&line[j + 1..]).for_each(|(w, u)| *w -= off * u);
            row[j] = 0.0;
        }
    };
    match pattern {
        Sparsity::NofM { m, .. } => {
            let m = usize::from(m);
            left.par_chunks_mut(d).for_each(|row| {
                let mut start = 0;
                while start < d {
                    let run = order[start] / m;
                    let end = (start..d).find(|j| order[*j] / m != run).unwrap_or(d);
                    let mut goes = vec![false; end - start];
                    if end - start == m {
                        let scores: Vec<f32> = (start..end).map(|j| score(row[j], j)).collect();
                        pattern.lowest(&scores, &[1, m]).into_iter().for_each(|i| goes[i] = true);
                    }
                    (start..end).zip(goes).for_each(|(j, goes)| settle(row, j, goes));
                    start = end;
                }
            });
        }
        Sparsity::Unstructured { .. } => {
            for start in (0..d).step_by(TOGETHER) {
                let n = TOGETHER.min(d - start);
                let one = |k: usize| score(left[k / n * d + start + k % n], start + k % n);
                let scores: Vec<f32> = (0..rows * n).map(one).collect();
                let mut goes = vec![false; rows * n];
                pattern.lowest(&scores, &[rows, n]).into_iter().for_each(|i| goes[i] = true);
                left.par_chunks_mut(d).zip(goes.par_chunks(n)).for_each(|(row, goes)| {
                    (start..).zip(goes).for_each(|(j, goes)| settle(row, j, *goes));
                });
            }
        }
    }
    let mut out = vec![0f32; weight.len()];
    for (row, left) in out.chunks_exact_mut(d).zip(left.chunks_exact(d)) {
        order.iter().zip(left).for_each(|(c, w)| row[*c] = *w as f32);
    }
    out
}

/// Times that zeros change places.
const SWAPS: usize = 8;

/// Steps of the solver between two of those.
const STEPS: usize = 12;

/// Masks and the weights that are left, for `Σ |t - W x|²` with a ridge towards `prior` `[outputs, inputs]` ([`Normal::solve`]). `None` where
/// counts disagree, or the matrix is none of a sum of squares.
pub fn learnt(normal: &Normal, prior: &[f32], pattern: Sparsity, lambda: f64) -> Option<Vec<f32>> {
    let (d, o) = (normal.inputs(), normal.outputs());
    let whole = normal.solve(prior, lambda)?;
    let together = match pattern {
        Sparsity::NofM { m, .. } => usize::from(m),
        Sparsity::Unstructured { .. } => 1,
    };
    let start = surgical(&whole, &Factor::new(normal.gram, d, together)?, pattern);
    let system = System::new(normal, prior, lambda)?;
    let mut w = system.scaled(&start);
    system.solve(&mut w, STEPS);
    for _ in 0..SWAPS {
        system.swap(&mut w, pattern);
        system.solve(&mut w, STEPS);
    }
    system.solve(&mut w, 4 * STEPS);
    let found = system.unscaled(&w);
    // A weight that was solved to nothing is none.
    (found.len() == d * o && found.iter().all(|v| v.is_finite())).then_some(found)
}

/// `W A = B` in columns that are scaled so that `A` has ones on its diagonal. Weights of zero are those that a mask has.
struct System {
    d: usize,
    /// `[d, d]`.
    a: Vec<f32>,
    /// `[rows, d]`.
    b: Vec<f32>,
    scale: Vec<f64>,
}

impl System {
    fn new(normal: &Normal, prior: &[f32], lambda: f64) -> Option<System> {
        let d = normal.inputs();
        let ridge = normal.ridge(lambda)?;
        let a = damped(normal.gram, d, ridge);
        let scale: Vec<f64> = (0..d).map(|i| a[(i, i)].sqrt().recip()).collect();
        if !scale.iter().all(|s| s.is_finite()) {
            return None;
        }
        let one = |(k, c): (usize, &f64)| ((c + ridge * f64::from(prior[k])) * scale[k % d]) as f32;
        let b = normal.cross.iter().enumerate().map(one).collect();
        let a = (0..d * d).map(|k| (a[(k / d, k % d)] * scale[k / d] * scale[k % d]) as f32).collect();
        Some(System { d, a, b, scale })
    }

    fn scaled(&self, w: &[f32]) -> Vec<f32> {
        w.iter().enumerate().map(|(k, w)| (f64::from(*w) / self.scale[k % self.d]) as f32).collect()
    }

    fn unscaled(&self, w: &[f32]) -> Vec<f32> {
        w.iter().enumerate().map(|(k, w)| (f64::from(*w) * self.scale[k % self.d]) as f32).collect()
    }

    /// `w A`.
    fn through(&self, w: &[f32]) -> Vec<f32> {
        let mut out = vec![0f32; w.len()];
        add(&mut out, (w, self.d), (&self.a, self.d), 1.0);
        out
    }

    /// `B - w A`.
    fn residual(&self, w: &[f32]) -> Vec<f32> {
        self.b.iter().zip(self.through(w)).map(|(b, v)| b - v).collect()
    }

    /// Conjugate gradients for each row on its own, over the weights that are not zero.
    fn solve(&self, w: &mut [f32], steps: usize) {
        let d = self.d;
        let free: Vec<bool> = w.iter().map(|w| *w != 0.0).collect();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let mut r = self.residual(w);
        r.iter_mut().zip(&free).for_each(|(r, free)| *r = if *free { *r } else { 0.0 });
        let mut p = r.clone();
        let mut length: Vec<f64> = r.par_chunks(d).map(|r| dot(r, r)).collect();
        let first = length.clone();
        for _ in 0..steps {
            let q = self.through(&p);
            let rows = w.par_chunks_mut(d).zip(r.par_chunks_mut(d)).zip(p.par_chunks_mut(d));
            let facts = q.par_chunks(d).zip(free.par_chunks(d)).zip(length.par_iter_mut().zip(&first));
            rows.zip(facts).for_each(|(((w, r), p), ((q, free), (length, first)))| {
                let curve = dot(p, q);
                // Done, or as far as 32 bits go.
                if curve <= 0.0 || *length <= 1e-12 * first {
                    return;
                }
                let step = (*length / curve) as f32;
                for i in (0..d).filter(|i| free[*i]) {
                    w[i] += step * p[i];
                    r[i] -= step * q[i];
                }
                let next = dot(r, r);
                let keep = (next / *length) as f32;
                p.iter_mut().zip(r.iter()).for_each(|(p, r)| *p = r + keep * *p);
                *length = next;
            });
        }
        // What came out as nothing would count as masked from then on.
        w.iter_mut().zip(&free).filter(|(w, free)| **free && **w == 0.0).for_each(|(w, _)| *w = f32::MIN_POSITIVE);
    }

    /// Lets a zero change places with a weight wherever that lowers a row's error, others being as they are: exactly by
    /// `w_j² - (g_k + w_j a_jk)²` for `j` going and `k` coming, of the gradient `g`.
    fn swap(&self, w: &mut [f32], pattern: Sparsity) {
        let d = self.d;
        let mut all = self.residual(w);
        w.par_chunks_mut(d * ROWS).zip(all.par_chunks_mut(d * ROWS)).for_each(|(w, g)| {
            for (w, g) in w.chunks_exact_mut(d).zip(g.chunks_exact_mut(d)) {
                match pattern {
                    Sparsity::NofM { m, .. } => {
                        let m = usize::from(m);
                        for start in (0..d / m * m).step_by(m) {
                            let run = start..start + m;
                            let pairs = run.clone().flat_map(|j| run.clone().map(move |k| (j, k)));
                            let pairs = pairs.filter(|(j, k)| w[*j] != 0.0 && w[*k] == 0.0);
                            let best = pairs.map(|(j, k)| (self.gain(w, g, j, k), j, k));
                            if let Some((gain, j, k)) = best.max_by(|a, b| a.0.total_cmp(&b.0))
                                && gain > 0.0
                            {
                                self.change(w, g, j, k);
                            }
                        }
                    }
                    Sparsity::Unstructured { .. } => {
                        for _ in 0..d.div_ceil(16) {
                            let out =
                                (0..d).filter(|j| w[*j] != 0.0).min_by(|a, b| w[*a].abs().total_cmp(&w[*b].abs()));
                            let into =
                                (0..d).filter(|k| w[*k] == 0.0).max_by(|a, b| g[*a].abs().total_cmp(&g[*b].abs()));
                            let (Some(j), Some(k)) = (out, into) else { break };
                            if self.gain(w, g, j, k) <= 0.0 {
                                break;
                            }
                            self.change(w, g, j, k);
                        }
                    }
                }
            }
        });
    }

    /// What a row's error falls by when `j` goes and `k` comes.
    fn gain(&self, w: &[f32], g: &[f32], j: usize, k: usize) -> f32 {
        let comes = g[k] + w[j] * self.a[j * self.d + k];
        // Where the solver has not come to its end, `g_j` is not nothing.
        comes * comes - w[j] * (w[j] + 2.0 * g[j])
    }

    fn change(&self, w: &mut [f32], g: &mut [f32], j: usize, k: usize) {
        let d = self.d;
        let (goes, comes) = (w[j], g[k] + w[j] * self.a[j * d + k]);
        if comes == 0.0 {
            return;
        }
        let (a, b) = (&self.a[j * d..][..d], &self.a[k * d..][..d]);
        g.iter_mut().zip(a.iter().zip(b)).for_each(|(g, (a, b))| *g += goes * a - comes * b);
        (w[j], w[k]) = (0.0, comes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::normal::testing::Sample;
    use super::*;

    const PATTERNS: [Sparsity; 3] =
        [Sparsity::NofM { n: 2, m: 4 }, Sparsity::NofM { n: 4, m: 8 }, Sparsity::Unstructured { ratio: 0.5 }];

    #[test]
    fn wanda_compares_the_weights_of_each_output() {
        // Norms 1, 2, 3 and 10: scores 8, 2, 9, 10 and 1, 8, 6, 70.
        let mut gram = vec![0.0; 16];
        [1.0, 4.0, 9.0, 100.0].iter().enumerate().for_each(|(i, v)| gram[i * 5] = *v);
        let w = [8.0, 1.0, 3.0, -1.0, 1.0, -4.0, 2.0, 7.0];
        let want = vec![0.0, 0.0, 3.0, -1.0, 0.0, -4.0, 0.0, 7.0];
        assert_eq!(wanda(&w, &gram, Sparsity::NofM { n: 2, m: 4 }), Some(want.clone()));
        assert_eq!(wanda(&w, &gram, Sparsity::Unstructured { ratio: 0.5 }), Some(want));
        assert!(wanda(&w[..3], &gram, PATTERNS[0]).is_none());
    }

    /// The paper's algorithm 1 in its own terms: the inverse's rows by elimination, a block's mask when its turn comes.
    fn by_the_book(weight: &[f32], gram: &[f64], pattern: Sparsity, together: usize) -> Vec<f32> {
        let d = gram.len().isqrt();
        let mean = (0..d).map(|i| gram[i * d + i]).sum::<f64>() / d as f64;
        let inverse = super::super::normal::inverse(gram, d, 0.01 * mean).unwrap();
        let mut inverse: Vec<f64> = (0..d * d).map(|k| inverse[(k / d, k % d)]).collect();
        let rows = weight.len() / d;
        let mut w: Vec<f64> = weight.iter().map(|v| f64::from(*v)).collect();
        let mut goes = vec![false; w.len()];
        // The diagonal that each column has when all before it are gone.
        let diagonals: Vec<f64> = {
            let mut inverse = inverse.clone();
            (0..d)
                .map(|q| {
                    let own = inverse[q * d + q];
                    eliminate(&mut inverse, d, q);
                    own
                })
                .collect()
        };
        for q in 0..d {
            if q % together == 0 {
                let n = together.min(d - q);
                let one = |k: usize| (w[k / n * d + q + k % n].powi(2) / diagonals[q + k % n]) as f32;
                let scores: Vec<f32> = (0..rows * n).map(one).collect();
                for k in pattern.lowest(&scores, &[rows, n]) {
                    goes[k / n * d + q + k % n] = true;
                }
            }
            for r in (0..rows).filter(|r| goes[r * d + q]) {
                let off = w[r * d + q] / inverse[q * d + q];
                (q..d).for_each(|k| w[r * d + k] -= off * inverse[q * d + k]);
                w[r * d + q] = 0.0;
            }
            eliminate(&mut inverse, d, q);
        }
        w.into_iter().map(|v| v as f32).collect()
    }

    fn eliminate(inverse: &mut [f64], d: usize, q: usize) {
        let old = inverse.to_vec();
        (0..d * d).for_each(|i| inverse[i] -= old[i / d * d + q] * old[q * d + i % d] / old[q * d + q]);
    }

    #[test]
    fn sparsegpt_is_the_published_algorithm() {
        for (pattern, together) in PATTERNS.into_iter().zip([4, 8, TOGETHER]) {
            let sample = Sample::new(24, 5, 3);
            let ours = sparsegpt(&sample.weight, &sample.gram, pattern).unwrap();
            let theirs = by_the_book(&sample.weight, &sample.gram, pattern, together);
            for (a, b) in ours.iter().zip(&theirs) {
                assert!((a - b).abs() < 1e-5 && (*a == 0.0) == (*b == 0.0), "{pattern}: {a} {b}");
            }
        }
    }

    #[test]
    fn learnt_masks_have_the_pattern_and_less_error_than_the_published_ones() {
        for pattern in PATTERNS {
            let sample = Sample::new(32, 6, 8);
            let normal = sample.normal();
            let learnt = learnt(&normal, &sample.weight, pattern, 1e-6).unwrap();
            let magnitude = {
                let mut w = sample.weight.clone();
                pattern.apply(&mut w, &[6, 32]);
                w
            };
            let wanda = wanda(&sample.weight, &sample.gram, pattern).unwrap();
            let gpt = sparsegpt(&sample.weight, &sample.gram, pattern).unwrap();
            for w in [&learnt, &magnitude, &wanda, &gpt] {
                assert_eq!(w.iter().filter(|v| **v == 0.0).count(), 96, "{pattern}");
                if let Sparsity::NofM { n, m } = pattern {
                    let of = |run: &[f32]| run.iter().filter(|v| **v != 0.0).count() == usize::from(n);
                    assert!(w.chunks(usize::from(m)).all(of), "{pattern}");
                }
            }
            let [ours, magnitude, wanda, gpt] = [&learnt, &magnitude, &wanda, &gpt].map(|w| sample.error(w));
            assert!(gpt < wanda && gpt < magnitude, "{pattern}: {gpt} {wanda} {magnitude}");
            assert!(ours < 0.9 * gpt, "{pattern}: {ours} {gpt}");
        }
    }

    #[test]
    fn what_is_left_is_the_least_squares_of_its_mask() {
        let sample = Sample::new(16, 3, 9);
        let pattern = PATTERNS[0];
        let learnt = learnt(&sample.normal(), &sample.weight, pattern, 1e-8).unwrap();
        let error = sample.error(&learnt);
        for i in (0..learnt.len()).filter(|i| learnt[*i] != 0.0) {
            for by in [-1e-2, 1e-2] {
                let mut other = learnt.clone();
                other[i] += by;
                assert!(sample.error(&other) > error, "{i}");
            }
        }
    }

    #[test]
    fn methods_are_read_as_they_are_written() {
        for m in Masks::ALL {
            assert_eq!(m.label().parse(), Ok(m));
        }
        assert!("lottery".parse::<Masks>().is_err_and(|e| e.contains("hint")));
    }
}
