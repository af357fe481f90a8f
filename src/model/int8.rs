//! Symmetric int8 weight quantization, one scale a row (output channel). Execution and export both use this, on
//! weights as the checkpoint stores them (batch norm not folded in), so a written and re-read model computes the same bits.

/// Quantizes `rows` equal rows of `w`: `q = round(w / scale)` with `scale = max|w| / 127`, so `|q| ≤ 127` and
/// `w ≈ q · scale` to half a scale. A row of zeros has scale 0. Returns `(q, scales)`; `w.len()` is a multiple of `rows`.
pub fn quantize_rows(w: &[f32], rows: usize) -> (Vec<i8>, Vec<f32>) {
    let k = w.len() / rows.max(1);
    let mut q = Vec::with_capacity(w.len());
    let mut scales = Vec::with_capacity(rows);
    for row in w.chunks_exact(k.max(1)).take(rows) {
        let scale = row.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0;
        scales.push(scale);
        q.extend(row.iter().map(|&v| if scale > 0.0 { (v / scale).round().clamp(-127.0, 127.0) as i8 } else { 0 }));
    }
    (q, scales)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_their_own_scale_and_errors_stay_within_half_of_it() {
        let w = [0.5f32, -1.27, 0.013, 0.0, 0.0, 0.0, 100.0, -3.0, 42.0];
        let (q, s) = quantize_rows(&w, 3);
        assert_eq!(q[1], -127);
        assert_eq!((&q[3..6], s[1]), (&[0i8, 0, 0][..], 0.0));
        assert_eq!(q[6], 127);
        for (i, v) in w.iter().enumerate() {
            assert!((q[i] as f32 * s[i / 3] - v).abs() <= s[i / 3] * 0.5001);
        }
    }
}
