//! Plans of tensor operations, which a GPU runs, on the CPU: against the CPU's plans and the definitions.

use super::*;
use crate::exec::Capabilities;
use crate::exec::device::isa;
use crate::graph::{Builder, Conv, Range};
use crate::model::random_params;

fn tensors() -> CompileOptions {
    CompileOptions { kernels: Kernels::Tensors, ..options(2) }
}

#[test]
fn every_node_of_every_family_is_what_the_reference_says() {
    every_node_agrees(&tensors());
}

#[test]
fn steps_and_what_fuses_into_them_are_those_of_the_cpu() {
    for (name, model) in models() {
        let (cpu, gpu) = (Plan::of(&model, &options(1)).unwrap(), Plan::of(&model, &tensors()).unwrap());
        // Channels-last images are tokens already on the CPU; the other layout has to be turned.
        let turned = |n: &str| matches!(model.graph.node(model.graph.by_name(n).unwrap()).op, Op::ToTokens);
        let of = |plan: &Plan| -> Vec<(String, Vec<String>, u64)> {
            let steps = plan.steps().iter().filter(|s| !turned(&s.name));
            let fused = |s: &crate::exec::StepInfo| s.fused.iter().filter(|f| !turned(f)).cloned().collect();
            steps.map(|s| (s.name.clone(), fused(s), s.weight_bytes)).collect()
        };
        assert_eq!(of(&cpu), of(&gpu), "{name}");
        let norms = gpu.steps().iter().filter(|s| s.kind == "batchnorm").count();
        assert_eq!(norms, 0, "{name}: every batch norm follows a convolution here");
    }
}

#[test]
fn cuts_give_back_the_whole() {
    for (name, model) in models() {
        let plan = Plan::of(&model, &tensors()).unwrap();
        let mut session = plan.session();
        let x = input(&model, 2);
        let whole = flat(&plan.run(&x).unwrap());
        for node in &model.graph.nodes {
            let live = session.run_to(&x, &plan.cut_before(&node.name).unwrap()).unwrap();
            assert!(live.bytes() > 0);
            assert_eq!(flat(&session.run_from(&live).unwrap()), whole, "{name} `{}`", node.name);
        }
        let on_cpu = Plan::of(&model, &options(1)).unwrap();
        let live = on_cpu.session().run_to(&x, &on_cpu.cut_before(&model.graph.nodes[1].name).unwrap()).unwrap();
        assert!(session.run_from(&live).unwrap_err().to_string().contains("on the CPU"));
    }
}

#[test]
fn half_precision_is_near_and_held_and_kept_in_half() {
    for (name, model) in models() {
        let x = input(&model, 3);
        let full = Plan::of(&model, &tensors()).unwrap();
        let want = full.run(&x).unwrap();
        for (precision, label, near) in [(Precision::F16, "f16", 1e-2), (Precision::Bf16, "bf16", 1e-1)] {
            let plan = everywhere(&model.graph, precision);
            let half = Plan::compile(&model.graph, &model.params, &plan, &tensors()).unwrap();
            let d = apart(&half.run(&x).unwrap(), &want);
            assert!(d > 1e-6 && d < near, "{name} {label}: {d}");
            assert!(half.memory().weights < full.memory().weights * 3 / 4, "{name}: weights are held in half");
            let dense: Vec<_> = half.steps().iter().filter(|s| s.precision == precision).collect();
            assert!(dense.iter().all(|s| s.kernel.contains(&format!("-{label}/"))), "{name}: {dense:?}");
        }
    }
    // In a residual network everything from the first convolution to the pool may stay in half.
    let (_, model) = models().swap_remove(1);
    let plan = everywhere(&model.graph, Precision::F16);
    let half = Plan::compile(&model.graph, &model.params, &plan, &tensors()).unwrap();
    let casts: Vec<&str> = half.steps().iter().filter(|s| s.kernel.contains("(f32")).map(|s| s.name.as_str()).collect();
    assert_eq!(casts.len(), 3, "the image in, the last block out to the pool, the classifier: {casts:?}");
    assert!(half.steps().iter().any(|s| s.kernel.starts_with("maxpool-f16")), "{:?}", half.steps());
}

