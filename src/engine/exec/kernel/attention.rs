//! The attention core: softmax(scale · q·kᵀ)·v per image and head, as two products around a row softmax. Heads may share keys and
//! values, and a causal mask lets a row see no later one, a sliding window none too far before it, local attention none too far on
//! either side: what they would hide is not computed but for the rest of a block of rows. Scores may be capped.

#[cfg(target_arch = "x86_64")]
use super::tiles::With;
use super::{Par, Scratch, room, rows, split, vector, with_scratch};
use crate::graph::Activation;

/// Sizes of one attention core; rows of `q`, `k`, `v` may be wider than the heads (fused projections).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attention {
    pub tokens: usize,
    pub heads: usize,
    pub qk: usize,
    pub v: usize,
    pub scale: f32,
    /// Consecutive heads that share a head of keys and values.
    pub group: usize,
    /// A row sees itself and those before it; goes without a bias.
    pub causal: bool,
    /// At most so many, under a causal mask.
    pub most: Option<usize>,
    /// A row sees those at most so far away on either side; goes without a causal mask and a bias.
    pub reach: Option<usize>,
    /// A score `s` becomes `cap · tanh(s / cap)`.
    pub cap: Option<f32>,
}

/// Where q, k or v lie: `[images·tokens, width]`, heads from column `at` on.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub data: &'a [f32],
    pub width: usize,
    pub at: usize,
}

impl<'a> Part<'a> {
    /// `n` rows from `first` on.
    pub fn rows(self, first: usize, n: usize) -> Part<'a> {
        Part { data: &self.data[first * self.width..(first + n) * self.width], ..self }
    }

    /// `len` columns from `col` on of row `r`.
    pub fn row(&self, r: usize, col: usize, len: usize) -> &[f32] {
        &self.data[r * self.width + self.at + col..][..len]
    }
}

/// One head's work: query rows `from..` of the image whose tokens begin at row `first`.
#[derive(Clone, Copy)]
struct Head<'a> {
    q: Part<'a>,
    k: Part<'a>,
    v: Part<'a>,
    first: usize,
    from: usize,
    head: usize,
    /// The head of keys and values.
    kv: usize,
    /// Its keys and values are not those that were packed last.
    fresh: bool,
    /// Rows of keys that this band sees.
    seen: usize,
    /// Added to the scores of this head's query rows from `from` on, `[.., tokens]`.
    bias: Option<&'a [f32]>,
}

impl Attention {
    /// What will run, for people.
    pub fn kernel(&self) -> String {
        #[cfg(target_arch = "x86_64")]
        if let Some(with) = With::best() {
            return format!("attention-f32/{}", with.name());
        }
        "attention-f32/portable".to_owned()
    }

    /// `out` is `[images, tokens, heads·v]`; `bias`, `[heads, tokens, tokens]`, is added to every image's scores.
    pub fn run(&self, q: Part<'_>, k: Part<'_>, v: Part<'_>, bias: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        #[cfg(target_arch = "x86_64")]
        if let Some(with) = With::best() {
            let core = wide::Core::new(*self, with);
            return self.bands([q, k, v], bias, out, par, &|h, out, s| core.head(h, out, s));
        }
        self.bands([q, k, v], bias, out, par, &|h, out, s| self.head(h, out, s));
    }

