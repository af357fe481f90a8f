//! Repair on small models with a known right answer (a redundant unit is pruned, and the re-fit must move its share to the
//! twin that stays) and on trained ones, where it must win accuracy back.

use candle_core::{Device, Tensor};
use paring::data::{self, Dataset};
use paring::eval::evaluate;
use paring::exec::{Cancel, CompileOptions, Plan, candle};
use paring::graph::{Op, ParamRole};
use paring::model::families::{CifarResnetSpec, FamilySpec, VitDims, VitSpec};
use paring::model::{self, Model, Param};
use paring::prune::{self, Action, Group, GroupKind, MemberRole, Method, Target};
use paring::recover::{RepairError, RepairOptions, RepairStep, RepairUpdate, Stage, Stages, compress};
use paring::train::demo::{self, DemoModel};

fn logits(m: &Model, x: &Tensor) -> Vec<Vec<f32>> {
    let params = candle::tensors(&m.params, &Device::Cpu).unwrap();
    let out = candle::forward(&m.graph, &params, x, candle::Mode::Eval, &mut candle::Capture::none());
    out.unwrap().to_vec2().unwrap()
}

/// Noise images in the CIFAR record format, labelled with what `m` says of them.
fn labelled_by(m: &Model, n: usize, dir: &std::path::Path) -> Dataset {
    let mut state = 88172645463325252u64;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    let write = |labels: &[u8], pixels: &[Vec<u8>], name: &str| {
        let bytes: Vec<u8> = labels.iter().zip(pixels).flat_map(|(l, p)| [&[*l], p.as_slice()].concat()).collect();
        let file = dir.join(name);
        std::fs::write(&file, bytes).unwrap();
        data::open(file.to_str().unwrap(), 0).unwrap()
    };
    let pixels: Vec<Vec<u8>> = (0..n).map(|_| (0..3072).map(|_| byte()).collect()).collect();
    let blank = write(&vec![0; n], &pixels, "blank.bin");
    let (x, _) = blank.batch(0..n, &m.info.preprocess).unwrap();
    let best = |r: &Vec<f32>| (0..r.len()).max_by(|&a, &b| r[a].total_cmp(&r[b])).unwrap() as u8;
    let labels: Vec<u8> = logits(m, &x).iter().map(best).collect();
    write(&labels, &pixels, "labelled.bin")
}

/// Makes unit 1 of `group` a copy of unit 0, in everything that computes or carries it.
fn twin(m: &mut Model, group: &Group) {
    for member in group.members.iter().filter(|m| m.role != MemberRole::Consumer) {
        let node = m.graph.node(m.graph.by_name(&member.node).unwrap()).clone();
        for p in node.params.iter().filter(|p| member.roles.contains(&p.role)) {
            assert_eq!(member.axis, 0);
            let t = m.params.get(&p.name).unwrap();
            let (shape, mut v) = (t.shape().to_vec(), t.values().into_owned());
            let width: usize = shape[1..].iter().product();
            for (from, to) in member.indices(0).zip(member.indices(1)).collect::<Vec<_>>() {
                let row = v[from * width..(from + 1) * width].to_vec();
                v[to * width..(to + 1) * width].copy_from_slice(&row);
            }
            m.params.insert(p.name.clone(), Param::owned(shape, v).unwrap());
        }
    }
}

fn models() -> Vec<(&'static str, Model)> {
    let dims = VitDims { image: 32, patch: 8, dim: 16, depth: 2, heads: 4, mlp: 24, classes: 10 };
    let timm = VitSpec::timm(dims.clone());
    [
        ("resnet", FamilySpec::CifarResnet(CifarResnetSpec { blocks: 1, widths: [4, 8, 8], classes: 10, image: 32 })),
        ("torch", FamilySpec::TorchVit(VitSpec::torch(dims))),
        ("timm", FamilySpec::Vit(timm)),
    ]
    .map(|(name, spec)| (name, sharp(model::random(&spec, 4))))
    .into()
}

/// Large logits, so that the model is sure of its own labels and any damage raises the loss.
fn sharp(mut m: Model) -> Model {
    let last = m.graph.node(m.graph.output).clone();
    for p in &last.params {
        let t = m.params.get(&p.name).unwrap();
        let (shape, v) = (t.shape().to_vec(), t.values().iter().map(|w| w * 30.0).collect());
        m.params.insert(p.name.clone(), Param::owned(shape, v).unwrap());
    }
    m
}

