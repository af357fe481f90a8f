//! Weights that share a few values: k-means over a layer's weights (Han et al. 2016, "Deep Compression", section 3), a number of `bits` for
//! each weight that says which of the 2^bits values it is, and the values. Which values, and how both lie, is here; rounding that
//! knows what the weights are multiplied with is `quant::shared`.
//!
//! Invariants: weights that are zero stay zero where there are any; a weight of no more than 2^bits different values is stored as it is;
//! the result is a function of the values (and importances) alone.

/// Rows of numbers of values.
///
/// Row `r` takes `(cols · bits).div_ceil(8)` bytes; the number of weight `c` is the `bits` bits from bit `c · bits` of the row on, the lowest
/// first; what is left of the last byte is zero.
#[derive(Debug, Clone, PartialEq)]
pub struct Codebook {
    pub rows: usize,
    pub cols: usize,
    /// 1 to 8.
    pub bits: u8,
    pub packed: Vec<u8>,
    /// `[2^bits]`, ascending; what is not needed repeats the last.
    pub values: Vec<f32>,
}

/// Parts of the weights among which a first guess is searched: its error is the least that can be had with them.
const BINS: usize = 1024;

/// Turns of Lloyd's at most; it ends before in practice.
const TURNS: usize = 200;

impl Codebook {
    /// The least sum of squared errors that was found over a row-major `[rows, len/rows]` matrix.
    pub fn quantize(values: &[f32], rows: usize, bits: u8) -> Codebook {
        let table = table(values.iter().map(|v| (*v, 1.0)), bits);
        let cols = values.len().checked_div(rows).unwrap_or(0);
        let codes: Vec<u8> = values[..rows * cols].iter().map(|v| nearest(&table, f64::from(*v))).collect();
        Codebook::packed(rows, cols, bits, &codes, table)
    }

    /// Rows of `codes` (row-major) that are numbers of `values`. `None` as for [`Codebook::from_parts`].
    pub fn of_codes(rows: usize, cols: usize, bits: u8, codes: &[u8], values: Vec<f32>) -> Option<Codebook> {
        let fits = rows.checked_mul(cols) == Some(codes.len()) && (1..=8).contains(&bits);
        if !fits || codes.iter().any(|c| usize::from(*c) >= 1 << bits) {
            return None;
        }
        sound(&values, bits).then(|| Codebook::packed(rows, cols, bits, codes, values))
    }

    /// From what a file holds. `None` unless counts agree, spare bits are zero and the values finite and ascending.
    pub fn from_parts(rows: usize, cols: usize, bits: u8, packed: Vec<u8>, values: Vec<f32>) -> Option<Codebook> {
        if !(1..=8).contains(&bits) || !sound(&values, bits) {
            return None;
        }
        let row = row_bytes(cols, bits)?;
        let fits = cols > 0 && rows.checked_mul(row) == Some(packed.len());
        let spare = row * 8 - cols * usize::from(bits);
        let clean = |r: &[u8]| r.last().is_none_or(|b| spare == 0 || b >> (8 - spare) == 0);
        (fits && packed.chunks_exact(row).all(clean)).then_some(Codebook { rows, cols, bits, packed, values })
    }

    fn packed(rows: usize, cols: usize, bits: u8, codes: &[u8], values: Vec<f32>) -> Codebook {
        let row = (cols * usize::from(bits)).div_ceil(8);
        let mut packed = vec![0u8; rows * row];
        for (codes, out) in codes.chunks_exact(cols.max(1)).zip(packed.chunks_exact_mut(row.max(1))) {
            for (c, code) in codes.iter().enumerate() {
                let at = c * usize::from(bits);
                let two = u16::from(*code) << (at % 8);
                out[at / 8] |= two as u8;
                if two > 255 {
                    out[at / 8 + 1] |= (two >> 8) as u8;
                }
            }
        }
        Codebook { rows, cols, bits, packed, values }
    }

    /// Which value each weight is, row-major.
    pub fn codes(&self) -> Vec<u8> {
        let (bits, row) = (usize::from(self.bits), (self.cols * usize::from(self.bits)).div_ceil(8));
        let mut out = Vec::with_capacity(self.rows * self.cols);
        for row in self.packed.chunks_exact(row.max(1)) {
            for c in 0..self.cols {
                let at = c * bits;
                let two = u16::from(row[at / 8]) | u16::from(row.get(at / 8 + 1).copied().unwrap_or(0)) << 8;
                out.push((two >> (at % 8)) as u8 & (u8::MAX >> (8 - bits)));
            }
        }
        out
    }

    /// The weights, row-major.
    pub fn dequantize(&self) -> Vec<f32> {
        self.codes().into_iter().map(|c| self.values[usize::from(c)]).collect()
    }

