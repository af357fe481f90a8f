//! The optimiser: Adam with decoupled weight decay (Kingma and Ba 2015; Loshchilov and Hutter 2019).
//!
//! Not `candle_nn::AdamW`, which rounds every operation to f32 and decays all variables alike: here moments are updated in
//! f64 and norms and biases do not decay, and the bundled weights are what that made of their seed.

/// Adam's moments and floor.
const BETA: (f64, f64) = (0.9, 0.999);
const FLOOR: f64 = 1e-8;

/// One tensor's values and moments.
pub(super) struct AdamW {
    pub value: Vec<f32>,
    moments: Vec<(f32, f32)>,
    decays: bool,
}

impl AdamW {
    pub fn new(value: Vec<f32>, decays: bool) -> AdamW {
        let moments = vec![(0.0, 0.0); value.len()];
        AdamW { value, moments, decays }
    }

    /// Starts afresh from the values as they are.
    pub fn forget(&mut self) {
        self.moments.fill((0.0, 0.0));
    }

    /// Step `step` (from 0 since the start) at learning rate `rate`, with one gradient per value.
    pub fn step(&mut self, step: usize, rate: f64, decay: f64, grad: &[f64]) {
        let t = step as i32 + 1;
        let (b1, b2) = BETA;
        let (c1, c2) = (1.0 - b1.powi(t), 1.0 - b2.powi(t));
        let shrink = if self.decays { 1.0 - rate * decay } else { 1.0 };
        for ((w, (m, v)), &g) in self.value.iter_mut().zip(&mut self.moments).zip(grad) {
            *m = (b1 * f64::from(*m) + (1.0 - b1) * g) as f32;
            *v = (b2 * f64::from(*v) + (1.0 - b2) * g * g) as f32;
            let step = rate * (f64::from(*m) / c1) / ((f64::from(*v) / c2).sqrt() + FLOOR);
            *w = (f64::from(*w) * shrink - step) as f32;
        }
    }
}