/// A layer alone, so that no rounding before it moves a code.
fn layers() -> Vec<Graph> {
    let conv = |c: Conv, image: [usize; 3]| {
        let mut b = Builder::default();
        let x = b.input(image);
        let y = b.conv("layer", x, c);
        let y = b.batch_norm("bn", y, c.out_ch);
        let y = if c.in_ch == c.out_ch && c.stride == 1 { b.add("add", y, x) } else { y };
        let y = b.relu("relu", y);
        b.finish(y).unwrap()
    };
    let mut b = Builder::default();
    let x = b.input([37, 11, 1]);
    let x = b.node("tokens", Op::ToTokens, &[x]);
    let x = b.linear("layer", x, 37, 23, true);
    vec![
        conv(Conv::same(13, 13, 3, 1), [13, 9, 7]),
        conv(Conv::same(16, 24, 3, 2), [16, 9, 9]),
        conv(Conv::same(16, 24, 1, 1), [16, 9, 9]),
        conv(Conv { groups: 4, ..Conv::same(16, 24, 3, 1) }, [16, 9, 9]),
        conv(Conv { groups: 12, ..Conv::same(12, 12, 3, 1) }, [12, 9, 9]),
        b.finish(x).unwrap(),
    ]
}

/// The GPU's plan, and how far its answer to noise is from the CPU's.
fn beside_the_cpu(graph: &Graph, params: &ParamStore, precisions: &Precisions) -> (Plan, f32) {
    let compile = |o: &CompileOptions| Plan::compile(graph, params, precisions, o).unwrap();
    let (cpu, gpu) = (compile(&options(1)), compile(&tensors()));
    let dims: Vec<usize> = std::iter::once(3).chain(graph.input_shape().unwrap()).collect();
    let data = crate::exec::kernel::noise(dims.iter().product(), 7);
    let x = Tensor::from_vec(data, dims, &Device::Cpu).unwrap();
    let d = apart(&gpu.run(&x).unwrap(), &cpu.run(&x).unwrap());
    (gpu, d)
}

#[test]
fn int8_is_the_cpus_code_for_code() {
    for graph in layers() {
        let params = random_params(&graph, 3);
        for precision in [Precision::Int8, Precision::Int8Static] {
            let mut plan = Precisions::from_iter([("layer", precision)]);
            if precision == Precision::Int8Static {
                plan.inputs.insert("layer".into(), Range { lo: -1.3, hi: 1.7 });
            }
            let (gpu, d) = beside_the_cpu(&graph, &params, &plan);
            // Without dot products the CPU leaves out a bit of every activation code.
            let most = if isa().ends_with("vnni") || isa().ends_with("amx") { 1e-6 } else { 0.05 };
            assert!(d <= most, "{:?} {precision:?}: {d}", graph.nodes);
            let step = gpu.steps().iter().find(|s| s.name == "layer").unwrap();
            assert!(step.precision == precision && step.kernel.contains("-i8/"), "{step:?}");
            assert_eq!(step.kernel.contains("static"), precision == Precision::Int8Static);
        }
    }
}

/// The CPU rounds weights and activations and multiplies in f32, a GPU multiplies the codes: only sums are rounded otherwise.
#[test]
fn fp8_is_what_the_cpu_simulates() {
    for graph in layers() {
        let params = random_params(&graph, 3);
        let compile = |p: Precision, o: &CompileOptions| {
            Plan::compile(&graph, &params, &Precisions::from_iter([("layer", p)]), o).unwrap()
        };
        let (cpu, gpu) = (compile(Precision::Fp8, &options(2)), compile(Precision::Fp8, &tensors()));
        let dims: Vec<usize> = std::iter::once(3).chain(graph.input_shape().unwrap()).collect();
        let mut data = crate::exec::kernel::noise(dims.iter().product(), 7);
        // Images and rows of other sizes: each has its own scale.
        let each = data.len() / 3;
        data[..each].iter_mut().for_each(|v| *v *= 1e4);
        let x = Tensor::from_vec(data, dims, &Device::Cpu).unwrap();
        let full = compile(Precision::F32, &tensors()).run(&x).unwrap();
        let (cpu, got) = (cpu.run(&x).unwrap(), gpu.run(&x).unwrap());
        for image in 0..3 {
            let of = |t: &Tensor| t.narrow(0, image, 1).unwrap();
            let (d, rounding) = (apart(&of(&got), &of(&cpu)), apart(&of(&cpu), &of(&full)));
            assert!(d <= 2e-6, "{:?}: {d}", graph.nodes);
            assert!(rounding > 1e-3 && rounding < 0.1, "{:?}: {rounding}", graph.nodes);
        }
        let step = gpu.steps().iter().find(|s| s.name == "layer").unwrap();
        assert!(step.precision == Precision::Fp8 && step.kernel.contains("-fp8/"), "{step:?}");
        assert_eq!(step.held_bytes, step.weight_bytes, "{step:?}");
    }
}

