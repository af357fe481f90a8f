//! A call of one of cuBLAS' products: what is refused, by the documentation's tables, and what is computed.
//!
//! Sections 2.7.1 (`cublas<t>gemm`), 2.7.5 (`…StridedBatched`), 2.6.4 (`gemv`), 2.8.12 (`cublasGemmEx`) and 2.8.14
//! (`cublasGemmStridedBatchedEx`). Not here: entry points.

use super::{Blas, HANDLES, INVALID_VALUE, NOT_INITIALIZED, NOT_SUPPORTED, SUCCESS, launched};
use crate::gemm::{Compute, Epilogue, Matrix, Product, Scalar, Scales, Workspace};
use crate::misuse;
use crate::numbers::{Kind, is_data_type};
use std::ffi::{c_int, c_void};

pub struct Side {
    pub at: u64,
    /// Of `cudaDataType_t`.
    pub code: u32,
    pub ld: i64,
    pub stride: i64,
}

/// The arguments as they were given.
pub struct Call {
    pub who: &'static str,
    pub ops: [u32; 2],
    pub shape: [i64; 3],
    pub batch: i64,
    pub alpha: *const c_void,
    pub beta: *const c_void,
    /// A, B and C.
    pub sides: [Side; 3],
    pub compute: u32,
    pub algo: c_int,
}

/// `CUBLAS_OP_N`, `T` and `C`; what conjugates is what transposes, for real numbers.
const OPS: std::ops::RangeInclusive<u32> = 0..=2;

/// The table of section 2.8.12, its real rows: compute type, and the types of A and B, and of C. Returns what is
/// computed in, and the scale type. 8-bit floats are cublasLt's alone.
pub fn supported(compute: u32, a: Kind, b: Kind, c: Kind) -> Option<(Compute, Kind)> {
    use Kind::*;
    if a != b {
        return None;
    }
    Some(match (compute, a, c) {
        (64 | 65, F16, F16) => (Compute::F16, F16),
        (72 | 73, I8, I32) => (Compute::I32, I32),
        (68 | 69, Bf16, Bf16 | F32) | (68 | 69, F16, F16 | F32) => (Compute::F32, F32),
        (68 | 69, F32, F32) => (Compute::F32, F32),
        (68 | 69, I8, F32) => (Compute::F32, F32),
        (74, F32, F32) => (Compute::FastF16, F32),
        (75, F32, F32) => (Compute::FastBf16, F32),
        (77, F32, F32) => (Compute::Tf32, F32),
        // Emulation by nine products of halves is as exact as `f32`; Hopper falls back on it anyway.
        (78, F32, F32) => (Compute::F32, F32),
        (70 | 71, F64, F64) => (Compute::F64, F64),
        _ => return None,
    })
}

/// Whether `cublasComputeType_t` has `code`.
pub fn is_compute_type(code: u32) -> bool {
    matches!(code, 64 | 65 | 68..=75 | 77..=79)
}

/// Whether `cublasGemmAlgo_t` has `code`.
fn is_algo(code: c_int) -> bool {
    matches!(code, -1..=23 | 99..=115)
}

