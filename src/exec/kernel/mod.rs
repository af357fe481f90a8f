//! CPU kernels over channels-last activations: what a compiled step calls.
//!
//! Invariants: kernels are single-threaded unless told `par`; results do not depend on how many images or rows are
//! computed together, nor on the number of threads.

pub(crate) mod attention;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod dense;
mod gemm;
pub(crate) mod simple;
pub(crate) mod vector;
#[cfg(target_arch = "x86_64")]
mod wide;

use rayon::prelude::*;
use std::cell::RefCell;

/// Calls `f(index, chunk)` for every `len`-long chunk of `out`, on all threads of the current pool when `par`.
pub(crate) fn split<T: Send>(par: bool, out: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if len == 0 || out.is_empty() {
        return;
    }
    if par && out.len() > len {
        out.par_chunks_mut(len).enumerate().for_each(|(i, c)| f(i, c));
    } else {
        out.chunks_mut(len).enumerate().for_each(|(i, c)| f(i, c));
    }
}

/// Rows a band should have so that every thread gets work when `par`, at most `most`.
pub(crate) fn band(par: bool, rows: usize, most: usize) -> usize {
    let most = most.max(1);
    if !par {
        return rows.clamp(1, most);
    }
    let threads = rayon::current_num_threads();
    rows.div_ceil(threads).next_multiple_of(8).clamp(1, most)
}

/// Buffers a thread keeps between kernel calls; contents are undefined at the start of a call.
#[derive(Default)]
pub(crate) struct Scratch {
    pub f32: Vec<f32>,
    pub u8: Vec<u8>,
    pub cols: Vec<u8>,
    pub i32: Vec<i32>,
    #[cfg(target_arch = "x86_64")]
    pub vectors: Vec<std::arch::x86_64::__m512>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Lends this thread's buffers to `f`; a nested call gets fresh ones.
pub(crate) fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    let mut s = SCRATCH.take();
    let r = f(&mut s);
    SCRATCH.set(s);
    r
}

/// The first `n` elements of `v`, grown when shorter.
pub(crate) fn room<T: Copy + Default>(v: &mut Vec<T>, n: usize) -> &mut [T] {
    if v.len() < n {
        v.resize(n, T::default());
    }
    &mut v[..n]
}
