//! A layer's least squares: what it reads and what it should give, as sums over samples, and how far weights are from that.
//!
//! Invariant: nothing here knows which of the weights may be other than zero (`masks`) or which inputs go (`surgeon`).

use faer::linalg::matmul::matmul;
use faer::linalg::solvers::{DenseSolveCore, Solve};
use faer::traits::ComplexField;
use faer::{Accum, Mat, MatMut, MatRef, Par, Side};
use rayon::prelude::*;

/// Sums over samples of a layer's inputs `x` and of what its outputs should be, `t`.
#[derive(Debug, Clone, Copy)]
pub struct Normal<'a> {
    /// `Σ x xᵀ`, `[inputs, inputs]`.
    pub gram: &'a [f64],
    /// `Σ t xᵀ`, `[outputs, inputs]`.
    pub cross: &'a [f64],
    /// `Σ t²` of all outputs.
    pub squares: f64,
}

impl Normal<'_> {
    pub fn inputs(&self) -> usize {
        self.gram.len().isqrt()
    }

    pub fn outputs(&self) -> usize {
        self.cross.len() / self.inputs().max(1)
    }

    /// What is added to the Gram matrix's diagonal: `lambda` times its mean. `None` where that is no positive number.
    pub fn ridge(&self, lambda: f64) -> Option<f64> {
        let d = self.inputs();
        let mean = (0..d).map(|i| self.gram[i * d + i]).sum::<f64>() / d.max(1) as f64;
        (mean.is_finite() && mean > 0.0).then_some(lambda * mean)
    }

    /// `Σ |t - W x|²` of `weight` `[outputs, inputs]`.
    pub fn error(&self, weight: &[f32]) -> f64 {
        let (d, o) = (self.inputs(), self.outputs());
        let w: Vec<f64> = weight.iter().map(|v| f64::from(*v)).collect();
        let through = product((&w, o), (self.gram, d));
        let each = w.iter().zip(&through).zip(self.cross);
        self.squares + each.map(|((w, g), c)| w * (g - 2.0 * c)).sum::<f64>()
    }

    /// Minimises `Σ |t - W x|² + λ̄ |W - prior|²`, with `λ̄` as [`Normal::ridge`] has it. `None` where the matrix is not positive or counts
    /// disagree.
    pub fn solve(&self, prior: &[f32], lambda: f64) -> Option<Vec<f32>> {
        let (d, o) = (self.inputs(), self.outputs());
        let w = self.solution(prior, lambda)?;
        let out: Vec<f32> = (0..d * o).map(|k| w[(k % d, k / d)] as f32).collect();
        out.iter().all(|v| v.is_finite()).then_some(out)
    }

    /// The same before it is rounded, `[inputs, outputs]`.
    pub fn solution(&self, prior: &[f32], lambda: f64) -> Option<Mat<f64>> {
        let (d, o) = (self.inputs(), self.outputs());
        if prior.len() != d * o || d == 0 {
            return None;
        }
        let ridge = self.ridge(lambda)?;
        let right = Mat::<f64>::from_fn(d, o, |i, j| self.cross[j * d + i] + ridge * f64::from(prior[j * d + i]));
        Some(damped(self.gram, d, ridge).llt(Side::Lower).ok()?.solve(&right))
    }
}

/// A Gram matrix with `ridge` on its diagonal.
pub(super) fn damped(gram: &[f64], d: usize, ridge: f64) -> Mat<f64> {
    Mat::from_fn(d, d, |i, j| gram[i * d + j] + if i == j { ridge } else { 0.0 })
}

/// The inverse of a Gram matrix with `ridge` on its diagonal; `None` where it is not positive.
pub(super) fn inverse(gram: &[f64], d: usize, ridge: f64) -> Option<Mat<f64>> {
    let found = damped(gram, d, ridge).llt(Side::Lower).ok()?.inverse();
    let sound = found.col_iter().all(|c| c.iter().all(|v| v.is_finite()));
    sound.then_some(found)
}

/// `w` `[rows, d]` times a symmetric matrix `[d, d]`.
fn product((w, rows): (&[f64], usize), (symmetric, d): (&[f64], usize)) -> Vec<f64> {
    let mut out = vec![0.0; rows * d];
    add(&mut out, (w, d), (symmetric, d), 1.0);
    out
}

/// Rows that a thread takes at a time.
const ROWS: usize = 64;