    /// Bytes of numbers and values.
    pub fn bytes(&self) -> usize {
        self.packed.len() + 4 * self.values.len()
    }
}

/// Bytes of a row; `None` where that is no number.
fn row_bytes(cols: usize, bits: u8) -> Option<usize> {
    Some(cols.checked_mul(usize::from(bits))?.div_ceil(8))
}

/// Are these 2^bits values that [`table`] makes?
fn sound(values: &[f32], bits: u8) -> bool {
    values.len() == 1 << bits && values.iter().all(|v| v.is_finite()) && values.is_sorted()
}

/// The number of the value that lies nearest to `w`, the lower of two.
pub(crate) fn nearest(table: &[f32], w: f64) -> u8 {
    let above = table.partition_point(|t| f64::from(*t) < w);
    let gap = |i: usize| table.get(i).map_or(f64::INFINITY, |t| (f64::from(*t) - w).abs());
    let below = above.saturating_sub(1);
    let found = if gap(below) <= gap(above) { below } else { above };
    // The first of those that repeat.
    table.partition_point(|t| *t < table[found.min(table.len() - 1)]) as u8
}

/// The 2^bits values with the least weighted squared error that was found over pairs of a value and its weight; what is no number or has no
/// weight does not count.
pub(crate) fn table(pairs: impl Iterator<Item = (f32, f64)>, bits: u8) -> Vec<f32> {
    let wanted = 1usize << bits;
    let mut pairs: Vec<(f32, f64)> = pairs.filter(|(v, w)| v.is_finite() && w.is_finite() && *w >= 0.0).collect();
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    // Zeros of both signs are one.
    let mut different: Vec<f32> = Vec::new();
    for (v, _) in &pairs {
        if different.len() <= wanted && different.last() != Some(v) {
            different.push(*v);
        }
    }
    if different.len() > wanted {
        let zero = pairs.iter().any(|(v, _)| *v == 0.0);
        let sums = Sums::over(&pairs);
        // One weight far out takes up all parts of equal width but one; those of equal number are coarse where weights are few.
        let tried = [Parts::Width, Parts::Number].map(|parts| sums.lloyd(sums.first(parts, wanted), zero));
        let [a, b] = tried.each_ref().map(|t| sums.error(t));
        let [width, number] = tried;
        different = if b < a { number } else { width };
    }
    let last = different.last().copied().unwrap_or(0.0);
    different.resize(wanted, last);
    different
}

/// What parts that weights are taken together in have in common.
#[derive(Clone, Copy)]
enum Parts {
    Width,
    Number,
}

/// Running sums over sorted pairs, so that any run of them is summed at once.
struct Sums<'a> {
    pairs: &'a [(f32, f64)],
    /// Of weights, and of weights times values; one more than there are pairs.
    weight: Vec<f64>,
    first: Vec<f64>,
    second: Vec<f64>,
}

