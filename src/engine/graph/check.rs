//! Consistency of a whole graph, for graphs from builders, edits and files alike.

use super::{Graph, GraphError, Op, ParamRole, describe, least, param_shapes, shapes_at};
use std::collections::HashSet;

/// More nodes than any real network here has; a damaged file must not make us allocate without bound.
const MAX_NODES: usize = 100_000;

impl Graph {
    /// Checks order, unique names, arity, shapes (for some number of tokens, where that is free), parameter roles and blocks.
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
        shapes_at(self, least(self)?)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Builder, Conv, NodeId, ResidualAdd};

    fn graph() -> Graph {
        let mut b = Builder::default();
        let x = b.input([3, 8, 8]);
        let x = b.conv("stem", x, Conv::same(3, 4, 3, 1));
        b.begin_block("block");
        let y = b.conv("conv", x, Conv::same(4, 4, 3, 1));
        let add = b.add("add", y, x);
        b.end_block(vec![ResidualAdd { add, skip: x }]);
        let x = b.node("pool", Op::GlobalAvgPool, &[add]);
        let x = b.linear("head", x, 4, 2, true);
        b.finish(x).unwrap()
    }

    #[test]
    fn every_kind_of_damage_is_named() {
        type Damage = fn(&mut Graph);
        let cases: [(Damage, &str); 9] = [
            (|g| g.nodes[3].name = "stem".into(), "two nodes are called `stem`"),
            (|g| g.nodes[2].inputs = vec![NodeId(5)], "`conv` refers to node 5"),
            (|g| g.nodes[3].inputs.truncate(1), "`add` (add) has 1 inputs, expected 2"),
            (|g| g.output = NodeId(77), "output is node 77"),
            (|g| g.nodes[5].params.truncate(1), "`head` (linear) has parameters"),
            (|g| g.blocks[0].nodes.push(NodeId(99)), "`block` lists node 99"),
            (|g| g.blocks.push(g.blocks[0].clone()), "`block` is listed twice"),
            (|g| g.blocks[0].residual[0].add = NodeId(2), "names node 2 as its residual addition"),
            (|g| g.blocks[0].residual[0].skip = NodeId(4), "skips to node 4"),
        ];
        for (damage, words) in cases {
            let mut g = graph();
            damage(&mut g);
            let error = g.check().unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("hint: "), "{error}");
        }
    }

    #[test]
    fn removing_a_branch_leaves_it_unreachable_and_costless() {
        let mut g = graph();
        let r = g.blocks[0].residual[0].clone();
        g.nodes[4].inputs = vec![r.skip];
        g.check().unwrap();
        let reachable = g.reachable();
        assert_eq!((0..6).filter(|&i| !reachable[i]).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(crate::graph::macs(&g).unwrap()[2], Default::default());
        assert_eq!(g.consumers()[1], [NodeId(4)]);
        assert_eq!(g.block_of(NodeId(2)).map(|b| b.name.as_str()), Some("block"));
        assert_eq!((g.by_name("head"), g.input_shape()), (Some(NodeId(5)), Ok(vec![3, 8, 8])));
    }
}
