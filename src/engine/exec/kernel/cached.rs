//! Attention over a cache: what a sequence's earlier tokens left of keys and values, and the rows of queries that look at it.
//!
//! Not here: whose cache it is and how long (`exec::cache`); prompts that begin a sequence, which see themselves alone
//! ([`super::attention`]). Keys lie in pages of sixteen tokens, value by value, so that a page's scores are one vector; values
//! token by token. Invariant: a row's result does not depend on the rows beside it, nor on the number of threads.

use super::attention::{Attention, Part};
use super::lanes::{LaneKernel, Lanes, dispatch};
use super::{Par, Shared, room, rows, with_scratch};
use crate::graph::{Graph, Node, NodeId, Precision, Precisions};
use crate::model::Model;
use half::f16;
use half::vec::HalfBitsVecExt;
use std::collections::HashMap;

/// Tokens of a page.
const PAGE: usize = 16;

/// What cached keys and values are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvFormat {
    F32,
    #[default]
    F16,
    /// Eight bits a value and one scale a token and head, `amax / 127`.
    Int8,
}

impl KvFormat {
    pub const ALL: [KvFormat; 3] = [KvFormat::F32, KvFormat::F16, KvFormat::Int8];

    /// What an attention core that was decided to be in `precision` keeps them in; `None` for precisions that no cache has.
    pub fn of(precision: Precision) -> Option<KvFormat> {
        match precision {
            Precision::F32 => Some(KvFormat::F32),
            Precision::F16 => Some(KvFormat::F16),
            Precision::Int8 => Some(KvFormat::Int8),
            _ => None,
        }
    }

    /// The decision that stands for it.
    pub fn precision(self) -> Precision {
        match self {
            KvFormat::F32 => Precision::F32,
            KvFormat::F16 => Precision::F16,
            KvFormat::Int8 => Precision::Int8,
        }
    }

    /// What attention cores keep keys and values in, where that was decided.
    pub fn decided(graph: &Graph, precision: &Precisions) -> HashMap<NodeId, KvFormat> {
        let of = |(id, n): (NodeId, &Node)| {
            let precision = precision.nodes.get(&n.name).filter(|_| n.op.caches())?;
            Some((id, KvFormat::of(*precision)?))
        };
        graph.live().filter_map(of).collect()
    }

    /// Every attention core of `model` keeps keys and values in this, whatever was decided.
    pub fn decide(self, model: &mut Model) {
        let graph = model.graph.clone();
        for (_, node) in graph.live().filter(|(_, n)| n.op.caches()) {
            model.precision.set(node.name.clone(), self.precision());
        }
    }

    /// Nothing is decided of any attention core of `model`: whoever decodes says it.
    pub fn undecide(model: &mut Model) {
        for (_, node) in model.graph.live().filter(|(_, n)| n.op.caches()) {
            model.precision.nodes.remove(&node.name);
        }
    }

    /// `x`, rows of heads of `width` values, as it comes back from a cache.
    pub(in crate::exec) fn kept(self, x: &[f32], width: usize) -> Vec<f32> {
        match self {
            KvFormat::F32 => x.to_vec(),
            KvFormat::F16 => x.iter().map(|v| f16::from_f32(*v).to_f32()).collect(),
            KvFormat::Int8 => {
                let head = |x: &[f32]| {
                    let (inverse, scale) = int8_scale(x);
                    x.iter().map(|v| f32::from((v * inverse).round_ties_even() as i8) * scale).collect::<Vec<f32>>()
                };
                x.chunks(width.max(1)).flat_map(head).collect()
            }
        }
    }

    pub fn label(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::Int8 => "int8",
        }
    }

    /// Bytes of `width` values of one token and head.
    pub fn bytes(self, width: usize) -> usize {
        match self {
            KvFormat::F32 => 4 * width,
            KvFormat::F16 => 2 * width,
            KvFormat::Int8 => width + 4,
        }
    }
}

impl std::str::FromStr for KvFormat {
    type Err = String;

    fn from_str(s: &str) -> Result<KvFormat, String> {
        let found = KvFormat::ALL.into_iter().find(|f| f.label() == s.to_ascii_lowercase());
        found.ok_or_else(|| format!("a cache of `{s}` is not known; hint: f32, f16 or int8"))
    }
}

/// What values are multiplied with to be codes, and codes to be values.
fn int8_scale(x: &[f32]) -> (f32, f32) {
    let most = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    (if most > 0.0 { 127.0 / most } else { 0.0 }, most / 127.0)
}

/// A cached value.
trait Cell: Copy + Default + Send + Sync {
    /// Sixteen of them.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load<V: Lanes>(p: *const Self) -> V;
}

