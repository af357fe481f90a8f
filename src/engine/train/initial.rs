//! Parameters before the first step, by what they are.

use crate::graph::{Op, ParamRole, op};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Normal numbers, cut at two standard deviations (as `trunc_normal_` does for ViTs).
pub(super) struct Normal {
    rng: ChaCha8Rng,
}

impl Normal {
    pub fn seeded(seed: u64) -> Normal {
        Normal { rng: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// The first values of a parameter of `op`.
    pub fn values(&mut self, op: &Op, role: ParamRole, shape: &[usize]) -> Vec<f32> {
        let count: usize = shape.iter().product();
        match (role, op) {
            // He et al. 2015: ReLU networks keep their scale.
            (ParamRole::Weight, Op::Conv2d(_)) => {
                let fan_in: usize = shape.iter().skip(1).product();
                self.take(count, (2.0 / fan_in.max(1) as f64).sqrt())
            }
            (ParamRole::Weight, Op::Linear(op::Linear { in_features, out_features, .. })) => {
                self.take(count, (2.0 / (in_features + out_features).max(1) as f64).sqrt())
            }
            (ParamRole::Embedding | ParamRole::PositionBias, _) | (ParamRole::Weight, Op::Embedding(_)) => {
                self.take(count, 0.02)
            }
            (ParamRole::PositionMlp1 | ParamRole::PositionMlp2, _) => self.take(count, 0.2),
            // Swin v2 begins with a factor of 10.
            (ParamRole::LogitScale, _) => vec![10f32.ln(); count],
            (ParamRole::Weight | ParamRole::Var, _) => vec![1.0; count],
            (ParamRole::Bias | ParamRole::Mean | ParamRole::PositionMlp1Bias, _) => vec![0.0; count],
        }
    }

    fn take(&mut self, count: usize, std: f64) -> Vec<f32> {
        (0..count).map(|_| (self.one() * std) as f32).collect()
    }

    fn one(&mut self) -> f64 {
        loop {
            // Twelve uniforms less six: mean 0, variance 1, near enough to normal for an initial weight, and exact.
            let sum: f64 = (0..12).map(|_| f64::from(self.rng.next_u32()) / 4_294_967_296.0).sum();
            if (sum - 6.0).abs() <= 2.0 {
                return sum - 6.0;
            }
        }
    }
}