fn options() -> RepairOptions {
    RepairOptions {
        images: 96,
        check_images: 24,
        positions: 32,
        lambda: 1e-7,
        classifier: false,
        stages: Stages::default().without(Stage::BatchNorm),
        ..Default::default()
    }
}

fn run(m: &Model, groups: &[Group], actions: &[(Target, Action)], calib: &Dataset) -> (Model, Vec<RepairStep>) {
    let mut steps = Vec::new();
    let mut say = |u| {
        if let RepairUpdate::Step(s) = u {
            steps.push(s);
        }
    };
    let out = compress(m, groups, actions, calib, &options(), &Cancel::default(), &mut say).unwrap();
    (out, steps)
}

fn without_unit_one(g: &Group) -> (Target, Action) {
    let kept: Vec<u32> = (0..g.size as u32).filter(|u| *u != 1).collect();
    (Target::Group(g.id.clone()), Action::Prune { ratio: g.ratio_of(kept.len()), kept })
}

#[test]
fn a_pruned_twin_is_made_up_for_exactly() {
    let dir = tempfile::tempdir().unwrap();
    for (name, mut m) in models() {
        let groups = prune::groups(&m.graph);
        let open: Vec<&Group> =
            (groups.iter()).filter(|g| g.protected.is_none() && g.kind != GroupKind::Residual).collect();
        assert!(open.len() >= 3, "{name}");
        open.iter().for_each(|g| twin(&mut m, g));
        let calib = labelled_by(&m, 120, dir.path());
        let actions: Vec<_> = open.iter().map(|g| without_unit_one(g)).collect();
        let pruned = prune::apply(&m, &groups, &actions).unwrap();
        let (fixed, steps) = run(&m, &groups, &actions, &calib);
        assert_eq!(steps.len(), open.len(), "{name}: {steps:?}");
        assert!(steps.iter().any(|s| s.kept), "{name}: {steps:?}");
        let (x, _) = calib.batch(0..16, &m.info.preprocess).unwrap();
        let gap = |a: &Model| {
            let pairs = logits(&m, &x).concat().into_iter().zip(logits(a, &x).concat()).collect::<Vec<_>>();
            pairs.iter().map(|(p, q)| (p - q).abs()).fold(0f32, f32::max)
        };
        let (before, after) = (gap(&pruned), gap(&fixed));
        assert!(before > 0.05 && after < before * 0.02, "{name}: {before} -> {after}, {steps:?}");
        assert!(steps.iter().all(|s| s.kept == (s.loss_after < s.loss_before)), "{steps:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_originals_stay() {
    let dir = tempfile::tempdir().unwrap();
    let m = models().swap_remove(0).1;
    let before = m.params.hash();
    let groups = prune::groups(&m.graph);
    let calib = labelled_by(&m, 60, dir.path());
    let actions: Vec<_> = groups.iter().filter(|g| g.protected.is_none()).map(without_unit_one).collect();
    let (a, _) = run(&m, &groups, &actions, &calib);
    let (b, _) = run(&m, &groups, &actions, &calib);
    assert_eq!((a.params.hash(), &a.info.hash), (b.params.hash(), &a.params.hash()));
    // Nor does the number of threads matter, so that a recipe need not name it.
    let threads = paring::exec::threads();
    for n in [1, 2, 5] {
        paring::exec::set_threads(n);
        assert_eq!(run(&m, &groups, &actions, &calib).0.params.hash(), a.params.hash(), "{n} threads");
    }
    paring::exec::set_threads(threads);
    assert_eq!(m.params.hash(), before);
}

/// Without this share of every inner group's units, the least first by L2.
fn cut(m: &Model, groups: &[Group], ratio: f64) -> Vec<(Target, Action)> {
    let inner = groups.iter().filter(|g| g.protected.is_none() && g.kind != GroupKind::Residual);
    let action = |g: &Group| {
        let scores = prune::importance(m, g, Method::L2, None).unwrap();
        let kept = prune::resolve(g, &scores, ratio);
        (Target::Group(g.id.clone()), Action::Prune { ratio: g.ratio_of(kept.len()), kept })
    };
    inner.map(action).collect()
}

/// Percent of the demo's images that `m` gets right.
fn top1(m: &Model, images: &Dataset) -> f64 {
    let plan = Plan::of(m, &CompileOptions::default()).unwrap();
    let run = evaluate(&plan, images, &m.info.preprocess, 100, &Cancel::default(), &mut |_, _| {}).unwrap();
    run.metrics.score * 100.0
}

/// Trained networks, images that no repair has seen, and accuracy: what a repair is for.
#[test]
fn repair_wins_back_accuracy_on_images_it_has_not_seen() {
    let (calib, images) = (data::open("synthetic:calib", 600).unwrap(), data::open("synthetic:eval", 1000).unwrap());
    for kind in [DemoModel::Vit, DemoModel::Cnn] {
        let m = demo::load(kind).unwrap();
        let groups = prune::groups(&m.graph);
        let actions = cut(&m, &groups, 0.5);
        let options = RepairOptions { images: 480, check_images: 120, ..Default::default() };
        let mut steps = Vec::new();
        let mut say = |u| {
            if let RepairUpdate::Step(s) = u {
                steps.push(s);
            }
        };
        let fixed = compress(&m, &groups, &actions, &calib, &options, &Cancel::default(), &mut say).unwrap();
        let pruned = prune::apply(&m, &groups, &actions).unwrap();
        let [whole, cut, mended] = [&m, &pruned, &fixed].map(|m| top1(m, &images));
        println!("{}: {whole:.1} %, cut {cut:.1} %, repaired {mended:.1} %", kind.name());
        assert!(whole - cut > 8.0, "{}: there is something to repair: {whole} -> {cut}", kind.name());
        assert!(mended - cut > 0.5 * (whole - cut), "{}: {whole} -> {cut}, repaired {mended}", kind.name());
        assert!(steps.iter().filter(|s| s.kept).count() > steps.len() / 2, "{steps:?}");
    }
}

#[test]
fn batch_norm_statistics_of_the_cut_network_are_taken_where_they_help_and_not_where_they_hurt() {
    let calib = data::open("synthetic:calib", 400).unwrap();
    let m = demo::load(DemoModel::Cnn).unwrap();
    let groups = prune::groups(&m.graph);
    let actions = cut(&m, &groups, 0.375);
    let o = RepairOptions {
        stages: Stages::default().without(Stage::Refit),
        images: 300,
        check_images: 80,
        ..Default::default()
    };
    let repair = |m: &Model| {
        let mut steps = Vec::new();
        let mut say = |u| {
            if let RepairUpdate::Step(s) = u {
                steps.push(s);
            }
        };
        let out = compress(m, &groups, &actions, &calib, &o, &Cancel::default(), &mut say).unwrap();
        let [step] = steps.as_slice() else { panic!("{steps:?}") };
        (out, step.clone())
    };
    let pruned = prune::apply(&m, &groups, &actions).unwrap();
    let (out, step) = repair(&m);
    assert!(step.kept && step.loss_after < 0.9 * step.loss_before, "{step:?}");
    assert_ne!(out.params.hash(), pruned.params.hash());
    let images = data::open("synthetic:eval", 1000).unwrap();
    let (cut, mended) = (top1(&pruned, &images), top1(&out, &images));
    assert!(mended > cut, "{cut} -> {mended}");

    // A network whose answers rest on statistics that its images do not have: taking theirs would make it another one.
    let mut odd = m.clone();
    let norms = m.graph.nodes.iter().filter(|n| matches!(n.op, Op::BatchNorm2d(_)));
    for var in norms.filter_map(|n| n.param(ParamRole::Var)) {
        let values: Vec<f32> = m.params.get(var).unwrap().values().iter().map(|v| v * 9.0).collect();
        odd.params.insert(var, Param::owned(vec![values.len()], values).unwrap());
    }
    let (out, step) = repair(&odd);
    assert!(!step.kept && step.loss_after > step.loss_before, "{step:?}");
    assert_eq!(out.params.hash(), prune::apply(&odd, &groups, &actions).unwrap().params.hash());
}

#[test]
fn cancelling_and_empty_actions() {
    let dir = tempfile::tempdir().unwrap();
    let m = models().swap_remove(0).1;
    let calib = labelled_by(&m, 40, dir.path());
    let groups = prune::groups(&m.graph);
    let action = without_unit_one(groups.iter().find(|g| g.protected.is_none()).unwrap());
    let cancel = Cancel::default();
    cancel.cancel();
    let e = compress(&m, &groups, &[action], &calib, &options(), &cancel, &mut |_| {}).unwrap_err();
    assert!(matches!(e, RepairError::Cancelled(_)), "{e}");
    let (same, steps) = run(&m, &groups, &[], &calib);
    assert!(steps.is_empty() && same.params.hash() == m.params.hash());
}
