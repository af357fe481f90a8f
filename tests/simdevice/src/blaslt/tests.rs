//! cublasLt's products against plain loops, what it refuses, and its attributes.

use super::*;
use crate::numbers::{Kind, e4m3_to_f32};
use crate::testing::{ends, noise, put, take, test_memory};
use half::bf16;

const R_32F: u32 = 0;
const R_8I: u32 = 3;
const R_32I: u32 = 10;
const R_16BF: u32 = 14;
const R_E4M3: u32 = 28;
const R_E5M2: u32 = 29;

/// A product `[m, n, k]` in the form TN, tightly laid out.
#[derive(Clone, Copy)]
struct Case {
    shape: [u64; 3],
    ops: [i32; 2],
    /// Of A and B, of C and of D.
    types: [u32; 3],
    compute: u32,
    scale: u32,
    pad: i64,
    epilogue: u32,
    bias: u64,
    batch: i32,
    alignment: u32,
    room: u64,
    /// Attributes of eight bytes.
    more: &'static [(u32, u64)],
}

const BYTES: Case = Case {
    shape: [16, 5, 32],
    ops: [1, 0],
    types: [R_8I, R_32I, R_32I],
    compute: 72,
    scale: R_32I,
    pad: 0,
    epilogue: 1,
    bias: 0,
    batch: 1,
    alignment: 256,
    room: 1 << 25,
    more: &[],
};
const FLOATS: Case = Case { types: [R_32F; 3], compute: 68, scale: R_32F, ..BYTES };
const FP8: Case = Case { types: [R_E4M3, R_16BF, R_16BF], compute: 68, scale: R_32F, ..BYTES };

struct Call {
    handle: usize,
    desc: usize,
    layouts: [usize; 4],
    algo: Algo,
}

fn of<T>(v: &T) -> *const c_void {
    std::ptr::from_ref(v).cast()
}

impl Case {
    fn strides(&self) -> [u64; 3] {
        let [m, n, k] = self.shape;
        let pad = self.pad as u64;
        let ld = |rows: u64, pad| rows.wrapping_add(pad);
        let (a, b) = (
            if self.ops[0] == 1 { ld(k, pad) * m } else { ld(m, pad) * k },
            if self.ops[1] == 0 { ld(k, pad) * n } else { ld(n, pad) * k },
        );
        [a, b, ld(m, pad) * n]
    }

    /// Its descriptions, and the algorithm for them or the refusal.
    fn make(self) -> Result<Call, u32> {
        let [m, n, k] = self.shape;
        let (mut handle, mut desc, mut wish) = (0, 0, 0);
        let mut layouts = [0; 4];
        // SAFETY: as the page says: attributes have the sizes that are said.
        unsafe {
            assert_eq!(cublasLtCreate(&raw mut handle), SUCCESS);
            assert_eq!(cublasLtMatmulDescCreate(&raw mut desc, self.compute, self.scale), SUCCESS);
            let set = |a, v: *const c_void, n| assert_eq!(cublasLtMatmulDescSetAttribute(desc, a, v, n), SUCCESS);
            set(3, of(&self.ops[0]), 4);
            set(4, of(&self.ops[1]), 4);
            set(7, of(&self.epilogue), 4);
            set(8, of(&self.bias), 8);
            self.more.iter().for_each(|(a, v)| set(*a, of(v), 8));
            let (a, b) =
                (if self.ops[0] == 1 { (k, m) } else { (m, k) }, if self.ops[1] == 0 { (k, n) } else { (n, k) });
            let sizes = [a, b, (m, n), (m, n)];
            let strides = self.strides();
            for i in 0..4 {
                let ((rows, cols), code) = (sizes[i], self.types[i.saturating_sub(1)]);
                let made = cublasLtMatrixLayoutCreate(&raw mut layouts[i], code, rows, cols, rows as i64 + self.pad);
                assert_eq!(made, SUCCESS);
                assert_eq!(cublasLtMatrixLayoutSetAttribute(layouts[i], 5, of(&self.batch), 4), SUCCESS);
                assert_eq!(cublasLtMatrixLayoutSetAttribute(layouts[i], 6, of(&strides[i.min(2)]), 8), SUCCESS);
            }
            assert_eq!(cublasLtMatmulPreferenceCreate(&raw mut wish), SUCCESS);
            assert_eq!(cublasLtMatmulPreferenceSetAttribute(wish, 1, of(&self.room), 8), SUCCESS);
            for i in 5..9 {
                assert_eq!(cublasLtMatmulPreferenceSetAttribute(wish, i, of(&self.alignment), 4), SUCCESS);
            }
            let mut found = std::mem::MaybeUninit::<Found>::uninit();
            let mut count = 7;
            let [a, b, c, d] = layouts;
            let status =
                cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, d, wish, 1, found.as_mut_ptr(), &raw mut count);
            assert_eq!(cublasLtMatmulPreferenceDestroy(wish), SUCCESS);
            assert_eq!(count, i32::from(status == SUCCESS));
            if status == SUCCESS {
                Ok(Call { handle, desc, layouts, algo: found.assume_init().algo })
            } else {
                Err(status)
            }
        }
    }
}

