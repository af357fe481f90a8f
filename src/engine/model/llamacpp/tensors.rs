//! What each tensor is written as: the bytes that the checkpoint has or that were decided, where GGUF has a type for them; else what
//! comes nearest, said in a note.
//!
//! Invariant: no tensor is decoded before it is its turn.

use super::Unfit;
use crate::graph::WeightFormat;
use crate::model::ggml::{Block, Coded};
use crate::model::origin::dtype_number;
use crate::model::{Dtype, Param, ParamStore, gguf, printable};
use std::borrow::Cow;

/// Values of a block of `Q8_0` and `Q4_0`.
const BLOCK: usize = 32;

/// A type of GGUF's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Float(Dtype),
    Block(Block),
    /// As it was read; nothing is made in it.
    Coded(Coded),
}

impl Kind {
    pub fn number(self) -> u32 {
        match self {
            Kind::Float(dtype) => dtype_number(dtype),
            Kind::Block(block) => block.number(),
            Kind::Coded(code) => code.number(),
        }
    }

    fn bytes(self, numel: usize) -> usize {
        match self {
            Kind::Float(dtype) => numel * dtype.size(),
            Kind::Block(block) => numel / block.values() * block.size(),
            Kind::Coded(code) => numel / code.values() * code.size(),
        }
    }

    /// ggml's name.
    pub fn label(self) -> &'static str {
        match self {
            Kind::Float(Dtype::F32) => "F32",
            Kind::Float(Dtype::F16) => "F16",
            Kind::Float(Dtype::Bf16) => "BF16",
            Kind::Float(Dtype::F64) => "F64",
            Kind::Block(block) => block.label(),
            Kind::Coded(code) => code.label(),
        }
    }
}

/// What a note says of tensors that are not written as they were decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// The very codes of 8 or 4 bits, in blocks whose scales have 16 bits.
    Scales(&'static str),
    /// Half precision, because GGUF has no such format or its rows are no whole blocks.
    Halves(&'static str),
}

/// A tensor that is to be written.
#[derive(Debug)]
pub(super) struct Tensor<'a> {
    pub name: String,
    pub kind: Kind,
    pub change: Option<Change>,
    param: Cow<'a, Param>,
    format: WeightFormat,
    /// Rows in another order: where each comes from.
    order: Option<Vec<usize>>,
    /// Others that are one with this in the file.
    joined: Option<(Joined, Vec<Tensor<'a>>)>,
}

/// How several tensors of ours are one of the file's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Joined {
    /// A layer's experts, in their order, with an axis more: `[experts, rows, columns]`.
    Experts,
    /// The rows of one after those of the other: queries, keys and values; the gate and what it gates.
    Rows,
}

impl Joined {
    /// What is joined so, in words, and what would do where it cannot be.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Joined::Experts => ("expert", "all experts of a layer"),
            Joined::Rows => ("part", "all parts of it (queries, keys and values; the gate and what it gates)"),
        }
    }
}

impl<'a> Tensor<'a> {
    /// The tensor `name` of `params`, decided to be stored in `format`.
    pub fn new(
        name: String,
        (params, own): (&'a ParamStore, &str),
        format: WeightFormat,
        order: Option<Vec<usize>>,
    ) -> crate::model::Result<Tensor<'a>> {
        let param = params.get(own)?.without_ones();
        let (kind, change) = choose(&param, format);
        Ok(Tensor { name, kind, change, param, format, order, joined: None })
    }

