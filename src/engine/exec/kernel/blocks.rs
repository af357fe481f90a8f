//! Linears whose weights stay as a file stores them, in half precision or in GGML's blocks: unpacked in registers where few rows
//! are multiplied, panel by panel where many are. Nothing but a panel is ever unpacked in memory.
//!
//! Not here: what a block holds (`unpack`, bit for bit as `model::ggml` decodes). With AVX-512 or AVX2; elsewhere weights are unpacked when a
//! plan is made. Invariant: a row's result does not depend on the number of threads, nor, as long as the rows are few or many, on
//! theirs; few are summed in another order than many.

mod unpack;

use super::avx512::{Line, Panel};
use super::geometry::{Epilogue, Whole};
use super::lanes::Lanes;
use super::lanes::x86::{Bytes, Pair, Wide};
use super::tiles::{With, turn8};
use super::{Par, Shared, room, rows, split, with_scratch};
use crate::graph::Activation;
use crate::model::{Packed, Param};
use std::arch::x86_64::*;
use std::ops::Range;
use unpack::{Unpack, with_unpack};

/// Most rows whose weights are unpacked in registers.
const FEW: usize = 8;
/// Products of a row with a column that are made at a time.
const TOGETHER: usize = 4;
/// Bytes that are asked for ahead of those that are multiplied. Of 8 to 64 KiB, and of the first and the second cache, the best for
/// rows of 576 to 2048 values together: two cores read half precision at 32 to 36 GB/s, and at 18 to 29 where the same columns of the next
/// rows are asked for.
const AHEAD: usize = 16 << 10;
/// Values of a row that a panel holds at a time, whole super-blocks: its part stays in the second-level cache.
const RUN: usize = 1536;

/// Repeats a block for `$i` = 0, 1, .. below `$n` (at most 4) with `$i` constant, so that sums stay in registers.
macro_rules! four {
    ($i:ident < $n:expr, $body:block) => {
        four!(@ $i, $n, $body, 0 1 2 3)
    };
    (@ $i:ident, $n:expr, $body:block, $($k:literal)*) => {
        $({
            const $i: usize = $k;
            // Beyond the last one nothing runs; the index only has to be one.
            if $i < $n $body
        })*
    };
}

/// Are there the instructions besides those of tiles that unpack?
fn unpacks(with: With) -> bool {
    let half = is_x86_feature_detected!("f16c");
    with.runs() && half && (with == With::Pair || is_x86_feature_detected!("avx512dq"))
}

/// A weight matrix `[n, k]` as it is stored.
pub(crate) struct Blocks {
    with: With,
    weight: Param,
    packed: Packed,
    n: usize,
    k: usize,
}

impl Blocks {
    /// `weight` as it is stored; `None` where it is stored in nothing that is multiplied so, or this processor cannot.
    pub fn of(weight: &Param) -> Option<Blocks> {
        let with = [With::Wide, With::Pair].into_iter().find(|with| unpacks(*with))?;
        Blocks::with(weight, with)
    }

    /// As [`Blocks::of`], in registers that this processor has.
    fn with(weight: &Param, with: With) -> Option<Blocks> {
        let (&[n, k], (packed, _)) = (weight.shape(), weight.packed()?) else { return None };
        let fits = k > 0 && n > 0 && k.is_multiple_of(packed.values().max(32));
        fits.then(|| Blocks { with, weight: weight.clone(), packed, n, k })
    }

    fn bytes(&self) -> &[u8] {
        self.weight.packed().map_or(&[], |(_, bytes)| bytes)
    }

    /// Bytes of a row.
    fn pitch(&self) -> usize {
        self.k / self.packed.values() * self.packed.size()
    }

