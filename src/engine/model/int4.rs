//! The one 4-bit weight quantizer and how its numbers lie: symmetric, one scale a row or a group of a row, two weights a
//! byte. Kernels and the exporter both use it, on weights before any batch norm is folded in, so that an exported file
//! runs bit for bit as it ran before.

/// Rows of 4-bit weights.
///
/// Row `r` takes `cols.div_ceil(2)` bytes. Weight `c` is the low half of byte `c / 2` for even `c`, else the high half,
/// as `q + 8` with `q` in -7..=7; the half byte that is left of an odd row is 8 (zero). `scales` holds
/// `cols.div_ceil(group)` scales a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Int4 {
    pub rows: usize,
    pub cols: usize,
    /// Weights that share a scale, at least 1; the last group of a row may be shorter.
    pub group: usize,
    pub packed: Vec<u8>,
    pub scales: Vec<f32>,
}

/// Largest weight code.
const TOP: f32 = 7.0;

impl Int4 {
    /// Quantizes a row-major `[rows, len/rows]` matrix: `scale = max|w| / 7` over `group` weights of a row (`None`: the
    /// whole row), `q = round(w / scale)` in -7..=7. What is zero, or too small for a normal scale, gets scale 0.
    /// `rows` must divide `values.len()`; a remainder is left out.
    pub fn quantize(values: &[f32], rows: usize, group: Option<usize>) -> Int4 {
        let cols = values.len().checked_div(rows).unwrap_or(0);
        let group = group.unwrap_or(cols).clamp(1, cols.max(1));
        let mut out = Int4 { rows, cols, group, packed: Vec::new(), scales: Vec::new() };
        if cols == 0 {
            return out;
        }
        out.packed.reserve(rows * cols.div_ceil(2));
        let mut codes = Vec::with_capacity(cols + 1);
        for row in values.chunks_exact(cols).take(rows) {
            codes.clear();
            for part in row.chunks(group) {
                let scale = part.iter().fold(0f32, |m, v| m.max(v.abs())) / TOP;
                let sound = scale >= f32::MIN_POSITIVE && scale.is_finite();
                out.scales.push(if sound { scale } else { 0.0 });
                let code = |v: &f32| if sound { (v / scale).round().clamp(-TOP, TOP) as i8 } else { 0 };
                codes.extend(part.iter().map(|v| (code(v) + 8) as u8));
            }
            codes.resize(cols.next_multiple_of(2), 8);
            out.packed.extend(codes.chunks_exact(2).map(|two| two[0] | two[1] << 4));
        }
        out
    }

    /// Rows of `codes` (-7..=7, row-major) with their scales. `None` as for [`Int4::from_parts`].
    pub fn of_codes(rows: usize, cols: usize, group: Option<usize>, codes: &[i8], scales: Vec<f32>) -> Option<Int4> {
        if cols == 0 || rows.checked_mul(cols) != Some(codes.len()) || codes.iter().any(|q| !(-7..=7).contains(q)) {
            return None;
        }
        let half = |q: Option<&i8>| q.map_or(8, |q| (q + 8).cast_unsigned());
        let pack = |row: &[i8]| row.chunks(2).map(|two| half(two.first()) | half(two.get(1)) << 4).collect::<Vec<u8>>();
        Int4::from_parts(rows, cols, group, codes.chunks_exact(cols).flat_map(pack).collect(), scales)
    }

    /// From what a file holds. `None` unless counts agree, every code is one that [`Int4::quantize`] writes and every
    /// scale is finite and not negative.
    pub fn from_parts(
        rows: usize,
        cols: usize,
        group: Option<usize>,
        packed: Vec<u8>,
        scales: Vec<f32>,
    ) -> Option<Int4> {
        let group = group.unwrap_or(cols).clamp(1, cols.max(1));
        let fits = rows.checked_mul(cols.div_ceil(2)) == Some(packed.len())
            && rows.checked_mul(cols.div_ceil(group)) == Some(scales.len());
        let sound = packed.iter().all(|b| b & 15 != 0 && b >> 4 != 0)
            && scales.iter().all(|s| s.is_finite() && *s >= 0.0)
            && (cols.is_multiple_of(2)
                || packed.chunks_exact(cols.div_ceil(2)).all(|r| r.last().is_some_and(|b| b >> 4 == 8)));
        (fits && sound).then_some(Int4 { rows, cols, group, packed, scales })
    }