/// How each kind of cells is read.
macro_rules! cells {
    ($($cell:ident $load:ident)*) => {$(
        impl Cell for $cell {
            #[inline(always)]
            unsafe fn load<V: Lanes>(p: *const $cell) -> V {
                // SAFETY: as the caller vouches.
                unsafe { V::$load(p) }
            }
        }
    )*};
}
cells! { f32 load f16 load_f16 i8 load_i8 }

/// Keys and values in one format.
#[derive(Debug)]
enum Cells {
    F32([Vec<f32>; 2]),
    F16([Vec<f16>; 2]),
    /// With a scale for each token and head.
    Int8([Vec<i8>; 2], [Vec<f32>; 2]),
}

impl Cells {
    /// For `tokens` tokens of so many values in all, `heads` scales each. Pages that are not written to take no memory.
    fn new(format: KvFormat, tokens: usize, widths: [usize; 2], heads: usize) -> Cells {
        fn zeros<T: Clone + Default>(tokens: usize, widths: [usize; 2]) -> [Vec<T>; 2] {
            widths.map(|w| vec![T::default(); tokens * w])
        }
        match format {
            KvFormat::F32 => Cells::F32(zeros(tokens, widths)),
            // Of whole numbers: a vector of zeros of another kind is written when it is made.
            KvFormat::F16 => Cells::F16(zeros::<u16>(tokens, widths).map(HalfBitsVecExt::reinterpret_into)),
            KvFormat::Int8 => Cells::Int8(zeros(tokens, widths), zeros(tokens, [heads; 2])),
        }
    }

    /// Writes `x` to the places `at`, `at + stride` and so on of the keys (0) or values (1); `scale` is its scale's place.
    fn write(&mut self, kind: usize, x: &[f32], at: usize, stride: usize, scale: usize) {
        let places = (at..).step_by(stride).zip(x);
        match self {
            Cells::F32(cells) => places.for_each(|(i, v)| cells[kind][i] = *v),
            Cells::F16(cells) => places.for_each(|(i, v)| cells[kind][i] = f16::from_f32(*v)),
            Cells::Int8(codes, scales) => {
                let (inverse, step) = int8_scale(x);
                scales[kind][scale] = step;
                places.for_each(|(i, v)| codes[kind][i] = (v * inverse).round_ties_even() as i8);
            }
        }
    }
}

/// Keys and values of one sequence in one attention core.
#[derive(Debug)]
pub(crate) struct Store {
    heads: usize,
    qk: usize,
    v: usize,
    /// Values from token to token: whole vectors.
    pitch: usize,
    cells: Cells,
}

impl Store {
    /// Room for `tokens` tokens of `heads` heads of keys (`qk` values) and values (`v`).
    pub fn new(format: KvFormat, tokens: usize, heads: usize, [qk, v]: [usize; 2]) -> Store {
        let (tokens, pitch) = (tokens.next_multiple_of(PAGE), v.next_multiple_of(16));
        Store { heads, qk, v, pitch, cells: Cells::new(format, tokens, [heads * qk, heads * pitch], heads) }
    }

    /// Keeps `n` tokens' keys and values, the rows of `k` and `v` from `row` on, as those from token `from` on.
    pub fn write(&mut self, from: usize, k: Part<'_>, v: Part<'_>, row: usize, n: usize) {
        let Store { heads, qk, v: width, pitch, .. } = *self;
        for i in 0..n {
            let (page, lane) = ((from + i) / PAGE, (from + i) % PAGE);
            for head in 0..heads {
                let base = page * heads + head;
                let scale = base * PAGE + lane;
                self.cells.write(0, k.row(row + i, head * qk, qk), base * qk * PAGE + lane, PAGE, scale);
                self.cells.write(1, v.row(row + i, head * width, width), scale * pitch, 1, scale);
            }
        }
    }