    /// A few rows: every thread has some columns of all of them.
    fn few(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        let (n, k, pitch) = (self.n, self.k, self.pitch());
        let (m, bytes) = (x.len() / k, self.bytes());
        assert!(bytes.len() >= n * pitch && x.len() == m * k && out.len() == m * n && e.bias.len() == n);
        let each = n.div_ceil(4 * par.threads()).next_multiple_of(16);
        let shared = Shared::of(out);
        with_scratch(|s| {
            // Minima are multiplied with whole sums.
            let sums = room(&mut s.f32, x.len() / 16);
            sums.iter_mut().zip(x.chunks_exact(16)).for_each(|(s, x)| *s = x.iter().sum());
            let sums = &*sums;
            par.run(n.div_ceil(each), |i| {
                let cols = i * each..n.min((i + 1) * each);
                for (first, rows) in pieces(0..m, TOGETHER) {
                    // As many columns at a time as keep the units busy while sums wait for each other.
                    for (col, here) in pieces(cols.clone(), TOGETHER / rows) {
                        let mut found = [0f32; TOGETHER];
                        let job = Few {
                            w: bytes[col * pitch..].as_ptr(),
                            pitch,
                            x: x[first * k..].as_ptr(),
                            sums: sums[first * k / 16..].as_ptr(),
                            k,
                        };
                        // SAFETY: so many rows of weights and of `x` are there, and so are the features (see `of`).
                        unsafe {
                            match self.with {
                                With::Wide => with_unpack!(self.packed, U => job.wide::<U>(rows, here, &mut found)),
                                With::Pair => with_unpack!(self.packed, U => job.pair::<U>(rows, here, &mut found)),
                            }
                        }
                        for (i, sum) in found.iter().enumerate().take(rows * here) {
                            let (r, c) = (first + i / here, col + i % here);
                            let sum = sum + e.bias[c] + residual.map_or(0.0, |res| res[r * n + c]);
                            // SAFETY: every column is of one part.
                            unsafe { shared.part(r * n + c, 1)[0] = sum };
                        }
                    }
                }
            });
        });
        self.activate(e.act, &shared, m * n, par);
    }

    /// Many rows: every thread unpacks panels of its own and takes all rows through them.
    fn many(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        let (n, k, m) = (self.n, self.k, x.len() / self.k);
        assert!(self.bytes().len() >= n * self.pitch() && out.len() == m * n && e.bias.len() == n);
        // Rows that lie a multiple of many cache lines apart compete for the same few places.
        let pitch = if (4 * k).is_multiple_of(1024) { k + 16 } else { k };
        with_scratch(|s| {
            let x = if pitch == k {
                x
            } else {
                let buf = room(&mut s.f32, m * pitch);
                split(par, buf, pitch, |r, to| to[..k].copy_from_slice(&x[r * k..][..k]));
                &*buf
            };
            let panels = Panel::over(n, 0, self.with.widest());
            let out = Shared::of(out);
            par.run(panels.len(), |i| self.panel(e, &panels[i], (x, pitch, m), residual, &out));
        });
    }

    /// One panel's columns of all rows.
    fn panel(
        &self,
        e: &Epilogue,
        panel: &Panel,
        (x, pitch, m): (&[f32], usize, usize),
        residual: Option<&[f32]>,
        out: &Shared<f32>,
    ) {
        let (n, k, row) = (self.n, self.k, self.pitch());
        let panel = &Panel { at: 0, ..*panel };
        with_scratch(|s| {
            let need = RUN.min(k) * panel.vecs;
            if s.vectors.len() < need {
                // SAFETY: all zero bits are a valid vector.
                s.vectors.resize(need, unsafe { std::mem::zeroed::<__m512>() });
            }
            for from in (0..k).step_by(RUN) {
                let run = RUN.min(k - from);
                let line = Line {
                    a: x[from..].as_ptr(),
                    stride: pitch,
                    line_stride: 0,
                    taps: &[0],
                    steps: run,
                    rows: m,
                    lines: 1,
                    out: out.at(0, m * n).wrapping_add(panel.col),
                    residual: residual.map_or(std::ptr::null(), |r| r.as_ptr().wrapping_add(panel.col)),
                    out_stride: n,
                    bias: e.bias[panel.col..].as_ptr(),
                    relu: e.act == Some(Activation::Relu),
                    resume: from > 0,
                    partial: from + run < k,
                    ahead: (std::ptr::null(), 0),
                };
                // SAFETY: the features were looked for (see `With`); rows of weights, of `x` and of `out` are as long as was asserted, and
                // panels write different columns.
                unsafe {
                    let w = self.bytes().as_ptr().add(panel.col * row);
                    let at = from / self.packed.values() * self.packed.size();
                    let (to, w) = (&mut s.vectors[..need], w.add(at));
                    match self.with {
                        With::Wide => with_unpack!(self.packed, U => fill::<U>(to, panel, w, row, run)),
                        With::Pair => with_unpack!(self.packed, U => fill_pair::<U>(to, panel, w, row, run)),
                    }
                    self.with.line_f32(to.as_ptr(), panel, line);
                }
            }
            let Some(act) = e.act.filter(|a| *a != Activation::Relu) else { return };
            for r in 0..m {
                // SAFETY: this panel's columns.
                rows::activate(unsafe { out.part(r * n + panel.col, panel.cols) }, act);
            }
        });
    }

    fn activate(&self, act: Option<Activation>, out: &Shared<f32>, len: usize, par: Par<'_>) {
        let Some(act) = act else { return };
        let each = len.div_ceil(par.threads());
        par.run(par.threads(), |t| {
            let from = (t * each).min(len);
            // SAFETY: the sums are there, and every part has its own place.
            rows::activate(unsafe { out.part(from, each.min(len - from)) }, act);
        });
    }
}

