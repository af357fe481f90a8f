//! Whole-model latency of compiled plans, f32 against int8 everywhere, in one run so that the ratio is comparable.
//!
//! `cargo bench --bench forward [-- FILTER]`. Real checkpoints are used when present, else random weights of the same
//! sizes (speed does not depend on values). The table alternates the two precisions run by run and prints medians.
//!
//! Limits on one core with two 512-bit FMA ports at `f` GHz: f32 `32·f` GMAC/s, int8 (VNNI) `128·f` GMAC/s. A CIFAR
//! ResNet's 3x3 convolutions have 70 to 290 FLOP a byte of activations, so they are bound by arithmetic in f32; at
//! int8 the quantization pass (two reads and one write an input element) becomes a comparable cost for 16 channels.

#[path = "forward/serve.rs"]
mod serve;

use candle_core::{Device, Tensor};
use paring::exec::{CompileOptions, ExecError, Observer, Plan, Session};
use paring::graph::{MacConvention, Precision, macs};
use paring::model::families::{CifarResnetSpec, ResnetSpec, VitDims, VitSpec};
use paring::model::{FamilySpec, Model, random};
use paring::quant;
use std::time::{Duration, Instant};

fn spec(name: &str) -> Option<(FamilySpec, usize)> {
    let vit = VitDims { image: 32, patch: 4, dim: 128, depth: 6, heads: 8, mlp: 256, classes: 10 };
    Some(match name {
        "resnet20" => (FamilySpec::CifarResnet(CifarResnetSpec::depth(20, 10)), 128),
        "resnet56" => (FamilySpec::CifarResnet(CifarResnetSpec::depth(56, 10)), 128),
        "vit_cifar10" => (FamilySpec::TorchVit(VitSpec::torch(vit)), 128),
        "resnet50" => (FamilySpec::Resnet(ResnetSpec::depth(50, 1000)?), 8),
        "vit_b16" => {
            let spec = VitSpec::timm(VitDims::base16());
            (FamilySpec::Vit(spec), 8)
        }
        _ => return None,
    })
}

const MODELS: [&str; 5] = ["resnet20", "resnet56", "vit_cifar10", "resnet50", "vit_b16"];

struct Case {
    f32: Session,
    int8: Session,
    x: Tensor,
    gmac: f64,
}

/// In f32, or with every convolution and linear in int8.
fn session(model: &Model, int8: bool) -> Result<Session, ExecError> {
    let precision = quant::everywhere(&model.graph, if int8 { Precision::Int8 } else { Precision::F32 });
    Ok(Plan::compile(&model.graph, &model.params, &precision, &CompileOptions::default())?.session())
}

fn case(name: &str, batch: Option<usize>) -> Option<Case> {
    let (spec, usual) = spec(name)?;
    let model: Model = random(&spec, 1);
    let batch = batch.unwrap_or(usual);
    let mut shape = vec![batch];
    shape.extend(model.graph.input_shape().ok()?);
    let x = Tensor::randn(0f32, 1.0, shape, &Device::Cpu).ok()?;
    let per_image: u64 = macs(&model.graph).ok()?.iter().map(|m| m.get(MacConvention::Attention)).sum();
    Some(Case {
        f32: session(&model, false).ok()?,
        int8: session(&model, true).ok()?,
        x,
        gmac: per_image as f64 * batch as f64 / 1e9,
    })
}

/// One run: wall milliseconds, and processor milliseconds per thread, which other programs' load disturbs less.
fn once(session: &mut Session, x: &Tensor) -> [f64; 2] {
    let (cpu, wall) = (cpu_ms(), Instant::now());
    divan::black_box(session.run(x)).ok();
    [wall.elapsed().as_secs_f64() * 1e3, (cpu_ms() - cpu) / session.plan().threads() as f64]
}

/// Processor time of this process so far.
fn cpu_ms() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 * 1e3 + t.tv_nsec as f64 / 1e6
}

