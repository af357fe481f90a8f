//! Convolutions against plain loops, and what is refused.

use super::describe::*;
use super::*;
use crate::testing::{ends, noise, put, take, test_memory};
use half::{bf16, f16};

const FLOAT: u32 = 0;
const DOUBLE: u32 = 1;
const HALF: u32 = 2;
const INT8: u32 = 3;
const BFLOAT16: u32 = 9;

/// Sizes of a convolution in one or two dimensions of space: an image that is one wide is a line.
#[derive(Clone, Copy)]
struct Case {
    n: usize,
    /// Channels of the input and the output.
    c: [usize; 2],
    x: [usize; 2],
    w: [usize; 2],
    pad: [c_int; 2],
    stride: [c_int; 2],
    dilation: [c_int; 2],
    groups: usize,
    turned: bool,
    scales: [f64; 2],
    channels_last: bool,
}

const PLAIN: Case = Case {
    n: 2,
    c: [3, 4],
    x: [7, 6],
    w: [3, 2],
    pad: [0, 0],
    stride: [1, 1],
    dilation: [1, 1],
    groups: 1,
    turned: false,
    scales: [1.0, 0.0],
    channels_last: false,
};

/// How values are made, and what they are.
type Coded<T> = (fn(f32) -> T, fn(T) -> f64);

struct Made {
    handle: usize,
    x: usize,
    w: usize,
    y: usize,
    conv: usize,
}

impl Case {
    fn out(&self) -> [usize; 2] {
        std::array::from_fn(|d| {
            let reach = (self.w[d] - 1) * self.dilation[d] as usize + 1;
            (self.x[d] + 2 * self.pad[d] as usize - reach) / self.stride[d] as usize + 1
        })
    }

    fn make(&self, code: u32, compute: u32) -> Made {
        let (mut handle, mut x, mut w, mut y, mut conv) = (0, 0, 0, 0, 0);
        let int = |v: usize| v as c_int;
        let format = u32::from(self.channels_last);
        let out = self.out();
        // SAFETY: room for all.
        unsafe {
            assert_eq!(cudnnCreate(&raw mut handle), SUCCESS);
            assert_eq!(cudnnCreateTensorDescriptor(&raw mut x), SUCCESS);
            assert_eq!(cudnnCreateTensorDescriptor(&raw mut y), SUCCESS);
            assert_eq!(cudnnCreateFilterDescriptor(&raw mut w), SUCCESS);
            assert_eq!(cudnnCreateConvolutionDescriptor(&raw mut conv), SUCCESS);
            let sizes = |c, [h, w]: [usize; 2]| (int(self.n), int(c), int(h), int(w));
            let (n, c, h, l) = sizes(self.c[0], self.x);
            assert_eq!(cudnnSetTensor4dDescriptor(x, format, code, n, c, h, l), SUCCESS);
            let (n, c, h, l) = sizes(self.c[1], out);
            assert_eq!(cudnnSetTensor4dDescriptor(y, format, code, n, c, h, l), SUCCESS);
            let (k, c) = (int(self.c[1]), int(self.c[0] / self.groups));
            assert_eq!(cudnnSetFilter4dDescriptor(w, code, format, k, c, int(self.w[0]), int(self.w[1])), SUCCESS);
            let mode = u32::from(!self.turned);
            let ([p, q], [u, v], [d, e]) = (self.pad, self.stride, self.dilation);
            assert_eq!(cudnnSetConvolution2dDescriptor(conv, p, q, u, v, d, e, mode, compute), SUCCESS);
            assert_eq!(cudnnSetConvolutionGroupCount(conv, int(self.groups)), SUCCESS);
            assert_eq!(cudnnSetConvolutionMathType(conv, 3), SUCCESS);
        }
        Made { handle, x, w, y, conv }
    }

    /// Where `(n, c, i, j)` is in a tensor of `channels` and `size`.
    fn at(&self, [n, c, i, j]: [usize; 4], channels: usize, [h, w]: [usize; 2]) -> usize {
        if self.channels_last { ((n * h + i) * w + j) * channels + c } else { ((n * channels + c) * h + i) * w + j }
    }

