//! Attention over a cache: what a sequence's earlier tokens left of keys and values, and the rows of queries that look at it.
//!
//! Not here: whose cache it is and how long (`exec::cache`); prompts that begin a sequence, which see themselves alone
//! ([`super::attention`]). Keys lie in pages of sixteen tokens, value by value, so that a page's scores are one vector; values
//! token by token. Invariant: a row's result does not depend on the rows beside it, nor on the number of threads.

use super::attention::{Attention, Part};
use super::lanes::{LaneKernel, Lanes, dispatch};
use super::{Par, Shared, room, rows, with_scratch};
use half::f16;
use half::slice::HalfFloatSliceExt;

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

/// Values of one kind (keys, or values) in one format.
#[derive(Debug)]
enum Cells {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Int8 { codes: Vec<i8>, scales: Vec<f32> },
}

impl Cells {
    /// For `tokens` tokens of `width` values in all, `heads` scales each. Pages that are not written to take no memory.
    fn new(format: KvFormat, tokens: usize, width: usize, heads: usize) -> Cells {
        let n = tokens * width;
        match format {
            KvFormat::F32 => Cells::F32(vec![0.0; n]),
            KvFormat::F16 => Cells::F16(vec![f16::ZERO; n]),
            KvFormat::Int8 => Cells::Int8 { codes: vec![0; n], scales: vec![0.0; tokens * heads] },
        }
    }

    /// Writes `x` to the places `at`, `at + stride` and so on; `scale` is its scale's place.
    fn write(&mut self, x: &[f32], at: usize, stride: usize, scale: usize) {
        match self {
            Cells::F32(cells) => x.iter().enumerate().for_each(|(i, v)| cells[at + i * stride] = *v),
            Cells::F16(cells) => x.iter().enumerate().for_each(|(i, v)| cells[at + i * stride] = f16::from_f32(*v)),
            Cells::Int8 { codes, scales } => {
                let most = x.iter().fold(0f32, |m, v| m.max(v.abs()));
                let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
                scales[scale] = most / 127.0;
                for (i, v) in x.iter().enumerate() {
                    codes[at + i * stride] = (v * inverse).round_ties_even() as i8;
                }
            }
        }
    }

