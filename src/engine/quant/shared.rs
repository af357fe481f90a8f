//! Weights that share a few values, chosen for what they are multiplied with: k-means in which a weight counts by its input's square, then
//! numbers column by column with errors that later columns make up for (as `gptq`), then the values again, by least squares of the layer's
//! outputs with the numbers held.
//!
//! The error is `Σ e H eᵀ` over rows, with `e` what sharing changes of a row and `H` the Gram matrix of the layer's inputs. Invariants: it is
//! not larger than k-means alone gives it; a weight of zero stays zero. Not here: how numbers and values lie (`model::codebook`).

use super::gptq::{Factor, ROWS, squared};
use crate::model::codebook::{Codebook, nearest, table};
use faer::linalg::solvers::Solve;
use faer::{Mat, Side};
use rayon::prelude::*;

/// Times that values and numbers are chosen anew.
const TURNS: usize = 3;

/// Shared values for a weight.
#[derive(Debug, Clone, PartialEq)]
pub struct LearntShared {
    pub codebook: Codebook,
    /// Summed errors of all rows: as they are, and by k-means alone.
    pub error: f64,
    pub kmeans: f64,
}

/// 2^bits values for `weight` `[rows, cols]` by the Gram matrix `gram` `[cols, cols]` of its inputs. `None` where counts disagree, or the
/// matrix is none of a sum of squares.
pub fn share(weight: &[f32], gram: &[f64], bits: u8) -> Option<LearntShared> {
    let cols = gram.len().isqrt();
    if cols == 0 || gram.len() != cols * cols || !weight.len().is_multiple_of(cols) {
        return None;
    }
    let rows = weight.len() / cols;
    let factor = Factor::new(gram, cols, 1)?;
    let plain = Codebook::quantize(weight, rows, bits);
    let zero = plain.values.iter().position(|v| *v == 0.0).filter(|_| weight.contains(&0.0));
    let by_input = weight.iter().enumerate().map(|(i, w)| (*w, gram[i % cols * (cols + 1)]));
    let kmeans = cost(weight, &plain.dequantize(), gram);
    let mut best = (kmeans, plain.codes(), plain.values.clone());
    for start in [table(by_input, bits), plain.values.clone()] {
        let mut values = start;
        for _ in 0..TURNS {
            let codes = compensated(weight, &factor, &values);
            let mut keep = |codes: &[u8], values: &[f32]| {
                let made: Vec<f32> = codes.iter().map(|c| values[usize::from(*c)]).collect();
                let this = cost(weight, &made, gram);
                if this < best.0 && values.is_sorted() && values.iter().all(|v| v.is_finite()) {
                    best = (this, codes.to_vec(), values.to_vec());
                }
            };
            keep(&codes, &values);
            let Some(refit) = refitted(weight, &codes, &values, gram, zero.is_some()) else { break };
            values = refit;
            keep(&codes, &values);
            values.sort_by(f32::total_cmp);
        }
    }
    let (error, codes, values) = best;
    let codebook = Codebook::of_codes(rows, cols, bits, &codes, values)?;
    (error.is_finite() && kmeans.is_finite()).then_some(LearntShared { codebook, error, kmeans })
}

/// `Σ e H eᵀ` over the rows.
fn cost(weight: &[f32], made: &[f32], gram: &[f64]) -> f64 {
    let cols = gram.len().isqrt();
    let rows = weight.par_chunks_exact(cols).zip(made.par_chunks_exact(cols));
    let each: Vec<f64> = rows
        .map(|(w, v)| {
            let off: Vec<f64> = w.iter().zip(v).map(|(w, v)| f64::from(*w) - f64::from(*v)).collect();
            squared(&off, gram)
        })
        .collect();
    // In order, so that threads do not matter.
    each.iter().sum()
}

/// Numbers whose errors the later columns make up for.
fn compensated(weight: &[f32], factor: &Factor, values: &[f32]) -> Vec<u8> {
    let cols = factor.order.len();
    let zero = values.iter().position(|v| *v == 0.0).map(|k| k as u8);
    let mut codes = vec![0u8; weight.len()];
    codes.par_chunks_mut(ROWS * cols).zip(weight.par_chunks(ROWS * cols)).for_each(|(codes, weight)| {
        let rows = weight.len() / cols;
        // In the order of rounding.
        let ordered = |r: usize| factor.order.iter().map(move |c| f64::from(weight[r * cols + c]));
        let mut left: Vec<f64> = (0..rows).flat_map(ordered).collect();
        for (j, &column) in factor.order.iter().enumerate() {
            let line = &factor.upper[j * cols..][..cols];
            for r in 0..rows {
                let row = &mut left[r * cols..][..cols];
                let code = match zero {
                    Some(zero) if weight[r * cols + column] == 0.0 => zero,
                    _ => nearest(values, row[j]),
                };
                codes[r * cols + column] = code;
                let off = (row[j] - f64::from(values[usize::from(code)])) / line[j];
                row[j + 1..].iter_mut().zip(&line[j + 1..]).for_each(|(w, u)| *w -= off * u);
            }
        }
    });
    codes
}

