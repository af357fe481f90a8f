//! What this device can do at most: f32 and int8 matrix products and memory bandwidth, measured in about a second.
//!
//! Where the layers run through our own tiles the limit of arithmetic is what the units do on registers
//! ([`crate::exec::peak`]); elsewhere it is a large prepacked product through the same `rten-gemm` kernels as the layers. The
//! bandwidth is the triad `a = b + s·c` of McCalpin's STREAM, counting the write-allocate as it does (three arrays).

use super::{Ceilings, ProfileError, Result};
use crate::exec::{CompileOptions, ExecError, Observer, OutOfMemory, Plan, best, halving, timed_on};
use crate::graph::{Builder, Op, Precision, Precisions};
use crate::model::random_params;
use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;
use rten_gemm::{GemmExecutor, GemmInT, GemmInputA, GemmInputB, GemmOutT, GemmUninitOptions};
use rten_tensor::NdTensor;
use rten_tensor::prelude::*;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Measures the CPU's ceilings with `threads` threads.
pub fn ceilings(threads: usize) -> Result<Ceilings> {
    let pool = pool(threads)?;
    let bandwidth_gbs = pool.install(triad);
    Ok(match crate::exec::peak(threads) {
        Some(p) => Ceilings { f32_gflops: 2.0 * p.f32_gmacs, int8_gops: 2.0 * p.int8_gmacs, bandwidth_gbs },
        None => pool.install(|| Ceilings { f32_gflops: f32_gemm(), int8_gops: int8_gemm(), bandwidth_gbs }),
    })
}

/// GB/s that the device's memory gives: on a CPU to `threads` threads, on a GPU by its own clock; 0 where it has no memory to measure
/// it with.
///
/// # Errors
/// What the tensor library reports.
pub fn bandwidth(device: &Device, threads: usize) -> Result<f64> {
    if device.is_cpu() {
        return Ok(pool(threads)?.install(triad));
    }
    let sum = |n: usize| device_bandwidth(device, 16 * (n * LEAST_SIDE).pow(2));
    Ok(known(halving(MOST_SIDE / LEAST_SIDE, sum), "bandwidth")?.map_or(0.0, |(rate, _)| rate))
}

fn pool(threads: usize) -> Result<rayon::ThreadPool> {
    let made = rayon::ThreadPoolBuilder::new().num_threads(threads.max(1)).build();
    Ok(made.map_err(|e| candle_core::Error::Msg(format!("no threads: {e}")))?)
}

/// Measures the ceilings of a GPU: the tensor library's product of large f32 matrices, an int8 layer of the same size by our own
/// plan, and the bandwidth of a sum or a copy far beyond its caches. All by the device's clock, as layers are. Where memory runs out,
/// smaller matrices are taken; a ceiling for which the smallest are too large stays unknown (0), and the notes say so.
///
/// # Errors
/// What the tensor library and the plan report, but for memory that ran out.
pub fn device_ceilings(device: &Device) -> Result<(Ceilings, Vec<String>)> {
    let (most, short) = known(busy(device), "f32 products")?.unwrap_or((LEAST_SIDE, true));
    let mut notes = Vec::new();
    let mut fitting = |what: &str, f: &mut dyn FnMut(usize) -> Result<f64>| -> Result<f64> {
        let best = known(halving(most / LEAST_SIDE, |n| f(n * LEAST_SIDE)), what)?;
        match best {
            None => {
                notes.push(format!("the device has no memory to measure the ceiling of {what} with: it is not known"))
            }
            Some((_, n)) if short || n * LEAST_SIDE < most => notes.push(format!(
                "the ceiling of {what} was measured with less than usual, since memory ran out: it may lie elsewhere"
            )),
            Some(_) => {}
        }
        Ok(best.map_or(0.0, |(rate, _)| rate))
    };
    let f32_gflops = fitting("f32 products", &mut |side| {
        let (a, b) = squares(device, side)?;
        device_rate(device, work(side), || {
            black_box(a.matmul(&b)?);
            Ok(())
        })
    })?;
    // 256 MiB where the products are the largest: as little as that keeps a slower device as long.
    let bandwidth_gbs = fitting("bandwidth", &mut |side| device_bandwidth(device, 16 * side * side))?;
    let int8_gops = fitting("int8 products", &mut |side| Ok(work(side) / int8_layer(device, side)? / 1e9))?;
    Ok((Ceilings { f32_gflops, int8_gops, bandwidth_gbs }, notes))
}

/// Sides of square matrices: products of smaller ones are launching, and no ceiling.
const LEAST_SIDE: usize = 512;
const MOST_SIDE: usize = 4096;