    /// Calls `f` for every image, band of query rows and head.
    fn bands(
        &self,
        [q, k, v]: [Part<'_>; 3],
        bias: Option<&[f32]>,
        out: &mut [f32],
        par: Par<'_>,
        f: &(dyn Fn(Head<'_>, &mut [f32], &mut Scratch) + Sync),
    ) {
        let (t, width) = (self.tokens, self.heads * self.v);
        // Later rows see more: smaller bands, so that threads end together.
        let bands = if self.causal { 4 * par.threads() } else { par.threads() };
        let rows = t.div_ceil(bands).max(1);
        for (img, out) in out.chunks_mut((t * width).max(1)).enumerate() {
            split(par, out, rows * width, |b, out| {
                with_scratch(|s| {
                    let seen = self.seen_until(t.min((b + 1) * rows) - 1);
                    for head in 0..self.heads {
                        let bias = bias.map(|all| &all[(head * t + b * rows) * t..]);
                        let (kv, fresh) = (head / self.group, head % self.group == 0);
                        f(Head { q, k, v, first: img * t, from: b * rows, head, kv, fresh, seen, bias }, out, s);
                    }
                });
            });
        }
    }

    /// The first row that row `r` of an image sees.
    pub(super) fn first_seen(&self, r: usize) -> usize {
        match self.reach {
            Some(reach) => r.saturating_sub(reach),
            None => self.most.map_or(0, |most| (r + 1).saturating_sub(most)),
        }
    }

    /// The row after the last one that row `r` sees.
    fn seen_until(&self, r: usize) -> usize {
        let end = match self.reach {
            Some(reach) => r.saturating_add(reach).saturating_add(1),
            None if self.causal => r + 1,
            None => self.tokens,
        };
        end.min(self.tokens)
    }

    /// Rows see different others.
    fn masked(&self) -> bool {
        self.causal || self.reach.is_some()
    }

    pub(super) fn capped(&self, scores: &mut [f32]) {
        if let Some(cap) = self.cap {
            scores.iter_mut().for_each(|s| *s /= cap);
            rows::activate(scores, Activation::Tanh);
            scores.iter_mut().for_each(|s| *s *= cap);
        }
    }

    /// Portable: one query row at a time.
    fn head(&self, h: Head<'_>, out: &mut [f32], s: &mut Scratch) {
        let (t, width) = (self.tokens, self.heads * self.v);
        let (kt, scores) = room(&mut s.f32, self.qk * t + t).split_at_mut(self.qk * t);
        for j in self.first_seen(h.from)..if h.fresh { h.seen } else { 0 } {
            for (d, &v) in h.k.row(h.first + j, h.kv * self.qk, self.qk).iter().enumerate() {
                kt[d * t + j] = v;
            }
        }
        let values = &h.v.data[h.first * h.v.width + h.v.at + h.kv * self.v..];
        for (r, out) in out.chunks_exact_mut(width).enumerate() {
            let q = h.q.row(h.first + h.from + r, h.head * self.qk, self.qk);
            let from = self.first_seen(h.from + r);
            let seen = self.seen_until(h.from + r) - from;
            let scores = &mut scores[..seen];
            vector::combine(q, self.scale, &kt[from..], t, scores);
            self.capped(scores);
            if let Some(bias) = h.bias {
                vector::accumulate(scores, &bias[r * t..][..t]);
            }
            rows::softmax(scores, seen);
            let values = &values[from * h.v.width..];
            vector::combine(scores, 1.0, values, h.v.width, &mut out[h.head * self.v..][..self.v]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    //! The same through register tiles: kᵀ and v become panels, all query rows of a band go through them together.

    use super::super::avx512::{Line, Panel, softmax_rows};
    use super::super::tiles::With;
    use super::{Attention, Head};
    use crate::exec::kernel::{Scratch, room, rows, vector};
    use std::arch::x86_64::__m512;

    /// An attention core with its panel layout.
    pub(super) struct Core {
        core: Attention,
        with: With,
        keys: Vec<Panel>,
        values: Vec<Panel>,
        /// Vectors that each of them takes.
        sizes: [usize; 2],
    }

    /// Rows of a block under a mask: four tiles.
    const MASKED_ROWS: usize = 56;

    /// No bias; as long as a panel is wide.
    static ZEROS: [f32; 48] = [0.0; 48];

    impl Core {
        /// For registers that this processor has.
        pub fn new(core: Attention, with: With) -> Core {
            let over = |cols, steps| Panel::over(cols, steps, with.widest());
            let (keys, values) = (over(core.tokens, core.qk), over(core.v, core.tokens));
            let sizes = [core.tokens.div_ceil(16) * core.qk, core.v.div_ceil(16) * core.tokens];
            Core { core, with, keys, values, sizes }
        }

        pub fn head(&self, h: Head<'_>, out: &mut [f32], s: &mut Scratch) {
            let Attention { tokens: t, heads, qk, v, scale, .. } = self.core;
            let masked = self.core.masked();
            // An odd number of cache lines from row to row, or a tile's rows would compete for the same few places.
            let (width, stride) = (heads * v, (t.div_ceil(16) | 1) * 16);
            let rows = out.len() / width;
            let need = self.sizes[0] + self.sizes[1];
            if s.vectors.len() < need {
                // SAFETY: all zero bits are a valid vector.
                s.vectors.resize(need, unsafe { std::mem::zeroed::<__m512>() });
            }
            let (keys, values) = s.vectors[..need].split_at_mut(self.sizes[0]);
            if h.fresh {
                let first = self.core.first_seen(h.from);
                pack(keys, &self.keys, |keys, panel| {
                    for j in first.saturating_sub(panel.col)..panel.cols.min(h.seen.saturating_sub(panel.col)) {
                        let row = h.k.row(h.first + panel.col + j, h.kv * qk, qk);
                        row.iter().enumerate().for_each(|(d, &x)| keys[panel.place(d, j)] = x * scale);
                    }
                });
                pack(values, &self.values, |values, panel| {
                    for j in first..h.seen {
                        let row = h.v.row(h.first + j, h.kv * v + panel.col, panel.cols);
                        values[panel.place(j, 0)..][..panel.cols].copy_from_slice(row);
                    }
                });
            }
            // Only as many rows at a time as their scores stay in the second-level cache: memory grows with the tokens, not
            // with their square. Every row is on its own, so the cut does not show in the result.
            // A block's last row decides how far all of it looks: smaller ones where that differs.
            let block = block(stride).min(rows).min(if masked { MASKED_ROWS } else { rows });
            let scores = room(&mut s.f32, block * stride);
            for (i, out) in out.chunks_mut(block * width).enumerate() {
                let (first, rows) = (i * block, out.len() / width);
                let scores = &mut scores[..rows * stride];
                // What no row of the block sees is left out, by whole panels of keys: scores begin at column `hidden`, a
                // multiple of a vector, so that sums are of the same bits whatever the block.
                let end = self.core.seen_until(h.from + first + rows - 1);
                let from = self.core.first_seen(h.from + first);
                let hidden = self.keys.iter().rev().find(|p| p.col <= from).map_or(0, |p| p.col);
                let seen = end - hidden;
                let q = &h.q.data[(h.first + h.from + first) * h.q.width + h.q.at + h.head * qk..];
                assert!(q.len() >= (rows - 1) * h.q.width + qk);
                let line = |a: &[f32], stride, steps, out: &mut [f32], out_stride| Line {
                    a: a.as_ptr(),
                    stride,
                    line_stride: 0,
                    taps: &[0],
                    steps,
                    rows,
                    lines: 1,
                    out: out.as_mut_ptr(),
                    residual: std::ptr::null(),
                    out_stride,
                    bias: ZEROS.as_ptr(),
                    relu: false,
                    resume: false,
                    partial: false,
                    ahead: (std::ptr::null(), 0),
                };
                // SAFETY: every row of queries has `qk` values and every row of scores `stride ≥ t`; `out` has `rows` rows.
                unsafe {
                    for p in self.keys.iter().filter(|p| (hidden..end).contains(&p.col)) {
                        let line = line(q, h.q.width, qk, &mut scores[p.col - hidden..], stride);
                        self.with.line_f32(keys.as_ptr(), p, line);
                    }
                    if self.core.cap.is_some() {
                        scores.chunks_exact_mut(stride).for_each(|s| self.core.capped(&mut s[..seen]));
                    }
                    if let Some(bias) = h.bias {
                        let bias = bias[first * t..].chunks_exact(t);
                        scores.chunks_exact_mut(stride).zip(bias).for_each(|(s, b)| vector::accumulate(&mut s[..t], b));
                    }
                    if masked {
                        for (row, s) in (h.from + first..).zip(scores.chunks_exact_mut(stride)) {
                            s[self.core.seen_until(row) - hidden..seen].fill(f32::NEG_INFINITY);
                            s[..self.core.first_seen(row) - hidden].fill(f32::NEG_INFINITY);
                        }
                    }
                    match self.with {
                        With::Wide => softmax_rows(scores, stride, seen),
                        With::Pair => rows::softmax_in_order(scores, stride, seen),
                    }
                    for p in &self.values {
                        let values = values.as_ptr().add(hidden * p.vecs);
                        let line = line(scores, stride, seen, &mut out[h.head * v + p.col..], width);
                        self.with.line_f32(values, p, line);
                    }
                }
            }
        }
    }

    /// Query rows whose scores, `stride` values each, are half of a usual second-level cache; at least two tiles.
    pub(super) fn block(stride: usize) -> usize {
        ((1 << 17) / stride.max(1) / 14 * 14).max(28)
    }

    /// Clears the vectors and lets `fill` write each panel's values.
    fn pack(vectors: &mut [__m512], panels: &[Panel], fill: impl Fn(&mut [f32], &Panel)) {
        // SAFETY: a vector is 16 floats; any bits are valid for both.
        let flat = unsafe { std::slice::from_raw_parts_mut(vectors.as_mut_ptr().cast::<f32>(), vectors.len() * 16) };
        flat.fill(0.0);
        panels.iter().for_each(|p| fill(flat, p));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::kernel::{noise, shared};

    /// `softmax(scale · q·kᵀ + bias)·v` in f64 for query row `r` of one image.
    fn row(a: &Attention, qkv: &[f32], bias: &[f32], head: usize, r: usize) -> Vec<f64> {
        let (qw, vw) = (a.heads * a.qk, a.heads * a.v);
        let at = |token: usize, col: usize| f64::from(qkv[token * (2 * qw + vw) + col]);
        let score = |j: usize| {
            let dot: f64 = (0..a.qk).map(|d| at(r, head * a.qk + d) * at(j, qw + head * a.qk + d)).sum();
            dot * f64::from(a.scale) + f64::from(bias[(head * a.tokens + r) * a.tokens + j])
        };
        let scores: Vec<f64> = (0..a.tokens).map(score).collect();
        let top = scores.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
        let e: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let sum: f64 = e.iter().sum();
        (0..a.v).map(|d| (0..a.tokens).map(|j| e[j] / sum * at(j, 2 * qw + head * a.v + d)).sum()).collect()
    }

    /// Long enough that the rows go in several blocks, the last one short; the same bits for every number of threads.
    #[test]
    fn long_sequences_match_f64_in_blocks_of_rows() {
        let a = Attention {
            tokens: 1100,
            heads: 2,
            qk: 12,
            v: 20,
            scale: 0.3,
            group: 1,
            causal: false,
            most: None,
            reach: None,
            cap: None,
        };
        #[cfg(target_arch = "x86_64")]
        assert!(wide::block(a.tokens.next_multiple_of(16)) * 4 < a.tokens);
        let (qw, vw) = (a.heads * a.qk, a.heads * a.v);
        let width = 2 * qw + vw;
        let (qkv, bias) = (noise(2 * a.tokens * width, 1), noise(a.heads * a.tokens * a.tokens, 2));
        let part = |at| Part { data: &qkv, width, at };
        let mut first: Option<Vec<f32>> = None;
        for threads in [1, 3] {
            let mut out = vec![f32::NAN; 2 * a.tokens * vw];
            shared(threads, |par| a.run(part(0), part(qw), part(2 * qw), Some(&bias), &mut out, par));
            for (r, head) in [(0, 0), (117, 1), (500, 0), (1099, 1)] {
                let want = row(&a, &qkv[a.tokens * width..], &bias, head, r);
                let got = &out[(a.tokens + r) * vw + head * a.v..][..a.v];
                want.iter()
                    .zip(got)
                    .for_each(|(w, g)| assert!((w - f64::from(*g)).abs() < 2e-6, "row {r}: {g}, not {w}"));
            }
            assert_eq!(first.get_or_insert_with(|| out.clone()), &out);
        }
    }

    /// Two heads of keys and values for six of queries, each row seeing those before it; the same bits for every number of
    /// threads, and the same to rounding for a row however many come after it.
    #[test]
    fn shared_keys_under_a_causal_mask_match_f64() {
        // Windows of no whole number of vectors, of fewer rows than a block has, of one row, and longer than the sequence.
        for most in [None, Some(150), Some(19), Some(1), Some(400)] {
            for cap in [None, Some(0.7)] {
                causal(most, cap);
            }
        }
    }

    fn causal(most: Option<usize>, cap: Option<f32>) {
        let a = Attention {
            tokens: 333,
            heads: 6,
            qk: 16,
            v: 24,
            scale: 0.25,
            group: 3,
            causal: true,
            most,
            reach: None,
            cap,
        };
        let (q, kv) = (a.heads * a.qk, a.heads / a.group);
        let widths = [q, kv * a.qk, kv * a.v];
        let all: Vec<Vec<f32>> = (1..).zip(widths).map(|(i, w)| noise(2 * a.tokens * w, i)).collect();
        let part = |i: usize| Part { data: &all[i], width: widths[i], at: 0 };
        let width = a.heads * a.v;
        let mut first: Option<Vec<f32>> = None;
        for threads in [1, 2] {
            let mut out = vec![f32::NAN; 2 * a.tokens * width];
            shared(threads, |par| a.run(part(0), part(1), part(2), None, &mut out, par));
            for (r, head) in [(0, 0), (1, 5), (55, 2), (200, 3), (332, 4)] {
                let (row, h) = (a.tokens + r, head / a.group);
                let at = |i: usize, token: usize, col: usize| f64::from(all[i][(a.tokens + token) * widths[i] + col]);
                let score = |j: usize| -> f64 {
                    let s = (0..a.qk).map(|d| at(0, r, head * a.qk + d) * at(1, j, h * a.qk + d)).sum::<f64>() * 0.25;
                    cap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh())
                };
                let from = most.map_or(0, |most| (r + 1).saturating_sub(most));
                let scores: Vec<f64> = (from..=r).map(score).collect();
                let top = scores.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
                let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
                for d in 0..a.v {
                    let part = |(j, s): (usize, &f64)| (s - top).exp() / sum * at(2, j, h * a.v + d);
                    let want: f64 = (from..=r).zip(&scores).map(part).sum();
                    let got = f64::from(out[row * width + head * a.v + d]);
                    assert!((want - got).abs() < 4e-6, "{most:?}, row {r}, head {head}: {got}, not {want}");
                }
            }
            assert_eq!(first.get_or_insert_with(|| out.clone()), &out);
        }
        // One row at a time, as processors without the tiles do it.
        let mut portable = vec![f32::NAN; 2 * a.tokens * width];
        let one_by_one = |h: Head<'_>, out: &mut [f32], s: &mut Scratch| a.head(h, out, s);
        a.bands([part(0), part(1), part(2)], None, &mut portable, Par::ALONE, &one_by_one);
        assert!(portable.iter().zip(first.iter().flatten()).all(|(a, b)| (a - b).abs() < 4e-6));
        let fewer = Attention { tokens: 100, ..a };
        let mut out = vec![f32::NAN; 100 * width];
        fewer.run(part(0), part(1), part(2), None, &mut out, Par::ALONE);
        let whole = first.unwrap_or_default();
        assert!(out.iter().zip(&whole).all(|(a, b)| (a - b).abs() < 4e-6));
    }

    /// Rows that see so far on both sides, with bands and blocks that begin in the middle; the same bits for every number of threads.
    #[test]
    fn local_attention_matches_f64() {
        for reach in [0, 1, 20, 64, 332, 400] {
            let causal = false;
            let (most, cap) = (None, None);
            let a = Attention {
                tokens: 333,
                heads: 2,
                qk: 16,
                v: 24,
                scale: 0.25,
                group: 1,
                causal,
                most,
                reach: Some(reach),
                cap,
            };
            let widths = [a.heads * a.qk, a.heads * a.qk, a.heads * a.v];
            let all: Vec<Vec<f32>> = (1..).zip(widths).map(|(i, w)| noise(2 * a.tokens * w, i)).collect();
            let part = |i: usize| Part { data: &all[i], width: widths[i], at: 0 };
            let width = a.heads * a.v;
            let mut first: Option<Vec<f32>> = None;
            for threads in [1, 3] {
                let mut out = vec![f32::NAN; 2 * a.tokens * width];
                shared(threads, |par| a.run(part(0), part(1), part(2), None, &mut out, par));
                assert_eq!(first.get_or_insert_with(|| out.clone()), &out);
            }
            let got = first.unwrap_or_default();
            for (r, head) in [(0usize, 0), (1, 1), (57, 0), (200, 1), (332, 1)] {
                let at = |i: usize, token: usize, col: usize| f64::from(all[i][(a.tokens + token) * widths[i] + col]);
                let seen = r.saturating_sub(reach)..(r + reach + 1).min(a.tokens);
                let dot =
                    |j: usize| (0..a.qk).map(|d| at(0, r, head * a.qk + d) * at(1, j, head * a.qk + d)).sum::<f64>();
                let scores: Vec<f64> = seen.clone().map(|j| dot(j) * 0.25).collect();
                let top = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
                let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
                for d in 0..a.v {
                    let one = |(j, s): (usize, &f64)| (s - top).exp() / sum * at(2, j, head * a.v + d);
                    let want: f64 = seen.clone().zip(&scores).map(one).sum();
                    let got = f64::from(got[(a.tokens + r) * width + head * a.v + d]);
                    assert!((want - got).abs() < 4e-6, "±{reach}, row {r}, head {head}: {got}, not {want}");
                }
            }
            let mut portable = vec![f32::NAN; 2 * a.tokens * width];
            let one_by_one = |h: Head<'_>, out: &mut [f32], s: &mut Scratch| a.head(h, out, s);
            a.bands([part(0), part(1), part(2)], None, &mut portable, Par::ALONE, &one_by_one);
            assert!(portable.iter().zip(&got).all(|(a, b)| (a - b).abs() < 4e-6), "±{reach}");
        }
    }
}
