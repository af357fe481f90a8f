//! What is done to every head of a projection on its own: turned by its position, brought to one size.

use super::facts::{Facts, input, output, product, tokens, traits};
use super::numbers::{exact, exact_list};
use crate::graph::axes::{Link, NodeLinks, Span};
use crate::graph::macs::Macs;
use crate::graph::role::ParamRole::{self, Weight};
use crate::graph::rotary::Pairs;
use serde::{Deserialize, Serialize};

/// Rotary positions (Su et al. 2021) of tokens `[t, heads·head_dim]`, the first at position 0: of each head the first `turned`
/// values, in pairs; see [`crate::graph::rotary`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    pub head_dim: usize,
    /// Even, at most `head_dim`; the other values stay.
    pub turned: usize,
    #[serde(with = "exact")]
    pub theta: f64,
    pub pairs: Pairs,
    /// What makes positions beyond those of training usable; boxed, as few have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Box<Scaling>>,
}

/// Rotary frequencies other than those of the base alone, in the terms that all published kinds come down to: linear and dynamic
/// scaling, YaRN (Peng et al. 2023), Llama 3's, LongRoPE (Ding et al. 2024).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// What the frequency of each pair is divided by, `[turned/2]`; empty: by nothing.
    #[serde(default, with = "exact_list", skip_serializing_if = "Vec::is_empty")]
    pub divisors: Vec<f64>,
    /// Cosines and sines are multiplied by it, and so the length of what is turned.
    #[serde(with = "exact")]
    pub factor: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beyond: Option<Beyond>,
}

