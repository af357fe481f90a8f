//! The one int8 weight quantizer: symmetric, one scale a row (output channel). Kernels and the exporter both use it,
//! on weights before any batch norm is folded in, so that an exported file runs bit for bit as it ran before.

/// Quantizes a row-major `[rows, len/rows]` matrix: `scale = max|w| / 127`, `q = round(w / scale)` in -127..=127.
/// A row of zeros (or of values too small for a normal scale) gets scale 0. `rows` must divide `values.len()`; a
/// remainder is left out.
pub fn quantize_rows(values: &[f32], rows: usize) -> (Vec<i8>, Vec<f32>) {
    let cols = values.len().checked_div(rows).unwrap_or(0);
    if cols == 0 {
        return (Vec::new(), vec![0.0; rows]);
    }
    let mut q = Vec::with_capacity(rows * cols);
    let mut scales = Vec::with_capacity(rows);
    for row in values.chunks_exact(cols).take(rows) {
        let scale = row.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0;
        if scale < f32::MIN_POSITIVE || !scale.is_finite() {
            scales.push(0.0);
            q.extend(std::iter::repeat_n(0i8, cols));
            continue;
        }
        scales.push(scale);
        q.extend(row.iter().map(|v| (v / scale).round().clamp(-127.0, 127.0) as i8));
    }
    (q, scales)
}

/// `q · scale` per row; the inverse of [`quantize_rows`] up to rounding.
pub fn dequantize_rows(q: &[i8], scales: &[f32]) -> Vec<f32> {
    let cols = q.len().checked_div(scales.len()).unwrap_or(0).max(1);
    q.chunks(cols).zip(scales).flat_map(|(row, &s)| row.iter().map(move |&v| f32::from(v) * s)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_at_most_half_a_step_and_extremes_are_exact() {
        let values: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 31.0) * 0.013).collect();
        let (q, scales) = quantize_rows(&values, 4);
        let back = dequantize_rows(&q, &scales);
        for (r, row) in values.chunks(16).enumerate() {
            let max = row.iter().fold(0f32, |m, v| m.max(v.abs()));
            assert_eq!(scales[r], max / 127.0);
            for (c, v) in row.iter().enumerate() {
                assert!((v - back[r * 16 + c]).abs() <= scales[r] * 0.5001);
            }
            assert!(q[r * 16..][..16].iter().any(|q| q.abs() == 127));
        }
    }

    #[test]
    fn zero_rows_and_empty_input_stay_zero() {
        let (q, scales) = quantize_rows(&[0.0, 0.0, 1.0, -2.0], 2);
        assert_eq!((q, scales), (vec![0, 0, 64, -127], vec![0.0, 2.0 / 127.0]));
        assert_eq!(quantize_rows(&[], 0), (vec![], vec![]));
        assert_eq!(quantize_rows(&[1e-42, 0.0], 1), (vec![0, 0], vec![0.0]));
    }
}
