//! Convolution forward: what is refused, and the computation, by unfolding the input and one product a group.
//!
//! What is refused is the list below `cudnnConvolutionForward` in `cudnn-cnn-library`, "Returns", quoted where it is
//! checked; the types are its table of supported configurations. Not here: descriptions.

use super::array::{Array, Real};
use super::{BAD_PARAM, Convolution, EXECUTION_FAILED, NOT_SUPPORTED, SUCCESS};
use crate::gemm::{meets, peak};
use crate::memory::{check_read, check_write};
use crate::misuse;
use crate::numbers::Kind;
use crate::stream::{Cost, enqueue};
use std::ffi::c_void;

/// `CUDNN_CONVOLUTION_FWD_ALGO_…`: implicit precomputed product, implicit product, explicit product; those are made
/// here.
pub const RANKED: [u32; 3] = [1, 0, 2];
/// `CUDNN_FMA_MATH`: "Restricted to only kernels that use FMA instructions."
const FMA_MATH: u32 = 3;
/// What the precomputed indices of an implicit product take.
const INDICES: usize = 4096;
/// Products of a tensor core's instruction for halves, after which the sum is rounded where the accumulator is a half.
const INSTRUCTION: usize = 16;

/// A call's descriptions.
#[derive(Debug, Clone)]
pub struct Call {
    pub stream: usize,
    pub x: Array,
    pub w: Array,
    pub conv: Convolution,
    pub y: Array,
}

/// Bytes of workspace that `algo` needs.
pub fn needed(call: &Call, algo: u32) -> Result<usize, u32> {
    match algo {
        0 => Ok(0),
        1 => Ok(INDICES),
        // The input, unfolded.
        2 => Ok(call.unfolded() * call.conv.groups * call.x.kind.map_or(0, Kind::bytes)),
        // The third has never been implemented; the others ask more of shapes and types than candle checks.
        3..=7 => Err(NOT_SUPPORTED),
        _ => Err(BAD_PARAM),
    }
}

impl Call {
    fn space(&self) -> usize {
        self.x.dims.len() - 2
    }

    /// Elements of one image's unfolded input, for one group.
    fn unfolded(&self) -> usize {
        self.w.dims[1..].iter().product::<usize>() * self.y.dims[2..].iter().product::<usize>()
    }

    /// Returns the type that it is computed in.
    pub fn check(&self) -> Result<Kind, u32> {
        let (x, w, y, conv) = (&self.x, &self.w, &self.y, &self.conv);
        let n = x.dims.len();
        // "BAD_PARAM: xDesc and yDesc, or xDesc and wDesc, have a non-matching number of dimensions; xDesc has fewer
        // than three number of dimensions; xDesc's number of dimensions is not equal to convDesc's array length + 2"
        if n < 3 || y.dims.len() != n || w.dims.len() != n || n != conv.pads.len() + 2 {
            return Err(BAD_PARAM);
        }
        // "… have a non-matching number of input feature maps per image (or group in case of grouped convolutions);
        // yDesc or wDesc indicate an output channel count that isn't a multiple of group count"
        let groups = conv.groups;
        if x.dims[1] != w.dims[1] * groups
            || w.dims[0] % groups != 0
            || y.dims[1] != w.dims[0]
            || y.dims[0] != x.dims[0]
        {
            return Err(BAD_PARAM);
        }
        for d in 0..self.space() {
            let (inside, reach) = (x.dims[d + 2] + 2 * conv.pads[d], (w.dims[d + 2] - 1) * conv.dilations[d] + 1);
            // "For some spatial dimension, wDesc has a spatial size that is larger than the input spatial size
            // (including zero-padding size)"; and y is as long as cudnnGetConvolutionNdForwardOutputDim says.
            if reach > inside || y.dims[d + 2] != (inside - reach) / conv.strides[d] + 1 {
                return Err(BAD_PARAM);
            }
        }
        // "NOT_SUPPORTED: xDesc or yDesc have negative tensor striding; xDesc, wDesc, or yDesc has a number of
        // dimensions that is not 4 or 5"
        if x.strides.iter().chain(&y.strides).any(|s| *s < 0) || !(4..=5).contains(&n) {
            return Err(NOT_SUPPORTED);
        }
        let (Some(kind), Some(compute)) = (x.kind, conv.compute) else { return Err(NOT_SUPPORTED) };
        // "xDesc, wDesc, and yDesc have a non-matching data type"
        if w.kind != Some(kind) || y.kind != Some(kind) {
            return Err(BAD_PARAM);
        }
        match (kind, compute) {
            // TRUE_HALF, PSEUDO_HALF, PSEUDO_BFLOAT16, FLOAT and DOUBLE_CONFIG.
            (Kind::F16, Kind::F16 | Kind::F32) | (Kind::Bf16 | Kind::F32, Kind::F32) | (Kind::F64, Kind::F64) => {
                Ok(compute)
            }
            _ => Err(NOT_SUPPORTED),
        }
    }

