//! AVX-512 register tiles: P output rows by V vectors of 16 output columns, accumulated over taps of contiguous input.
//!
//! No im2col: channels-last rows lie in memory such that the window elements of one kernel line are contiguous, so each
//! tap is a run of input values that are broadcast one by one (f32) or four at a time (u8, for the VNNI dot product)
//! against a prepacked panel of weights. A linear is one tap over the whole row.
//!
//! Invariants: panels are zero beyond the real columns and beyond a tap's real length; every output element is one sum in
//! one fixed order, so results do not depend on tiling. Functions are `unsafe` where the caller vouches for pointers and
//! for the processor's features ([`floats`], [`dots`]).

use std::arch::asm;
use std::arch::x86_64::*;

/// Can the f32 tiles run here?
pub(crate) fn floats() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl")
}

/// Can the int8 tiles run here?
pub(crate) fn dots() -> bool {
    floats() && is_x86_feature_detected!("avx512vnni")
}

/// Vectors of a panel at most.
pub(crate) const WIDEST: usize = 3;

/// A run of at most three vectors of output columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panel {
    /// Index of its first vector.
    pub at: usize,
    pub vecs: usize,
    /// First output column and how many are real.
    pub col: usize,
    pub cols: usize,
    /// First input channel (groups).
    pub channel: usize,
}

/// Packed weights: per panel, per tap, per step (one value in f32, four in int8), its vectors.
pub(crate) struct Panels<T> {
    data: Vec<T>,
    pub list: Vec<Panel>,
}

impl<T> Panels<T> {
    pub fn as_ptr(&self) -> *const T {
        self.data.as_ptr()
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&self.data[..])
    }

    /// Where the part of a panel from vector `from` on lies.
    pub fn place(&self, panel: &Panel, from: usize) -> *const u8 {
        self.data[panel.at + from..].as_ptr().cast()
    }
}

impl Panel {
    /// Panels of at most `most` vectors over `cols` columns with `steps` steps each, one after the other.
    pub fn over(cols: usize, steps: usize, most: usize) -> Vec<Panel> {
        let (mut list, mut at, mut col) = (vec![], 0, 0);
        for vecs in widths(cols, most) {
            let n = (16 * vecs).min(cols - col);
            list.push(Panel { at, vecs, col, cols: n, channel: 0 });
            at += vecs * steps;
            col += n;
        }
        list
    }

    /// Where element (`step`, `column` of this panel) lies, in values.
    pub fn place(&self, step: usize, column: usize) -> usize {
        16 * (self.at + step * self.vecs) + column
    }
}

/// Splits `cols` columns into panels of one to `most` vectors, two where one would be left.
fn widths(cols: usize, most: usize) -> Vec<usize> {
    let mut left = cols.div_ceil(16);
    let mut out = vec![];
    while left > 0 {
        let v = if left == 1 || left == 3 { left } else { 2 }.min(most);
        out.push(v);
        left -= v;
    }
    out
}

/// How weights lie before packing: `[cols, taps · len]` per group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub groups: usize,
    /// Columns of one group.
    pub cols: usize,
    pub taps: usize,
    pub len: usize,
    /// Length of a tap in the panels: at least `len`, zeros beyond.
    pub padded: usize,
    /// Input channels of one group.
    pub channels: usize,
    /// Vectors of a panel at most.
    pub widest: usize,
}

impl Panels<__m512> {
    pub fn f32(w: &[f32], s: Shape) -> Self {
        // SAFETY: same size, any bits are valid.
        pack(w, s, |v| unsafe { std::mem::transmute::<[f32; 16], __m512>(v) })
    }
}

impl Panels<__m512i> {
    pub fn i8(w: &[i8], s: Shape) -> Self {
        // SAFETY: same size, any bits are valid.
        pack(w, s, |v| unsafe { std::mem::transmute::<[i8; 64], __m512i>(v) })
    }
}

