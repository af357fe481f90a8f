//! Weights rounded as a model that is stored in few bits has them, in passes that gradients go through.
//!
//! Not here: how values are rounded (`model`, by the formats of `quant`), which layers are (`site`).

use super::ops::Candle;
use crate::model::Param;
use crate::quant::WeightFormat;
use candle_core::{Device, Tensor};

/// `w`, rows along axis 0, rounded to `format` and unpacked again; itself for f32. Its gradient is handed to `w` unchanged:
/// rounding is flat almost everywhere, so its own would teach nothing (the straight-through estimator, Bengio et al.
/// 2013). `None` where `format` cannot hold a value.
pub(super) fn straight_through(w: &Tensor, format: WeightFormat) -> Candle<Option<Tensor>> {
    if format == WeightFormat::F32 {
        return Ok(Some(w.clone()));
    }
    let fixed = w.detach();
    let values = fixed.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
    let Some(param) = Param::owned(w.dims().to_vec(), values) else { candle_core::bail!("a weight of no shape") };
    let rounded = param.stored_in(format).values().into_owned();
    if rounded.iter().any(|v| !v.is_finite()) {
        return Ok(None);
    }
    let rounded = Tensor::from_vec(rounded, w.dims(), w.device())?;
    // `w - fixed` is zero and stays exactly that: the sum has the rounded values and the gradient of `w`.
    (rounded + (w - fixed)?).map(Some)
}
