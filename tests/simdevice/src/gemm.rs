//! A product of matrices as the libraries carry it out: `D = act(alpha · op(A) op(B) + beta · C + bias)`, batched.
//!
//! Here: what bytes it touches, that they may be touched, and in what order. Not here: the arithmetic
//! (`gemm/arithmetic.rs`), and what a library refuses, which it does before a product is made (`blas.rs`,
//! `blaslt/rules.rs`). Invariants: every operand is checked before the first byte is written; what `beta == 0` leaves
//! unread is not checked.

mod arithmetic;
#[cfg(test)]
mod tests;

use crate::memory::{check_read, check_write};
use crate::misuse;
use crate::numbers::Kind;
use crate::stream::{Cost, enqueue};
use std::ffi::c_void;

/// Operations a second of an H100 SXM, dense (its data sheet has them with sparsity: half of those).
pub mod peak {
    pub const F32: f64 = 67e12;
    pub const F64: f64 = 67e12;
    pub const TF32: f64 = 495e12;
    pub const F16: f64 = 989e12;
    pub const I8: f64 = 1979e12;
    pub const FP8: f64 = 1979e12;
}

/// What the unit multiplies and adds in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compute {
    F16,
    F32,
    /// `f32`, its operands rounded to TF32, to `f16` or to `bf16`.
    Tf32,
    FastF16,
    FastBf16,
    F64,
    I32,
}

/// A factor, of the scale type.
#[derive(Debug, Clone, Copy)]
pub enum Scalar {
    /// Read at the call. All scale types' values are `f64`s.
    Host(f64),
    /// Read when the work is carried out.
    Device(u64, Kind),
}

impl Scalar {
    /// `at`, where `device` says that it points.
    ///
    /// # Safety
    /// A pointer to the host's memory is one to a value of `kind`.
    pub unsafe fn of(at: *const c_void, kind: Kind, device: bool) -> Scalar {
        // SAFETY: the caller's.
        if device { Scalar::Device(at as u64, kind) } else { Scalar::Host(unsafe { kind.read(at as u64) }) }
    }

    fn value(self, who: &str) -> f64 {
        match self {
            Scalar::Host(v) => v,
            Scalar::Device(at, kind) => {
                check_read(at, kind.bytes(), who);
                // SAFETY: checked.
                unsafe { kind.read(at) }
            }
        }
    }

    fn is_zero(self) -> bool {
        matches!(self, Scalar::Host(0.0))
    }
}

/// A matrix, or a batch of them.
#[derive(Debug, Clone, Copy)]
pub struct Matrix {
    pub at: u64,
    pub kind: Kind,
    pub rows: usize,
    pub cols: usize,
    /// Elements from one line to the next: from column to column, or from row to row where `row_major`.
    pub ld: usize,
    pub row_major: bool,
    /// Elements from one matrix of the batch to the next.
    pub stride: i64,
}

impl Matrix {
    /// Lines that lie one after the other, and the elements of each.
    fn lines(&self) -> (usize, usize) {
        if self.row_major { (self.rows, self.cols) } else { (self.cols, self.rows) }
    }

    fn base(&self, batch: usize) -> u64 {
        self.at.wrapping_add_signed(self.stride * batch as i64 * self.kind.bytes() as i64)
    }

    fn line(&self, batch: usize, line: usize) -> u64 {
        self.base(batch) + (line * self.ld * self.kind.bytes()) as u64
    }

    /// The bytes that it has, never those between lines.
    fn spans(&self, batch: usize) -> impl Iterator<Item = (u64, usize)> + use<> {
        let (me, (lines, len)) = (*self, self.lines());
        // Lines without a gap are one span; a line that is read again and again (a broadcast) is one as well.
        let (spans, len) = match (lines, len) {
            (0, _) | (_, 0) => (0, 0),
            _ if me.ld == len => (1, lines * len),
            _ if me.ld == 0 => (1, len),
            _ => (lines, len),
        };
        (0..spans).map(move |i| (me.line(batch, i), len * me.kind.bytes()))
    }

