//! f32 register tiles in the widest registers that a processor has: those of `avx512`, and here those of AVX2, over the same panels and lines.
//!
//! AVX2 has sixteen registers: six rows by sixteen columns are twelve sums, two vectors of weights and a value that is broadcast. A step is twelve
//! multiply-adds for eight loads, so that the units for sums are the limit; panels are one vector wide, for their weights to stay near while rows pass.
//!
//! Invariant: as in `avx512`, every output element is one sum in one order, whichever registers it is in. Not here: int8, which AVX2 does not have
//! without saturating (`gemm`).

use super::avx512::{self, Line, Panel, unroll};
use super::lanes::Lanes;
use super::lanes::x86::{Pair, Wide};
use std::arch::x86_64::*;

/// Registers that tiles are computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum With {
    /// AVX-512.
    Wide,
    /// AVX2, two for one.
    Pair,
}

/// Rows of a tile with AVX2.
const ROWS: usize = 6;
/// Steps without a branch: a branch a step would be a third of the loads' time.
const STEPS: usize = 4;

impl With {
    /// The widest that this processor has.
    pub fn best() -> Option<With> {
        [With::Wide, With::Pair].into_iter().find(|with| with.runs())
    }

    pub fn runs(self) -> bool {
        match self {
            With::Wide => avx512::floats(),
            With::Pair => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            With::Wide => Wide::NAME,
            With::Pair => Pair::NAME,
        }
    }

    /// Vectors of a panel at most.
    pub fn widest(self) -> usize {
        match self {
            With::Wide => avx512::WIDEST,
            With::Pair => 1,
        }
    }

    /// One panel's columns of all lines.
    ///
    /// # Safety
    /// [`With::runs`]. All pointers of `line` reach their rows, taps and `panel`'s columns; `b` is where `panel` counts from.
    pub unsafe fn line_f32(self, b: *const __m512, panel: &Panel, line: Line<'_, f32>) {
        // SAFETY: as the caller vouches.
        unsafe {
            match self {
                With::Wide => avx512::line_f32(b, panel, line),
                With::Pair => pair_line(b, panel, &line),
            }
        }
    }
}

/// # Safety
/// As [`With::line_f32`].
#[target_feature(enable = "avx2,fma")]
unsafe fn pair_line(b: *const __m512, panel: &Panel, line: &Line<'_, f32>) {
    let all = line.lines * line.rows;
    let parts = all.div_ceil(ROWS).max(1);
    let (base, longer) = (all / parts, all % parts);
    for v in 0..panel.vecs {
        // SAFETY: the panel's own place; rows are within the lines.
        unsafe {
            let job = Job {
                b: b.add(panel.at + v).cast(),
                pitch: 16 * panel.vecs,
                column: 16 * v,
                cols: panel.cols.saturating_sub(16 * v).min(16),
            };
            let mut at = 0;
            for i in 0..parts {
                let rows = base + usize::from(i < longer);
                match rows {
                    1 => tile::<1>(&job, at, line),
                    2 => tile::<2>(&job, at, line),
                    3 => tile::<3>(&job, at, line),
                    4 => tile::<4>(&job, at, line),
                    5 => tile::<5>(&job, at, line),
                    6 => tile::<6>(&job, at, line),
                    _ => {}
                }
                at += rows;
            }
        }
    }
}

/// A vector of a panel.
struct Job {
    b: *const f32,
    /// Values from step to step.
    pitch: usize,
    /// The line's column that it begins with, and how many are real.
    column: usize,
    cols: usize,
}

