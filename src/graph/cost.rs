//! What a graph costs: parameters and MACs per node, in every counting convention.
//!
//! Not here: bytes (they depend on what ran, see `exec`) and time (`profile`). Counts are for one image.

use super::window::relative_positions;
use super::{Graph, GraphError, Op, ParamRole, PositionBias, shapes};
use serde::{Deserialize, Serialize};

/// Which counting convention MACs follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MacConvention {
    /// Convolutions and linears only.
    #[default]
    ConvLinear,
    /// Plus QKᵀ and AV.
    Attention,
    /// Plus norms as fvcore and timm count them: 2 an element for a batch norm, 5 for a layer norm.
    Norms,
}

/// MACs of one node for one image, split so that any [`MacConvention`] can be summed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Macs {
    pub conv_linear: u64,
    pub attention: u64,
    pub norms: u64,
}

impl Macs {
    /// The count under `convention`.
    pub fn get(&self, convention: MacConvention) -> u64 {
        match convention {
            MacConvention::ConvLinear => self.conv_linear,
            MacConvention::Attention => self.conv_linear.saturating_add(self.attention),
            MacConvention::Norms => self.conv_linear.saturating_add(self.attention).saturating_add(self.norms),
        }
    }
}

impl std::ops::Add for Macs {
    type Output = Macs;
    fn add(self, o: Macs) -> Macs {
        Macs {
            conv_linear: self.conv_linear.saturating_add(o.conv_linear),
            attention: self.attention.saturating_add(o.attention),
            norms: self.norms.saturating_add(o.norms),
        }
    }
}

impl std::iter::Sum for Macs {
    fn sum<I: Iterator<Item = Macs>>(iter: I) -> Macs {
        iter.fold(Macs::default(), |a, b| a + b)
    }
}

fn product(dims: &[usize]) -> u64 {
    dims.iter().fold(1u64, |n, &d| n.saturating_mul(d as u64))
}

/// MACs of one node for one image; `in_shapes` and `out` leave out the batch axis.
pub fn node_macs(op: &Op, in_shapes: &[&[usize]], out: &[usize]) -> Macs {
    let mut m = Macs::default();
    match op {
        Op::Conv2d { in_ch, kernel, groups, .. } => {
            let per_output = product(&[in_ch / (*groups).max(1), kernel[0], kernel[1]]);
            m.conv_linear = product(out).saturating_mul(per_output);
        }
        Op::Linear { in_features, .. } => m.conv_linear = product(out).saturating_mul(*in_features as u64),
        Op::Attention { heads, qk_dim, v_dim, windows, .. } => {
            let tokens = in_shapes.first().and_then(|s| s.first()).copied().unwrap_or(0);
            let seen = windows.map_or(tokens, |w| w.tokens());
            m.attention = product(&[*heads, tokens, seen, qk_dim + v_dim]);
        }
        Op::BatchNorm2d { .. } => m.norms = product(out).saturating_mul(2),
        // fvcore counts five a value for layer norms; one without a mean and a bias has three.
        Op::LayerNorm { .. } => m.norms = product(out).saturating_mul(5),
        Op::RmsNorm { .. } => m.norms = product(out).saturating_mul(3),
        Op::Input { .. }
        | Op::Activation { .. }
        | Op::Softmax
        | Op::Add
        | Op::Mul
        | Op::Scale { .. }
        | Op::Scalar { .. }
        | Op::MaxPool2d { .. }
        | Op::AvgPool2d { .. }
        | Op::AdaptiveAvgPool2d { .. }
        | Op::GlobalAvgPool
        | Op::ChannelPad { .. }
        | Op::Concat { .. }
        | Op::Flatten
        | Op::ToTokens
        | Op::ToImage { .. }
        | Op::PatchMerge { .. }
        | Op::PrependTokens { .. }
        | Op::AddPositions { .. }
        | Op::SelectToken { .. }
        | Op::MeanTokens { .. } => {}
    }
    m
}

