//! Whole passes that are captured and replayed: that they are, that they compute the same bits, and what is said where they
//! cannot be.

use crate::device::{Ran, Run, libraries};
use candle_core::{Device, Tensor};
use paring::exec::{CompileOptions, Launch, Plan, Session, device};
use paring::graph::{Builder, Conv, Graph, Op, Precision, Precisions, op};
use paring::model::{LoadOptions, Model, load, random_params};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

const DEMOS: [&str; 2] = ["assets/demo_cnn.safetensors", "assets/demo_vit.safetensors"];

/// Runs that a profile is asked for; on a busy machine it makes more, for as long as its patience lasts.
const RUNS: u64 = 6;

/// A profile of a demo with its trace: how often each kind of work was carried out.
fn profile(model: &str, precision: &str, fault: &str) -> (Ran, Value, impl Fn(&str) -> u64) {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let (model, runs) = (here(model), RUNS.to_string());
    let args = ["profile", model.to_str().unwrap(), "--device", "cuda:0", "--batch", "2", "--runs", &runs];
    let args = [&args[..], &["--precision", precision, "--json"]].concat();
    let run = Run::new(&args).with("SIMDEVICE_KERNELS", "plain").with("SIMDEVICE_TRACE", trace.to_str().unwrap());
    let ran = run.with("SIMDEVICE_FAULT", fault).with("PARING_PATIENCE", "0.1").run().succeeded();
    let report = serde_json::from_slice(&ran.output.stdout).unwrap();
    let table = std::fs::read_to_string(&trace).unwrap();
    let count = move |work: &str| {
        let row = table.lines().find_map(|l| l.strip_prefix(work)?.split_whitespace().next()?.parse().ok());
        row.unwrap_or(0)
    };
    (ran, report, count)
}

#[test]
fn a_profile_replays_its_whole_runs() {
    for (model, precision) in [(DEMOS[0], "f32"), (DEMOS[0], "int8"), (DEMOS[1], "f16"), (DEMOS[1], "f32")] {
        let (ran, report, count) = profile(model, precision, "");
        let replays = count("cuGraphLaunch");
        // Tried twice, then once a run.
        let runs = report["runs"].as_u64().unwrap();
        assert_eq!(report["whole"]["replayed"], true, "{model}, {precision}: {}", ran.said());
        assert!(runs >= 5 && replays >= runs + 2, "{model}, {precision}: {replays} replays in {runs} runs");
        assert!(!ran.said().contains("kernel by kernel"), "{}", ran.said());
        let (_, eager, count) = profile(model, precision, "capture@7");
        assert_eq!((&eager["whole"]["replayed"], count("cuGraphLaunch")), (&Value::Null, 0), "{model}, {precision}");
        // The modelled clock: a launch from the host takes longer than most kernels of a small network.
        let [at_once, one_by_one] = [report, eager].map(|r| r["whole"]["p50"].as_f64().unwrap());
        assert!(at_once < 0.9 * one_by_one, "{model}, {precision}: {at_once} ms replayed, {one_by_one} launched");
    }
}

#[test]
fn a_capture_that_fails_is_told_and_the_run_goes_on() {
    // At the first call that is recorded, somewhere between, and far in.
    for at in [1, 30, 80] {
        let (ran, report, _) = profile(DEMOS[0], "f32", &format!("capture@{at}"));
        let said = ran.said();
        let named = said.contains("launched kernel by kernel") && said.contains("it cannot be captured: node `");
        // Of the driver's own calls, or what a library makes of them.
        let why = ["CUDA_ERROR_STREAM_CAPTURE_", "CUBLAS_STATUS_EXECUTION_FAILED"].iter().any(|w| said.contains(w));
        assert!(named && why, "{at}: {said}");
        assert!(report["whole"]["p50"].as_f64().unwrap() > 0.0);
    }
    let human = Run::new(&["profile", here(DEMOS[0]).to_str().unwrap(), "--device", "cuda:0", "--runs", "5"])
        .with("SIMDEVICE_KERNELS", "plain")
        .with("PARING_PATIENCE", "0.1")
        .run()
        .succeeded();
    assert!(human.said().contains("observers off, replayed from a CUDA graph"), "{}", human.said());
}