/// Operations of a product of matrices with this side.
fn work(side: usize) -> f64 {
    2.0 * (side as f64).powi(3)
}

/// What was measured, or nothing where memory ran out. The layers that ceilings are measured with are in no model: no error names
/// them.
fn known<T>(measured: Result<T>, what: &str) -> Result<Option<T>> {
    match measured {
        Ok(v) => Ok(Some(v)),
        Err(e) if e.is_out_of_memory() => Ok(None),
        Err(ProfileError::Exec(ExecError::Candle { said, .. })) => {
            Err(ProfileError::Ceiling { what: what.to_owned(), why: Box::new(ExecError::Tensor(said).into()) })
        }
        Err(e) => Err(ProfileError::Ceiling { what: what.to_owned(), why: Box::new(e) }),
    }
}

/// The side of square f32 matrices whose product keeps a device busy: doubled from 512 until one takes 50 milliseconds of the
/// host's time (how long measuring takes is what this decides), memory runs out, or 4096 is reached.
///
/// # Errors
/// What the tensor library reports; memory that runs out only where there is none for the smallest.
pub fn busy_side(device: &Device) -> Result<usize> {
    Ok(busy(device)?.0)
}

/// That side, and whether memory ran out before the device was busy.
fn busy(device: &Device) -> Result<(usize, bool)> {
    let busy = |side: usize| -> Result<bool> {
        let (a, b) = squares(device, side)?;
        let mut took = Duration::MAX;
        // The first product of a size may choose an algorithm.
        for _ in 0..3 {
            let t = Instant::now();
            black_box(a.matmul(&b)?);
            device.synchronize()?;
            took = took.min(t.elapsed());
        }
        Ok(took >= Duration::from_millis(50))
    };
    let (mut side, mut enough) = (LEAST_SIDE, busy(LEAST_SIDE)?);
    while !enough && side < MOST_SIDE {
        match busy(2 * side) {
            Err(e) if e.is_out_of_memory() => return Ok((side, true)),
            other => (side, enough) = (2 * side, other?),
        }
    }
    Ok((side, false))
}

fn squares(device: &Device, side: usize) -> Result<(Tensor, Tensor)> {
    let ones = || Tensor::ones((side, side), DType::F32, device);
    Ok((ones()?, ones()?))
}

/// GB/s on a GPU with `bytes` in all, of `a + b` or of a copy by the driver, whichever moves more; several a synchronise where they are
/// small, since one of them takes longer. (On an H100 the tensor library's sum reached 1.86 TB/s, and kernels passed it.)
///
/// # Errors
/// What the tensor library reports.
pub fn device_bandwidth(device: &Device, bytes: usize) -> Result<f64> {
    let calls = ((256 << 20) / bytes.max(1)).clamp(2, 20);
    let n = (bytes / 12).max(1 << 10);
    let (a, b) = (Tensor::ones(n, DType::F32, device)?, Tensor::ones(n, DType::F32, device)?);
    let sum = device_rate(device, (calls * 12 * n) as f64, || {
        for _ in 0..calls {
            black_box((&a + &b)?);
        }
        Ok(())
    })?;
    let copy = device_rate(device, (calls * 8 * n) as f64, || {
        for _ in 0..calls {
            black_box(a.copy()?);
        }
        Ok(())
    })?;
    Ok(sum.max(copy))
}

/// Best rate of `work` a call by the device's clock, in units of 1e9 a second; the device is waited for after every call. The first
/// call only warms up.
fn device_rate(device: &Device, work: f64, mut call: impl FnMut() -> Result<(), candle_core::Error>) -> Result<f64> {
    timed_on(device, &mut call)?;
    let (start, mut rate, mut runs) = (Instant::now(), 0.0f64, 0);
    while runs < 3 || (start.elapsed() < SPAN && runs < 500) {
        rate = rate.max(work / timed_on(device, &mut call)?.as_secs_f64().max(1e-9) / 1e9);
        runs += 1;
    }
    Ok(rate)
}

/// Seconds that an int8 linear of `side` inputs, outputs and tokens takes, at best.
fn int8_layer(device: &Device, side: usize) -> Result<f64> {
    struct Best(usize, Duration);
    impl Observer for Best {
        fn step(&mut self, index: usize, elapsed: Duration, _: u64) {
            if index == self.0 {
                self.1 = self.1.min(elapsed);
            }
        }
    }
    let mut b = Builder::default();
    let x = b.input([side, side, 1]);
    let x = b.node("tokens", Op::ToTokens, &[x]);
    let x = b.linear("linear", x, side, side, true);
    let graph = b.finish(x)?;
    let precision = Precisions::from_iter([("linear", Precision::Int8)]);
    let options = CompileOptions { device: device.clone(), ..CompileOptions::default() };
    let plan = Plan::compile(&graph, &random_params(&graph, 1), &precision, &options)?;
    let at = plan.steps().iter().position(|s| s.name == "linear").unwrap_or(0);
    let x = Tensor::ones((1, side, side, 1), DType::F32, device)?;
    let mut session = plan.session();
    session.run(&x)?;
    let mut best = Best(at, Duration::MAX);
    for _ in 0..8 {
        session.run_observed(&x, &mut best)?;
    }
    Ok(best.1.as_secs_f64().max(1e-9))
}