/// A vector has `N` weights: those of sixteen columns, as many of each as a step takes.
fn pack<W: Copy + Default, T, const N: usize>(w: &[W], s: Shape, finish: impl Fn([W; N]) -> T) -> Panels<T> {
    let (mut data, mut list) = (vec![], vec![]);
    let (k, step) = (s.taps * s.len, N / 16);
    for group in 0..s.groups {
        let mut first = 0;
        for vecs in widths(s.cols, s.widest) {
            let cols = (16 * vecs).min(s.cols - first);
            let col = group * s.cols + first;
            list.push(Panel { at: data.len(), vecs, col, cols, channel: group * s.channels });
            for tap in 0..s.taps {
                for from in (0..s.padded).step_by(step) {
                    for v in 0..vecs {
                        let mut vec = [W::default(); N];
                        for (lane, to) in vec.chunks_exact_mut(step).enumerate().take(cols.saturating_sub(16 * v)) {
                            let row = &w[(col + 16 * v + lane) * k + tap * s.len..][..s.len];
                            to.iter_mut().zip(&row[from.min(s.len)..]).for_each(|(to, x)| *to = *x);
                        }
                        data.push(finish(vec));
                    }
                }
            }
            first += cols;
        }
    }
    Panels { data, list }
}

/// Output rows to compute: `lines` lines of `rows` rows, consecutive in the output.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a, A> {
    /// First input element of the first row's window.
    pub a: *const A,
    /// Input elements from row to row of a line, and from line to line.
    pub stride: usize,
    pub line_stride: usize,
    /// Offsets of the taps from `a`.
    pub taps: &'a [usize],
    /// Steps of a tap: values in f32, groups of four in int8.
    pub steps: usize,
    pub rows: usize,
    pub lines: usize,
    /// First element of the first row's outputs for column 0, and elements from row to row.
    pub out: *mut f32,
    /// Same layout as `out`, or null.
    pub residual: *const f32,
    pub out_stride: usize,
    /// Per column.
    pub bias: *const f32,
    pub relu: bool,
    /// The outputs hold the sums of earlier taps (f32).
    pub resume: bool,
    /// More taps follow: outputs are sums, without bias, residual and ReLU (f32).
    pub partial: bool,
    /// What comes next, to be fetched into the cache meanwhile: its place and bytes.
    pub ahead: (*const u8, usize),
}

/// What int8 rows need beyond a [`Line`].
#[derive(Clone, Copy)]
pub(crate) struct Scales {
    /// Scale and zero point of the first row, and elements from row to row (0: all the same).
    pub scale: *const f32,
    pub zero: *const i32,
    pub stride: usize,
    /// Per column.
    pub factors: *const f32,
    pub sums: *const i32,
}

/// Most rows of a tile with `vecs` vectors: accumulators, panel vectors and a broadcast fit 32 registers.
const fn most_rows(vecs: usize) -> usize {
    match vecs {
        1 => 16,
        2 => 14,
        _ => 8,
    }
}

/// Rows of a tile that are addressed from its first pointer; the others from its second.
const fn first_rows(rows: usize, pair: bool) -> usize {
    if pair { rows / 2 } else { 8 }
}

/// What comes next, to be fetched into the second-level cache a little at a time: a burst would fill the buffers that loads
/// need too.
pub(super) struct Ahead {
    next: *const u8,
    lines: usize,
    burst: usize,
}

impl Ahead {
    /// Part `i` of `n` of a place.
    #[inline(always)]
    pub fn part((place, bytes): (*const u8, usize), i: usize, n: usize) -> (*const u8, usize) {
        let share = bytes.div_ceil(n.max(1)).next_multiple_of(64);
        let from = (i * share).min(bytes);
        (place.wrapping_add(from), share.min(bytes - from))
    }

    /// All of a place over `turns` turns.
    #[inline(always)]
    pub fn over((next, bytes): (*const u8, usize), turns: usize) -> Ahead {
        let lines = bytes.div_ceil(64);
        Ahead { next, lines, burst: lines.div_ceil(turns.max(1)) }
    }

