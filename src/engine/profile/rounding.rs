//! What rounding to GGML's formats does to each weight of a model, without running it: the squared error as a part of the weight's own
//! squares, columns counting by importance where that is known. The output of a linear layer is off by as much, relative to itself, where
//! inputs are unrelated; and small relative errors of layers add up in the network's loss, each times a number of its own (Malinovskii
//! et al. 2024, "Pushing the limits of large language model quantization via the linearity theorem", arXiv 2411.17525).
//!
//! Large weights are looked at by rows that are spread over them evenly. Not here: what is chosen of it (`plan`), and the numbers of layers
//! (`sensitivity` measures them).

use super::Result;
use crate::exec::Cancel;
use crate::graph::ggml::Block;
use crate::graph::{Node, ParamRole, Precision};
use crate::model::{Imatrix, Model, Param, imatrix};
use rayon::prelude::*;

/// Values of a weight that are looked at, unless its rows are longer.
pub const LOOKED_AT: usize = 1 << 20;

/// A format that a weight may be stored in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rounding {
    /// `None`: as it is.
    pub format: Option<Block>,
    /// Bytes of the whole weight.
    pub bytes: u64,
    /// The squared error as a part of the weight's squares.
    pub error: f64,
}

/// What one weight may become.
#[derive(Debug, Clone, PartialEq)]
pub struct Roundings {
    /// The layer whose weight it is; the first, where several share it.
    pub layer: String,
    pub values: u64,
    /// The part of its rows that was looked at.
    pub looked_at: f64,
    /// As it is first, then the formats that take its rows, in the order in which they were asked for.
    pub formats: Vec<Rounding>,
}

