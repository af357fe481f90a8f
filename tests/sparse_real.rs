//! Half of all weights zero by magnitude on the published networks, and which units each importance keeps.

mod common;

use candle_core::Tensor;
use paring::data;
use paring::eval::score_with;
use paring::exec::{Cancel, CompileOptions, Plan};
use paring::graph::ParamRole;
use paring::model::{LoadOptions, Model, load};
use paring::prune::{self, Action, Method, Sparsity, Target};
use paring::quant;
use paring::task::Classify;

fn sparse(model: &Model, sparsity: Sparsity) -> Model {
    let of = |n: &paring::graph::Node| (Target::Weights(n.name.clone()), Action::Sparsify { sparsity });
    let actions: Vec<_> = quant::choosable(&model.graph).into_iter().map(of).collect();
    prune::apply(model, &[], &actions).unwrap()
}

/// Zeros among all weights of convolutions and linear layers.
fn zeros(model: &Model) -> (usize, usize) {
    let weights = quant::choosable(&model.graph).into_iter().filter_map(|n| n.param(ParamRole::Weight));
    weights.fold((0, 0), |(zeros, all), name| {
        let p = model.params.get(name).unwrap();
        (zeros + p.values().iter().filter(|v| **v == 0.0).count(), all + p.values().len())
    })
}

#[test]
fn half_of_the_weights_can_go_as_the_literature_says() {
    let Some(real) = common::real() else { return };
    let (part, off) = if common::full() { (0, 5) } else { (2000, 2) };
    let set = data::open(real.join("cifar10/test_batch.bin").to_str().unwrap(), part).unwrap();
    // Measured with torch.nn.utils.prune.l1_unstructured, half of every tensor, on the first 2,000 images and on all
    // (`conformance/real_counts.py`).
    for (name, reference) in [("resnet20", [1785i64, 8868]), ("resnet56", [1827, 9174]), ("vit_cifar10", [823, 4138])] {
        let reference = reference[usize::from(common::full())];
        let model = load(&real.join(format!("{name}/{name}.safetensors")), &LoadOptions::default()).unwrap();
        let half = sparse(&model, Sparsity::Unstructured { ratio: 0.5 });
        let plan = Plan::of(&half, &CompileOptions::default()).unwrap();
        let prep = &model.info.preprocess;
        let run = score_with(&set, prep, 128, &Cancel::default(), |x| plan.run(x), &mut |_, _| {}).unwrap();
        let correct = run.correct().iter().filter(|c| **c).count() as i64;
        let (zero, all) = zeros(&half);
        println!("{name}: {correct} of {} correct with {zero} of {all} weights zero", set.len());
        assert!((correct - reference).abs() <= off, "{name}: {correct}, reference {reference}");
        assert!((zero as f64 / all as f64 - 0.5).abs() < 1e-3);
        // 2:4 zeroes half of what has whole runs of four inputs.
        let (pattern, all) = zeros(&sparse(&model, Sparsity::NofM { n: 2, m: 4 }));
        assert!(pattern as f64 / all as f64 > 0.49, "{name}: {pattern} of {all}");
    }
}

#[test]
fn every_importance_ranks_every_group_and_gradients_beat_the_lot() {
    let Some(real) = common::real() else { return };
    let model = load(&real.join("resnet20/resnet20.safetensors"), &LoadOptions::default()).unwrap();
    let calib = data::open(real.join("cifar10/calib_5000.bin").to_str().unwrap(), 512).unwrap();
    let prep = &model.info.preprocess;
    let groups = prune::groups(&model.graph);
    let inner: Vec<_> = groups.iter().filter(|g| g.protected.is_none() && g.block.is_some()).collect();
    assert_eq!(inner.len(), 9);
    // As a session does it: images by lot.
    let picks = prune::spread(calib.len(), 256, 0);
    let right = |method: Method| {
        let batches = picks.chunks(16).map(|p| calib.batch(p, prep).unwrap());
        let evidence = prune::evidence(&model, &Classify, method, batches, &Cancel::default(), &mut |_| {}).unwrap();
        let actions: Vec<_> = inner
            .iter()
            .map(|g| {
                let scores = prune::importance(&model, g, method, Some(&evidence)).unwrap();
                assert!(scores.iter().all(|s| s.is_finite() && *s >= 0.0), "{method:?} on {}", g.id);
                let kept = prune::resolve(g, &scores, 0.125);
                (Target::Group(g.id.clone()), Action::Prune { ratio: 0.125, kept })
            })
            .collect();
        let cut = prune::apply(&model, &groups, &actions).unwrap();
        let plan = Plan::of(&cut, &CompileOptions::default()).unwrap();
        let run = score_with(&calib, prep, 128, &Cancel::default(), |x: &Tensor| plan.run(x), &mut |_, _| {}).unwrap();
        run.correct().iter().filter(|c| **c).count()
    };
    let lot = right(Method::Random);
    for method in Method::ALL {
        let n = right(method);
        println!("{}: {n} of {} right without 12.5 % of inner channels, by lot {lot}", method.label(), calib.len());
        // Magnitudes need a re-fit to be worth anything on so small a network; gradients see what the loss sees.
        if matches!(method, Method::Taylor | Method::Hessian) {
            assert!(n > lot, "{method:?}: {n}, by lot {lot}");
        }
    }
    assert!(prune::importance(&model, inner[0], Method::Taylor, None).is_err());
}
