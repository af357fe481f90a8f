//! Tensors and filters: where their elements lie, and their values.
//!
//! Not here: what may be described (`describe.rs`).

use crate::numbers::{Kind, to_tf32};
use half::f16;

/// A `cudnnTensorDescriptor_t` or `cudnnFilterDescriptor_t`: dimensions in the order NCHW (KCRS), and where elements
/// lie.
#[derive(Debug, Clone, Default)]
pub struct Array {
    /// `None` for a type that nothing here computes with.
    pub kind: Option<Kind>,
    pub dims: Vec<usize>,
    pub strides: Vec<i64>,
}

/// Elements from one to the next in each dimension where all lie tight: in the order given, or with channels last.
pub fn tight(dims: &[usize], channels_last: bool) -> Vec<i64> {
    let mut order: Vec<usize> = (0..dims.len()).collect();
    if channels_last {
        order[1..].rotate_left(1);
    }
    let (mut strides, mut step) = (vec![0; dims.len()], 1);
    for at in order.into_iter().rev() {
        strides[at] = step;
        step *= dims[at] as i64;
    }
    strides
}

impl Array {
    /// The bytes that it has, once each; what is tight is one span.
    pub fn spans(&self, at: u64) -> Vec<(u64, usize)> {
        let bytes = self.kind.map_or(0, Kind::bytes);
        let mut order: Vec<usize> =
            (0..self.dims.len()).filter(|d| self.dims[*d] > 1 && self.strides[*d] != 0).collect();
        order.sort_by_key(|d| self.strides[*d]);
        let mut run = 1;
        let mut outer = order.into_iter().peekable();
        while let Some(d) = outer.next_if(|d| self.strides[*d] == run as i64) {
            run *= self.dims[d];
        }
        let mut starts = vec![0i64];
        for d in outer {
            starts =
                starts.iter().flat_map(|s| (0..self.dims[d]).map(move |i| s + i as i64 * self.strides[d])).collect();
        }
        starts.into_iter().map(|s| (at.wrapping_add_signed(s * bytes as i64), run * bytes)).collect()
    }

    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Where element `i`, counted in the order of dimensions, is.
    fn place(&self, mut i: usize) -> i64 {
        let mut place = 0;
        for (dim, stride) in self.dims.iter().zip(&self.strides).rev() {
            place += (i % dim) as i64 * stride;
            i /= dim;
        }
        place
    }

    /// Its values in the order of dimensions.
    ///
    /// # Safety
    /// All of it can be read.
    pub unsafe fn read<T: Real>(&self, at: u64, kind: Kind) -> Vec<T> {
        let mut out = vec![T::ZERO; self.elements()];
        if self.strides == tight(&self.dims, false) {
            // SAFETY: the caller's.
            unsafe { T::read_line(kind, at, &mut out) };
            return out;
        }
        for (i, v) in out.iter_mut().enumerate() {
            let at = at.wrapping_add_signed(self.place(i) * kind.bytes() as i64);
            // SAFETY: the caller's.
            unsafe { T::read_line(kind, at, std::slice::from_mut(v)) };
        }
        out
    }

    /// # Safety
    /// All of it can be written.
    pub unsafe fn write<T: Real>(&self, at: u64, kind: Kind, values: &[T]) {
        if self.strides == tight(&self.dims, false) {
            // SAFETY: the caller's.
            unsafe { T::write_line(kind, at, values) };
            return;
        }
        for (i, v) in values.iter().enumerate() {
            let at = at.wrapping_add_signed(self.place(i) * kind.bytes() as i64);
            // SAFETY: the caller's.
            unsafe { T::write_line(kind, at, std::slice::from_ref(v)) };
        }
    }
}

/// What a convolution is computed in.
pub trait Real: Copy + PartialEq + std::ops::Mul<Output = Self> + std::ops::Add<Output = Self> + 'static {
    const ZERO: Self;
    const ONE: Self;
    /// # Safety
    /// The values can be read.
    unsafe fn read_line(kind: Kind, at: u64, out: &mut [Self]);
    /// # Safety
    /// The values can be written.
    unsafe fn write_line(kind: Kind, at: u64, values: &[Self]);
    /// To TF32.
    fn shorten(&mut self) {}
    /// To a half.
    fn halve(&mut self) {}
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    unsafe fn read_line(kind: Kind, at: u64, out: &mut [f32]) {
        // SAFETY: the caller's.
        unsafe { kind.read_line(at, out) }
    }
    unsafe fn write_line(kind: Kind, at: u64, values: &[f32]) {
        // SAFETY: the caller's.
        unsafe { kind.write_line(at, values) }
    }
    fn shorten(&mut self) {
        *self = to_tf32(*self);
    }
    fn halve(&mut self) {
        *self = f16::from_f32(*self).to_f32();
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    unsafe fn read_line(_: Kind, at: u64, out: &mut [f64]) {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy_nonoverlapping(at as *const f64, out.as_mut_ptr(), out.len()) }
    }
    unsafe fn write_line(_: Kind, at: u64, values: &[f64]) {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), at as *mut f64, values.len()) }
    }
}