    #[inline(always)]
    pub fn turn(&mut self) {
        for _ in 0..self.burst.min(self.lines) {
            // SAFETY: a hint; any address is allowed.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.next.cast()) };
            self.next = self.next.wrapping_add(64);
            self.lines -= 1;
        }
    }
}

/// Calls the tile for a run-time number of vectors and rows; `pair`: the second half of the rows is another line's.
macro_rules! tiles {
    ($f:ident, $v:expr, $p:expr, $pair:expr, $args:tt) => {
        if $pair {
            tiles!(@ true, $f, $v, $p, $args, (1: 2 4 6 8 10 12 14 16) (2: 2 4 6 8 10 12 14) (3: 2 4 6 8))
        } else {
            tiles!(@ false, $f, $v, $p, $args, (1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
                (2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14) (3: 1 2 3 4 5 6 7 8))
        }
    };
    (@ $pair:literal, $f:ident, $v:expr, $p:expr, $args:tt, $(($cv:literal: $($cp:literal)*))*) => {
        match ($v, $p) {
            $($(($cv, $cp) => tiles!(# $pair, $f, $cv, $cp, $args),)*)*
            _ => unreachable!("tile sizes come from `most_rows` and `widths`"),
        }
    };
    (# $pair:literal, $f:ident, $cv:literal, $cp:literal, ($($arg:expr),*)) => { $f::<$cp, $cv, $pair>($($arg),*) };
}

impl<A> Line<'_, A> {
    /// Calls `tile(line from its first row on, rows, pair)` for parts of all rows, each at most `most`, as long as they can be.
    ///
    /// # Safety
    /// The lines are where the fields say.
    #[inline(always)]
    unsafe fn each(self, most: usize, mut tile: impl FnMut(Self, usize, bool, usize)) {
        // Two short lines make one tile: more use of every weight that is loaded.
        let pairs = if 2 * self.rows <= most { self.lines / 2 } else { 0 };
        let parts = self.rows.div_ceil(most).max(1);
        let (base, longer) = (self.rows / parts, self.rows % parts);
        let total = pairs + (self.lines - 2 * pairs) * parts;
        let mut done = 0;
        let mut fetch = |part: Self| {
            done += 1;
            Line { ahead: Ahead::part(self.ahead, done - 1, total), ..part }
        };
        for i in 0..pairs {
            // SAFETY: both lines exist.
            tile(fetch(unsafe { self.skip(2 * i, 0) }), 2 * self.rows, true, 2 * i * self.rows);
        }
        for line in 2 * pairs..self.lines {
            let mut at = 0;
            for i in 0..parts {
                let len = base + usize::from(i < longer);
                // SAFETY: the line exists and has these rows.
                tile(fetch(unsafe { self.skip(line, at) }), len, false, line * self.rows + at);
                at += len;
            }
        }
    }
}

/// One panel's columns of all lines, f32.
///
/// # Safety
/// [`floats`] holds. All pointers of `line` reach their rows, taps and `panel`'s columns.
pub(crate) unsafe fn line_f32(b: *const __m512, panel: &Panel, line: Line<'_, f32>) {
    // SAFETY: the panel's own place; the rest as the caller vouches.
    unsafe {
        let b = b.add(panel.at);
        line.each(most_rows(panel.vecs), |part, rows, pair, _| {
            tiles!(tile_f32, panel.vecs, rows, pair, (b, panel.cols, &part));
        });
    }
}

/// One panel's columns of all lines, int8.
///
/// # Safety
/// [`dots`] holds. As [`line_f32`]; taps are readable up to a multiple of four values.
pub(crate) unsafe fn line_u8(b: *const __m512i, panel: &Panel, line: Line<'_, u8>, scales: Scales) {
    // SAFETY: as above; scales have one entry a row or stride 0.
    unsafe {
        let b = b.add(panel.at);
        line.each(most_rows(panel.vecs), |part, rows, pair, first| {
            let scale = scales.scale.add(first * scales.stride);
            let scales = Scales { scale, zero: scales.zero.add(first * scales.stride), ..scales };
            tiles!(tile_u8, panel.vecs, rows, pair, (b, panel.cols, &part, &scales));
        });
    }
}

impl<A> Line<'_, A> {
    /// Without the first `lines` lines and `rows` rows of the next.
    ///
    /// # Safety
    /// There are so many.
    #[inline(always)]
    unsafe fn skip(&self, lines: usize, rows: usize) -> Self {
        let n = (lines * self.rows + rows) * self.out_stride;
        // SAFETY: within the lines.
        unsafe {
            let residual = if self.residual.is_null() { self.residual } else { self.residual.add(n) };
            Line {
                a: self.a.add(lines * self.line_stride + rows * self.stride),
                out: self.out.add(n),
                residual,
                ..*self
            }
        }
    }
}

/// Hides where a pointer comes from, so that row addresses stay "pointer + offset" instead of one register a row.
/// Nothing is read or written through it here, so `nomem` holds.
#[allow(clippy::pointers_in_nomem_asm_block)]
#[inline(always)]
fn opaque<T>(mut p: *const T) -> *const T {
    // SAFETY: no instruction.
    unsafe { asm!("/* {0} */", inout(reg) p, options(nomem, nostack, preserves_flags, pure)) };
    p
}

/// Repeats a block for `$i` = 0, 1, .. below `$n` (at most 16) with `$i` constant: accumulators stay in registers without
/// relying on the optimiser's loop unrolling.
macro_rules! unroll {
    ($i:ident < $n:expr, $body:block) => {
        unroll!(@ $i, $n, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $i:ident, $n:expr, $body:block, $($k:literal)*) => {
        $({
            const $i: usize = $k;
            if $i < $n $body
        })*
    };
}
pub(super) use unroll;

#[inline(always)]
fn lanes(cols: usize, v: usize) -> __mmask16 {
    let n = cols.saturating_sub(16 * v).min(16);
    if n == 16 { 0xffff } else { (1u16 << n) - 1 }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn tile_f32<const P: usize, const V: usize, const PAIR: bool>(
    b: *const __m512,
    cols: usize,
    line: &Line<'_, f32>,
) {
    let mut acc = [[_mm512_setzero_ps(); V]; P];
    let mut b = b;
    let s = line.stride;
    let off = [0, s, 2 * s, 3 * s, 4 * s, 5 * s, 6 * s, 7 * s];
    let first = first_rows(P, PAIR);
    let mut ahead = Ahead::over(line.ahead, line.taps.len() * line.steps.div_ceil(8));
    // SAFETY: the caller vouches for all reads and writes; `b` walks the panel once.
    unsafe {
        touch(P, V, line);
        if line.resume {
            unroll!(J < V, {
                unroll!(I < P, {
                    acc[I][J] = _mm512_maskz_loadu_ps(lanes(cols, J), line.out.add(I * line.out_stride + 16 * J));
                });
            });
        }
        for &tap in line.taps {
            let mut lo = line.a.add(tap);
            let mut hi = line.a.wrapping_add(tap + if PAIR { line.line_stride } else { 8 * s });
            for step in 0..line.steps {
                if step % 8 == 0 {
                    ahead.turn();
                }
                lo = opaque(lo);
                if P > first {
                    hi = opaque(hi);
                }
                let mut w = [_mm512_setzero_ps(); V];
                for (v, w) in w.iter_mut().enumerate() {
                    *w = *b.add(v);
                }
                b = b.add(V);
                unroll!(I < P, {
                    let x = _mm512_set1_ps(if I < first {
                        *lo.add(off[I & 7])
                    } else {
                        *hi.add(off[I.wrapping_sub(first) & 7])
                    });
                    acc[I][0] = _mm512_fmadd_ps(x, w[0], acc[I][0]);
                    if V > 1 {
                        acc[I][1 % V] = _mm512_fmadd_ps(x, w[1 % V], acc[I][1 % V]);
                    }
                    if V > 2 {
                        acc[I][2 % V] = _mm512_fmadd_ps(x, w[2 % V], acc[I][2 % V]);
                    }
                });
                lo = lo.add(1);
                hi = hi.wrapping_add(1);
            }
        }
        unroll!(J < V, {
            let mask = lanes(cols, J);
            if line.partial {
                unroll!(I < P, {
                    _mm512_mask_storeu_ps(line.out.add(I * line.out_stride + 16 * J), mask, acc[I][J]);
                });
            } else {
                let bias = _mm512_maskz_loadu_ps(mask, line.bias.add(16 * J));
                unroll!(I < P, {
                    store(_mm512_add_ps(acc[I][J], bias), mask, I * line.out_stride + 16 * J, line);
                });
            }
        });
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn tile_u8<const P: usize, const V: usize, const PAIR: bool>(
    b: *const __m512i,
    cols: usize,
    line: &Line<'_, u8>,
    scales: &Scales,
) {
    let mut acc = [[_mm512_setzero_si512(); V]; P];
    let mut b = b;
    let s = line.stride;
    let off = [0, s, 2 * s, 3 * s, 4 * s, 5 * s, 6 * s, 7 * s];
    let first = first_rows(P, PAIR);
    let mut ahead = Ahead::over(line.ahead, line.taps.len() * line.steps.div_ceil(8));
    // SAFETY: as in `tile_f32`; groups of four may be unaligned.
    unsafe {
        touch(P, V, line);
        for &tap in line.taps {
            let mut lo = line.a.add(tap);
            let mut hi = line.a.wrapping_add(tap + if PAIR { line.line_stride } else { 8 * s });
            for step in 0..line.steps {
                if step % 8 == 0 {
                    ahead.turn();
                }
                lo = opaque(lo);
                if P > first {
                    hi = opaque(hi);
                }
                let mut w = [_mm512_setzero_si512(); V];
                for (v, w) in w.iter_mut().enumerate() {
                    *w = *b.add(v);
                }
                b = b.add(V);
                unroll!(I < P, {
                    let at = if I < first { lo.add(off[I & 7]) } else { hi.add(off[I.wrapping_sub(first) & 7]) };
                    let x = _mm512_set1_epi32(at.cast::<i32>().read_unaligned());
                    acc[I][0] = _mm512_dpbusd_epi32(acc[I][0], x, w[0]);
                    if V > 1 {
                        acc[I][1 % V] = _mm512_dpbusd_epi32(acc[I][1 % V], x, w[1 % V]);
                    }
                    if V > 2 {
                        acc[I][2 % V] = _mm512_dpbusd_epi32(acc[I][2 % V], x, w[2 % V]);
                    }
                });
                lo = lo.add(4);
                hi = hi.wrapping_add(4);
            }
        }
        unroll!(J < V, {
            let mask = lanes(cols, J);
            let bias = _mm512_maskz_loadu_ps(mask, line.bias.add(16 * J));
            let factors = _mm512_maskz_loadu_ps(mask, scales.factors.add(16 * J));
            let sums = _mm512_maskz_loadu_epi32(mask, scales.sums.add(16 * J));
            unroll!(I < P, {
                let y = scaled(acc[I][J], I, factors, sums, bias, scales);
                store(y, mask, I * line.out_stride + 16 * J, line);
            });
        });
    }
}

/// `(acc - zero · sums) · (scale · factors) + bias` of row `row`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn scaled(acc: __m512i, row: usize, factors: __m512, sums: __m512i, bias: __m512, scales: &Scales) -> __m512 {
    // SAFETY: scales have one entry a row or stride 0.
    let (zero, scale) = unsafe { (*scales.zero.add(row * scales.stride), *scales.scale.add(row * scales.stride)) };
    let scale = _mm512_mul_ps(_mm512_set1_ps(scale), factors);
    let sum = _mm512_sub_epi32(acc, _mm512_mullo_epi32(_mm512_set1_epi32(zero), sums));
    _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, bias)
}

/// The end of an int8 product whose sums were computed elsewhere: `rows` rows of 16 sums, from output row `first` on,
/// vector `v` of the panel's columns.
///
/// # Safety
/// [`dots`] holds; as [`line_u8`] for these rows and columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(crate) unsafe fn scaled_rows(
    acc: &[i32; 256],
    rows: usize,
    first: usize,
    v: usize,
    cols: usize,
    line: &Line<'_, u8>,
    scales: &Scales,
) {
    let mask = lanes(cols, v);
    // SAFETY: as the caller vouches.
    unsafe {
        let bias = _mm512_maskz_loadu_ps(mask, line.bias.add(16 * v));
        let factors = _mm512_maskz_loadu_ps(mask, scales.factors.add(16 * v));
        let sums = _mm512_maskz_loadu_epi32(mask, scales.sums.add(16 * v));
        for (i, acc) in acc.chunks_exact(16).take(rows).enumerate() {
            let y = scaled(_mm512_loadu_si512(acc.as_ptr().cast()), first + i, factors, sums, bias, scales);
            store(y, mask, (first + i) * line.out_stride + 16 * v, line);
        }
    }
}

/// Fetches a tile's outputs and residuals, which are needed only after its products.
#[inline(always)]
unsafe fn touch<A>(rows: usize, vecs: usize, line: &Line<'_, A>) {
    for i in 0..rows {
        for j in 0..vecs {
            let at = i * line.out_stride + 16 * j;
            // SAFETY: hints; any address is allowed.
            unsafe {
                _mm_prefetch::<_MM_HINT_ET0>(line.out.wrapping_add(at).cast());
                if !line.residual.is_null() {
                    _mm_prefetch::<_MM_HINT_T0>(line.residual.wrapping_add(at).cast());
                }
            }
        }
    }
}

/// Adds the residual, applies ReLU and stores.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn store<A>(y: __m512, mask: __mmask16, at: usize, line: &Line<'_, A>) {
    // SAFETY: called from tiles, within the line.
    unsafe {
        let mut y = y;
        if !line.residual.is_null() {
            y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, line.residual.add(at)));
        }
        if line.relu {
            // The zero comes second so that NaN passes through as it does elsewhere.
            y = _mm512_max_ps(_mm512_setzero_ps(), y);
        }
        _mm512_mask_storeu_ps(line.out.add(at), mask, y);
    }
}

/// `n` rounds of 24 independent f32 multiply-adds on registers, for measuring.
///
/// # Safety
/// [`floats`] holds.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(crate) unsafe fn burst_f32(n: usize) {
    let (x, w) = (_mm512_set1_ps(std::hint::black_box(0.5)), _mm512_set1_ps(std::hint::black_box(0.25)));
    let mut acc = [_mm512_setzero_ps(); 24];
    for _ in 0..n {
        acc.iter_mut().for_each(|a| *a = _mm512_fmadd_ps(x, w, *a));
    }
    std::hint::black_box(acc);
}