    /// The same under another name.
    pub fn named(&self, name: &str) -> Tensor<'a> {
        let Tensor { kind, change, ref param, format, ref order, .. } = *self;
        Tensor { name: name.to_owned(), kind, change, param: param.clone(), format, order: order.clone(), joined: None }
    }

    /// One that the checkpoint has and nothing computes with, as it is.
    pub fn other(name: String, param: &'a Param) -> Tensor<'a> {
        let kind = match (param.as_blocks(), param.as_coded()) {
            (Some((block, _)), _) => Kind::Block(block),
            (None, Some((code, _))) => Kind::Coded(code),
            (None, None) => Kind::Float(param.dtype().unwrap_or(Dtype::F32)),
        };
        let (param, format) = (Cow::Borrowed(param), WeightFormat::F32);
        Tensor { name, kind, change: None, param, format, order: None, joined: None }
    }

    /// All of `parts`, in their order, as one tensor.
    ///
    /// # Errors
    /// Parts of shapes or formats that do not make one.
    pub fn joined(name: String, how: Joined, parts: Vec<Tensor<'a>>) -> Result<Tensor<'a>, Unfit> {
        let (part, all) = how.words();
        let mut parts = parts.into_iter();
        let empty = || Unfit::new(format!("`{}` has no {part}s", printable(&name)), "export as safetensors");
        let mut first = parts.next().ok_or_else(empty)?;
        let mut rest: Vec<Tensor<'a>> = parts.collect();
        let like = |t: &Tensor<'_>| match how {
            Joined::Experts => t.param.shape() == first.param.shape(),
            Joined::Rows => t.param.shape().get(1..) == first.param.shape().get(1..),
        };
        if let Some(i) = rest.iter().position(|t| !like(t)) {
            let [a, b] = [&first, &rest[i]].map(|t| t.param.shape());
            return Err(Unfit::new(
                format!(
                    "{part} {} of `{}` has shape {b:?} and {part} 0 {a:?}, and all are one tensor",
                    i + 1,
                    printable(&name)
                ),
                &format!("cut {all} alike, or export as safetensors"),
            ));
        }
        if let Some(i) = rest.iter().position(|t| t.kind != first.kind) {
            let floats = |t: &Tensor<'_>| matches!(t.kind, Kind::Float(_));
            if !floats(&first) || !rest.iter().all(floats) {
                let (a, b) = (first.kind.label(), rest[i].kind.label());
                return Err(Unfit::new(
                    format!(
                        "{part} {} of `{}` is in {b} and {part} 0 in {a}, and all are one tensor",
                        i + 1,
                        printable(&name)
                    ),
                    &format!("choose one precision for {all}, or export as safetensors"),
                ));
            }
            // The smallest that holds every one of them.
            first.kind = Kind::Float(Dtype::F32);
            rest.iter_mut().for_each(|t| t.kind = Kind::Float(Dtype::F32));
        }
        first.change = first.change.or_else(|| rest.iter().find_map(|t| t.change));
        Ok(Tensor { name, joined: Some((how, rest)), ..first })
    }

    pub fn info(&self) -> gguf::Info {
        let mut shape = self.param.shape().to_vec();
        match &self.joined {
            None => {}
            Some((Joined::Experts, rest)) => shape.insert(0, rest.len() + 1),
            Some((Joined::Rows, rest)) => {
                let more = rest.iter().filter_map(|t| t.param.shape().first());
                shape.iter_mut().take(1).for_each(|rows| *rows += more.clone().sum::<usize>());
            }
        }
        let bytes = self.kind.bytes(self.numel());
        gguf::Info { name: self.name.clone(), shape, kind: self.kind.number(), bytes }
    }

    pub fn numel(&self) -> usize {
        self.param.numel() + self.others().iter().map(Tensor::numel).sum::<usize>()
    }

    /// Bytes as it was decided, and as it is written.
    pub fn sizes(&self) -> [u64; 2] {
        let cols = self.param.shape().last().copied().unwrap_or(0);
        let decided = match self.format {
            WeightFormat::F32 => self.param.stored_bytes(),
            format => format.bytes(self.param.numel() / cols.max(1), cols),
        };
        let others: u64 = self.others().iter().map(|t| t.sizes()[0]).sum();
        [decided + others, self.kind.bytes(self.numel()) as u64]
    }

    /// Those that are one with it in the file.
    fn others(&self) -> &[Tensor<'a>] {
        self.joined.as_ref().map_or(&[], |(_, rest)| rest)
    }

    pub fn is_matrix(&self) -> bool {
        self.param.shape().len() > 1
    }

    /// What is written.
    ///
    /// # Errors
    /// A number that 16 bits cannot hold.
    pub fn bytes(&self) -> Result<Cow<'_, [u8]>, Unfit> {
        let first = self.own_bytes()?;
        if self.others().is_empty() {
            return Ok(first);
        }
        let mut all = first.into_owned();
        for other in self.others() {
            all.extend_from_slice(&other.own_bytes()?);
        }
        Ok(all.into())
    }

    fn own_bytes(&self) -> Result<Cow<'_, [u8]>, Unfit> {
        let bytes = match (self.kind, self.param.as_blocks()) {
            (Kind::Block(block), Some((stored, bytes))) if block == stored => Cow::Borrowed(bytes),
            (Kind::Block(block), _) => Cow::Owned(self.codes(block)?),
            (Kind::Coded(_), _) => Cow::Borrowed(self.param.as_coded().map_or(&[][..], |(_, bytes)| bytes)),
            (Kind::Float(dtype), _) if self.param.dtype() == Some(dtype) => self.param.float_bytes().1,
            (Kind::Float(dtype), _) => Cow::Owned(self.floats(dtype)?),
        };
        self.param.release();
        let Some(order) = &self.order else { return Ok(bytes) };
        let row = bytes.len() / order.len().max(1);
        Ok(order.iter().flat_map(|from| &bytes[from * row..][..row]).copied().collect::<Vec<u8>>().into())
    }

    fn floats(&self, dtype: Dtype) -> Result<Vec<u8>, Unfit> {
        let stored = self.param.stored_in(self.format);
        let values = stored.values();
        Ok(match dtype {
            Dtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Dtype::F64 => values.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect(),
            Dtype::Bf16 => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
            Dtype::F16 => {
                let halves = values.iter().map(|v| self.half(*v).map(half::f16::to_le_bytes));
                halves.collect::<Result<Vec<_>, _>>()?.concat()
            }
        })
    }

    fn half(&self, v: f32) -> Result<half::f16, Unfit> {
        let half = half::f16::from_f32(v);
        let hint = "choose bf16 or a format of blocks for that layer, or export as safetensors";
        let unfit = || Unfit::new(format!("`{}` holds {v}, which half precision cannot", printable(&self.name)), hint);
        if half.is_finite() { Ok(half) } else { Err(unfit()) }
    }

    /// A scale of codes, whose error is that of all its values.
    fn scale(&self, v: f32) -> Result<half::f16, Unfit> {
        let half = self.half(v)?;
        if (half.to_f32() - v).abs() <= 0.02 * v.abs() {
            return Ok(half);
        }
        let why = format!("`{}` has scales as small as {v:e}, which 16 bits hold badly", printable(&self.name));
        Err(Unfit::new(why, "choose bf16 or f32 for that layer, or export as safetensors"))
    }

    /// The blocks that were decided, or the codes of our own 8 or 4 bits in blocks of `Q8_0` or `Q4_0`.
    fn codes(&self, block: Block) -> Result<Vec<u8>, Unfit> {
        let stored = self.param.stored_in(self.format);
        let mut out = Vec::with_capacity(self.kind.bytes(stored.numel()));
        if let Some((_, bytes)) = stored.as_blocks() {
            if block.decode(bytes).iter().any(|v| !v.is_finite()) {
                self.half(f32::INFINITY)?;
            }
            out.extend(bytes);
        } else if let (Block::Q8_0, Some((q, scales))) = (block, stored.as_int8()) {
            for (row, scale) in q.chunks_exact((q.len() / scales.len().max(1)).max(1)).zip(scales) {
                for codes in row.chunks_exact(BLOCK) {
                    out.extend(self.scale(*scale)?.to_le_bytes());
                    out.extend(codes.iter().map(|q| q.cast_unsigned()));
                }
            }
        } else if let (Block::Q4_0, Some(rows)) = (block, stored.as_int4()) {
            let each = rows.cols.div_ceil(rows.group.max(1));
            for (r, scales) in rows.scales.chunks_exact(each.max(1)).enumerate() {
                let codes: Vec<u8> = rows.codes(r).map(|q| (q + 8).cast_unsigned()).collect();
                for (b, codes) in codes.chunks_exact(BLOCK).enumerate() {
                    out.extend(self.scale(scales[b * BLOCK / rows.group])?.to_le_bytes());
                    out.extend((0..BLOCK / 2).map(|i| codes[i] | codes[i + BLOCK / 2] << 4));
                }
            }
        }
        Ok(out)
    }
}

