//! Every importance against its formula, worked out by hand in plain arithmetic on networks of a few weights.

use candle_core::{Device, Tensor};
use paring::exec::Cancel;
use paring::graph::{Builder, Conv, Graph, Op};
use paring::model::families::{CifarResnetSpec, FamilySpec};
use paring::model::{self, Model, Param, ParamStore};
use paring::prune::{self, Group, Method};
use paring::task::{Classify, Targets};
use std::sync::Arc;

fn conv(inputs: usize, outputs: usize, bias: bool) -> Conv {
    Conv { in_ch: inputs, out_ch: outputs, kernel: 1, stride: 1, padding: [0; 4], groups: 1, bias }
}

fn model(graph: Graph, params: &[(&str, &[usize], &[f32])]) -> Model {
    let mut store = ParamStore::default();
    for (name, shape, values) in params {
        store.insert(
            (*name).to_owned(),
            Param::owned(shape.to_vec(), values.to_vec()).expect("as many as the shape says"),
        );
    }
    // Only the card of another network is used.
    let spec = FamilySpec::CifarResnet(CifarResnetSpec { blocks: 1, widths: [4, 4, 4], classes: 2, image: 8 });
    Model { graph: Arc::new(graph), params: store, ..model::random(&spec, 1) }
}

fn only_group(m: &Model) -> Group {
    let open: Vec<Group> = prune::groups(&m.graph).into_iter().filter(|g| g.protected.is_none()).collect();
    let [group] = open.as_slice() else { panic!("one group can be pruned: {open:?}") };
    group.clone()
}

fn near(ours: &[f32], by_hand: &[f64], what: &str) {
    assert_eq!(ours.len(), by_hand.len(), "{what}");
    for (a, b) in ours.iter().zip(by_hand) {
        assert!((f64::from(*a) - b).abs() <= 1e-5 + 1e-4 * b.abs(), "{what}: {ours:?}, by hand {by_hand:?}");
    }
}

/// Two 1x1 convolutions of one channel into two, added, through a ReLU and the mean over four places into a classifier of
/// two: `z = W · mean(relu(u·x + b + v·x)) + B`. Both convolutions make the units, so both count.
struct Net {
    u: [f64; 2],
    b: [f64; 2],
    v: [f64; 2],
    w: [[f64; 2]; 2],
    c: [f64; 2],
}

const NET: Net = Net { u: [0.9, -1.1], b: [0.2, 0.4], v: [0.3, 0.5], w: [[7.0, -6.0], [-5.0, 8.0]], c: [0.3, -0.2] };
/// Five images of four places with their classes; two of them are on the wrong side.
const IMAGES: [([f64; 4], u32); 5] = [
    ([1.0, 0.5, -0.25, 2.0], 0),
    ([-1.5, -0.5, 0.75, -2.0], 1),
    ([0.5, -1.0, 1.5, 0.25], 1),
    ([-0.75, -1.25, 0.5, 0.1], 0),
    ([1.75, 0.6, 0.8, -0.4], 0),
];

/// What one image says: derivatives of the softened loss by each unit's `u`, `b` and `v`.
struct Said {
    by_u: [f64; 2],
    by_b: [f64; 2],
    by_v: [f64; 2],
}

impl Net {
    fn model(&self) -> Model {
        let mut g = Builder::default();
        let x = g.input([1, 2, 2]);
        let one = g.conv("one", x, conv(1, 2, true));
        let two = g.conv("two", x, conv(1, 2, false));
        let sum = g.add("sum", one, two);
        let relu = g.relu("relu", sum);
        let mean = g.node("mean", Op::GlobalAvgPool, &[relu]);
        let fc = g.linear("fc", mean, 2, 2, true);
        let f = |v: &[f64]| v.iter().map(|v| *v as f32).collect::<Vec<_>>();
        model(
            g.finish(fc).expect("sound"),
            &[
                ("one.weight", &[2, 1, 1, 1], &f(&self.u)),
                ("one.bias", &[2], &f(&self.b)),
                ("two.weight", &[2, 1, 1, 1], &f(&self.v)),
                ("fc.weight", &[2, 2], &f(&self.w.concat())),
                ("fc.bias", &[2], &f(&self.c)),
            ],
        )
    }

    fn units(&self, x: &[f64; 4]) -> [[f64; 4]; 2] {
        [0, 1].map(|c| x.map(|x| self.u[c] * x + self.b[c] + self.v[c] * x))
    }

    fn logits(&self, x: &[f64; 4]) -> [f64; 2] {
        let h = self.units(x).map(|a| a.iter().map(|a| a.max(0.0)).sum::<f64>() / 4.0);
        [0, 1].map(|k| self.w[k][0] * h[0] + self.w[k][1] * h[1] + self.c[k])
    }