/// Adds `factor` times `a` `[rows, k]` times `b` `[k, columns]` to `to`. However many threads there are, sums are in one order.
pub(super) fn add<T: ComplexField + Copy + Send + Sync>(
    to: &mut [T],
    (a, k): (&[T], usize),
    (b, columns): (&[T], usize),
    factor: T,
) {
    if k == 0 || columns == 0 {
        return;
    }
    let b = MatRef::from_row_major_slice(b, k, columns);
    to.par_chunks_mut(ROWS * columns).zip(a.par_chunks(ROWS * k)).for_each(|(to, a)| {
        let rows = a.len() / k;
        let to = MatMut::from_row_major_slice_mut(to, rows, columns);
        matmul(to, Accum::Add, MatRef::from_row_major_slice(a, rows, k), b, factor, Par::Seq);
    });
}

#[cfg(test)]
pub(super) mod testing {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// Inputs that depend on one another and the sums of them, and a weight with the outputs that it should give.
    pub struct Sample {
        pub x: Vec<Vec<f64>>,
        pub t: Vec<Vec<f64>>,
        pub weight: Vec<f32>,
        pub gram: Vec<f64>,
        pub cross: Vec<f64>,
        pub squares: f64,
    }

    impl Sample {
        pub fn new(inputs: usize, outputs: usize, seed: u64) -> Sample {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut draw = || rng.random::<f64>() * 2.0 - 1.0;
            let hidden = inputs.div_ceil(2);
            let mix: Vec<f64> = (0..hidden * inputs).map(|_| draw()).collect();
            let weight: Vec<f32> = (0..outputs * inputs).map(|_| draw() as f32).collect();
            let (mut x, mut t) = (Vec::new(), Vec::new());
            for _ in 0..8 * inputs {
                let h: Vec<f64> = (0..hidden).map(|_| draw()).collect();
                let mixed = |c: usize| (0..hidden).map(|k| h[k] * mix[k * inputs + c]).sum::<f64>();
                let row: Vec<f64> = (0..inputs).map(|c| mixed(c) + 0.3 * draw()).collect();
                let out =
                    |o: usize| row.iter().enumerate().map(|(c, x)| x * f64::from(weight[o * inputs + c])).sum::<f64>();
                t.push((0..outputs).map(|o| out(o) + 0.05 * draw()).collect::<Vec<f64>>());
                x.push(row);
            }
            let sum = |f: &dyn Fn(usize) -> f64| (0..x.len()).map(f).sum::<f64>();
            let gram = (0..inputs * inputs).map(|i| sum(&|s| x[s][i / inputs] * x[s][i % inputs])).collect();
            let cross = (0..outputs * inputs).map(|i| sum(&|s| t[s][i / inputs] * x[s][i % inputs])).collect();
            let squares = t.iter().flatten().map(|v| v * v).sum();
            Sample { x, t, weight, gram, cross, squares }
        }

        pub fn normal(&self) -> super::Normal<'_> {
            super::Normal { gram: &self.gram, cross: &self.cross, squares: self.squares }
        }

        /// By the definition.
        pub fn error(&self, weight: &[f32]) -> f64 {
            let d = self.x[0].len();
            let of = |x: &[f64], row: &[f32]| x.iter().zip(row).map(|(x, w)| x * f64::from(*w)).sum::<f64>();
            let one = |(x, t): (&Vec<f64>, &Vec<f64>)| {
                weight.chunks(d).zip(t).map(|(row, t)| (t - of(x, row)).powi(2)).sum::<f64>()
            };
            self.x.iter().zip(&self.t).map(one).sum()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Sample;

    #[test]
    fn errors_are_those_of_the_samples_and_no_weights_have_less_than_the_solution() {
        let sample = Sample::new(9, 4, 1);
        let normal = sample.normal();
        let (own, by_hand) = (normal.error(&sample.weight), sample.error(&sample.weight));
        assert!((own - by_hand).abs() < 1e-8 * by_hand, "{own} {by_hand}");
        let best = normal.solve(&[0.0; 36], 1e-9).unwrap();
        let least = sample.error(&best);
        assert!(least < by_hand);
        for i in 0..36 {
            let mut other = best.clone();
            other[i] += 0.01;
            assert!(sample.error(&other) > least, "{i}");
        }
        assert_eq!(normal.solve(&sample.weight, 1e12).map(|w| w[5]), Some(sample.weight[5]), "all ridge");
        assert!(normal.solve(&[0.0; 3], 1e-3).is_none());
    }
}
