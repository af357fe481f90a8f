//! cuDNN's descriptions of tensors, filters and convolutions: the calls that make, set and end them.
//!
//! By `cudnn-ops-library` and `cudnn-cnn-library`, "Returns" of each call, quoted where it is checked. Not here: what
//! they mean together (`conv.rs`).

use super::array::{Array, tight};
use super::{BAD_PARAM, CONVOLUTIONS, Convolution, FILTERS, NOT_SUPPORTED, SUCCESS, TENSORS, make};
use crate::handles::Handles;
use crate::numbers::Kind;
use std::ffi::c_int;

/// `CUDNN_DIM_MAX`.
const MOST_DIMS: c_int = 8;
/// "The total size of the tensor exceeds the maximum limit of 2 Giga-elements."
const MOST_ELEMENTS: i64 = 1 << 31;

/// `cudnnDataType_t`: whether there is such a type, and what is computed with it.
fn kind(code: u32) -> Option<Option<Kind>> {
    Some(match code {
        0 => Some(Kind::F32),
        1 => Some(Kind::F64),
        2 => Some(Kind::F16),
        9 => Some(Kind::Bf16),
        3..=21 => None,
        _ => return None,
    })
}

/// The calls that make and end one kind of description.
macro_rules! described {
    ($table:ident, $create:ident, $destroy:ident, $new:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $create(to: *mut usize) -> u32 {
            // SAFETY: the library's contract.
            unsafe { make(to, &$table, $new) }
        }

        /// Null is nothing to free.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $destroy(of: usize) -> u32 {
            $table.destroy(of, stringify!($destroy));
            SUCCESS
        }
    };
}

described!(TENSORS, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor, Array::default());
described!(FILTERS, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor, Array::default());
described!(
    CONVOLUTIONS,
    cudnnCreateConvolutionDescriptor,
    cudnnDestroyConvolutionDescriptor,
    Convolution { groups: 1, ..Convolution::default() }
);

/// Checks what all tensors and filters must be, and sets one.
fn describe(
    table: &Handles<Array>,
    who: &str,
    of: usize,
    code: u32,
    dims: &[c_int],
    strides: impl Fn(&[usize]) -> Vec<i64>,
) -> u32 {
    // "At least one of the parameters n, c, h, w was negative or zero, or dataType has an invalid enumerant value."
    let (Some(kind), true) = (kind(code), dims.iter().all(|d| *d > 0)) else { return BAD_PARAM };
    let dims: Vec<usize> = dims.iter().map(|d| *d as usize).collect();
    let strides = strides(&dims);
    let last = dims.iter().zip(&strides).map(|(d, s)| (*d as i64 - 1) * s.abs()).sum::<i64>();
    if last >= MOST_ELEMENTS {
        return NOT_SUPPORTED;
    }
    table.with(of, who, |to| *to = Array { kind, dims, strides }).map_or(BAD_PARAM, |()| SUCCESS)
}

