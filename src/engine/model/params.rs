//! Named parameter tensors, views of a file's bytes or owned, read as `f32`.

use super::Blob;
use super::blob::FileState;
use super::codebook::Codebook;
use super::ggml::{Block, Coded};
use super::int4::Int4;
use super::{fp8, int8};
use crate::graph::{Precision, WeightFormat};
use indexmap::IndexMap;
use std::borrow::Cow;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a parameter could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ParamError {
    #[error("no tensor `{name}` in the checkpoint; hint: `--arch` may name the wrong family")]
    Missing { name: String },
    #[error("tensor `{name}` has shape {found:?}, expected {expected:?}; hint: is this the right family and file?")]
    Shape { name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error(
        "tensor `{name}` holds `{dtype}`, expected floating point; hint: quantized checkpoints of others are not read"
    )]
    Type { name: String, dtype: String },
    #[error(
        "`{}` changed while it was in use: {how}; hint: put the old file back and start again; rounds that have run are \
         exported without it",
        path.display()
    )]
    Changed { path: PathBuf, how: String },
}

/// Element types that a checkpoint may store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
    F64,
}

impl Dtype {
    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F64 => 8,
        }
    }
}

/// One tensor: contiguous, row-major.
#[derive(Debug, Clone)]
pub struct Param {
    shape: Vec<usize>,
    data: Data,
}

#[derive(Debug, Clone)]
enum Data {
    Owned(Arc<[f32]>),
    /// `offset..offset + numel·size` bytes of a blob; bounds were checked at construction.
    View {
        blob: Blob,
        offset: usize,
        dtype: Dtype,
    },
    /// As many bytes of a blob as its values take in blocks of a GGUF file; bounds were checked at construction.
    Blocks {
        blob: Blob,
        offset: usize,
        block: Block,
    },
    /// The same in a format that is only read.
    Coded {
        blob: Blob,
        offset: usize,
        code: Coded,
    },
    /// A matrix stored the other way round; turned when it is read.
    Turned(Arc<Param>),
    /// Quantized rows: `numel` values and one scale per index of axis 0; counts were checked at construction.
    Int8 {
        q: Arc<[i8]>,
        scales: Arc<[f32]>,
    },
    /// Rows of 8-bit floats and one scale per index of axis 0; counts were checked at construction.
    Fp8 {
        q: Arc<[u8]>,
        scales: Arc<[f32]>,
    },
    /// Rows of `numel` 4-bit values; counts were checked at construction.
    Int4(Arc<Int4>),
    /// Numbers of `numel` shared values; counts were checked at construction.
    Codebook(Arc<Codebook>),
}

/// The product of `shape`, or `None` when it overflows.
pub(super) fn numel_of(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

pub(super) fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Strides of a contiguous tensor, row-major.
pub(super) fn row_major(shape: &[usize]) -> Vec<isize> {
    let mut out = vec![0; shape.len()];
    let mut step = 1isize;
    for (s, &d) in out.iter_mut().zip(shape).rev() {
        *s = step;
        step = step.saturating_mul(d as isize);
    }
    out
}

/// Where the elements of a strided tensor lie, in row-major order.
pub(super) fn strided(shape: &[usize], strides: &[isize], start: isize) -> impl Iterator<Item = isize> {
    let (mut index, mut next) = (vec![0usize; shape.len()], start);
    (0..shape.iter().product()).map(move |_| {
        let here = next;
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            // Wrapping: an axis of length one may carry any stride at all, and what is added is taken off again.
            next = next.wrapping_add(strides[axis]);
            if index[axis] < shape[axis] {
                break;
            }
            next = next.wrapping_sub(strides[axis].wrapping_mul(shape[axis] as isize));
            index[axis] = 0;
        }
        here
    })
}

/// What a matrix is stored in that kernels multiply as it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packed {
    F16,
    Bf16,
    Block(Block),
}

impl Packed {
    /// `f16`, `q4_1`.
    pub fn label(self) -> String {
        match self {
            Packed::F16 => "f16".to_owned(),
            Packed::Bf16 => "bf16".to_owned(),
            Packed::Block(block) => block.label().to_ascii_lowercase(),
        }
    }

    /// Values that come together.
    pub fn values(self) -> usize {
        match self {
            Packed::F16 | Packed::Bf16 => 1,
            Packed::Block(block) => block.values(),
        }
    }

