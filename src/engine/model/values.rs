//! What every weight must be, wherever it came from.

use super::{ModelError, ParamStore, Result, printable};
use crate::graph::{Graph, ParamRole};
use std::collections::HashSet;

/// Every value finite, every running variance non-negative.
pub(super) fn check(graph: &Graph, params: &ParamStore) -> Result<()> {
    let variances: HashSet<&str> = graph.nodes.iter().filter_map(|n| n.param(ParamRole::Var)).collect();
    for (name, param) in params.iter() {
        if !variances.contains(name) && param.is_finite() {
            param.release();
            continue;
        }
        let values = param.values();
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            let value = values[index];
            return Err(ModelError::NotFinite { name: printable(name), index, value });
        }
        if variances.contains(name)
            && let Some(index) = values.iter().position(|v| *v < 0.0)
        {
            return Err(ModelError::NegativeVariance { name: printable(name), index });
        }
        drop(values);
        param.release();
    }
    Ok(())
}
