//! The weights that a model computes with, for its tape.

use super::Weights;
use crate::exec::error::{ExecError, Result};
use crate::graph::{ParamRole, WeightFormat, param_shapes};
use crate::model::{Model, Param};

/// Parameters of `model` as its plans compute with them: those of layers rounded as they are stored. What a kernel rounds besides (inputs of an
/// int8 layer) is left as it is, so that gradients pass it as if it were not there (Bengio et al. 2013, arXiv:1308.3432).
///
/// # Errors
/// A parameter that is missing, with its node; weights that are no numbers, or do not fit their format.
pub fn weights(model: &Model) -> Result<Weights> {
    let mut all = Weights::new();
    for (_, node) in model.graph.live() {
        for (role, _) in param_shapes(&node.op) {
            let name = node.param(role).ok_or_else(|| ExecError::no_param(node, role))?;
            let param = model.params.get(name).map_err(|e| ExecError::param(node, e))?;
            let layer = role == ParamRole::Weight && node.op.is_conv_or_linear();
            let format = if layer { model.precision.get(&node.name).weights() } else { WeightFormat::F32 };
            let plain = || Param::owned(param.shape().to_vec(), param.values().into_owned());
            let values = match format {
                WeightFormat::F32 => param.values().into_owned(),
                _ if param.is_in(format) => param.values().into_owned(),
                _ => plain()
                    .map(|p| p.stored_in(format).values().into_owned())
                    .ok_or_else(|| ExecError::shape(node, param.shape(), "as many values"))?,
            };
            if values.iter().any(|v| !v.is_finite()) {
                return Err(ExecError::NonFinite { node: node.name.clone(), param: name.to_owned() });
            }
            all.insert(name.to_owned(), values);
        }
    }
    Ok(all)
}