impl Call {
    fn run<S>(&self, [alpha, beta]: [S; 2], [a, b, c, d]: [u64; 4]) -> u32 {
        self.run_in([alpha, beta], [a, b, c, d], test_memory(1 << 20), 1 << 20)
    }

    fn run_in<S>(&self, [alpha, beta]: [S; 2], [a, b, c, d]: [u64; 4], workspace: u64, bytes: usize) -> u32 {
        let [la, lb, lc, ld] = self.layouts;
        // SAFETY: as declared.
        unsafe {
            cublasLtMatmul(
                self.handle,
                self.desc,
                of(&alpha),
                a,
                la,
                b,
                lb,
                of(&beta),
                c,
                lc,
                d,
                ld,
                &raw const self.algo,
                workspace,
                bytes,
                0,
            )
        }
    }
}

fn bytes(n: usize, seed: u64) -> Vec<i8> {
    noise(n, seed).into_iter().map(|v| (v * 128.0) as i8).collect()
}

#[test]
fn a_heuristic_result_has_the_size_of_the_header() {
    assert_eq!(size_of::<Found>(), 96);
    assert_eq!(size_of::<Algo>(), 64);
}

#[test]
fn products_of_bytes_are_exact() {
    let shape @ [m, n, k] = [32usize, 7, 2064];
    let call = Case { shape: shape.map(|v| v as u64), ..BYTES }.make().expect("an algorithm");
    let (a, b, c) = (bytes(m * k, 1), bytes(n * k, 2), vec![-3i32; m * n]);
    let [da, db, dc, dd] = [put(&a), put(&b), put(&c), test_memory(4 * m * n)];
    let want = |alpha: i32, beta: i32| -> Vec<i32> {
        (0..n * m)
            .map(|at| {
                let (i, j) = (at % m, at / m);
                let sum: i32 = (0..k).map(|l| i32::from(a[l + i * k]) * i32::from(b[l + j * k])).sum();
                alpha * sum + beta * c[at]
            })
            .collect()
    };
    assert_eq!(call.run([1, 0], [da, db, dd, dd]), SUCCESS);
    assert_eq!(take::<i32>(dd, m * n), want(1, 0));
    assert_eq!(call.run([-2, 5], [da, db, dc, dd]), SUCCESS);
    assert_eq!(take::<i32>(dd, m * n), want(-2, 5));
    // To bytes, with f32 factors: rounded to nearest even, and saturated.
    let call = Case { shape: [32, 7, 2064], types: [R_8I, R_8I, R_8I], scale: R_32F, ..BYTES }.make().expect("one");
    let dd = test_memory(m * n);
    assert_eq!(call.run([0.001f32, 0.0], [da, db, dd, dd]), SUCCESS);
    let near: Vec<i8> = want(1, 0).iter().map(|v| (0.001f32 * *v as f32).round_ties_even() as i8).collect();
    assert_eq!(take::<i8>(dd, m * n), near);
}

