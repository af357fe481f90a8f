//! The calibration loss, by which a repair stays or goes.

use crate::task::Task;
use candle_core::Tensor;

/// The calibration loss: the task's mean divergence from the original's outputs at its own temperature ([`Task::softening`]), times that
/// squared (of classifiers the distillation loss, Hinton et al. 2015); zero for the original itself, infinite for outputs
/// that are no numbers.
#[derive(Default)]
pub(super) struct Mean {
    sum: f64,
    n: usize,
}

impl Mean {
    /// Both `[N, …]`.
    pub fn add(&mut self, task: &dyn Task, outputs: &Tensor, answer: &Tensor) {
        let temperature = task.softening();
        let kl = task.divergence(answer, outputs, temperature).unwrap_or(f64::INFINITY);
        let n = answer.dims().first().copied().unwrap_or(0);
        self.sum += kl * temperature * temperature * n as f64;
        self.n += n;
    }

    pub fn get(&self) -> f64 {
        let loss = self.sum / self.n.max(1) as f64;
        if loss.is_finite() { loss } else { f64::INFINITY }
    }
}