    /// # Safety
    /// `alpha` and `beta` are null or point to the host: `f64`s for `f64`, and `f32`s otherwise.
    pub unsafe fn forward(
        self,
        [alpha, beta]: [*const c_void; 2],
        at: [u64; 3],
        algo: u32,
        workspace: (u64, usize),
    ) -> u32 {
        if alpha.is_null() || beta.is_null() || at.contains(&0) {
            return BAD_PARAM;
        }
        let (compute, needed) = match self.check().and_then(|c| Ok((c, needed(&self, algo)?))) {
            Ok(found) => found,
            Err(status) => return status,
        };
        if needed > workspace.1 || (needed > 0 && workspace.0 == 0) {
            return BAD_PARAM;
        }
        let scale = if compute == Kind::F64 { Kind::F64 } else { Kind::F32 };
        // SAFETY: the caller's.
        let (alpha, beta) = unsafe { (scale.read(alpha as u64), scale.read(beta as u64)) };
        let bytes =
            [&self.x, &self.w, &self.y].map(|a| a.elements() * a.kind.map_or(0, Kind::bytes)).iter().sum::<usize>();
        let peak = match self.x.kind {
            Some(Kind::F64) => peak::F64,
            Some(Kind::F32) if self.tf32() => peak::TF32,
            Some(Kind::F32) => peak::F32,
            _ => peak::F16,
        };
        let flops = 2 * (self.y.elements() * self.w.dims[1..].iter().product::<usize>()) as u64;
        let (stream, room) = (self.stream, (workspace.0, needed));
        let work = Box::new(move || {
            self.check_operands(at, beta != 0.0, room);
            // SAFETY: every operand was checked.
            unsafe {
                if compute == Kind::F64 {
                    self.carry_out::<f64>(at, compute, alpha, beta);
                } else {
                    self.carry_out::<f32>(at, compute, alpha as f32, beta as f32);
                }
            }
        });
        let cost = Cost { bytes: bytes as u64, flops, peak };
        if enqueue(stream, "cudnnConvolutionForward", cost, work) == 0 { SUCCESS } else { EXECUTION_FAILED }
    }

    /// `CUDNN_DEFAULT_MATH`: "On NVIDIA A100 GPU architecture or later, Tensor Core TF32 operation is permitted" for
    /// `f32`: taken for used.
    fn tf32(&self) -> bool {
        self.x.kind == Some(Kind::F32) && self.conv.math != FMA_MATH
    }

    fn check_operands(&self, [x, w, y]: [u64; 3], with_y: bool, (room, bytes): (u64, usize)) {
        const WHO: &str = "cudnnConvolutionForward";
        let size = self.x.kind.map_or(1, Kind::bytes) as u64;
        if let Some(at) = [x, w, y].iter().find(|at| !at.is_multiple_of(size)) {
            misuse!("{WHO}: {at:#x} is no address of a value of {size} bytes")
        }
        let mut written = self.y.spans(y);
        written.sort_unstable();
        if written.iter().map(|w| w.1).sum::<usize>() != self.y.elements() * size as usize {
            misuse!("{WHO}: elements of y lie on each other: strides {:?} of {:?}", self.y.strides, self.y.dims)
        }
        for (name, spans) in [("x", self.x.spans(x)), ("w", self.w.spans(w))] {
            for span in spans {
                check_read(span.0, span.1, &format!("{WHO}, {name}"));
                if meets(&written, span) {
                    misuse!("{WHO}: y overlaps {name} at {:#x}", span.0)
                }
                if meets(&[(room, bytes)], span) {
                    misuse!("{WHO}: the workspace overlaps {name} at {:#x}", span.0)
                }
            }
        }
        for span in written {
            if with_y {
                check_read(span.0, span.1, &format!("{WHO}, y"));
            }
            check_write(span.0, span.1, &format!("{WHO}, y"));
            if meets(&[(room, bytes)], span) {
                misuse!("{WHO}: the workspace overlaps y at {:#x}", span.0)
            }
        }
        if bytes > 0 {
            check_write(room, bytes, &format!("{WHO}, workspace"));
            // SAFETY: checked. What an algorithm leaves in its workspace means nothing to anyone.
            unsafe { std::ptr::write_bytes(room as *mut u8, 0xA5, bytes) };
        }
    }

