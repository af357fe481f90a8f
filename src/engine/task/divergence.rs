//! How far a model's outputs are from its original's on the same items, row by row: their Kullback-Leibler divergence, and whether
//! both would say the same. A row is a token of a window, or an image.
//!
//! Here: the arithmetic. Not here: passes over a set (`eval::against`), scores against what is right (`language`, `classify`).

use super::bootstrap::{Estimate, quantile};
use super::error::TaskError;
use candle_core::{DType, Device, Storage, Tensor};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// What is known of the distance between two models' outputs. Divergences are KL(original ‖ model) = Σ p (ln p − ln q) of the
/// softmax p of the original's logits and q of the model's, in nats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// Items (windows, images), over which intervals are made.
    pub items: usize,
    /// Rows (tokens, images), over which the percentiles are.
    pub rows: usize,
    /// Mean divergence of a row.
    pub kl: Estimate,
    /// Of a row's divergence; interpolated between ranks, as llama.cpp's `--kl-divergence` does.
    pub median: f64,
    pub p99: f64,
    pub max: f64,
    /// Share of rows where both have their largest logit in the same place (the first of equals), 0 to 1.
    pub same_top: Estimate,
}

/// Collects outputs batch by batch.
#[derive(Debug, Default)]
pub struct Divergences {
    /// Of each item: mean divergence of its rows, and the share of them that agree.
    items: Vec<(f64, f64)>,
    /// Of each row.
    rows: Vec<f32>,
}

impl Divergences {
    /// Adds the outputs `[N, …, values]` of both models for the same items; the last axis is what the softmax goes over.
    ///
    /// # Errors
    /// Unlike or empty shapes; outputs that are no numbers, or leave the model without any chance for what the original holds possible.
    pub fn add(&mut self, original: &Tensor, model: &Tensor) -> Result<(), TaskError> {
        let unlike = || TaskError::Unlike { original: original.dims().to_vec(), found: model.dims().to_vec() };
        if original.dims() != model.dims() || original.rank() < 2 || original.elem_count() == 0 {
            return Err(unlike());
        }
        let (n, values) = (original.dim(0)?, original.dims()[original.rank() - 1]);
        for i in 0..n {
            // An item at a time: a window of a large vocabulary has a hundred megabytes.
            let found: Option<Vec<(f64, bool)>> = on_host(&original.get(i)?, |p| {
                on_host(&model.get(i)?, |q| {
                    Ok(p.par_chunks(values).zip(q.par_chunks(values)).map(|(p, q)| row(p, q)).collect())
                })
            })?;
            let found = found.ok_or(TaskError::NonFinite { images: 1, batch: n, first: self.items.len() })?;
            let of = found.len() as f64;
            let kl = found.iter().map(|(kl, _)| kl).sum::<f64>() / of;
            self.items.push((kl, found.iter().filter(|(_, same)| *same).count() as f64 / of));
            self.rows.extend(found.iter().map(|(kl, _)| *kl as f32));
        }
        Ok(())
    }

    /// The mean of what was added, without what is in doubt of it.
    pub fn mean(&self) -> f64 {
        self.items.iter().map(|(kl, _)| kl).sum::<f64>() / self.items.len().max(1) as f64
    }

    /// What was added so far. Every item has as many rows as the others, so that the mean over items is the mean over rows.
    pub fn found(&self) -> Divergence {
        let mut rows: Vec<f64> = self.rows.iter().map(|v| f64::from(*v)).collect();
        rows.par_sort_by(f64::total_cmp);
        let of = |f: fn(&(f64, f64)) -> f64| Estimate::of(&self.items.iter().map(f).collect::<Vec<f64>>());
        let at = |q| if rows.is_empty() { 0.0 } else { quantile(&rows, q) };
        Divergence {
            items: self.items.len(),
            rows: rows.len(),
            kl: of(|i| i.0).within(0.0, f64::INFINITY),
            median: at(0.5),
            p99: at(0.99),
            max: at(1.0),
            same_top: of(|i| i.1).within(0.0, 1.0),
        }
    }
}

/// The divergence of one row's logits in nats, and whether both have the same largest one; `None` where that is no number.
///
/// In f64 throughout: what two close models differ by is small beside the logits that it is a difference of.
pub fn row(p: &[f32], q: &[f32]) -> Option<(f64, bool)> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        /// The same with wider registers, to the bit.
        #[target_feature(enable = "avx2")]
        fn wide(p: &[f32], q: &[f32]) -> Option<(f64, bool)> {
            summed(p, q)
        }
        // SAFETY: the feature was detected.
        return unsafe { wide(p, q) };
    }
    summed(p, q)
}

