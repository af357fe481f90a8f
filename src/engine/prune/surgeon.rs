//! Which inputs a layer can do without: those whose loss its other inputs make up for best. One after the other the input (or the unit of
//! several) goes whose least-squares error is smallest, and the weights of the others change as that asks for (optimal brain surgeon,
//! Hassibi and Stork 1993, for whole columns: Kurtic et al. 2023, ZipLM, arXiv 2302.04089).
//!
//! Invariant: an error is that of the best weights of what is left, on the samples of the sums. Not here: where those come from (`recover`).

use super::normal::{Normal, add, inverse};
use faer::linalg::solvers::DenseSolveCore;
use faer::{Mat, Side};
use rayon::prelude::*;

/// Units that went, the first that went first, each with the layer's error when it and all before it are gone.
pub type Gone = Vec<(u32, f64)>;

/// Takes units away until `least` are left, `together` at a time. `units` are the columns of each; `weight` is the layer's
/// `[outputs, inputs]`. `None` where counts disagree or the Gram matrix is none of a sum of squares.
pub fn order(
    normal: &Normal,
    weight: &[f32],
    units: &[Vec<usize>],
    (least, together): (usize, usize),
    lambda: f64,
) -> Option<Gone> {
    let (d, o) = (normal.inputs(), normal.outputs());
    let all = || units.iter().flatten();
    if weight.len() != d * o || all().any(|c| *c >= d) || units.iter().any(Vec::is_empty) {
        return None;
    }
    let ridge = normal.ridge(lambda)?;
    let inverse = inverse(normal.gram, d, ridge)?;
    // The best weights as long as nothing is gone.
    let first = normal.solve(weight, lambda)?;
    let mut error = normal.error(&first).max(0.0);
    let mut layer = Layer {
        d,
        inverse: (0..d * d).map(|k| inverse[(k / d, k % d)]).collect(),
        weight: (0..d * o).map(|k| f64::from(first[k % o * d + k / o])).collect(),
    };
    let mut left: Vec<u32> = (0..units.len() as u32).collect();
    let mut gone = Gone::new();
    while left.len() > least {
        let cost = |(i, u): (usize, &u32)| (layer.cost(&units[*u as usize]), i);
        let mut costs: Vec<(f64, usize)> = left.par_iter().enumerate().map(cost).collect();
        costs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        costs.truncate(together.clamp(1, left.len() - least));
        let mut taken: Vec<usize> = costs.iter().map(|(_, i)| *i).collect();
        let columns: Vec<usize> = taken.iter().flat_map(|i| units[left[*i] as usize].iter().copied()).collect();
        error += layer.remove(&columns)?;
        gone.extend(taken.iter().map(|i| (left[*i], error)));
        taken.sort_unstable();
        taken.iter().rev().for_each(|i| {
            left.remove(*i);
        });
    }
    error.is_finite().then_some(gone)
}

/// A layer as far as it is cut: the inverse of its inputs' matrix, `[d, d]`, and its weight by columns, `[d, outputs]`. What is gone is zero.
struct Layer {
    d: usize,
    inverse: Vec<f64>,
    weight: Vec<f64>,
}

impl Layer {
    fn column(&self, c: usize) -> &[f64] {
        let o = self.weight.len() / self.d;
        &self.weight[c * o..][..o]
    }

    /// `(H⁻¹_SS)⁻¹` of columns `S`.
    fn middle(&self, columns: &[usize]) -> Option<Mat<f64>> {
        let n = columns.len();
        let part = Mat::<f64>::from_fn(n, n, |i, j| self.inverse[columns[i] * self.d + columns[j]]);
        Some(part.llt(Side::Lower).ok()?.inverse())
    }

    /// What the error grows by when columns go: `tr(W_S (H⁻¹_SS)⁻¹ W_Sᵀ)`.
    fn cost(&self, columns: &[usize]) -> f64 {
        let dot = |a: usize, b: usize| self.column(a).iter().zip(self.column(b)).map(|(a, b)| a * b).sum::<f64>();
        if let [c] = *columns {
            return dot(c, c) / self.inverse[c * self.d + c].max(f64::MIN_POSITIVE);
        }
        let Some(middle) = self.middle(columns) else { return f64::INFINITY };
        let n = columns.len();
        (0..n * n).map(|k| middle[(k / n, k % n)] * dot(columns[k / n], columns[k % n])).sum()
    }