    /// Computes it with values of `T`, and compares within `error` of what the terms add up to.
    fn agrees<T: Copy + PartialEq>(&self, code: u32, compute: u32, error: f64, (from, to): Coded<T>) {
        let (made, out) = (self.make(code, compute), self.out());
        let depth = self.c[0] / self.groups;
        let make = |n, seed| noise(n, seed).into_iter().map(from).collect::<Vec<T>>();
        let x = make(self.n * self.c[0] * self.x[0] * self.x[1], 1);
        let w = make(self.c[1] * depth * self.w[0] * self.w[1], 2);
        let y = make(self.n * self.c[1] * out[0] * out[1], 3);
        let (dx, dw, dy) = (put(&x), put(&w), put(&y));
        let floats = self.scales.map(|v| v as f32);
        let scale = |i: usize| -> *const c_void {
            if code == DOUBLE { (&raw const self.scales[i]).cast() } else { (&raw const floats[i]).cast() }
        };
        for algo in [0, 1, 2] {
            let dy = if self.scales[1] == 0.0 { test_memory(size_of_val(&*y)) } else { put(&y) };
            let mut bytes = 0;
            // SAFETY: as declared.
            unsafe {
                let Made { handle, x, w, y, conv } = made;
                assert_eq!(
                    cudnnGetConvolutionForwardWorkspaceSize(handle, x, w, conv, y, algo, &raw mut bytes),
                    SUCCESS
                );
                let room = if bytes == 0 { 0 } else { test_memory(bytes) };
                let status =
                    cudnnConvolutionForward(handle, scale(0), x, dx, w, dw, conv, algo, room, bytes, scale(1), y, dy);
                assert_eq!(status, SUCCESS);
            }
            let got = take::<T>(dy, y.len());
            self.compare(&x, &w, &y, &got, error, to);
        }
        let _ = dy;
    }

    fn compare<T: Copy>(&self, x: &[T], w: &[T], y: &[T], got: &[T], error: f64, to: fn(T) -> f64) {
        let (out, depth) = (self.out(), self.c[0] / self.groups);
        let per = self.c[1] / self.groups;
        for (n, k) in (0..self.n).flat_map(|n| (0..self.c[1]).map(move |k| (n, k))) {
            for (i, j) in (0..out[0]).flat_map(|i| (0..out[1]).map(move |j| (i, j))) {
                let (mut sum, mut size) = (0.0, 0.0);
                for (c, r, s) in
                    (0..depth).flat_map(|c| (0..self.w[0]).flat_map(move |r| (0..self.w[1]).map(move |s| (c, r, s))))
                {
                    let (tr, ts) = if self.turned { (self.w[0] - 1 - r, self.w[1] - 1 - s) } else { (r, s) };
                    let a = (i * self.stride[0] as usize + tr * self.dilation[0] as usize)
                        .wrapping_sub(self.pad[0] as usize);
                    let b = (j * self.stride[1] as usize + ts * self.dilation[1] as usize)
                        .wrapping_sub(self.pad[1] as usize);
                    if a < self.x[0] && b < self.x[1] {
                        let v = to(x[self.at([n, k / per * depth + c, a, b], self.c[0], self.x)]);
                        let f = to(w[self.at([k, c, r, s], depth, self.w)]);
                        sum += v * f;
                        size += (v * f).abs();
                    }
                }
                let at = self.at([n, k, i, j], self.c[1], out);
                let old = if self.scales[1] == 0.0 { 0.0 } else { self.scales[1] * to(y[at]) };
                let want = self.scales[0] * sum + old;
                let off = (to(got[at]) - want).abs();
                assert!(off <= error * (size * self.scales[0].abs() + old.abs()) + 1e-30, "{} for {want}", to(got[at]));
            }
        }
    }
}

#[test]
fn convolutions_agree_with_loops() {
    let cases = [
        PLAIN,
        Case { pad: [1, 2], stride: [2, 1], scales: [0.5, 2.0], ..PLAIN },
        Case { dilation: [2, 3], pad: [2, 1], ..PLAIN },
        Case { c: [6, 4], groups: 2, ..PLAIN },
        Case { c: [4, 8], groups: 4, turned: true, pad: [1, 1], ..PLAIN },
        Case { channels_last: true, c: [4, 6], groups: 2, pad: [1, 0], scales: [1.0, 1.0], ..PLAIN },
        // A line, as candle describes it.
        Case { x: [19, 1], w: [5, 1], pad: [2, 0], stride: [3, 1], dilation: [2, 1], ..PLAIN },
    ];
    for case in cases {
        case.agrees::<f32>(FLOAT, FLOAT, 1e-6, (|v| v, f64::from));
        case.agrees::<f64>(DOUBLE, DOUBLE, 1e-14, (f64::from, |v| v));
        case.agrees::<f16>(HALF, FLOAT, 1e-3, (f16::from_f32, f16::to_f64));
        case.agrees::<f16>(HALF, HALF, 1e-2, (f16::from_f32, f16::to_f64));
        case.agrees::<bf16>(BFLOAT16, FLOAT, 8e-3, (bf16::from_f32, bf16::to_f64));
    }
}

