//! Convolutions and linears whose weights are held in 8 or 4 bits, as they are stored, and multiplied in f32.
//!
//! A weight is its code times the scale of its group, rounded to f32: bit for bit what the CPU's kernels unpack once and hold.
//! Here it is unpacked wherever it is multiplied: in registers for few rows, which the memory bounds; for more once before a library's
//! product, which arithmetic bounds. A folded batch norm scales the sum, not the weight.
//! Invariant: what is held on the device are the codes, rows padded to whole words of four bytes where a product reads them,
//! and the scales.

use super::dense::{linear, pointwise, unfolded};
use super::geometry::Geometry;
use super::int8::{ProductLayout, padded};
use super::kernels::{Epilogue, Unfold, convolved};
use super::own::{Own, apply, host};
use crate::exec::kernel::rows;
use crate::exec::unfold::Window;
use crate::graph::Activation;
use crate::model::Param;
use candle_core::{DType, Device, Result, Tensor};

#[cfg(feature = "cuda")]
use super::kernels::number;
#[cfg(feature = "cuda")]
use crate::exec::cuda::{Arg, Arg::I32, Arg::I64, Arg::Ptr, Gpu, Input};

/// Rows of a product that are few enough for the kernel that reads every weight once: the kernels' `FEW`.
const FEW: usize = 8;
/// Output channels of one of its blocks, and its threads.
#[cfg(feature = "cuda")]
const FEW_BLOCK: (usize, u32) = (16, 256);
/// A word of codes: what a product reads at once.
const WORD: usize = 4;

/// How many bits a code takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bits {
    Four,
    Eight,
}

impl Bits {
    /// In the kernels' names.
    #[cfg(feature = "cuda")]
    fn number(self) -> usize {
        match self {
            Bits::Four => 4,
            Bits::Eight => 8,
        }
    }

    /// The code of weight `at` of a row.
    fn code(self, row: &[u8], at: usize) -> i8 {
        match self {
            Bits::Four => (row[at / 2] >> (4 * (at % 2)) & 15) as i8 - 8,
            Bits::Eight => row[at].cast_signed(),
        }
    }

    /// A byte of zeros.
    fn padding(self) -> u8 {
        match self {
            Bits::Four => 0x88,
            Bits::Eight => 0,
        }
    }
}

/// A layer with packed weights.
pub(super) struct Packed {
    layout: ProductLayout,
    bits: Bits,
    /// Codes held as u8: `[oc, bytes]`, as [`crate::model::int8`] and [`crate::model::int4`] lay them.
    w: Tensor,
    /// `[oc, groups]`.
    scales: Tensor,
    /// Weights that share a scale.
    group: usize,
    /// Folded batch norm, `[oc]`.
    factors: Option<Tensor>,
    /// `[oc]`.
    bias: Option<Tensor>,
    oc: usize,
    /// Weights an output channel has.
    k: usize,
    act: Option<Activation>,
}

/// A layer of few rows, or of groups, with what its step adds.
struct Run<'a> {
    layer: &'a Packed,
    /// Of the output's shape, f32.
    residual: Option<&'a Tensor>,
}

impl Packed {
    /// `weight` is in 8 or 4 bits, `[oc, ..]` in PyTorch's order; `factors` and `bias` have `oc` values.
    ///
    /// # Errors
    /// A weight that is not, groups that end within a word, and what the device reports.
    pub fn new(
        layout: ProductLayout,
        weight: &Param,
        factors: Option<Vec<f32>>,
        bias: Option<Vec<f32>>,
        act: Option<Activation>,
        device: &Device,
    ) -> Result<Packed> {
        let oc = weight.shape().first().copied().unwrap_or(0);
        let k = weight.numel() / oc.max(1);
        let (bits, codes, scales, group): (_, Vec<u8>, &[f32], usize) = match (weight.as_int8(), weight.as_int4()) {
            (Some((q, scales)), _) => (Bits::Eight, q.iter().map(|q| q.cast_unsigned()).collect(), scales, k),
            (None, Some(q)) => (Bits::Four, q.packed.clone(), &q.scales, q.group),
            (None, None) => candle_core::bail!("a weight of neither 8 nor 4 bits"),
        };
        if group < k && !group.is_multiple_of(2 * WORD) {
            candle_core::bail!("groups of {group} weights are not whole words of packed weights")
        }
        let row = codes.len() / oc.max(1);
        let bytes = if layout.multiplies(device) { row.next_multiple_of(WORD) } else { row };
        let held = padded(codes.into_iter(), row, [oc, bytes], bits.padding());
        let vector = |v: Vec<f32>| Tensor::from_vec(v, oc, device);
        Ok(Packed {
            layout,
            bits,
            w: Tensor::from_vec(held, (oc, bytes), device)?,
            scales: Tensor::from_slice(scales, (oc, scales.len() / oc.max(1)), device)?,
            group: group.max(1),
            factors: factors.map(vector).transpose()?,
            bias: bias.map(vector).transpose()?,
            oc,
            k,
            act,
        })
    }