/// What a tensor that was decided to be stored in `format` is written as.
fn choose(param: &Param, format: WeightFormat) -> (Kind, Option<Change>) {
    use Kind::Float;
    let cols = param.shape().last().copied().unwrap_or(0);
    if param.shape().len() < 2 {
        // llama.cpp adds and multiplies with vectors of f32 alone.
        return (Float(Dtype::F32), None);
    }
    let whole = |n: usize| cols.is_multiple_of(n);
    match format {
        WeightFormat::F32 => match (param.as_blocks(), param.as_coded(), param.dtype()) {
            (Some((block, _)), ..) => (Kind::Block(block), None),
            (None, Some((code, _)), _) => (Kind::Coded(code), None),
            (None, None, Some(dtype @ (Dtype::F16 | Dtype::Bf16))) => (Float(dtype), None),
            _ => (Float(narrowest(&param.values())), None),
        },
        WeightFormat::F16 => (Float(Dtype::F16), None),
        WeightFormat::Bf16 => (Float(Dtype::Bf16), None),
        WeightFormat::Int8 if whole(BLOCK) => (Kind::Block(Block::Q8_0), Some(Change::Scales("Q8_0"))),
        WeightFormat::Int4 { group } if whole(BLOCK) && group.is_none_or(|g| g.is_multiple_of(BLOCK)) => {
            (Kind::Block(Block::Q4_0), Some(Change::Scales("Q4_0")))
        }
        WeightFormat::Block(block) if whole(block.values()) => (Kind::Block(block), None),
        WeightFormat::Block(block) => (Float(Dtype::F16), Some(Change::Halves(block.label()))),
        WeightFormat::Int8 => (Float(Dtype::F16), Some(Change::Halves("int8"))),
        WeightFormat::Int4 { .. } => (Float(Dtype::F16), Some(Change::Halves("w4"))),
        WeightFormat::Fp8 => (Float(Dtype::F16), Some(Change::Halves("fp8"))),
        WeightFormat::Codebook { .. } => (Float(Dtype::F16), Some(Change::Halves("shared values"))),
    }
}

