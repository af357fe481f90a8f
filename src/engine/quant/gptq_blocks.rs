//! GPTQ into GGML's blocks: codes whose errors later columns make up for, in formats of llama.cpp's. A block's scales are chosen when
//! its turn comes, of the values that earlier blocks' errors left it, as ggml chooses them with importances; then its codes column by
//! column. (Frantar et al. 2023, arXiv 2210.17323, with groups.)
//!
//! Invariants: no row has a larger error than ggml's own rounding by importance gives it; in a format with a zero, a weight of zero stays
//! one, so that masks outlive rounding. Not here: where Gram matrices come from and
//! whether what was learnt stays (`recover`), how blocks lie and how their scales are chosen (`model::ggml`).

use super::gptq::{Factor, ROWS};
use crate::model::ggml::Block;
use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use rayon::prelude::*;

/// Rounded rows.
#[derive(Debug, Clone, PartialEq)]
pub struct LearntBlocks {
    /// Whole blocks, row after row.
    pub bytes: Vec<u8>,
    /// Summed errors `e H eᵀ` of all rows: as they are, and rounded by importance alone.
    pub error: f64,
    pub weighted: f64,
}

/// Rounds `weight` `[rows, cols]` to `block` by the Gram matrix `gram` `[cols, cols]` of its inputs. `None` where counts disagree, rows are
/// no whole blocks, or the matrix is none of a sum of squares.
pub fn gptq_blocks(weight: &[f32], gram: &[f64], block: Block) -> Option<LearntBlocks> {
    let cols = gram.len().isqrt();
    let whole = cols > 0 && gram.len() == cols * cols && cols.is_multiple_of(block.values());
    if !whole || !weight.len().is_multiple_of(cols) {
        return None;
    }
    let factor = Factor::new(gram, cols, block.values())?;
    let row_bytes = cols / block.values() * block.size();
    let mut bytes = vec![0; weight.len() / cols * row_bytes];
    let parts = weight.par_chunks(ROWS * cols).zip(bytes.par_chunks_mut(ROWS * row_bytes));
    let errors: Vec<[f64; 2]> = parts.map(|(weight, out)| rounded(weight, gram, &factor, block, out)).collect();
    // In order, so that threads do not matter.
    let (error, weighted) = errors.iter().fold((0.0, 0.0), |(a, b), [learnt, weighted]| (a + learnt, b + weighted));
    (error.is_finite() && weighted.is_finite()).then_some(LearntBlocks { bytes, error, weighted })
}

/// Rounds a few rows into `out`; their errors, learnt and by importance alone.
fn rounded(weight: &[f32], gram: &[f64], factor: &Factor, block: Block, out: &mut [u8]) -> [f64; 2] {
    let cols = factor.order.len();
    let diagonal: Vec<f32> = (0..cols).map(|i| gram[i * cols + i] as f32).collect();
    let weighted = block.encode_weighted(weight, &diagonal);
    let learnt = compensated(weight, factor, block);
    let size = cols / block.values() * block.size();
    let mut sums = [0.0; 2];
    let [theirs, ours] = [&weighted, &learnt].map(|bytes| errors(weight, &block.decode(bytes), gram));
    let made = weighted.chunks_exact(size).zip(learnt.chunks_exact(size));
    for ((out, (weighted, learnt)), (theirs, ours)) in
        out.chunks_exact_mut(size).zip(made).zip(theirs.iter().zip(&ours))
    {
        out.copy_from_slice(if ours < theirs { learnt } else { weighted });
        sums = [sums[0] + ours.min(*theirs), sums[1] + theirs];
    }
    sums
}

/// `e H eᵀ` of each row.
fn errors(weight: &[f32], rounded: &[f32], gram: &[f64]) -> Vec<f64> {
    let cols = gram.len().isqrt();
    let off: Vec<f64> = weight.iter().zip(rounded).map(|(w, v)| f64::from(*w) - f64::from(*v)).collect();
    let rows = off.len() / cols;
    let mut through = vec![0.0; off.len()];
    // `H` is its own transpose.
    let (e, h) = (MatRef::from_row_major_slice(&off, rows, cols), MatRef::from_column_major_slice(gram, cols, cols));
    let to = MatMut::from_row_major_slice_mut(&mut through, rows, cols);
    matmul(to, Accum::Replace, e, h, 1.0, Par::Seq);
    let each = off.chunks_exact(cols).zip(through.chunks_exact(cols));
    each.map(|(e, he)| e.iter().zip(he).map(|(e, h)| e * h).sum()).collect()
}

