//! Learnt rounding of a layer's weight to codes with scales: GPTQ (Frantar et al. 2022, arXiv 2210.17323). Columns are rounded one after
//! the other, and what a column's error does to outputs is made up for by the columns that are not rounded yet.
//!
//! The error of a row is `e H eᵀ`, with `e` what rounding changes of the row and `H` the Gram matrix of the layer's inputs. Invariants: no
//! row has a larger error than rounding to the nearest gives it; a weight of zero stays zero, so that masks do. Not here: where Gram
//! matrices come from and whether what was learnt stays (`recover`), how codes lie (`model`).

use faer::linalg::solvers::DenseSolveCore;
use faer::{Mat, Side};
use rayon::prelude::*;

/// Damping as a part of the Gram matrix's mean diagonal; the paper's.
const DAMPING: f64 = 0.01;

/// Rows that are rounded side by side, so that the factor is read once for all of them.
pub(crate) const ROWS: usize = 8;

/// The numbers that rows are rounded to: codes from `-top` to `top`, and a scale for every `group` columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    pub top: i8,
    pub group: usize,
}

/// Rounded rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Learnt {
    /// `[rows, cols]`.
    pub codes: Vec<i8>,
    /// `[rows, cols.div_ceil(group)]`.
    pub scales: Vec<f32>,
    /// Summed errors of all rows: as they are, and rounded to the nearest.
    pub error: f64,
    pub nearest: f64,
}

/// Rounds `weight` `[rows, cols]` by the Gram matrix `gram` `[cols, cols]` of its inputs. `None` where counts disagree, or the matrix is
/// none of a sum of squares.
pub fn gptq(weight: &[f32], gram: &[f64], grid: Grid) -> Option<Learnt> {
    let cols = gram.len().isqrt();
    if cols == 0 || gram.len() != cols * cols || !weight.len().is_multiple_of(cols) || grid.group == 0 {
        return None;
    }
    let factor = Factor::new(gram, cols, 1)?;
    let groups = cols.div_ceil(grid.group);
    let rows = weight.len() / cols;
    let mut out = Learnt { codes: vec![0; rows * cols], scales: vec![0.0; rows * groups], error: 0.0, nearest: 0.0 };
    let parts = weight.par_chunks(ROWS * cols).zip(out.codes.par_chunks_mut(ROWS * cols));
    let errors: Vec<[f64; 2]> = (parts.zip(out.scales.par_chunks_mut(ROWS * groups)))
        .map(|((weight, codes), scales)| rounded(weight, gram, &factor, grid, (codes, scales)))
        .collect();
    // In order, so that threads do not matter.
    (out.error, out.nearest) = errors.iter().fold((0.0, 0.0), |(a, b), [error, nearest]| (a + error, b + nearest));
    (out.error.is_finite() && out.nearest.is_finite()).then_some(out)
}

/// The upper factor `U` of the damped Gram matrix's inverse, `H⁻¹ = Uᵀ U`, in the order in which columns are rounded: those with the
/// largest inputs first (the paper's `act-order`).
pub(crate) struct Factor {
    pub order: Vec<usize>,
    /// `[cols, cols]`, row-major.
    pub upper: Vec<f64>,
}

impl Factor {
    /// Runs of `together` columns are rounded one after the other, the one with the largest inputs first.
    pub fn new(gram: &[f64], cols: usize, together: usize) -> Option<Factor> {
        let diagonal = |i: usize| gram[i * cols + i];
        let mean = (0..cols).map(diagonal).sum::<f64>() / cols as f64;
        if !mean.is_finite() || mean <= 0.0 {
            return None;
        }
        let mut order: Vec<usize> = (0..cols).collect();
        let runs: Vec<f64> = order
            .chunks(together)
            .map(|run| run.iter().map(|i| diagonal(*i)).sum::<f64>() / run.len() as f64)
            .collect();
        order.sort_by(|a, b| {
            let (p, q) = (a / together, b / together);
            runs[q].total_cmp(&runs[p]).then(p.cmp(&q)).then(diagonal(*b).total_cmp(&diagonal(*a))).then(a.cmp(b))
        });
        Factor::in_order(gram, order)
    }

