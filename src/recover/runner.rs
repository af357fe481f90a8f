//! Runs a part of a model and hands back the values that were asked for.

use crate::exec::{ExecError, reference};
use crate::graph::{Graph, PrecisionPlan};
use crate::model::ParamStore;
use candle_core::{Device, Tensor};
use std::collections::HashMap;

/// A part of a model, ready to run.
pub(super) struct Runner {
    graph: Graph,
    params: reference::TensorMap,
    keep: Vec<String>,
}

impl Runner {
    /// `keep` names nodes of `graph` whose values [`Runner::run`] returns; its input's own name is allowed.
    pub fn new(
        graph: Graph,
        params: &ParamStore,
        _precision: &PrecisionPlan,
        keep: &[&str],
    ) -> Result<Runner, ExecError> {
        let mut needed = ParamStore::default();
        for p in graph.nodes.iter().flat_map(|n| &n.params) {
            if let Ok(t) = params.get(&p.name) {
                needed.insert(p.name.clone(), t.clone());
            }
        }
        let params = reference::tensors(&needed, &Device::Cpu)?;
        Ok(Runner { graph, params, keep: keep.iter().map(|k| (*k).to_owned()).collect() })
    }

    /// The part's output and the kept values.
    pub fn run(&self, x: &Tensor) -> Result<(Tensor, HashMap<String, Tensor>), ExecError> {
        let mut capture = reference::Capture::of(&self.keep);
        let out = reference::forward(&self.graph, &self.params, x, reference::Mode::Eval, &mut capture)?;
        Ok((out, capture.values))
    }
}
