//! The learning rate over the steps of a cycle.

/// One fall of the learning rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cycle {
    pub steps: usize,
    /// Peak learning rate, reached after `warmup` steps, then falling to zero as a half cosine.
    pub rate: f64,
    pub warmup: usize,
}

/// Share of the peak rate at `step`: linear warm-up, then half a cosine to zero (Loshchilov and Hutter 2017).
pub(super) fn schedule(step: usize, r: &Cycle) -> f64 {
    if step < r.warmup {
        return (step + 1) as f64 / r.warmup as f64;
    }
    let t = (step - r.warmup) as f64 / r.steps.saturating_sub(r.warmup).max(1) as f64;
    0.5 * (1.0 + (std::f64::consts::PI * t).cos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_rises_then_falls_to_zero() {
        let c = Cycle { steps: 104, rate: 1.0, warmup: 4 };
        let at = |s| schedule(s, &c);
        assert_eq!((at(0), at(3), at(4)), (0.25, 1.0, 1.0));
        assert!((at(54) - 0.5).abs() < 1e-12 && at(103) < 1e-3);
        assert!((4..103).all(|s| at(s + 1) < at(s)));
    }
}