    /// Columns are rounded in this order, which names each once.
    pub fn in_order(gram: &[f64], order: Vec<usize>) -> Option<Factor> {
        let cols = order.len();
        let mean = (0..cols).map(|i| gram[i * cols + i]).sum::<f64>() / cols as f64;
        if !mean.is_finite() || mean <= 0.0 {
            return None;
        }
        let damped = Mat::<f64>::from_fn(cols, cols, |i, j| {
            gram[order[i] * cols + order[j]] + if i == j { DAMPING * mean } else { 0.0 }
        });
        let inverse = damped.llt(Side::Lower).ok()?.inverse();
        let lower = inverse.llt(Side::Lower).ok()?;
        let upper: Vec<f64> = (0..cols * cols).map(|i| lower.L()[(i % cols, i / cols)]).collect();
        upper.iter().all(|v| v.is_finite()).then_some(Factor { order, upper })
    }
}

/// Rounds a few rows; their errors, learnt and nearest.
fn rounded(
    weight: &[f32],
    gram: &[f64],
    factor: &Factor,
    grid: Grid,
    (codes, scales): (&mut [i8], &mut [f32]),
) -> [f64; 2] {
    let cols = factor.order.len();
    let groups = cols.div_ceil(grid.group);
    let largest: Vec<f32> = weight.chunks_exact(cols).flat_map(|row| largest(row, grid)).collect();
    let searched: Vec<f32> = weight.chunks_exact(cols).flat_map(|row| searched(row, gram, grid)).collect();
    let nearest = round_nearest(weight, cols, grid, &largest);
    let tried = [
        (compensated(weight, factor, grid, &largest), &largest),
        (compensated(weight, factor, grid, &searched), &searched),
        (round_nearest(weight, cols, grid, &searched), &searched),
    ];
    let mut sums = [0.0; 2];
    for (r, row) in weight.chunks_exact(cols).enumerate() {
        let of = |codes: &[i8], scales: &[f32]| {
            error(row, &codes[r * cols..][..cols], &scales[r * groups..][..groups], gram, grid.group)
        };
        let first = of(&nearest, &largest);
        let (mut best, mut taken) = (first, (&nearest, &largest));
        for (codes, scales) in &tried {
            let this = of(codes, scales);
            if this < best {
                (best, taken) = (this, (codes, *scales));
            }
        }
        codes[r * cols..][..cols].copy_from_slice(&taken.0[r * cols..][..cols]);
        scales[r * groups..][..groups].copy_from_slice(&taken.1[r * groups..][..groups]);
        sums = [sums[0] + best, sums[1] + first];
    }
    sums
}

/// The code nearest to `w`.
fn code(w: f64, scale: f32, top: i8) -> i8 {
    let top = f64::from(top);
    if scale > 0.0 { (w / f64::from(scale)).round().clamp(-top, top) as i8 } else { 0 }
}

/// Scales with which the largest weight of a group has the largest code, as the quantizers of `model` take them; 0 for what is too
/// small for a normal one.
fn largest(row: &[f32], grid: Grid) -> Vec<f32> {
    let scale = |part: &[f32]| {
        let scale = part.iter().fold(0f32, |m, v| m.max(v.abs())) / f32::from(grid.top);
        if scale >= f32::MIN_POSITIVE && scale.is_finite() { scale } else { 0.0 }
    };
    row.chunks(grid.group).map(scale).collect()
}

/// Scales with the least error of the nearest codes when inputs are taken to be unrelated: smaller ones cut off what is largest, and
/// have finer steps for all else.
fn searched(row: &[f32], gram: &[f64], grid: Grid) -> Vec<f32> {
    const STEPS: usize = 30;
    let cols = row.len();
    let mut out = largest(row, grid);
    for (g, (part, scale)) in row.chunks(grid.group).zip(&mut out).enumerate() {
        let whole = *scale;
        let mut best = f64::INFINITY;
        for step in 0..STEPS {
            let tried = whole * (1.0 - step as f32 * (0.6 / STEPS as f32));
            if tried < f32::MIN_POSITIVE {
                break;
            }
            let each = part.iter().enumerate().map(|(i, w)| {
                let at = g * grid.group + i;
                let e = f64::from(*w) - f64::from(code(f64::from(*w), tried, grid.top)) * f64::from(tried);
                e * e * gram[at * cols + at]
            });
            let this: f64 = each.sum();
            if this < best {
                (best, *scale) = (this, tried);
            }
        }
    }
    out
}