#[test]
fn a_batch_with_padding_agrees_with_loops() {
    for ops in [[1, 0], [0, 0], [0, 1], [1, 1]] {
        let case = Case { shape: [6, 3, 5], ops, batch: 2, pad: 2, ..FLOATS };
        let [m, n, k] = [6usize, 3, 5];
        let call = case.make().expect("an algorithm");
        let [sa, sb, sc] = case.strides().map(|s| s as usize);
        let (a, b, c) = (noise(2 * sa, 1), noise(2 * sb, 2), noise(2 * sc, 3));
        let (da, db, dc) = (put(&a), put(&b), put(&c));
        assert_eq!(call.run([0.5f32, -1.0], [da, db, dc, dc]), SUCCESS);
        let got = take::<f32>(dc, 2 * sc);
        for (t, j, i) in (0..2).flat_map(|t| (0..n).flat_map(move |j| (0..m).map(move |i| (t, j, i)))) {
            let x = |l| a[t * sa + if ops[0] == 1 { l + i * (k + 2) } else { i + l * (m + 2) }];
            let y = |l| b[t * sb + if ops[1] == 0 { l + j * (k + 2) } else { j + l * (n + 2) }];
            let at = t * sc + i + j * (m + 2);
            let want = 0.5 * (0..k).map(|l| x(l) * y(l)).sum::<f32>() - c[at];
            assert!((got[at] - want).abs() < 1e-5, "{ops:?}");
        }
        assert_eq!(got[m], c[m], "padding");
    }
}

#[test]
fn epilogues_follow_the_product() {
    let (m, n, k) = (16usize, 5, 32);
    let (a, b) = (noise(m * k, 1), noise(n * k, 2));
    let bias: Vec<bf16> = noise(m, 3).into_iter().map(bf16::from_f32).collect();
    let halves = |v: &[f32]| v.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<_>>();
    let (a, b) = (halves(&a), halves(&b));
    let (da, db, dd, at) = (put(&a), put(&b), test_memory(2 * m * n), put(&bias));
    let gelu = |v: f32| 0.5 * v * (1.0 + (0.797_884_6 * (v + 0.044_715 * v.powi(3))).tanh());
    for (epilogue, with_bias) in [(1, false), (2, false), (4, true), (6, true), (32, false), (36, true)] {
        let bias_at = if with_bias { at } else { 0 };
        let call = Case { types: [R_16BF; 3], epilogue, bias: bias_at, ..FLOATS }.make().expect("an algorithm");
        assert_eq!(call.run([1f32, 0.0], [da, db, dd, dd]), SUCCESS);
        let got = take::<bf16>(dd, m * n);
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let sum: f32 = (0..k).map(|l| a[l + i * k].to_f32() * b[l + j * k].to_f32()).sum();
            let v = if with_bias { sum + bias[i].to_f32() } else { sum };
            let want = match epilogue & !4 {
                2 => v.max(0.0),
                32 => gelu(v),
                _ => v,
            };
            let got = got[i + j * m].to_f32();
            assert!((got - want).abs() <= want.abs() / 128.0 + 1e-5, "{epilogue}: {got} for {want}");
        }
    }
}

#[test]
fn eight_bit_floats_are_scaled_on_the_device() {
    let (m, n, k) = (16usize, 5, 32);
    let eighth = |n, seed: u64| noise(n, seed).into_iter().map(|v| (v * 64.0) as i8 as u8 & 0xbf).collect::<Vec<u8>>();
    let (a, b, scales) = (eighth(m * k, 4), eighth(n * k, 5), put(&[0.5f32, 4.0]));
    let (da, db, dd) = (put(&a), put(&b), test_memory(2 * m * n));
    let more: &'static [(u32, u64)] = Box::leak(Box::new([(17, scales), (18, scales + 4)]));
    let call = Case { more, ..FP8 }.make().expect("an algorithm");
    assert_eq!(call.run([1f32, 0.0], [da, db, dd, dd]), SUCCESS);
    let got = take::<bf16>(dd, m * n);
    for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
        let sum: f32 = (0..k).map(|l| e4m3_to_f32(a[l + i * k]) * e4m3_to_f32(b[l + j * k])).sum();
        let want = 2.0 * sum;
        assert!((got[i + j * m].to_f32() - want).abs() <= want.abs() / 100.0 + 1e-4);
    }
}

