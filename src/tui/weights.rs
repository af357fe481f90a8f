//! What rows of the layer list know of weights and gradients, as sums: a block's figures are those of its layers together.
//!
//! Pure. Invariant: what was not measured is `None`, never zero.

use crate::profile::LayerParameters;
use crate::train::{LayerPulse, Spread};

/// Of a layer, or of a block's layers together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Weights {
    /// `Σ w²`.
    squares: Option<f64>,
    /// Values that are zero, and all.
    zeros: Option<(f64, f64)>,
    /// Effective ranks, and the most that they could be.
    rank: Option<(f64, f64)>,
    /// Squared norm of the gradient.
    gradient: Option<f64>,
    importance: Option<f64>,
    /// `|G|²` and `tr Σ`, see [`crate::train::Spread`].
    spread: Option<(f64, f64)>,
    /// Norm and zeros are estimates: a large tensor was looked at in part.
    pub sampled: bool,
    /// Norm and gradients are of the step that a healing is at.
    pub live: bool,
}

impl Weights {
    /// Takes what a profile says of a layer's weight.
    pub fn measured(&mut self, p: &LayerParameters) {
        self.squares = Some(f64::from(p.l2).powi(2));
        self.zeros = Some((f64::from(p.zeros) * p.values as f64, p.values as f64));
        self.rank = p.rank.map(|r| (f64::from(r.effective), f64::from(r.full)));
        self.sampled = p.sampled.is_some();
    }

    /// Takes what a healing says of it: `live`, while that goes on.
    pub fn pulse(&mut self, p: &LayerPulse, live: bool) {
        self.gradient = Some(f64::from(p.gradient).powi(2));
        self.importance = Some(f64::from(p.importance));
        self.spread = p.spread.map(|s| (f64::from(s.signal), f64::from(s.variance)));
        if live {
            (self.squares, self.sampled) = (Some(f64::from(p.weight).powi(2)), false);
        }
        self.live = live;
    }

    /// These of a block, with a further layer's.
    pub fn with(self, other: &Weights) -> Weights {
        let plus = |a: f64, b: f64| a + b;
        let pair = |a: (f64, f64), b: (f64, f64)| (a.0 + b.0, a.1 + b.1);
        Weights {
            squares: both(self.squares, other.squares, plus),
            zeros: both(self.zeros, other.zeros, pair),
            rank: both(self.rank, other.rank, pair),
            gradient: both(self.gradient, other.gradient, plus),
            importance: both(self.importance, other.importance, plus),
            spread: both(self.spread, other.spread, pair),
            sampled: self.sampled || other.sampled,
            live: self.live || other.live,
        }
    }

    /// Root of the sum of squares.
    pub fn norm(&self) -> Option<f64> {
        self.squares.map(f64::sqrt)
    }

    /// The part of values that are zero.
    pub fn zeros(&self) -> Option<f64> {
        self.zeros.map(|(zeros, all)| zeros / all.max(1.0))
    }

    /// The effective rank as a part of what it could be.
    pub fn rank(&self) -> Option<f64> {
        self.rank.filter(|(_, full)| *full > 0.0).map(|(rank, full)| rank / full)
    }

    /// The gradient's norm.
    pub fn gradient(&self) -> Option<f64> {
        self.gradient.map(f64::sqrt)
    }

    /// `Σ |g·w|`.
    pub fn importance(&self) -> Option<f64> {
        self.importance
    }

    /// The noise scale, images; `None` too where noise hides the gradient altogether.
    pub fn noise(&self) -> Option<f64> {
        self.spread.and_then(|(signal, variance)| Spread::scale(signal, variance))
    }
}

/// `f` of both, or the one that is known.
pub(super) fn both<T>(a: Option<T>, b: Option<T>, f: fn(T, T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(f(a, b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Rank;

    #[test]
    fn blocks_have_the_figures_of_their_layers_together() {
        let layer = |l2: f32, zeros: f32, rank: f32| LayerParameters {
            l2,
            zeros,
            values: 100,
            rank: Some(Rank { effective: rank, full: 10 }),
            ..LayerParameters::default()
        };
        let pulse = |gradient: f32, signal: f32, variance: f32| LayerPulse {
            name: String::new(),
            values: 100,
            weight: 6.0,
            moved: 0.1,
            gradient,
            importance: gradient,
            spread: Some(Spread { signal, variance }),
        };
        let of = |p: &LayerParameters, g: Option<&LayerPulse>| {
            let mut w = Weights::default();
            w.measured(p);
            g.into_iter().for_each(|g| w.pulse(g, false));
            w
        };
        let (a, b) = (layer(3.0, 0.5, 4.0), layer(4.0, 0.0, 8.0));
        let known = of(&a, Some(&pulse(3.0, 1.0, 10.0))).with(&of(&b, Some(&pulse(4.0, 3.0, 90.0))));
        assert_eq!((known.norm(), known.zeros(), known.rank()), (Some(5.0), Some(0.25), Some(0.6)));
        assert_eq!((known.gradient(), known.importance(), known.noise()), (Some(5.0), Some(7.0), Some(25.0)));
        // What nobody measured stays unknown, and does not count as nothing.
        let half = of(&a, None).with(&of(&b, Some(&pulse(4.0, 3.0, 90.0))));
        assert_eq!((half.gradient(), half.noise()), (Some(4.0), Some(30.0)));
        let none = Weights::default();
        assert_eq!((none.norm(), none.zeros(), none.gradient(), none.noise()), (None, None, None, None));
        let hidden = of(&a, Some(&pulse(3.0, -1.0, 10.0)));
        assert_eq!((hidden.noise(), hidden.gradient()), (None, Some(3.0)));
        // While it goes on, the norm is that of the weights as they are.
        let mut live = of(&a, None);
        live.pulse(&pulse(1.0, 1.0, 1.0), true);
        assert_eq!((live.norm(), live.live), (Some(6.0), true));
    }
}