/// A run of the ignored test below, on the device.
fn alone(case: &str, settings: &[(&str, &str)]) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["graphs::a_case_alone", "--exact", "--nocapture", "--ignored"])
        .env("LD_LIBRARY_PATH", libraries())
        .env("SIMDEVICE_LOG", dir.path().join("log"))
        .env("GRAPH_CASE", case)
        .envs(settings.iter().copied());
    let ran = command.output().unwrap();
    let misuse = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
    let said = [ran.stdout, ran.stderr].concat();
    (ran.status.success() && misuse.is_empty(), format!("{}{misuse}", String::from_utf8_lossy(&said)))
}

#[test]
fn a_replay_computes_the_same_bits_in_any_order_that_streams_allow() {
    for (kernels, seed) in [("checked", "0"), ("checked", "3"), ("plain", "1")] {
        let (right, said) = alone("bits", &[("SIMDEVICE_KERNELS", kernels), ("SIMDEVICE_SEED", seed)]);
        assert!(right, "{kernels}, seed {seed}: {said}");
    }
}

#[test]
fn every_family_is_replayed() {
    let (right, said) = alone("families", &[("SIMDEVICE_KERNELS", "plain")]);
    assert!(right, "{said}");
}

#[test]
fn a_step_that_cannot_be_captured_is_named() {
    let (right, said) = alone("uncapturable", &[("SIMDEVICE_KERNELS", "checked")]);
    assert!(right, "{said}");
}

#[test]
fn a_device_that_is_lost_in_a_replay_is_told_like_any_other() {
    let (right, said) = alone("lost", &[("SIMDEVICE_KERNELS", "plain"), ("SIMDEVICE_FAULT", "lost@3000")]);
    assert!(right, "{said}");
}

#[test]
#[ignore = "run by the others, in a process of its own"]
fn a_case_alone() {
    let Ok(case) = std::env::var("GRAPH_CASE") else { return };
    let gpu = device::open("cuda:0").unwrap();
    let on = CompileOptions::on(&gpu);
    match case.as_str() {
        "bits" => bits(&on),
        "families" => families(&on),
        "uncapturable" => uncapturable(&on),
        "lost" => lost(&on),
        other => panic!("no case {other}"),
    }
}

fn demo(which: usize) -> Model {
    load(&here(DEMOS[which]), &LoadOptions::default()).unwrap()
}