const M: usize = 1024;
const N: usize = 768;
const K: usize = 768;
const SPAN: Duration = Duration::from_millis(300);

/// The best rate of a large prepacked product of the matrices with these elements.
fn gemm<A: GemmInT, B: GemmInT, C: GemmOutT>(a: fn([usize; 2]) -> A, b: fn([usize; 2]) -> B) -> f64
where
    GemmExecutor<A, B, C>: Default,
{
    let gemm = GemmExecutor::<A, B, C>::default();
    let (a, b) = (NdTensor::<A, 2>::from_fn([M, K], a), NdTensor::<B, 2>::from_fn([K, N], b));
    let packed = gemm.prepack_b(b.view());
    let mut out = vec![std::mem::MaybeUninit::<C>::uninit(); M * N];
    best(2.0 * (M * N * K) as f64, SPAN, || {
        let a = GemmInputA::Unpacked(a.view());
        let done = gemm.gemm_uninit(&mut out, a, GemmInputB::Packed(&packed), GemmUninitOptions::default());
        std::hint::black_box(done.is_ok());
    })
}

fn f32_gemm() -> f64 {
    gemm::<f32, f32, f32>(
        |[i, j]| ((i * 7 + j * 3) % 17) as f32 * 0.1 - 0.8,
        |[i, j]| ((i * 5 + j * 11) % 13) as f32 * 0.1 - 0.6,
    )
}

fn int8_gemm() -> f64 {
    gemm::<u8, i8, i32>(|[i, j]| ((i * 7 + j * 3) % 128) as u8, |[i, j]| ((i * 5 + j * 11) % 127) as i8)
}

fn triad() -> f64 {
    // 32 MiB each: far past the last-level cache's share of a thread.
    const LEN: usize = 8 << 20;
    const BLOCK: usize = 1 << 16;
    let b = vec![1.0f32; LEN];
    let c = vec![2.0f32; LEN];
    let mut a = vec![0.0f32; LEN];
    best(12.0 * LEN as f64, Duration::from_millis(250), || {
        a.par_chunks_mut(BLOCK).zip(b.par_chunks(BLOCK)).zip(c.par_chunks(BLOCK)).for_each(|((a, b), c)| {
            for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
                *a = b + 3.0 * c;
            }
        });
        std::hint::black_box(a[LEN / 2]);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ceiling_is_a_positive_number() {
        let c = ceilings(1).expect("measured");
        for v in [c.f32_gflops, c.int8_gops, c.bandwidth_gbs] {
            assert!(v.is_finite() && v > 0.0, "{c:?}");
        }
    }

    #[test]
    fn a_ceiling_that_finds_no_memory_is_unknown_and_blames_no_node() {
        let of_layer = |text: &str| -> Result<f64> {
            let said = candle_core::Error::Cuda(text.into()).into();
            Err(ExecError::Candle { node: "linear".into(), op: "linear", said }.into())
        };
        assert!(known(of_layer("DriverError(CUDA_ERROR_OUT_OF_MEMORY)"), "int8 products").expect("unknown").is_none());
        let other = known(of_layer("DriverError(CUDA_ERROR_LAUNCH_FAILED)"), "int8 products").expect_err("fails");
        let text = other.to_string();
        assert!(text.contains("ceiling of int8 products") && text.contains("CUDA_ERROR_LAUNCH_FAILED"), "{text}");
        assert!(!text.contains("node `"), "{text}");
        assert_eq!(known(Ok(2.0), "bandwidth").expect("known"), Some(2.0));
    }

    /// The parts that a GPU is measured with, at sizes that a CPU does not mind.
    #[test]
    fn a_devices_rates_are_positive_numbers() {
        let gbs = device_bandwidth(&Device::Cpu, 1 << 16).expect("measured");
        let seconds = int8_layer(&Device::Cpu, 64).expect("measured");
        assert!(gbs.is_finite() && gbs > 0.0 && seconds > 0.0 && seconds < 1.0, "{gbs} {seconds}");
    }
}
