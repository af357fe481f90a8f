//! Ridge regression with an intercept, from sums gathered chunk by chunk.
//!
//! Products run in f32 per chunk and are added up in f64; the solve is a Cholesky factorisation in f64.

use crate::prune::Normal;
use candle_core::Tensor;

/// Sums over samples of `x xᵀ`, `x tᵀ`, `x`, `t` and `t²`.
#[derive(Debug, Clone)]
pub(super) struct Sums {
    n: f64,
    d: usize,
    o: usize,
    xx: Vec<f64>,
    xt: Vec<f64>,
    x: Vec<f64>,
    t: Vec<f64>,
    tt: f64,
}

/// `t ≈ W x + b`: `weight` is `[outputs, inputs]` row-major.
#[derive(Debug, Clone)]
pub(super) struct Fit {
    pub weight: Vec<f32>,
    pub bias: Vec<f32>,
}

impl Sums {
    pub fn new(inputs: usize, outputs: usize) -> Sums {
        Sums {
            n: 0.0,
            d: inputs,
            o: outputs,
            xx: vec![0.0; inputs * inputs],
            xt: vec![0.0; inputs * outputs],
            x: vec![0.0; inputs],
            t: vec![0.0; outputs],
            tt: 0.0,
        }
    }

    pub fn inputs(&self) -> usize {
        self.d
    }

    /// Samples that were added.
    pub fn samples(&self) -> u64 {
        self.n as u64
    }

    /// What [`Normal`] asks for, with the bias that goes with any weights where there is to be one: the Gram matrix `Σ x xᵀ`, `Σ t xᵀ`
    /// (`[outputs, inputs]`) and `Σ t²`, of values less their mean with an `intercept`.
    pub fn normal(&self, intercept: bool) -> (Vec<f64>, Vec<f64>, f64) {
        let (d, o) = (self.d, self.o);
        let centre = if intercept { 1.0 / self.n.max(1.0) } else { 0.0 };
        let gram = self.xx.iter().enumerate().map(|(k, v)| v - self.x[k / d] * self.x[k % d] * centre).collect();
        let cross = (0..d * o).map(|k| self.xt[k % d * o + k / d] - self.x[k % d] * self.t[k / d] * centre).collect();
        (gram, cross, self.tt - self.t.iter().map(|t| t * t).sum::<f64>() * centre)
    }

