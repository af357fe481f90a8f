//! Nodes without kernels for both passes: computed by their definition with a history, and differentiated by the tensor library.

use super::{Tape, Weights, buffer};
use crate::exec::candle::{self, Mode, TensorMap};
use crate::exec::error::{ExecError, Result};
use crate::graph::{Node, ParamRole, param_shapes};
use candle_core::{Device, Tensor, Var};

/// A node's value with its history.
pub(super) struct Traced {
    inputs: Vec<Var>,
    params: Vec<(ParamRole, Var)>,
    value: Tensor,
}

/// Gradients by role of a parameter.
type OfParams = Vec<(ParamRole, Vec<f32>)>;

impl Tape {
    /// Computes node `i` for `inputs` into `out`.
    pub(super) fn define(
        &self,
        weights: &Weights,
        (i, node): (usize, &Node),
        inputs: &[&[f32]],
        mode: Mode,
        out: &mut [f32],
    ) -> Result<Traced> {
        let failed = |e| ExecError::candle(node, e);
        let size = |k: usize| self.size(node.inputs[k].index()).max(1);
        let var = |(k, x): (usize, &&[f32])| {
            let shape = &self.shapes[node.inputs[k].index()];
            let mut first = vec![0f32; x.len()];
            buffer::first(shape, x, &mut first);
            let dims: Vec<usize> = [x.len() / size(k)].iter().chain(shape).copied().collect();
            Var::from_tensor(&Tensor::from_vec(first, dims, &Device::Cpu)?)
        };
        let inputs = inputs.iter().enumerate().map(var).collect::<candle_core::Result<Vec<_>>>().map_err(failed)?;
        let (mut params, mut map) = (Vec::new(), TensorMap::new());
        for (role, shape) in param_shapes(&node.op) {
            let Some((name, values)) = node.param(role).and_then(|name| Some((name, weights.get(name)?))) else {
                continue;
            };
            let var =
                Tensor::from_slice(values, shape, &Device::Cpu).and_then(|t| Var::from_tensor(&t)).map_err(failed)?;
            map.insert(name.to_owned(), var.as_tensor().clone());
            params.push((role, var));
        }
        let given: Vec<Tensor> = inputs.iter().map(|v| v.as_tensor().clone()).collect();
        let value = candle::define(node, &map, mode, &given)?;
        let flat = value.flatten_all().and_then(|v| v.to_vec1::<f32>()).map_err(failed)?;
        buffer::last(&self.shapes[i], &flat, out);
        Ok(Traced { inputs, params, value })
    }

    /// The gradients of a node's parameters and inputs for that of its value.
    pub(super) fn differentiate(
        &self,
        (i, node): (usize, &Node),
        traced: Traced,
        g: &[f32],
    ) -> Result<(OfParams, Vec<Option<Vec<f32>>>)> {
        let mut first = vec![0f32; g.len()];
        buffer::first(&self.shapes[i], g, &mut first);
        let all = || -> candle_core::Result<_> {
            let g = Tensor::from_vec(first, traced.value.dims(), &Device::Cpu)?;
            let grads = (&traced.value * g)?.sum_all()?.backward()?;
            let flat = |v: &Var| grads.get(v).map(|g| g.flatten_all()?.to_vec1::<f32>()).transpose();
            let mut params = Vec::new();
            for (role, var) in &traced.params {
                params.extend(flat(var)?.map(|g| (*role, g)));
            }
            let mut inputs = Vec::new();
            for (k, var) in traced.inputs.iter().enumerate() {
                let last = |first: Vec<f32>| {
                    let mut last = vec![0f32; first.len()];
                    buffer::last(&self.shapes[node.inputs[k].index()], &first, &mut last);
                    last
                };
                inputs.push(flat(var)?.map(last));
            }
            Ok((params, inputs))
        };
        all().map_err(|e| ExecError::candle(node, e))
    }
}