/// As [`burst_f32`] with int8 dot products.
///
/// # Safety
/// [`dots`] holds.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(crate) unsafe fn burst_u8(n: usize) {
    let (x, w) = (_mm512_set1_epi32(std::hint::black_box(1)), _mm512_set1_epi32(std::hint::black_box(2)));
    let mut acc = [_mm512_setzero_si512(); 24];
    for _ in 0..n {
        acc.iter_mut().for_each(|a| *a = _mm512_dpbusd_epi32(*a, x, w));
    }
    std::hint::black_box(acc);
}

/// Smallest and largest of `x` and zero; NaN is ignored.
///
/// # Safety
/// [`floats`] holds.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(crate) unsafe fn range_with_zero(x: &[f32]) -> (f32, f32) {
    let mut lo = [_mm512_setzero_ps(); 4];
    let mut hi = lo;
    let blocks = x.chunks_exact(64);
    let tail = blocks.remainder();
    for b in blocks {
        for i in 0..4 {
            // SAFETY: a block has 64 values. A NaN operand makes the second one the result, so it comes first.
            let v = unsafe { _mm512_loadu_ps(b.as_ptr().add(16 * i)) };
            lo[i] = _mm512_min_ps(v, lo[i]);
            hi[i] = _mm512_max_ps(v, hi[i]);
        }
    }
    for (i, t) in tail.chunks(16).enumerate() {
        // SAFETY: the mask ends with the chunk.
        let v = unsafe { _mm512_maskz_loadu_ps(lanes(t.len(), 0), t.as_ptr()) };
        lo[i] = _mm512_min_ps(v, lo[i]);
        hi[i] = _mm512_max_ps(v, hi[i]);
    }
    let lo = _mm512_min_ps(_mm512_min_ps(lo[0], lo[1]), _mm512_min_ps(lo[2], lo[3]));
    let hi = _mm512_max_ps(_mm512_max_ps(hi[0], hi[1]), _mm512_max_ps(hi[2], hi[3]));
    (_mm512_reduce_min_ps(lo), _mm512_reduce_max_ps(hi))
}

