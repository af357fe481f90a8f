//! Dynamic and static int8 of convolutions and linears: the CPU's arithmetic (`kernel::dense`), code for code.
//!
//! Activations become `q = round(x / s) + z` in 0..=255, with one `(s, z)` a row of a linear, an image of a convolution, or
//! the whole layer (static). Tensor cores multiply signed bytes, so a GPU holds `q - 128`, and
//! `y = (Σ (q - 128)·w - (z - 128)·Σ w) · s · factor + bias` is the same integer and the same float.
//! Invariant: K and the output channels of products are padded with zeros to [`ALIGN`], as cublasLt wants them.

use super::geometry::Geometry;
use super::own::{Own, host};
use crate::exec::kernel::geometry::Code;
use crate::exec::kernel::{rows, vector};
use crate::exec::unfold::Window;
use crate::graph::Activation;
use candle_core::{DType, Device, Result, Tensor};

#[cfg(feature = "cuda")]
use crate::exec::cuda::{Arg, Arg::I32, Arg::I64, Arg::Ptr, Gpu, Input, int8_product};
#[cfg(feature = "cuda")]
use cudarc::driver::CudaSlice;

/// Rows and columns of int8 operands are multiples of this: cublasLt asks for 4, its fast kernels for 16.
pub(super) const ALIGN: usize = 16;

/// The largest code.
const TOP: u8 = 255;

/// What shares one activation code.
pub(super) enum Codes {
    /// A row of a linear, or an image of a convolution.
    Dynamic,
    /// Everything.
    Fixed(Code),
}

/// What a layer multiplies its weights with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ProductLayout {
    /// A linear over the last axis.
    Rows,
    Windows(Window),
    /// A convolution with this many groups.
    Groups(Window, usize),
}

impl ProductLayout {
    /// What a layer of `k` weights a channel and `oc` channels computes from an input of shape `dims`, to which `residual` is
    /// added: f32 of this shape.
    ///
    /// # Errors
    /// An input or a residual that does not fit.
    pub fn out(&self, dims: &[usize], k: usize, oc: usize, residual: Option<&Tensor>) -> Result<(Vec<usize>, DType)> {
        let out = match self {
            ProductLayout::Rows => {
                let mut out = dims.to_vec();
                match out.last_mut() {
                    Some(last) if *last == k => *last = oc,
                    _ => candle_core::bail!("a layer of {k} inputs got {dims:?}"),
                }
                out
            }
            ProductLayout::Windows(w) | ProductLayout::Groups(w, _) => {
                let g = Geometry::of(*w, dims)?;
                vec![dims[0], oc, g.oh as usize, g.ow as usize]
            }
        };
        match residual {
            Some(r) if r.dims() != out => candle_core::bail!("a residual {:?} for {out:?}", r.dims()),
            _ => Ok((out, DType::F32)),
        }
    }

    /// Whether weights on `device` are an operand of a product, which wants them padded; a CPU and grouped convolutions read them
    /// one by one.
    pub fn multiplies(&self, device: &Device) -> bool {
        !device.is_cpu() && !matches!(self, ProductLayout::Groups(..))
    }

    /// How many rows or columns are held of `n` that cublasLt multiplies on `device`.
    pub fn aligned(&self, n: usize, device: &Device) -> usize {
        if self.multiplies(device) { n.next_multiple_of(ALIGN) } else { n }
    }

    /// Rows of the product of a layer of `k` weights a channel; `None`: there is no product.
    pub fn product_rows(&self, dims: &[usize], k: usize) -> Result<Option<usize>> {
        Ok(match self {
            ProductLayout::Groups(..) => None,
            ProductLayout::Rows | ProductLayout::Windows(_) => Some(self.rows(dims, k)?.0),
        })
    }

    /// Rows of the product of a layer of `k` weights a channel, and how many of them are of one row of a linear or one image.
    pub fn rows(&self, dims: &[usize], k: usize) -> Result<(usize, usize)> {
        Ok(match self {
            ProductLayout::Rows => (dims.iter().product::<usize>() / k.max(1), 1),
            ProductLayout::Windows(w) | ProductLayout::Groups(w, _) => {
                let positions = Geometry::of(*w, dims)?.positions();
                (dims[0] * positions, positions)
            }
        })
    }
}

/// Rows of `k` codes as `[rows, cols]`; what is beyond them is `padding`.
pub(super) fn padded(codes: impl Iterator<Item = u8>, k: usize, [rows, cols]: [usize; 2], padding: u8) -> Vec<u8> {
    let mut out = vec![padding; rows * cols];
    let places = out.chunks_exact_mut(cols.max(1)).flat_map(|row| row.iter_mut().take(k));
    places.zip(codes).for_each(|(to, code)| *to = code);
    out
}

/// A quantized layer.
pub(super) struct Int8 {
    pub layout: ProductLayout,
    codes: Codes,
    /// On a GPU the code of a static layer, `[12]` bytes.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "read where kernels are launched"))]
    fixed: Option<Tensor>,
    /// Signed bytes held as u8: `[oc, k]`, on a GPU padded where a product reads them.
    w: Tensor,
    /// `Σ w` per output channel as i32, `[oc]`.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "read where kernels are launched"))]
    sums: Tensor,
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
    pub layer: &'a Int8,
    /// Of the output's shape, f32.
    pub residual: Option<&'a Tensor>,
}