    fn temperature(&self) -> f64 {
        let margins = IMAGES.map(|(x, _)| (self.logits(&x)[0] - self.logits(&x)[1]).abs());
        (margins.iter().sum::<f64>() / margins.len() as f64 / 2.0).max(1.0)
    }

    fn said(&self, (x, label): &([f64; 4], u32), temperature: f64) -> Said {
        let z = self.logits(x).map(|z| (z / temperature).exp());
        let delta = [0, 1].map(|k| (z[k] / (z[0] + z[1]) - f64::from(u8::from(k as u32 == *label))) / temperature);
        let units = self.units(x);
        let by = |c: usize, factor: &dyn Fn(f64) -> f64| -> f64 {
            let back = (delta[0] * self.w[0][c] + delta[1] * self.w[1][c]) / 4.0;
            (0..4).filter(|&p| units[c][p] > 0.0).map(|p| back * factor(x[p])).sum()
        };
        Said {
            by_u: [0, 1].map(|c| by(c, &|x| x)),
            by_b: [0, 1].map(|c| by(c, &|_| 1.0)),
            by_v: [0, 1].map(|c| by(c, &|x| x)),
        }
    }
}

/// The images in batches of these sizes.
fn batches(sizes: &[usize]) -> Vec<(Tensor, Targets)> {
    let mut at = 0;
    let mut out = Vec::new();
    for &n in sizes {
        let part = &IMAGES[at..at + n];
        let values: Vec<f32> = part.iter().flat_map(|(x, _)| x.iter().map(|v| *v as f32)).collect();
        let x = Tensor::from_vec(values, (n, 1, 2, 2), &Device::Cpu).expect("tensor");
        out.push((x, Targets::Classes(part.iter().map(|(_, l)| *l).collect())));
        at += n;
    }
    out
}

fn scores(m: &Model, method: Method, sizes: &[usize]) -> Vec<f32> {
    let evidence =
        prune::evidence(m, &Classify, method, batches(sizes), &Cancel::default(), &mut |_| {}).expect("evidence");
    prune::importance(m, &only_group(m), method, Some(&evidence)).expect("scores")
}

#[test]
fn taylor_is_the_mean_square_of_each_images_sum_over_the_units_weights() {
    let (m, t) = (NET.model(), NET.temperature());
    assert!(t > 1.2, "the network is sure, so that softening counts: {t}");
    let said = IMAGES.map(|i| NET.said(&i, t));
    let moved = |s: &Said, c: usize| NET.u[c] * s.by_u[c] + NET.b[c] * s.by_b[c] + NET.v[c] * s.by_v[c];
    let by_hand = [0, 1].map(|c| said.iter().map(|s| moved(s, c).powi(2)).sum::<f64>() / 5.0);
    // What must not come out instead: the square of the mean (images that pull apart cancel), or one without softening.
    let of_mean = [0, 1].map(|c| (said.iter().map(|s| moved(s, c)).sum::<f64>() / 5.0).powi(2));
    let hard = IMAGES.map(|i| NET.said(&i, 1.0));
    let plain = [0, 1].map(|c| hard.iter().map(|s| moved(s, c).powi(2)).sum::<f64>() / 5.0);
    for c in [0, 1] {
        assert!(
            (by_hand[c] - of_mean[c]).abs() > 0.05 * by_hand[c] && (by_hand[c] - plain[c]).abs() > 0.05 * by_hand[c]
        );
    }
    for sizes in [&[5][..], &[2, 3], &[1, 1, 1, 1, 1]] {
        near(&scores(&m, Method::Taylor, sizes), &by_hand, "taylor");
    }
}

#[test]
fn hessian_is_half_the_squared_weight_times_the_mean_squared_gradient() {
    let (m, t) = (NET.model(), NET.temperature());
    let said = IMAGES.map(|i| NET.said(&i, t));
    let mean = |f: &dyn Fn(&Said) -> f64| said.iter().map(|s| f(s).powi(2)).sum::<f64>() / 5.0;
    let by_hand = [0, 1].map(|c| {
        0.5 * (NET.u[c].powi(2) * mean(&|s| s.by_u[c])
            + NET.b[c].powi(2) * mean(&|s| s.by_b[c])
            + NET.v[c].powi(2) * mean(&|s| s.by_v[c]))
    });
    for sizes in [&[5][..], &[2, 3]] {
        near(&scores(&m, Method::Hessian, sizes), &by_hand, "hessian");
    }
}