impl Whole for Blocks {
    fn kernel(&self) -> String {
        format!("gemm-{}/{}", self.packed.label(), self.with.name())
    }

    fn run(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        if x.len() / self.k <= FEW {
            self.few(e, x, residual, out, par);
        } else {
            self.many(e, x, residual, out, par);
        }
    }
}

/// `range` in pieces of `most`, a power of two, and at its end of less, powers of two too: `(start, length)`.
fn pieces(range: Range<usize>, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let left = range.end.checked_sub(at).filter(|n| *n > 0)?;
        let len = most.min(1 << left.ilog2());
        at += len;
        Some((at - len, len))
    })
}

/// Some rows of weights and some of inputs.
struct Few {
    w: *const u8,
    /// Bytes from row to row of the weights.
    pitch: usize,
    x: *const f32,
    /// Of every sixteen values of `x`.
    sums: *const f32,
    k: usize,
}

impl Few {
    /// [`Few::run`] with AVX-512.
    ///
    /// # Safety
    /// As [`Few::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
    unsafe fn wide<U: Unpack>(&self, rows: usize, cols: usize, found: &mut [f32; TOGETHER]) {
        // SAFETY: as the caller vouches.
        unsafe { self.run::<Wide, U>(rows, cols, found) }
    }

    /// [`Few::run`] with AVX2.
    ///
    /// # Safety
    /// As [`Few::run`].
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn pair<U: Unpack>(&self, rows: usize, cols: usize, found: &mut [f32; TOGETHER]) {
        // SAFETY: as the caller vouches.
        unsafe { self.run::<Pair, U>(rows, cols, found) }
    }

    /// The products of `rows` rows with `cols` columns as [`pieces`] has them, row by row.
    ///
    /// # Safety
    /// The lanes' features are there; all values are, and `k` is a multiple of the block's values and of 32.
    #[inline(always)]
    unsafe fn run<V: Bytes, U: Unpack>(&self, rows: usize, cols: usize, found: &mut [f32; TOGETHER]) {
        // SAFETY: as the caller vouches.
        unsafe {
            match (rows, cols) {
                (1, 4) => self.dot::<V, U, 1, 4>(found),
                (1, 2) => self.dot::<V, U, 1, 2>(found),
                (1, _) => self.dot::<V, U, 1, 1>(found),
                (2, 2) => self.dot::<V, U, 2, 2>(found),
                (2, _) => self.dot::<V, U, 2, 1>(found),
                _ => self.dot::<V, U, 4, 1>(found),
            }
        }
    }

    /// # Safety
    /// As [`Few::run`].
    #[inline(always)]
    unsafe fn dot<V: Bytes, U: Unpack, const R: usize, const C: usize>(&self, found: &mut [f32; TOGETHER]) {
        let Few { w, pitch, x, sums, k } = *self;
        // SAFETY: as the caller vouches.
        unsafe {
            let mut acc = [[V::splat(0.0); C]; R];
            let mut mins = [[0f32; C]; R];
            let mut at = 0;
            for b in 0..k / U::VALUES {
                for sub in 0..U::VALUES / 32 {
                    four!(J < C, {
                        let block = w.add(J * pitch + b * U::BYTES);
                        // What comes next in memory, in memory's order: by column, lines would be asked for from `C` pages at once.
                        let done = (b * C + J) * U::BYTES + sub * (32 * U::BYTES / U::VALUES);
                        _mm_prefetch::<_MM_HINT_T1>(w.wrapping_add(done + AHEAD).cast());
                        let p = U::parts::<V>(block, sub);
                        four!(I < R, {
                            let x = x.add(I * k + at);
                            let (x0, x1) = (V::load(x), V::load(x.add(16)));
                            let sum = acc[I][J];
                            acc[I][J] = if U::SPLIT {
                                let low = p.scales.0.fma(p.codes.0.mul(x0), sum);
                                p.scales.1.fma(p.codes.1.mul(x1), low)
                            } else if U::SCALED {
                                let both = p.codes.1.fma(x1, p.codes.0.mul(x0));
                                p.scales.0.fma(both, sum)
                            } else {
                                p.codes.1.fma(x1, p.codes.0.fma(x0, sum))
                            };
                            if U::MINS {
                                let s = sums.add((I * k + at) / 16);
                                mins[I][J] += match U::SPLIT {
                                    true => p.mins.0 * *s + p.mins.1 * *s.add(1),
                                    false => p.mins.0 * (*s + *s.add(1)),
                                };
                            }
                        });
                    });
                    at += 32;
                }
            }
            four!(I < R, {
                four!(J < C, {
                    found[I * C + J] = acc[I][J].sum() + mins[I][J];
                });
            });
        }
    }
}

