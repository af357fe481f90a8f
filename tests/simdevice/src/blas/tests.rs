//! cuBLAS' products against plain loops, and its table of refusals.

use super::*;
use crate::testing::{ends, noise, put, take};
use half::{bf16, f16};

fn handle() -> usize {
    let mut handle = 0;
    // SAFETY: room for one.
    assert_eq!(unsafe { cublasCreate_v2(&raw mut handle) }, SUCCESS);
    handle
}

/// A type under test: its code, how it is made from `f32`, and back.
trait Value: Copy + PartialEq + std::fmt::Debug {
    const CODE: u32;
    fn near(v: f32) -> Self;
    fn value(self) -> f64;
}
macro_rules! value {
    ($t:ty, $code:expr, $from:expr, $to:expr) => {
        impl Value for $t {
            const CODE: u32 = $code;
            fn near(v: f32) -> $t {
                $from(v)
            }
            fn value(self) -> f64 {
                $to(self)
            }
        }
    };
}
value!(f32, 0, |v| v, f64::from);
value!(f64, 1, f64::from, |v| v);
value!(f16, 2, f16::from_f32, f16::to_f64);
value!(bf16, 14, bf16::from_f32, bf16::to_f64);
value!(i8, 3, |v| (v * 128.0) as i8, f64::from);
value!(i32, 10, |v: f32| (v * 1000.0).round() as i32, f64::from);

#[derive(Clone, Copy)]
struct Case {
    ops: [u32; 2],
    shape: [usize; 3],
    /// What each leading dimension has beyond its rows.
    pad: [usize; 3],
    batch: usize,
    alpha: f32,
    beta: f32,
}