impl Sums<'_> {
    fn over(pairs: &[(f32, f64)]) -> Sums<'_> {
        let running = |of: fn(&(f32, f64)) -> f64| {
            let mut sum = 0.0;
            let mut out = vec![0.0];
            out.extend(pairs.iter().map(|p| {
                sum += of(p);
                sum
            }));
            out
        };
        Sums {
            pairs,
            weight: running(|(_, w)| *w),
            first: running(|(v, w)| f64::from(*v) * w),
            second: running(|(v, w)| f64::from(*v).powi(2) * w),
        }
    }

    /// Where the runs end whose weights are nearest to each of `table`.
    fn ends(&self, table: &[f32]) -> Vec<usize> {
        let middle = |two: &[f32]| (f64::from(two[0]) + f64::from(two[1])) / 2.0;
        let inner = table.windows(2).map(|two| self.pairs.partition_point(|(v, _)| f64::from(*v) <= middle(two)));
        inner.chain([self.pairs.len()]).collect()
    }

    /// The weighted squared error with each weight at the nearest of `table`.
    fn error(&self, table: &[f32]) -> f64 {
        let (mut start, mut sum) = (0, 0.0);
        for (t, end) in table.iter().zip(self.ends(table)) {
            let t = f64::from(*t);
            let of = |s: &[f64]| s[end] - s[start];
            sum += of(&self.second) - 2.0 * t * of(&self.first) + t * t * of(&self.weight);
            start = end;
        }
        sum
    }

    /// The best values where weights are taken together in [`BINS`] parts: by dynamic programming (Wang and Song 2011,
    /// "Ckmeans.1d.dp").
    fn first(&self, parts: Parts, wanted: usize) -> Vec<f32> {
        let pairs = self.pairs;
        let (lo, hi) = (f64::from(pairs[0].0), f64::from(pairs[pairs.len() - 1].0));
        // Weight, weighted sum and weighted square of what lies below each bin's end.
        let mut sums = vec![[0f64; 3]];
        let mut at = 0;
        for b in 0..BINS {
            let end = lo + (hi - lo) * (b + 1) as f64 / BINS as f64;
            let mut sum = sums[sums.len() - 1];
            let inside = |at: usize| match parts {
                Parts::Width => f64::from(pairs[at].0) <= end || b + 1 == BINS,
                Parts::Number => at < pairs.len() * (b + 1) / BINS,
            };
            while at < pairs.len() && inside(at) {
                let (v, w) = (f64::from(pairs[at].0), pairs[at].1.max(f64::MIN_POSITIVE));
                sum = [sum[0] + w, sum[1] + w * v, sum[2] + w * v * v];
                at += 1;
            }
            // Parts without weights say nothing.
            if sum[0] > sums[sums.len() - 1][0] {
                sums.push(sum);
            }
        }
        let bins = sums.len() - 1;
        let cost = |i: usize, j: usize| {
            let [w, v, q] = [0, 1, 2].map(|k| sums[j][k] - sums[i][k]);
            if w > 0.0 { (q - v * v / w).max(0.0) } else { 0.0 }
        };
        let mut least: Vec<f64> = (0..=bins).map(|j| if j == 0 { 0.0 } else { f64::INFINITY }).collect();
        let mut cuts: Vec<Vec<usize>> = Vec::new();
        for _ in 0..wanted.min(bins) {
            let mut next = vec![f64::INFINITY; bins + 1];
            let mut from = vec![0; bins + 1];
            for j in 1..=bins {
                for i in (0..j).filter(|i| least[*i].is_finite()) {
                    let this = least[i] + cost(i, j);
                    if this < next[j] {
                        (next[j], from[j]) = (this, i);
                    }
                }
            }
            least = next;
            cuts.push(from);
        }
        let (mut out, mut end) = (Vec::new(), bins);
        for from in cuts.iter().rev() {
            let start = from[end];
            let [w, v] = [0, 1].map(|k| sums[end][k] - sums[start][k]);
            out.push((v / w.max(f64::MIN_POSITIVE)) as f32);
            end = start;
        }
        out.reverse();
        // Fewer parts had weights than there are values: the widest gaps get what is left.
        while out.len() < wanted {
            let widest = (1..out.len()).max_by(|a, b| (out[*a] - out[a - 1]).total_cmp(&(out[*b] - out[b - 1])));
            let Some(k) = widest else { break };
            out.insert(k, out[k - 1] / 2.0 + out[k] / 2.0);
        }
        out
    }

    /// Lloyd's turns from `table` on; with `zero` one value stays zero.
    fn lloyd(&self, mut table: Vec<f32>, zero: bool) -> Vec<f32> {
        let pinned = zero.then(|| {
            let k = (0..table.len()).min_by(|a, b| table[*a].abs().total_cmp(&table[*b].abs())).unwrap_or(0);
            table[k] = 0.0;
            table.sort_by(f32::total_cmp);
            table.iter().position(|v| *v == 0.0).unwrap_or(0)
        });
        for _ in 0..TURNS {
            let before = table.clone();
            let mut start = 0;
            for (k, end) in self.ends(&before).into_iter().enumerate() {
                let weight = self.weight[end] - self.weight[start];
                if weight > 0.0 && pinned != Some(k) {
                    table[k] = ((self.first[end] - self.first[start]) / weight) as f32;
                }
                start = end;
            }
            table.sort_by(f32::total_cmp);
            if table == before {
                break;
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn normal(n: usize, seed: u64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // Box and Muller 1958.
        let mut one = move || {
            let (a, b): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
            ((-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()) as f32
        };
        (0..n).map(|_| one()).collect()
    }

    fn error(values: &[f32], table: &[f32]) -> f64 {
        values.iter().map(|v| f64::from(v - table[usize::from(nearest(table, f64::from(*v)))]).powi(2)).sum()
    }

    /// Against all ways to cut few values into runs.
    #[test]
    fn the_error_is_the_least_that_can_be_had() {
        for seed in 0..20 {
            let mut values = normal(14, seed);
            values.sort_by(f32::total_cmp);
            let made = error(&values, &table(values.iter().map(|v| (*v, 1.0)), 2));
            let mut best = f64::INFINITY;
            for (a, b, c) in (1..12).flat_map(|a| (a + 1..13).flat_map(move |b| (b + 1..14).map(move |c| (a, b, c)))) {
                let cost = |run: &[f32]| {
                    let mean = run.iter().map(|v| f64::from(*v)).sum::<f64>() / run.len() as f64;
                    run.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>()
                };
                best = best.min([&values[..a], &values[a..b], &values[b..c], &values[c..]].map(cost).iter().sum());
            }
            assert!(made <= best * 1.0001 + 1e-9, "{seed}: {made} {best}");
        }
        // A normal distribution in sixteen values: the error that Max (1960) gives is 0.009497 of the variance.
        let values = normal(200_000, 3);
        let variance = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
        let part = error(&values, &table(values.iter().map(|v| (*v, 1.0)), 4)) / variance;
        assert!((part - 0.009_497).abs() < 0.0003, "{part}");
    }

    #[test]
    fn heavy_values_are_kept_better_and_outliers_do_not_spoil_the_rest() {
        let values = normal(4000, 1);
        let heavy = |v: f32| if v > 1.0 { 50.0 } else { 1.0 };
        let weighted = |t: &[f32]| -> f64 {
            let off = |v: f32| f64::from(v - t[usize::from(nearest(t, f64::from(v)))]).powi(2);
            values.iter().map(|v| heavy(*v) * off(*v)).sum()
        };
        let by = table(values.iter().map(|v| (*v, heavy(*v))), 3);
        assert!(weighted(&by) < 0.8 * weighted(&table(values.iter().map(|v| (*v, 1.0)), 3)));
        let outliers: Vec<f32> = values.iter().copied().chain([1e6]).collect();
        let t = table(outliers.iter().map(|v| (*v, 1.0)), 3);
        assert!(error(&values, &t) < 3.0 * error(&values, &table(values.iter().map(|v| (*v, 1.0)), 3)), "{t:?}");
    }

    #[test]
    fn few_values_and_zeros_stay_as_they_are() {
        let few = [0.5, -1.25, 0.5, 3.0, -1.25, 0.5];
        let made = Codebook::quantize(&few, 2, 2);
        assert_eq!((made.dequantize(), &made.values[..]), (few.to_vec(), &[-1.25, 0.5, 3.0, 3.0][..]));
        let mut values = normal(900, 5);
        values.iter_mut().step_by(3).for_each(|v| *v = 0.0);
        for bits in [2, 3, 4] {
            let made = Codebook::quantize(&values, 3, bits);
            let back = made.dequantize();
            assert!(values.iter().zip(&back).all(|(v, b)| *v != 0.0 || *b == 0.0));
            // What was rounded once is rounded to itself.
            assert_eq!(Codebook::quantize(&back, 3, bits).dequantize(), back);
        }
        assert_eq!(Codebook::quantize(&[f32::NAN, f32::INFINITY, 1.0, 2.0], 1, 2).values[..2], [1.0, 2.0]);
        assert_eq!(Codebook::quantize(&[], 0, 4).dequantize(), Vec::<f32>::new());
    }

    #[test]
    fn numbers_lie_as_documented_and_damage_is_refused() {
        let values: Vec<f32> = (0..8).map(|v| v as f32).collect();
        let made = Codebook::of_codes(2, 3, 3, &[1, 2, 7, 0, 5, 4], values.clone()).unwrap();
        assert_eq!(made.packed, [0b1101_0001, 0b1, 0b10_1000, 0b1]);
        assert_eq!((made.codes(), made.bytes()), (vec![1, 2, 7, 0, 5, 4], 4 + 32));
        for (bits, cols) in [(2, 5), (3, 11), (4, 7), (8, 3)] {
            let codes: Vec<u8> = (0..4 * cols).map(|i| (i * 37 % (1 << bits)) as u8).collect();
            let table: Vec<f32> = (0..1 << bits).map(|v| v as f32).collect();
            let made = Codebook::of_codes(4, cols, bits, &codes, table).unwrap();
            assert_eq!(made.codes(), codes);
            let again = Codebook::from_parts(4, cols, bits, made.packed.clone(), made.values.clone());
            assert_eq!(again, Some(made));
        }
        let parts = |packed: Vec<u8>, values: Vec<f32>| Codebook::from_parts(2, 3, 3, packed, values);
        assert!(parts(made.packed.clone(), values.clone()).is_some());
        assert!(parts(vec![0; 3], values.clone()).is_none(), "too few numbers");
        assert!(parts(vec![0, 2, 0, 0], values.clone()).is_none(), "spare bits are zero");
        assert!(parts(made.packed.clone(), values[1..].to_vec()).is_none(), "too few values");
        assert!(parts(made.packed.clone(), values.iter().rev().copied().collect()).is_none(), "not ascending");
        assert!(parts(made.packed.clone(), vec![f32::NAN; 8]).is_none());
        assert!(Codebook::from_parts(usize::MAX, usize::MAX, 3, vec![], values).is_none());
        assert!(Codebook::of_codes(1, 2, 2, &[0, 4], vec![0.0; 4]).is_none(), "no such value");
    }
}