/// `row = exp(row - max(row)) / Σ` over the first `n` values of each `stride`-long row; the rest of a row becomes zero.
///
/// # Safety
/// [`floats`] holds.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(crate) unsafe fn softmax_rows(rows: &mut [f32], stride: usize, n: usize) {
    for row in rows.chunks_exact_mut(stride) {
        let mut max = _mm512_set1_ps(f32::NEG_INFINITY);
        let vecs = n.div_ceil(16);
        let p = row.as_mut_ptr();
        // SAFETY: `n ≤ stride`, masks keep accesses within the row.
        unsafe {
            for v in 0..vecs {
                let x = _mm512_mask_loadu_ps(max, lanes(n, v), p.add(16 * v));
                max = _mm512_max_ps(max, x);
            }
            let max = _mm512_set1_ps(_mm512_reduce_max_ps(max));
            let mut sum = _mm512_setzero_ps();
            for v in 0..vecs {
                let mask = lanes(n, v);
                let x = _mm512_maskz_loadu_ps(mask, p.add(16 * v));
                let e = _mm512_maskz_mov_ps(mask, exp(_mm512_sub_ps(x, max)));
                sum = _mm512_add_ps(sum, e);
                _mm512_mask_storeu_ps(p.add(16 * v), lanes(stride, v), e);
            }
            let scale = _mm512_set1_ps(1.0 / _mm512_reduce_add_ps(sum));
            for v in 0..vecs {
                let mask = lanes(n, v);
                let x = _mm512_maskz_loadu_ps(mask, p.add(16 * v));
                _mm512_mask_storeu_ps(p.add(16 * v), mask, _mm512_mul_ps(x, scale));
            }
        }
    }
}

/// `e^x` for `x ≤ 0` to about 2 ulp: `2^n · p(r)`, the polynomial of Cephes' `expf`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn exp(x: __m512) -> __m512 {
    let n = _mm512_roundscale_ps::<0x08>(_mm512_mul_ps(x, _mm512_set1_ps(std::f32::consts::LOG2_E)));
    // ln 2 in two parts keeps the remainder exact.
    let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693_359_4), x);
    let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.121_944_4e-4), r);
    let mut y = _mm512_set1_ps(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 5e-1] {
        y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(c));
    }
    let y = _mm512_add_ps(_mm512_fmadd_ps(y, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0));
    _mm512_scalef_ps(y, n)
}