    /// The layer's value for `x`, with what its step adds: f32 of the output's shape.
    pub fn run(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let rows = self.layout.product_rows(x.dims(), self.k)?;
        if rows.is_none_or(|rows| rows <= FEW) {
            return apply(x, &Run { layer: self, residual });
        }
        let w = apply(&self.scales, &Unpacked(self))?;
        let y = match self.layout {
            ProductLayout::Windows(Window::ONE) => pointwise(x, &w.unsqueeze(0)?)?,
            ProductLayout::Windows(window) => unfolded(x, &w.unsqueeze(0)?, &Unfold { window, dtype: DType::F32 })?,
            ProductLayout::Rows | ProductLayout::Groups(..) => linear(x, &w)?,
        };
        let (scale, bias, act) = (self.factors.as_ref(), self.bias.as_ref(), self.act);
        Epilogue { scale, bias, residual, act, dtype: DType::F32 }.on(&y)
    }

    /// Bytes of the weights on the device, padding included.
    pub fn weight_bytes(&self) -> u64 {
        (self.w.elem_count() + 4 * self.scales.elem_count()) as u64
    }

    /// The weights as what is held says.
    fn weights(&self) -> Result<Vec<f32>> {
        let (w, scales) = (self.w.flatten_all()?.to_vec1::<u8>()?, host(&self.scales)?);
        let (bytes, groups) = (w.len() / self.oc.max(1), scales.len() / self.oc.max(1));
        let rows = w.chunks_exact(bytes.max(1)).zip(scales.chunks_exact(groups.max(1)));
        let unpacked = rows.flat_map(|(row, scales)| {
            (0..self.k).map(move |i| f32::from(self.bits.code(row, i)) * scales[i / self.group])
        });
        Ok(unpacked.collect())
    }
}

