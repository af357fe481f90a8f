//! CPU kernels over channels-last activations: what a compiled step calls.
//!
//! Invariants: kernels are single-threaded unless given a team; results do not depend on how many images or rows are
//! computed together, nor on the number of threads.

#[cfg(target_arch = "x86_64")]
mod amx;
pub(crate) mod attention;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod batch;
#[cfg(target_arch = "x86_64")]
mod blocks;
pub(crate) mod cached;
pub(crate) mod dense;
pub(crate) mod depthwise;
pub(crate) mod experts;
pub(crate) mod gemm;
pub(crate) mod geometry;
pub(crate) mod gradient;
#[cfg(target_arch = "x86_64")]
mod grouped;
pub(crate) mod inputs;
mod lanes;
#[cfg(target_arch = "x86_64")]
mod layout;
pub(crate) mod peak;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod simple;
pub(crate) mod slope;
pub(crate) mod spread;
pub(crate) mod team;
#[cfg(target_arch = "x86_64")]
mod tiles;
pub(crate) mod vector;
#[cfg(target_arch = "x86_64")]
mod wide;
pub(crate) mod window;

use std::cell::RefCell;
pub(crate) use team::Par;

/// `n` numbers for tests, reproducible, off centre so that signs matter.
#[cfg(test)]
pub(crate) fn noise(n: usize, seed: u64) -> Vec<f32> {
    use rand::{Rng, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    (0..n).map(|_| rng.random_range(-2.0..3.0)).collect()
}

/// Calls `f` with a team of so many threads, for tests.
#[cfg(test)]
pub(crate) fn shared(threads: usize, f: impl FnOnce(Par<'_>)) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    team::Team::new(threads).with(&pool, f);
}

/// Lets the parts of a job write to one slice; the caller sees to it that they write to different places.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(*mut T, usize);

// SAFETY: a pointer and a length; every access is in an `unsafe` block of its own.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    pub fn of(v: &mut [T]) -> Shared<T> {
        Shared(v.as_mut_ptr(), v.len())
    }

    /// Where element `from` lies, with `len` elements from there on.
    pub fn at(&self, from: usize, len: usize) -> *mut T {
        assert!(from + len <= self.1);
        self.0.wrapping_add(from)
    }

    /// Elements `from..from + len`.
    ///
    /// # Safety
    /// Within the slice, which is still borrowed; no other part reads or writes them meanwhile.
    #[expect(clippy::mut_from_ref, reason = "what the type is for")]
    pub unsafe fn part(&self, from: usize, len: usize) -> &mut [T] {
        assert!(from + len <= self.1);
        // SAFETY: within the slice, and the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(from), len) }
    }
}

/// Calls `f(index, chunk)` for every `len`-long chunk of `out`, shared among the team.
pub(crate) fn split<T: Send>(par: Par<'_>, out: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if len == 0 || out.is_empty() {
        return;
    }
    if par.threads() == 1 {
        return out.chunks_mut(len).enumerate().for_each(|(i, c)| f(i, c));
    }
    let (n, shared) = (out.len(), Shared::of(out));
    par.run(n.div_ceil(len), |i| {
        // SAFETY: chunks do not overlap and every part has its own.
        f(i, unsafe { shared.part(i * len, len.min(n - i * len)) });
    });
}

/// Rows a band should have so that every thread gets work, at most `most`.
pub(crate) fn band(par: Par<'_>, rows: usize, most: usize) -> usize {
    let most = most.max(1);
    match par.threads() {
        1 => rows.clamp(1, most),
        n => rows.div_ceil(n).clamp(1, most),
    }
}

/// Does int8 run on a matrix unit here?
#[cfg(target_arch = "x86_64")]
pub(crate) fn matrix() -> bool {
    amx::available()
}

/// Buffers a thread keeps between kernel calls; contents are undefined at the start of a call.
#[derive(Default)]
pub(crate) struct Scratch {
    pub f32: Vec<f32>,
    pub u8: Vec<u8>,
    pub cols: Vec<u8>,
    pub i32: Vec<i32>,
    pub codes: Vec<geometry::Code>,
    /// Lent out while the core of a windowed attention runs.
    pub window: Vec<f32>,
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