    /// Bytes of those.
    pub fn size(self) -> usize {
        match self {
            Packed::F16 | Packed::Bf16 => 2,
            Packed::Block(block) => block.size(),
        }
    }
}

impl Param {
    /// Without axes of length 1 before a matrix: positions `[1, n, d]` are `[n, d]` in others' files.
    pub(super) fn without_ones(&self) -> Cow<'_, Param> {
        let ones = self.shape.iter().take_while(|n| **n == 1).count().min(self.shape.len().saturating_sub(2));
        match self.reshaped(self.shape[ones..].to_vec()).filter(|_| ones > 0) {
            Some(param) => Cow::Owned(param),
            None => Cow::Borrowed(self),
        }
    }

    /// What it is stored in and the bytes, where kernels can take them as they lie.
    pub fn packed(&self) -> Option<(Packed, &[u8])> {
        let (packed, blob, offset) = match &self.data {
            Data::Blocks { blob, offset, block } => (Packed::Block(*block), blob, *offset),
            Data::View { blob, offset, dtype: Dtype::F16 } => (Packed::F16, blob, *offset),
            Data::View { blob, offset, dtype: Dtype::Bf16 } => (Packed::Bf16, blob, *offset),
            _ => return None,
        };
        Some((packed, blob.get(offset..offset + self.numel() / packed.values() * packed.size())?))
    }

    /// Row `i` of a matrix.
    pub(crate) fn row(&self, i: usize, out: &mut [f32]) {
        let n = out.len();
        let Some((packed, bytes)) = self.packed().filter(|(p, _)| n.is_multiple_of(p.values())) else {
            return out.copy_from_slice(&self.values()[i * n..][..n]);
        };
        let size = n / packed.values() * packed.size();
        let row = &bytes[i * size..][..size];
        match packed {
            Packed::Block(block) => out.copy_from_slice(&block.decode(row)),
            Packed::F16 | Packed::Bf16 => {
                for (o, b) in out.iter_mut().zip(row.chunks_exact(2)) {
                    let bits = u16::from_le_bytes([b[0], b[1]]);
                    *o = match packed {
                        Packed::F16 => half::f16::from_bits(bits).to_f32(),
                        _ => f32::from_bits(u32::from(bits) << 16),
                    };
                }
            }
        }
    }

    /// A tensor of these bytes; `None` where they are too few.
    pub(crate) fn packed_in(shape: Vec<usize>, bytes: Vec<u8>, packed: Packed) -> Option<Param> {
        let blob = Blob::Owned(bytes.into());
        match packed {
            Packed::F16 => Param::view(shape, blob, 0, Dtype::F16),
            Packed::Bf16 => Param::view(shape, blob, 0, Dtype::Bf16),
            Packed::Block(block) => Param::blocks(shape, blob, 0, block),
        }
    }

    /// An owned tensor; `None` when `data.len()` is not the product of `shape`.
    pub fn owned(shape: Vec<usize>, data: Vec<f32>) -> Option<Param> {
        (numel_of(&shape)? == data.len()).then(|| Param { shape, data: Data::Owned(data.into()) })
    }

    /// A little-endian, contiguous view into `blob` from byte `offset`; `None` when it would reach past its end.
    pub fn view(shape: Vec<usize>, blob: Blob, offset: usize, dtype: Dtype) -> Option<Param> {
        let end = numel_of(&shape)?.checked_mul(dtype.size())?.checked_add(offset)?;
        (end <= blob.len()).then_some(Param { shape, data: Data::View { blob, offset, dtype } })
    }

    /// A view of whole blocks in `blob` from byte `offset` on; `None` when they are no whole blocks or would reach past its end.
    pub fn blocks(shape: Vec<usize>, blob: Blob, offset: usize, block: Block) -> Option<Param> {
        let numel = numel_of(&shape).filter(|n| n.is_multiple_of(block.values()))?;
        let end = (numel / block.values()).checked_mul(block.size())?.checked_add(offset)?;
        (end <= blob.len()).then_some(Param { shape, data: Data::Blocks { blob, offset, block } })
    }

    /// As [`Param::blocks`], in a format that is only read.
    pub(super) fn coded(shape: Vec<usize>, blob: Blob, offset: usize, code: Coded) -> Option<Param> {
        let numel = numel_of(&shape).filter(|n| n.is_multiple_of(code.values()))?;
        let end = (numel / code.values()).checked_mul(code.size())?.checked_add(offset)?;
        (end <= blob.len()).then_some(Param { shape, data: Data::Coded { blob, offset, code } })
    }

    /// The blocks of a tensor in a format that is only read, as they are stored.
    pub fn as_coded(&self) -> Option<(Coded, &[u8])> {
        let Data::Coded { blob, offset, code } = &self.data else { return None };
        Some((*code, &blob[*offset..*offset + coded_bytes(*code, self.numel())]))
    }

    /// Rows quantized as [`int8::quantize_rows`] does, one scale per index of axis 0; `None` when counts disagree.
    pub fn int8(shape: Vec<usize>, q: Vec<i8>, scales: Vec<f32>) -> Option<Param> {
        let fits = numel_of(&shape)? == q.len() && shape.first() == Some(&scales.len());
        fits.then(|| Param { shape, data: Data::Int8 { q: q.into(), scales: scales.into() } })
    }

    /// The same values in another shape; `None` when the counts differ or quantized rows would be torn.
    pub fn reshaped(&self, shape: Vec<usize>) -> Option<Param> {
        let quantized = matches!(self.data, Data::Int8 { .. } | Data::Fp8 { .. } | Data::Int4(_) | Data::Codebook(_));
        let fits = numel_of(&shape)? == self.numel() && (!quantized || shape.first() == self.shape.first());
        fits.then(|| Param { shape, data: self.data.clone() })
    }

    /// The transposed matrix, still a view of where its values are stored; `None` when this is no matrix of floats.
    pub fn transposed(&self) -> Option<Param> {
        let &[rows, cols] = self.shape.as_slice() else { return None };
        let data = match &self.data {
            Data::Int8 { .. } | Data::Fp8 { .. } | Data::Int4(_) | Data::Codebook(_) => return None,
            Data::Turned(inner) if inner.shape == [cols, rows] => return Some(Param::clone(inner)),
            Data::Turned(_) | Data::Owned(_) | Data::View { .. } | Data::Blocks { .. } | Data::Coded { .. } => {
                Data::Turned(Arc::new(self.clone()))
            }
        };
        Some(Param { shape: vec![cols, rows], data })
    }

    /// Indices `at` of axis 0; floats and whole blocks of a file stay views of it. `None` when there are not so many, or where rows are
    /// quantized or do not begin with a block.
    pub fn rows(&self, at: std::ops::Range<usize>) -> Option<Param> {
        let (&all, rest) = self.shape.split_first()?;
        let row = numel_of(rest)?;
        if at.start > at.end || at.end > all {
            return None;
        }
        let (first, count) = (at.start.checked_mul(row)?, at.len().checked_mul(row)?);
        let shape: Vec<usize> = std::iter::once(at.len()).chain(rest.iter().copied()).collect();
        match &self.data {
            Data::View { blob, offset, dtype } => {
                Param::view(shape, blob.clone(), offset.checked_add(first.checked_mul(dtype.size())?)?, *dtype)
            }
            Data::Blocks { blob, offset, block } => {
                let whole = first.is_multiple_of(block.values());
                let before = whole.then(|| block_bytes(*block, first))?;
                Param::blocks(shape, blob.clone(), offset.checked_add(before)?, *block)
            }
            Data::Coded { blob, offset, code } => {
                let before = first.is_multiple_of(code.values()).then(|| coded_bytes(*code, first))?;
                Param::coded(shape, blob.clone(), offset.checked_add(before)?, *code)
            }
            Data::Owned(v) => Param::owned(shape, v.get(first..first + count)?.to_vec()),
            Data::Turned(_) => Param::owned(shape, self.values().get(first..first + count)?.to_vec()),
            Data::Int8 { .. } | Data::Fp8 { .. } | Data::Int4(_) | Data::Codebook(_) => None,
        }
    }

    /// The quantized values and per-row scales of an int8 tensor. Kernels must use these rather than re-quantize
    /// [`Param::values`], which would round the scales again.
    pub fn as_int8(&self) -> Option<(&[i8], &[f32])> {
        let Data::Int8 { q, scales } = &self.data else { return None };
        Some((q, scales))
    }

    /// Rows quantized as [`fp8::quantize_rows`] does, one scale per index of axis 0; `None` when counts disagree.
    pub fn fp8(shape: Vec<usize>, q: Vec<u8>, scales: Vec<f32>) -> Option<Param> {
        let fits = numel_of(&shape)? == q.len() && shape.first() == Some(&scales.len());
        fits.then(|| Param { shape, data: Data::Fp8 { q: q.into(), scales: scales.into() } })
    }

    /// The codes and per-row scales of a tensor of 8-bit floats.
    pub fn as_fp8(&self) -> Option<(&[u8], &[f32])> {
        let Data::Fp8 { q, scales } = &self.data else { return None };
        Some((q, scales))
    }

    /// 4-bit rows, one per index of axis 0; `None` when counts disagree.
    pub fn int4(shape: Vec<usize>, rows: Int4) -> Option<Param> {
        let fits = numel_of(&shape)? == rows.rows.checked_mul(rows.cols)? && shape.first() == Some(&rows.rows);
        fits.then(|| Param { shape, data: Data::Int4(Arc::new(rows)) })
    }

    /// The 4-bit rows of such a tensor.
    pub fn as_int4(&self) -> Option<&Int4> {
        let Data::Int4(rows) = &self.data else { return None };
        Some(rows)
    }

    /// Shared values, rows one per index of axis 0; `None` when counts disagree.
    pub fn codebook(shape: Vec<usize>, codebook: Codebook) -> Option<Param> {
        let fits = numel_of(&shape)? == codebook.rows.checked_mul(codebook.cols)?;
        (fits && shape.first() == Some(&codebook.rows))
            .then(|| Param { shape, data: Data::Codebook(Arc::new(codebook)) })
    }

    /// The shared values of such a tensor.
    pub fn as_codebook(&self) -> Option<&Codebook> {
        let Data::Codebook(codebook) = &self.data else { return None };
        Some(codebook)
    }

    /// Blocks in memory of their own; `None` where they are not as many as `shape` takes.
    pub fn of_blocks(shape: Vec<usize>, bytes: Vec<u8>, block: Block) -> Option<Param> {
        let fits = block_bytes(block, numel_of(&shape)?) == bytes.len();
        Param::blocks(shape, Blob::Owned(bytes.into()), 0, block).filter(|_| fits)
    }

    /// The blocks of a tensor in one of GGUF's formats, as they are stored.
    pub fn as_blocks(&self) -> Option<(Block, &[u8])> {
        let Data::Blocks { blob, offset, block } = &self.data else { return None };
        Some((*block, &blob[*offset..*offset + block_bytes(*block, self.numel())]))
    }

    /// The kept indices of one axis of a matrix in blocks, as the blocks that they are; `None` where it is no such matrix or a block
    /// would be torn.
    pub fn kept_blocks(&self, axis: usize, mask: &[bool]) -> Option<Param> {
        let (values, size, bytes) = match (self.as_blocks(), self.as_coded()) {
            (Some((block, bytes)), _) => (block.values(), block.size(), bytes),
            (None, Some((code, bytes))) => (code.values(), code.size(), bytes),
            (None, None) => return None,
        };
        let &[rows, cols] = self.shape.as_slice() else { return None };
        let row = cols / values * size;
        let n = mask.iter().filter(|k| **k).count();
        let kept: Vec<u8> = match axis {
            0 if mask.len() == rows => {
                bytes.chunks_exact(row.max(1)).zip(mask).filter(|(_, k)| **k).flat_map(|(b, _)| b).copied().collect()
            }
            1 if mask.len() == cols => {
                let whole = |part: &[bool]| part.iter().all(|k| *k == part[0]).then_some(part[0]);
                let parts: Vec<bool> = mask.chunks(values).map(whole).collect::<Option<_>>()?;
                let blocks = bytes.chunks_exact(row.max(1)).flat_map(|row| row.chunks_exact(size).zip(&parts));
                blocks.filter(|(_, k)| **k).flat_map(|(b, _)| b).copied().collect()
            }
            _ => return None,
        };
        let shape = if axis == 0 { vec![n, cols] } else { vec![rows, n] };
        match &self.data {
            Data::Blocks { block, .. } => Param::of_blocks(shape, kept, *block),
            Data::Coded { code, .. } => Param::coded(shape, Blob::Owned(kept.into()), 0, *code),
            _ => None,
        }
    }

    /// The type of floats that it is stored as; `None` where it is not stored as floats, or the other way round.
    pub(super) fn dtype(&self) -> Option<Dtype> {
        match &self.data {
            Data::Owned(_) => Some(Dtype::F32),
            Data::View { dtype, .. } => Some(*dtype),
            Data::Blocks { .. } | Data::Turned(_) | Data::Int8 { .. } | Data::Fp8 { .. } | Data::Int4(_) => None,
            Data::Codebook(_) | Data::Coded { .. } => None,
        }
    }

    /// The precision that a layer has whose weight this is, where its file stores fewer than 32 bits a value and nothing else says so.
    pub fn filed(&self) -> Option<Precision> {
        match &self.data {
            Data::View { dtype: Dtype::F16, .. } => Some(Precision::F16),
            Data::View { dtype: Dtype::Bf16, .. } => Some(Precision::Bf16),
            Data::Blocks { block, .. } => Some(Precision::Block(*block)),
            // Blocks lie along the rows that the file has, not along those of the layer.
            Data::Turned(inner) => inner.filed().filter(|p| !matches!(p, Precision::Block(_))),
            Data::Owned(_) | Data::View { .. } | Data::Int8 { .. } | Data::Fp8 { .. } | Data::Int4(_) => None,
            Data::Codebook(_) | Data::Coded { .. } => None,
        }
    }

    /// Are both stored in one format?
    pub(super) fn is_stored_like(&self, other: &Param) -> bool {
        std::mem::discriminant(&self.data) == std::mem::discriminant(&other.data)
            && self.stored_bytes() == other.stored_bytes()
    }

    /// Is it stored in `format` already?
    pub fn is_in(&self, format: WeightFormat) -> bool {
        match (&self.data, format) {
            (Data::Owned(_), WeightFormat::F32) | (Data::Int8 { .. }, WeightFormat::Int8) => true,
            (Data::Fp8 { .. }, WeightFormat::Fp8) => true,
            (Data::View { dtype, .. }, WeightFormat::F32) => *dtype == Dtype::F32,
            (Data::View { dtype, .. }, WeightFormat::F16) => *dtype == Dtype::F16,
            (Data::View { dtype, .. }, WeightFormat::Bf16) => *dtype == Dtype::Bf16,
            (Data::Int4(q), WeightFormat::Int4 { group }) => q.group == group.unwrap_or(q.cols).clamp(1, q.cols.max(1)),
            (Data::Codebook(c), WeightFormat::Codebook { bits }) => c.bits == bits,
            (Data::Turned(inner), WeightFormat::F32) => inner.is_in(format),
            (Data::Blocks { block, .. }, WeightFormat::Block(wanted)) => *block == wanted,
            (Data::Owned(_) | Data::View { .. } | Data::Blocks { .. } | Data::Turned(_), _) => false,
            (Data::Int8 { .. } | Data::Fp8 { .. } | Data::Int4(_) | Data::Codebook(_) | Data::Coded { .. }, _) => false,
        }
    }

    /// The tensor rounded to `format`, rows along axis 0; itself when it is stored so already, since rounding what was
    /// rounded would round the scales again. Values beyond the range of f16 become infinite, which compiling refuses. Rows that are
    /// no whole blocks stay f32, which [`Precision::unfit`](crate::graph::Precision::unfit) tells before.
    pub fn stored_in(&self, format: WeightFormat) -> Param {
        if self.is_in(format) {
            return self.clone();
        }
        let (values, rows) = (self.values(), self.shape.first().copied().unwrap_or(0));
        let narrow = |dtype, bits: fn(f32) -> [u8; 2]| {
            let bytes: Vec<u8> = values.iter().flat_map(|v| bits(*v)).collect();
            Data::View { blob: Blob::Owned(bytes.into()), offset: 0, dtype }
        };
        let data = match format {
            WeightFormat::F32 => Data::Owned(values.into()),
            WeightFormat::F16 => narrow(Dtype::F16, |v| half::f16::from_f32(v).to_le_bytes()),
            WeightFormat::Bf16 => narrow(Dtype::Bf16, |v| half::bf16::from_f32(v).to_le_bytes()),
            WeightFormat::Int8 => {
                let (q, scales) = int8::quantize_rows(&values, rows);
                Data::Int8 { q: q.into(), scales: scales.into() }
            }
            WeightFormat::Fp8 => {
                let (q, scales) = fp8::quantize_rows(&values, rows);
                Data::Fp8 { q: q.into(), scales: scales.into() }
            }
            WeightFormat::Int4 { group } => Data::Int4(Arc::new(Int4::quantize(&values, rows, group))),
            WeightFormat::Codebook { bits } => Data::Codebook(Arc::new(Codebook::quantize(&values, rows, bits))),
            WeightFormat::Block(block) => match values.len().checked_div(rows) {
                Some(row) if row.is_multiple_of(block.values()) => {
                    Data::Blocks { blob: Blob::Owned(block.encode(&values).into()), offset: 0, block }
                }
                _ => Data::Owned(values.into()),
            },
        };
        Param { shape: self.shape.clone(), data }
    }

    /// The same values in the floats that `other` is stored in; itself where those are no floats.
    pub(crate) fn in_floats_of(&self, other: &Param) -> Param {
        match other.dtype() {
            Some(Dtype::F16) => self.stored_in(WeightFormat::F16),
            Some(Dtype::Bf16) => self.stored_in(WeightFormat::Bf16),
            _ => self.clone(),
        }
    }

    /// The bytes of a float tensor as stored, little-endian, with their type; of a quantized one those of its values.
    pub(super) fn float_bytes(&self) -> (Dtype, Cow<'_, [u8]>) {
        match &self.data {
            Data::View { blob, offset, dtype } => {
                (*dtype, Cow::Borrowed(&blob[*offset..*offset + self.numel() * dtype.size()]))
            }
            _ => (Dtype::F32, f32_bytes(&self.values()).into()),
        }
    }

    /// Lets go of the pages that a memory-mapped tensor occupies, until it is read again.
    pub fn release(&self) {
        match &self.data {
            Data::View { blob, offset, dtype } => blob.release(*offset, self.numel() * dtype.size()),
            Data::Blocks { blob, offset, block } => blob.release(*offset, block_bytes(*block, self.numel())),
            Data::Coded { blob, offset, code } => blob.release(*offset, coded_bytes(*code, self.numel())),
            Data::Turned(inner) => inner.release(),
            Data::Owned(_) | Data::Int8 { .. } | Data::Fp8 { .. } | Data::Int4(_) | Data::Codebook(_) => {}
        }
    }

    /// The bytes that it views, if it does.
    fn blob(&self) -> Option<&Blob> {
        match &self.data {
            Data::View { blob, .. } | Data::Blocks { blob, .. } | Data::Coded { blob, .. } => Some(blob),
            Data::Turned(inner) => inner.blob(),
            Data::Owned(_) | Data::Int8 { .. } | Data::Fp8 { .. } | Data::Int4(_) | Data::Codebook(_) => None,
        }
    }

    /// Bytes that the values take as stored here (scales included).
    pub fn stored_bytes(&self) -> u64 {
        let bytes = match &self.data {
            Data::Owned(v) => v.len() * 4,
            Data::View { dtype, .. } => self.numel() * dtype.size(),
            Data::Blocks { block, .. } => block_bytes(*block, self.numel()),
            Data::Coded { code, .. } => coded_bytes(*code, self.numel()),
            Data::Turned(inner) => return inner.stored_bytes(),
            Data::Int8 { q, scales } => q.len() + scales.len() * 4,
            Data::Fp8 { q, scales } => q.len() + scales.len() * 4,
            Data::Int4(rows) => rows.bytes(),
            Data::Codebook(c) => c.bytes(),
        };
        bytes as u64
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Is its shape the one that `name` must have?
    ///
    /// # Errors
    /// [`ParamError::Shape`] otherwise.
    pub fn check(&self, name: &str, shape: &[usize]) -> Result<(), ParamError> {
        if self.shape == shape {
            return Ok(());
        }
        Err(ParamError::Shape { name: name.to_owned(), found: self.shape.clone(), expected: shape.to_vec() })
    }

    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// The values as `f32` (quantized ones dequantized); borrowed when stored as aligned little-endian `f32`.
    pub fn values(&self) -> Cow<'_, [f32]> {
        match &self.data {
            Data::Owned(v) => Cow::Borrowed(v),
            Data::View { blob, offset, dtype } => {
                let bytes = &blob[*offset..*offset + self.numel() * dtype.size()];
                decode(bytes, *dtype)
            }
            Data::Blocks { blob, offset, block } => {
                Cow::Owned(block.decode(&blob[*offset..*offset + block_bytes(*block, self.numel())]))
            }
            Data::Coded { .. } => Cow::Owned(self.as_coded().map_or(Vec::new(), |(code, bytes)| code.decode(bytes))),
            Data::Turned(inner) => Cow::Owned(turned(&inner.values(), inner.shape[0], inner.shape[1])),
            Data::Int8 { q, scales } => Cow::Owned(int8::dequantize_rows(q, scales)),
            Data::Fp8 { q, scales } => Cow::Owned(fp8::dequantize_rows(q, scales)),
            Data::Int4(rows) => Cow::Owned(rows.dequantize()),
            Data::Codebook(c) => Cow::Owned(c.dequantize()),
        }
    }
}