#[test]
fn what_a_hopper_has_no_kernel_for_is_refused() {
    assert!(BYTES.make().is_ok() && FLOATS.make().is_ok() && FP8.make().is_ok());
    assert!(Case { shape: [4, 1, 4], ..BYTES }.make().is_ok());
    assert!(Case { pad: 4, alignment: 4, ..BYTES }.make().is_ok());
    let unsupported = [
        Case { ops: [0, 0], ..BYTES },
        Case { ops: [1, 1], ..BYTES },
        Case { ops: [0, 1], ..BYTES },
        Case { shape: [18, 5, 32], ..BYTES },
        Case { shape: [16, 5, 30], ..BYTES },
        Case { pad: 2, ..BYTES },
        Case { alignment: 2, ..BYTES },
        Case { scale: R_32F, ..BYTES },
        Case { epilogue: 2, ..BYTES },
        Case { epilogue: 4, bias: 256, ..BYTES },
        Case { types: [R_8I, R_8I, R_8I], ..BYTES },
        Case { types: [R_8I, R_32I, R_8I], ..BYTES },
        Case { types: [R_8I, R_32I, R_32I], compute: 68, ..BYTES },
        Case { ops: [0, 0], ..FP8 },
        Case { shape: [8, 5, 32], ..FP8 },
        Case { shape: [16, 5, 24], ..FP8 },
        Case { alignment: 8, ..FP8 },
        Case { types: [R_E4M3, R_E4M3, R_E4M3], ..FP8 },
        Case { types: [R_E5M2, R_16BF, R_16BF], ..FP8 },
        Case { types: [R_E4M3, R_32F, R_16BF], ..FP8 },
        Case { types: [R_E4M3, R_32I, R_32I], ..FP8 },
        Case { ops: [1, 1], ..FP8 },
        Case { pad: 8, ..FP8 },
        Case { scale: R_16BF, ..FP8 },
        Case { compute: 77, ..FP8 },
        Case { types: [R_16BF, R_32F, R_16BF], ..FLOATS },
        Case { scale: 2, ..FLOATS },
        Case { shape: [0, 5, 32], ..FLOATS },
        Case { shape: [16, 5, 0], ..FLOATS },
        Case { epilogue: 160, ..FLOATS },
    ];
    for (i, case) in unsupported.into_iter().enumerate() {
        assert_eq!(case.make().err(), Some(NOT_SUPPORTED), "case {i}");
    }
    let invalid = [
        Case { pad: -1, ..FLOATS },
        Case { ops: [3, 0], ..FLOATS },
        Case { epilogue: 3, ..FLOATS },
        Case { batch: 0, ..FLOATS },
        Case { more: &[(17, 256)], ..FLOATS },
    ];
    for (i, case) in invalid.into_iter().enumerate() {
        assert_eq!(case.make().err(), Some(INVALID_VALUE), "case {i}");
    }
    assert!(Case { types: [R_E4M3, R_16BF, R_E4M3], ..FP8 }.make().is_ok());
    assert!(Case { types: [R_E4M3, R_32F, R_32F], ..FP8 }.make().is_ok());
    let has = [(8, 0), (8, 6), (8, 9), (9, 0)].map(rules::has_fp8);
    assert_eq!(has, [false, false, true, true], "by compute capability");
}

