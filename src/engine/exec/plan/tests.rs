//! Compiled plans against the definitions (`candle::forward`), over every family with odd sizes.

mod tensors;
mod tokens;

use super::*;
use crate::exec::candle::{self, Capture, Mode, Pass};
use crate::exec::{ExecError, Observer};
use crate::graph::{Op, Precision};
use crate::model::families::*;
use crate::model::{FamilySpec, random};
use crate::quant::everywhere;
use candle_core::Tensor;
use std::time::Duration;

fn dims(image: usize, patch: usize, dim: usize, heads: usize, mlp: usize) -> VitDims {
    VitDims { image, patch, dim, depth: 2, heads, mlp, classes: 7 }
}

/// One small model of every family, with sizes that are no multiple of any vector width.
fn models() -> Vec<(&'static str, Model)> {
    let specs = [
        ("cifar", FamilySpec::CifarResnet(CifarResnetSpec { blocks: 2, widths: [5, 9, 18], classes: 7, image: 13 })),
        (
            "basic",
            FamilySpec::Resnet(ResnetSpec {
                block: ResnetBlock::Basic,
                stages: ResnetStage::usual(&[1, 2, 1, 1], &[6, 17, 20, 33], &[6, 17, 20, 33]),
                stem: 6,
                groups: 1,
                classes: 7,
                image: 37,
                ..ResnetSpec::depth(18, 5).unwrap()
            }),
        ),
        (
            "bottleneck",
            FamilySpec::Resnet(ResnetSpec {
                block: ResnetBlock::Bottleneck,
                stages: ResnetStage::usual(&[1, 1, 1, 1], &[4, 8, 12, 16], &[16, 22, 34, 50]),
                stem: 10,
                groups: 2,
                classes: 7,
                image: 40,
                ..ResnetSpec::depth(18, 5).unwrap()
            }),
        ),
        ("torch", FamilySpec::TorchVit(VitSpec::torch(dims(12, 4, 18, 3, 23)))),
        ("hf", FamilySpec::Vit(VitSpec { eps: 1e-6, ..VitSpec::hugging_face_deit(dims(15, 5, 20, 2, 37)) })),
        ("timm", FamilySpec::Vit(VitSpec { qkv_bias: false, ..VitSpec::timm_mean(dims(16, 4, 36, 4, 50)) })),
    ];
    specs.into_iter().map(|(n, s)| (n, random(&s, 5))).collect()
}

