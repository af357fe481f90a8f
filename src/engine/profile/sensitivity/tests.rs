//! Sensitivities against direct evaluation, and what the cache must give back.

use super::bench::{fitting, images_for, temperature};
use super::*;
use crate::data::{Counted, TextOptions};
use crate::exec::{CompileOptions, Plan};
use crate::model::families::{CifarResnetSpec, DecoderSpec, FamilySpec, LlamaDims, VitDims, VitSpec};
use crate::model::random;
use crate::profile::ProfileError;
use crate::prune::{self, Action, Target, groups};
use crate::task::Classify;
use candle_core::Tensor;

fn resnet() -> Model {
    random(&FamilySpec::CifarResnet(CifarResnetSpec { blocks: 2, widths: [4, 8, 12], classes: 10, image: 32 }), 3)
}

fn vit() -> Model {
    let dims = VitDims { image: 32, patch: 8, dim: 16, depth: 2, heads: 4, mlp: 24, classes: 10 };
    random(&FamilySpec::Vit(VitSpec::timm(dims)), 5)
}

fn calib(n: usize) -> Dataset {
    crate::data::open("synthetic:calib", n).expect("synthetic set")
}

fn options() -> SensOptions {
    SensOptions { images: 12, batch: 8, ratios: vec![0.25, 0.5], refit: false, ..SensOptions::default() }
}

fn scan(model: &Model, o: &SensOptions, dir: Option<&Path>) -> (Sensitivity, usize) {
    let groups = groups(&model.graph);
    let mut curves = 0;
    let s = sensitivity(model, &groups, &calib(12), o, dir, &Cancel::default(), &mut |u| {
        curves += usize::from(matches!(u, SensUpdate::Curve(_)));
    });
    (s.expect("scan"), curves)
}

/// The same variant run from the image on.
fn direct(model: &Model, variant: &Model) -> (f64, f64) {
    let set = calib(12);
    let (x, y) = set.batch(0..12, &model.info.preprocess).expect("batch");
    let run = |m: &Model| Plan::of(m, &CompileOptions::default()).expect("plan").run(&x).expect("run");
    let (base, new) = (run(model), run(variant));
    let loss = |l: &Tensor| crate::eval::cross_entropy(l, y.classes()).expect("loss");
    let t = temperature(set.task(), &[&base]).expect("temperature");
    let soft = |l: &Tensor| (l / t).expect("division");
    (crate::eval::kl(&soft(&base), &soft(&new)).expect("kl"), loss(&new) - loss(&base))
}

#[test]
fn cached_activations_give_what_a_direct_run_gives() {
    for model in [resnet(), vit()] {
        let groups = groups(&model.graph);
        let (s, n) = scan(&model, &options(), None);
        assert_eq!(s.curves.len(), n);
        let mut kinds = [0; 3];
        for c in &s.curves {
            assert_eq!(c.images, 12);
            for p in &c.points {
                let variant = match &c.target {
                    SensTarget::Group(id) => {
                        kinds[0] += 1;
                        let g = groups.iter().find(|g| &g.id == id).expect("group");
                        let scores = prune::importance(&model, g, Method::L2, None).expect("scores");
                        let kept = prune::resolve(g, &scores, p.ratio);
                        let action = (Target::Group(id.clone()), Action::Prune { ratio: p.ratio, kept });
                        prune::apply(&model, &groups, &[action]).expect("applies")
                    }
                    SensTarget::Layer(l, precision) => {
                        kinds[1] += 1;
                        let mut m = model.clone();
                        m.precision.set(l.clone(), *precision);
                        m
                    }
                    SensTarget::Block(b) => {
                        kinds[2] += 1;
                        let action = (Target::Block(b.clone()), Action::RemoveBlock);
                        prune::apply(&model, &groups, &[action]).expect("applies")
                    }
                };
                let (kl, d_loss) = direct(&model, &variant);
                // The image is run in one batch there, in two here: the order of sums may differ.
                assert!((p.kl - kl).abs() < 1e-4 * (1.0 + kl), "{:?} {p:?} {kl}", c.target);
                assert!((p.d_loss - d_loss).abs() < 1e-3, "{:?} {p:?} {d_loss}", c.target);
            }
        }
        assert!(kinds.iter().all(|k| *k > 0), "{} misses a kind: {kinds:?}", model.info.name);
    }
}

#[test]
fn a_refit_lowers_the_harm_of_most_cuts() {
    for model in [resnet(), vit()] {
        let only = SensOptions { precisions: vec![], blocks: false, ..options() };
        let (plain, _) = scan(&model, &only, None);
        let (mended, _) = scan(&model, &SensOptions { refit: true, ..only }, None);
        let (mut better, mut all) = (0, 0);
        for (a, b) in plain.curves.iter().zip(&mended.curves) {
            assert_eq!(a.target, b.target);
            for (p, q) in a.points.iter().zip(&b.points) {
                all += 1;
                better += usize::from(q.kl <= p.kl + 1e-9);
            }
        }
        assert!(better * 10 >= all * 8, "{}: {better} of {all}", model.info.name);
        let sum = |s: &Sensitivity| s.curves.iter().flat_map(|c| &c.points).map(|p| p.kl).sum::<f64>();
        assert!(sum(&mended) < 0.9 * sum(&plain), "{} {}", sum(&mended), sum(&plain));
    }
}