#[inline(always)]
fn summed(p: &[f32], q: &[f32]) -> Option<(f64, bool)> {
    let ((best, top), (also, other)) = (largest(p), largest(q));
    // Side by side, so that several are computed at once; a vocabulary has tens of thousands.
    let mut sums = [[0f64; LANES]; 3];
    let mut add = |p: &[f32], q: &[f32]| {
        for (i, (&a, &b)) in p.iter().zip(q).enumerate() {
            let (a, b) = (f64::from(a), f64::from(b));
            let chance = exp(a - top);
            sums[0][i] += chance;
            sums[1][i] += exp(b - other);
            // What the original holds impossible costs nothing.
            sums[2][i] += if chance == 0.0 { 0.0 } else { chance * (a - b) };
        }
    };
    let (firsts, seconds) = (p.chunks_exact(LANES), q.chunks_exact(LANES));
    let rest = (firsts.remainder(), seconds.remainder());
    firsts.zip(seconds).for_each(|(p, q)| add(p, q));
    add(rest.0, rest.1);
    let [sum, others, apart] = sums.map(|lanes| lanes.iter().sum::<f64>());
    let kl = apart / sum - (top + sum.ln()) + (other + others.ln());
    // Rounding may leave a tiny negative sum for equal logits.
    kl.is_finite().then(|| (kl.max(0.0), best == also))
}

/// Rows are summed up in so many parts.
const LANES: usize = 8;

/// `1 / n!` from 1 on.
const FACTORIALS: [f64; 13] = {
    let (mut out, mut product, mut n) = ([0.0; 13], 1.0, 0);
    while n < 13 {
        product *= (n + 1) as f64;
        out[n] = 1.0 / product;
        n += 1;
    }
    out
};

/// `e` to the power of what is not above zero, to a few units in the last place; nothing where that is too small for a normal number. Without
/// branches and calls, so that compilers do several at once (the C library's is most of a comparison's time).
#[inline(always)]
fn exp(x: f64) -> f64 {
    // Added to a small number, this leaves its nearest integer in the last bits.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    const LN2: [f64; 2] = [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10];
    let bounded = if x < -708.0 { -708.0 } else { x };
    let shifted = bounded * std::f64::consts::LOG2_E + SHIFT;
    let k = shifted - SHIFT;
    let r = bounded - k * LN2[0] - k * LN2[1];
    // Taylor's series: the first term that is left out is below 2⁻⁵³ for `|r| ≤ ln 2 / 2`.
    let mut sum = FACTORIALS[12];
    for inverse in FACTORIALS[..12].iter().rev() {
        sum = sum * r + inverse;
    }
    sum = sum * r + 1.0;
    let power = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
    if x < -708.0 { 0.0 } else { sum * power }
}

/// Where the largest value stands (the first of equals), and that value.
#[inline(always)]
fn largest(row: &[f32]) -> (usize, f64) {
    let mut best = (0, f32::NEG_INFINITY);
    for (i, &v) in row.iter().enumerate() {
        if v > best.1 {
            best = (i, v);
        }
    }
    (best.0, f64::from(best.1))
}