/// The values with the least error for these numbers: `A t = b` with `A = Σ Cᵀ H C`, `b = Σ Cᵀ H w` over rows, where `C` `[cols, values]` says
/// which value each column of a row is. Values that nothing is stay; with `zero` the one that is zero stays.
fn refitted(weight: &[f32], codes: &[u8], values: &[f32], gram: &[f64], zero: bool) -> Option<Vec<f32>> {
    let (cols, n) = (gram.len().isqrt(), values.len());
    let rows = weight.par_chunks(ROWS * cols).zip(codes.par_chunks(ROWS * cols));
    let sums: Vec<(Vec<f64>, Vec<f64>)> = rows
        .map(|(weight, codes)| {
            let (mut a, mut b) = (vec![0.0; n * n], vec![0.0; n]);
            for (w, codes) in weight.chunks_exact(cols).zip(codes.chunks_exact(cols)) {
                for (line, &k) in gram.chunks_exact(cols).zip(codes) {
                    let to = &mut a[usize::from(k) * n..][..n];
                    let mut with = 0.0;
                    for ((h, &l), w) in line.iter().zip(codes).zip(w) {
                        to[usize::from(l)] += h;
                        with += h * f64::from(*w);
                    }
                    b[usize::from(k)] += with;
                }
            }
            (a, b)
        })
        .collect();
    let (mut a, mut b) = (vec![0.0; n * n], vec![0.0; n]);
    for (x, y) in sums {
        a.iter_mut().zip(&x).for_each(|(a, x)| *a += x);
        b.iter_mut().zip(&y).for_each(|(b, y)| *b += y);
    }
    let fixed = |k: usize| a[k * n + k] <= 0.0 || zero && values[k] == 0.0;
    let free: Vec<usize> = (0..n).filter(|k| !fixed(*k)).collect();
    let held: Vec<usize> = (0..n).filter(|k| fixed(*k)).collect();
    let mean = free.iter().map(|k| a[k * n + k]).sum::<f64>() / free.len().max(1) as f64;
    let matrix = Mat::<f64>::from_fn(free.len(), free.len(), |i, j| {
        a[free[i] * n + free[j]] + if i == j { 1e-9 * mean } else { 0.0 }
    });
    let right = Mat::<f64>::from_fn(free.len(), 1, |i, _| {
        let k = free[i];
        b[k] - held.iter().map(|l| a[k * n + l] * f64::from(values[*l])).sum::<f64>()
    });
    let solved = matrix.llt(Side::Lower).ok()?.solve(&right);
    let mut out = values.to_vec();
    free.iter().enumerate().for_each(|(i, &k)| out[k] = solved[(i, 0)] as f32);
    out.iter().all(|v| v.is_finite()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// A weight `[24, 18]` and the Gram matrix of inputs that go together.
    fn rig(seed: u64) -> (Vec<f32>, Vec<f64>) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut draw = move || (0..6).map(|_| rng.random::<f64>()).sum::<f64>() - 3.0;
        let cols = 18;
        let rows: Vec<Vec<f64>> = (0..80)
            .map(|_| {
                let common = draw();
                (0..cols).map(|c| common * 0.8 + draw() * (0.2 + c as f64 / 9.0)).collect()
            })
            .collect();
        let gram = (0..cols * cols).map(|i| rows.iter().map(|r| r[i / cols] * r[i % cols]).sum()).collect();
        ((0..24 * cols).map(|_| draw() as f32).collect(), gram)
    }

    #[test]
    fn outputs_are_nearer_than_by_kmeans_and_zeros_stay() {
        for (seed, bits) in [(0, 2), (1, 3), (2, 4)] {
            let (mut weight, gram) = rig(seed);
            let made = share(&weight, &gram, bits).unwrap();
            assert!(made.error < 0.8 * made.kmeans, "{bits} bits: {} {}", made.error, made.kmeans);
            let told = cost(&weight, &made.codebook.dequantize(), &gram);
            assert!((told - made.error).abs() < 1e-6 * told, "{told} {}", made.error);
            assert_eq!(made.codebook.bits, bits);
            weight.iter_mut().step_by(2).for_each(|w| *w = 0.0);
            let made = share(&weight, &gram, bits).unwrap();
            let back = made.codebook.dequantize();
            assert!(weight.iter().zip(&back).all(|(w, b)| *w != 0.0 || *b == 0.0), "{bits} bits");
            assert!(made.error < made.kmeans);
        }
        let (weight, gram) = rig(7);
        assert!(share(&weight[1..], &gram, 4).is_none() && share(&weight, &gram[1..], 4).is_none());
        assert!(share(&weight, &vec![0.0; gram.len()], 4).is_none());
    }

    /// A step off the found values in any direction is worse.
    #[test]
    fn refitted_values_are_the_least_squares() {
        let (weight, gram) = rig(4);
        let plain = Codebook::quantize(&weight, 24, 3);
        let codes = plain.codes();
        let found = refitted(&weight, &codes, &plain.values, &gram, false).unwrap();
        let at =
            |values: &[f32]| cost(&weight, &codes.iter().map(|c| values[usize::from(*c)]).collect::<Vec<_>>(), &gram);
        let least = at(&found);
        assert!(least < at(&plain.values));
        for (k, by) in (0..8).flat_map(|k| [(k, 0.01), (k, -0.01)]) {
            let mut moved = found.clone();
            moved[k] += by;
            assert!(at(&moved) >= least, "{k} {by}");
        }
    }
}
