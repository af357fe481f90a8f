//! Convolutions and linears in 8-bit floats (E4M3), weights and activations: what the CPU's plans round their numbers to.
//!
//! Activations become `code(x / s)`, with one `s = max|x| / 448` a row of a linear or an image of a convolution; weights have
//! one scale an output channel. Codes are multiplied as they are and summed in f32, and the sum is scaled by both. A row's
//! own scale keeps the small numbers of one row from vanishing beside another row's large ones, as int8's does; that cublasLt
//! has a scale for the whole matrix only (`cuda/lt`) costs the same pass over the sums that the bias and activation need.
//! Invariant: K and the output channels of products are padded with zeros to a multiple that cublasLt wants
//! ([`ProductLayout::aligned`]).

use super::geometry::Geometry;
use super::int8::{ProductLayout, padded};
use super::kernels::convolved;
use super::own::{Own, host};
use crate::exec::kernel::rows;
use crate::graph::Activation;
use crate::model::fp8;
use candle_core::{DType, Device, Result, Tensor};

#[cfg(feature = "cuda")]
use super::int8::{ALIGN, product, ranges};
#[cfg(feature = "cuda")]
use crate::exec::cuda::{Arg, Arg::I32, Arg::I64, Arg::Ptr, Gpu, Input, fp8_product};

/// A layer in 8-bit floats.
pub(super) struct Fp8 {
    layout: ProductLayout,
    /// Codes: `[oc, k]`, on a GPU padded where a product reads them.
    w: Tensor,
    /// Weight scale times folded batch norm, `[oc]`.
    factors: Tensor,
    bias: Tensor,
    oc: usize,
    /// Weights an output channel has.
    k: usize,
    act: Option<Activation>,
}

/// A layer with what its step adds.
pub(super) struct Run<'a> {
    pub layer: &'a Fp8,
    /// Of the output's shape, f32.
    pub residual: Option<&'a Tensor>,
}

impl Fp8 {
    /// `codes` is `[oc, k]` in PyTorch's order; `factors` and `bias` have `oc` values.
    pub fn new(
        layout: ProductLayout,
        codes: &[u8],
        factors: Vec<f32>,
        bias: Vec<f32>,
        act: Option<Activation>,
        device: &Device,
    ) -> Result<Fp8> {
        let oc = factors.len();
        let k = codes.len() / oc.max(1);
        let (rows, cols) = (layout.aligned(oc, device), layout.aligned(k, device));
        let held = padded(codes.iter().copied(), k, [rows, cols], 0);
        Ok(Fp8 {
            layout,
            w: Tensor::from_vec(held, (rows, cols), device)?,
            factors: Tensor::from_vec(factors, oc, device)?,
            bias: Tensor::from_vec(bias, oc, device)?,
            oc,
            k,
            act,
        })
    }

    /// Bytes of the weights on the device, padding included.
    pub fn weight_bytes(&self) -> u64 {
        (self.w.elem_count() + 4 * self.oc) as u64
    }
}

