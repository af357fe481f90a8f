//! The arithmetic of a product: panels of `f32` or `f64`, sums, and the end of it.
//!
//! Sums are made in blocks, so not in the order of any real device; each result is rounded once to its type (products
//! in `f16` are rounded where tensor cores would round). Not here: checks of any kind.

use super::{Activation, Compute, Matrix, Product};
use crate::numbers::{Kind, to_tf32};
use half::{bf16, f16};

/// As many products of two signed bytes add up exactly in an `f32`: 2^10 of 2^14.
const EXACT: usize = 1024;
/// `k` of one tensor-core instruction for halves: its sum is rounded where the accumulator is `f16`.
const INSTRUCTION: usize = 16;

/// An operand, ready to be read: element `(i, j)` is at `i * rows + j * cols`.
struct Panel<T> {
    at: *const T,
    rows: isize,
    cols: isize,
    /// What `at` points into where values had to be converted.
    _own: Vec<T>,
}

impl<T> Panel<T> {
    fn new(matrix: &Matrix, transposed: bool, at: *const T, ld: usize, own: Vec<T>) -> Panel<T> {
        let (along, across) = (1, ld as isize);
        let (rows, cols) = if matrix.row_major != transposed { (across, along) } else { (along, across) };
        Panel { at, rows, cols, _own: own }
    }

    /// From column `k` on.
    fn at_col(&self, k: usize) -> *const T {
        self.at.wrapping_offset(self.cols * k as isize)
    }

    /// From row `k` on.
    fn at_row(&self, k: usize) -> *const T {
        self.at.wrapping_offset(self.rows * k as isize)
    }
}

/// # Safety
/// `matrix` can be read.
unsafe fn panel(matrix: &Matrix, batch: usize, transposed: bool, compute: Compute) -> Panel<f32> {
    if matrix.kind == Kind::F32 && compute == Compute::F32 {
        return Panel::new(matrix, transposed, matrix.base(batch) as *const f32, matrix.ld, Vec::new());
    }
    let (lines, len) = matrix.lines();
    let mut own = vec![0f32; lines * len];
    for (i, line) in own.chunks_exact_mut(len.max(1)).enumerate() {
        // SAFETY: the caller's.
        unsafe { matrix.kind.read_line(matrix.line(batch, i), line) };
        if matrix.kind == Kind::F32 {
            let round = match compute {
                Compute::Tf32 => to_tf32,
                Compute::FastF16 => |v| f16::from_f32(v).to_f32(),
                Compute::FastBf16 => |v| bf16::from_f32(v).to_f32(),
                _ => |v| v,
            };
            line.iter_mut().for_each(|v| *v = round(*v));
        }
    }
    Panel::new(matrix, transposed, own.as_ptr(), len, own)
}