/// Held packed and multiplied as they lie: the CPU's answer, which unpacks them first.
#[test]
fn packed_weights_are_the_cpus_and_stay_packed() {
    let four = [Precision::W4, Precision::W4g128, Precision::W4g64, Precision::W4g32];
    let all = [&[Precision::W8], &four[..]].concat();
    for graph in layers() {
        let params = random_params(&graph, 3);
        for &precision in &all {
            let plan = Precisions::from_iter([("layer", precision)]);
            let (gpu, d) = beside_the_cpu(&graph, &params, &plan);
            assert!(d <= 2e-6, "{:?} {precision:?}: {d}", graph.nodes);
            let step = gpu.steps().iter().find(|s| s.name == "layer").unwrap();
            let named = step.kernel.contains(&format!("-{}/", precision.label()));
            assert!(step.precision == precision && named, "{step:?}");
            assert_eq!(step.held_bytes, step.weight_bytes, "{step:?}");
        }
    }
    for (name, model) in models() {
        let x = input(&model, 2);
        for &precision in &all {
            let plan = everywhere(&model.graph, precision);
            let compile = |o: &CompileOptions| Plan::compile(&model.graph, &model.params, &plan, o).unwrap();
            let (cpu, gpu) = (compile(&options(1)), compile(&tensors()));
            let d = apart(&gpu.run(&x).unwrap(), &cpu.run(&x).unwrap());
            assert!(d <= 2e-5, "{name} {precision:?}: {d}");
            assert!(gpu.memory().weights < cpu.memory().weights / 2, "{name} {precision:?}");
        }
    }
}

#[test]
fn what_a_plan_does_not_keep_is_refused_by_name() {
    let (_, model) = models().swap_remove(0);
    let e =
        Plan::of(&model, &tensors()).unwrap().session().capture(&input(&model, 1), &["conv1"]).unwrap_err().to_string();
    assert!(e.contains("`conv1`") && e.contains("keep"), "{e}");
}

#[test]
fn what_a_device_can_do_is_what_its_plans_do() {
    for kernels in [Kernels::Device, Kernels::Tensors] {
        let options = CompileOptions { kernels, ..options(1) };
        let capable = Capabilities::of(&Device::Cpu, kernels);
        let timed = Precision::ALL.into_iter().filter(|p| match kernels {
            Kernels::Tensors => *p != Precision::Int8Static,
            Kernels::Device => [Precision::F32, Precision::Int8].contains(p),
        });
        assert!(timed.eq(capable.timed()), "{:?}", capable.timed());
        for (name, model) in models() {
            for precision in Precision::ALL.into_iter().filter(|p| *p != Precision::Int8Static) {
                let plan = everywhere(&model.graph, precision);
                let made = Plan::compile(&model.graph, &model.params, &plan, &options);
                assert_eq!(made.is_err(), capable.refuses(precision).is_some(), "{name} {precision:?} {kernels:?}");
            }
            for step in Plan::of(&model, &options).unwrap().steps() {
                let kernel = capable.has_kernel(&model.graph.node(step.node).op);
                // Products are a library's on every device but its own.
                let library = step.kernel.contains("candle") && !step.kernel.contains("gemm-");
                let core = step.kernel.starts_with("attention");
                assert_eq!(kernel, !library || core, "{name}: {step:?}");
            }
        }
    }
}

#[test]
fn every_step_is_timed_once() {
    let (_, model) = models().swap_remove(3);
    let plan = Plan::of(&model, &tensors()).unwrap();
    let mut seen = Seen::default();
    let start = std::time::Instant::now();
    plan.session().run_observed(&input(&model, 4), &mut seen).unwrap();
    assert!(seen.steps.iter().map(|s| s.0).eq(0..plan.steps().len()));
    assert!(seen.total > Duration::ZERO && seen.total <= start.elapsed());
}