    /// `out`, `[rows, heads·v]`, of the query rows from `first` on, whose tokens are those from `past` on; all of them, and all
    /// before, have been written.
    pub fn attend(&self, core: &Attention, q: Part<'_>, first: usize, past: usize, out: &mut [f32], par: Par<'_>) {
        let width = core.heads * core.v;
        let (rows, group) = (out.len() / width.max(1), core.group);
        // A page is fetched once for all rows and heads that share it, as far as their scores stay in the cache.
        let block = ((1 << 15) / ((past + rows) * group).max(1)).clamp(1, PAGE).min(rows.max(1));
        let blocks = rows.div_ceil(block.max(1));
        // With too few heads of keys for the threads, every head of queries goes alone.
        let each = if blocks * self.heads >= 2 * par.threads() || group == 1 { group } else { 1 };
        let parts = group / each;
        let out = Shared::of(out);
        par.run(blocks * self.heads * parts, |i| {
            let (b, rest) = (i / (self.heads * parts), i % (self.heads * parts));
            let head = rest / parts;
            let (rows, queries) = (b * block..rows.min((b + 1) * block), rest % parts * each);
            let pages = (past + rows.end).div_ceil(PAGE) - core.first_seen(past + rows.start) / PAGE;
            // What is not inlined into `dispatch` has none of its instructions: buffers are had before.
            with_scratch(|s| {
                dispatch(Job {
                    store: self,
                    core,
                    q,
                    head,
                    queries: head * group + queries..head * group + queries + each,
                    scores: room(&mut s.f32, rows.len() * each * pages * PAGE),
                    rows,
                    first,
                    past,
                    out,
                })
            });
        });
    }
}

/// One head of keys and values, some of the heads of queries that share it, some rows.
struct Job<'a> {
    store: &'a Store,
    core: &'a Attention,
    q: Part<'a>,
    head: usize,
    queries: std::ops::Range<usize>,
    rows: std::ops::Range<usize>,
    first: usize,
    past: usize,
    /// Room for them, page by page.
    scores: &'a mut [f32],
    out: Shared<f32>,
}

impl LaneKernel for Job<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        match &self.store.cells {
            Cells::F32([k, v]) => self.over::<V, f32>(k, v, None),
            Cells::F16([k, v]) => self.over::<V, f16>(k, v, None),
            Cells::Int8([k, v], [keys, values]) => self.over::<V, i8>(k, v, Some([keys, values])),
        }
    }
}

impl Job<'_> {
    #[inline(always)]
    fn over<V: Lanes, C: Cell>(self, k: &[C], values: &[C], scales: Option<[&[f32]; 2]>) {
        let Job { store, core, q, head, queries, rows, first, past, scores, out } = self;
        let Store { heads, qk, v, pitch, .. } = *store;
        let (width, pages) = (core.heads * v, (past + rows.end).div_ceil(PAGE));
        // What a sliding window hides from all rows is not looked at.
        let hidden = core.first_seen(past + rows.start) / PAGE;
        let (stride, group) = ((pages - hidden) * PAGE, queries.len());
        for page in hidden..pages {
            let base = page * heads + head;
            let keys = &k[base * qk * PAGE..][..qk * PAGE];
            for i in 0..rows.len() * group {
                let (r, h) = (rows.start + i / group, queries.start + i % group);
                let mut y = score::<V, C>(q.row(first + r, h * qk, qk), keys).mul(V::splat(core.scale));
                if let Some([scales, _]) = scales {
                    // SAFETY: sixteen scales of a page and head.
                    y = y.mul(unsafe { V::load(scales[base * PAGE..][..PAGE].as_ptr()) });
                }
                // SAFETY: a page's place in this line.
                unsafe { y.store(scores[i * stride + (page - hidden) * PAGE..][..PAGE].as_mut_ptr()) };
            }
        }
        for (i, line) in scores.chunks_exact_mut(stride).enumerate() {
            let (r, h) = (rows.start + i / group, queries.start + i % group);
            let (from, end) = (core.first_seen(past + r) - hidden * PAGE, past + r + 1 - hidden * PAGE);
            core.capped(&mut line[from..end]);
            rows::softmax(&mut line[from..end], end - from);
            line[..from].fill(0.0);
            line[end..].fill(0.0);
            if let Some([_, scales]) = scales {
                for (page, weights) in (hidden..).zip(line.chunks_exact_mut(PAGE)) {
                    let scales = &scales[(page * heads + head) * PAGE..][..PAGE];
                    weights.iter_mut().zip(scales).for_each(|(w, s)| *w *= s);
                }
            }
            // SAFETY: every row and head is of one job.
            let out = unsafe { out.part(r * width + h * v, v) };
            for from in (0..v).step_by(16) {
                let sum = mix::<V, C>(line, &values[(hidden * heads + head) * PAGE * pitch + from..], pitch, heads);
                // SAFETY: so many are left.
                unsafe {
                    match v - from {
                        left @ ..16 => sum.store_part(out[from..].as_mut_ptr(), left),
                        _ => sum.store(out[from..from + 16].as_mut_ptr()),
                    }
                }
            }
        }
    }
}