#[test]
fn a_cancelled_scan_resumes_from_its_cache_and_repeats_exactly() {
    let model = resnet();
    let groups = groups(&model.graph);
    let dir = tempfile::tempdir().expect("folder");
    let cancel = Cancel::default();
    let mut seen = 0;
    let stopped = sensitivity(&model, &groups, &calib(12), &options(), Some(dir.path()), &cancel, &mut |u| {
        seen += usize::from(matches!(u, SensUpdate::Curve(_)));
        if seen == 4 {
            cancel.cancel();
        }
    });
    assert!(stopped.is_err_and(|e| matches!(e, ProfileError::Cancelled(_))));
    let kept = || {
        let files = std::fs::read_dir(dir.path()).expect("dir").flatten();
        files.filter(|f| f.file_name().to_string_lossy().starts_with("sense-")).count()
    };
    assert_eq!(kept(), 4);
    let (whole, n) = scan(&model, &options(), Some(dir.path()));
    assert_eq!(kept(), n);
    // All from the cache, and equal to a scan without one.
    assert!(scan(&model, &options(), Some(dir.path())).0 == whole, "the cache changed something");
    assert!(scan(&model, &options(), None).0 == whole, "a fresh scan differs");
}

#[test]
fn a_sure_network_is_softened_and_an_unsure_one_is_not() {
    let logits = |v: Vec<f32>| Tensor::from_vec(v, (2, 3), &Device::Cpu).expect("tensor");
    assert_eq!(temperature(&Classify, &[&logits(vec![10.0, 0.0, -3.0, 1.0, 15.0, 1.0])]).expect("t"), 6.0);
    assert_eq!(temperature(&Classify, &[&logits(vec![1.0, 0.0, -3.0, 1.0, 1.5, 1.0])]).expect("t"), 1.0);
}

#[test]
fn the_number_of_images_follows_the_work() {
    let cases = [(3.0, 32), (20.0, 64), (40.0, 128), (200.0, 128), (256.0, 256), (5000.0, 4096)];
    for (fit, want) in cases {
        assert_eq!(fitting(fit, 32), want, "{fit}");
    }
    let (model, o) = (resnet(), options());
    let targets = targets(&model, &groups(&model.graph), &o);
    let n = |work: f64| {
        images_for((&model, 1), &targets, &SensOptions { work, images: 4096, ..o.clone() }, 32).expect("counts")
    };
    assert!(n(1e6) == 32 && n(1e12) > n(1e10), "{} {}", n(1e10), n(1e12));
}

/// Images that a re-fit was fitted on flatter it: with few of them the fit goes through its noise.
#[test]
fn a_refit_is_scored_on_images_that_it_was_not_fitted_on() {
    let model = vit();
    let groups = groups(&model.graph);
    let only = SensOptions { images: 40, precisions: vec![], blocks: false, refit: true, ..options() };
    let targets = targets(&model, &groups, &only);
    let images = calib(80);
    let cancel = Cancel::default();
    let bench = Bench::new(&model, &groups, &images, &only, &targets, &cancel).expect("bench");
    assert!(!bench.shared && bench.images == 40);
    let rows = |all: Vec<&Tensor>| -> Vec<Vec<f32>> {
        all.iter().flat_map(|x| x.flatten_from(1).expect("flat").to_vec2::<f32>().expect("values")).collect()
    };
    let scored = rows(bench.batches.iter().map(|b| &b.x).collect());
    let fitted = rows(bench.fit.iter().map(|(x, _)| x).collect());
    assert_eq!((scored.len(), fitted.len()), (40, 40));
    assert!(scored.iter().all(|s| !fitted.contains(s)), "an image is in both parts");
    let mut said = Vec::new();
    sensitivity(&model, &groups, &calib(12), &only, None, &Cancel::default(), &mut |u| {
        if let SensUpdate::Note(n) = u {
            said.push(n);
        }
    })
    .expect("scan");
    assert!(said.iter().any(|n| n.contains("12 images to calibrate on: too few")), "{said:?}");
}

#[test]
fn no_images_is_an_error() {
    let model = resnet();
    let empty = calib(12).take(0);
    let r = sensitivity(&model, &[], &empty, &options(), None, &Cancel::default(), &mut |_| {});
    if empty.is_empty() {
        assert!(matches!(r, Err(ProfileError::NoImages)));
    }
}

