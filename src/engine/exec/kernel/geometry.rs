//! What a dense step is, whichever kernel takes it: sizes, how its input is coded, what follows the product, and which
//! instruction sets may be chosen.

use super::{Par, vector};
use crate::exec::unfold::Window;
use crate::graph::{Activation, Range};
use std::sync::OnceLock;

/// How much of an input shares one int8 code.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Codes {
    /// A row of a linear, by what it holds.
    Row,
    /// An image, by what it holds.
    Image,
    /// All there will be: static int8.
    Fixed(Range),
}

/// Sizes of one dense step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    /// Input rows and columns (tokens and 1 for a linear).
    pub image: [usize; 2],
    pub channels: usize,
    pub out_image: [usize; 2],
    pub out_channels: usize,
    pub window: Window,
    pub groups: usize,
    pub codes: Codes,
}

impl Geometry {
    pub fn linear(tokens: usize, inp: usize, out: usize) -> Geometry {
        Geometry {
            image: [tokens, 1],
            channels: inp,
            out_image: [tokens, 1],
            out_channels: out,
            window: Window::ONE,
            groups: 1,
            codes: Codes::Row,
        }
    }

    /// The code of the image `x`; `None` where rows have their own.
    pub fn image_code(&self, x: &[f32], top: u8) -> Option<Code> {
        match self.codes {
            Codes::Row => None,
            Codes::Image => Some(Code::of(x, top)),
            Codes::Fixed(r) => Some(Code::covering(r.lo, r.hi, top)),
        }
    }

    /// Window elements of one group.
    pub fn k(&self) -> usize {
        self.window.kernel[0] * self.window.kernel[1] * self.channels / self.groups
    }

    /// Rows of the matrix product for one image.
    pub fn rows(&self) -> usize {
        self.out_image[0] * self.out_image[1]
    }

    /// The input is the left-hand matrix as it lies.
    pub fn in_place(&self) -> bool {
        self.window == Window::ONE && self.groups == 1
    }
}

/// What follows the product: `+ bias`, `+ residual`, activation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Epilogue {
    pub bias: Vec<f32>,
    pub act: Option<Activation>,
}

/// A kernel that does all of a step itself, with weights of its own layout.
pub(crate) trait Whole: Send + Sync {
    /// What will run, for people.
    fn kernel(&self) -> String;

    /// As `Dense::run`.
    fn run(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>);
}

/// How one row or image was quantized.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub(crate) struct Code {
    pub scale: f32,
    pub inverse: f32,
    pub zero: i32,
}

impl Code {
    /// The asymmetric code whose range `0..=top` covers `x` and zero.
    pub fn of(x: &[f32], top: u8) -> Code {
        let (lo, hi) = vector::range_with_zero(x);
        Code::covering(lo, hi, top)
    }

    /// The code for values within `lo ≤ 0 ≤ hi`.
    pub fn covering(lo: f32, hi: f32, top: u8) -> Code {
        let scale = (hi - lo) / top as f32;
        if scale < 1e-30 {
            return Code { scale: 1.0, inverse: 1.0, zero: 0 };
        }
        let inverse = 1.0 / scale;
        Code { scale, inverse, zero: (-lo * inverse).round().clamp(0.0, top as f32) as i32 }
    }
}

/// The best kernels that may be chosen; less where the processor has less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Level {
    Portable,
    /// AVX-512, with VNNI for int8; in f32 and for weights as they are stored AVX2 too.
    Vector,
    /// AMX for int8, else as `Vector`.
    Matrix,
}

impl Level {
    /// `PARING_KERNELS`: `portable`, `vector` or (by default) `matrix`.
    pub fn allowed() -> Level {
        static ALLOWED: OnceLock<Level> = OnceLock::new();
        *ALLOWED.get_or_init(|| match std::env::var("PARING_KERNELS").as_deref() {
            Ok("portable") => Level::Portable,
            Ok("vector") => Level::Vector,
            _ => Level::Matrix,
        })
    }
}