/// A query's products with a page of keys `[qk, 16]`.
#[inline(always)]
fn score<V: Lanes, C: Cell>(q: &[f32], keys: &[C]) -> V {
    assert!(keys.len() >= q.len() * PAGE);
    let zero = V::splat(0.0);
    let (mut a, mut b, mut c, mut d) = (zero, zero, zero, zero);
    let (mut at, fours) = (keys.as_ptr(), q.chunks_exact(4));
    let rest = fours.remainder();
    // SAFETY: as was asserted. Four sums, so that one need not wait for the other.
    unsafe {
        for q in fours {
            a = V::splat(q[0]).fma(C::load(at), a);
            b = V::splat(q[1]).fma(C::load(at.add(PAGE)), b);
            c = V::splat(q[2]).fma(C::load(at.add(2 * PAGE)), c);
            d = V::splat(q[3]).fma(C::load(at.add(3 * PAGE)), d);
            at = at.add(4 * PAGE);
        }
        for q in rest {
            a = V::splat(*q).fma(C::load(at), a);
            at = at.add(PAGE);
        }
    }
    a.add(b).add(c.add(d))
}

/// Sixteen values of all tokens by their weights: those from the first on, `pitch` from token to token, pages of `heads` heads.
#[inline(always)]
fn mix<V: Lanes, C: Cell>(weights: &[f32], values: &[C], pitch: usize, heads: usize) -> V {
    let zero = V::splat(0.0);
    let (mut a, mut b, mut c, mut d) = (zero, zero, zero, zero);
    for (i, weights) in weights.chunks_exact(PAGE).enumerate() {
        let page = &values[i * heads * PAGE * pitch..];
        assert!(page.len() >= (PAGE - 1) * pitch + 16);
        let mut at = page.as_ptr();
        for w in weights.chunks_exact(4) {
            // SAFETY: as was asserted.
            unsafe {
                a = V::splat(w[0]).fma(C::load(at), a);
                b = V::splat(w[1]).fma(C::load(at.add(pitch)), b);
                c = V::splat(w[2]).fma(C::load(at.add(2 * pitch)), c);
                d = V::splat(w[3]).fma(C::load(at.add(3 * pitch)), d);
            }
            at = at.wrapping_add(4 * pitch);
        }
    }
    a.add(b).add(c.add(d))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::kernel::{noise, shared};

    /// The rows of a whole pass, token by token and in runs, in every format, on one thread and on more.
    #[test]
    fn rows_over_a_cache_are_those_of_a_whole_pass() {
        let (tokens, heads, group) = (53, 6, 3);
        let [plain, capped] = [None, Some(0.7)];
        for ([qk, v], most, cap) in
            [([8, 24], None, plain), ([16, 16], Some(20), plain), ([5, 7], Some(1), plain), ([8, 8], Some(33), capped)]
        {
            let core = Attention { tokens, heads, qk, v, scale: 0.25, group, causal: true, most, reach: None, cap };
            let widths = [heads * qk, heads / group * qk, heads / group * v];
            let all: Vec<Vec<f32>> = (1..).zip(widths).map(|(i, w)| noise(tokens * w, i)).collect();
            let part = |i: usize| Part { data: &all[i], width: widths[i], at: 0 };
            let width = heads * v;
            let mut want = vec![0f32; tokens * width];
            core.run(part(0), part(1), part(2), None, &mut want, Par::ALONE);
            for (format, slack) in [(KvFormat::F32, 2e-6), (KvFormat::F16, 4e-3), (KvFormat::Int8, 6e-2)] {
                let mut first: Option<Vec<f32>> = None;
                for threads in [1, 3] {
                    let mut store = Store::new(format, tokens, heads / group, [qk, v]);
                    let mut got = vec![f32::NAN; tokens * width];
                    let mut at = 0;
                    for n in [1, 1, 14, 1, 20, 16] {
                        store.write(at, part(1), part(2), at, n);
                        let out = &mut got[at * width..(at + n) * width];
                        shared(threads, |par| store.attend(&core, part(0), at, at, out, par));
                        at += n;
                    }
                    assert_eq!(at, tokens);
                    let off = want.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(off < slack, "{format:?} {qk} {v}: off by {off}");
                    assert_eq!(first.get_or_insert_with(|| got.clone()), &got, "{format:?}");
                }
            }
        }
    }

    #[test]
    fn formats_are_found_by_name_and_tell_their_bytes() {
        for f in KvFormat::ALL {
            assert_eq!(f.label().to_uppercase().parse::<KvFormat>(), Ok(f));
        }
        assert!("q4".parse::<KvFormat>().unwrap_err().contains("hint: f32, f16 or int8"));
        assert_eq!(KvFormat::ALL.map(|f| f.bytes(64)), [256, 128, 68]);
    }
}
