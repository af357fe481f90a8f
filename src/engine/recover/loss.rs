//! The calibration loss, by which a repair stays or goes.

use candle_core::Tensor;

/// Softening of the calibration loss. Calibration images are usually training images, of which the network is so sure
/// that plain cross-entropy barely sees damage that costs points elsewhere; at this temperature it does.
const TEMPERATURE: f64 = 4.0;

/// The calibration loss: mean distillation loss against the original's logits (Hinton et al. 2015, `T²·KL` at
/// temperature [`TEMPERATURE`]); zero for the original itself, infinite for logits that are no numbers.
#[derive(Default)]
pub(super) struct Mean {
    sum: f64,
    n: usize,
}

impl Mean {
    /// Both `[N, classes]`.
    pub fn add(&mut self, logits: &Tensor, answer: &Tensor) {
        let soft = |t: &Tensor| t / TEMPERATURE;
        let kl = match (soft(answer), soft(logits)) {
            (Ok(a), Ok(l)) => crate::eval::kl(&a, &l).unwrap_or(f64::INFINITY),
            _ => f64::INFINITY,
        };
        let n = answer.dims().first().copied().unwrap_or(0);
        self.sum += kl * TEMPERATURE * TEMPERATURE * n as f64;
        self.n += n;
    }

    pub fn get(&self) -> f64 {
        let loss = self.sum / self.n.max(1) as f64;
        if loss.is_finite() { loss } else { f64::INFINITY }
    }
}