    fn all_spans(&self, batches: usize) -> impl Iterator<Item = (u64, usize)> + use<> {
        let me = *self;
        (0..if self.stride == 0 { batches.min(1) } else { batches }).flat_map(move |b| me.spans(b))
    }

    fn bytes(&self, batches: usize) -> u64 {
        (self.rows * self.cols * self.kind.bytes() * if self.stride == 0 { 1 } else { batches }) as u64
    }
}

/// What a matrix's values are multiplied with when they are read (or written, for `D`), as cublasLt does for 8-bit
/// floats: addresses of one `f32` each; zero for none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scales {
    pub a: u64,
    pub b: u64,
    pub c: u64,
    pub d: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Relu,
    /// By the hyperbolic tangent.
    Gelu,
}

/// What follows the product.
#[derive(Debug, Clone, Copy, Default)]
pub struct Epilogue {
    pub bias: Option<Bias>,
    pub activation: Option<Activation>,
}

/// A value for each row of `D`.
#[derive(Debug, Clone, Copy)]
pub struct Bias {
    pub at: u64,
    pub kind: Kind,
    pub stride: i64,
}

/// The part of the caller's workspace that an algorithm uses.
#[derive(Debug, Clone, Copy, Default)]
pub struct Workspace {
    pub at: u64,
    pub bytes: usize,
}

/// Whether `span` has bytes of `written`, which is sorted and does not overlap itself.
pub fn meets(written: &[(u64, usize)], (at, len): (u64, usize)) -> bool {
    let after = written.partition_point(|w| w.0 + w.1 as u64 <= at);
    written.get(after).is_some_and(|w| len > 0 && w.0 < at + len as u64)
}

/// One call's product. `op(A)` is `[m, k]`, `op(B)` `[k, n]`.
#[derive(Debug, Clone)]
pub struct Product {
    pub who: &'static str,
    pub compute: Compute,
    pub shape: [usize; 3],
    pub batch: usize,
    pub a: Matrix,
    pub transposed_a: bool,
    pub b: Matrix,
    pub transposed_b: bool,
    pub c: Matrix,
    pub d: Matrix,
    pub alpha: Scalar,
    pub beta: Scalar,
    pub scales: Scales,
    pub epilogue: Epilogue,
    pub workspace: Workspace,
}

impl Product {
    fn cost(&self) -> Cost {
        let [m, n, k] = self.shape;
        let mut bytes = self.a.bytes(self.batch) + self.b.bytes(self.batch) + self.d.bytes(self.batch);
        if !self.beta.is_zero() {
            bytes += self.c.bytes(self.batch);
        }
        let peak = match self.compute {
            _ if self.a.kind.is_fp8() => peak::FP8,
            Compute::F32 if self.a.kind.bytes() == 2 => peak::F16,
            Compute::F32 => peak::F32,
            Compute::F16 | Compute::FastF16 | Compute::FastBf16 => peak::F16,
            Compute::Tf32 => peak::TF32,
            Compute::F64 => peak::F64,
            Compute::I32 => peak::I8,
        };
        Cost { bytes, flops: 2 * (m * n * k * self.batch) as u64, peak }
    }

    /// Queues it. Returns a `CUresult`.
    pub fn queue(self, stream: usize) -> u32 {
        enqueue(stream, self.who, self.cost(), Box::new(move || self.carry_out()))
    }

    fn carry_out(&self) {
        let who = self.who;
        let [m, n, _] = self.shape;
        if m == 0 || n == 0 || self.batch == 0 {
            return;
        }
        let alpha = self.alpha.value(&format!("{who}, alpha"));
        let beta = self.beta.value(&format!("{who}, beta"));
        self.check_operands(beta != 0.0);
        let scale =
            |at, name| if at == 0 { 1.0 } else { Scalar::Device(at, Kind::F32).value(&format!("{who}, {name}")) };
        let alpha = alpha * scale(self.scales.a, "A's scale") * scale(self.scales.b, "B's scale");
        let beta = beta * scale(self.scales.c, "C's scale");
        let last = scale(self.scales.d, "D's scale");
        if self.workspace.bytes > 0 {
            check_write(self.workspace.at, self.workspace.bytes, &format!("{who}, workspace"));
            // SAFETY: checked. What an algorithm leaves in its workspace means nothing to anyone.
            unsafe { std::ptr::write_bytes(self.workspace.at as *mut u8, 0xA5, self.workspace.bytes) };
        }
        for batch in 0..self.batch {
            // SAFETY: every operand was checked.
            unsafe { arithmetic::product(self, batch, alpha, beta, last) };
        }
    }

