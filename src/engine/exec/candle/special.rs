//! What a step may run instead of its op's definition: layers with packed weights and what fuses into them, and kernels of
//! our own for a whole op.
//!
//! Not here: which steps run which (`build`), what the kernels compute (`dense`, `kernels`, `attention`).
//! Invariant: on the CPU each computes by the same definition as on a GPU.

use super::attention::Core;
use super::dense::Dense;
use super::kernels::{Epilogue, Norm, Pool, Softmax};
use super::ops::over_channels;
use super::own::apply;
use crate::graph::Activation;
use candle_core::{DType, Result, Tensor};

// A program has one of these a step, made once: boxing the largest would save nothing.
#[allow(clippy::large_enum_variant)]
pub(super) enum Special {
    Dense(Dense),
    /// Standalone batch norm or layer scale.
    Affine {
        scale: Tensor,
        shift: Option<Tensor>,
        act: Option<Activation>,
    },
    Add {
        act: Option<Activation>,
    },
    Activation(Activation),
    Pool(Pool),
    Norm(Norm),
    Softmax,
    Attention(Core),
}

impl Special {
    /// The value, as `store`, of a step with these inputs, as many as the lowering gave it.
    pub fn run(&self, inputs: &[Tensor], residual: Option<&Tensor>, store: DType) -> Result<Tensor> {
        let Some(x) = inputs.first() else { candle_core::bail!("a step without an input") };
        let plain = Epilogue { scale: None, bias: None, residual: None, act: None, dtype: store };
        match self {
            Special::Dense(d) => d.run(x, residual, store),
            Special::Affine { scale, shift, act } => {
                Epilogue { scale: Some(scale), bias: shift.as_ref(), act: *act, ..plain }.on(x)
            }
            Special::Add { act } => Epilogue { residual: Some(inputs.get(1).unwrap_or(x)), act: *act, ..plain }.on(x),
            Special::Activation(act) => Epilogue { act: Some(*act), ..plain }.on(x),
            Special::Pool(p) => apply(x, p),
            Special::Norm(n) => over_channels(x, |x| apply(x, n)),
            Special::Softmax => over_channels(x, |x| apply(x, &Softmax { scale: 1.0, bias: None })),
            Special::Attention(core) => core.run(inputs),
        }
    }
}
