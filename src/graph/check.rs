//! Consistency of a whole graph, for graphs from builders, edits and files alike.

use super::{Graph, GraphError, Op, ParamRole, describe, param_shapes, shapes};
use std::collections::HashSet;

/// More nodes than any real network here has; a damaged file must not make us allocate without bound.
const MAX_NODES: usize = 100_000;

impl Graph {
    /// Checks order, unique names, arity, shapes, parameter roles and blocks.
    ///
    /// # Errors
    /// The first [`GraphError`] found, naming the node or block.
    pub fn check(&self) -> Result<(), GraphError> {
        let n = self.nodes.len();
        if n > MAX_NODES {
            return Err(GraphError::TooLarge { nodes: n, limit: MAX_NODES });
        }
        if self.output.index() >= n {
            return Err(GraphError::Output { output: self.output.0, nodes: n });
        }
        let mut names = HashSet::with_capacity(n);
        for (id, node) in self.iter() {
            if !names.insert(node.name.as_str()) {
                return Err(GraphError::DuplicateName { name: node.name.clone() });
            }
            if let Some(bad) = node.inputs.iter().find(|i| **i >= id) {
                return Err(GraphError::Order { node: node.name.clone(), input: bad.0 });
            }
            let expected: Vec<ParamRole> = param_shapes(&node.op).into_iter().map(|(r, _)| r).collect();
            let found: Vec<ParamRole> = node.params.iter().map(|p| p.role).collect();
            if expected != found {
                let words = |roles: &[ParamRole]| roles.iter().map(|r| format!("{r:?}").to_lowercase()).collect();
                return Err(GraphError::Params {
                    node: node.name.clone(),
                    op: describe(&node.op),
                    found: words(&found),
                    expected: words(&expected),
                });
            }
        }
        shapes(self)?;
        self.check_blocks()
    }

    fn check_blocks(&self) -> Result<(), GraphError> {
        let bad = |block: &str, why: String| Err(GraphError::Block { block: block.to_owned(), why });
        let mut taken = vec![false; self.nodes.len()];
        let mut names = HashSet::new();
        for block in &self.blocks {
            if !names.insert(block.name.as_str()) {
                return bad(&block.name, "is listed twice".into());
            }
            for id in &block.nodes {
                match taken.get_mut(id.index()) {
                    Some(t) if !*t => *t = true,
                    Some(_) => return bad(&block.name, format!("shares node {} with another block", id.0)),
                    None => return bad(&block.name, format!("lists node {}, which does not exist", id.0)),
                }
            }
            for r in &block.residual {
                let add = self.nodes.get(r.add.index()).filter(|n| n.op == Op::Add);
                if add.is_none() || !block.nodes.contains(&r.add) {
                    return bad(&block.name, format!("names node {} as its residual addition", r.add.0));
                }
                if r.skip >= r.add {
                    return bad(&block.name, format!("skips to node {}, which comes later", r.skip.0));
                }
            }
        }
        Ok(())
    }
}