/// Bytes of `numel` values in whole blocks.
fn block_bytes(block: Block, numel: usize) -> usize {
    numel / block.values() * block.size()
}

fn coded_bytes(code: Coded, numel: usize) -> usize {
    numel / code.values() * code.size()
}

/// A row-major `[rows, cols]` matrix transposed, in square pieces that stay in the cache.
fn turned(v: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    const SIDE: usize = 32;
    let mut out = vec![0.0; v.len()];
    for r0 in (0..rows).step_by(SIDE) {
        for c0 in (0..cols).step_by(SIDE) {
            for r in r0..(r0 + SIDE).min(rows) {
                for c in c0..(c0 + SIDE).min(cols) {
                    out[c * rows + r] = v[r * cols + c];
                }
            }
        }
    }
    out
}

pub(super) fn decode(bytes: &[u8], dtype: Dtype) -> Cow<'_, [f32]> {
    let widen = |f: &dyn Fn(&[u8]) -> f32, n: usize| Cow::Owned(bytes.chunks_exact(n).map(f).collect());
    match dtype {
        Dtype::F32 if cfg!(target_endian = "little") && bytes.as_ptr().align_offset(4) == 0 => {
            // SAFETY: aligned, whole number of elements, every bit pattern is a valid f32.
            Cow::Borrowed(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / 4) })
        }
        Dtype::F32 => widen(&|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]), 4),
        Dtype::F16 => widen(&|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32(), 2),
        Dtype::Bf16 => widen(&|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32(), 2),
        Dtype::F64 => widen(&|b| f64::from_le_bytes(b.try_into().unwrap_or_default()) as f32, 8),
    }
}

