//! What normalises over channels: batch norm (with its statistics fixed), layer norm, RMS norm, softmax.

use super::facts::{Facts, ends, product, traits, want, width};
use super::numbers::exact;
use crate::graph::axes::NodeLinks;
use crate::graph::macs::Macs;
use crate::graph::role::ParamRole::{self, Bias, Mean, Var, Weight};
use serde::{Deserialize, Serialize};

/// Inference batch norm per channel, of images, tokens or vectors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchNorm2d {
    pub channels: usize,
    #[serde(with = "exact")]
    pub eps: f64,
}

/// Over the channels (of an image: at every pixel).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    pub dim: usize,
    #[serde(with = "exact")]
    pub eps: f64,
}

/// `x / sqrt(mean(x²) + eps) · w` over the channels (Zhang and Sennrich 2019).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RmsNorm {
    pub dim: usize,
    #[serde(with = "exact")]
    pub eps: f64,
}

/// Over the channels.
pub(super) struct Softmax;

/// Removing an element changes the statistics of all the others: zeroed would not equal pruned.
fn whole(ins: &[&[usize]], out: &[usize], why: &'static str) -> NodeLinks {
    let mut l = NodeLinks::default();
    let (from, to, _) = ends(ins, 0, out);
    l.protect(from, why);
    l.protect(to, why);
    l
}

impl Facts for BatchNorm2d {
    traits!("batch norm", "bn", kind: "batchnorm", per_token, per_channel);

    fn params(&self) -> Vec<(ParamRole, Vec<usize>)> {
        [Weight, Bias, Mean, Var].map(|r| (r, vec![self.channels])).to_vec()
    }

    fn macs(&self, _ins: &[&[usize]], out: &[usize]) -> Macs {
        Macs { norms: product(out).saturating_mul(2), ..Macs::default() }
    }

    width!(0: channels);
}

impl Facts for LayerNorm {
    traits!("layer norm", "norm", kind: "layernorm", layer, per_token);

    fn links(&self, ins: &[&[usize]], out: &[usize]) -> NodeLinks {
        whole(ins, out, "a layer norm normalises over it")
    }

    fn params(&self) -> Vec<(ParamRole, Vec<usize>)> {
        [Weight, Bias].map(|r| (r, vec![self.dim])).to_vec()
    }

    /// As fvcore counts it.
    fn macs(&self, _ins: &[&[usize]], out: &[usize]) -> Macs {
        Macs { norms: product(out).saturating_mul(5), ..Macs::default() }
    }

    width!(0: dim);
}

impl Facts for RmsNorm {
    traits!("rms norm", "norm", kind: "rmsnorm", layer, per_token);

    fn links(&self, ins: &[&[usize]], out: &[usize]) -> NodeLinks {
        whole(ins, out, "a layer norm normalises over it")
    }

    fn params(&self) -> Vec<(ParamRole, Vec<usize>)> {
        vec![(Weight, vec![self.dim])]
    }

    /// A layer norm's five without a mean and a bias.
    fn macs(&self, _ins: &[&[usize]], out: &[usize]) -> Macs {
        Macs { norms: product(out).saturating_mul(3), ..Macs::default() }
    }

    width!(0: dim);
}

impl Facts for Softmax {
    traits!("softmax", "softmax", per_token);

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        want("number of axes", ins[0].len().min(2), ins[0].len())?;
        Ok(ins[0].to_vec())
    }

    fn links(&self, ins: &[&[usize]], out: &[usize]) -> NodeLinks {
        whole(ins, out, "a softmax normalises over it")
    }
}