/// # Safety
/// `n` of them are there.
unsafe fn list<'a>(of: *const c_int, n: c_int) -> &'a [c_int] {
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts(of, n as usize) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetTensor4dDescriptor(
    of: usize,
    format: u32,
    code: u32,
    n: c_int,
    c: c_int,
    h: c_int,
    w: c_int,
) -> u32 {
    match format {
        0 | 1 => describe(&TENSORS, "cudnnSetTensor4dDescriptor", of, code, &[n, c, h, w], |d| tight(d, format == 1)),
        2 => NOT_SUPPORTED,
        _ => BAD_PARAM,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetTensor4dDescriptorEx(
    of: usize,
    code: u32,
    n: c_int,
    c: c_int,
    h: c_int,
    w: c_int,
    stride_n: c_int,
    stride_c: c_int,
    stride_h: c_int,
    stride_w: c_int,
) -> u32 {
    let strides = [stride_n, stride_c, stride_h, stride_w].map(i64::from);
    describe(&TENSORS, "cudnnSetTensor4dDescriptorEx", of, code, &[n, c, h, w], |_| strides.to_vec())
}

/// "Tensors are restricted to having at least 4 dimensions, and at most `CUDNN_DIM_MAX`."
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetTensorNdDescriptor(
    of: usize,
    code: u32,
    n: c_int,
    dims: *const c_int,
    strides: *const c_int,
) -> u32 {
    if !(4..=MOST_DIMS).contains(&n) {
        return NOT_SUPPORTED;
    }
    if dims.is_null() || strides.is_null() {
        return BAD_PARAM;
    }
    // SAFETY: the library's contract.
    let (dims, strides) = unsafe { (list(dims, n), list(strides, n)) };
    describe(&TENSORS, "cudnnSetTensorNdDescriptor", of, code, dims, |_| strides.iter().map(|s| (*s).into()).collect())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetFilter4dDescriptor(
    of: usize,
    code: u32,
    format: u32,
    k: c_int,
    c: c_int,
    h: c_int,
    w: c_int,
) -> u32 {
    // SAFETY: four of them.
    unsafe { cudnnSetFilterNdDescriptor(of, code, format, 4, [k, c, h, w].as_ptr()) }
}

/// "When `format` is `CUDNN_TENSOR_NHWC`, the layout is KRSC."
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetFilterNdDescriptor(
    of: usize,
    code: u32,
    format: u32,
    n: c_int,
    dims: *const c_int,
) -> u32 {
    if !(3..=MOST_DIMS).contains(&n) || format == 2 {
        return NOT_SUPPORTED;
    }
    if dims.is_null() || format > 2 {
        return BAD_PARAM;
    }
    // SAFETY: the library's contract.
    let dims = unsafe { list(dims, n) };
    describe(&FILTERS, "cudnnSetFilterNdDescriptor", of, code, dims, |d| tight(d, format == 1))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetConvolution2dDescriptor(
    of: usize,
    pad_h: c_int,
    pad_w: c_int,
    u: c_int,
    v: c_int,
    dilation_h: c_int,
    dilation_w: c_int,
    mode: u32,
    compute: u32,
) -> u32 {
    let (pads, strides, dilations) = ([pad_h, pad_w], [u, v], [dilation_h, dilation_w]);
    // SAFETY: two of each.
    unsafe {
        cudnnSetConvolutionNdDescriptor(of, 2, pads.as_ptr(), strides.as_ptr(), dilations.as_ptr(), mode, compute)
    }
}

/// "`CUDNN_STATUS_BAD_PARAM`: `arrayLength` is negative, mode or dataType has an invalid enumerant value, an element
/// of `padA` is strictly negative, an element of `strideA` or `dilationA` is negative or zero."
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetConvolutionNdDescriptor(
    of: usize,
    n: c_int,
    pads: *const c_int,
    strides: *const c_int,
    dilations: *const c_int,
    mode: u32,
    compute: u32,
) -> u32 {
    if n > MOST_DIMS - 2 {
        return NOT_SUPPORTED;
    }
    let (Some(compute), true) = (kind(compute), n >= 1 && mode < 2) else { return BAD_PARAM };
    if pads.is_null() || strides.is_null() || dilations.is_null() {
        return BAD_PARAM;
    }
    // SAFETY: the library's contract.
    let (pads, strides, dilations) = unsafe { (list(pads, n), list(strides, n), list(dilations, n)) };
    if pads.iter().any(|p| *p < 0) || strides.iter().chain(dilations).any(|s| *s < 1) {
        return BAD_PARAM;
    }
    let sizes = |v: &[c_int]| v.iter().map(|v| *v as usize).collect::<Vec<_>>();
    let set = |to: &mut Convolution| {
        let (pads, strides, dilations) = (sizes(pads), sizes(strides), sizes(dilations));
        *to = Convolution { pads, strides, dilations, turned: mode == 0, compute, ..to.clone() };
    };
    CONVOLUTIONS.with(of, "cudnnSetConvolutionNdDescriptor", set).map_or(BAD_PARAM, |()| SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetConvolutionMathType(of: usize, math: u32) -> u32 {
    if math > 3 {
        return BAD_PARAM;
    }
    CONVOLUTIONS.with(of, "cudnnSetConvolutionMathType", |c| c.math = math).map_or(BAD_PARAM, |()| SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetConvolutionGroupCount(of: usize, groups: c_int) -> u32 {
    if groups < 1 {
        return BAD_PARAM;
    }
    let set = |c: &mut Convolution| c.groups = groups as usize;
    CONVOLUTIONS.with(of, "cudnnSetConvolutionGroupCount", set).map_or(BAD_PARAM, |()| SUCCESS)
}
