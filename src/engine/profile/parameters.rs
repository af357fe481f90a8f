//! What a model's weights are, layer by layer: norms, zeros, range, histogram, spectrum, scales of norms, and units that do nothing.
//!
//! Tensors of more than [`WHOLE`] values are looked at by rows that are drawn without putting any back, and say how far their figures may be
//! off. Nothing is run. Not here: what weights do to a loss (`train`'s pulses while a network is healed, `prune` for importances), and what
//! rounding does to them (`rounding`). Invariant: the figures are a function of the parameters; a layer of which one would be no number has no
//! row.

use super::Result;
use crate::exec::Cancel;
use crate::graph::{Node, ParamRole};
use crate::model::{Model, Param};
use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatRef, Par, Side};
use rand::SeedableRng;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// Values of a tensor that are all looked at; of larger ones rows of about as many together.
pub const WHOLE: usize = 1 << 22;

/// Rows of a larger tensor that are looked at in any case: an error is worked out from how they differ.
const ROWS: usize = 64;

/// The longest short side of a matrix whose spectrum is worked out: takes some tenths of a second.
const SIDE: usize = 1024;

/// A norm's scale that is smaller than this part of the largest beside it multiplies what it scales away.
const DEAD: f32 = 1e-3;

/// Bars of a histogram.
pub const BARS: usize = 16;

/// The weight of one layer: of convolutions `[out, in/groups·kh·kw]`, of linears `[out, in]`, of norms the scale `[c]`. Values as they are
/// stored; offsets are none of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerParameters {
    /// The node's name.
    pub name: String,
    pub values: u64,
    /// Root of the sum of squares (Frobenius norm).
    pub l2: f32,
    /// The part of values that are exactly zero, 0 to 1.
    pub zeros: f32,
    pub min: f32,
    pub max: f32,
    /// Values in equal steps from `-m` to `m`, `m` the largest magnitude.
    pub histogram: [u32; BARS],
    /// Output units (rows; of a norm: channels), of a tensor that was sampled those that were looked at; and how many of them do nothing: all
    /// weights zero, or of a norm a scale below a thousandth of the largest.
    pub units: u32,
    pub dead: u32,
    /// `None` of norms, of large and of sampled tensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// Of norms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scales: Option<Scales>,
    /// `None`: all values were looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<Drawn>,
}

/// How many directions a matrix really has.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rank {
    /// The exponential of the entropy of its singular values, over their sum (Roy and Vetterli 2007, "The effective rank"): from 1 of one
    /// direction to `full` of directions alike; 0 of zeros.
    pub effective: f32,
    /// The shorter side.
    pub full: u32,
}

/// The scales of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scales {
    /// Mean and least magnitude.
    pub mean: f32,
    pub least: f32,
}

/// What was looked at of a large tensor, and how far its figures may be off: 1.96 standard errors of sums over rows that were drawn without
/// putting any back (Cochran 1977, section 2.6). The least and the largest value are of those rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Drawn {
    pub values: u64,
    /// Of the norm, as a part of it.
    pub l2: f32,
    /// Of the part of zeros.
    pub zeros: f32,
}

impl LayerParameters {
    /// Root of the mean square.
    pub fn rms(&self) -> f32 {
        self.l2 / (self.values.max(1) as f32).sqrt()
    }

    /// Whether anything is in it that is no number, which JSON has no word for.
    fn is_sound(&self) -> bool {
        let rest = self.rank.iter().map(|r| r.effective).chain(self.scales.iter().flat_map(|s| [s.mean, s.least]));
        let drawn = self.sampled.iter().flat_map(|d| [d.l2, d.zeros]);
        [self.l2, self.zeros, self.min, self.max].into_iter().chain(rest).chain(drawn).all(f32::is_finite)
    }
}

/// The weights of `model`'s layers in network order, by node; one that is shared comes with each. `update` is told how many of how many are
/// done.
///
/// # Errors
/// A parameter that is missing; cancellation, looked for before every weight.
pub fn parameters(
    model: &Model,
    cancel: &Cancel,
    update: &mut dyn FnMut(&str, usize, usize),
) -> Result<Vec<LayerParameters>> {
    let layers: Vec<(&Node, &str)> =
        model.graph.live().filter_map(|(_, n)| Some((n, n.param(ParamRole::Weight)?))).collect();
    let mut out = Vec::with_capacity(layers.len());
    for (i, (node, weight)) in layers.iter().enumerate() {
        cancel.check()?;
        update(&node.name, i, layers.len());
        let param = model.params.get(weight)?;
        let found = of_weight(&node.name, param, WHOLE, i as u64);
        param.release();
        out.extend(found.filter(LayerParameters::is_sound));
    }
    update("", layers.len(), layers.len());
    Ok(out)
}

/// Sums over one row.
#[derive(Debug, Clone, Copy)]
struct Sums {
    squares: f64,
    zeros: f64,
    magnitudes: f64,
    min: f32,
    max: f32,
}

impl Sums {
    fn of(row: &[f32]) -> Sums {
        let start = Sums { squares: 0.0, zeros: 0.0, magnitudes: 0.0, min: f32::INFINITY, max: f32::NEG_INFINITY };
        row.iter().fold(start, |s, &v| Sums {
            squares: s.squares + f64::from(v) * f64::from(v),
            zeros: s.zeros + f64::from(u8::from(v == 0.0)),
            magnitudes: s.magnitudes + f64::from(v.abs()),
            min: s.min.min(v),
            max: s.max.max(v),
        })
    }
}

