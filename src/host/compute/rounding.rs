//! What each precision does to one layer's weights, for whoever looks at the row: rounded to nearest, as an evaluation at that precision rounds
//! them; a run's repairs may find better codes.

use super::{Compute, JobError};
use crate::graph::ParamRole;
use crate::model::Param;
use crate::quant::Precision;
use std::borrow::Cow;

/// Values that are looked at of a weight: of larger ones rows that are spread over it.
const LOOKED_AT: usize = 1 << 21;

impl Compute {
    /// How far the weights of `layer` are off in each precision that it can have: √(Σ(w − q)² / Σw²). Nothing where it has no weights.
    ///
    /// # Errors
    /// No such layer; a parameter that is missing.
    pub(super) fn rounding_of(&self, layer: &str) -> Result<Vec<(Precision, f32)>, JobError> {
        let graph = &self.model.graph;
        let id = graph.by_name(layer).ok_or_else(|| JobError::Failed(format!("`{layer}` is no layer of the model")))?;
        let node = graph.node(id);
        let Some(weight) = node.param(ParamRole::Weight).filter(|_| node.op.is_conv_or_linear()) else {
            return Ok(Vec::new());
        };
        let param = self.model.params.get(weight).map_err(|e| JobError::Failed(e.to_string()))?;
        let part = spread(param);
        let fits = Precision::menu(graph.vocabulary().is_some()).iter().filter(|p| p.unfit(&node.op).is_none());
        let fits: Vec<Precision> = fits.copied().collect();
        let errors = fits.iter().map(|&p| (p, off(&part, p))).collect();
        param.release();
        Ok(errors)
    }
}

/// The weight, or rows of a large one at even distances.
fn spread(param: &Param) -> Cow<'_, Param> {
    let rows = param.shape().first().copied().unwrap_or(0);
    let columns = param.numel() / rows.max(1);
    let most = (LOOKED_AT / columns.max(1)).max(1);
    if rows <= most {
        return Cow::Borrowed(param);
    }
    let picked: Option<Vec<f32>> = (0..most).map(|k| param.rows(k * rows / most..k * rows / most + 1)).try_fold(
        Vec::with_capacity(most * columns),
        |mut all, row| {
            all.extend_from_slice(&row?.values());
            Some(all)
        },
    );
    let shape = [&[most], &param.shape()[1..]].concat();
    picked.and_then(|values| Param::owned(shape, values)).map_or(Cow::Borrowed(param), Cow::Owned)
}

fn off(weight: &Param, precision: Precision) -> f32 {
    let rounded = weight.stored_in(precision.weights());
    apart(&weight.values(), &rounded.values())
}

/// √(Σ(y − ŷ)² / Σy²); infinite where `ŷ` is not finite, zero where both are zero.
pub(super) fn apart(right: &[f32], other: &[f32]) -> f32 {
    let sums = right.iter().zip(other).fold((0.0f64, 0.0f64), |(all, off), (y, z)| {
        let (y, z) = (f64::from(*y), f64::from(*z));
        (all + y * y, off + (y - z) * (y - z))
    });
    match sums {
        (_, off) if !off.is_finite() => f32::INFINITY,
        (_, 0.0) => 0.0,
        (0.0, _) => f32::INFINITY,
        (all, off) => (off / all).sqrt() as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_apart_by_their_definition() {
        assert_eq!(apart(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert!((apart(&[3.0, 4.0], &[3.0, 3.0]) - 0.2).abs() < 1e-6);
        assert_eq!(apart(&[0.0], &[0.0]), 0.0);
        assert_eq!(apart(&[0.0], &[1.0]), f32::INFINITY);
        assert_eq!(apart(&[1.0], &[f32::NAN]), f32::INFINITY);
    }

    #[test]
    fn fewer_bits_are_further_off_and_rows_of_a_large_weight_say_nearly_the_same() {
        let values: Vec<f32> =
            (0..64 * 256).map(|i| ((i * 2_654_435_761u64 % 1000) as f32 / 500.0 - 1.0).powi(3)).collect();
        let weight = Param::owned(vec![64, 256], values).expect("fits");
        let of = |p| off(&weight, p);
        assert_eq!(of(Precision::F32), 0.0);
        assert!(of(Precision::F16) < 1e-3 && of(Precision::Bf16) < 5e-3);
        assert!(of(Precision::F16) < of(Precision::Int8) && of(Precision::Int8) < of(Precision::W4));
        assert!(of(Precision::W4g32) <= of(Precision::W4g128) && of(Precision::W4) < 0.3);
        let large =
            Param::owned(vec![4096, 1024], (0..4096 * 1024).map(|i| (i % 977) as f32 - 488.0).collect()).expect("fits");
        let part = spread(&large);
        assert!(part.numel() <= LOOKED_AT && part.shape()[1] == 1024);
        let (all, some) = (off(&large, Precision::W4), off(&part, Precision::W4));
        assert!((all / some - 1.0).abs() < 0.05, "{all} {some}");
        assert_eq!(off(&Param::owned(vec![1, 32], vec![0.0; 32]).expect("fits"), Precision::W4), 0.0);
    }
}