/// What `f` makes of the values, which are not copied where they are on the host already.
fn on_host<T>(t: &Tensor, f: impl FnOnce(&[f32]) -> Result<T, TaskError>) -> Result<T, TaskError> {
    let t = t.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.contiguous()?;
    let (storage, layout) = t.storage_and_layout();
    let Storage::Cpu(cpu) = &*storage else {
        return Err(candle_core::Error::Msg("the outputs are not on the CPU".into()).into());
    };
    f(&cpu.as_slice::<f32>()?[layout.start_offset()..][..t.elem_count()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::kl;

    fn tensor(values: &[f32], shape: &[usize]) -> Tensor {
        Tensor::from_slice(values, shape, &Device::Cpu).unwrap()
    }

    fn between(original: &Tensor, model: &Tensor) -> Divergence {
        let mut all = Divergences::default();
        all.add(original, model).unwrap();
        all.found()
    }

    /// Two windows of two tokens over two words, worked by hand.
    #[test]
    fn divergences_are_their_formula() {
        let third = 3f32.ln();
        let original = tensor(&[0.0, 0.0, third, 0.0, 0.0, 0.0, 0.0, third], &[2, 2, 2]);
        let model = tensor(&[third, 0.0, third, 0.0, 7.0, 7.0, third, 0.0], &[2, 2, 2]);
        let found = between(&original, &model);
        // (½, ½) against (¾, ¼); the same; (½, ½) twice; (¼, ¾) against (¾, ¼).
        let (first, last) = (0.5 * (4f64 / 3.0).ln(), 0.5 * 3f64.ln());
        assert_eq!((found.items, found.rows), (2, 4));
        assert!((found.kl.value - (first + last) / 4.0).abs() < 1e-7, "{found:?}");
        assert!((found.max - last).abs() < 1e-7 && (found.median - first / 2.0).abs() < 1e-7);
        assert!((found.p99 - (first + (last - first) * 0.97)).abs() < 1e-7);
        // Ties go to the first of both: the last token alone is told otherwise.
        // Two windows tell little of others: Student's t reaches beyond what a share or a divergence can be, and ends there.
        assert_eq!(found.same_top, Estimate { value: 0.75, range: Some((0.0, 1.0)) });
        let (low, high) = found.kl.range.unwrap();
        let half = 12.706 * (last - first) / 4.0;
        assert!(low == 0.0 && (high - found.kl.value - half).abs() < 1e-6, "{low} {high} {half}");
        // The direction counts: (¾, ¼) against (½, ½) is another number.
        assert!((between(&model, &original).kl.value - found.kl.value).abs() > 1e-3);
    }

    #[test]
    fn it_is_the_mean_that_repair_sees_whatever_the_batches() {
        let values = |k: f32| -> Vec<f32> { (0..60).map(|i| (i as f32 * k).sin() * 9.0).collect() };
        let (a, b) = (tensor(&values(0.7), &[4, 3, 5]), tensor(&values(0.71), &[4, 3, 5]));
        let whole = between(&a, &b);
        let flat = |t: &Tensor| t.reshape((12, 5)).unwrap();
        assert!((whole.kl.value - kl(&flat(&a), &flat(&b)).unwrap()).abs() < 1e-12);
        let mut parts = Divergences::default();
        for (from, n) in [(0, 1), (1, 3)] {
            parts.add(&a.narrow(0, from, n).unwrap(), &b.narrow(0, from, n).unwrap()).unwrap();
        }
        assert_eq!(parts.found(), whole);
        // A classifier's images are rows.
        let images = between(&flat(&a), &flat(&b));
        assert_eq!((images.items, images.rows, images.max), (12, 12, whole.max));
    }

    #[test]
    fn powers_are_those_of_the_c_library() {
        for i in 0..40_000 {
            let x = -f64::from(i) * 0.0177;
            assert!((exp(x) - x.exp()).abs() <= 4e-16 * x.exp(), "{x}: {} {}", exp(x), x.exp());
        }
        assert_eq!((exp(0.0), exp(-709.0), exp(f64::NEG_INFINITY)), (1.0, 0.0, 0.0));
        assert!(exp(f64::NAN).is_nan());
    }

    #[test]
    fn close_models_are_told_apart_and_equal_ones_are_not() {
        let logits: Vec<f32> = (0..4096).map(|i| ((i * 37 % 4096) as f32).sqrt() - 40.0).collect();
        let a = tensor(&logits, &[1, 1, 4096]);
        let shifted = (&a + 64.0).unwrap();
        let same = between(&a, &a);
        assert_eq!((same.kl, same.max, same.same_top.value), (Estimate::default(), 0.0, 1.0));
        assert!(between(&a, &shifted).kl.value < 1e-9);
        // One logit moved by a little: the second order of its formula, p (1 - p) d² / 2.
        let (mut moved, d) = (logits.clone(), 1.0 / 256.0);
        moved[100] += d;
        let sum: f64 = logits.iter().map(|v| f64::from(*v).exp()).sum();
        let p = f64::from(logits[100]).exp() / sum;
        let want = p * (1.0 - p) * f64::from(d).powi(2) / 2.0;
        let found = between(&a, &tensor(&moved, &[1, 1, 4096])).kl.value;
        assert!((found / want - 1.0).abs() < 0.01, "{found}, not {want}");
    }

    #[test]
    fn what_cannot_be_compared_is_refused_and_counts_nothing() {
        let mut all = Divergences::default();
        let a = tensor(&[0.0, 1.0], &[1, 1, 2]);
        let said = all.add(&a, &tensor(&[0.0; 3], &[1, 1, 3])).unwrap_err().to_string();
        assert!(said.contains("[1, 1, 3]") && said.contains("hint: "), "{said}");
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let bad = tensor(&[bad, 1.0], &[1, 1, 2]);
            assert!(all.add(&a, &bad).unwrap_err().to_string().contains("not finite"));
        }
        assert_eq!(all.found(), Divergence::default());
        // A token that the original never says takes nothing away.
        let never = tensor(&[f32::NEG_INFINITY, 1.0], &[1, 1, 2]);
        assert!((between(&never, &a).kl.value - (1.0 + (-1f64).exp()).ln()).abs() < 1e-7);
    }
}