fn round_nearest(weight: &[f32], cols: usize, grid: Grid, scales: &[f32]) -> Vec<i8> {
    let groups = cols.div_ceil(grid.group);
    let one = |(i, w): (usize, &f32)| {
        let scale = scales[i / cols * groups + i % cols / grid.group];
        // As the quantizers of `model` round, in f32.
        let top = f32::from(grid.top);
        if scale > 0.0 { (w / scale).round().clamp(-top, top) as i8 } else { 0 }
    };
    weight.iter().enumerate().map(one).collect()
}

/// Codes whose errors the later columns make up for.
fn compensated(weight: &[f32], factor: &Factor, grid: Grid, scales: &[f32]) -> Vec<i8> {
    let cols = factor.order.len();
    let groups = cols.div_ceil(grid.group);
    let rows = weight.len() / cols;
    // In the order of rounding.
    let ordered = |r: usize| factor.order.iter().map(move |c| f64::from(weight[r * cols + c]));
    let mut left: Vec<f64> = (0..rows).flat_map(ordered).collect();
    let mut codes = vec![0i8; weight.len()];
    for (j, &column) in factor.order.iter().enumerate() {
        let line = &factor.upper[j * cols..][..cols];
        for r in 0..rows {
            let row = &mut left[r * cols..][..cols];
            let scale = scales[r * groups + column / grid.group];
            let masked = weight[r * cols + column] == 0.0;
            let code = if masked { 0 } else { code(row[j], scale, grid.top) };
            codes[r * cols + column] = code;
            let off = (row[j] - f64::from(code) * f64::from(scale)) / line[j];
            row[j + 1..].iter_mut().zip(&line[j + 1..]).for_each(|(w, u)| *w -= off * u);
        }
    }
    codes
}

/// `e H eᵀ` of a row.
fn error(row: &[f32], codes: &[i8], scales: &[f32], gram: &[f64], group: usize) -> f64 {
    let value = |i: usize| f64::from(f32::from(codes[i]) * scales[i / group]);
    let off: Vec<f64> = row.iter().enumerate().map(|(i, w)| f64::from(*w) - value(i)).collect();
    squared(&off, gram)
}

/// `e H eᵀ`.
pub(super) fn squared(off: &[f64], gram: &[f64]) -> f64 {
    let lines = gram.chunks_exact(off.len()).zip(off).filter(|(_, e)| **e != 0.0);
    lines.map(|(line, e)| e * line.iter().zip(off).map(|(h, e)| h * e).sum::<f64>()).sum()
}

#[cfg(test)]
pub(super) mod testing {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// Inputs that depend on one another, and a weight.
    pub fn sample(cols: usize, rows: usize, seed: u64) -> (Vec<f32>, Vec<f64>) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut draw = || rng.random::<f64>() * 2.0 - 1.0;
        let hidden: Vec<f64> = (0..60 * 4).map(|_| draw()).collect();
        let mix: Vec<f64> = (0..4 * cols).map(|_| draw()).collect();
        let mut gram = vec![0.0; cols * cols];
        for h in hidden.chunks_exact(4) {
            let x: Vec<f64> =
                (0..cols).map(|c| (0..4).map(|k| h[k] * mix[k * cols + c]).sum::<f64>() + 0.3 * draw()).collect();
            (0..cols * cols).for_each(|i| gram[i] += x[i / cols] * x[i % cols]);
        }
        ((0..rows * cols).map(|_| draw() as f32).collect(), gram)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::sample;
    use super::*;

    /// The paper's algorithm without its factorization: after each column the inverse loses a row and a column by elimination (Frantar and
    /// Alistarh 2022, equation 3), and the row is corrected by equation 2.
    fn by_the_book(row: &[f32], gram: &[f64], scale: f32, top: i8) -> Vec<i8> {
        let cols = row.len();
        let mean = (0..cols).map(|i| gram[i * cols + i]).sum::<f64>() / cols as f64;
        let mut inverse = inverted(gram, cols, 0.01 * mean);
        let mut order: Vec<usize> = (0..cols).collect();
        order.sort_by(|a, b| gram[b * cols + b].total_cmp(&gram[a * cols + a]));
        let mut w: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
        let mut codes = vec![0i8; cols];
        for q in order {
            let top = f64::from(top);
            let code = (w[q] / f64::from(scale)).round().clamp(-top, top);
            codes[q] = code as i8;
            let off = (w[q] - code * f64::from(scale)) / inverse[q * cols + q];
            for (k, w) in w.iter_mut().enumerate() {
                *w -= off * inverse[q * cols + k];
            }
            let old = inverse.clone();
            for i in 0..cols * cols {
                inverse[i] -= old[i / cols * cols + q] * old[q * cols + i % cols] / old[q * cols + q];
            }
        }
        codes
    }