impl Call {
    /// # Safety
    /// The library's contract: `alpha` and `beta` are null or point to values of the scale type.
    pub unsafe fn make(&self, handle: usize) -> u32 {
        let Some(blas) = HANDLES.get(handle, self.who) else { return NOT_INITIALIZED };
        let [m, n, k] = self.shape;
        let [a, b, c] = &self.sides;
        let (rows_a, cols_a) = if self.ops[0] == 0 { (m, k) } else { (k, m) };
        let (rows_b, cols_b) = if self.ops[1] == 0 { (k, n) } else { (n, k) };
        let wrong = m < 0
            || n < 0
            || k < 0
            || self.batch < 0
            || self.ops.iter().any(|op| !OPS.contains(op))
            || a.ld < rows_a.max(1)
            || b.ld < rows_b.max(1)
            || c.ld < m.max(1)
            || self.alpha.is_null()
            || self.beta.is_null()
            || !is_compute_type(self.compute)
            || !is_algo(self.algo)
            || self.sides.iter().any(|s| !is_data_type(s.code));
        if wrong {
            return INVALID_VALUE;
        }
        let Some((compute, scale, [ka, kb, kc])) = self.types(&blas) else { return NOT_SUPPORTED };
        // The note below the table of 2.8.12: "compute types are only supported with A, B being 4-byte aligned and
        // lda, ldb being multiples of 4". Each matrix of a batch is one A or B.
        let by_four = |s: &Side| s.at.is_multiple_of(4) && s.ld % 4 == 0 && (self.batch < 2 || s.stride % 4 == 0);
        if compute == Compute::I32 && !(by_four(a) && by_four(b)) {
            return NOT_SUPPORTED;
        }
        if m == 0 || n == 0 || self.batch == 0 {
            return SUCCESS;
        }
        let matrix = |s: &Side, kind, rows: i64, cols: i64| Matrix {
            at: s.at,
            kind,
            rows: rows as usize,
            cols: cols as usize,
            ld: s.ld as usize,
            row_major: false,
            stride: s.stride,
        };
        let c = matrix(c, kc, m, n);
        let product = Product {
            who: self.who,
            compute,
            shape: self.shape.map(|v| v as usize),
            batch: self.batch as usize,
            a: matrix(a, ka, rows_a, cols_a),
            transposed_a: self.ops[0] != 0,
            b: matrix(b, kb, rows_b, cols_b),
            transposed_b: self.ops[1] != 0,
            c,
            d: c,
            // SAFETY: the caller's.
            alpha: unsafe { Scalar::of(self.alpha, scale, blas.pointers_to_device) },
            beta: unsafe { Scalar::of(self.beta, scale, blas.pointers_to_device) },
            scales: Scales::default(),
            epilogue: Epilogue::default(),
            workspace: Workspace::default(),
        };
        launched(product.queue(blas.stream))
    }

    fn types(&self, blas: &Blas) -> Option<(Compute, Kind, [Kind; 3])> {
        let [a, b, c] = &self.sides;
        let kinds = [Kind::of(a.code)?, Kind::of(b.code)?, Kind::of(c.code)?];
        let (compute, scale) = supported(self.compute, kinds[0], kinds[1], kinds[2])?;
        // `CUBLAS_TF32_TENSOR_OP_MATH`: "acceleration of single-precision routines using TF32 tensor cores".
        let tf32 = compute == Compute::F32 && kinds[0] == Kind::F32 && self.compute == 68 && blas.tf32();
        Some((if tf32 { Compute::Tf32 } else { compute }, scale, kinds))
    }

    /// `y = alpha op(A) x + beta y`: the vectors are columns whose rows are `inc` elements apart.
    ///
    /// # Safety
    /// As [`Call::make`].
    pub unsafe fn make_vector(&self, handle: usize) -> u32 {
        let Some(blas) = HANDLES.get(handle, self.who) else { return NOT_INITIALIZED };
        let [m, n, _] = self.shape;
        let [a, x, y] = &self.sides;
        let null = self.alpha.is_null() || self.beta.is_null();
        if m < 0 || n < 0 || !OPS.contains(&self.ops[0]) || a.ld < m.max(1) || x.ld == 0 || y.ld == 0 || null {
            return INVALID_VALUE;
        }
        if x.ld < 0 || y.ld < 0 {
            misuse!("{}: increments below zero are not made of software", self.who)
        }
        let Some((compute, scale, [kind, ..])) = self.types(&blas) else { return NOT_SUPPORTED };
        let (m, n) = (m as usize, n as usize);
        let (long, short) = if self.ops[0] == 0 { (m, n) } else { (n, m) };
        let vector =
            |s: &Side, rows| Matrix { at: s.at, kind, rows, cols: 1, ld: s.ld as usize, row_major: true, stride: 0 };
        let product = Product {
            who: self.who,
            compute,
            shape: [long, 1, short],
            batch: 1,
            a: Matrix { at: a.at, kind, rows: m, cols: n, ld: a.ld as usize, row_major: false, stride: 0 },
            transposed_a: self.ops[0] != 0,
            b: vector(x, short),
            transposed_b: false,
            c: vector(y, long),
            d: vector(y, long),
            // SAFETY: the caller's.
            alpha: unsafe { Scalar::of(self.alpha, scale, blas.pointers_to_device) },
            beta: unsafe { Scalar::of(self.beta, scale, blas.pointers_to_device) },
            scales: Scales::default(),
            epilogue: Epilogue::default(),
            workspace: Workspace::default(),
        };
        launched(product.queue(blas.stream))
    }
}