    /// # Safety
    /// The operands can be read and written.
    unsafe fn carry_out<T: Real>(&self, [x, w, y]: [u64; 3], compute: Kind, alpha: T, beta: T) {
        let kind = self.x.kind.unwrap_or(compute);
        let groups = self.conv.groups;
        let (outputs, depth) = (self.w.dims[0] / groups, self.w.dims[1..].iter().product::<usize>());
        let pixels: usize = self.y.dims[2..].iter().product();
        // SAFETY: the caller's.
        let (mut input, mut filter) = unsafe { (self.x.read::<T>(x, kind), self.w.read::<T>(w, kind)) };
        if self.tf32() {
            input.iter_mut().chain(&mut filter).for_each(T::shorten);
        }
        let mut sums = vec![T::ZERO; self.y.elements()];
        let mut unfolded = vec![T::ZERO; depth * pixels];
        let (image, plane) =
            (self.x.dims[1..].iter().product::<usize>(), self.w.dims[1] * self.x.dims[2..].iter().product::<usize>());
        for (n, g) in (0..self.x.dims[0]).flat_map(|n| (0..groups).map(move |g| (n, g))) {
            self.unfold(&input[n * image + g * plane..][..plane], &mut unfolded);
            let out = &mut sums[(n * self.w.dims[0] + g * outputs) * pixels..][..outputs * pixels];
            let filter = &filter[g * outputs * depth..][..outputs * depth];
            let steps = if compute == Kind::F16 { INSTRUCTION } else { depth };
            for from in (0..depth).step_by(steps) {
                // SAFETY: row-major matrices of these sizes.
                unsafe {
                    gemm::gemm(
                        outputs,
                        pixels,
                        steps.min(depth - from),
                        out.as_mut_ptr(),
                        1,
                        pixels as isize,
                        from > 0,
                        filter.as_ptr().add(from),
                        1,
                        depth as isize,
                        unfolded.as_ptr().add(from * pixels),
                        1,
                        pixels as isize,
                        T::ONE,
                        T::ONE,
                        false,
                        false,
                        false,
                        gemm::Parallelism::None,
                    );
                }
                if compute == Kind::F16 {
                    out.iter_mut().for_each(T::halve);
                }
            }
        }
        let old = if beta == T::ZERO {
            Vec::new()
        } else {
            // SAFETY: the caller's.
            unsafe { self.y.read::<T>(y, kind) }
        };
        sums.iter_mut().for_each(|v| *v = alpha * *v);
        sums.iter_mut().zip(&old).for_each(|(v, o)| *v = *v + beta * *o);
        // SAFETY: the caller's.
        unsafe { self.y.write(y, kind, &sums) };
    }

    /// Row `(c, r, s)` of `out` has what filter tap `(r, s)` of channel `c` meets, for every pixel of the output.
    fn unfold<T: Real>(&self, input: &[T], out: &mut [T]) {
        let (space, taps) = (self.space(), &self.w.dims[2..]);
        // Three dimensions: what is not there is one.
        let three = |v: &[usize], none: usize| -> [usize; 3] {
            std::array::from_fn(|i| if i + space < 3 { none } else { v[i + space - 3] })
        };
        let (x, y, r) = (three(&self.x.dims[2..], 1), three(&self.y.dims[2..], 1), three(taps, 1));
        let conv = &self.conv;
        let (pad, stride, dilation) = (three(&conv.pads, 0), three(&conv.strides, 1), three(&conv.dilations, 1));
        let mut to = out.iter_mut();
        for c in 0..self.w.dims[1] {
            for tap in 0..r[0] * r[1] * r[2] {
                let tap = if conv.turned { r[0] * r[1] * r[2] - 1 - tap } else { tap };
                let tap = [tap / (r[1] * r[2]), tap / r[2] % r[1], tap % r[2]];
                let at = |d: usize, o: usize| {
                    (o * stride[d] + tap[d] * dilation[d]).checked_sub(pad[d]).filter(|i| *i < x[d])
                };
                for i in 0..y[0] {
                    for j in 0..y[1] {
                        let row = at(0, i).zip(at(1, j)).map(|(a, b)| ((c * x[0] + a) * x[1] + b) * x[2]);
                        for l in 0..y[2] {
                            let value = row.zip(at(2, l)).map_or(T::ZERO, |(row, b)| input[row + b]);
                            if let Some(to) = to.next() {
                                *to = value;
                            }
                        }
                    }
                }
            }
        }
    }
}