/// Rows `first..first + P` of the line's.
///
/// # Safety
/// As [`With::line_f32`]; there are so many rows.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const P: usize>(job: &Job, first: usize, line: &Line<'_, f32>) {
    let mut acc = [[_mm256_setzero_ps(); 2]; P];
    let mut a = [line.a; P];
    for (i, a) in a.iter_mut().enumerate() {
        let (l, r) = ((first + i) / line.rows, (first + i) % line.rows);
        *a = a.wrapping_add(l * line.line_stride + r * line.stride);
    }
    let at = first * line.out_stride + job.column;
    let all = job.cols == 16;
    let mask = masks(job.cols);
    // SAFETY: the caller vouches for all reads and writes; `b` walks the panel once, and no column beyond the real ones is touched.
    unsafe {
        if line.resume {
            unroll!(I < P, {
                acc[I] = load(line.out.add(at + I * line.out_stride), all, mask);
            });
        }
        let mut b = job.b;
        for &tap in line.taps {
            let x = a.map(|a| a.wrapping_add(tap));
            let mut step = 0;
            while step + STEPS <= line.steps {
                unroll!(S < STEPS, {
                    let w = b.add(S * job.pitch);
                    let (low, high) = (_mm256_loadu_ps(w), _mm256_loadu_ps(w.add(8)));
                    unroll!(I < P, {
                        let x = _mm256_broadcast_ss(&*x[I].add(step + S));
                        acc[I] = [_mm256_fmadd_ps(x, low, acc[I][0]), _mm256_fmadd_ps(x, high, acc[I][1])];
                    });
                });
                b = b.add(STEPS * job.pitch);
                step += STEPS;
            }
            while step < line.steps {
                let (low, high) = (_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8)));
                unroll!(I < P, {
                    let x = _mm256_broadcast_ss(&*x[I].add(step));
                    acc[I] = [_mm256_fmadd_ps(x, low, acc[I][0]), _mm256_fmadd_ps(x, high, acc[I][1])];
                });
                b = b.add(job.pitch);
                step += 1;
            }
        }
        if !line.partial {
            let bias = load(line.bias.add(job.column), all, mask);
            unroll!(I < P, {
                acc[I] = [_mm256_add_ps(acc[I][0], bias[0]), _mm256_add_ps(acc[I][1], bias[1])];
            });
            if !line.residual.is_null() {
                unroll!(I < P, {
                    let r = load(line.residual.add(at + I * line.out_stride), all, mask);
                    acc[I] = [_mm256_add_ps(acc[I][0], r[0]), _mm256_add_ps(acc[I][1], r[1])];
                });
            }
            if line.relu {
                // The zero comes first so that NaN passes through as it does elsewhere.
                let zero = _mm256_setzero_ps();
                unroll!(I < P, {
                    acc[I] = [_mm256_max_ps(zero, acc[I][0]), _mm256_max_ps(zero, acc[I][1])];
                });
            }
        }
        unroll!(I < P, {
            let to = line.out.add(at + I * line.out_stride);
            // Masked stores are microcode on some processors.
            if all {
                _mm256_storeu_ps(to, acc[I][0]);
                _mm256_storeu_ps(to.add(8), acc[I][1]);
            } else {
                _mm256_maskstore_ps(to, mask[0], acc[I][0]);
                _mm256_maskstore_ps(to.wrapping_add(8), mask[1], acc[I][1]);
            }
        });
    }
}

/// The first `cols` of sixteen lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn masks(cols: usize) -> [__m256i; 2] {
    let mut lanes = [0i32; 16];
    lanes[..cols.min(16)].fill(-1);
    // SAFETY: sixteen of them.
    unsafe { [_mm256_loadu_si256(lanes.as_ptr().cast()), _mm256_loadu_si256(lanes[8..].as_ptr().cast())] }
}

/// Sixteen values, zeros where the mask is.
///
/// # Safety
/// Those of the mask, or all, are at `p`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(p: *const f32, all: bool, mask: [__m256i; 2]) -> [__m256; 2] {
    // SAFETY: as the caller vouches.
    unsafe {
        match all {
            true => [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))],
            false => [_mm256_maskload_ps(p, mask[0]), _mm256_maskload_ps(p.wrapping_add(8), mask[1])],
        }
    }
}

/// Eight rows of eight become columns.
///
/// # Safety
/// AVX is there.
#[inline(always)]
pub(crate) unsafe fn turn8(r: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: as the caller vouches.
    unsafe {
        let zero = _mm256_setzero_ps();
        let (mut t, mut out) = ([zero; 8], [zero; 8]);
        for i in 0..4 {
            t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        // Columns j and j + 4 of four rows each.
        let four = |i: usize| {
            [
                _mm256_shuffle_ps::<0x44>(t[i], t[i + 2]),
                _mm256_shuffle_ps::<0xee>(t[i], t[i + 2]),
                _mm256_shuffle_ps::<0x44>(t[i + 1], t[i + 3]),
                _mm256_shuffle_ps::<0xee>(t[i + 1], t[i + 3]),
            ]
        };
        let (above, below) = (four(0), four(4));
        for j in 0..4 {
            out[j] = _mm256_permute2f128_ps::<0x20>(above[j], below[j]);
            out[4 + j] = _mm256_permute2f128_ps::<0x31>(above[j], below[j]);
        }
        out
    }
}