    /// All that is read, then all that is written; and that no thread would read what another writes.
    fn check_operands(&self, with_c: bool) {
        let who = self.who;
        let mut read = vec![("A", &self.a), ("B", &self.b)];
        if with_c {
            read.push(("C", &self.c));
        }
        for (name, matrix) in read {
            self.aligned(name, matrix);
            let who = format!("{who}, {name}");
            matrix.all_spans(self.batch).for_each(|(at, len)| check_read(at, len, &who));
        }
        for (at, len) in self.bias_spans() {
            check_read(at, len, &format!("{who}, bias"));
        }
        self.aligned("D", &self.d);
        let name = format!("{who}, D");
        self.d.all_spans(self.batch).for_each(|(at, len)| check_write(at, len, &name));
        self.check_overlaps(with_c);
    }

    fn bias_spans(&self) -> impl Iterator<Item = (u64, usize)> + use<> {
        let (m, batch) = (self.shape[0], self.batch);
        self.epilogue.bias.into_iter().flat_map(move |bias| {
            let bytes = bias.kind.bytes();
            let at = move |b| bias.at.wrapping_add_signed(bias.stride * b as i64 * bytes as i64);
            (0..if bias.stride == 0 { 1 } else { batch }).map(move |b| (at(b), m * bytes))
        })
    }

    /// A load of a value that does not lie on its own size is `CUDA_ERROR_MISALIGNED_ADDRESS`.
    fn aligned(&self, name: &str, matrix: &Matrix) {
        if !matrix.at.is_multiple_of(matrix.kind.bytes() as u64) {
            misuse!("{}, {name}: {:#x} is no address of {:?}", self.who, matrix.at, matrix.kind)
        }
    }

    /// The documentation leaves open what happens where matrices of `D` overlap each other, or an operand of another
    /// place.
    fn check_overlaps(&self, with_c: bool) {
        let who = self.who;
        if self.batch > 1 && self.d.stride == 0 {
            misuse!("{who}: all {} matrices of D are one", self.batch)
        }
        let mut written: Vec<(u64, usize)> = self.d.all_spans(self.batch).collect();
        written.sort_unstable();
        if let Some(two) = written.windows(2).find(|w| w[0].0 + w[0].1 as u64 > w[1].0) {
            misuse!("{who}: matrices of D overlap at {:#x}", two[1].0)
        }
        let workspace = (self.workspace.at, self.workspace.bytes);
        let mut read: Vec<(&str, Vec<(u64, usize)>)> = vec![
            ("A", self.a.all_spans(self.batch).collect()),
            ("B", self.b.all_spans(self.batch).collect()),
            ("the bias", self.bias_spans().collect()),
        ];
        // In place is C == D, exactly.
        if with_c && (self.c.at, self.c.ld, self.c.stride) != (self.d.at, self.d.ld, self.d.stride) {
            read.push(("C", self.c.all_spans(self.batch).collect()));
        }
        for (name, spans) in &read {
            if let Some((at, _)) = spans.iter().find(|s| meets(&written, **s)) {
                misuse!("{who}: D overlaps {name} at {at:#x}")
            }
        }
        read.push(("D", written.clone()));
        let inside = |(at, len): (u64, usize)| at < workspace.0 + workspace.1 as u64 && workspace.0 < at + len as u64;
        for (name, spans) in &read {
            if let Some((at, _)) = spans.iter().find(|s| inside(**s)) {
                misuse!("{who}: the workspace overlaps {name} at {at:#x}")
            }
        }
    }
}