/// What is concluded of a format is near what a scan of it finds, and nothing is said of rows that are no whole blocks.
#[test]
fn harms_of_formats_are_concluded_from_the_one_that_is_scanned() {
    let dims = VitDims { image: 32, patch: 8, dim: 64, depth: 2, heads: 4, mlp: 80, classes: 10 };
    let model = random(&FamilySpec::Vit(VitSpec::timm(dims)), 5);
    let wanted = [Block::Q8_0, Block::Q5_1, Block::IQ4_NL, Block::Q4_K];
    let only = SensOptions { precisions: vec![], blocks: false, ratios: vec![], ..options() };
    let (concluded, _) = scan(&model, &SensOptions { formats: wanted.to_vec(), ..only.clone() }, None);
    let kl = |s: &Sensitivity, layer: &str, block: Block| {
        let target = SensTarget::Layer(layer.to_owned(), Precision::Block(block));
        let found: Vec<f64> = s.curves.iter().filter(|c| c.target == target).map(|c| c.points[0].kl).collect();
        assert!(found.len() <= 1, "{target:?} comes twice");
        found.first().copied()
    };
    let mut off = Vec::new();
    for block in wanted {
        let precisions = [Precision::Block(block)];
        // Rows of 64 are no blocks of 256, and rows of 80 none of 32.
        let layers = model.graph.live().filter(|(_, n)| n.op.is_conv_or_linear());
        let fits = |n: &crate::graph::Node| precisions[0].unfit(&n.op).is_none();
        let (fitting, others): (Vec<_>, Vec<_>) = layers.map(|(_, n)| n).partition(|n| fits(n));
        assert!(others.iter().all(|n| kl(&concluded, &n.name, block).is_none()), "{block:?}");
        assert_eq!(fitting.is_empty(), block == Block::Q4_K);
        let mut alone = model.clone();
        for layer in fitting.iter().filter(|n| n.name.contains("blocks")) {
            alone.precision = model.precision.clone();
            alone.precision.set(layer.name.clone(), precisions[0]);
            let (direct, _) = direct(&model, &alone);
            let said = kl(&concluded, &layer.name, block).expect("concluded");
            off.push((said / direct).ln());
        }
    }
    let most = off.iter().fold(0f64, |m, o| m.max(o.abs()));
    let mean = off.iter().sum::<f64>() / off.len() as f64;
    assert!(off.len() >= 12 && most < 1.6 && mean.abs() < 0.35, "{most} {mean} of {}", off.len());
}

/// Two layers over windows of 64 tokens.
fn decoder(folder: &Path) -> (Model, Dataset) {
    let dims = LlamaDims { vocab: 96, dim: 32, layers: 2, heads: 4, kv_heads: 2, head_dim: 8, hidden: 64 };
    let mut model = random(&FamilySpec::Llama(DecoderSpec::llama(dims)), 7);
    model.graph = Arc::new(crate::graph::Graph::clone(&model.graph).bound(64));
    let ids = folder.join("ids.u16");
    let some = (0..900u64).map(|i| (((i * i * 31 + i * 7) % 96) as u16).to_le_bytes());
    std::fs::write(&ids, some.collect::<Vec<_>>().concat()).expect("file");
    let options = TextOptions { window: 64, counted: Counted::Next, limit: 0 };
    (model, crate::data::text(&ids.to_string_lossy(), None, &options).expect("windows"))
}

/// One token in four, of the windows that are scored.
#[test]
fn a_language_models_curves_are_of_one_token_in_four() {
    let folder = tempfile::tempdir().expect("folder");
    let (model, text) = decoder(folder.path());
    let groups = groups(&model.graph);
    let only = SensOptions { images: 4, batch: 1, refit: false, ratios: vec![0.5], ..SensOptions::default() };
    let found = sensitivity(&model, &groups, &text, &only, None, &Cancel::default(), &mut |_| {}).expect("scan");
    let (x, _) = text.take(8).batch([0, 2, 4, 6], &model.info.preprocess).expect("batch");
    let run = |m: &Model| {
        let plan = Plan::of(m, &CompileOptions { as_stored: true, ..Default::default() }).expect("plan");
        crate::exec::rows(&plan.run(&x).expect("run"), 4).expect("rows")
    };
    let base = run(&model);
    assert_eq!(base.dims(), [4, 16, 96]);
    let mut seen = 0;
    for c in &found.curves {
        let SensTarget::Layer(layer, precision) = &c.target else { continue };
        let mut changed = model.clone();
        changed.precision.set(layer.clone(), *precision);
        let kl = text.task().divergence(&base, &run(&changed), 1.0).expect("divergence");
        assert!((c.points[0].kl - kl).abs() < 1e-6 + 1e-4 * kl, "{layer} {precision:?}: {} {kl}", c.points[0].kl);
        seen += usize::from(kl > 0.0);
    }
    assert!(seen >= 15, "{seen} layers");
    // A model with layers of int8 of its own is asked whole: what they round to depends on the rows that come along.
    let mut narrow = model.clone();
    narrow.precision = crate::quant::everywhere(&model.graph, Precision::Int8);
    let cancel = Cancel::default();
    let bench = Bench::new(&narrow, &groups, &text, &only, &[], &cancel).expect("bench");
    assert_eq!(bench.batches[0].logits.dims(), [1, 64, 96]);
    // What the head and its neighbours take is counted for as many rows as are computed.
    let targets = targets(&model, &[], &only);
    let work =
        |every| images_for((&model, every), &targets, &SensOptions { work: 4e8, images: 512, ..only.clone() }, 1);
    assert!(work(4).expect("images") > work(1).expect("images"));
}