/// How a file differs whose tensors do.
const OTHER: &str = "it holds other weights";

fn changed(blob: &Blob, how: String) -> ParamError {
    ParamError::Changed { path: blob.path().unwrap_or(Path::new("")).to_owned(), how }
}

/// All parameters of a model, in the checkpoint's order.
#[derive(Debug, Clone, Default)]
pub struct ParamStore {
    map: IndexMap<String, Arc<Param>>,
}

impl ParamStore {
    pub fn get(&self, name: &str) -> Result<&Param, ParamError> {
        self.map.get(name).map(Arc::as_ref).ok_or_else(|| ParamError::Missing { name: name.to_owned() })
    }

    pub fn contains(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// Adds or replaces a tensor; other stores that share the old one keep it.
    pub fn insert(&mut self, name: impl Into<String>, param: Param) {
        self.map.insert(name.into(), Arc::new(param));
    }

    /// Gives the tensor `name` other values, as many as it has; it stays as it is where there are more or fewer.
    pub fn set(&mut self, name: &str, values: Vec<f32>) -> Result<(), ParamError> {
        if let Some(param) = Param::owned(self.get(name)?.shape().to_vec(), values) {
            self.insert(name, param);
        }
        Ok(())
    }

    pub fn remove(&mut self, name: &str) {
        self.map.shift_remove(name);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Param)> {
        self.map.iter().map(|(k, v)| (k.as_str(), v.as_ref()))
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Values of `name`, checked against `shape`.
    pub fn expect(&self, name: &str, shape: &[usize]) -> Result<Cow<'_, [f32]>, ParamError> {
        let p = self.get(name)?;
        p.check(name, shape)?;
        Ok(p.values())
    }

    /// What the tensors view, each once.
    fn blobs(&self) -> impl Iterator<Item = &Blob> {
        let mut seen = HashSet::new();
        self.map.values().filter_map(|p| p.blob()).filter(move |b| seen.insert(b.as_ptr()))
    }

    /// Is every file that tensors view what it was? Asked after a use, so that nothing comes of other weights than those
    /// that were meant; whether bytes were changed and put back meanwhile nobody could tell.
    ///
    /// # Errors
    /// [`ParamError::Changed`], naming the first that is not.
    pub fn unchanged(&self) -> Result<(), ParamError> {
        self.blobs().try_for_each(|b| match b.state() {
            FileState::Same => Ok(()),
            FileState::Touched => Err(changed(b, "it was written to".to_owned())),
            FileState::Other(how) => Err(changed(b, how)),
        })
    }

    /// Are the tensors those of `hash`? Asked before a use: files that were touched are read again, and are as good as
    /// before when their tensors are the same.
    ///
    /// # Errors
    /// As [`ParamStore::unchanged`].
    pub fn confirm(&self, hash: &str) -> Result<(), ParamError> {
        let mut touched = Vec::new();
        for b in self.blobs() {
            match b.state() {
                FileState::Same => {}
                FileState::Touched => touched.push((b, b.stamp())),
                FileState::Other(how) => return Err(changed(b, how)),
            }
        }
        let Some((first, _)) = touched.first() else { return Ok(()) };
        if self.hash() != hash {
            return Err(changed(first, OTHER.to_owned()));
        }
        // As they were before they were read: what came later is the next check's.
        touched.iter().for_each(|(b, stamp)| b.renew(*stamp));
        self.unchanged()
    }

    /// Are the tensors those of `hash`, by their bytes? What is in memory of our own is not asked.
    ///
    /// # Errors
    /// As [`ParamStore::unchanged`].
    pub fn still(&self, hash: &str) -> Result<(), ParamError> {
        match self.blobs().find(|b| b.is_mapped()) {
            Some(b) if self.hash() != hash => Err(changed(b, OTHER.to_owned())),
            _ => self.unchanged(),
        }
    }

    /// A file whose copy in memory is used, and that is no longer what was copied.
    pub fn outdated(&self) -> Option<&Path> {
        self.blobs().find(|b| b.is_outdated()).and_then(Blob::path)
    }

    /// BLAKE3 (hex) over names, shapes and `f32` little-endian values, independent of order and source format.
    pub fn hash(&self) -> String {
        let mut names: Vec<&String> = self.map.keys().collect();
        names.sort();
        let mut h = blake3::Hasher::new();
        for name in names {
            let p = &self.map[name];
            h.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
            h.update(&(p.shape.len() as u64).to_le_bytes());
            for &d in &p.shape {
                h.update(&(d as u64).to_le_bytes());
            }
            p.float_parts(|bytes| _ = h.update_rayon(bytes));
            p.release();
        }
        h.finalize().to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_the_values_however_they_are_stored() {
        let values: Vec<f32> = (0..12).map(|v| v as f32).collect();
        let owned = Param::owned(vec![4, 3], values.clone()).unwrap();
        let viewed = Param::view(vec![4, 3], Blob::Owned(f32_bytes(&values).into()), 0, Dtype::F32).unwrap();
        let turned = Param::owned(vec![3, 4], turned(&values, 4, 3)).unwrap().transposed().unwrap();
        for p in [&owned, &viewed, &turned, &owned.stored_in(WeightFormat::Bf16)] {
            let rows = p.rows(1..3).unwrap();
            assert_eq!((rows.shape(), &*rows.values()), (&[2, 3][..], &values[3..9]));
            assert_eq!(p.rows(0..4).unwrap().values(), p.values());
            assert!(p.rows(2..5).is_none() && p.rows(5..5).is_none() && p.rows(4..4).is_some());
        }
        assert!(viewed.rows(1..3).unwrap().blob().is_some());
        assert!(owned.stored_in(WeightFormat::Int8).rows(0..1).is_none());
    }
}