/// Unpacks `run` values of the panel's rows, which begin at `w` and lie `row` bytes apart, into its vectors.
///
/// # Safety
/// As [`Few::run`]; there is room for `run` times the panel's vectors.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
unsafe fn fill<U: Unpack>(to: &mut [__m512], panel: &Panel, w: *const u8, row: usize, run: usize) {
    assert!(to.len() >= run * panel.vecs);
    // SAFETY: as the caller vouches.
    unsafe {
        for v in 0..panel.vecs {
            let cols = panel.cols.saturating_sub(16 * v).min(16);
            let mut at = 0;
            for b in 0..run / U::VALUES {
                for sub in 0..U::VALUES / 32 {
                    let mut halves = [[_mm512_setzero_ps(); 16]; 2];
                    let [low, high] = &mut halves;
                    for (lane, (low, high)) in low.iter_mut().zip(high).take(cols).enumerate() {
                        let (first, second) = U::pair::<Wide>(w.add((16 * v + lane) * row + b * U::BYTES), sub);
                        (*low, *high) = (first.0, second.0);
                    }
                    for half in halves {
                        for (i, column) in turn(half).into_iter().enumerate() {
                            *to.get_unchecked_mut((at + i) * panel.vecs + v) = column;
                        }
                        at += 16;
                    }
                }
            }
        }
    }
}

/// [`fill`] for AVX2.
///
/// # Safety
/// As [`fill`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fill_pair<U: Unpack>(to: &mut [__m512], panel: &Panel, w: *const u8, row: usize, run: usize) {
    assert!(to.len() >= run * panel.vecs);
    let to = to.as_mut_ptr().cast::<f32>();
    // SAFETY: as the caller vouches.
    unsafe {
        for v in 0..panel.vecs {
            let cols = panel.cols.saturating_sub(16 * v).min(16);
            // Thirty-two values of sixteen rows; zeros where there is no row.
            let mut rows = [[0f32; 32]; 16];
            let mut at = 0;
            for b in 0..run / U::VALUES {
                for sub in 0..U::VALUES / 32 {
                    for (lane, values) in rows.iter_mut().enumerate().take(cols) {
                        let (low, high) = U::pair::<Pair>(w.add((16 * v + lane) * row + b * U::BYTES), sub);
                        low.store(values.as_mut_ptr());
                        high.store(values.as_mut_ptr().add(16));
                    }
                    for part in (0..32).step_by(8) {
                        for half in [0, 8] {
                            let eight = std::array::from_fn(|i| _mm256_loadu_ps(rows[half + i][part..].as_ptr()));
                            for (i, column) in turn8(eight).into_iter().enumerate() {
                                let place = 16 * ((at + part + i) * panel.vecs + v) + half;
                                _mm256_storeu_ps(to.add(place), column);
                            }
                        }
                    }
                    at += 32;
                }
            }
        }
    }
}

/// Rows become columns.
///
/// # Safety
/// AVX-512F is there.
#[inline(always)]
unsafe fn turn(r: [__m512; 16]) -> [__m512; 16] {
    // SAFETY: as the caller vouches.
    unsafe {
        let zero = _mm512_setzero_ps();
        let (mut t, mut u, mut out) = ([zero; 16], [zero; 16], [zero; 16]);
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        let low = |a, b| _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
        let high = |a, b| _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
        for q in 0..4 {
            let [a, b, c, d] = [t[4 * q], t[4 * q + 1], t[4 * q + 2], t[4 * q + 3]];
            (u[4 * q], u[4 * q + 1], u[4 * q + 2], u[4 * q + 3]) = (low(a, c), high(a, c), low(b, d), high(b, d));
        }
        // A vector's four lanes are four columns of four rows; each column's lanes come from four vectors.
        for j in 0..4 {
            let even = |a, b| _mm512_shuffle_f32x4::<0x88>(a, b);
            let odd = |a, b| _mm512_shuffle_f32x4::<0xdd>(a, b);
            let [x, y] = [even(u[j], u[4 + j]), even(u[8 + j], u[12 + j])];
            let [z, w] = [odd(u[j], u[4 + j]), odd(u[8 + j], u[12 + j])];
            (out[j], out[8 + j], out[4 + j], out[12 + j]) = (even(x, y), odd(x, y), even(z, w), odd(z, w));
        }
        out
    }
}

#[cfg(test)]
mod tests;
