//! A node where it is computed: its parameters, and how the pass computes.
//!
//! Not here: what is computed (`definition`). Invariant: a parameter is missing or misshapen by name.

use super::cached::Turn;
use super::rounding;
use crate::exec::error::{ExecError, Result};
use crate::graph::{Node, ParamRole, Precisions, WeightFormat, param_shapes};
use crate::model::ParamError;
use candle_core::Tensor;
use std::collections::HashMap;

/// Parameters by checkpoint name.
pub type TensorMap = HashMap<String, Tensor>;

/// Which statistics batch norms use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The stored running mean and variance.
    #[default]
    Eval,
    /// The batch's own (biased variance to normalise, as in training); reported in [`super::Capture::stats`].
    Batch,
}

/// Statistics of one batch norm's input over batch and positions, each `[c]`.
#[derive(Debug, Clone)]
pub struct BatchStats {
    pub mean: Tensor,
    /// Unbiased (divided by `n - 1`), as running variances are kept.
    pub var: Tensor,
}

/// Statistics by node name.
pub(super) type Stats = HashMap<String, BatchStats>;

/// How definitions are computed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pass<'a> {
    pub mode: Mode,
    /// What weights of convolutions and linears are rounded to; gradients pass the rounding as if it were not there.
    /// Activations stay f32. `None`: weights as they are.
    pub precision: Option<&'a Precisions>,
    /// What tokens were fed before; `None`: these are the first, and nothing is kept of them.
    pub(in crate::exec) turn: Option<Turn<'a>>,
}

impl From<Mode> for Pass<'_> {
    fn from(mode: Mode) -> Self {
        Pass { mode, ..Pass::default() }
    }
}

/// A node and where its parameters are found.
pub(super) struct Site<'a> {
    pub node: &'a Node,
    pub params: &'a TensorMap,
    pub pass: Pass<'a>,
}

impl Site<'_> {
    /// The parameter in `role`, of the shape that the op gives it.
    pub fn param(&self, role: ParamRole) -> Result<Tensor> {
        let node = self.node;
        let shape = param_shapes(&node.op).into_iter().find(|(r, _)| *r == role).map(|(_, shape)| shape);
        let (Some(name), Some(expected)) = (node.param(role), shape) else {
            return Err(ExecError::no_param(node, role));
        };
        let name = name.to_owned();
        match self.params.get(&name) {
            Some(t) if t.dims() == expected => Ok(t.clone()),
            Some(t) => Err(ExecError::param(node, ParamError::Shape { name, found: t.dims().to_vec(), expected })),
            None => Err(ExecError::param(node, ParamError::Missing { name })),
        }
    }

    /// The layer's weight, rounded to the layer's precision where there is a plan.
    pub fn weight(&self) -> Result<Tensor> {
        let w = self.param(ParamRole::Weight)?;
        let format = self.pass.precision.map_or(WeightFormat::F32, |p| p.get(&self.node.name).weights());
        rounding::straight_through(&w, format)?.ok_or_else(|| {
            let param = self.node.param(ParamRole::Weight).unwrap_or_default().to_owned();
            ExecError::NonFinite { node: self.node.name.clone(), param }
        })
    }
}