#[test]
fn activation_is_each_weight_times_the_norm_of_its_input() {
    let m = NET.model();
    let norm = IMAGES.iter().flat_map(|(x, _)| x).map(|x| x * x).sum::<f64>().sqrt();
    let by_hand = [0, 1].map(|c| (NET.u[c].abs() + NET.v[c].abs()) * norm);
    near(&scores(&m, Method::Activation, &[2, 3]), &by_hand, "activation");

    // A linear layer over tokens or vectors: a norm for every input feature.
    let mut g = Builder::default();
    let x = g.input([2, 1, 1]);
    let flat = g.node("flat", Op::Flatten, &[x]);
    let fc1 = g.linear("fc1", flat, 2, 2, false);
    let relu = g.relu("relu", fc1);
    let fc2 = g.linear("fc2", relu, 2, 2, false);
    let params: [(&str, &[usize], &[f32]); 2] =
        [("fc1.weight", &[2, 2], &[1.0, -2.0, 0.5, 3.0]), ("fc2.weight", &[2, 2], &[1.0, 0.0, 0.0, 1.0])];
    let m = model(g.finish(fc2).expect("sound"), &params);
    let x = Tensor::new(&[[[[3f32]], [[1.0]]], [[[-4.0]], [[2.0]]]], &Device::Cpu).expect("tensor");
    let evidence = prune::evidence(
        &m,
        &Classify,
        Method::Activation,
        [(x, Targets::Classes(vec![0, 1]))],
        &Cancel::default(),
        &mut |_| {},
    )
    .expect("evidence");
    // Norms: 5 and √5.
    let scores = prune::importance(&m, &only_group(&m), Method::Activation, Some(&evidence)).expect("scores");
    near(&scores, &[5.0 + 2.0 * 5f64.sqrt(), 2.5 + 3.0 * 5f64.sqrt()], "activation");
}

#[test]
fn magnitudes_are_those_of_the_folded_batch_norm() {
    let mut g = Builder::default();
    let x = g.input([2, 2, 2]);
    let c = g.conv("conv", x, conv(2, 3, false));
    let bn = g.batch_norm("bn", c, 3);
    let relu = g.relu("relu", bn);
    let mean = g.node("mean", Op::GlobalAvgPool, &[relu]);
    let fc = g.linear("fc", mean, 3, 2, false);
    let (gamma, var) = ([0.5f32, -2.0, 1.0], [0.25f32, 4.0, 1.0]);
    let params: [(&str, &[usize], &[f32]); 6] = [
        ("conv.weight", &[3, 2, 1, 1], &[3.0, -4.0, 1.0, 2.0, 0.0, 0.5]),
        ("bn.weight", &[3], &gamma),
        ("bn.bias", &[3], &[0.1, 0.2, 0.3]),
        ("bn.running_mean", &[3], &[0.0; 3]),
        ("bn.running_var", &[3], &var),
        ("fc.weight", &[2, 3], &[1.0; 6]),
    ];
    let m = model(g.finish(fc).expect("sound"), &params);
    let group = only_group(&m);
    let of = |method| prune::importance(&m, &group, method, None).expect("scores");
    // |γ| / √(var + 1e-5): all but 1 for every row, so the scaled rows are (3, -4), (1, 2) and (0, 0.5).
    let scale = [0, 1, 2].map(|i| f64::from(gamma[i]).abs() / (f64::from(var[i]) + 1e-5).sqrt());
    near(&of(Method::L1), &[7.0 * scale[0], 3.0 * scale[1], 0.5 * scale[2]], "l1");
    near(&of(Method::L2), &[5.0 * scale[0], 5f64.sqrt() * scale[1], 0.5 * scale[2]], "l2");
    near(&of(Method::BatchNorm), &[0.5, 2.0, 1.0], "batch-norm");
    let rows = [[3.0 * scale[0], -4.0 * scale[0]], [scale[1], 2.0 * scale[1]], [0.0, 0.5 * scale[2]]];
    let d = |a: usize, b: usize| ((rows[a][0] - rows[b][0]).powi(2) + (rows[a][1] - rows[b][1]).powi(2)).sqrt();
    near(&of(Method::Fpgm), &[d(0, 1) + d(0, 2), d(0, 1) + d(1, 2), d(0, 2) + d(1, 2)], "fpgm");
    let lot = of(Method::Random);
    assert_eq!(lot, of(Method::Random), "the same lot every time");
    assert!(lot.iter().all(|s| (0.0..1.0).contains(s)) && lot[0] != lot[1], "{lot:?}");
}

#[test]
fn several_producers_add_up_and_without_a_norm_its_importance_is_l2() {
    let m = NET.model();
    let of = |method| prune::importance(&m, &only_group(&m), method, None).expect("scores");
    let sum = [0, 1].map(|c| NET.u[c].abs() + NET.v[c].abs());
    for method in [Method::L1, Method::L2, Method::BatchNorm] {
        near(&of(method), &sum, method.label());
    }
    let apart = (NET.u[0] - NET.u[1]).abs() + (NET.v[0] - NET.v[1]).abs();
    near(&of(Method::Fpgm), &[apart, apart], "fpgm");
    for method in [Method::Taylor, Method::Hessian, Method::Activation] {
        let e = prune::importance(&m, &only_group(&m), method, None).expect_err("needs images");
        assert!(e.to_string().contains("hint:"), "{e}");
    }
}
