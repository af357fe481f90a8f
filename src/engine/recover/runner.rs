//! Runs a part of a model and hands back the values that were asked for, through the kernels that will run it for good
//! (int8 layers included, so that later repairs see their error).

use crate::exec::{CompileOptions, ExecError, Plan, Session};
use crate::graph::{Graph, Op, Precision, Precisions};
use crate::model::ParamStore;
use candle_core::Tensor;
use std::collections::HashMap;

/// A part of a model, ready to run.
pub(super) struct Runner {
    session: Session,
    keep: Vec<String>,
}

impl Runner {
    /// `keep` names nodes of `graph` whose values [`Runner::run`] returns; its input's own name is allowed. With `as_stored` weights are
    /// multiplied as they lie: those of a language model need not be unpacked.
    pub fn new(
        graph: &Graph,
        (params, precision): (&ParamStore, &Precisions),
        keep: &[&str],
        as_stored: bool,
    ) -> Result<Runner, ExecError> {
        // The plan of the whole may speak of nodes outside this part.
        let told = |name: &String| match precision.nodes.get(name)? {
            // Ranges are found once everything is repaired; until then such a layer takes them as they come.
            Precision::Int8Static => Some(Precision::Int8),
            other => Some(*other),
        };
        // A part's input goes by the name of the layer that made it.
        let made = graph.nodes.iter().filter(|n| !matches!(n.op, Op::Input(_)));
        let own: Precisions = made.filter_map(|n| Some((&n.name, told(&n.name)?))).collect();
        let keep: Vec<String> = keep.iter().map(|k| (*k).to_owned()).collect();
        let options = CompileOptions { as_stored, ..CompileOptions::default() }.keeping(keep.clone());
        let plan = Plan::compile(graph, params, &own, &options)?;
        Ok(Runner { session: plan.session(), keep })
    }

    /// The part's output and the kept values.
    pub fn run(&mut self, x: &Tensor) -> Result<(Tensor, HashMap<String, Tensor>), ExecError> {
        let names: Vec<&str> = self.keep.iter().map(String::as_str).collect();
        self.session.capture(x, &names)
    }
}