/// The smallest floats that hold every one of `values` exactly.
fn narrowest(values: &[f32]) -> Dtype {
    let same = |a: f32, b: &f32| a.to_bits() == b.to_bits();
    if values.iter().all(|v| same(half::bf16::from_f32(*v).to_f32(), v)) {
        Dtype::Bf16
    } else if values.iter().all(|v| same(half::f16::from_f32(*v).to_f32(), v)) {
        Dtype::F16
    } else {
        Dtype::F32
    }
}

/// Where the rows of queries or keys come from when heads that turn halves become heads that turn neighbours.
pub(in crate::model) fn neighbours(rows: usize, head: usize) -> Vec<usize> {
    (0..rows).map(|r| r / head * head + r % 2 * (head / 2) + r % head / 2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_halves_become_neighbours() {
        assert_eq!(neighbours(8, 4), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(neighbours(6, 6), [0, 3, 1, 4, 2, 5]);
    }

    #[test]
    fn floats_are_as_narrow_as_loses_nothing() {
        assert_eq!(narrowest(&[1.0, -0.0, 3e38]), Dtype::F32);
        assert_eq!(narrowest(&[1.0, -0.0, 2f32.powi(120)]), Dtype::Bf16);
        assert_eq!(narrowest(&[1.0, 1.0 + 2f32.powi(-10)]), Dtype::F16);
        assert_eq!(narrowest(&[1.0, 1.0 + 2f32.powi(-11)]), Dtype::F32);
    }
}
