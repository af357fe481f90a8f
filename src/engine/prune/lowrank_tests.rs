//! Factors: the least error that a rank can have, two layers that compute what one did, ranks that cannot be.

use super::*;
use crate::exec::{CompileOptions, Plan};
use crate::graph::Precision;
use crate::model::families::{CifarResnetSpec, FamilySpec};
use crate::model::random;
use crate::prune::{apply, groups};
use candle_core::{Device, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..n).map(|_| rng.random_range(-1.0f32..1.0)).collect()
}

/// `Σ |(W − B A) x|²` over inputs with this Gram matrix.
fn error(w: &[f32], new: &[f32], gram: &[f64], columns: usize) -> f64 {
    let lost: Vec<f64> = w.iter().zip(new).map(|(a, b)| f64::from(a - b)).collect();
    let row = |r: &[f64]| -> f64 { (0..columns * columns).map(|i| r[i / columns] * gram[i] * r[i % columns]).sum() };
    lost.chunks_exact(columns).map(row).sum()
}

/// The least error that a rank can have is what the smaller eigenvalues of the outputs' Gram matrix add up to; both shapes are solved
/// by matrices of their own.
#[test]
fn no_factors_of_a_rank_are_nearer_to_the_outputs() {
    for (rows, columns) in [(6, 9), (9, 6), (7, 7)] {
        let w = numbers(rows * columns, 1);
        // Few directions of the inputs have most of the variance.
        let inputs = numbers(40 * columns, 2);
        let x = |n: usize, c: usize| f64::from(inputs[n * columns + c]) * 0.5f64.powi(c as i32 / 2);
        let gram: Vec<f64> =
            (0..columns * columns).map(|i| (0..40).map(|n| x(n, i / columns) * x(n, i % columns)).sum()).collect();
        let wide: Vec<f64> = w.iter().map(|v| f64::from(*v)).collect();
        let (m, g) =
            (MatRef::from_row_major_slice(&wide, rows, columns), MatRef::from_row_major_slice(&gram, columns, columns));
        let outputs = product(product(m, g).as_ref(), m.transpose());
        let mut left = outputs.self_adjoint_eigenvalues(Side::Lower).unwrap();
        left.sort_by(|a, b| b.total_cmp(a));
        for rank in [1, 2, 4] {
            let least: f64 = left[rank..].iter().sum();
            let found = Factors::of(&w, columns, rank, Some(&gram)).unwrap().whole(columns);
            let plain = Factors::of(&w, columns, rank, None).unwrap().whole(columns);
            let (found, plain) = (error(&w, &found, &gram, columns), error(&w, &plain, &gram, columns));
            assert!(
                (found - least).abs() <= 0.01 * least + 1e-9,
                "{rows}x{columns} rank {rank}: {found}, least {least}"
            );
            assert!(plain > 1.02 * found, "{rows}x{columns} rank {rank}: {plain} by weights alone, {found}");
        }
        // Without inputs: by the weights themselves, as if all directions came alike.
        let flat: Vec<f64> = (0..columns * columns).map(|i| f64::from(u8::from(i / columns == i % columns))).collect();
        let plain = Factors::of(&w, columns, 3, None).unwrap().whole(columns);
        let even = product(m, m.transpose());
        let mut left = even.self_adjoint_eigenvalues(Side::Lower).unwrap();
        left.sort_by(|a, b| b.total_cmp(a));
        let (found, least) = (error(&w, &plain, &flat, columns), left[3..].iter().sum::<f64>());
        assert!((found - least).abs() < 1e-5, "{found} {least}");
        // What has the rank already comes back.
        let again = Factors::of(&plain, columns, 3, None).unwrap().whole(columns);
        assert!(plain.iter().zip(&again).all(|(a, b)| (a - b).abs() < 1e-6));
    }
}

fn model() -> Model {
    random(&FamilySpec::CifarResnet(CifarResnetSpec { blocks: 2, widths: [8, 16, 16], classes: 10, image: 8 }), 3)
}

