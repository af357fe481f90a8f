//! What this device can do at most: f32 and int8 matrix products and memory bandwidth, measured in about a second.
//!
//! Where the layers run through our own tiles the limit of arithmetic is what the units do on registers
//! ([`crate::exec::peak`]); elsewhere it is a large prepacked product through the same `rten-gemm` kernels as the layers. The
//! bandwidth is the triad `a = b + s·c` of McCalpin's STREAM, counting the write-allocate as it does (three arrays).

use super::{Ceilings, ProfileError};
use crate::exec::best;
use rayon::prelude::*;
use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions, GemmUninitOptions};
use rten_tensor::NdTensor;
use rten_tensor::prelude::*;
use std::time::Duration;

/// Measures the ceilings with `threads` threads.
pub fn ceilings(threads: usize) -> Result<Ceilings, ProfileError> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.max(1))
        .build()
        .map_err(|e| candle_core::Error::Msg(format!("no threads: {e}")))?;
    let bandwidth_gbs = pool.install(triad);
    Ok(match crate::exec::peak(threads) {
        Some(p) => Ceilings { f32_gflops: 2.0 * p.f32_gmacs, int8_gops: 2.0 * p.int8_gmacs, bandwidth_gbs },
        None => pool.install(|| Ceilings { f32_gflops: f32_gemm(), int8_gops: int8_gemm(), bandwidth_gbs }),
    })
}

const M: usize = 1024;
const N: usize = 768;
const K: usize = 768;
const SPAN: Duration = Duration::from_millis(300);

fn f32_gemm() -> f64 {
    let gemm = GemmExecutor::<f32>::new();
    let a = NdTensor::<f32, 2>::from_fn([M, K], |[i, j]| ((i * 7 + j * 3) % 17) as f32 * 0.1 - 0.8);
    let b = NdTensor::<f32, 2>::from_fn([K, N], |[i, j]| ((i * 5 + j * 11) % 13) as f32 * 0.1 - 0.6);
    let packed = gemm.prepack_b(b.view());
    let mut out = vec![0f32; M * N];
    best(2.0 * (M * N * K) as f64, SPAN, || {
        let a = GemmInputA::Unpacked(a.view());
        let done = gemm.gemm(&mut out, a, GemmInputB::Packed(&packed), GemmOptions::default());
        std::hint::black_box(done.is_ok());
    })
}

fn int8_gemm() -> f64 {
    let gemm = GemmExecutor::<u8, i8, i32>::new();
    let a = NdTensor::<u8, 2>::from_fn([M, K], |[i, j]| ((i * 7 + j * 3) % 128) as u8);
    let b = NdTensor::<i8, 2>::from_fn([K, N], |[i, j]| ((i * 5 + j * 11) % 127) as i8);
    let packed = gemm.prepack_b(b.view());
    let mut out = vec![std::mem::MaybeUninit::<i32>::uninit(); M * N];
    best(2.0 * (M * N * K) as f64, SPAN, || {
        let a = GemmInputA::Unpacked(a.view());
        let done = gemm.gemm_uninit(&mut out, a, GemmInputB::Packed(&packed), GemmUninitOptions::default());
        std::hint::black_box(done.is_ok());
    })
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
}