/// What becomes of whole sequences of more than `tokens` tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Beyond {
    pub tokens: usize,
    #[serde(flatten)]
    pub how: Longer,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Longer {
    /// They have other divisors.
    Divided(#[serde(with = "exact_list")] Vec<f64>),
    /// The base grows with a sequence of `n` tokens, by `(f·n/tokens - (f - 1))^(turned / (turned - 2))` (dynamic NTK).
    Stretched(#[serde(with = "exact")] f64),
}

/// An RMS norm of each head of `[t, heads·head_dim]` on its own, with one weight `[head_dim]` for all of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadNorm {
    pub head_dim: usize,
    #[serde(with = "exact")]
    pub eps: f64,
}

/// The shape of whole heads.
fn whole(ins: &[&[usize]], head_dim: usize) -> Result<Vec<usize>, String> {
    let [t, d] = tokens(ins)?;
    if head_dim == 0 || !d.is_multiple_of(head_dim) {
        return Err(format!("a width of {d} is no whole number of heads of {head_dim}"));
    }
    Ok(vec![t, d])
}

/// A unit is a head.
fn by_head(out: &[usize], head_dim: usize) -> NodeLinks {
    let units = out.last().copied().unwrap_or(0) / head_dim.max(1);
    let span = Span::run(0, head_dim);
    NodeLinks {
        links: vec![Link { a: input(0, 1), b: output(1), units, a_span: span, b_span: span }],
        ..NodeLinks::default()
    }
}

impl Rope {
    /// By the frequencies of `theta` alone.
    pub fn plain(head_dim: usize, turned: usize, theta: f64, pairs: Pairs) -> Rope {
        Rope { head_dim, turned, theta, pairs, scaling: None }
    }

    /// A number of tokens that stands for all sequences that are turned as those of `tokens` are.
    pub fn turned_like(&self, tokens: usize) -> usize {
        match self.beyond(tokens) {
            None => 0,
            Some(Beyond { tokens, how: Longer::Divided(_) }) => tokens.saturating_add(1),
            Some(Beyond { how: Longer::Stretched(_), .. }) => tokens,
        }
    }

    fn beyond(&self, tokens: usize) -> Option<&Beyond> {
        self.scaling.as_ref()?.beyond.as_ref().filter(|b| tokens > b.tokens)
    }

    /// Radians from position to position in a sequence of `tokens`, `[turned/2]`.
    pub fn frequencies(&self, tokens: usize) -> Vec<f64> {
        let turned = self.turned as f64;
        let mut theta = self.theta;
        let mut divisors = self.scaling.as_ref().map_or(&[][..], |s| &s.divisors);
        match self.beyond(tokens) {
            None => {}
            Some(Beyond { how: Longer::Divided(others), .. }) => divisors = others,
            Some(Beyond { tokens: most, how: Longer::Stretched(f) }) => {
                let longer = f * tokens as f64 / (*most).max(1) as f64 - (f - 1.0);
                theta *= longer.powf(turned / (turned - 2.0));
            }
        }
        let divisors = divisors.iter().copied().chain(std::iter::repeat(1.0));
        (0..self.turned / 2).zip(divisors).map(|(i, d)| theta.powf(-2.0 * i as f64 / turned) / d).collect()
    }

    /// What cosines and sines are multiplied by.
    pub fn factor(&self) -> f64 {
        self.scaling.as_ref().map_or(1.0, |s| s.factor)
    }
}

impl Scaling {
    /// By what the frequencies of the pairs are divided when `share` of each (by its place) is left as it is and the rest divided by
    /// `factor`.
    pub fn mixed(factor: f64, shares: impl Iterator<Item = f64>) -> Vec<f64> {
        shares.map(|share| 1.0 / ((1.0 - share) / factor + share)).collect()
    }

    /// Llama 3.1's divisors of `plain`: waves that fit less than `low` times into the `original` length are stretched by `factor`, those that fit more
    /// than `high` times are not, those between them in part.
    pub fn llama3(plain: &Rope, original: f64, factor: f64, [low, high]: [f64; 2]) -> Vec<f64> {
        let turns = plain.frequencies(0).into_iter().map(|f| original * f / (2.0 * std::f64::consts::PI));
        Scaling::mixed(factor, turns.map(|turns| ((turns - low) / (high - low)).clamp(0.0, 1.0)))
    }

    /// The factor of LongRoPE's logits (Ding et al. 2024) where texts are `longer` times as long as the `tokens` of training.
    pub fn longrope_factor(longer: f64, tokens: f64) -> f64 {
        if longer <= 1.0 { 1.0 } else { (1.0 + longer.ln() / tokens.ln()).sqrt() }
    }

    /// Does it fit `turned` values of a head?
    fn check(&self, turned: usize) -> Result<(), String> {
        let fits = |all: &[f64]| {
            let positive = all.iter().all(|d| d.is_finite() && *d > 0.0);
            if positive && all.len() == turned / 2 { Ok(()) } else { Err(Scaling::UNFIT.to_owned()) }
        };
        if !self.divisors.is_empty() {
            fits(&self.divisors)?;
        }
        if !(self.factor.is_finite() && self.factor > 0.0) {
            return Err(format!("cosines and sines cannot be multiplied by {}", self.factor));
        }
        match &self.beyond {
            None => Ok(()),
            Some(Beyond { tokens: 0, .. }) => Err("no sequence has no tokens".into()),
            Some(Beyond { how: Longer::Divided(others), .. }) => fits(others),
            // At least one: the base never shrinks.
            Some(Beyond { how: Longer::Stretched(f), .. }) if f.is_finite() && *f >= 1.0 && turned > 2 => Ok(()),
            Some(Beyond { how: Longer::Stretched(f), .. }) => {
                Err(format!("the base of {turned} values cannot be stretched by {f}"))
            }
        }
    }

    const UNFIT: &str = "frequencies need one positive divisor for each pair";
}

impl Facts for Rope {
    // By a token's place, which is not what the token holds.
    traits!("rope", "rope");

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let Rope { head_dim, turned, theta, .. } = *self;
        if !turned.is_multiple_of(2) || turned > head_dim {
            return Err(format!("{turned} of {head_dim} values cannot be turned in pairs"));
        }
        if !(theta.is_finite() && theta > 0.0) {
            return Err(format!("a base of {theta} makes no frequencies"));
        }
        self.scaling.as_ref().map_or(Ok(()), |s| s.check(turned))?;
        whole(ins, head_dim)
    }

    fn causal(&self) -> bool {
        true
    }

    /// In longer sequences every token is turned otherwise.
    fn most_in_turn(&self) -> Option<usize> {
        self.scaling.as_ref()?.beyond.as_ref().map(|b| b.tokens)
    }

    fn links(&self, _ins: &[&[usize]], out: &[usize]) -> NodeLinks {
        by_head(out, self.head_dim)
    }
}

