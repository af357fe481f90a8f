//! Pruning and repair on the real CIFAR ResNet-56: slow, so ignored by default; run with
//! `cargo test --release --test repair_real -- --ignored --nocapture`.

mod common;

use paring::data;
use paring::exec::{Cancel, reference};
use paring::graph::{MacConvention, Macs};
use paring::model::families::{CifarResnetSpec, FamilySpec};
use paring::model::{self, Model, Param};
use paring::prune::{self, Action, Group, GroupKind, Method, Target};
use paring::recover::{RepairOptions, RepairUpdate, compress};
use std::time::Instant;

fn resnet56(dir: &std::path::Path) -> Model {
    let mut m = model::random(&FamilySpec::CifarResnet(CifarResnetSpec::depth(56, 10)), 0);
    let bytes = std::fs::read_dir(dir.join("resnet56")).unwrap().flatten().map(|e| e.path());
    let file = bytes.filter(|p| p.extension().is_some_and(|e| e == "safetensors")).next().unwrap();
    let bytes = std::fs::read(file).unwrap();
    let st = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for (name, t) in st.tensors() {
        if t.dtype() != safetensors::Dtype::F32 {
            continue;
        }
        let v: Vec<f32> = t.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert!(m.params.contains(&name), "{name}");
        m.params.insert(name, Param::owned(t.shape().to_vec(), v).unwrap());
    }
    m
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

fn accuracy(m: &Model, test: &data::Dataset) -> f64 {
    let params = reference::tensors(&m.params, &candle_core::Device::Cpu).unwrap();
    let run = paring::eval::score_with(
        test,
        &m.info.preprocess,
        200,
        &Cancel::default(),
        |x| reference::forward(&m.graph, &params, x, reference::Mode::Eval, &mut reference::Capture::none()),
        &mut |_, _| {},
    );
    run.unwrap().metrics.top1 * 100.0
}

#[test]
#[ignore = "minutes"]
fn resnet56_repaired() {
    let Some(dir) = data::real_dir() else { return println!("skipped: no real data") };
    let m = resnet56(&dir);
    let open = |f: &str| data::open(dir.join("cifar10").join(f).to_str().unwrap(), 0).unwrap();
    let (calib, test) = (open("calib_5000.bin"), open("test_batch.bin"));
    let groups = prune::groups(&m.graph);
    for budget in [0.6, 0.5] {
        let actions = global_l2(&m, &groups, budget);
        let pruned = prune::apply(&m, &groups, &actions).unwrap();
        let part = macs(&pruned.graph) as f64 / macs(&m.graph) as f64;
        let started = Instant::now();
        let mut say = |u: RepairUpdate| {
            if let RepairUpdate::Step(s) = u {
                println!("  {:<28} {:.4} -> {:.4} {} {:.1}s", s.name, s.loss_before, s.loss_after, s.kept, s.seconds);
            }
        };
        let options = RepairOptions::default();
        let fixed = compress(&m, &groups, &actions, &calib, &options, &Cancel::default(), &mut say).unwrap();
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "macs {part:.4}: pruned {:.2}, repaired {:.2} in {seconds:.1}s",
            accuracy(&pruned, &test),
            accuracy(&fixed, &test)
        );
    }
}