#[test]
fn a_call_that_does_not_fit_its_algorithm_is_refused() {
    let call = BYTES.make().expect("an algorithm");
    let (a, b, d) = (put(&[1i8; 1024]), put(&[1i8; 1024]), test_memory(1024));
    let (room, mib) = (test_memory((1 << 20) + 256), 1 << 20);
    assert_eq!(call.run_in([1, 0], [a, b, d, d], room, mib), SUCCESS);
    assert_eq!(take::<u8>(room + 5, 1), [0xA5], "what an algorithm leaves there means nothing");
    assert_eq!(call.run_in([1, 0], [a, b, 0, d], room, mib), SUCCESS, "C is not read");
    for (what, status) in [
        ("too little room", call.run_in([1, 0], [a, b, d, d], room, mib - 1)),
        ("no room", call.run_in([1, 0], [a, b, d, d], 0, mib)),
        ("room that is not aligned", call.run_in([1, 0], [a, b, d, d], room + 16, mib)),
        ("C is read", call.run_in([1, 1], [a, b, 0, d], room, mib)),
        ("no A", call.run_in([1, 0], [0, b, d, d], room, mib)),
        ("A not as its loads need", call.run_in([1, 0], [a + 4, b, d, d], room, mib)),
    ] {
        assert_eq!(status, INVALID_VALUE, "{what}");
    }
    let mut other = Case { types: [R_8I, R_8I, R_8I], scale: R_32F, ..BYTES }.make().expect("an algorithm");
    other.algo = call.algo;
    assert_eq!(other.run([1f32, 0.0], [a, b, d, d]), INVALID_VALUE, "an algorithm of another product");
    other.handle = 0;
    assert_eq!(other.run([1f32, 0.0], [a, b, d, d]), NOT_INITIALIZED);
    let few = Case { alignment: 4, ..BYTES }.make().expect("an algorithm");
    assert_eq!(few.run([1, 0], [a + 4, b + 4, d, d + 4]), SUCCESS, "an algorithm with small loads");
    assert_eq!(few.run([1, 0], [a + 2, b, d, d]), INVALID_VALUE);
}

#[test]
fn attributes_have_their_sizes() {
    let (mut desc, mut value, mut written) = (0, 0i64, 0usize);
    // SAFETY: room for all.
    unsafe {
        assert_eq!(cublasLtMatmulDescCreate(&raw mut desc, 68, R_32F), SUCCESS);
        let set = |a, n| cublasLtMatmulDescSetAttribute(desc, a, of(&3i64), n);
        assert_eq!((set(3, 8), set(3, 4), set(8, 4), set(8, 8)), (INVALID_VALUE, SUCCESS, INVALID_VALUE, SUCCESS));
        assert_eq!(
            (set(25, 1), set(25, 4), set(9, 4), set(1000, 4)),
            (SUCCESS, INVALID_VALUE, INVALID_VALUE, INVALID_VALUE)
        );
        assert_eq!(cublasLtMatmulDescSetAttribute(desc, 3, std::ptr::null(), 4), INVALID_VALUE);
        assert_eq!(cublasLtMatmulDescSetAttribute(0, 3, of(&1), 4), INVALID_VALUE);
        let at: *mut c_void = (&raw mut value).cast();
        assert_eq!(cublasLtMatmulDescGetAttribute(desc, 8, at, 8, &raw mut written), SUCCESS);
        assert_eq!((value, written), (3, 8));
        assert_eq!(cublasLtMatmulDescGetAttribute(desc, 26, at, 0, &raw mut written), SUCCESS);
        assert_eq!((value, written), (3, 4));
        assert_eq!(cublasLtMatmulDescGetAttribute(desc, 26, at, 8, &raw mut written), INVALID_VALUE);
        assert_eq!(cublasLtMatmulDescDestroy(desc), SUCCESS);
        assert_eq!(cublasLtMatrixLayoutCreate(&raw mut desc, 99, 1, 1, 1), INVALID_VALUE);
    }
    assert_eq!(Kind::of(R_32I), Some(Kind::I32));
}

#[test]
fn a_description_after_its_end_ends_the_run() {
    let said = ends("blaslt::tests::a_description_after_its_end_ends_the_run", || {
        let call = FLOATS.make().expect("an algorithm");
        // SAFETY: that is the test.
        unsafe { cublasLtMatrixLayoutDestroy(call.layouts[1]) };
        call.run([1f32, 0.0], [256; 4]);
    });
    assert!(said.contains("cublasLtMatmul: the cublasLtMatrixLayout_t") && said.contains("was destroyed"), "{said}");
}

#[test]
fn a_handle_of_cublas_is_one_here() {
    let mut call = FLOATS.make().expect("an algorithm");
    // SAFETY: room for one.
    assert_eq!(unsafe { blas::cublasCreate_v2(&raw mut call.handle) }, SUCCESS);
    let (a, b, d) = (put(&[1f32; 512]), put(&[1f32; 160]), test_memory(320));
    assert_eq!(call.run([1f32, 0.0], [a, b, d, d]), SUCCESS);
    assert_eq!(take::<f32>(d, 80), [32.0; 80]);
}