fn logits(model: &Model) -> Vec<f32> {
    let x = Tensor::from_vec(numbers(2 * 3 * 64, 7), (2, 3, 8, 8), &Device::Cpu).unwrap();
    let plan = Plan::of(model, &CompileOptions::default()).unwrap();
    plan.session().run(&x).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn factors(rank: u32) -> Action {
    Action::Factorise { rank }
}

#[test]
fn two_layers_stand_for_one() {
    let model = model();
    let layers = ["layer1.0.conv2", "layer2.0.conv1", "linear"];
    let actions: Vec<_> = layers.iter().map(|n| (Target::Weights((*n).to_owned()), factors(3))).collect();
    let flat = apply(&model, &groups(&model.graph), &actions).unwrap();
    assert_eq!(flat.graph, model.graph, "in one piece the graph is as it was");
    let ranks = ranks(&flat.graph, &actions);
    let mut two = split(&flat, &ranks).unwrap();
    assert_eq!(two.graph.nodes.len(), model.graph.nodes.len() + 3);
    assert_eq!(two.graph.factored().len(), 3);
    let near = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(near(&logits(&flat), &logits(&two)) < 1e-5);
    assert!(near(&logits(&flat), &logits(&model)) > 1e-3, "and something was lost");
    let names: Vec<&str> = two.params.iter().map(|(n, _)| n).collect();
    for name in
        ["linear.0.weight", "linear.1.weight", "linear.1.bias", "layer2.0.conv1.0.weight", "layer2.0.conv1.1.weight"]
    {
        assert!(names.contains(&name), "{name}");
    }
    assert!(!names.contains(&"linear.weight") && !names.contains(&"linear.bias"));
    assert_eq!(two.params.get("layer2.0.conv1.0.weight").unwrap().shape(), [3, 8, 3, 3]);
    assert_eq!(two.params.get("layer2.0.conv1.1.weight").unwrap().shape(), [16, 3, 1, 1]);
    // Both halves lie in the block, whose addition is found where it is now.
    let block = two.graph.block("layer1.0").unwrap();
    for name in ["layer1.0.conv2", "layer1.0.conv2.0"] {
        assert!(block.nodes.contains(&two.graph.by_name(name).unwrap()), "{name}");
    }
    // A precision of the layer is that of both.
    let mut narrow = flat.clone();
    narrow.precision.set("linear", Precision::Int8);
    two = split(&narrow, &ranks).unwrap();
    assert_eq!((two.precision.get("linear"), two.precision.get("linear.0")), (Precision::Int8, Precision::Int8));
}

#[test]
fn what_was_cut_until_factors_are_no_smaller_stays_whole() {
    let model = model();
    let groups = groups(&model.graph);
    let group = groups.iter().find(|g| g.members.iter().any(|m| m.node == "layer1.0.conv2") && g.protected.is_none());
    let group = group.expect("a group that conv2 reads");
    let cut = Action::Prune { ratio: 1.0 - 1.0 / group.size as f64, kept: vec![0] };
    let wanted = (Target::Weights("layer1.0.conv2".to_owned()), factors(4));
    let alone = apply(&model, &groups, std::slice::from_ref(&wanted)).unwrap();
    assert_eq!(ranks(&alone.graph, std::slice::from_ref(&wanted)).len(), 1);
    let both = [(Target::Group(group.id.clone()), cut), wanted];
    let made = apply(&model, &groups, &both).unwrap();
    assert!(ranks(&made.graph, &both).is_empty());
    // Taken back, or zeros in their place: there are none.
    let weights = Target::Weights("linear".to_owned());
    let back = [(weights.clone(), factors(2)), (weights.clone(), Action::Keep)];
    assert!(ranks(&model.graph, &back).is_empty());
}

#[test]
fn ranks_that_cannot_be_are_refused_in_words() {
    let model = model();
    let op = |name: &str| &model.graph.node(model.graph.by_name(name).unwrap()).op;
    // 16 x 72: 1,152 weights, 88 a rank.
    let conv = op("layer2.0.conv1");
    assert_eq!(fits(conv, 13), Ok(()));
    assert!(fits(conv, 14).unwrap_err().contains("13 at most"));
    assert!(fits(conv, 0).is_err());
    assert!(fits(op("layer1.0.bn1"), 1).unwrap_err().contains("only linear"));
    assert_eq!(Rank::Share(0.5).of(conv), Ok(8));
    assert!(Rank::Share(0.95).of(conv).is_err());
    assert_eq!("64".parse(), Ok(Rank::Units(64)));
    assert_eq!(" 25% ".parse(), Ok(Rank::Share(0.25)));
    for bad in ["0", "-3", "x", "0%", "100%", "nan%", ""] {
        assert!(bad.parse::<Rank>().is_err_and(|e| e.contains("hint")), "{bad}");
    }
    let wide = Op::Linear(op::Linear { in_features: 576, out_features: 1536, bias: false });
    assert_eq!(Rank::Share(0.3).of(&wide), Ok(176), "in runs of eight");
}