/// One weight, of which at most about `whole` values are looked at; `draw` decides which rows. `None` of one without values.
fn of_weight(name: &str, param: &Param, whole: usize, draw: u64) -> Option<LayerParameters> {
    let (values, rows) = (param.numel(), param.shape().first().copied().unwrap_or(0));
    let columns = values.checked_div(rows).filter(|c| *c > 0)?;
    let norm = param.shape().len() == 1;
    let all = values <= whole || norm || rows <= (whole / columns).max(ROWS);
    let picks: Vec<usize> = if all {
        (0..rows).collect()
    } else {
        let mut picks =
            index::sample(&mut ChaCha8Rng::seed_from_u64(draw), rows, (whole / columns).max(ROWS)).into_vec();
        picks.sort_unstable();
        picks
    };
    // What cannot be had by rows is unpacked once; so is what is looked at whole.
    let unpacked = (all || param.rows(0..1).is_none()).then(|| param.values());
    let row = |i: usize| match &unpacked {
        Some(values) => std::borrow::Cow::Borrowed(&values[i * columns..][..columns]),
        None => param.rows(i..i + 1).map_or(std::borrow::Cow::Borrowed(&[][..]), |p| p.values().into_owned().into()),
    };
    let sums: Vec<Sums> = picks.iter().map(|&i| Sums::of(&row(i))).collect();
    let total = |of: fn(&Sums) -> f64| sums.iter().map(of).sum::<f64>();
    let share = rows as f64 / picks.len() as f64;
    let (squares, zeros) = (total(|s| s.squares) * share, total(|s| s.zeros) * share);
    let (min, max) = sums.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |m, s| (m.0.min(s.min), m.1.max(s.max)));
    let most = max.max(-min);
    let mut histogram = [0u32; BARS];
    picks.iter().for_each(|&i| count(&row(i), most, &mut histogram));
    let sampled = (!all).then(|| Drawn {
        values: (picks.len() * columns) as u64,
        // The root halves what its square is off by.
        l2: (off(&sums, rows, |s| s.squares) / squares.max(f64::MIN_POSITIVE) / 2.0) as f32,
        zeros: (off(&sums, rows, |s| s.zeros) / values as f64) as f32,
    });
    let dead = match norm {
        true => unpacked.iter().flat_map(|v| v.iter()).filter(|v| v.abs() <= DEAD * most).count(),
        false => sums.iter().filter(|s| s.zeros == columns as f64).count(),
    };
    let spectrum = all && !norm && rows.min(columns) <= SIDE;
    Some(LayerParameters {
        name: name.to_owned(),
        values: values as u64,
        l2: squares.sqrt() as f32,
        zeros: (zeros / values as f64) as f32,
        min,
        max,
        histogram,
        units: picks.len() as u32,
        dead: dead as u32,
        rank: unpacked.filter(|_| spectrum).and_then(|v| effective_rank(&v, rows, columns)),
        scales: norm.then(|| Scales {
            mean: (total(|s| s.magnitudes) / values as f64) as f32,
            least: sums.iter().map(|s| s.max.abs()).fold(f32::INFINITY, f32::min),
        }),
        sampled,
    })
}

/// 1.96 standard errors of a sum over all `rows` that is made from the rows in `sums`.
fn off(sums: &[Sums], rows: usize, of: fn(&Sums) -> f64) -> f64 {
    let n = sums.len() as f64;
    let mean = sums.iter().map(of).sum::<f64>() / n;
    let variance = sums.iter().map(|s| (of(s) - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    1.96 * rows as f64 * (variance / n * (1.0 - n / rows as f64)).sqrt()
}

fn count(row: &[f32], most: f32, bars: &mut [u32; BARS]) {
    let scale = if most > 0.0 { BARS as f32 / 2.0 / most } else { 0.0 };
    for v in row {
        let bar = (v * scale + BARS as f32 / 2.0) as usize;
        bars[bar.min(BARS - 1)] += 1;
    }
}

/// The effective rank of `weight` `[rows, columns]`: singular values are the roots of its smaller Gram matrix's eigenvalues, which tells those
/// apart from nothing that are above about 1e-7 of the largest; what is below counts as zero. `None` where no eigenvalues are found.
fn effective_rank(weight: &[f32], rows: usize, columns: usize) -> Option<Rank> {
    let full = rows.min(columns);
    let wide: Vec<f64> = weight.iter().map(|v| f64::from(*v)).collect();
    let w = MatRef::from_row_major_slice(&wide, rows, columns);
    let mut gram = Mat::<f64>::zeros(full, full);
    let (left, right) = if rows <= columns { (w, w.transpose()) } else { (w.transpose(), w) };
    matmul(gram.as_mut(), Accum::Replace, left, right, 1.0, Par::Seq);
    let squares = gram.self_adjoint_eigenvalues(Side::Lower).ok()?;
    let most = squares.iter().copied().fold(0.0, f64::max);
    let least = most * full as f64 * f64::EPSILON;
    let values: Vec<f64> = squares.into_iter().filter(|v| *v > least).map(f64::sqrt).collect();
    let sum: f64 = values.iter().sum();
    let entropy = -values.iter().map(|v| v / sum * (v / sum).ln()).sum::<f64>();
    Some(Rank { effective: if sum > 0.0 { entropy.exp() as f32 } else { 0.0 }, full: full as u32 })
}

#[cfg(test)]
#[path = "parameters_tests.rs"]
mod tests;