    /// The weights' codes of row `r`, -7..=7.
    pub fn codes(&self, r: usize) -> impl Iterator<Item = i8> + '_ {
        let bytes = self.cols.div_ceil(2);
        let halves = self.packed[r * bytes..][..bytes].iter().flat_map(|b| [b & 15, b >> 4]);
        halves.take(self.cols).map(|h| h as i8 - 8)
    }

    /// `q · scale`; the inverse of [`Int4::quantize`] up to rounding.
    pub fn dequantize(&self) -> Vec<f32> {
        let mut out = Vec::with_capacity(self.rows * self.cols);
        let each = self.cols.div_ceil(self.group);
        for r in 0..self.rows {
            let scales = &self.scales[r * each..][..each];
            out.extend(self.codes(r).enumerate().map(|(c, q)| f32::from(q) * scales[c / self.group]));
        }
        out
    }

    /// Bytes of codes and scales.
    pub fn bytes(&self) -> usize {
        self.packed.len() + 4 * self.scales.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 37 % 64) as f32 - 31.0) * 0.013 * (1.0 + (i / 50) as f32)).collect()
    }

    #[test]
    fn error_is_at_most_half_a_step_of_the_weights_own_group() {
        for (rows, cols) in [(4, 16), (3, 33), (5, 130), (2, 1)] {
            let values = values(rows * cols);
            for group in [None, Some(32), Some(64), Some(128), Some(7)] {
                let q = Int4::quantize(&values, rows, group);
                let (back, g) = (q.dequantize(), group.unwrap_or(cols));
                assert_eq!((q.packed.len(), q.scales.len()), (rows * cols.div_ceil(2), rows * cols.div_ceil(g)));
                for (r, row) in values.chunks(cols).enumerate() {
                    let parts = row.chunks(g).zip(back[r * cols..][..cols].chunks(g));
                    for (p, (want, got)) in parts.enumerate() {
                        let step = want.iter().fold(0f32, |m, v| m.max(v.abs())) / 7.0;
                        assert_eq!(q.scales[r * cols.div_ceil(g) + p], step);
                        assert!(want.iter().zip(got).all(|(a, b)| (a - b).abs() <= step * 0.5001), "{rows}x{cols}");
                        let largest = got.iter().fold(0f32, |m, v| m.max(v.abs()));
                        assert!((largest - 7.0 * step).abs() <= step * 1e-5, "the extreme is kept");
                    }
                }
                let again = Int4::from_parts(rows, cols, group, q.packed.clone(), q.scales.clone());
                assert_eq!(again.as_ref(), Some(&q));
                let codes: Vec<i8> = (0..rows).flat_map(|r| q.codes(r)).collect();
                assert_eq!(Int4::of_codes(rows, cols, group, &codes, q.scales.clone()), again);
                assert_eq!(Int4::of_codes(rows, cols, group, &codes[1..], q.scales.clone()), None);
            }
        }
    }

    #[test]
    fn halves_lie_as_documented() {
        let q = Int4::quantize(&[7.0, -7.0, 3.0, 0.0, 14.0, 2.0], 2, None);
        assert_eq!(q.packed, [15 | 1 << 4, 11 | 8 << 4, 8 | 15 << 4, 9 | 8 << 4]);
        assert_eq!(q.scales, [1.0, 2.0]);
        assert_eq!(q.dequantize(), [7.0, -7.0, 3.0, 0.0, 14.0, 2.0]);
    }

    #[test]
    fn zeros_stay_zero_and_damage_is_refused() {
        let q = Int4::quantize(&[0.0, 0.0, 1e-42, 0.0], 2, None);
        assert_eq!((q.dequantize(), &q.scales[..]), (vec![0.0; 4], &[0.0, 0.0][..]));
        assert_eq!(Int4::quantize(&[], 0, None).dequantize(), Vec::<f32>::new());
        let parts = |packed: Vec<u8>, scales: Vec<f32>| Int4::from_parts(2, 3, None, packed, scales);
        assert!(parts(vec![0x98, 0x88, 0x12, 0x81], vec![1.0, 0.5]).is_some());
        assert!(parts(vec![0x98, 0x88, 0x12], vec![1.0, 0.5]).is_none(), "too few codes");
        assert!(parts(vec![0x98, 0x88, 0x12, 0x81], vec![1.0]).is_none(), "too few scales");
        assert!(parts(vec![0x98, 0x88, 0x02, 0x81], vec![1.0, 0.5]).is_none(), "-8 is never written");
        assert!(parts(vec![0x98, 0x98, 0x12, 0x81], vec![1.0, 0.5]).is_none(), "the spare half is zero");
        assert!(parts(vec![0x98, 0x88, 0x12, 0x81], vec![f32::NAN, 0.5]).is_none());
        assert!(Int4::from_parts(usize::MAX, 3, None, vec![], vec![]).is_none());
    }
}
