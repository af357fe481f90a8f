//! A session that runs a plan asks the system for no memory: after warm-up, forward passes take no minor page faults.
//!
//! One test in a binary of its own, because page faults are counted for the whole process.

#![cfg(target_os = "linux")]

use candle_core::{Device, Tensor};
use paring::exec::{CompileOptions, Plan, Session};
use paring::graph::Precision;
use paring::model::families::CifarResnetSpec;
use paring::model::{FamilySpec, Model, random};
use paring::quant;
use paring::train::demo;

/// Minor page faults of this process so far.
fn faults() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a valid place for the answer, and all of its bit patterns are valid.
    let (rc, usage) = unsafe { (libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()), usage.assume_init()) };
    assert_eq!(rc, 0, "getrusage");
    usage.ru_minflt
}

fn session(model: &Model, int8: bool) -> Session {
    let precision = quant::everywhere(&model.graph, if int8 { Precision::Int8 } else { Precision::F32 });
    // Two threads, so that both ways of sharing a batch are passed: a team over one image, chunks of many.
    let options = CompileOptions { threads: Some(2), ..CompileOptions::default() };
    Plan::compile(&model.graph, &model.params, &precision, &options).unwrap().session()
}

const BURSTS: usize = 5;
const PASSES: usize = 20;
/// All bursts together may take this many: beginnings of a thread's stack or of an allocator's bin that warm-up happened
/// not to reach. Each is paid once in a process; a buffer allocated anew in every pass shows as at least `PASSES` in every
/// burst.
const SLACK: i64 = PASSES as i64;

#[test]
fn forward_passes_take_no_page_faults_after_warm_up() {
    let before = faults();
    let fresh = vec![1u8; 64 << 20];
    assert!(std::hint::black_box(&fresh).len() as i64 > 0 && faults() > before, "the counter does not count");
    drop(fresh);

    let resnet20 = random(&FamilySpec::CifarResnet(CifarResnetSpec::depth(20, 10)), 3);
    let models = [
        ("demo cnn", demo::load(demo::DemoModel::Cnn).unwrap()),
        ("demo vit", demo::load(demo::DemoModel::Vit).unwrap()),
        ("resnet20", resnet20),
    ];
    let mut seen = Vec::new();
    for (name, model) in &models {
        for int8 in [false, true] {
            let mut session = session(model, int8);
            for batch in [1, 16] {
                let mut shape = vec![batch];
                shape.extend(model.graph.input_shape().unwrap());
                let x = Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap();
                // Chunks go to whichever thread is free: both need to have had every size.
                (0..20).for_each(|_| drop(session.run(&x).unwrap()));
                let bursts: Vec<i64> = (0..BURSTS)
                    .map(|_| {
                        let start = faults();
                        (0..PASSES).for_each(|_| drop(session.run(&x).unwrap()));
                        faults() - start
                    })
                    .collect();
                seen.push((format!("{name} {} batch {batch}", if int8 { "int8" } else { "f32" }), bursts));
            }
        }
    }
    eprintln!("{seen:?}");
    for (name, bursts) in &seen {
        assert!(bursts.contains(&0), "{name}: page faults in every burst of {PASSES} passes: {bursts:?}");
    }
    let total: i64 = seen.iter().flat_map(|(_, bursts)| bursts).sum();
    assert!(total <= SLACK, "{total} page faults in {BURSTS} bursts of {PASSES} passes each: {seen:?}");
}