/// Rows in blocks, each column's error made up for by those after it.
fn compensated(weight: &[f32], factor: &Factor, block: Block) -> Vec<u8> {
    let Factor { order, upper } = factor;
    let (cols, n, size) = (order.len(), block.values(), block.size());
    let rows = weight.len() / cols;
    let row_bytes = cols / n * size;
    let stays_zero = |r: usize, c: usize| block.has_zero() && weight[r * cols + c] == 0.0;
    // In the order of rounding.
    let ordered = |r: usize| order.iter().map(move |c| f64::from(weight[r * cols + c]));
    let mut left: Vec<f64> = (0..rows).flat_map(ordered).collect();
    let mut out = vec![0u8; rows * row_bytes];
    let (mut values, mut counts, mut codes) = (vec![0f32; n], vec![0f32; n], vec![vec![0u8; n]; rows]);
    for start in (0..cols).step_by(n) {
        let run = &order[start..start + n];
        // A block's columns are one after the other in the weight.
        let first = run[0] / n * n;
        // What an error costs once those after it have made up for what they can.
        for (j, c) in (start..).zip(run) {
            counts[c - first] = upper[j * cols + j].powi(-2) as f32;
        }
        let lattices: Vec<_> = (0..rows)
            .map(|r| {
                run.iter().zip(&left[r * cols + start..]).for_each(|(&c, w)| {
                    values[c - first] = if stays_zero(r, c) { 0.0 } else { *w as f32 };
                });
                let bytes = block.encode_weighted(&values, &counts);
                let lattice = block.lattice(&bytes);
                out[r * row_bytes + first / n * size..][..size].copy_from_slice(&bytes);
                lattice
            })
            .collect();
        for (j, c) in (start..).zip(run) {
            let line = &upper[j * cols..][..cols];
            for r in 0..rows {
                let row = &mut left[r * cols..][..cols];
                let wanted = if stays_zero(r, *c) { 0.0 } else { row[j] };
                let (code, value) = lattices[r].nearest(c - first, wanted);
                codes[r][c - first] = code;
                let off = (row[j] - value) / line[j];
                row[j + 1..].iter_mut().zip(&line[j + 1..]).for_each(|(w, u)| *w -= off * u);
            }
        }
        for (r, codes) in codes.iter().enumerate() {
            block.place(codes, &mut out[r * row_bytes + first / n * size..][..size]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::gptq::squared;
    use crate::quant::gptq::testing::sample;

    #[test]
    fn no_row_gets_worse_and_all_together_much_better() {
        for block in Block::ALL {
            let cols = 2 * block.values().max(64);
            let (weight, gram) = sample(cols, 5, 11);
            let learnt = gptq_blocks(&weight, &gram, block).unwrap();
            assert_eq!(learnt.bytes.len(), 5 * cols / block.values() * block.size());
            let values = block.decode(&learnt.bytes);
            let mut sum = 0.0;
            for (row, values) in weight.chunks(cols).zip(values.chunks(cols)) {
                let off: Vec<f64> = row.iter().zip(values).map(|(w, v)| f64::from(w - v)).collect();
                sum += squared(&off, &gram);
            }
            assert!((sum - learnt.error).abs() <= 1e-6 * sum, "{block:?}: {sum} {}", learnt.error);
            assert!(learnt.error < 0.7 * learnt.weighted, "{block:?}: {} {}", learnt.error, learnt.weighted);
        }
    }

    #[test]
    fn zeros_stay_where_a_format_has_one() {
        for block in Block::ALL {
            let cols = 2 * block.values().max(64);
            let (mut weight, gram) = sample(cols, 5, 11);
            weight.iter_mut().step_by(2).for_each(|w| *w = 0.0);
            let values = block.decode(&gptq_blocks(&weight, &gram, block).unwrap().bytes);
            let stayed = values.iter().step_by(2).filter(|v| **v == 0.0).count();
            assert_eq!(stayed == values.len() / 2, block.has_zero(), "{block:?}: {stayed} of {}", values.len() / 2);
            assert!(block.with_zero().has_zero() && (block.with_zero() == block) == block.has_zero());
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let (weight, gram) = sample(64, 2, 3);
        assert!(gptq_blocks(&weight, &gram, Block::Q4_K).is_none(), "64 columns are no super-block");
        assert!(gptq_blocks(&weight[1..], &gram, Block::Q4_0).is_none());
        assert!(gptq_blocks(&weight, &gram[1..], Block::Q4_0).is_none());
        assert!(gptq_blocks(&weight, &vec![0.0; 64 * 64], Block::Q4_0).is_none());
        assert!(gptq_blocks(&[], &[], Block::Q4_0).is_none());
        // An input that is always zero leaves sound blocks.
        let mut dead = gram.clone();
        (0..64).for_each(|i| (dead[i * 64 + 4], dead[4 * 64 + i]) = (0.0, 0.0));
        let found = gptq_blocks(&weight, &dead, Block::Q4_0).unwrap();
        assert!(Block::Q4_0.decode(&found.bytes).iter().all(|v| v.is_finite()));
    }
}