impl Int8 {
    /// `q` is `[oc, k]` in PyTorch's order; `factors` and `bias` have `oc` values.
    pub fn new(
        layout: ProductLayout,
        codes: Codes,
        q: &[i8],
        factors: Vec<f32>,
        bias: Vec<f32>,
        act: Option<Activation>,
        device: &Device,
    ) -> Result<Int8> {
        let oc = factors.len();
        let k = q.len() / oc.max(1);
        let (rows, cols) = (layout.aligned(oc, device), layout.aligned(k, device));
        let bytes = padded(q.iter().map(|q| q.cast_unsigned()), k, [rows, cols], 0);
        let sums: Vec<i32> = q.chunks_exact(k.max(1)).map(|r| r.iter().map(|&v| i32::from(v)).sum()).collect();
        let fixed = match &codes {
            Codes::Fixed(c) if !device.is_cpu() => {
                let bytes = [c.scale.to_le_bytes(), c.inverse.to_le_bytes(), c.zero.to_le_bytes()].concat();
                Some(Tensor::from_vec(bytes, 12, device)?)
            }
            _ => None,
        };
        Ok(Int8 {
            layout,
            codes,
            fixed,
            w: Tensor::from_vec(bytes, (rows, cols), device)?,
            sums: Tensor::from_vec(sums, oc, device)?,
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

    /// Rows of the product, and how many of them share a code.
    #[cfg(feature = "cuda")]
    fn rows(&self, dims: &[usize]) -> Result<(usize, usize)> {
        let (rows, shared) = self.layout.rows(dims, self.k)?;
        Ok(match self.codes {
            Codes::Dynamic => (rows, shared),
            Codes::Fixed(_) => (rows, rows),
        })
    }
}

impl Own for Run<'_> {
    const NAME: &'static str = "int8 layer";

    fn out(&self, dims: &[usize]) -> Result<(Vec<usize>, DType)> {
        self.layer.layout.out(dims, self.layer.k, self.layer.oc, self.residual)
    }

    fn plain(&self, x: &[f32], dims: &[usize]) -> Result<Vec<f32>> {
        let l = self.layer;
        let w: Vec<i32> = l.w.flatten_all()?.to_vec1::<u8>()?.iter().map(|v| i32::from(v.cast_signed())).collect();
        let (factors, bias) = (host(&l.factors)?, host(&l.bias)?);
        let code = |x: &[f32]| match l.codes {
            Codes::Dynamic => Code::of(x, TOP),
            Codes::Fixed(c) => c,
        };
        let quantized = |x: &[f32], c: Code| -> Vec<i32> {
            let mut q = vec![0u8; x.len()];
            vector::quantize(x, c.inverse, c.zero, f32::from(TOP), &mut q);
            q.into_iter().map(|q| i32::from(q) - c.zero).collect()
        };
        let done = |sum: i32, c: Code, o: usize| sum as f32 * (c.scale * factors[o]) + bias[o];
        let mut y = Vec::new();
        match l.layout {
            ProductLayout::Rows => {
                for row in x.chunks_exact(l.k.max(1)) {
                    let c = code(row);
                    let q = quantized(row, c);
                    y.extend(
                        w.chunks_exact(l.k.max(1))
                            .enumerate()
                            .map(|(o, w)| done(q.iter().zip(w).map(|(q, w)| q * w).sum(), c, o)),
                    );
                }
            }
            ProductLayout::Windows(window) | ProductLayout::Groups(window, _) => {
                let groups = if let ProductLayout::Groups(_, n) = l.layout { n } else { 1 };
                let g = Geometry::of(window, dims)?;
                let (cg, og, taps) = (dims[1] / groups, l.oc / groups, g.taps().count());
                for image in x.chunks_exact(dims[1] * g.plane()) {
                    let c = code(image);
                    let q = quantized(image, c);
                    for o in 0..l.oc {
                        let planes = &q[o / og * cg * g.plane()..][..cg * g.plane()];
                        let w = &w[o * l.k..][..l.k];
                        y.extend(g.places().map(|at| {
                            let of = |(plane, w): (&[i32], &[i32])| -> i32 {
                                g.taps().zip(w).filter_map(|(tap, w)| Some(plane[g.under(at, tap)?] * w)).sum()
                            };
                            done(planes.chunks_exact(g.plane()).zip(w.chunks_exact(taps)).map(of).sum(), c, o)
                        }));
                    }
                }
            }
        }
        let residual = self.residual.map(host).transpose()?;
        rows::finish(&mut y, residual.as_deref(), l.act);
        Ok(y)
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, gpu: &Gpu<'_>, x: &Input<'_>, out: u64) -> Result<()> {
        let l = self.layer;
        let (rows, shared) = l.rows(x.dims)?;
        // `made` holds the codes until the kernels that read them are queued; memory is freed in the stream's order.
        let (made, codes) = match &l.fixed {
            Some(code) => (None, gpu.with(code, |code| Ok(code.at))?),
            None => {
                let (room, at) = gpu.scratch(12 * (rows / shared))?;
                (Some(room), at)
            }
        };
        // A linear makes them with its rows.
        let with_rows = made.is_some() && l.layout == ProductLayout::Rows;
        if made.is_some() && !with_rows {
            dynamic_codes(gpu, x, rows / shared, codes)?;
        }
        let (n, codes) = (rows * l.oc, Ptr(codes));
        let held = [Some(&l.w), Some(&l.sums), Some(&l.factors), Some(&l.bias), self.residual];
        gpu.with_some(held, |[w, sums, factors, bias, residual]| {
            let act = I32(super::kernels::number(l.act));
            let (oc, shared) = (I32(l.oc as i32), I64(shared as i64));
            if let ProductLayout::Groups(window, groups) = l.layout {
                let g = Geometry::of(window, x.dims)?;
                let args = [
                    Ptr(x.at),
                    w,
                    codes,
                    factors,
                    bias,
                    residual,
                    Arg::Geometry(g),
                    oc,
                    I32(groups as i32),
                    shared,
                    act,
                ];
                return gpu.each("grouped_int8", n, &args, out);
            }
            let (m, k) = l.w.dims2()?;
            let all = rows.next_multiple_of(ALIGN);
            let (_rows, q) = gpu.scratch(all * k)?;
            let inner = match l.layout {
                ProductLayout::Windows(window) => {
                    let g = Geometry::of(window, x.dims)?;
                    let args =
                        [Ptr(x.at), codes, Arg::Geometry(g), I32(k as i32), I64(rows as i64), I64(all as i64), shared];
                    gpu.each("quantize_windows", all * k / ALIGN, &args, q)?;
                    g.positions()
                }
                ProductLayout::Rows | ProductLayout::Groups(..) if with_rows => {
                    let args = [Ptr(x.at), I32(l.k as i32), I32(k as i32), Ptr(q), codes];
                    gpu.rows_to("quantize_each", rows, l.k, &args)?;
                    1
                }
                ProductLayout::Rows | ProductLayout::Groups(..) => {
                    let n = rows * k;
                    let args = [Ptr(x.at), codes, I32(l.k as i32), I32(k as i32), shared];
                    gpu.each("quantize_rows", n, &args, q)?;
                    1
                }
            };
            let (_sums, acc) = gpu.scratch(4 * all * m)?;
            let [o_step, r_step] = gpu.with(&l.w, |w| {
                product(l.layout, [m, rows, all], [w.at, q], |[m, n], [a, b]| int8_product(gpu, [m, n, k], a, b, acc))
            })?;
            let args =
                [Ptr(acc), o_step, r_step, codes, sums, factors, bias, residual, oc, I64(inner as i64), shared, act];
            gpu.each("dequantize", n, &args, out)
        })
    }
}

/// Calls `run` for the product of `m` output channels and `rows` rows, of which `all` are there, whole sixteens: with the sizes and the
/// addresses of its operands, weights and rows, in their order. Returns how far apart channels and rows of its sums lie: as the result has them, so that neighbours are read
/// beside each other. Those of a linear have their channels together, those of images their positions.
#[cfg(feature = "cuda")]
pub(super) fn product(
    layout: ProductLayout,
    [m, rows, all]: [usize; 3],
    [w, q]: [u64; 2],
    run: impl FnOnce([usize; 2], [u64; 2]) -> Result<()>,
) -> Result<[Arg; 2]> {
    match layout {
        ProductLayout::Windows(_) => run([all, m], [q, w]).map(|()| [I64(all as i64), I64(1)]),
        ProductLayout::Rows | ProductLayout::Groups(..) => run([m, rows], [w, q]).map(|()| [I64(1), I64(m as i64)]),
    }
}

/// Queues what makes the codes of `count` equal parts of `x`, 12 bytes each.
#[cfg(feature = "cuda")]
fn dynamic_codes(gpu: &Gpu<'_>, x: &Input<'_>, count: usize, codes: u64) -> Result<()> {
    let (_ranges, ranges, parts) = ranges(gpu, x, count)?;
    gpu.each("codes", count, &[Ptr(ranges), I32(parts as i32)], codes)
}

/// What the values of `count` equal parts of `x` range over: memory, where it lies, and how many ranges each part has.
#[cfg(feature = "cuda")]
pub(super) fn ranges(gpu: &Gpu<'_>, x: &Input<'_>, count: usize) -> Result<(CudaSlice<u8>, u64, usize)> {
    /// Values that one block looks through.
    const EACH: usize = 1 << 14;
    let width = x.dims.iter().product::<usize>() / count.max(1);
    let parts = width.div_ceil(EACH).max(1);
    let (held, ranges) = gpu.scratch(8 * count * parts)?;
    let args = [Ptr(x.at), I64(width as i64), I32(parts as i32)];
    gpu.rows("ranges", count * parts, width.div_ceil(parts), &args, ranges)?;
    Ok((held, ranges, parts))
}
