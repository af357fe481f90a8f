//! Pruning and repair on the real CIFAR ResNet-56: slow, so ignored by default; run with
//! `cargo test --release --test repair_real -- --ignored --nocapture`.

mod common;

use paring::data;
use paring::exec::{Cancel, CompileOptions, Plan};
use paring::graph::{MacConvention, Macs};
use paring::model::{self, Model};
use paring::prune::{self, Action, Group, GroupKind, Method, Target};
use paring::recover::{RepairOptions, RepairUpdate, compress};
use std::time::Instant;

fn resnet56(dir: &std::path::Path) -> Model {
    let file = dir.join("resnet56/resnet56.safetensors");
    model::load(&file, &model::LoadOptions::default()).unwrap()
}

fn macs(g: &paring::graph::Graph) -> u64 {
    paring::graph::macs(g).unwrap().into_iter().sum::<Macs>().get(MacConvention::ConvLinear)
}

/// Global L2 scaled by batch norm over the blocks' inner channels: the lowest scores go until `budget` is met.
fn global_l2(m: &Model, groups: &[Group], budget: f64) -> Vec<(Target, Action)> {
    let inner: Vec<&Group> = groups.iter().filter(|g| g.kind == GroupKind::Channels && g.protected.is_none()).collect();
    let scores: Vec<Vec<f32>> = inner.iter().map(|g| prune::importance(m, g, Method::L2, None).unwrap()).collect();
    let mut all: Vec<f32> = scores.iter().flatten().copied().collect();
    all.sort_by(f32::total_cmp);
    let full = macs(&m.graph) as f64;
    let at = |threshold: f32| -> Vec<(Target, Action)> {
        inner
            .iter()
            .zip(&scores)
            .filter_map(|(g, s)| {
                let keep = s.iter().filter(|v| **v >= threshold).count();
                let ratio = 1.0 - keep.max(1) as f64 / g.size as f64;
                let kept = prune::resolve(g, s, ratio.min(0.99));
                let cut = kept.len() < g.size;
                cut.then(|| (Target::Group(g.id.clone()), Action::Prune { ratio: g.ratio_of(kept.len()), kept }))
            })
            .collect()
    };
    let (mut low, mut high) = (0, all.len() - 1);
    while low < high {
        let mid = (low + high) / 2;
        let g = prune::shrink(&m.graph, groups, &at(all[mid])).unwrap();
        if macs(&g) as f64 <= budget * full { high = mid } else { low = mid + 1 }
    }
    at(all[low])
}

/// The same part of every block's inner channels, the least first by L2: the smallest that meets `budget`.
fn uniform_l2(m: &Model, groups: &[Group], budget: f64) -> Vec<(Target, Action)> {
    let inner = || groups.iter().filter(|g| g.kind == GroupKind::Channels && g.protected.is_none());
    let at = |ratio: f64| -> Vec<(Target, Action)> {
        let action = |g: &Group| {
            let kept = prune::resolve(g, &prune::importance(m, g, Method::L2, None).unwrap(), ratio);
            (Target::Group(g.id.clone()), Action::Prune { ratio: g.ratio_of(kept.len()), kept })
        };
        inner().filter(|g| g.kept_at(ratio) < g.size).map(action).collect()
    };
    let fits = |actions: &[(Target, Action)]| {
        macs(&prune::shrink(&m.graph, groups, actions).unwrap()) as f64 <= budget * macs(&m.graph) as f64
    };
    (1..100).map(|percent| at(f64::from(percent) / 100.0)).find(|a| fits(a)).unwrap()
}

fn accuracy(m: &Model, test: &data::Dataset) -> f64 {
    let plan = Plan::of(m, &CompileOptions::default()).unwrap();
    let mut run = |x: &candle_core::Tensor| plan.run(x);
    let run = paring::eval::score_with(test, &m.info.preprocess, 200, &Cancel::default(), &mut run, &mut |_, _| {});
    run.unwrap().metrics.score * 100.0
}

#[test]
#[ignore = "minutes"]
fn resnet56_repaired() {
    let Some(dir) = data::real_dir() else { return println!("skipped: no real data") };
    let m = resnet56(&dir);
    let open = |f: &str| data::open(dir.join("cifar10").join(f).to_str().unwrap(), 0).unwrap();
    let (calib, test) = (open("calib_5000.bin"), open("test_batch.bin"));
    let groups = prune::groups(&m.graph);
    let number = |name: &str, default: f64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let test = test.take(number("REPAIR_TEST", 1e4) as usize);
    let budgets = std::env::var("REPAIR_BUDGETS").unwrap_or("0.6 0.5".into());
    for budget in budgets.split(' ').map(|b| b.parse::<f64>().unwrap()) {
        let actions = global_l2(&m, &groups, budget);
        let even = prune::apply(&m, &groups, &uniform_l2(&m, &groups, budget)).unwrap();
        println!(
            "macs {:.4}: cut uniformly {:.2}",
            macs(&even.graph) as f64 / macs(&m.graph) as f64,
            accuracy(&even, &test)
        );
        let pruned = prune::apply(&m, &groups, &actions).unwrap();
        let part = macs(&pruned.graph) as f64 / macs(&m.graph) as f64;
        let started = Instant::now();
        let mut say = |u: RepairUpdate| {
            if let RepairUpdate::Step(s) = u {
                println!("  {:<28} {:.5} -> {:.5} {} {:.1}s", s.name, s.loss_before, s.loss_after, s.kept, s.seconds);
            }
        };
        let base = RepairOptions::default();
        let options = RepairOptions {
            images: number("REPAIR_IMAGES", base.images as f64) as usize,
            check_images: number("REPAIR_CHECK", base.check_images as f64) as usize,
            positions: number("REPAIR_POSITIONS", base.positions as f64) as usize,
            lambda: number("REPAIR_LAMBDA", base.lambda),
            producers: number("REPAIR_PRODUCERS", 0.0) > 0.0,
            classifier: number("REPAIR_CLASSIFIER", 1.0) > 0.0,
            ..base
        };
        let fixed = compress(&m, &groups, &actions, &calib, &options, &Cancel::default(), &mut say).unwrap();
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "macs {part:.4}: pruned {:.2}, repaired {:.2} in {seconds:.1}s",
            accuracy(&pruned, &test),
            accuracy(&fixed, &test)
        );
    }
}
