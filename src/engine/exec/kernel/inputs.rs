//! What llama.cpp's CPU kernels make of the rows that they multiply with narrow weights: 8 bits in blocks, or half precision. For saying what a
//! file will answer there; our own kernels keep them in f32.
//!
//! Source: ggml's `type_traits_cpu` (`vec_dot_type` of each format), `quantize_row_q8_0` and `quantize_row_q8_K`. Not here: that the sums of a
//! block which minima are multiplied with (`Q8_1`) are kept in half precision there, and the order in which products are added.

use crate::model::Packed;
use crate::model::ggml::Block;

/// Rounds `row` in place to what llama.cpp multiplies weights stored as `weight` with. Its length is whole blocks of theirs, or the rest stays.
pub(crate) fn round(weight: Packed, row: &mut [f32]) {
    match weight {
        Packed::F16 => row.iter_mut().for_each(|v| *v = half::f16::from_f32(*v).to_f32()),
        Packed::Bf16 => row.iter_mut().for_each(|v| *v = half::bf16::from_f32(*v).to_f32()),
        Packed::Block(block) => match block {
            Block::Q4_0 | Block::Q4_1 | Block::Q5_0 | Block::Q5_1 | Block::Q8_0 | Block::IQ4_NL => {
                row.chunks_exact_mut(32).for_each(q8_0);
            }
            Block::Q2_K | Block::Q3_K | Block::Q4_K | Block::Q5_K | Block::Q6_K | Block::IQ4_XS => {
                row.chunks_exact_mut(256).for_each(q8_k);
            }
        },
    }
}

/// 127 steps to the largest, whose size is kept in half precision.
fn q8_0(block: &mut [f32]) {
    let most = block.iter().fold(0f32, |m, v| m.max(v.abs()));
    let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
    let step = half::f16::from_f32(most / 127.0).to_f32();
    block.iter_mut().for_each(|v| *v = (*v * inverse).round_ties_even() * step);
}

/// 127 steps to the first of the largest, which becomes -127 exactly; their size in f32.
fn q8_k(block: &mut [f32]) {
    let most = block.iter().fold(0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
    if most == 0.0 {
        return block.fill(0.0);
    }
    let inverse = -127.0 / most;
    block.iter_mut().for_each(|v| *v = (*v * inverse).round_ties_even().min(127.0) / inverse);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::kernel::noise;

    #[test]
    fn a_block_has_as_many_values_as_its_codes() {
        for (block, values) in [(Block::Q4_0, 32), (Block::Q8_0, 32), (Block::Q4_K, 256), (Block::IQ4_XS, 256)] {
            let x = noise(512, 3);
            let mut y = x.clone();
            round(Packed::Block(block), &mut y);
            for (x, y) in x.chunks(values).zip(y.chunks(values)) {
                let most = x.iter().fold(0f32, |m, v| m.max(v.abs()));
                let off = x.iter().zip(y).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
                assert!(off > 0.0 && off <= 0.51 * most / 127.0, "{block:?}: {off} of {most}");
                let mut codes: Vec<i32> = y.iter().map(|v| (v / most * 127.0).round() as i32).collect();
                codes.sort_unstable();
                codes.dedup();
                assert!(codes.len() <= 255 && codes.iter().all(|c| (-127..=127).contains(c)));
            }
            let mut zeros = vec![0f32; 512];
            round(Packed::Block(block), &mut zeros);
            assert!(zeros.iter().all(|v| *v == 0.0));
        }
    }

    #[test]
    fn floats_become_halves() {
        let mut row = [1.0 + 2f32.powi(-12), 3.0];
        round(Packed::F16, &mut row);
        assert_eq!(row, [1.0, 3.0]);
        let mut row = [1.0 + 2f32.powi(-9), -2.0];
        round(Packed::Bf16, &mut row);
        assert_eq!(row, [1.0, -2.0]);
    }
}