    /// `n` values from `at` on, unpacked into `buf` where they are packed, and sixteen scales from `scale` on, where there are
    /// any.
    fn read<'a>(&'a self, at: usize, n: usize, scale: usize, buf: &'a mut [f32]) -> (&'a [f32], Option<&'a [f32]>) {
        match self {
            Cells::F32(cells) => (&cells[at..at + n], None),
            Cells::F16(cells) => {
                cells[at..at + n].convert_to_f32_slice(&mut buf[..n]);
                (&buf[..n], None)
            }
            Cells::Int8 { codes, scales } => {
                codes[at..at + n].iter().zip(buf.iter_mut()).for_each(|(c, b)| *b = f32::from(*c));
                (&buf[..n], Some(&scales[scale..scale + PAGE]))
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
    keys: Cells,
    values: Cells,
}

impl Store {
    /// Room for `tokens` tokens of `heads` heads of keys (`qk` values) and values (`v`).
    pub fn new(format: KvFormat, tokens: usize, heads: usize, [qk, v]: [usize; 2]) -> Store {
        let tokens = tokens.next_multiple_of(PAGE);
        let cells = |width| Cells::new(format, tokens, heads * width, heads);
        Store { heads, qk, v, keys: cells(qk), values: cells(v) }
    }

    /// Keeps `n` tokens' keys and values, the rows of `k` and `v` from `row` on, as those from token `from` on.
    pub fn write(&mut self, from: usize, k: Part<'_>, v: Part<'_>, row: usize, n: usize) {
        let Store { heads, qk, v: width, .. } = *self;
        for i in 0..n {
            let (page, lane) = ((from + i) / PAGE, (from + i) % PAGE);
            for head in 0..heads {
                let base = page * heads + head;
                let scale = base * PAGE + lane;
                self.keys.write(k.row(row + i, head * qk, qk), base * qk * PAGE + lane, PAGE, scale);
                let at = (base * PAGE + lane) * width;
                self.values.write(v.row(row + i, head * width, width), at, 1, scale);
            }
        }
    }

    /// `out`, `[rows, heads·v]`, of the query rows from `first` on, whose tokens are those from `past` on; all of them, and all
    /// before, have been written.
    pub fn attend(&self, core: &Attention, q: Part<'_>, first: usize, past: usize, out: &mut [f32], par: Par<'_>) {
        let width = core.heads * core.v;
        let (rows, group) = (out.len() / width.max(1), core.group);
        // A page is unpacked once for all rows and heads that share it, as far as their scores stay in the cache.
        let block = ((1 << 15) / ((past + rows) * group).max(1)).clamp(1, PAGE).min(rows.max(1));
        let blocks = rows.div_ceil(block.max(1));
        // With too few heads of keys for the threads, every head of queries goes alone.
        let each = if blocks * self.heads >= 2 * par.threads() || group == 1 { group } else { 1 };
        let parts = group / each;
        let out = Shared::of(out);
        par.run(blocks * self.heads * parts, |i| {
            let (b, rest) = (i / (self.heads * parts), i % (self.heads * parts));
            let head = rest / parts;
            let job = Job {
                store: self,
                core,
                q,
                head,
                queries: head * group + rest % parts * each..head * group + (rest % parts + 1) * each,
                rows: b * block..rows.min((b + 1) * block),
                first,
                past,
                out,
            };
            dispatch(job);
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
    out: Shared<f32>,
}

impl LaneKernel for Job<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Job { store, core, q, head, queries, rows, first, past, out } = self;
        let Store { heads, qk, v, .. } = *store;
        // Pages that lie before every row's sliding window are left out.
        let (width, hidden) = (core.heads * v, core.first_seen(past + rows.start) / PAGE);
        let pages = hidden..(past + rows.end).div_ceil(PAGE);
        let stride = pages.len() * PAGE;
        let lines = || rows.clone().flat_map(|r| queries.clone().map(move |h| (r, h)));
        let count = rows.len() * queries.len();
        with_scratch(|s| {
            let buf = room(&mut s.f32, count * stride + qk.max(v) * PAGE);
            let (scores, buf) = buf.split_at_mut(count * stride);
            for page in pages.clone() {
                let base = page * heads + head;
                let (keys, scales) = store.keys.read(base * qk * PAGE, qk * PAGE, base * PAGE, buf);
                for (i, (r, h)) in lines().enumerate() {
                    let mut y = score::<V>(q.row(first + r, h * qk, qk), keys).mul(V::splat(core.scale));
                    if let Some(scales) = scales {
                        // SAFETY: sixteen scales.
                        y = y.mul(unsafe { V::load(scales[..PAGE].as_ptr()) });
                    }
                    // SAFETY: a page's place in this line.
                    unsafe { y.store(scores[i * stride + (page - hidden) * PAGE..][..PAGE].as_mut_ptr()) };
                }
            }
            for (i, (r, h)) in lines().enumerate() {
                let (seen, rest) = scores[i * stride..][..stride].split_at_mut(past + r + 1 - hidden * PAGE);
                let (before, seen) = seen.split_at_mut(core.first_seen(past + r) - hidden * PAGE);
                core.capped(seen);
                rows::softmax(seen, seen.len());
                before.fill(0.0);
                rest.fill(0.0);
                // SAFETY: every row and head is of one job.
                unsafe { out.part(r * width + h * v, v) }.fill(0.0);
            }
            for page in pages {
                let base = page * heads + head;
                let (values, scales) = store.values.read(base * v * PAGE, v * PAGE, base * PAGE, buf);
                for (i, (r, h)) in lines().enumerate() {
                    let weights = &mut scores[i * stride + (page - hidden) * PAGE..][..PAGE];
                    if let Some(scales) = scales {
                        weights.iter_mut().zip(scales).for_each(|(w, s)| *w *= s);
                    }
                    // SAFETY: as above.
                    mix::<V>(weights, values, unsafe { out.part(r * width + h * v, v) });
                }
            }
        });
    }
}

/// A query's products with a page of keys `[qk, 16]`.
#[inline(always)]
fn score<V: Lanes>(q: &[f32], keys: &[f32]) -> V {
    assert!(keys.len() >= q.len() * PAGE);
    let mut sums = [V::splat(0.0); 4];
    for (d, q) in q.iter().enumerate() {
        // SAFETY: as was asserted.
        let k = unsafe { V::load(keys.as_ptr().add(d * PAGE)) };
        sums[d % 4] = V::splat(*q).fma(k, sums[d % 4]);
    }
    sums[0].add(sums[1]).add(sums[2].add(sums[3]))
}

/// Adds a page of values `[16, v]` by their weights.
#[inline(always)]
fn mix<V: Lanes>(weights: &[f32], values: &[f32], out: &mut [f32]) {
    let (n, whole) = (out.len(), out.len() / 16 * 16);
    assert!(values.len() >= PAGE * n && weights.len() == PAGE);
    let (x, out) = (values.as_ptr(), out.as_mut_ptr());
    // SAFETY: every token has `n` values, as was asserted, and so has `out`.
    unsafe {
        for i in (0..whole).step_by(16) {
            let mut sum = V::load(out.add(i));
            for (t, w) in weights.iter().enumerate() {
                sum = V::splat(*w).fma(V::load(x.add(t * n + i)), sum);
            }
            sum.store(out.add(i));
        }
        if whole < n {
            let rest = n - whole;
            let mut sum = V::load_part(out.add(whole), rest, 0.0);
            for (t, w) in weights.iter().enumerate() {
                sum = V::splat(*w).fma(V::load_part(x.add(t * n + whole), rest, 0.0), sum);
            }
            sum.store_part(out.add(whole), rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::kernel::{noise, shared};

    /// The rows of a whole pass, token by token and in runs, in every format, on one thread and on more.
    #[test]
    fn rows_over_a_cache_are_those_of_a_whole_pass() {
        for (most, cap) in [(None, None), (Some(21), Some(0.7)), (Some(4), None), (Some(90), Some(2.0))] {
            over_a_cache(most, cap);
        }
    }

    fn over_a_cache(most: Option<usize>, cap: Option<f32>) {
        let (tokens, heads, group) = (53, 6, 3);
        for [qk, v] in [[8, 24], [16, 16], [5, 7]] {
            let core = Attention { tokens, heads, qk, v, scale: 0.25, group, causal: true, most, cap };
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