/// Runs `case` through `cublasGemmStridedBatchedEx` and compares with a loop; `within` of what the terms add up to.
fn agrees<T: Value, C: Value, S: Value>(case: Case, compute: u32, within: f64) {
    let Case { ops, shape: [m, n, k], pad, batch, alpha, beta } = case;
    let (ra, ca) = if ops[0] == 0 { (m, k) } else { (k, m) };
    let (rb, cb) = if ops[1] == 0 { (k, n) } else { (n, k) };
    let (lda, ldb, ldc) = (ra.max(1) + pad[0], rb.max(1) + pad[1], m.max(1) + pad[2]);
    let (sa, sb, sc) = (lda * ca, ldb * cb, ldc * n);
    let make = |n, seed| noise(n, seed).into_iter().map(T::near).collect::<Vec<T>>();
    let (a, b) = (make(sa * batch, 3), make(sb * batch, 5));
    let c: Vec<C> = noise(sc * batch, 7).into_iter().map(C::near).collect();
    let (da, db, dc) = (put(&a), put(&b), put(&c));
    let (alpha, beta) = (S::near(alpha), S::near(beta));
    let int = |v: usize| v as c_int;
    let long = |v: usize| v as i64;
    // SAFETY: host scalars and device operands, as declared.
    let status = unsafe {
        cublasGemmStridedBatchedEx(
            handle(),
            ops[0],
            ops[1],
            int(m),
            int(n),
            int(k),
            (&raw const alpha).cast(),
            da,
            T::CODE,
            int(lda),
            long(sa),
            db,
            T::CODE,
            int(ldb),
            long(sb),
            (&raw const beta).cast(),
            dc,
            C::CODE,
            int(ldc),
            long(sc),
            int(batch),
            compute,
            99,
        )
    };
    assert_eq!(status, SUCCESS);
    let got: Vec<C> = take(dc, c.len());
    for t in 0..batch {
        for j in 0..n {
            for i in 0..ldc {
                let at = t * sc + i + j * ldc;
                if i >= m {
                    assert_eq!(got[at], c[at], "padding was written");
                    continue;
                }
                let term = |l: usize| {
                    let x = if ops[0] == 0 { a[t * sa + i + l * lda] } else { a[t * sa + l + i * lda] };
                    let y = if ops[1] == 0 { b[t * sb + l + j * ldb] } else { b[t * sb + j + l * ldb] };
                    x.value() * y.value()
                };
                let (sum, size) = (0..k).fold((0.0, 0.0), |(s, z), l| (s + term(l), z + term(l).abs()));
                let old = if beta.value() == 0.0 { 0.0 } else { beta.value() * c[at].value() };
                let (want, size) = (alpha.value() * sum + old, alpha.value().abs() * size + old.abs());
                let error = (got[at].value() - want).abs();
                assert!(error <= within * size + 1e-30, "{i},{j}: {} for {want} of {:?}", got[at].value(), case.shape);
            }
        }
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ops in [[0, 0], [0, 1], [1, 0], [1, 1], [2, 2]] {
        for (shape, pad, batch) in [
            ([1, 1, 1], [0, 0, 0], 1),
            ([5, 7, 3], [0, 0, 0], 1),
            ([33, 17, 65], [3, 1, 2], 1),
            ([4, 9, 130], [0, 5, 0], 3),
            ([7, 2, 0], [1, 0, 1], 2),
        ] {
            cases.push(Case { ops, shape, pad, batch, alpha: 1.0, beta: 0.0 });
            cases.push(Case { ops, shape, pad, batch, alpha: -0.5, beta: 2.0 });
        }
    }
    cases
}

#[test]
fn products_of_every_type_agree_with_loops() {
    for case in cases() {
        agrees::<f32, f32, f32>(case, 68, 1e-6);
        agrees::<f32, f32, f32>(case, 77, 2e-3);
        agrees::<f32, f32, f32>(case, 74, 2e-3);
        agrees::<f32, f32, f32>(case, 75, 1e-2);
        agrees::<f64, f64, f64>(case, 70, 1e-14);
        agrees::<f16, f16, f32>(case, 68, 1e-3);
        agrees::<f16, f32, f32>(case, 68, 1e-6);
        agrees::<f16, f16, f16>(case, 64, 1e-2);
        agrees::<bf16, bf16, f32>(case, 68, 8e-3);
        agrees::<bf16, f32, f32>(case, 68, 1e-6);
    }
}

#[test]
fn products_of_bytes_are_exact() {
    for ops in [[0, 0], [1, 0], [0, 1]] {
        for (shape, k) in [([4, 8, 12], 12), ([16, 4, 4096], 4096)] {
            // Scales are whole numbers here: 1000 times what is said.
            let case = Case { ops, shape, pad: [4, 4, 0], batch: 2, alpha: 0.001, beta: 0.0 };
            agrees::<i8, i32, i32>(case, 72, 0.0);
            agrees::<i8, i32, i32>(
                Case { beta: 0.002, shape: [8, 3, k], pad: [0, 1, 0], ops: [1, 1], ..case },
                72,
                0.0,
            );
        }
    }
}

/// One call of `cublasGemmEx` with device memory that is large enough for all of it.
#[derive(Clone, Copy)]
struct Ex {
    ops: [u32; 2],
    mnk: [c_int; 3],
    ld: [c_int; 3],
    types: [u32; 3],
    compute: u32,
    algo: c_int,
    shift: u64,
}

fn ex(e: Ex) -> u32 {
    let at = put(&vec![0u8; 4096]);
    let (one, zero) = (1f64, 0f64);
    // SAFETY: 64-bit zeros and ones are scalars of every type that is no larger.
    unsafe {
        cublasGemmEx(
            handle(),
            e.ops[0],
            e.ops[1],
            e.mnk[0],
            e.mnk[1],
            e.mnk[2],
            (&raw const one).cast(),
            at + e.shift,
            e.types[0],
            e.ld[0],
            at + 1024,
            e.types[1],
            e.ld[1],
            (&raw const zero).cast(),
            at + 2048,
            e.types[2],
            e.ld[2],
            e.compute,
            e.algo,
        )
    }
}

#[test]
fn what_the_documentation_refuses_is_refused() {
    let good = Ex { ops: [0, 0], mnk: [4, 8, 12], ld: [4, 12, 4], types: [0, 0, 0], compute: 68, algo: -1, shift: 0 };
    assert_eq!(ex(good), SUCCESS);
    let invalid = [
        Ex { mnk: [-1, 8, 12], ..good },
        Ex { mnk: [4, -8, 12], ..good },
        Ex { mnk: [4, 8, -12], ..good },
        Ex { ld: [3, 12, 4], ..good },
        Ex { ld: [4, 11, 4], ..good },
        Ex { ld: [4, 12, 3], ..good },
        Ex { ops: [1, 0], ld: [11, 12, 4], ..good },
        Ex { ops: [0, 1], ld: [4, 7, 4], ..good },
        Ex { ops: [3, 0], ..good },
        Ex { types: [0, 0, 99], ..good },
        Ex { compute: 66, ..good },
        Ex { compute: 0, ..good },
        Ex { algo: 24, ..good },
        Ex { mnk: [0, 8, 12], ld: [0, 12, 4], ..good },
    ];
    for (i, e) in invalid.into_iter().enumerate() {
        assert_eq!(ex(e), INVALID_VALUE, "case {i}");
    }
    let bytes = Ex { types: [3, 3, 10], compute: 72, ..good };
    assert_eq!(ex(bytes), SUCCESS);
    assert_eq!(ex(Ex { types: [3, 3, 0], compute: 68, ld: [5, 13, 4], shift: 1, ..good }), SUCCESS);
    let unsupported = [
        Ex { types: [2, 2, 2], compute: 70, ..good },
        Ex { types: [2, 14, 2], ..good },
        Ex { types: [2, 2, 14], ..good },
        Ex { types: [0, 0, 2], ..good },
        Ex { types: [2, 2, 2], compute: 74, ..good },
        Ex { types: [14, 14, 14], compute: 64, ..good },
        Ex { types: [28, 28, 14], ..good },
        Ex { types: [3, 3, 3], compute: 72, ..good },
        Ex { types: [3, 3, 10], ..good },
        Ex { ld: [6, 12, 4], ..bytes },
        Ex { ld: [4, 13, 4], ..bytes },
        Ex { shift: 2, ..bytes },
    ];
    for (i, e) in unsupported.into_iter().enumerate() {
        assert_eq!(ex(e), NOT_SUPPORTED, "case {i}");
    }
    assert_eq!(ex(Ex { mnk: [0, 8, 12], ..good }), SUCCESS, "nothing to do");
}

#[test]
fn null_pointers_are_told_by_status() {
    let (one, at) = (1f32, put(&[0f32; 16]));
    let one: *const c_void = (&raw const one).cast();
    let call = |h, alpha, beta| unsafe { cublasSgemm_v2(h, 0, 0, 2, 2, 2, alpha, at, 2, at + 16, 2, beta, at + 32, 2) };
    let h = handle();
    assert_eq!(call(h, one, one), SUCCESS);
    assert_eq!(call(0, one, one), NOT_INITIALIZED);
    assert_eq!(call(h, std::ptr::null(), one), INVALID_VALUE);
    assert_eq!(call(h, one, std::ptr::null()), INVALID_VALUE);
    // SAFETY: a handle that lives, and none.
    unsafe {
        assert_eq!(cublasSetWorkspace_v2(h, 256, 1 << 20), SUCCESS);
        assert_eq!(cublasSetWorkspace_v2(h, 128, 1 << 20), INVALID_VALUE);
        assert_eq!(cublasSetMathMode(h, 17), SUCCESS);
        assert_eq!(cublasSetMathMode(h, 5), INVALID_VALUE);
        assert_eq!(cublasSetPointerMode_v2(h, 2), INVALID_VALUE);
        assert_eq!(cublasDestroy_v2(0), NOT_INITIALIZED);
        assert_eq!(cublasDestroy_v2(h), SUCCESS);
    }
}

#[test]
fn scalars_on_the_device_and_tf32_by_mode() {
    let (a, b) = (put(&[1.0 + 2f32.powi(-12)]), put(&[1f32]));
    let (c, scalars) = (put(&[5f32]), put(&[3f32, 2f32]));
    let h = handle();
    // SAFETY: as declared.
    unsafe {
        assert_eq!(cublasSetPointerMode_v2(h, 1), SUCCESS);
        assert_eq!(cublasSetMathMode(h, TF32_TENSOR_OP_MATH), SUCCESS);
        let (alpha, beta) = (scalars as *const c_void, (scalars + 4) as *const c_void);
        assert_eq!(cublasSgemm_v2(h, 0, 0, 1, 1, 1, alpha, a, 1, b, 1, beta, c, 1), SUCCESS);
    }
    assert_eq!(take::<f32>(c, 1), [13.0]);
}

#[test]
fn vectors_are_matrices() {
    let a = put(&[1f32, 2.0, 9.0, 3.0, 4.0, 9.0, 5.0, 6.0, 9.0]);
    let (x, y) = (put(&[1f32, 9.0, 10.0, 9.0, 100.0]), put(&[7f32, 0.5, 0.25]));
    let (one, zero) = (1f32, 0f32);
    let scalar = |v: &f32| std::ptr::from_ref(v).cast::<c_void>();
    // SAFETY: a 2 x 3 matrix with a leading dimension of 3, and vectors with gaps.
    unsafe {
        let h = handle();
        assert_eq!(cublasSgemv_v2(h, 0, 2, 3, scalar(&one), a, 3, x, 2, scalar(&zero), y, 2), SUCCESS);
        assert_eq!(take::<f32>(y, 3), [531.0, 0.5, 642.0]);
        assert_eq!(cublasSgemv_v2(h, 1, 2, 3, scalar(&one), a, 3, x, 2, scalar(&one), y, 1), SUCCESS);
        assert_eq!(take::<f32>(y, 3), [531.0 + 21.0, 0.5 + 43.0, 642.0 + 65.0]);
        assert_eq!(cublasSgemv_v2(h, 0, 2, 3, scalar(&one), a, 1, x, 1, scalar(&one), y, 1), INVALID_VALUE);
        assert_eq!(cublasSgemv_v2(h, 0, 2, 3, scalar(&one), a, 3, x, 0, scalar(&one), y, 1), INVALID_VALUE);
    }
}

#[test]
fn a_handle_after_its_end_ends_the_run() {
    let said = ends("blas::tests::a_handle_after_its_end_ends_the_run", || {
        let h = handle();
        // SAFETY: that is the test.
        unsafe {
            cublasDestroy_v2(h);
            cublasSetStream_v2(h, 0);
        }
    });
    assert!(said.contains("cublasSetStream: the cublasHandle_t") && said.contains("was destroyed"), "{said}");
}

#[test]
fn products_are_fast_enough() {
    let n = 512usize;
    let (a, b, c) = (put(&noise(n * n, 1)), put(&noise(n * n, 2)), put(&noise(n * n, 3)));
    let (one, zero) = (1f32, 0f32);
    let h = handle();
    let best = (0..5)
        .map(|_| {
            let since = std::time::Instant::now();
            let (n, one, zero) = (n as c_int, (&raw const one).cast(), (&raw const zero).cast());
            // SAFETY: as declared.
            unsafe { cublasSgemm_v2(h, 1, 0, n, n, n, one, a, n, b, n, zero, c, n) };
            take::<f32>(c, 1);
            since.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    let rate = 2.0 * (n * n * n) as f64 / best;
    eprintln!("{:.1} GFLOP/s", rate / 1e9);
    // A machine that others use as well: a tenth of what one core makes alone.
    assert!(rate > 2e9, "{rate}");
}