impl Facts for HeadNorm {
    traits!("head norm", "norm", kind: "headnorm", layer, per_token);

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        whole(ins, self.head_dim)
    }

    fn links(&self, _ins: &[&[usize]], out: &[usize]) -> NodeLinks {
        by_head(out, self.head_dim)
    }

    fn params(&self) -> Vec<(ParamRole, Vec<usize>)> {
        vec![(Weight, vec![self.head_dim])]
    }

    /// As of an RMS norm.
    fn macs(&self, _ins: &[&[usize]], out: &[usize]) -> Macs {
        Macs { norms: product(out).saturating_mul(3), ..Macs::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Op;

    fn rope(scaling: Option<Scaling>) -> Rope {
        Rope { scaling: scaling.map(Box::new), ..Rope::plain(8, 4, 100.0, Pairs::Halves) }
    }

    #[test]
    fn frequencies_are_divided_and_stretched_where_the_sequence_is_longer() {
        let plain = rope(None);
        assert_eq!((plain.frequencies(7), plain.factor(), plain.turned_like(7)), (vec![1.0, 0.1], 1.0, 0));
        let beyond = |how| Scaling { divisors: vec![2.0, 4.0], factor: 1.5, beyond: Some(Beyond { tokens: 6, how }) };
        let long = rope(Some(beyond(Longer::Divided(vec![8.0, 10.0]))));
        assert_eq!((long.frequencies(6), long.frequencies(7)), (vec![0.5, 0.025], vec![0.125, 0.01]));
        assert_eq!((long.turned_like(6), long.turned_like(7), long.turned_like(90)), (0, 7, 7));
        // 3·8/6 - 2 = 2, to the power of 4/2: a base of 400.
        let ntk = rope(Some(Scaling { divisors: Vec::new(), ..beyond(Longer::Stretched(3.0)) }));
        assert_eq!((ntk.frequencies(6), ntk.frequencies(8)), (vec![1.0, 0.1], vec![1.0, 0.05]));
        assert_eq!((ntk.turned_like(8), ntk.turned_like(9)), (8, 9));
    }

    #[test]
    fn scaled_positions_come_back_from_json_and_older_files_have_none() {
        for how in [Longer::Divided(vec![1.0 / 3.0, 2.0]), Longer::Stretched(8.0 / 3.0)] {
            let beyond = Some(Beyond { tokens: 9, how });
            let op = Op::Rope(rope(Some(Scaling { divisors: vec![0.1, 0.7], factor: 1.1, beyond })));
            assert_eq!(serde_json::from_str::<Op>(&serde_json::to_string(&op).unwrap()).unwrap(), op);
        }
        let text = r#"{"kind":"rope","head_dim":8,"turned":4,"theta":"1e2","pairs":"halves"}"#;
        assert_eq!(serde_json::from_str::<Op>(text).unwrap(), Op::Rope(rope(None)));
        assert_eq!(serde_json::to_string(&Op::Rope(rope(None))).unwrap(), text);
    }

    #[test]
    fn scaling_that_does_not_fit_is_refused() {
        let plain = Scaling { divisors: Vec::new(), factor: 1.0, beyond: None };
        let shape = |s: Scaling| rope(Some(s)).shape(&[&[3, 16]]);
        assert!(shape(plain.clone()).is_ok());
        for bad in [
            Scaling { divisors: vec![1.0; 3], ..plain.clone() },
            Scaling { divisors: vec![1.0, 0.0], ..plain.clone() },
            Scaling { factor: f64::NAN, ..plain.clone() },
            Scaling { beyond: Some(Beyond { tokens: 0, how: Longer::Stretched(2.0) }), ..plain.clone() },
            Scaling { beyond: Some(Beyond { tokens: 4, how: Longer::Stretched(0.5) }), ..plain.clone() },
            Scaling { beyond: Some(Beyond { tokens: 4, how: Longer::Divided(vec![1.0]) }), ..plain.clone() },
        ] {
            assert!(shape(bad).is_err());
        }
    }
}