/// A batch of numbers that no other seed gives.
fn batch(graph: &Graph, images: usize, seed: u32, device: &Device) -> Tensor {
    let shape = graph.input_shape().unwrap();
    let dims: Vec<usize> = [images].into_iter().chain(shape).collect();
    let n = dims.iter().product::<usize>() as u32;
    let value = |i: u32| ((i ^ seed << 9).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    Tensor::from_vec((0..n).map(value).collect::<Vec<_>>(), dims, device).unwrap()
}

fn bits_of(t: &Tensor) -> Vec<u32> {
    t.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// Both demos, in several precisions and batches: each replay gives what a run gives, also when results are read late and
/// batches of several shapes take turns.
fn bits(on: &CompileOptions) {
    for which in [0, 1] {
        for precision in [Precision::F32, Precision::F16, Precision::Int8] {
            let mut model = demo(which);
            for node in model.graph.clone().nodes.iter().filter(|n| n.op.is_conv_or_linear()) {
                model.precision.set(node.name.clone(), precision);
            }
            let plan = Plan::of(&model, on).unwrap();
            let (mut timed, mut plain) = (plan.session(), plan.session());
            let mut seen = Vec::new();
            for (seed, images) in [1, 2, 1, 2, 3, 1].into_iter().enumerate() {
                // Some of them on the host, as evaluation has them.
                let place = if seed % 3 == 2 { &Device::Cpu } else { &on.device };
                let x = batch(&model.graph, images, seed as u32, place);
                assert_eq!(timed.prepare_timed(&x).unwrap(), Launch::Replayed);
                let (out, took) = timed.run_timed(&x).unwrap();
                assert!(!took.is_zero());
                seen.push((out, bits_of(&plain.run(&x).unwrap())));
            }
            for (i, (out, wanted)) in seen.iter().enumerate() {
                assert_eq!(&bits_of(out), wanted, "{}, {precision:?}, batch {i}", model.info.name);
            }
            assert!(seen[0].1 != seen[2].1, "other images, other logits");
            // From now on as it would be anywhere else.
            timed.launch_eagerly("the test says so");
            let x = batch(&model.graph, 1, 0, &on.device);
            assert_eq!(timed.prepare_timed(&x).unwrap(), Launch::Eager("the test says so".into()));
            assert_eq!(bits_of(&timed.run_timed(&x).unwrap().0), seen[0].1);
        }
    }
    on_another_thread(on);
}

/// A session that goes to another thread does not replay what the first one captured: what it reads may be gone.
fn on_another_thread(on: &CompileOptions) {
    let model = demo(0);
    let x = batch(&model.graph, 1, 7, &on.device);
    let plan = Plan::of(&model, on).unwrap();
    let wanted = bits_of(&plan.run(&x).unwrap());
    let there = |mut session: Session| {
        let x = x.clone();
        let run = std::thread::spawn(move || {
            assert_eq!(session.prepare_timed(&x).unwrap(), Launch::Replayed);
            let out = session.run_timed(&x).unwrap().0;
            (session, out)
        });
        run.join().unwrap()
    };
    let (session, first) = there(plan.session());
    let (mut session, second) = there(session);
    let third = session.run_timed(&x).unwrap().0;
    for out in [first, second, third] {
        assert_eq!(bits_of(&out), wanted);
    }
}

/// Small networks of every family: their lowering makes no copy of the host's memory that a capture would keep.
fn families(on: &CompileOptions) {
    let folder = here("tests/conformance");
    let expected: Value = serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    for (name, f) in expected["fixtures"].as_object().unwrap() {
        let side = |of: &Value| of.as_u64().map(|v| v as usize);
        let options =
            LoadOptions { arch: None, image: side(&f["options"]["image"]), heads: side(&f["options"]["heads"]) };
        let file = folder.join("fixtures").join(name).join(f["file"].as_str().unwrap());
        let model = load(&file, &options).unwrap();
        let x = batch(&model.graph, 2, 1, &on.device);
        let mut session = Plan::of(&model, on).unwrap().session();
        assert_eq!(session.prepare_timed(&x).unwrap(), Launch::Replayed, "{name}");
        assert_eq!(bits_of(&session.run_timed(&x).unwrap().0), bits_of(&session.run(&x).unwrap()), "{name}");
    }
}

/// A graph whose second step brings more from the host, in every run, than the tensor library keeps on the device.
fn uncapturable(on: &CompileOptions) {
    let mut b = Builder::default();
    let x = b.input([3, 4, 4]);
    let x = b.conv("first", x, Conv::same(3, 8, 3, 1));
    let map = (0..2000u32).map(|j| (j % 250 < 8).then_some(j % 250)).collect();
    let x = b.node("wide", Op::ChannelPad(op::ChannelPad { stride: 1, in_ch: 8, map }), &[x]);
    let x = b.relu("last", x);
    let graph = b.finish(x).unwrap();
    let params = random_params(&graph, 5);
    let plan = Plan::compile(&graph, &params, &Precisions::default(), on).unwrap();
    let mut session = plan.session();
    let x = batch(&graph, 2, 0, &on.device);
    let wanted = bits_of(&session.run(&x).unwrap());
    // Asked twice: a capture that failed is not tried again, and the stream goes on.
    for _ in 0..2 {
        match session.prepare_timed(&x).unwrap() {
            Launch::Eager(why) => assert!(why.starts_with("it cannot be captured: node `wide`"), "{why}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(bits_of(&session.run_timed(&x).unwrap().0), wanted);
    }
    // Another plan on the same device is captured.
    let model = demo(0);
    let mut session = Plan::of(&model, on).unwrap().session();
    assert_eq!(session.prepare_timed(&batch(&model.graph, 1, 0, &on.device)).unwrap(), Launch::Replayed);
}

/// Replays until the device is lost, which it is at some launch.
fn lost(on: &CompileOptions) {
    let model = demo(0);
    let x = batch(&model.graph, 1, 0, &on.device);
    let mut session = Plan::of(&model, on).unwrap().session();
    assert_eq!(session.prepare_timed(&x).unwrap(), Launch::Replayed);
    let error = (0..3000).find_map(|_| session.run_timed(&x).err()).expect("the device is lost").to_string();
    assert!(error.contains("the GPU is lost to this process") && error.contains("CUDA_ERROR_UNKNOWN"), "{error}");
    assert!(session.run(&x).is_err());
}
