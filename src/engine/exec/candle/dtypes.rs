//! Which values stay in half precision between steps: those that a half-precision layer makes and whose readers all take
//! them so. Everything else is f32, and so is all that norms, softmax and sums over positions read.

use crate::graph::NodeId;
use candle_core::DType;
use std::collections::BTreeMap;

/// A step as far as types go.
pub(super) struct Flow {
    pub out: NodeId,
    pub inputs: Vec<NodeId>,
    pub residual: Option<NodeId>,
    pub role: Role,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Computes in this type, whatever comes in.
    Fixed(DType),
    /// Takes and makes whatever it is given, but all of one type.
    Passes,
    /// As `Passes` where that is this type, else f32.
    Takes(DType),
}

/// What each step computes in and keeps its value in; `flows` in the order they run, `output` the graph's.
pub(super) fn decide(flows: &[Flow], output: NodeId) -> Vec<(DType, DType)> {
    let mut kept: BTreeMap<NodeId, DType> = BTreeMap::new();
    let of = |kept: &BTreeMap<NodeId, DType>, id: &NodeId| kept.get(id).copied().unwrap_or(DType::F32);
    // Forwards: what a value could be kept in.
    for f in flows {
        let natural = match f.role {
            Role::Fixed(d) => d,
            Role::Passes | Role::Takes(_) => {
                let mut types = f.inputs.iter().map(|i| of(&kept, i));
                let first = types.next().unwrap_or(DType::F32);
                let one = types.all(|t| t == first) && !matches!(f.role, Role::Takes(d) if d != first);
                if one { first } else { DType::F32 }
            }
        };
        kept.insert(f.out, natural);
    }
    // Backwards: whether every reader takes it so. Readers come later, so theirs is decided.
    for f in flows.iter().rev() {
        let natural = of(&kept, &f.out);
        let takes = |r: &Flow| match r.role {
            Role::Fixed(d) => d == natural,
            Role::Passes | Role::Takes(_) => of(&kept, &r.out) == natural,
        };
        let mut readers = flows.iter().filter(|r| r.inputs.contains(&f.out) || r.residual == Some(f.out));
        if f.out == output || !readers.all(takes) {
            kept.insert(f.out, DType::F32);
        }
    }
    let one = |f: &Flow| {
        let store = of(&kept, &f.out);
        match f.role {
            Role::Fixed(d) => (d, store),
            Role::Passes | Role::Takes(_) => (store, store),
        }
    };
    flows.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::DType::{BF16, F16, F32};

    fn flow(out: u32, inputs: &[u32], residual: Option<u32>, role: Role) -> Flow {
        let inputs = inputs.iter().map(|i| NodeId(*i)).collect();
        Flow { out: NodeId(out), inputs, residual: residual.map(NodeId), role }
    }

    #[test]
    fn half_flows_between_half_layers_and_nowhere_else() {
        let (half, passes) = (Role::Fixed(F16), Role::Passes);
        // conv - pool - conv + residual - norm: the norm reads the sum.
        let flows = [
            flow(1, &[0], None, half),
            flow(2, &[1], None, passes),
            flow(3, &[2], Some(2), half),
            flow(4, &[3], None, Role::Fixed(F32)),
        ];
        assert_eq!(decide(&flows, NodeId(4)), [(F16, F16), (F16, F16), (F16, F32), (F32, F32)]);
        // One f32 reader of the pooled value takes the whole way back to the first layer to f32.
        let flows = [
            flow(1, &[0], None, half),
            flow(2, &[1], None, passes),
            flow(3, &[2], None, half),
            flow(4, &[2], Some(3), Role::Fixed(F32)),
        ];
        assert_eq!(decide(&flows, NodeId(4))[..2], [(F16, F32), (F32, F32)]);
    }

    #[test]
    fn what_takes_one_half_type_takes_no_other() {
        let of = |half| {
            let [layer, takes] = [Role::Fixed(half), Role::Takes(F16)];
            decide(&[flow(1, &[0], None, layer), flow(2, &[1], None, takes), flow(3, &[2], None, layer)], NodeId(3))
        };
        assert_eq!(of(F16), [(F16, F16), (F16, F16), (F16, F32)]);
        assert_eq!(of(BF16), [(BF16, F32), (F32, F32), (BF16, F32)]);
    }

    #[test]
    fn two_half_types_meet_in_f32() {
        let flows = [
            flow(1, &[0], None, Role::Fixed(F16)),
            flow(2, &[0], None, Role::Fixed(BF16)),
            flow(3, &[1, 2], None, Role::Passes),
            flow(4, &[3], None, Role::Fixed(F16)),
        ];
        assert_eq!(decide(&flows, NodeId(4)), [(F16, F32), (BF16, F32), (F32, F32), (F16, F32)]);
        // The output is seen from outside.
        assert_eq!(decide(&flows[..1], NodeId(1)), [(F16, F32)]);
    }
}
