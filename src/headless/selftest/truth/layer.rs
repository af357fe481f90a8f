//! Convolutions and linear layers: sums of products, rounded, in codes or in half precision.

use super::site::{Expected, SIGMAS, Site, U, taps};
use crate::graph::{ParamRole, Precision, op};
use anyhow::Result;

pub(super) fn conv(at: &Site<'_>, conv: &op::Conv2d) -> Result<Expected> {
    let op::Conv2d { in_ch, out_ch, kernel, stride, padding, groups, .. } = *conv;
    let [[_, h, w], [_, oh, ow]] = at.images()?;
    let sums = DenseTruth::of(at, out_ch)?;
    let (ci, co, x) = (in_ch / groups, out_ch / groups, at.x);
    let mut v = Vec::new();
    for image in 0..at.run.images {
        let step = at_once(at, &x.y[image * in_ch * h * w..][..in_ch * h * w]);
        for (o, place) in (0..out_ch).flat_map(|o| (0..oh * ow).map(move |place| (o, place))) {
            let mut sum = sums.start(o, step);
            taps(place / ow, place % ow, kernel, stride, padding, [h, w], |tap, pixel| {
                for c in 0..ci {
                    let i = (image * in_ch + o / co * ci + c) * h * w + pixel;
                    sum.add(x.get(i), c * kernel[0] * kernel[1] + tap);
                }
            });
            v.push(sum.finish());
        }
    }
    Ok(v.into_iter().collect())
}

pub(super) fn linear(at: &Site<'_>, linear: &op::Linear) -> Result<Expected> {
    let sums = DenseTruth::of(at, linear.out_features)?;
    let mut v = Vec::new();
    for (row, tolerance) in at.rows() {
        let step = at_once(at, row);
        for o in 0..linear.out_features {
            let mut sum = sums.start(o, step);
            row.iter().zip(tolerance).enumerate().for_each(|(i, (x, t))| sum.add((*x, *t), i));
            v.push(sum.finish());
        }
    }
    Ok(v.into_iter().collect())
}

/// What activations that are rounded together are rounded by.
#[derive(Clone, Copy)]
struct AtOnce {
    /// The step of int8's codes, which cover them and zero.
    step: f64,
    /// The scale of 8-bit floats: the largest becomes 448.
    scale: f64,
}

fn at_once(at: &Site<'_>, x: &[f64]) -> AtOnce {
    let (low, high) = x.iter().fold((0.0f64, 0.0f64), |(a, b), &v| (a.min(v), b.max(v)));
    AtOnce { step: (high - low) / f64::from(at.run.top_code), scale: high.max(-low) / TOP_FP8 }
}

/// The largest 8-bit float.
const TOP_FP8: f64 = 448.0;

/// How far rounding to an 8-bit float of this scale moves `v` at most: half of what lies between neighbours, of which there are
/// eight from one power of two to the next, and no fewer than 2^-9 apart.
fn half_fp8(v: f64, scale: f64) -> f64 {
    if scale > 0.0 { scale * 2f64.powi(((v.abs() / scale).log2().floor() as i32).max(-6) - 4) } else { 0.0 }
}

/// Rows of weights that products are summed with.
struct DenseTruth {
    weights: Vec<f64>,
    bias: Vec<f64>,
    k: usize,
    /// The largest code of weights, and how many share a scale, where weights are in codes.
    codes: Option<(f64, usize)>,
    /// Activations are in codes, too.
    int8: bool,
    /// Both are 8-bit floats.
    fp8: bool,
    /// Half an ulp of one in the half precision that is multiplied.
    half: Option<f64>,
}

impl DenseTruth {
    fn of(at: &Site<'_>, rows: usize) -> Result<DenseTruth> {
        let weights = at.param(ParamRole::Weight)?;
        let bias = match at.node.param(ParamRole::Bias) {
            Some(_) => at.param(ParamRole::Bias)?,
            None => vec![0.0; rows],
        };
        let precision = at.run.precision.get(&at.node.name);
        let half = match precision {
            Precision::F16 => Some(1.0 / f64::from(1u32 << 11)),
            Precision::Bf16 => Some(1.0 / f64::from(1u32 << 8)),
            _ => None,
        };
        let k = weights.len() / rows.max(1);
        let codes = match precision {
            Precision::Int8 | Precision::W8 => Some((127.0, k)),
            Precision::W4 => Some((7.0, k)),
            Precision::W4g128 => Some((7.0, 128)),
            Precision::W4g64 => Some((7.0, 64)),
            Precision::W4g32 => Some((7.0, 32)),
            _ => None,
        };
        let (int8, fp8) = (precision == Precision::Int8, precision == Precision::Fp8);
        Ok(DenseTruth { k, weights, bias, codes, int8, fp8, half })
    }

    /// A sum with row `o`, over activations that are rounded so.
    fn start(&self, o: usize, AtOnce { step, scale }: AtOnce) -> Sum<'_> {
        let row = &self.weights[o * self.k..][..self.k];
        let (top, group) = self.codes.unwrap_or((1.0, self.k));
        let of = |part: &[f64]| part.iter().fold(0.0f64, |m, w| m.max(w.abs())) / top;
        let weight_steps = match self.codes {
            Some(_) => row.chunks(group.max(1)).map(of).collect(),
            None => Vec::new(),
        };
        let step = if self.int8 { step } else { 0.0 };
        let scales = self.fp8.then(|| [scale, row.iter().fold(0.0f64, |m, w| m.max(w.abs())) / TOP_FP8]);
        let (half, bias) = (self.half, self.bias[o]);
        Sum { row, bias, step, weight_steps, group, scales, half, y: 0.0, size: 0.0, off: 0.0, variance: 0.0 }
    }
}

struct Sum<'a> {
    row: &'a [f64],
    bias: f64,
    /// Of activations in codes; 0 where they are not.
    step: f64,
    /// Of every group of weights in codes; none where they are not.
    weight_steps: Vec<f64>,
    group: usize,
    /// Of activations and weights as 8-bit floats.
    scales: Option<[f64; 2]>,
    half: Option<f64>,
    y: f64,
    size: f64,
    off: f64,
    variance: f64,
}

impl Sum<'_> {
    fn add(&mut self, (x, tolerance): (f64, f64), i: usize) {
        let w = self.row[i];
        self.y += x * w;
        self.size += (x * w).abs();
        self.off += tolerance * w.abs();
        if let Some(sw) = self.weight_steps.get(i / self.group.max(1)) {
            let sx = self.step;
            self.variance += ((x * sw).powi(2) + (w * sx).powi(2) + (sx * sw).powi(2) / 12.0) / 12.0;
        }
        if let Some([sx, sw]) = self.scales {
            let (hx, hw) = (half_fp8(x, sx), half_fp8(w, sw));
            self.variance += ((x * hw).powi(2) + (w * hx).powi(2) + (hx * hw).powi(2) / 3.0) / 3.0;
        }
        if let Some(u) = self.half {
            self.variance += 2.0 * (x * w * u).powi(2) / 3.0;
        }
    }

    fn finish(mut self) -> (f64, f64) {
        if let Some(u) = self.half {
            self.variance += (self.y * u).powi(2) / 3.0;
        }
        let rounding = ((self.row.len() as f64).sqrt() + 4.0) * U * (self.size + self.bias.abs());
        (self.y + self.bias, self.off + rounding + SIGMAS * self.variance.sqrt())
    }
}
