//! What llama.cpp's CPU kernels make of the rows that they multiply with narrow weights: 8 bits in blocks, or half precision. For saying what a
//! file will answer there; our own kernels keep them in f32.
//!
//! Source: ggml's `type_traits_cpu` (`vec_dot_type` of each format), `quantize_row_q8_0`, `quantize_row_q8_1` and `quantize_row_q8_K`. Not here: the order in
//! which products are added.

use super::{Par, split};
use crate::graph::WeightFormat;
use crate::model::ggml::{Block, Coded};
use crate::model::{Packed, Param};
use std::borrow::Cow;

/// What rows are rounded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    Half,
    Bf16,
    /// Blocks of 32 (`Q8_0`, `Q8_1`).
    Blocks,
    /// Super-blocks of 256 (`Q8_K`).
    Super,
}

impl Rounding {
    /// What `weight`, decided to be in `format`, is multiplied with there; `None`: with f32.
    ///
    /// # Errors
    /// A word for what it has no such format for.
    pub fn of(format: WeightFormat, weight: &Param) -> Result<Option<Rounding>, &'static str> {
        match format {
            WeightFormat::F32 => Ok(match (weight.packed(), weight.as_coded()) {
                (Some((packed, _)), _) => Some(Rounding::packed(packed)),
                (None, Some((Coded::MXFP4, _))) => Some(Rounding::Blocks),
                (None, Some(_)) => Some(Rounding::Super),
                (None, None) => None,
            }),
            WeightFormat::F16 => Ok(Some(Rounding::Half)),
            WeightFormat::Bf16 => Ok(Some(Rounding::Bf16)),
            WeightFormat::Block(block) => Ok(Some(Rounding::packed(Packed::Block(block)))),
            WeightFormat::Int8 => Err("int8"),
            WeightFormat::Int4 { .. } => Err("w4"),
            WeightFormat::Fp8 => Err("fp8"),
            WeightFormat::Codebook { .. } => Err("shared values"),
        }
    }

    fn packed(packed: Packed) -> Rounding {
        match packed {
            Packed::F16 => Rounding::Half,
            Packed::Bf16 => Rounding::Bf16,
            Packed::Block(block) => match block {
                Block::Q4_0 | Block::Q4_1 | Block::Q5_0 | Block::Q5_1 | Block::Q8_0 | Block::IQ4_NL => Rounding::Blocks,
                Block::Q2_K | Block::Q3_K | Block::Q4_K | Block::Q5_K | Block::Q6_K | Block::IQ4_XS => Rounding::Super,
            },
        }
    }

    /// Rounds `row` in place. Its length is whole blocks, or the rest stays.
    pub fn round(self, row: &mut [f32]) {
        match self {
            Rounding::Half => row.iter_mut().for_each(|v| *v = half::f16::from_f32(*v).to_f32()),
            Rounding::Bf16 => row.iter_mut().for_each(|v| *v = half::bf16::from_f32(*v).to_f32()),
            Rounding::Blocks => row.chunks_exact_mut(32).for_each(q8_0),
            Rounding::Super => row.chunks_exact_mut(256).for_each(q8_k),
        }
    }
}

/// Rows of `width` values as `rounding` has them.
pub(crate) fn rows<'a>(rounding: Option<Rounding>, width: usize, x: &'a [f32], par: Par<'_>) -> Cow<'a, [f32]> {
    let Some(rounding) = rounding else { return Cow::Borrowed(x) };
    let mut rounded = x.to_vec();
    split(par, &mut rounded, width, |_, row| rounding.round(row));
    Cow::Owned(rounded)
}

/// The minima of a weight in `Q4_1` or `Q5_1`: they are multiplied with the sum of a block of inputs, which is kept in half precision there.
pub(crate) struct Minima {
    /// `[n, k/32]`.
    values: Vec<f32>,
    blocks: usize,
}

impl Minima {
    /// Those of `weight`, where its format has such.
    pub fn of(weight: &Param) -> Option<Minima> {
        let (block, bytes) = weight.as_blocks().filter(|(b, _)| matches!(b, Block::Q4_1 | Block::Q5_1))?;
        let values =
            bytes.chunks_exact(block.size()).map(|b| half::f16::from_le_bytes([b[2], b[3]]).to_f32()).collect();
        Some(Minima { values, blocks: weight.shape().last()? / block.values() })
    }

    /// What a product of rows `x`, not rounded yet, with the weight has besides because of that, added to `residual`: `[rows, n]`.
    pub fn beside(&self, x: &[f32], residual: Option<&[f32]>, par: Par<'_>) -> Vec<f32> {
        let (blocks, n) = (self.blocks.max(1), self.values.len() / self.blocks.max(1));
        let off: Vec<f32> = x.chunks_exact(32).map(off_by).collect();
        let rows = off.len() / blocks;
        let mut out = residual.map_or_else(|| vec![0.0; rows * n], <[f32]>::to_vec);
        split(par, &mut out, n, |r, out| {
            let off = &off[r * blocks..][..blocks];
            for (o, minima) in out.iter_mut().zip(self.values.chunks_exact(blocks)) {
                *o += minima.iter().zip(off).map(|(m, d)| m * d).sum::<f32>();
            }
        });
        out
    }
}

/// By how much the sum of a block in half precision is off the sum of its rounded values.
fn off_by(block: &[f32]) -> f32 {
    let most = block.iter().fold(0f32, |m, v| m.max(v.abs()));
    if most == 0.0 {
        return 0.0;
    }
    let (step, inverse) = (most / 127.0, 127.0 / most);
    let sum: f32 = block.iter().map(|v| (v * inverse).round_ties_even()).sum();
    let halved = |v: f32| half::f16::from_f32(v).to_f32();
    halved(step * sum) - halved(step) * sum
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
            Rounding::packed(Packed::Block(block)).round(&mut y);
            for (x, y) in x.chunks(values).zip(y.chunks(values)) {
                let most = x.iter().fold(0f32, |m, v| m.max(v.abs()));
                let off = x.iter().zip(y).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
                // Half a step, and what the largest code makes of half a bit of the step's sixteen.
                assert!(off > 0.0 && off <= 0.57 * most / 127.0, "{block:?}: {off} of {most}");
                let mut codes: Vec<i32> = y.iter().map(|v| (v / most * 127.0).round() as i32).collect();
                codes.sort_unstable();
                codes.dedup();
                assert!(codes.len() <= 255 && codes.iter().all(|c| (-127..=127).contains(c)));
            }
            let mut zeros = vec![0f32; 512];
            Rounding::packed(Packed::Block(block)).round(&mut zeros);
            assert!(zeros.iter().all(|v| *v == 0.0));
        }
    }

    #[test]
    fn floats_become_halves() {
        let mut row = [1.0 + 2f32.powi(-12), 3.0];
        Rounding::Half.round(&mut row);
        assert_eq!(row, [1.0, 3.0]);
        let mut row = [1.0 + 2f32.powi(-9), -2.0];
        Rounding::Bf16.round(&mut row);
        assert_eq!(row, [1.0, -2.0]);
    }
}
