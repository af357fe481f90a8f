//! Gradients held against those of the definitions, and against differences.

use super::*;
use crate::exec::candle::{Capture, TensorMap};
use crate::exec::kernel::noise;
use crate::graph::{Activation, Graph};
use crate::model::FamilySpec;
use crate::model::families::{CifarResnetSpec, VitDims, VitSpec};
use candle_core::{Device, Var};

/// Weights of a size that lets values neither grow nor vanish.
fn weights(graph: &Graph) -> Weights {
    let mut out = Weights::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        for (p, (role, shape)) in node.params.iter().zip(param_shapes(&node.op)) {
            let n: usize = shape.iter().product();
            let fan = shape.get(1..).map_or(1, |s| s.iter().product::<usize>()).max(1) as f32;
            let v = noise(n, i as u64 * 7 + role as u64);
            let of = |v: f32| match role {
                ParamRole::Var => 0.5 + v.abs(),
                ParamRole::Weight if shape.len() > 1 => (v - 0.5) / fan.sqrt(),
                ParamRole::Weight => 1.0 + 0.2 * (v - 0.5),
                _ => 0.2 * (v - 0.5),
            };
            out.insert(p.name.clone(), v.into_iter().map(of).collect());
        }
    }
    out
}

fn graphs() -> Vec<Graph> {
    let resnet = CifarResnetSpec { blocks: 2, widths: [5, 8, 19], classes: 7, image: 32 };
    let dims = VitDims { image: 32, patch: 8, dim: 20, depth: 2, heads: 2, mlp: 37, classes: 10 };
    let all = [FamilySpec::CifarResnet(resnet), FamilySpec::TorchVit(VitSpec::torch(dims))];
    all.iter().map(|spec| spec.build().unwrap()).collect()
}

fn image(graph: &Graph, n: usize) -> Tensor {
    let dims: Vec<usize> = [n].into_iter().chain(graph.input_shape().unwrap()).collect();
    Tensor::from_vec(noise(dims.iter().product(), 77), dims, &Device::Cpu).unwrap()
}

/// Gradients of `Σ seed · output` by every parameter and the input, by the definitions.
fn defined(graph: &Graph, weights: &Weights, x: &Tensor, seed: &[f32], mode: Mode) -> (Vec<f32>, Gradients) {
    let mut vars: HashMap<String, Var> = HashMap::new();
    for (p, (_, shape)) in graph.nodes.iter().flat_map(|n| n.params.iter().zip(param_shapes(&n.op))) {
        let t = Tensor::from_slice(&weights[&p.name], shape, &Device::Cpu).unwrap();
        vars.insert(p.name.clone(), Var::from_tensor(&t).unwrap());
    }
    let x = Var::from_tensor(x).unwrap();
    let map: TensorMap = vars.iter().map(|(k, v)| (k.clone(), v.as_tensor().clone())).collect();
    let y = candle_pass(graph, &map, &x, mode);
    let seed = Tensor::from_slice(seed, y.dims(), &Device::Cpu).unwrap();
    let grads = (&y * seed).unwrap().sum_all().unwrap().backward().unwrap();
    let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let params = vars.iter().filter_map(|(k, v)| Some((k.clone(), flat(grads.get(v)?)))).collect();
    (flat(&y), Gradients { params, input: grads.get(&x).map(flat) })
}

fn candle_pass(graph: &Graph, map: &TensorMap, x: &Tensor, mode: Mode) -> Tensor {
    crate::exec::candle::forward(graph, map, x, mode, &mut Capture::none()).unwrap()
}

/// Largest difference as a part of the largest value.
fn off(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let top = b.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max) / top
}

#[test]
fn values_and_gradients_are_those_of_the_definitions() {
    for graph in graphs() {
        let (weights, x) = (weights(&graph), image(&graph, 3));
        let tape = Tape::of(&graph).unwrap();
        let ready = tape.ready(&weights).unwrap();
        for mode in [Mode::Eval, Mode::Batch] {
            let trace = ready.forward(&x, mode).unwrap();
            let seed = noise(trace.output(&tape).len(), 5);
            let (y, expected) = defined(&graph, &weights, &x, &seed, mode);
            assert!(off(trace.output(&tape), &y) < 2e-5, "{mode:?}");
            let made = ready.backward(trace, vec![(graph.output, seed.clone())], true).unwrap();
            let of_input = made.input.unwrap();
            assert!(off(&of_input, &expected.input.unwrap()) < 1e-4, "{mode:?}");
            let trace = ready.forward(&x, mode).unwrap();
            let alone = ready.input_gradient(trace, vec![(graph.output, seed)]).unwrap();
            assert_eq!(alone, of_input, "{mode:?}: what else is wanted changes nothing");
            for (name, g) in &expected.params {
                if name.contains("running") {
                    continue;
                }
                let by = off(&made.params[name], g);
                assert!(by < 1e-4, "{name} {mode:?}: {by}");
            }
        }
    }
}

#[test]
fn gradients_are_differences() {
    for graph in graphs() {
        let (weights, x) = (weights(&graph), image(&graph, 2));
        let tape = Tape::of(&graph).unwrap();
        let ready = tape.ready(&weights).unwrap();
        let trace = ready.forward(&x, Mode::Batch).unwrap();
        let seed = noise(trace.output(&tape).len(), 9);
        let made = ready.backward(trace, vec![(graph.output, seed.clone())], false).unwrap();
        assert!(made.input.is_none());
        let value = |w: &Weights| -> f64 {
            let trace = tape.ready(w).unwrap().forward(&x, Mode::Batch).unwrap();
            trace.output(&tape).iter().zip(&seed).map(|(y, s)| f64::from(*y) * f64::from(*s)).sum()
        };
        // Along the gradient of each tensor, so that what is compared is far from rounding.
        for node in graph.nodes.iter().filter(|n| matches!(n.op, Op::Linear(_) | Op::LayerNorm(_) | Op::BatchNorm2d(_)))
        {
            let Some(name) = node.param(ParamRole::Weight) else { continue };
            let g = &made.params[name];
            let length = g.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            let step = 2e-3;
            let moved = |sign: f64| {
                let mut w = weights.clone();
                let to = w.get_mut(name).unwrap();
                to.iter_mut().zip(g).for_each(|(w, g)| *w += (sign * step * f64::from(*g) / length) as f32);
                value(&w)
            };
            let slope = (moved(1.0) - moved(-1.0)) / (2.0 * step);
            assert!((slope / length - 1.0).abs() < 2e-2, "{name}: {slope} {length}");
        }
    }
}

#[test]
fn weights_that_do_not_fit_are_refused_by_name() {
    let graph = graphs().swap_remove(0);
    let tape = Tape::of(&graph).unwrap();
    let mut weights = weights(&graph);
    weights.get_mut("conv1.weight").unwrap().pop();
    let said = tape.ready(&weights).err().unwrap().to_string();
    assert!(said.contains("conv1"), "{said}");
}

#[test]
fn a_relu_is_part_of_what_it_follows_and_its_sum() {
    let graph = graphs().swap_remove(0);
    let tape = Tape::of(&graph).unwrap();
    let of = |name: &str| &tape.rules[graph.by_name(name).unwrap().index()];
    assert!(matches!(of("bn1"), Some(Rule::BatchNorm { relu: true, .. })), "{:?}", of("bn1"));
    let relus =
        graph.nodes.iter().zip(&tape.rules).filter(|(n, _)| matches!(n.op, Op::Activation { act: Activation::Relu }));
    assert!(relus.clone().count() > 4 && relus.clone().all(|(_, r)| matches!(r, Some(Rule::Same))));
}