#[test]
fn floats_are_shortened_unless_it_is_forbidden() {
    let (one, zero) = (1f32, 0f32);
    let case = Case { n: 1, c: [1, 1], x: [1, 1], w: [1, 1], ..PLAIN };
    let made = case.make(FLOAT, FLOAT);
    let (x, w, y) = (put(&[1.0 + 2f32.powi(-12)]), put(&[1f32]), put(&[0f32]));
    for (math, want) in [(0, 1.0), (3, 1.0 + 2f32.powi(-12))] {
        let (alpha, beta) = ((&raw const one).cast(), (&raw const zero).cast());
        // SAFETY: as declared.
        unsafe {
            assert_eq!(cudnnSetConvolutionMathType(made.conv, math), SUCCESS);
            let Made { handle, x: dx, w: dw, y: dy, conv } = made;
            assert_eq!(cudnnConvolutionForward(handle, alpha, dx, x, dw, w, conv, 0, 0, 0, beta, dy, y), SUCCESS);
        }
        assert_eq!(take::<f32>(y, 1), [want]);
    }
}

#[test]
fn a_strided_input_is_read_where_it_lies() {
    // Channels 0 and 2 of four: candle's narrowed tensors.
    let case = Case { n: 2, c: [2, 3], x: [4, 3], w: [2, 2], ..PLAIN };
    let (made, out) = (case.make(FLOAT, FLOAT), case.out());
    let (all, w) = (noise(2 * 4 * 12, 1), noise(3 * 2 * 4, 2));
    let tight: Vec<f32> = (0..2).flat_map(|n| [0, 2].map(|c| &all[(n * 4 + c) * 12..][..12]).concat()).collect();
    let (x, dw, y) = (put(&all), put(&w), test_memory(4 * 2 * 3 * out[0] * out[1]));
    let (one, zero) = (1f32, 0f32);
    // SAFETY: as declared.
    unsafe {
        assert_eq!(cudnnSetTensor4dDescriptorEx(made.x, FLOAT, 2, 2, 4, 3, 48, 24, 3, 1), SUCCESS);
        let (alpha, beta) = ((&raw const one).cast(), (&raw const zero).cast());
        let Made { handle, x: dx, w: df, y: dy, conv } = made;
        assert_eq!(cudnnConvolutionForward(handle, alpha, dx, x, df, dw, conv, 0, 0, 0, beta, dy, y), SUCCESS);
    }
    let got = take::<f32>(y, 2 * 3 * out[0] * out[1]);
    case.compare(&tight, &w, &[], &got, 1e-6, f64::from);
}

#[test]
fn what_lies_tight_is_one_span() {
    let spans = |dims: &[usize], strides: &[i64]| {
        let array = Array { kind: Some(Kind::F32), dims: dims.to_vec(), strides: strides.to_vec() };
        let mut spans = array.spans(1000);
        spans.sort_unstable();
        spans
    };
    assert_eq!(spans(&[2, 3, 4, 5], &[60, 20, 5, 1]), [(1000, 480)]);
    assert_eq!(spans(&[2, 3, 4, 5], &[60, 1, 15, 3]), [(1000, 480)], "channels last");
    assert_eq!(spans(&[2, 1, 4, 5], &[60, 7, 5, 1]), [(1000, 80), (1240, 80)]);
    assert_eq!(spans(&[2, 3, 1, 2], &[0, 10, 1, 1]), [(1000, 8), (1040, 8), (1080, 8)], "a broadcast");
    assert_eq!(spans(&[2, 2, 1, 1], &[2, 4, 1, 1]), [(1000, 4), (1008, 4), (1016, 4), (1024, 4)]);
}