impl Own for Run<'_> {
    const NAME: &'static str = "packed layer";

    fn out(&self, dims: &[usize]) -> Result<(Vec<usize>, DType)> {
        self.layer.layout.out(dims, self.layer.k, self.layer.oc, self.residual)
    }

    fn plain(&self, x: &[f32], dims: &[usize]) -> Result<Vec<f32>> {
        let l = self.layer;
        let (w, k) = (l.weights()?, l.k.max(1));
        let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>();
        let (mut y, inner) = match l.layout {
            ProductLayout::Rows => {
                (x.chunks_exact(k).flat_map(|x| w.chunks_exact(k).map(|w| dot(x, w)).collect::<Vec<_>>()).collect(), 1)
            }
            ProductLayout::Windows(window) => {
                (convolved(x, dims, &w, l.oc, 1, window)?, Geometry::of(window, dims)?.positions())
            }
            ProductLayout::Groups(window, groups) => {
                (convolved(x, dims, &w, l.oc, groups, window)?, Geometry::of(window, dims)?.positions())
            }
        };
        let factors = l.factors.as_ref().map(host).transpose()?;
        let bias = l.bias.as_ref().map(host).transpose()?;
        for (i, y) in y.chunks_exact_mut(inner.max(1)).enumerate() {
            let o = i % l.oc.max(1);
            let (factor, bias) = (factors.as_ref().map_or(1.0, |f| f[o]), bias.as_ref().map_or(0.0, |b| b[o]));
            y.iter_mut().for_each(|y| *y = *y * factor + bias);
        }
        let residual = self.residual.map(host).transpose()?;
        rows::finish(&mut y, residual.as_deref(), l.act);
        Ok(y)
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, gpu: &Gpu<'_>, x: &Input<'_>, out: u64) -> Result<()> {
        let l = self.layer;
        let (bits, bytes) = (l.bits.number(), l.w.dim(1)?);
        let (act, oc, group) = (I32(number(l.act)), I32(l.oc as i32), I32(l.group as i32));
        let held = [Some(&l.w), Some(&l.scales), l.factors.as_ref(), l.bias.as_ref(), self.residual];
        gpu.with_some(held, |[w, scales, factors, bias, residual]| {
            if let ProductLayout::Groups(window, groups) = l.layout {
                let g = Geometry::of(window, x.dims)?;
                let n = x.dims[0] * l.oc * g.positions();
                let (groups, bytes) = (I32(groups as i32), I32(bytes as i32));
                let shape = [Arg::Geometry(g), oc, groups, bytes, group, act];
                let args = [&[Ptr(x.at), w, scales, factors, bias, residual], &shape[..]].concat();
                return gpu.each(&format!("packed{bits}_grouped"), n, &args, out);
            }
            // Unfolded windows live until the kernel that reads them is queued; memory is freed in the stream's order.
            let _columns;
            let (at, rows, inner) = match l.layout {
                ProductLayout::Windows(window) => {
                    let g = Geometry::of(window, x.dims)?;
                    let (images, inner) = (x.dims[0], g.positions());
                    let mut at = x.at;
                    if window != Window::ONE {
                        let n = images * l.k * inner;
                        (_columns, at) = gpu.scratch(4 * n)?;
                        gpu.each("unfold_f32", n, &[Ptr(x.at), Arg::Geometry(g)], at)?;
                    }
                    (at, images * inner, inner)
                }
                ProductLayout::Rows | ProductLayout::Groups(..) => {
                    (x.at, x.dims.iter().product::<usize>() / l.k.max(1), 1)
                }
            };
            let shape =
                [I32(l.k as i32), I32((bytes / WORD) as i32), group, oc, I64(inner as i64), act, I64(rows as i64)];
            let args = [&[Ptr(at), w, scales, factors, bias, residual], &shape[..]].concat();
            if rows > FEW {
                candle_core::bail!("{rows} rows are too many for the product of few");
            }
            let (channels, threads) = FEW_BLOCK;
            gpu.blocks(&format!("packed{bits}_few"), l.oc.div_ceil(channels), threads, &args, out)
        })
    }
}

/// The weights of a layer in f32, `[oc, k]`, of its scales.
struct Unpacked<'a>(&'a Packed);

impl Own for Unpacked<'_> {
    const NAME: &'static str = "unpacked weights";

    fn out(&self, _: &[usize]) -> Result<(Vec<usize>, DType)> {
        Ok((vec![self.0.oc, self.0.k], DType::F32))
    }

    fn plain(&self, _: &[f32], _: &[usize]) -> Result<Vec<f32>> {
        self.0.weights()
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, gpu: &Gpu<'_>, scales: &Input<'_>, out: u64) -> Result<()> {
        let l = self.0;
        let shape = [l.k, l.w.dim(1)? / WORD, l.group].map(|v| I32(v as i32));
        gpu.with(&l.w, |w| {
            let args = [&[Ptr(scales.at), Ptr(w.at)], &shape[..]].concat();
            gpu.each(&format!("packed{}_unpacked", l.bits.number()), l.oc * l.k, &args, out)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::kernel::noise;
    use crate::graph::WeightFormat;

    /// What is held is what the format's own unpacking gives, bit for bit, padded rows and all.
    #[test]
    fn held_weights_are_the_stored_ones() {
        for (oc, k) in [(3, 5), (4, 64), (7, 130), (1, 1)] {
            let weight = Param::owned(vec![oc, k], noise(oc * k, 3)).unwrap();
            let grouped = |g| WeightFormat::Int4 { group: Some(g) };
            for format in [WeightFormat::Int8, WeightFormat::Int4 { group: None }, grouped(32), grouped(128)] {
                let stored = weight.stored_in(format);
                let layer = Packed::new(ProductLayout::Rows, &stored, None, None, None, &Device::Cpu).unwrap();
                assert_eq!(layer.weights().unwrap(), *stored.values(), "{oc}x{k} {format:?}");
                assert_eq!(layer.weight_bytes(), stored.stored_bytes(), "{oc}x{k} {format:?}");
            }
        }
        let weight = Param::owned(vec![2, 20], noise(40, 3)).unwrap();
        let refused =
            |format| Packed::new(ProductLayout::Rows, &weight.stored_in(format), None, None, None, &Device::Cpu);
        assert!(refused(WeightFormat::F16).is_err() && refused(WeightFormat::Int4 { group: Some(7) }).is_err());
    }
}