/// MACs per node for one image; zero for unreachable nodes.
pub fn macs(graph: &Graph) -> Result<Vec<Macs>, GraphError> {
    let shapes = shapes(graph)?;
    let reachable = graph.reachable();
    Ok(graph
        .iter()
        .map(|(id, node)| {
            if !reachable[id.index()] {
                return Macs::default();
            }
            let ins: Vec<&[usize]> = node.inputs.iter().map(|i| shapes[i.index()].as_slice()).collect();
            node_macs(&node.op, &ins, &shapes[id.index()])
        })
        .collect())
}

/// The parameters an op needs with their shapes, in PyTorch's layout and order.
pub fn param_shapes(op: &Op) -> Vec<(ParamRole, Vec<usize>)> {
    use ParamRole::{
        Bias, Embedding, LogitScale, Mean, PositionBias as BiasTable, PositionMlp1, PositionMlp1Bias, PositionMlp2,
        Var, Weight,
    };
    match op {
        Op::Conv2d { in_ch, out_ch, kernel, groups, bias, .. } => {
            let mut p = vec![(Weight, vec![*out_ch, in_ch / (*groups).max(1), kernel[0], kernel[1]])];
            if *bias {
                p.push((Bias, vec![*out_ch]));
            }
            p
        }
        Op::Linear { in_features, out_features, bias } => {
            let mut p = vec![(Weight, vec![*out_features, *in_features])];
            if *bias {
                p.push((Bias, vec![*out_features]));
            }
            p
        }
        Op::BatchNorm2d { channels, .. } => [Weight, Bias, Mean, Var].map(|r| (r, vec![*channels])).to_vec(),
        Op::LayerNorm { dim, .. } => [Weight, Bias].map(|r| (r, vec![*dim])).to_vec(),
        Op::RmsNorm { dim, .. } => vec![(Weight, vec![*dim])],
        Op::Scale { channels } => vec![(Weight, vec![*channels])],
        Op::PrependTokens { count, dim, .. } => vec![(Embedding, vec![1, *count, *dim])],
        Op::AddPositions { tokens, dim } => vec![(Embedding, vec![1, *tokens, *dim])],
        Op::Attention { heads, cosine, windows, bias, .. } => {
            let mut p = Vec::new();
            if *cosine {
                p.push((LogitScale, vec![*heads, 1, 1]));
            }
            match (bias, windows) {
                (PositionBias::None, _) => {}
                (PositionBias::Table, w) => {
                    p.push((BiasTable, vec![relative_positions(w.map_or([1, 1], |w| w.size)), *heads]));
                }
                (PositionBias::Full { tokens }, _) => p.push((BiasTable, vec![*heads, *tokens, *tokens])),
                (PositionBias::Continuous { hidden, .. }, _) => p.extend([
                    (PositionMlp1, vec![*hidden, 2]),
                    (PositionMlp1Bias, vec![*hidden]),
                    (PositionMlp2, vec![*heads, *hidden]),
                ]),
            }
            p
        }
        Op::Input { .. }
        | Op::Activation { .. }
        | Op::Softmax
        | Op::Add
        | Op::Mul
        | Op::Scalar { .. }
        | Op::MaxPool2d { .. }
        | Op::AvgPool2d { .. }
        | Op::AdaptiveAvgPool2d { .. }
        | Op::GlobalAvgPool
        | Op::ChannelPad { .. }
        | Op::Concat { .. }
        | Op::Flatten
        | Op::ToTokens
        | Op::ToImage { .. }
        | Op::PatchMerge { .. }
        | Op::SelectToken { .. }
        | Op::MeanTokens { .. } => Vec::new(),
    }
}

/// Learned parameters of one node. Batch-norm running statistics are not counted, as everywhere in the literature.
pub fn node_params(op: &Op) -> u64 {
    param_shapes(op)
        .iter()
        .filter(|(role, _)| !matches!(role, ParamRole::Mean | ParamRole::Var))
        .fold(0, |n, (_, shape)| n.saturating_add(product(shape)))
}
