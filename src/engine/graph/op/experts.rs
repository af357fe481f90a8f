//! Mixtures of experts (Shazeer et al. 2017; token choice as in Fedus et al. 2021): which experts a token is sent to, what of it
//! each of them sees, and the sum of what they make of it. The experts between are ordinary layers.
//!
//! Not here: which nodes make up an expert (`graph::experts`).

use super::facts::{Facts, channels, ends, input, kept, output, tokens, traits, want};
use crate::graph::axes::NodeLinks;
use serde::{Deserialize, Serialize};

/// The axis by which all three are narrowed: their experts.
pub const EXPERTS: usize = 0;

/// A router's logits `[t, experts]` → weights `[t, experts]`: a softmax over all experts, of which the `top` largest stay (the
/// earlier of two that are equal) and the others are exactly 0. What stays is divided by its sum where it is `normalised`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    pub experts: usize,
    pub top: usize,
    pub normalised: bool,
}

/// `[t, d]` and weights `[t, experts]` → `[t, d]`: the tokens that are sent to `expert`, zeros for all others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatch {
    pub experts: usize,
    pub expert: usize,
}

/// Weights `[t, experts]` and what each expert makes of the tokens, `[t, d]`, in their order → `[t, d]`: the weighted sum. An
/// expert whose weight is 0 adds nothing, whatever it made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Combine {
    pub experts: usize,
}

/// Whether `weights` are those of `tokens` tokens for `experts` experts.
fn fits(weights: &[usize], tokens: usize, experts: usize) -> Result<(), String> {
    if *weights == [tokens, experts] {
        return Ok(());
    }
    Err(format!("weights of {experts} experts for {tokens} tokens do not have shape {weights:?}"))
}

impl Facts for Route {
    traits!("route", "route", per_token);

    fn describe(&self) -> Option<String> {
        Some(format!("route {} of {}", self.top, self.experts))
    }

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [t, n] = tokens(ins)?;
        want("number of experts", n, self.experts)?;
        if self.top == 0 || self.top > self.experts {
            return Err(format!("a token cannot be sent to {} of {} experts", self.top, self.experts));
        }
        Ok(vec![t, n])
    }

    fn links(&self, ins: &[&[usize]], out: &[usize]) -> NodeLinks {
        let mut l = NodeLinks::default();
        let (from, to, experts) = ends(ins, 0, out);
        l.each(from, to, experts);
        l
    }

    fn axis_len(&self, axis: usize) -> Option<usize> {
        (axis == EXPERTS).then_some(self.experts)
    }

    /// Of fewer experts than a token was sent to, it is sent to all.
    fn narrow(&mut self, _axis: usize, mask: &[bool]) {
        self.experts = kept(mask);
        self.top = self.top.min(self.experts);
    }
}

impl Facts for Dispatch {
    traits!("dispatch", "dispatch", per_token);

    fn arity(&self) -> usize {
        2
    }

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [t, d] = tokens(&ins[..1])?;
        fits(ins[1], t, self.experts)?;
        if self.expert >= self.experts {
            return Err(format!("there is no expert {} among {}", self.expert, self.experts));
        }
        Ok(vec![t, d])
    }

    fn links(&self, ins: &[&[usize]], out: &[usize]) -> NodeLinks {
        let mut l = NodeLinks::default();
        let (from, to, width) = ends(ins, 0, out);
        l.each(from, to, width);
        // Spoken of: what it does not read may go.
        l.each(input(1, 1), input(1, 1), self.experts);
        l
    }

    fn axis_len(&self, axis: usize) -> Option<usize> {
        (axis == EXPERTS).then_some(self.experts)
    }

    /// Where its own expert goes, nothing reads it any more, and it has any number.
    fn narrow(&mut self, _axis: usize, mask: &[bool]) {
        self.experts = kept(mask);
        self.expert = kept(&mask[..self.expert.min(mask.len())]).min(self.experts.saturating_sub(1));
    }
}

impl Facts for Combine {
    traits!("combine", "combine", per_token);

    fn describe(&self) -> Option<String> {
        Some(format!("combine {} experts", self.experts))
    }

    fn arity(&self) -> usize {
        self.experts.saturating_add(1)
    }

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [weights, made @ ..] = ins else { return Err("it needs a router's weights".into()) };
        let first = made.first().ok_or("it needs at least one expert")?;
        let [t, d] = tokens(&[first])?;
        fits(weights, t, self.experts)?;
        match made.iter().position(|m| m != first) {
            Some(i) => Err(format!("expert {i} makes {:?}, the first {first:?}", made[i])),
            None => Ok(vec![t, d]),
        }
    }

    fn links(&self, ins: &[&[usize]], out: &[usize]) -> NodeLinks {
        let mut l = NodeLinks::default();
        l.each(input(0, 1), input(0, 1), self.experts);
        (1..ins.len()).for_each(|i| l.each(ends(ins, i, out).0, output(1), channels(out)));
        l
    }

    fn axis_len(&self, axis: usize) -> Option<usize> {
        (axis == EXPERTS).then_some(self.experts)
    }

    /// Its inputs are the graph's: whoever narrows it takes those away that go ([`EXPERTS`]).
    fn narrow(&mut self, _axis: usize, mask: &[bool]) {
        self.experts = kept(mask);
    }
}