fn median(v: &mut [f64]) -> f64 {
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints one line a model: medians of alternating runs, f32 / int8 ratios, arithmetic rates and stored bytes.
fn table(filter: &str) {
    println!("                      wall, ms                   processor, ms a thread");
    println!("model        batch      f32     int8  ratio      f32     int8  ratio  GFLOP/s    GOP/s  bytes  logits");
    for name in MODELS.iter().filter(|n| n.contains(filter)) {
        for batch in [None, Some(1)] {
            let Some(mut c) = case(name, batch) else { continue };
            once(&mut c.f32, &c.x);
            once(&mut c.int8, &c.x);
            let mut samples: [Vec<f64>; 4] = Default::default();
            let start = Instant::now();
            while samples[0].len() < 5 || (samples[0].len() < 100 && start.elapsed().as_secs_f64() < 2.0) {
                for (i, session) in [&mut c.f32, &mut c.int8].into_iter().enumerate() {
                    let [wall, cpu] = once(session, &c.x);
                    samples[i].push(wall);
                    samples[2 + i].push(cpu);
                }
            }
            let [a, b, p, q] = samples.map(|mut v| median(&mut v));
            let rate = |ms: f64| 2.0 * c.gmac / ms * 1e3;
            let bytes = c.int8.plan().weight_bytes() as f64 / c.f32.plan().weight_bytes() as f64;
            let n = c.x.dims()[0];
            print!("{name:<12} {n:>5} {a:>8.2} {b:>8.2} {:>6.2} {p:>8.2} {q:>8.2} {:>6.2}", a / b, p / q);
            println!(" {:>8.0} {:>8.0} {bytes:>6.3} {:>6.2}%", rate(p), rate(q), 100.0 * difference(&mut c));
            if std::env::args().any(|a| a == "--steps") {
                steps(&mut c);
            }
        }
    }
}

/// Root mean square of int8 logits minus f32 logits, as a share of the f32 logits' deviation from their mean.
fn difference(c: &mut Case) -> f64 {
    let x = &c.x;
    let logits = |s: &mut Session| -> Option<Vec<f32>> { s.run(x).ok()?.flatten_all().ok()?.to_vec1().ok() };
    let (Some(a), Some(b)) = (logits(&mut c.f32), logits(&mut c.int8)) else { return f64::NAN };
    let mean = a.iter().map(|&v| v as f64).sum::<f64>() / a.len() as f64;
    let rms = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>().sqrt();
    rms(&mut a.iter().zip(&b).map(|(&a, &b)| (a - b) as f64)) / rms(&mut a.iter().map(|&a| a as f64 - mean))
}

/// What observing every step adds to whole-model latency: ResNet-20, one image, observed and plain runs in turn.
fn observers() {
    struct Nobody;
    impl Observer for Nobody {
        fn step(&mut self, _: usize, elapsed: Duration, _: u64) {
            divan::black_box(elapsed);
        }
    }
    let Some(mut c) = case("resnet20", Some(1)) else { return };
    let (mut plain, mut observed) = (vec![], vec![]);
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < 4.0 {
        plain.push(once(&mut c.f32, &c.x)[0]);
        let t = Instant::now();
        divan::black_box(c.f32.run_observed(&c.x, &mut Nobody)).ok();
        observed.push(t.elapsed().as_secs_f64() * 1e3);
    }
    let (p, o) = (median(&mut plain), median(&mut observed));
    println!("observers: resnet20, batch 1: {p:.4} ms plain, {o:.4} ms observed, {:+.2} %", (o / p - 1.0) * 100.0);
}

/// Prints the observed time of every step, f32 and int8 side by side, the slowest first.
fn steps(c: &mut Case) {
    struct Sum(Vec<f64>);
    impl Observer for Sum {
        fn step(&mut self, index: usize, elapsed: Duration, _: u64) {
            self.0[index] += elapsed.as_secs_f64() * 1e3 / 10.0;
        }
    }
    let x = &c.x;
    let measure = |session: &mut Session| {
        let mut sum = Sum(vec![0.0; session.plan().steps().len()]);
        (0..10).for_each(|_| drop(session.run_observed(x, &mut sum)));
        sum.0
    };
    let (a, b) = (measure(&mut c.f32), measure(&mut c.int8));
    let mut order: Vec<usize> = (0..a.len()).collect();
    order.sort_by(|i, j| a[*j].total_cmp(&a[*i]));
    for i in order.into_iter().take(64) {
        let (f, q) = (&c.f32.plan().steps()[i], &c.int8.plan().steps()[i]);
        println!("    {:<28} {:<16} {:>8.3} {:>8.3}  {} | {}", f.name, f.kind, a[i], b[i], f.kernel, q.kernel);
    }
}

#[divan::bench(args = MODELS, sample_count = 10)]
fn f32(bencher: divan::Bencher<'_, '_>, name: &str) {
    if let Some(mut c) = case(name, None) {
        bencher.bench_local(|| c.f32.run(&c.x));
    }
}

#[divan::bench(args = MODELS, sample_count = 10)]
fn int8(bencher: divan::Bencher<'_, '_>, name: &str) {
    if let Some(mut c) = case(name, None) {
        bencher.bench_local(|| c.int8.run(&c.x));
    }
}

fn main() {
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    if std::env::args().any(|a| a == "--serve") {
        serve::serve();
    } else if std::env::args().any(|a| a == "--table") {
        table(&filter);
        observers();
    } else {
        divan::main();
        table(&filter);
        observers();
    }
}
