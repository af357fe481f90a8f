//! What training makes small: cross-entropy against labels.

use candle_core::{D, DType, Device, Tensor};

/// Mean cross-entropy, a share of the target spread evenly over all classes (label smoothing, Szegedy et al. 2016).
#[derive(Debug, Clone, Copy)]
pub(super) struct CrossEntropy {
    pub smoothing: f64,
}

impl CrossEntropy {
    /// Loss (a scalar with its history) and the share of right answers for logits `[batch, classes]`, or `[batch, tokens, vocabulary]`
    /// with a label for each token, window by window.
    pub fn of(self, logits: &Tensor, labels: &[u32]) -> candle_core::Result<(Tensor, f32)> {
        let logits = logits.flatten_to(D::Minus2)?;
        let target = Tensor::new(labels, &Device::Cpu)?;
        let log_p = log_softmax(&logits)?;
        let nll = log_p.gather(&target.unsqueeze(1)?, 1)?.mean_all()?.neg()?;
        let loss = ((nll * (1.0 - self.smoothing))? - (log_p.mean_all()? * self.smoothing)?)?;
        let hits = logits.argmax(D::Minus1)?.eq(&target)?.to_dtype(DType::F32)?.mean_all()?.to_scalar::<f32>()?;
        Ok((loss, hits))
    }
}

fn log_softmax(x: &Tensor) -> candle_core::Result<Tensor> {
    let shifted = x.broadcast_sub(&x.detach().max_keepdim(D::Minus1)?)?;
    let norm = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    shifted.broadcast_sub(&norm)
}