fn input(model: &Model, n: usize) -> Tensor {
    use rand::{Rng, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(n as u64);
    let mut shape = vec![n];
    shape.extend(model.graph.input_shape().unwrap());
    let data: Vec<f32> = (0..shape.iter().product()).map(|_| rng.random_range(-2.0..2.0)).collect();
    Tensor::from_vec(data, shape, &Device::Cpu).unwrap()
}

fn flat(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_vec1().unwrap()
}

/// Largest difference relative to the largest magnitude.
fn apart(a: &Tensor, b: &Tensor) -> f32 {
    assert_eq!(a.dims(), b.dims());
    let (a, b) = (flat(a), flat(b));
    let top = b.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
    a.iter().zip(&b).fold(0f32, |m, (x, y)| m.max((x - y).abs())) / top
}

fn truth(model: &Model, x: &Tensor, capture: &mut Capture) -> Tensor {
    let params = candle::tensors(&model.params, &Device::Cpu).unwrap();
    candle::forward(&model.graph, &params, x, Mode::Eval, capture).unwrap()
}

fn options(threads: usize) -> CompileOptions {
    CompileOptions { threads: Some(threads), ..Default::default() }
}

/// What an observer was told.
#[derive(Default)]
struct Seen {
    /// Every step and the bytes that it wrote.
    steps: Vec<(usize, u64)>,
    total: Duration,
}

impl Observer for Seen {
    fn step(&mut self, index: usize, elapsed: Duration, out_bytes: u64) {
        self.steps.push((index, out_bytes));
        self.total += elapsed;
    }
}

#[test]
fn f32_plans_agree_with_the_reference_for_every_family_batch_and_thread_count() {
    for (name, model) in models() {
        for (n, threads) in [(1, 1), (1, 3), (2, 3), (5, 2), (9, 1)] {
            let plan = Plan::of(&model, &options(threads)).unwrap();
            let x = input(&model, n);
            let d = apart(&plan.run(&x).unwrap(), &truth(&model, &x, &mut Capture::none()));
            assert!(d < 2e-5, "{name}, batch {n}, {threads} threads: {d}");
        }
    }
}

/// Holds plans of `options` against the definitions: as they are, and every node where all are kept.
fn every_node_agrees(options: &CompileOptions) {
    for (name, model) in models() {
        let x = input(&model, 3);
        let mut want = Capture::all();
        let logits = truth(&model, &x, &mut want);
        assert!(apart(&Plan::of(&model, options).unwrap().run(&x).unwrap(), &logits) < 2e-5, "{name}");
        let all: Vec<&str> = model.graph.nodes.iter().map(|n| n.name.as_str()).collect();
        let plan = Plan::of(&model, &options.clone().keeping(all.iter().copied())).unwrap();
        let (out, got) = plan.session().capture(&x, &all).unwrap();
        assert!(apart(&out, &logits) < 2e-5, "{name}");
        for n in all {
            let d = apart(&got[n], &want.values[n]);
            assert!(d < 5e-5, "{name} `{n}`: {d}");
        }
    }
}

#[test]
fn every_node_can_be_kept_and_captured() {
    every_node_agrees(&options(2));
}

#[test]
fn fused_nodes_are_not_captured_silently() {
    let (_, model) = models().swap_remove(0);
    let plan = Plan::of(&model, &options(1)).unwrap();
    let e = plan.session().capture(&input(&model, 1), &["conv1"]).unwrap_err().to_string();
    assert!(e.contains("`conv1`") && e.contains("keep"), "{e}");
}

#[test]
fn results_do_not_depend_on_batch_or_threads() {
    for (name, model) in models() {
        for precision in [Precisions::default(), everywhere(&model.graph, Precision::Int8)] {
            let x = input(&model, 6);
            let compile = |t| Plan::compile(&model.graph, &model.params, &precision, &options(t)).unwrap();
            let whole = flat(&compile(1).run(&x).unwrap());
            let parts: Vec<f32> =
                (0..6).flat_map(|i| flat(&compile(3).run(&x.narrow(0, i, 1).unwrap()).unwrap())).collect();
            assert_eq!(whole, parts, "{name}");
        }
    }
}

#[test]
fn a_cut_run_is_the_whole_run_in_two_halves_at_every_node() {
    for (name, model) in models() {
        let plan = Plan::of(&model, &options(2)).unwrap();
        let mut session = plan.session();
        let kept = Plan::of(&model, &options(2).keeping(model.graph.nodes.iter().map(|n| n.name.clone()))).unwrap();
        let x = input(&model, 3);
        let whole = flat(&plan.run(&x).unwrap());
        let mut last = None;
        for node in &model.graph.nodes {
            let cut = plan.cut_before(&node.name).unwrap();
            let live = session.run_to(&x, &cut).unwrap();
            assert_eq!(flat(&session.run_from(&live).unwrap()), whole, "{name} `{}`", node.name);
            // From one cut to the next as from the start.
            let on = match &last {
                Some(before) => session.run_on(before, &cut).unwrap(),
                None => live.clone(),
            };
            assert_eq!(on.bytes(), live.bytes());
            assert_eq!(flat(&session.run_from(&on).unwrap()), whole, "{name} `{}`", node.name);
            last = Some(on);
            // Another plan fuses differently, so it may need values this one never had: an error, not a wrong answer.
            match kept.session().run_from(&live) {
                Ok(out) => assert!(apart(&out, &plan.run(&x).unwrap()) < 2e-5),
                Err(e) => assert!(e.to_string().contains("cached"), "{e}"),
            }
        }
        assert!(plan.cut_before("no such node").is_none());
    }
}

#[test]
fn a_cut_serves_a_plan_with_other_weights_after_it() {
    let (_, model) = models().swap_remove(0);
    let mut other = model.clone();
    let target = "layer2.0.conv2";
    let name = format!("{target}.weight");
    let p = other.params.get(&name).unwrap();
    let scaled = p.values().iter().map(|v| v * 1.5).collect();
    let p = crate::model::Param::owned(p.shape().to_vec(), scaled).unwrap();
    other.params.insert(name, p);
    let (a, b) = (Plan::of(&model, &options(1)).unwrap(), Plan::of(&other, &options(1)).unwrap());
    let x = input(&model, 4);
    let live = a.session().run_to(&x, &a.cut_before(target).unwrap()).unwrap();
    assert_eq!(flat(&b.session().run_from(&live).unwrap()), flat(&b.run(&x).unwrap()));
    assert_ne!(flat(&a.run(&x).unwrap()), flat(&b.run(&x).unwrap()));
    assert!(live.bytes() > 0 && live.images() == 4);
}

#[test]
fn int8_is_near_f32_and_holds_a_quarter_of_the_bytes() {
    for (name, model) in models() {
        let x = input(&model, 3);
        let f = Plan::of(&model, &options(1)).unwrap();
        let int8 = everywhere(&model.graph, Precision::Int8);
        let q = Plan::compile(&model.graph, &model.params, &int8, &options(2)).unwrap();
        let d = apart(&q.run(&x).unwrap(), &f.run(&x).unwrap());
        assert!(d > 0.0 && d < 0.15, "{name}: {d}");
        for (a, b) in f.steps().iter().zip(q.steps()) {
            assert_eq!(a.name, b.name);
            if b.precision == Precision::Int8 {
                assert!(b.kernel.contains("u8i8") && a.kernel.contains("f32"), "{} {}", a.kernel, b.kernel);
                assert!(b.weight_bytes < a.weight_bytes);
            }
        }
        assert!(q.weight_bytes() < f.weight_bytes());
    }
}

#[test]
fn simulated_plans_round_as_a_differentiable_pass_does() {
    for (name, model) in models() {
        let x = input(&model, 3);
        let params = candle::tensors(&model.params, &Device::Cpu).unwrap();
        for precision in [Precision::W8, Precision::W4, Precision::W4g32, Precision::F16] {
            let rounded = everywhere(&model.graph, precision);
            let plan = Plan::compile(&model.graph, &model.params, &rounded, &options(1)).unwrap();
            let pass = Pass { precision: Some(&rounded), ..Pass::default() };
            let want = candle::forward(&model.graph, &params, &x, pass, &mut Capture::none()).unwrap();
            let d = apart(&plan.run(&x).unwrap(), &want);
            assert!(d < 2e-5, "{name} {precision:?}: {d}");
        }
    }
}

#[test]
fn sessions_of_one_plan_run_at_the_same_time() {
    for (name, model) in models() {
        for kernels in [Kernels::Device, Kernels::Tensors] {
            let plan = Plan::of(&model, &CompileOptions { kernels, ..options(2) }).unwrap();
            // One image goes through all threads together, five in chunks.
            let batches: Vec<Tensor> = [1, 5, 2, 5, 1].map(|n| input(&model, n)).into();
            let all = || {
                let mut session = plan.session();
                batches.iter().map(|x| flat(&session.run(x).unwrap())).collect::<Vec<_>>()
            };
            let alone = all();
            std::thread::scope(|s| {
                for running in [s.spawn(all), s.spawn(all)] {
                    assert_eq!(running.join().unwrap(), alone, "{name} {kernels:?}");
                }
            });
        }
    }
}

#[test]
fn observers_see_every_step_once_in_order() {
    let (_, model) = models().swap_remove(3);
    let plan = Plan::of(&model, &options(2)).unwrap();
    let x = input(&model, 5);
    let mut seen = Seen::default();
    let out = plan.session().run_observed(&x, &mut seen).unwrap();
    assert_eq!(flat(&out), flat(&plan.run(&x).unwrap()));
    assert!(seen.steps.iter().map(|s| s.0).eq(0..plan.steps().len()));
    assert_eq!(seen.steps.last().unwrap().1, 5 * 7 * 4);
    assert!(seen.total > Duration::ZERO);
}

#[test]
fn batch_norm_residual_and_activation_fuse() {
    let (_, model) = models().swap_remove(0);
    let plan = Plan::of(&model, &options(1)).unwrap();
    let block = plan.steps().iter().find(|s| s.name == "layer1.0.conv2").unwrap();
    assert_eq!(block.fused.len(), 3, "batch norm, add, relu: {:?}", block.fused);
}

#[test]
fn bad_parameters_and_precisions_are_named() {
    let (_, model) = models().swap_remove(0);
    let x = input(&model, 1);
    let plan = Plan::of(&model, &options(1)).unwrap();
    assert!(matches!(plan.run(&x.narrow(2, 0, 12).unwrap()), Err(ExecError::Input { .. })));

    let mut nan = model.clone();
    let shape = nan.params.get("conv1.weight").unwrap().shape().to_vec();
    let n = shape.iter().product();
    nan.params.insert("conv1.weight", crate::model::Param::owned(shape, vec![f32::NAN; n]).unwrap());
    let e = Plan::of(&nan, &options(1)).unwrap_err().to_string();
    assert!(e.contains("`conv1`") && e.contains("NaN"), "{e}");

    nan.params.insert("conv1.weight", crate::model::Param::owned(vec![1], vec![1.0]).unwrap());
    assert!(Plan::of(&nan, &options(1)).unwrap_err().to_string().contains("[1]"));
    nan.params.remove("conv1.weight");
    assert!(Plan::of(&nan, &options(1)).is_err());

    let p = Precisions::from_iter([("bn1", Precision::Int8)]);
    assert!(matches!(Plan::compile(&model.graph, &model.params, &p, &options(1)), Err(ExecError::Unsupported { .. })));
    let p = Precisions::from_iter([("nowhere", Precision::F32)]);
    assert!(matches!(Plan::compile(&model.graph, &model.params, &p, &options(1)), Err(ExecError::UnknownNode { .. })));
}

/// The model of `spec` with constant parameters: what it computes does not matter, and large ones are made quickly.
fn constant(spec: &FamilySpec) -> (Graph, ParamStore) {
    let graph = spec.build().unwrap();
    let mut params = ParamStore::default();
    for node in &graph.nodes {
        for (p, (_, shape)) in node.params.iter().zip(crate::graph::param_shapes(&node.op)) {
            let n = shape.iter().product();
            params.insert(p.name.clone(), crate::model::Param::owned(shape, vec![0.5; n]).unwrap());
        }
    }
    (graph, params)
}

#[test]
fn buffers_hold_little_more_than_what_is_alive_at_once() {
    let vit = |dims| FamilySpec::Vit(VitSpec::timm(dims));
    let published = [
        ("resnet20", FamilySpec::CifarResnet(CifarResnetSpec::depth(20, 10))),
        ("resnet18", FamilySpec::Resnet(ResnetSpec::depth(18, 1000).unwrap())),
        ("resnet50", FamilySpec::Resnet(ResnetSpec::depth(50, 1000).unwrap())),
        ("vit_b16", vit(VitDims::base16())),
    ];
    let published = published.into_iter().map(|(name, spec)| (name, constant(&spec)));
    let small = models().into_iter().map(|(name, m)| (name, ((*m.graph).clone(), m.params)));
    let mut seen = Vec::new();
    for (name, (graph, params)) in published.chain(small) {
        let plan = Plan::compile(&graph, &params, &Precisions::default(), &options(1)).unwrap();
        let memory = plan.memory();
        let a = memory.activations.expect("planned on a CPU");
        assert_eq!(memory.weights, plan.weight_bytes(), "{name}");
        // At least the image and what the first step makes of it.
        let bytes = |shape: &[usize]| 4 * shape.iter().product::<usize>() as u64;
        let least = bytes(&graph.input_shape().unwrap()) + bytes(&plan.steps()[0].out_shape);
        assert!(a.arena >= a.largest_live && a.largest_live >= least, "{name}: {a:?}");
        seen.push((name, a.arena as f64 / a.largest_live as f64));
    }
    eprintln!("{seen:?}");
    assert!(seen.iter().all(|(_, r)| *r <= 1.2), "arena over largest live set: {seen:?}");
}
