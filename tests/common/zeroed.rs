//! Models with units set to zero, to hold pruned ones against.

use candle_core::{Device, Tensor};
use paring::exec::candle;
use paring::graph::op;
use paring::graph::{Op, ParamRole};
use paring::model::{Model, Param};
use paring::prune::{self, Action, Group, MemberRole, Target};
use std::sync::Arc;

/// Two fixed, rough pictures: no randomness of the tensor library's own.
pub fn picture(m: &Model, seed: u64) -> Tensor {
    let shape = m.graph.input_shape().unwrap();
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..2 * n).map(|i| (((i as u64 + seed) * 2654435761 % 1000) as f32) / 500.0 - 1.0).collect();
    Tensor::from_vec(values, (2, shape[0], shape[1], shape[2]), &Device::Cpu).unwrap()
}

/// The interpreter's answer to [`picture`].
pub fn logits(m: &Model, seed: u64) -> Vec<f32> {
    let x = picture(m, seed);
    let params = candle::tensors(&m.params, &Device::Cpu).unwrap();
    let out = candle::forward(&m.graph, &params, &x, candle::Mode::Eval, &mut candle::Capture::none());
    out.unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Zeroes `indices` along `axis` of a tensor.
pub fn zero(m: &mut Model, name: &str, axis: usize, indices: &[usize]) {
    let p = m.params.get(name).unwrap();
    let (shape, mut data) = (p.shape().to_vec(), p.values().into_owned());
    let inner: usize = shape[axis + 1..].iter().product();
    for (i, v) in data.iter_mut().enumerate() {
        if indices.contains(&(i / inner % shape[axis])) {
            *v = 0.0;
        }
    }
    m.params.insert(name.to_owned(), Param::owned(shape, data).unwrap());
}

/// The model with the units that are not in `kept` zeroed: what computes them and what carries them along, never what
/// reads them.
pub fn zeroed(model: &Model, group: &Group, kept: &[u32]) -> Model {
    let mut m = model.clone();
    for member in &group.members {
        if member.role == MemberRole::Consumer {
            continue;
        }
        let gone: Vec<usize> = (0..group.size)
            .filter(|u| !kept.contains(&(*u as u32)))
            .flat_map(|u| member.indices(u).collect::<Vec<_>>())
            .collect();
        let id = m.graph.by_name(&member.node).unwrap();
        let node = m.graph.node(id).clone();
        for p in node.params.iter().filter(|p| member.roles.contains(&p.role) && p.role != ParamRole::Var) {
            zero(&mut m, &p.name, member.axis, &gone);
        }
        if let Op::ChannelPad(_) = node.op {
            let graph = Arc::make_mut(&mut m.graph);
            if let Op::ChannelPad(op::ChannelPad { map, .. }) = &mut graph.nodes[id.index()].op {
                gone.iter().for_each(|&j| map[j] = None);
            }
        }
    }
    m
}

pub fn close(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let scale = b.iter().fold(1f32, |m, v| m.max(v.abs()));
    for (x, y) in a.iter().zip(b) {
        assert!(x.is_finite() && (x - y).abs() <= 2e-4 * scale, "{what}: {x} against {y}");
    }
}

pub fn check(model: &Model, groups: &[Group], cuts: &[(usize, Vec<u32>)], what: &str) {
    let mut z = model.clone();
    let mut actions = Vec::new();
    for (g, kept) in cuts {
        let group = &groups[*g];
        z = zeroed(&z, group, kept);
        let ratio = group.ratio_of(kept.len());
        actions.push((Target::Group(group.id.clone()), Action::Prune { ratio, kept: kept.clone() }));
    }
    let pruned = prune::apply(model, groups, &actions).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(*pruned.graph, prune::shrink(&model.graph, groups, &actions).unwrap(), "{what}");
    assert!(paring::graph::macs(&pruned.graph).is_ok(), "{what}");
    close(&logits(&pruned, 7), &logits(&z, 7), what);
}

/// `n` distinct units out of `size`, ascending, by a hash of `seed`.
pub fn some_units(size: usize, n: usize, seed: u64) -> Vec<u32> {
    let mut all: Vec<u32> = (0..size as u32).collect();
    all.sort_by_key(|u| (*u as u64 + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20);
    all.truncate(n.max(1));
    all.sort_unstable();
    all
}

pub fn prunable(groups: &[Group]) -> Vec<usize> {
    (0..groups.len()).filter(|&g| groups[g].protected.is_none()).collect()
}