    /// The intercept that goes with `weight` `[outputs, inputs]`: what its mean output lacks.
    pub fn intercept(&self, weight: &[f32]) -> Vec<f32> {
        let of = |row: &[f32]| row.iter().zip(&self.x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
        weight
            .chunks_exact(self.d.max(1))
            .zip(&self.t)
            .map(|(row, t)| ((t - of(row)) / self.n.max(1.0)) as f32)
            .collect()
    }

    /// `Σ |t - W x - b|²`.
    pub fn error(&self, weight: &[f32], bias: &[f32]) -> f64 {
        let (gram, cross, squares) = self.normal(false);
        let plain = Normal { gram: &gram, cross: &cross, squares }.error(weight);
        let shift = |(row, (b, t)): (&[f32], (&f32, &f64))| {
            let (b, wx) = (f64::from(*b), row.iter().zip(&self.x).map(|(w, x)| f64::from(*w) * x).sum::<f64>());
            b * (self.n * b + 2.0 * (wx - t))
        };
        plain + weight.chunks_exact(self.d.max(1)).zip(bias.iter().zip(&self.t)).map(shift).sum::<f64>()
    }

    /// Adds samples `x` `[n, inputs]` and `t` `[n, outputs]`.
    pub fn add(&mut self, x: &Tensor, t: &Tensor) -> candle_core::Result<()> {
        let n = x.dim(0)?;
        // Small enough that f32 partial sums lose nothing that the ridge term would notice.
        for start in (0..n).step_by(2048) {
            let len = 2048.min(n - start);
            let (xs, ts) = (x.narrow(0, start, len)?, t.narrow(0, start, len)?);
            let xt = xs.t()?;
            add_to(&mut self.xx, &xt.matmul(&xs)?)?;
            add_to(&mut self.xt, &xt.matmul(&ts)?)?;
            add_to(&mut self.x, &xs.sum(0)?)?;
            add_to(&mut self.t, &ts.sum(0)?)?;
            self.tt += f64::from(ts.sqr()?.sum_all()?.to_scalar::<f32>()?);
            self.n += len as f64;
        }
        Ok(())
    }

    /// Minimises `Σ |t - W x - b|² + λ̄ |W - prior|²`, where `λ̄` is `lambda` times the mean diagonal of the (centred)
    /// Gram matrix; the intercept is free, or zero without `intercept`. `None` when the matrix is not positive.
    pub fn solve(&self, lambda: f64, prior: &[f32], intercept: bool) -> Option<Fit> {
        let (d, o, n) = (self.d, self.o, self.n.max(1.0));
        if d == 0 || o == 0 || self.n == 0.0 || prior.len() != d * o {
            return None;
        }
        let (gram, cross, squares) = self.normal(intercept);
        let w = Normal { gram: &gram, cross: &cross, squares }.solution(prior, lambda)?;
        let mut fit = Fit { weight: vec![0.0; o * d], bias: vec![0.0; o] };
        for j in 0..o {
            let mut b = self.t[j];
            for i in 0..d {
                fit.weight[j * d + i] = w[(i, j)] as f32;
                b -= w[(i, j)] * self.x[i];
            }
            fit.bias[j] = if intercept { (b / n) as f32 } else { 0.0 };
        }
        let finite = fit.weight.iter().chain(&fit.bias).all(|v| v.is_finite());
        finite.then_some(fit)
    }
}

/// Adds a tensor's values to sums of them.
pub(crate) fn add_to(sum: &mut [f64], part: &Tensor) -> candle_core::Result<()> {
    for (s, v) in sum.iter_mut().zip(part.flatten_all()?.to_vec1::<f32>()?) {
        *s += f64::from(v);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn data(n: usize, d: usize, o: usize) -> (Tensor, Tensor, Vec<f32>) {
        let x: Vec<f32> = (0..n * d).map(|i| ((i * 7919 % 1009) as f32 / 504.5 - 1.0) + 0.3).collect();
        let w: Vec<f32> = (0..o * d).map(|i| ((i * 31 % 17) as f32 - 8.0) / 8.0).collect();
        let mut t = vec![0f32; n * o];
        for s in 0..n {
            for j in 0..o {
                t[s * o + j] = 0.5 * j as f32 + (0..d).map(|i| w[j * d + i] * x[s * d + i]).sum::<f32>();
            }
        }
        let tensor = |v: Vec<f32>, c| Tensor::from_vec(v, (n, c), &Device::Cpu).unwrap();
        (tensor(x, d), tensor(t, o), w)
    }

    #[test]
    fn a_linear_law_is_found_with_its_intercept() {
        let (x, t, w) = data(5000, 12, 3);
        let mut sums = Sums::new(12, 3);
        sums.add(&x, &t).unwrap();
        let fit = sums.solve(1e-9, &[0.0; 36], true).unwrap();
        for (a, b) in fit.weight.iter().zip(&w) {
            assert!((a - b).abs() < 1e-3, "{a} {b}");
        }
        for (j, b) in fit.bias.iter().enumerate() {
            assert!((b - 0.5 * j as f32).abs() < 1e-3, "{b}");
        }
    }

    #[test]
    fn errors_and_intercepts_are_those_of_the_samples() {
        let (x, t, w) = data(700, 5, 2);
        let mut sums = Sums::new(5, 2);
        sums.add(&x, &t).unwrap();
        let bias = sums.intercept(&w);
        assert!(bias[0].abs() < 1e-4 && (bias[1] - 0.5).abs() < 1e-4, "{bias:?}");
        // Every output is off by what the bias lacks.
        let off = sums.error(&w, &[0.25, 0.5]);
        assert!((off - 700.0 * 0.0625).abs() < 0.05, "{off}");
        let (gram, cross, squares) = sums.normal(true);
        assert!(Normal { gram: &gram, cross: &cross, squares }.error(&w).abs() < 0.05);
        assert_eq!(sums.samples(), 700);
    }

    #[test]
    fn a_heavy_ridge_returns_the_prior_and_too_little_data_is_no_matter() {
        let (x, t, _) = data(3, 12, 3);
        let mut sums = Sums::new(12, 3);
        sums.add(&x, &t).unwrap();
        let prior: Vec<f32> = (0..36).map(|i| i as f32 / 36.0).collect();
        let fit = sums.solve(1e9, &prior, true).unwrap();
        for (a, b) in fit.weight.iter().zip(&prior) {
            assert!((a - b).abs() < 1e-4);
        }
        assert!(sums.solve(1e-3, &prior, false).is_some());
        assert!(Sums::new(12, 3).solve(1e-3, &prior, true).is_none(), "no samples");
    }
}
