//! Linears whose weights stay as a file stores them, in half precision or in GGML's blocks: unpacked in registers where few rows
//! are multiplied, panel by panel where many are. Nothing but a panel is ever unpacked in memory.
//!
//! Not here: what a block holds (`unpack`, bit for bit as `model::ggml` decodes). With AVX-512 only; elsewhere weights are unpacked when a
//! plan is made. Invariant: a row's result does not depend on the number of threads, nor, as long as the rows are few or many, on
//! theirs; few are summed in another order than many.

mod unpack;

use super::avx512::{Line, Panel, line_f32};
use super::geometry::{Epilogue, Whole};
use super::{Par, Shared, room, rows, split, with_scratch};
use crate::graph::Activation;
use crate::model::{Packed, Param};
use std::arch::x86_64::*;
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

/// A weight matrix `[n, k]` as it is stored.
pub(crate) struct Blocks {
    weight: Param,
    packed: Packed,
    n: usize,
    k: usize,
}

impl Blocks {
    /// `weight` as it is stored; `None` where it is stored in nothing that is multiplied so, or this processor cannot.
    pub fn of(weight: &Param) -> Option<Blocks> {
        let (&[n, k], (packed, _)) = (weight.shape(), weight.packed()?) else { return None };
        let fits = k > 0 && n > 0 && k.is_multiple_of(packed.values().max(32));
        let able =
            super::avx512::floats() && is_x86_feature_detected!("avx512dq") && is_x86_feature_detected!("avx512vl");
        (fits && able).then(|| Blocks { weight: weight.clone(), packed, n, k })
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
                for first in (0..m).step_by(TOGETHER) {
                    let rows = TOGETHER.min(m - first);
                    // As many columns at a time as keep the units busy while sums wait for each other.
                    let step = TOGETHER / rows.next_power_of_two();
                    for col in cols.clone().step_by(step) {
                        let mut found = [0f32; TOGETHER];
                        let job = Few {
                            w: bytes[col * pitch..].as_ptr(),
                            pitch,
                            x: x[first * k..].as_ptr(),
                            sums: sums[first * k / 16..].as_ptr(),
                            k,
                        };
                        let here = step.min(cols.end - col);
                        // SAFETY: so many rows of weights and of `x` are there, and so are the features (see `of`).
                        unsafe { with_unpack!(self.packed, U => job.run::<U>(rows, here, &mut found)) };
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
            let panels = Panel::over(n, 0);
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
                // SAFETY: the features were looked for (see `of`); rows of weights, of `x` and of `out` are as long as was asserted, and
                // panels write different columns.
                unsafe {
                    let w = self.bytes().as_ptr().add(panel.col * row);
                    let at = from / self.packed.values() * self.packed.size();
                    with_unpack!(self.packed, U => fill::<U>(&mut s.vectors[..need], panel, w.add(at), row, run));
                    line_f32(s.vectors.as_ptr(), panel, line);
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
        format!("gemm-{}/avx512", self.packed.label())
    }

    fn run(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        if x.len() / self.k <= FEW {
            self.few(e, x, residual, out, par);
        } else {
            self.many(e, x, residual, out, par);
        }
    }
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
    /// The products of `rows` rows with `cols` columns, row by row; together no more than there is room for.
    ///
    /// # Safety
    /// The features of [`Blocks::of`]; all values are there, and `k` is a multiple of the block's values and of 32.
    #[inline(always)]
    unsafe fn run<U: Unpack>(&self, rows: usize, cols: usize, found: &mut [f32; TOGETHER]) {
        // SAFETY: as the caller vouches.
        unsafe {
            match (rows, cols) {
                (1, 4) => self.dot::<U, 1, 4>(found),
                (1, 3) => self.dot::<U, 1, 3>(found),
                (1, 2) => self.dot::<U, 1, 2>(found),
                (1, _) => self.dot::<U, 1, 1>(found),
                (2, 2) => self.dot::<U, 2, 2>(found),
                (2, _) => self.dot::<U, 2, 1>(found),
                (3, _) => self.dot::<U, 3, 1>(found),
                _ => self.dot::<U, 4, 1>(found),
            }
        }
    }

    /// # Safety
    /// As [`Few::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn dot<U: Unpack, const R: usize, const C: usize>(&self, found: &mut [f32; TOGETHER]) {
        let Few { w, pitch, x, sums, k } = *self;
        // SAFETY: as the caller vouches.
        unsafe {
            let mut acc = [[_mm512_setzero_ps(); C]; R];
            let mut mins = [[0f32; C]; R];
            let mut at = 0;
            for b in 0..k / U::VALUES {
                for sub in 0..U::VALUES / 32 {
                    four!(J < C, {
                        let block = w.add(J * pitch + b * U::BYTES);
                        // What comes next in memory, in memory's order: by column, lines would be asked for from `C` pages at once.
                        let done = (b * C + J) * U::BYTES + sub * (32 * U::BYTES / U::VALUES);
                        _mm_prefetch::<_MM_HINT_T1>(w.wrapping_add(done + AHEAD).cast());
                        let p = U::parts(block, sub);
                        four!(I < R, {
                            let x = x.add(I * k + at);
                            let (x0, x1) = (_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16)));
                            let sum = acc[I][J];
                            acc[I][J] = if U::SPLIT {
                                let low = _mm512_fmadd_ps(p.scales.0, _mm512_mul_ps(p.codes.0, x0), sum);
                                _mm512_fmadd_ps(p.scales.1, _mm512_mul_ps(p.codes.1, x1), low)
                            } else if U::SCALED {
                                let both = _mm512_fmadd_ps(p.codes.1, x1, _mm512_mul_ps(p.codes.0, x0));
                                _mm512_fmadd_ps(p.scales.0, both, sum)
                            } else {
                                _mm512_fmadd_ps(p.codes.1, x1, _mm512_fmadd_ps(p.codes.0, x0, sum))
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
                    found[I * C + J] = _mm512_reduce_add_ps(acc[I][J]) + mins[I][J];
                });
            });
        }
    }
}

/// Unpacks `run` values of the panel's rows, which begin at `w` and lie `row` bytes apart, into its vectors.
///
/// # Safety
/// As [`Few::run`]; there is room for `run` times the panel's vectors.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
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
                        (*low, *high) = U::pair(w.add((16 * v + lane) * row + b * U::BYTES), sub);
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
mod tests {
    use super::*;
    use crate::exec::kernel::{noise, shared};
    use crate::model::ggml::Block;

    /// Where a block of `packed` has half-precision numbers.
    fn halves(packed: Packed) -> &'static [usize] {
        match packed {
            Packed::F16 | Packed::Bf16 => &[0],
            Packed::Block(block) => match block {
                Block::Q4_0 | Block::Q5_0 | Block::Q8_0 | Block::IQ4_NL | Block::IQ4_XS => &[0],
                Block::Q4_1 | Block::Q5_1 | Block::Q4_K | Block::Q5_K => &[0, 2],
                Block::Q2_K => &[80, 82],
                Block::Q3_K => &[108],
                Block::Q6_K => &[208],
            },
        }
    }

    /// A matrix of so many rows in `packed`, of bytes all over but with scales near one.
    pub(super) fn stored(packed: Packed, n: usize, k: usize) -> Param {
        let len = n * k / packed.values() * packed.size();
        let mut bytes: Vec<u8> = (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        // Halves between 0.5 and 2, where the format has them; elsewhere any bits are values.
        for &at in halves(packed) {
            for block in bytes.chunks_exact_mut(packed.size()) {
                block[at + 1] = 0x38 + (block[at + 1] & 7);
            }
        }
        Param::packed_in(vec![n, k], bytes, packed).expect("as many bytes as it takes")
    }

    #[test]
    fn every_format_multiplies_what_it_decodes_to() {
        let all = Block::ALL.map(Packed::Block).into_iter().chain([Packed::F16, Packed::Bf16]);
        for packed in all {
            // Not a whole number of panels; more than a run of values.
            let (n, k) = (83, 1792);
            let weight = stored(packed, n, k);
            let Some(blocks) = Blocks::of(&weight) else { return };
            let w = weight.values();
            let e = Epilogue { bias: noise(n, 3), act: Some(Activation::Silu) };
            let mut few: Option<Vec<f32>> = None;
            for (m, threads) in [(1, 1), (3, 2), (8, 1), (9, 1), (9, 3), (40, 2)] {
                let (x, res) = (noise(40 * k, 1), noise(40 * n, 2));
                let (x, res) = (&x[..m * k], &res[..m * n]);
                let mut out = vec![f32::NAN; m * n];
                shared(threads, |par| blocks.run(&e, x, Some(res), &mut out, par));
                for (r, c) in [(0, 0), (m - 1, n - 1), (m / 2, 50), (0, 17)] {
                    let row = &w[c * k..][..k];
                    let (mut sum, mut size) = (0f64, 1f64);
                    for (w, x) in row.iter().zip(&x[r * k..]) {
                        sum += f64::from(*w) * f64::from(*x);
                        size += (f64::from(*w) * f64::from(*x)).abs();
                    }
                    let y = sum + f64::from(e.bias[c]) + f64::from(res[r * n + c]);
                    let (want, got) = (y / (1.0 + (-y).exp()), f64::from(out[r * n + c]));
                    let off = (want - got).abs() / size;
                    assert!(off < 2e-6, "{} {m} rows, {r} {c}: {got}, not {want}", packed.label());
                }
                if m <= FEW {
                    let first = few.get_or_insert_with(|| out[..n].to_vec());
                    assert_eq!(first[..], out[..n], "{}", packed.label());
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_left_to_others() {
        let odd = Param::packed_in(vec![4, 48], vec![0; 4 * 48 * 2], Packed::F16).unwrap();
        assert!(Blocks::of(&odd).is_none());
        assert!(Blocks::of(&Param::owned(vec![4, 64], vec![0.0; 256]).unwrap()).is_none());
    }
}