#[test]
fn what_the_documentation_refuses_is_refused() {
    let made = PLAIN.make(FLOAT, FLOAT);
    let size = |m: &Made, algo| {
        let mut bytes = 0;
        // SAFETY: room for one.
        unsafe { cudnnGetConvolutionForwardWorkspaceSize(m.handle, m.x, m.w, m.conv, m.y, algo, &raw mut bytes) }
    };
    assert_eq!(
        [0, 1, 2, 3, 6, 8].map(|a| size(&made, a)),
        [SUCCESS, SUCCESS, SUCCESS, NOT_SUPPORTED, NOT_SUPPORTED, BAD_PARAM]
    );
    assert_eq!(size(&PLAIN.make(INT8, INT8), 0), NOT_SUPPORTED);
    assert_eq!(size(&PLAIN.make(BFLOAT16, BFLOAT16), 0), NOT_SUPPORTED, "there is no true bfloat16");
    assert_eq!(size(&PLAIN.make(FLOAT, HALF), 0), NOT_SUPPORTED);
    assert_eq!(size(&PLAIN.make(DOUBLE, FLOAT), 0), NOT_SUPPORTED);
    let other = Case { x: [8, 6], ..PLAIN }.make(FLOAT, FLOAT);
    assert_eq!(size(&Made { y: other.y, ..PLAIN.make(FLOAT, FLOAT) }, 0), BAD_PARAM, "an output of another size");
    assert_eq!(size(&Made { x: PLAIN.make(HALF, FLOAT).x, ..PLAIN.make(FLOAT, FLOAT) }, 0), BAD_PARAM, "types differ");
    let (mut count, one) = (0, 1f32);
    let mut found: [std::mem::MaybeUninit<Found>; 8] = std::array::from_fn(|_| std::mem::MaybeUninit::uninit());
    let one: *const c_void = (&raw const one).cast();
    let (x, room) = (put(&vec![0f32; 4096]), test_memory(4096));
    // SAFETY: room for all.
    unsafe {
        let Made { handle, x: dx, w: dw, y: dy, conv } = made;
        let pick = |n, count, to| cudnnGetConvolutionForwardAlgorithm_v7(handle, dx, dw, conv, dy, n, count, to);
        assert_eq!(pick(8, &raw mut count, found[0].as_mut_ptr()), SUCCESS);
        let best = found[0].assume_init_ref();
        assert_eq!((count, best.algo, best.status, size_of::<Found>()), (3, 1, SUCCESS, 48));
        assert_eq!(pick(0, &raw mut count, found[0].as_mut_ptr()), BAD_PARAM);
        let run = |alpha, x, room, bytes| {
            cudnnConvolutionForward(handle, alpha, dx, x, dw, x + 8192, conv, 1, room, bytes, one, dy, x + 12288)
        };
        assert_eq!(run(one, x, room, 4096), SUCCESS);
        assert_eq!(run(one, x, room, 4095), BAD_PARAM);
        assert_eq!(run(one, x, 0, 4096), BAD_PARAM);
        assert_eq!(run(std::ptr::null(), x, room, 4096), BAD_PARAM);
        assert_eq!(run(one, 0, room, 4096), BAD_PARAM);
        assert_eq!(cudnnSetTensor4dDescriptor(dx, 0, FLOAT, 1, 0, 1, 1), BAD_PARAM);
        assert_eq!(cudnnSetTensor4dDescriptor(dx, 2, FLOAT, 1, 1, 1, 1), NOT_SUPPORTED);
        assert_eq!(cudnnSetTensor4dDescriptor(dx, 0, 22, 1, 1, 1, 1), BAD_PARAM);
        assert_eq!(cudnnSetTensor4dDescriptor(dx, 0, FLOAT, 2, 1 << 10, 1 << 10, 1 << 10), SUCCESS);
        assert_eq!(cudnnSetTensor4dDescriptor(dx, 0, FLOAT, 3, 1 << 10, 1 << 10, 1 << 10), NOT_SUPPORTED);
        assert_eq!(cudnnSetTensorNdDescriptor(dx, FLOAT, 3, [1; 3].as_ptr(), [1; 3].as_ptr()), NOT_SUPPORTED);
        assert_eq!(cudnnSetConvolution2dDescriptor(conv, -1, 0, 1, 1, 1, 1, 1, FLOAT), BAD_PARAM);
        assert_eq!(cudnnSetConvolution2dDescriptor(conv, 0, 0, 0, 1, 1, 1, 1, FLOAT), BAD_PARAM);
        assert_eq!(cudnnSetConvolution2dDescriptor(conv, 0, 0, 1, 1, 1, 1, 2, FLOAT), BAD_PARAM);
        assert_eq!(cudnnSetConvolutionGroupCount(conv, 0), BAD_PARAM);
        assert_eq!(cudnnDestroyTensorDescriptor(0), SUCCESS);
        assert_eq!(cudnnDestroy(handle), SUCCESS);
    }
}

#[test]
fn a_result_over_the_input_ends_the_run() {
    let said = ends("cudnn::tests::a_result_over_the_input_ends_the_run", || {
        let Made { handle, x: dx, w: dw, y: dy, conv } = PLAIN.make(FLOAT, FLOAT);
        let (one, zero, x) = (1f32, 0f32, put(&vec![0f32; 4096]));
        let (alpha, beta) = ((&raw const one).cast(), (&raw const zero).cast());
        // SAFETY: that is the test.
        unsafe { cudnnConvolutionForward(handle, alpha, dx, x, dw, x + 8192, conv, 0, 0, 0, beta, dy, x + 4) };
    });
    assert!(said.contains("y overlaps x"), "{said}");
}