impl Own for Run<'_> {
    const NAME: &'static str = "fp8 layer";

    fn out(&self, dims: &[usize]) -> Result<(Vec<usize>, DType)> {
        self.layer.layout.out(dims, self.layer.k, self.layer.oc, self.residual)
    }

    fn plain(&self, x: &[f32], dims: &[usize]) -> Result<Vec<f32>> {
        let l = self.layer;
        let w: Vec<f32> = l.w.flatten_all()?.to_vec1::<u8>()?.into_iter().map(fp8::value).collect();
        let (factors, bias) = (host(&l.factors)?, host(&l.bias)?);
        let coded = |x: &[f32]| -> (f32, Vec<f32>) {
            let [scale, inverse] = fp8::scale(fp8::most(x));
            (scale, x.iter().map(|v| fp8::rounded(v * inverse)).collect())
        };
        let (each, inner, groups) = match l.layout {
            ProductLayout::Rows => (l.k, 1, 1),
            ProductLayout::Windows(w) => (dims.iter().skip(1).product(), Geometry::of(w, dims)?.positions(), 1),
            ProductLayout::Groups(w, n) => (dims.iter().skip(1).product(), Geometry::of(w, dims)?.positions(), n),
        };
        let mut y = Vec::new();
        for x in x.chunks_exact(each.max(1)) {
            let (scale, x) = coded(x);
            let sums = match l.layout {
                ProductLayout::Rows => {
                    w.chunks_exact(l.k.max(1)).map(|w| w.iter().zip(&x).map(|(w, x)| w * x).sum()).collect()
                }
                ProductLayout::Windows(window) | ProductLayout::Groups(window, _) => {
                    let one = [&[1], &dims[1..]].concat();
                    convolved(&x, &one, &w, l.oc, groups, window)?
                }
            };
            y.extend(sums.iter().enumerate().map(|(i, sum)| {
                let o = i / inner.max(1);
                sum * (scale * factors[o]) + bias[o]
            }));
        }
        let residual = self.residual.map(host).transpose()?;
        rows::finish(&mut y, residual.as_deref(), l.act);
        Ok(y)
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, gpu: &Gpu<'_>, x: &Input<'_>, out: u64) -> Result<()> {
        let l = self.layer;
        let (rows, shared) = l.layout.rows(x.dims, l.k)?;
        let n = rows * l.oc;
        let scales = scales(gpu, x, rows / shared)?;
        let held = [Some(&scales), Some(&l.w), Some(&l.factors), Some(&l.bias), self.residual];
        gpu.with_some(held, |[scales, w, factors, bias, residual]| {
            let act = I32(super::kernels::number(l.act));
            let (oc, shared) = (I32(l.oc as i32), I64(shared as i64));
            if let ProductLayout::Groups(window, groups) = l.layout {
                let shape = [Arg::Geometry(Geometry::of(window, x.dims)?), oc, I32(groups as i32), shared, act];
                let args = [&[Ptr(x.at), w, scales, factors, bias, residual], &shape[..]].concat();
                return gpu.each("fp8_grouped", n, &args, out);
            }
            let (m, k) = l.w.dims2()?;
            let all = rows.next_multiple_of(ALIGN);
            let (_rows, q) = gpu.scratch(all * k)?;
            let inner = match l.layout {
                ProductLayout::Windows(window) => {
                    let g = Geometry::of(window, x.dims)?;
                    let args =
                        [Ptr(x.at), scales, Arg::Geometry(g), I32(k as i32), I64(rows as i64), I64(all as i64), shared];
                    gpu.each("fp8_windows", all * k / ALIGN, &args, q)?;
                    g.positions()
                }
                ProductLayout::Rows | ProductLayout::Groups(..) => {
                    let args = [Ptr(x.at), scales, I32(l.k as i32), I32(k as i32), shared];
                    gpu.each("fp8_rows", rows * k, &args, q)?;
                    1
                }
            };
            let (_sums, sums) = gpu.scratch(4 * all * m)?;
            let [o_step, r_step] = gpu.with(&l.w, |w| {
                product(l.layout, [m, rows, all], [w.at, q], |[m, n], [a, b]| fp8_product(gpu, [m, n, k], a, b, sums))
            })?;
            let places = [Ptr(sums), o_step, r_step, scales, factors, bias, residual];
            let args = [&places[..], &[oc, I64(inner as i64), shared, act]].concat();
            gpu.each("fp8_layer", n, &args, out)
        })
    }
}

/// The scales of `count` equal parts of `x` with their inverses, 8 bytes each.
#[cfg(feature = "cuda")]
fn scales(gpu: &Gpu<'_>, x: &Input<'_>, count: usize) -> Result<Tensor> {
    let (_ranges, at, parts) = ranges(gpu, x, count)?;
    let scales = Tensor::zeros(8 * count, DType::U8, &gpu.device())?;
    gpu.with(&scales, |scales| gpu.each("fp8_scales", count, &[Ptr(at), I32(parts as i32)], scales.at))?;
    Ok(scales)
}