    /// By Gauss and Jordan.
    fn inverted(gram: &[f64], n: usize, damping: f64) -> Vec<f64> {
        let mut a: Vec<Vec<f64>> = (0..n)
            .map(|i| {
                let left = (0..n).map(|j| gram[i * n + j] + if i == j { damping } else { 0.0 });
                left.chain((0..n).map(|j| if i == j { 1.0 } else { 0.0 })).collect()
            })
            .collect();
        for i in 0..n {
            let pivot = a[i][i];
            a[i].iter_mut().for_each(|v| *v /= pivot);
            let line = a[i].clone();
            for (_, other) in a.iter_mut().enumerate().filter(|(r, _)| *r != i) {
                let factor = other[i];
                other.iter_mut().zip(&line).for_each(|(v, l)| *v -= factor * l);
            }
        }
        a.into_iter().flat_map(|row| row[n..].to_vec()).collect()
    }

    #[test]
    fn codes_are_those_of_the_published_algorithm() {
        for (cols, seed) in [(5, 1), (12, 2), (33, 3)] {
            let (weight, gram) = sample(cols, 6, seed);
            let factor = Factor::new(&gram, cols, 1).unwrap();
            for grid in [Grid { top: 7, group: cols }, Grid { top: 127, group: cols }] {
                let scales: Vec<f32> = weight.chunks(cols).flat_map(|row| largest(row, grid)).collect();
                let ours = compensated(&weight, &factor, grid, &scales);
                let rows = weight.chunks(cols).zip(&scales);
                let theirs: Vec<i8> = rows.flat_map(|(row, s)| by_the_book(row, &gram, *s, grid.top)).collect();
                assert_eq!(ours, theirs, "{cols}");
                assert_ne!(ours, round_nearest(&weight, cols, grid, &scales), "{cols}");
            }
        }
    }

    #[test]
    fn no_row_gets_worse_and_all_together_much_better() {
        for (cols, group, seed) in [(24, 24, 5), (40, 32, 6), (64, 16, 7), (1, 1, 8)] {
            let (weight, gram) = sample(cols, 9, seed);
            let grid = Grid { top: 7, group };
            let learnt = gptq(&weight, &gram, grid).unwrap();
            let groups = cols.div_ceil(group);
            assert_eq!((learnt.codes.len(), learnt.scales.len()), (9 * cols, 9 * groups));
            assert!(learnt.codes.iter().all(|q| (-7..=7).contains(q)));
            let mut sum = 0.0;
            for (r, row) in weight.chunks(cols).enumerate() {
                let scales = largest(row, grid);
                let nearest = error(row, &round_nearest(row, cols, grid, &scales), &scales, &gram, group);
                let (codes, scales) = (&learnt.codes[r * cols..][..cols], &learnt.scales[r * groups..][..groups]);
                let this = error(row, codes, scales, &gram, group);
                assert!(this <= nearest, "{cols} row {r}: {this} {nearest}");
                sum += this;
            }
            assert!((sum - learnt.error).abs() <= 1e-9 * sum.max(1e-9) && learnt.error <= learnt.nearest);
            assert!(cols == 1 || learnt.error < 0.6 * learnt.nearest, "{cols}: {} {}", learnt.error, learnt.nearest);
        }
    }

    #[test]
    fn masks_stay_and_what_cannot_be_is_refused() {
        let (mut weight, gram) = sample(20, 4, 9);
        weight.iter_mut().step_by(3).for_each(|w| *w = 0.0);
        weight[20..40].fill(0.0);
        let grid = Grid { top: 7, group: 8 };
        let learnt = gptq(&weight, &gram, grid).unwrap();
        assert!(weight.iter().zip(&learnt.codes).all(|(w, q)| *w != 0.0 || *q == 0));
        assert!(gptq(&weight, &gram[1..], grid).is_none() && gptq(&weight[1..], &gram, grid).is_none());
        assert!(gptq(&weight, &vec![0.0; 400], grid).is_none() && gptq(&[], &[], grid).is_none());
        assert!(gptq(&weight, &vec![f64::NAN; 400], grid).is_none());
        // An input that is always zero is rounded to the nearest.
        let mut dead = gram.clone();
        (0..20).for_each(|i| (dead[i * 20 + 4], dead[4 * 20 + i]) = (0.0, 0.0));
        assert!(gptq(&weight, &dead, grid).is_some());
    }
}