/// `sums[i + m j] = Σ a[i][k] b[k][j]` over `k` in `from..from + len`, added to what is there where `more`.
///
/// # Safety
/// The panels have these elements.
unsafe fn sum<T: Number>(
    s: &mut [T],
    [m, n, _]: [usize; 3],
    a: &Panel<T>,
    b: &Panel<T>,
    (from, len): (usize, usize),
    more: bool,
) {
    // SAFETY: the caller's; `s` has `m * n` elements.
    unsafe {
        gemm::gemm(
            m,
            n,
            len,
            s.as_mut_ptr(),
            m as isize,
            1,
            more,
            a.at_col(from),
            a.cols,
            a.rows,
            b.at_row(from),
            b.cols,
            b.rows,
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

trait Number: Copy + 'static {
    const ONE: Self;
}
impl Number for f32 {
    const ONE: f32 = 1.0;
}
impl Number for f64 {
    const ONE: f64 = 1.0;
}

/// Carries out `p` for one of its batch. `last` multiplies what is written.
///
/// # Safety
/// Its operands can be read, its result can be written.
pub(super) unsafe fn product(p: &Product, batch: usize, alpha: f64, beta: f64, last: f64) {
    let shape @ [m, n, k] = p.shape;
    // SAFETY: the caller's, for all of this.
    unsafe {
        if p.compute == Compute::F64 {
            let mut sums = vec![0f64; m * n];
            let of = |x: &Matrix, t| Panel::new(x, t, x.base(batch) as *const f64, x.ld, Vec::new());
            sum(&mut sums, shape, &of(&p.a, p.transposed_a), &of(&p.b, p.transposed_b), (0, k), false);
            return end_f64(p, batch, &sums, alpha, beta);
        }
        let a = panel(&p.a, batch, p.transposed_a, p.compute);
        let b = panel(&p.b, batch, p.transposed_b, p.compute);
        let mut sums = vec![0f32; m * n];
        if p.a.kind == Kind::I8 {
            let mut exact = vec![0i32; m * n];
            for from in (0..k).step_by(EXACT) {
                sum(&mut sums, shape, &a, &b, (from, EXACT.min(k - from)), false);
                exact.iter_mut().zip(&sums).for_each(|(e, s)| *e = e.wrapping_add(*s as i32));
            }
            if p.d.kind == Kind::I32 {
                return end_i32(p, batch, &exact, alpha as i32, beta as i32);
            }
            sums.iter_mut().zip(&exact).for_each(|(s, e)| *s = *e as f32);
        } else if p.compute == Compute::F16 {
            for from in (0..k).step_by(INSTRUCTION) {
                sum(&mut sums, shape, &a, &b, (from, INSTRUCTION.min(k - from)), from > 0);
                sums.iter_mut().for_each(|s| *s = f16::from_f32(*s).to_f32());
            }
        } else {
            sum(&mut sums, shape, &a, &b, (0, k), false);
        }
        end(p, batch, &sums, (alpha as f32, beta as f32, last as f32));
    }
}

/// Where element `j` of `D`'s line `i` is in the sums.
fn place(p: &Product, i: usize, j: usize) -> usize {
    let m = p.shape[0];
    if p.d.row_major { i + m * j } else { j + m * i }
}

/// # Safety
/// As [`product`].
unsafe fn end(p: &Product, batch: usize, sums: &[f32], (alpha, beta, last): (f32, f32, f32)) {
    let (lines, len) = p.d.lines();
    let (mut line, mut c) = (vec![0f32; len], vec![0f32; len]);
    let mut bias = vec![0f32; if p.epilogue.bias.is_some() { p.shape[0] } else { 0 }];
    if let Some(b) = p.epilogue.bias {
        // SAFETY: the caller's.
        unsafe {
            b.kind.read_line(b.at.wrapping_add_signed(b.stride * batch as i64 * b.kind.bytes() as i64), &mut bias)
        };
    }
    for i in 0..lines {
        for (j, v) in line.iter_mut().enumerate() {
            *v = alpha * sums[place(p, i, j)];
        }
        if beta != 0.0 {
            // SAFETY: the caller's.
            unsafe { p.c.kind.read_line(p.c.line(batch, i), &mut c) };
            line.iter_mut().zip(&c).for_each(|(v, c)| *v += beta * c);
        }
        if !bias.is_empty() {
            for (j, v) in line.iter_mut().enumerate() {
                *v += bias[if p.d.row_major { i } else { j }];
            }
        }
        match p.epilogue.activation {
            None => (),
            // NaN becomes zero, as `fmaxf` makes it.
            Some(Activation::Relu) => line.iter_mut().for_each(|v| *v = v.max(0.0)),
            Some(Activation::Gelu) => line.iter_mut().for_each(|v| *v = gelu(*v)),
        }
        if p.d.kind.is_fp8() {
            line.iter_mut().for_each(|v| *v *= last);
        }
        // SAFETY: the caller's.
        unsafe { p.d.kind.write_line(p.d.line(batch, i), &line) };
    }
}

pub(super) fn gelu(v: f32) -> f32 {
    const ROOT: f32 = 0.797_884_6; // sqrt(2 / pi)
    0.5 * v * (1.0 + (ROOT * (v + 0.044_715 * v * v * v)).tanh())
}

/// # Safety
/// As [`product`].
unsafe fn end_f64(p: &Product, batch: usize, sums: &[f64], alpha: f64, beta: f64) {
    let (lines, len) = p.d.lines();
    for i in 0..lines {
        let (c, d) = (p.c.line(batch, i) as *const f64, p.d.line(batch, i) as *mut f64);
        for j in 0..len {
            let v = alpha * sums[place(p, i, j)];
            // SAFETY: the caller's; C is read only where it counts.
            unsafe { d.add(j).write(if beta == 0.0 { v } else { v + beta * *c.add(j) }) };
        }
    }
}

/// # Safety
/// As [`product`].
unsafe fn end_i32(p: &Product, batch: usize, sums: &[i32], alpha: i32, beta: i32) {
    let (lines, len) = p.d.lines();
    for i in 0..lines {
        let (c, d) = (p.c.line(batch, i) as *const i32, p.d.line(batch, i) as *mut i32);
        for j in 0..len {
            let v = alpha.wrapping_mul(sums[place(p, i, j)]);
            // SAFETY: the caller's; C is read only where it counts.
            unsafe { d.add(j).write(if beta == 0 { v } else { v.wrapping_add(beta.wrapping_mul(*c.add(j))) }) };
        }
    }
}
