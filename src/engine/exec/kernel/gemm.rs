//! Portable matrix products: `rten-gemm` with prepacked right-hand sides, on any processor it has kernels for.

use rten_gemm::{BiasVector, GemmExecutor, GemmInputA, GemmInputB, GemmOptions, GemmResult, PackedBMatrix};
use rten_tensor::NdTensorView;

thread_local! {
    // The executors may not cross threads (they are two words each, so every thread has its own).
    static FLOAT: GemmExecutor<f32> = GemmExecutor::default();
    static INT8: GemmExecutor<u8, i8, i32> = GemmExecutor::default();
}

/// The kernels' own names, without the part that repeats the types: `avx512`.
pub(super) fn float_name() -> String {
    short(FLOAT.with(|g| g.kernel_name().to_owned()))
}

pub(super) fn int8_name() -> String {
    short(INT8.with(|g| g.kernel_name().to_owned()))
}

fn short(name: String) -> String {
    format!("rten-{}", name.replace("x86_64-", "").replace("f32-", "").replace("u8i8i32-", ""))
}

/// Largest activation code that cannot overflow the kernel's 16-bit intermediate sums: 255 with dot-product
/// instructions, 127 where two products are first added in 16 bits (`127 · 127 · 2 < 2^15`).
pub(super) fn top_code() -> u8 {
    if INT8.with(GemmExecutor::may_saturate) { 127 } else { 255 }
}

/// Packs `[n, k]` row-major weights as the right-hand side `[k, n]`.
pub(super) fn pack_f32(w: &[f32], n: usize, k: usize) -> PackedBMatrix<f32> {
    FLOAT.with(|g| g.prepack_b(NdTensorView::from_data([n, k], w).transposed()))
}

/// As [`pack_f32`] for int8 weights.
pub(super) fn pack_i8(w: &[i8], n: usize, k: usize) -> PackedBMatrix<i8> {
    INT8.with(|g| g.prepack_b(NdTensorView::from_data([n, k], w).transposed()))
}

/// `out[rows, n] = a[rows, k] · b + bias` (a bias value a column).
pub(super) fn run_f32(a: &[f32], k: usize, b: &PackedBMatrix<f32>, bias: &[f32], out: &mut [f32]) {
    product(a, k, GemmInputB::Packed(b), bias, out);
}

/// As [`run_f32`] with weights `b[n, k]` that were not packed before.
pub(crate) fn run_f32_rows(a: &[f32], k: usize, b: &[f32], bias: &[f32], out: &mut [f32]) {
    let b = NdTensorView::from_data([b.len() / k.max(1), k], b).transposed();
    product(a, k, GemmInputB::Unpacked(b), bias, out);
}

/// `out[m, n] = aᵀ · b` for `a[rows, m]` and `b[rows, n]`.
pub(crate) fn run_f32_columns(a: &[f32], m: usize, b: &[f32], n: usize, out: &mut [f32]) {
    let a = NdTensorView::from_data([a.len() / m.max(1), m], a).transposed();
    let b = NdTensorView::from_data([b.len() / n.max(1), n], b);
    let (a, b) = (GemmInputA::Unpacked(a), GemmInputB::Unpacked(b));
    FLOAT.with(|g| check(g.gemm(out, a, b, GemmOptions::default())));
}

/// `out[rows, n] = a[rows, k] · b[k, n]`.
pub(crate) fn run_f32_plain(a: &[f32], k: usize, b: &[f32], n: usize, out: &mut [f32]) {
    let a = NdTensorView::from_data([a.len() / k.max(1), k], a);
    let b = NdTensorView::from_data([b.len() / n.max(1), n], b);
    let (a, b) = (GemmInputA::Unpacked(a), GemmInputB::Unpacked(b));
    FLOAT.with(|g| check(g.gemm(out, a, b, GemmOptions::default())));
}

fn product(a: &[f32], k: usize, b: GemmInputB<f32>, bias: &[f32], out: &mut [f32]) {
    let opts = GemmOptions { bias: Some(BiasVector::Row(bias)), ..Default::default() };
    let a = NdTensorView::from_data([a.len() / k.max(1), k], a);
    FLOAT.with(|g| check(g.gemm(out, GemmInputA::Unpacked(a), b, opts)));
}

/// `out[rows, n] = a[rows, k] · b` in i32; zero points are the caller's business.
pub(super) fn run_u8(a: &[u8], k: usize, b: &PackedBMatrix<i8>, out: &mut [i32]) {
    let rows = a.len() / k.max(1);
    let a = NdTensorView::from_data([rows, k], a);
    INT8.with(|g| check(g.gemm(out, GemmInputA::Unpacked(a), GemmInputB::Packed(b), GemmOptions::default())));
}

/// Every size was fixed at compile time of the plan, so a complaint here is a bug of ours.
fn check(r: GemmResult) {
    if let Err(e) = r {
        unreachable!("a prepacked product was called with other sizes than it was packed for: {e}");
    }
}
