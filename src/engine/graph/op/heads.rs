//! What is done to every head of a projection on its own: turned by its position, brought to one size.

use super::facts::{Facts, input, output, product, tokens, traits};
use super::numbers::exact;
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
        whole(ins, head_dim)
    }

    fn causal(&self) -> bool {
        true
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