/// The roundings of every convolution's and linear layer's weight, in network order. A weight that is shared comes once.
///
/// # Errors
/// A parameter that is missing; cancellation, looked for before every weight.
pub fn roundings(
    model: &Model,
    formats: &[Block],
    by: Option<&Imatrix>,
    cancel: &Cancel,
    update: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Roundings>> {
    let names = imatrix::names(&model.graph);
    let layers = weights(model);
    let one = |(i, (node, weight)): (usize, &(&Node, &str))| {
        cancel.check()?;
        update(i, layers.len());
        let called = names.get(*weight).map_or(*weight, String::as_str);
        let columns = model.params.get(weight)?.shape().iter().skip(1).product::<usize>();
        of_node(model, node, formats, by.and_then(|m| m.columns(called, columns)).as_deref())
    };
    let out = layers.iter().enumerate().map(one).filter_map(Result::transpose).collect();
    update(layers.len(), layers.len());
    out
}

/// What [`roundings`] tells of sizes, without a look at any value: errors are 0.
///
/// # Errors
/// A parameter that is missing.
pub fn sizes(model: &Model, formats: &[Block]) -> Result<Vec<Roundings>> {
    let one = |(node, weight): (&Node, &str)| {
        let param = model.params.get(weight)?;
        let fits = |b: &&Block| Precision::Block(**b).unfit(&node.op).is_none();
        let as_it_is = Rounding { format: None, bytes: param.stored_bytes(), error: 0.0 };
        let rounded = formats.iter().filter(fits).map(|b| bytes_in(param.numel(), *b));
        let formats = std::iter::once(as_it_is).chain(rounded).collect();
        Ok(Roundings { layer: node.name.clone(), values: param.numel() as u64, looked_at: 0.0, formats })
    };
    weights(model).into_iter().map(one).collect()
}

/// `values` in whole blocks.
fn bytes_in(values: usize, block: Block) -> Rounding {
    Rounding { format: Some(block), bytes: (values / block.values() * block.size()) as u64, error: 0.0 }
}

/// Every convolution and linear layer with its weight's name, in network order. A weight that is shared comes once.
fn weights(model: &Model) -> Vec<(&Node, &str)> {
    let mut seen = std::collections::HashSet::new();
    let layers = model.graph.live().map(|(_, n)| n).filter(|n| n.op.is_conv_or_linear());
    layers.filter_map(|n| Some((n, n.param(ParamRole::Weight)?))).filter(|(_, weight)| seen.insert(*weight)).collect()
}

/// The roundings of one node's weight to those of `formats` that take its rows, columns counting as `counts` say; `None` where it has no weight.
///
/// # Errors
/// A parameter that is missing.
pub(super) fn of_node(
    model: &Model,
    node: &Node,
    formats: &[Block],
    counts: Option<&[f32]>,
) -> Result<Option<Roundings>> {
    let Some(weight) = node.param(ParamRole::Weight) else { return Ok(None) };
    let param = model.params.get(weight)?;
    let fits = |b: &&Block| Precision::Block(**b).unfit(&node.op).is_none();
    let fitting: Vec<Block> = formats.iter().filter(fits).copied().collect();
    let found = of_weight(param, &fitting, counts);
    param.release();
    Ok(Some(Roundings { layer: node.name.clone(), ..found }))
}

/// Of one weight `[rows, columns]`.
fn of_weight(param: &Param, formats: &[Block], counts: Option<&[f32]>) -> Roundings {
    let values = param.numel();
    let rows = param.shape().first().copied().unwrap_or(0);
    let columns = values.checked_div(rows).unwrap_or(0);
    let picks = spread(rows, (LOOKED_AT / columns.max(1)).max(1));
    let ones = vec![1.0; columns];
    let weigh = counts.unwrap_or(&ones);
    // Our own codes have no rows that could be looked at alone.
    let whole = param.rows(0..rows.min(1)).is_none().then(|| param.values());
    // [Σ w x², Σ w (x - q)² of each format] of every row.
    let sums: Vec<Vec<f64>> = picks
        .par_iter()
        .map(|&row| {
            let x = match (&whole, param.rows(row..row + 1)) {
                (None, Some(one)) => one.values().into_owned(),
                (Some(whole), _) => whole[row * columns..][..columns].to_vec(),
                (None, None) => return vec![0.0; formats.len() + 1],
            };
            let total = |off: &dyn Fn(usize) -> f64| -> f64 {
                weigh.iter().enumerate().map(|(i, w)| f64::from(*w) * off(i).powi(2)).sum()
            };
            let of = |block: &Block| {
                let bytes = match counts {
                    Some(counts) => block.encode_weighted(&x, counts),
                    None => block.encode(&x),
                };
                let y = block.decode(&bytes);
                total(&|i| f64::from(x[i]) - f64::from(y[i]))
            };
            std::iter::once(total(&|i| f64::from(x[i]))).chain(formats.iter().map(of)).collect()
        })
        .collect();
    // In order, so that threads do not matter.
    let sum = |i: usize| sums.iter().map(|row| row[i]).sum::<f64>();
    let all = sum(0);
    let as_it_is = Rounding { format: None, bytes: param.stored_bytes(), error: 0.0 };
    let rounded = formats.iter().enumerate().map(|(i, &block)| Rounding {
        // A format that it is stored in already changes nothing.
        error: match param.is_in(Precision::Block(block).weights()) || all <= 0.0 {
            true => 0.0,
            false => sum(i + 1) / all,
        },
        ..bytes_in(values, block)
    });
    Roundings {
        layer: String::new(),
        values: values as u64,
        looked_at: picks.len() as f64 / rows.max(1) as f64,
        formats: std::iter::once(as_it_is).chain(rounded).collect(),
    }
}

/// At most `most` of `rows` rows, evenly spread.
fn spread(rows: usize, most: usize) -> Vec<usize> {
    let n = rows.min(most);
    (0..n).map(|i| i * rows / n).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(rows: usize, columns: usize) -> Param {
        let values = (0..rows * columns).map(|i| ((i * 7919 % 1009) as f32 / 504.5 - 1.0).powi(3)).collect();
        Param::owned(vec![rows, columns], values).unwrap()
    }

    #[test]
    fn errors_are_those_of_the_rounded_weight() {
        let param = weight(6, 512);
        let formats = [Block::Q8_0, Block::Q4_K, Block::Q2_K];
        let found = of_weight(&param, &formats, None);
        assert_eq!((found.values, found.looked_at, found.formats.len()), (3072, 1.0, 4));
        assert_eq!(found.formats[0], Rounding { format: None, bytes: 4 * 3072, error: 0.0 });
        for (f, block) in found.formats[1..].iter().zip(formats) {
            let (x, y) = (param.values(), block.decode(&block.encode(&param.values())));
            let squares = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>();
            let want = squares(&mut x.iter().zip(&y).map(|(x, y)| f64::from(*x) - f64::from(*y)))
                / squares(&mut x.iter().map(|x| f64::from(*x)));
            assert!((f.error - want).abs() < 1e-12 && want > 0.0, "{block:?}: {} {want}", f.error);
            assert_eq!((f.format, f.bytes), (Some(block), (3072 / block.values() * block.size()) as u64));
        }
        assert!(found.formats.windows(2).all(|two| two[0].error < two[1].error));
        // Columns that count for nothing leave no error.
        let half: Vec<f32> = (0..512).map(|i| f32::from(u8::from(i < 256))).collect();
        let heavy = of_weight(&param, &[Block::Q4_0], Some(&half)).formats[1].error;
        assert!(heavy > 0.0 && heavy != of_weight(&param, &[Block::Q4_0], None).formats[1].error);
        // Stored so already, it costs nothing.
        let blocks = Param::of_blocks(vec![6, 512], Block::Q4_K.encode(&param.values()), Block::Q4_K).unwrap();
        let found = of_weight(&blocks, &formats, None);
        assert_eq!((found.formats[2].error, found.formats[0].bytes), (0.0, found.formats[2].bytes));
        assert!(found.formats[3].error > 0.0);
    }

    #[test]
    fn large_weights_are_looked_at_by_rows_from_everywhere() {
        assert_eq!(spread(5, 9), [0, 1, 2, 3, 4]);
        assert_eq!(spread(10, 4), [0, 2, 5, 7]);
        assert!(spread(0, 4).is_empty());
        let param = weight(3000, 1024);
        let found = of_weight(&param, &[Block::Q4_0], None);
        assert!((found.looked_at - 1024.0 / 3000.0).abs() < 1e-9);
        // What is left out is like what was looked at.
        let (x, y) = (param.values(), Block::Q4_0.decode(&Block::Q4_0.encode(&param.values())));
        let sum = |of: &dyn Fn(usize) -> f64| (0..x.len()).map(of).map(|v| v * v).sum::<f64>();
        let whole = sum(&|i| f64::from(x[i]) - f64::from(y[i])) / sum(&|i| f64::from(x[i]));
        assert!((found.formats[1].error / whole - 1.0).abs() < 0.02, "{} {whole}", found.formats[1].error);
    }
}