    /// Takes columns away, and with them their part of the inverse; what the error grew by.
    fn remove(&mut self, columns: &[usize]) -> Option<f64> {
        let (n, d) = (columns.len(), self.d);
        let o = self.weight.len() / d;
        let error = self.cost(columns);
        let middle = self.middle(columns)?;
        let middle: Vec<f64> = (0..n * n).map(|k| middle[(k / n, k % n)]).collect();
        let lines: Vec<f64> = columns.iter().flat_map(|c| self.inverse[c * d..][..d].iter().copied()).collect();
        let mine: Vec<f64> = columns.iter().flat_map(|c| self.column(*c).iter().copied()).collect();
        // `[d, n]`: how each column is changed by those that go.
        let across: Vec<f64> = (0..d * n).map(|k| lines[k % n * d + k / n]).collect();
        let mut spread = vec![0.0; d * n];
        add(&mut spread, (&across, n), (&middle, n), 1.0);
        add(&mut self.weight, (&spread, n), (&mine, o), -1.0);
        add(&mut self.inverse, (&spread, n), (&lines, d), -1.0);
        for &c in columns {
            self.weight[c * o..][..o].fill(0.0);
            self.inverse[c * d..][..d].fill(0.0);
            (0..d).for_each(|i| self.inverse[i * d + c] = 0.0);
        }
        Some(error)
    }
}

#[cfg(test)]
mod tests {
    use super::super::normal::testing::Sample;
    use super::*;

    /// The least error of a layer that reads only these inputs, by solving for it anew.
    fn least(sample: &Sample, kept: &[usize]) -> f64 {
        let (d, o, n) = (sample.x[0].len(), sample.t[0].len(), kept.len());
        let pick = |i: usize, j: usize| sample.gram[kept[i] * d + kept[j]];
        let gram: Vec<f64> = (0..n * n).map(|i| pick(i / n, i % n)).collect();
        let cross: Vec<f64> = (0..o * n).map(|i| sample.cross[i / n * d + kept[i % n]]).collect();
        let normal = Normal { gram: &gram, cross: &cross, squares: sample.squares };
        normal.error(&normal.solve(&vec![0.0; o * n], 1e-10).unwrap())
    }

    #[test]
    fn errors_are_those_of_the_best_weights_of_what_is_left_and_the_cheapest_goes() {
        let sample = Sample::new(10, 3, 4);
        let units: Vec<Vec<usize>> = (0..10).map(|i| vec![i]).collect();
        let gone = order(&sample.normal(), &sample.weight, &units, (1, 1), 1e-10).unwrap();
        assert_eq!(gone.len(), 9);
        let mut kept: Vec<usize> = (0..10).collect();
        for (unit, error) in gone {
            let without = |u: usize| kept.iter().copied().filter(|k| *k != u).collect::<Vec<_>>();
            let best = kept.iter().map(|u| least(&sample, &without(*u))).fold(f64::INFINITY, f64::min);
            assert!((error - best).abs() < 1e-5 * best, "{unit}: {error}, not {best}");
            kept = without(unit as usize);
            assert!((error - least(&sample, &kept)).abs() < 1e-5 * error);
        }
    }

    #[test]
    fn units_of_several_columns_go_whole_and_several_at_a_time_say_what_all_cost() {
        let sample = Sample::new(12, 4, 5);
        let units: Vec<Vec<usize>> = (0..4).map(|u| vec![u, 4 + u, 8 + u]).collect();
        for together in [1, 2, 9] {
            let gone = order(&sample.normal(), &sample.weight, &units, (2, together), 1e-10).unwrap();
            assert_eq!(gone.len(), 2, "{together}");
            let out: Vec<usize> = gone.iter().flat_map(|(u, _)| units[*u as usize].clone()).collect();
            let kept: Vec<usize> = (0..12).filter(|c| !out.contains(c)).collect();
            let wanted = least(&sample, &kept);
            assert!((gone[1].1 - wanted).abs() < 1e-5 * wanted, "{together}: {} {wanted}", gone[1].1);
        }
        assert!(order(&sample.normal(), &sample.weight, &[vec![12]], (0, 1), 1e-3).is_none());
        assert!(order(&sample.normal(), &[0.0; 5], &units, (0, 1), 1e-3).is_none());
    }
}
