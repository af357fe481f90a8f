//! What cublasLt refuses on a Hopper, and the product that a call means.
//!
//! "The page" in comments is section 3.4.17, `cublasLtMatmul()`, of the cuBLAS 13.0 documentation: its tables of
//! types, its requirements for IMMA (int8) and for FP8 kernels. Not here: attributes' storage, entry points.

use super::{Desc, Layout, Preference, desc, layout, not_made, preference};
use crate::blas::{INVALID_VALUE, NOT_SUPPORTED, supported};
use crate::config::config;
use crate::gemm::{Activation, Bias, Compute, Epilogue, Matrix, Product, Scalar, Scales, Workspace};
use crate::numbers::Kind;
use crate::stream::current;
use std::ffi::c_void;

pub const FILL_MODE_FULL: i64 = 2;
pub const EPILOGUE_DEFAULT: i64 = 1;

/// `CUBLASLT_ORDER_COL` and `ROW`. The others are for IMMA kernels "on Ampere or Turing (but not Hopper)" (the page).
const ORDER_COL: i64 = 0;
const ORDER_ROW: i64 = 1;
/// What algorithms use of the workspace that they are allowed.
const WORKSPACE: usize = 1 << 20;
/// "Must be 256B aligned (i.e. lowest 8 bits of address must be 0)" (the page, of the workspace).
const WORKSPACE_ALIGNMENT: u64 = 256;
/// What tensor cores' fastest kernels load at once.
const VECTOR: u64 = 16;

/// `cublasLtMatmulAlgo_t`: a mark, what it was chosen for, the alignment that its loads need, and the workspace.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Algo([u64; 8]);

const MARK: u64 = 0x7369_6d61_6c67_6f31;

impl Algo {
    pub fn workspace(&self) -> usize {
        self.0[3] as usize
    }
}

/// Whether tensor cores of this compute capability multiply 8-bit floats: from Ada's on.
pub fn has_fp8(capability: (i32, i32)) -> bool {
    capability >= (8, 9)
}

/// A call's descriptions.
pub struct Given {
    pub desc: Desc,
    pub a: Layout,
    pub b: Layout,
    pub c: Layout,
    pub d: Layout,
}

/// What they amount to.
struct Plan {
    compute: Compute,
    scale: Kind,
    /// Of A, B, C and D.
    kinds: [Kind; 4],
    shape: [usize; 3],
    batch: usize,
    epilogue: (Option<Activation>, Option<Kind>),
    /// Bytes that every operand must lie on.
    least: u64,
}

impl Given {
    fn layouts(&self) -> [&Layout; 4] {
        [&self.a, &self.b, &self.c, &self.d]
    }

    fn plan(&self) -> Result<Plan, u32> {
        let d = &self.desc;
        let ops = [d[desc::TRANSA], d[desc::TRANSB]];
        if ops.iter().chain([&d[desc::TRANSC]]).any(|op| !(0..=2).contains(op)) {
            return Err(INVALID_VALUE);
        }
        let shape @ [m, n, k] = self.shape(ops)?;
        let batch = self.batch()?;
        // 3.3.9: "Currently only CUBLAS_OP_N is supported" of C; the fill mode "is not supported on Hopper".
        if d[desc::TRANSC] != 0 || d[desc::FILL_MODE] != FILL_MODE_FULL {
            return Err(NOT_SUPPORTED);
        }
        let orders = self.layouts().map(|l| l[layout::ORDER]);
        if orders.iter().any(|o| ![ORDER_COL, ORDER_ROW].contains(o)) || orders[2] != orders[3] {
            return Err(NOT_SUPPORTED);
        }
        if self.layouts().iter().any(|l| l[layout::PLANE_OFFSET] != 0 || l[layout::BATCH_MODE] != 0) {
            return Err(not_made("a planar complex or grouped layout"));
        }
        // No documentation says so, but there is no kernel for a product of nothing.
        if m == 0 || n == 0 || k == 0 {
            return Err(NOT_SUPPORTED);
        }
        let (compute, scale, kinds) = self.types()?;
        let tn = ops[0] != 0 && ops[1] == 0 && orders.iter().all(|o| *o == ORDER_COL);
        let least = if compute == Compute::I32 {
            self.imma(tn, shape)?
        } else if kinds[0].is_fp8() {
            self.fp8(tn, shape)?
        } else {
            kinds.iter().map(|k| k.bytes() as u64).max().unwrap_or(1)
        };
        self.scale_pointers(&kinds)?;
        let epilogue = self.epilogue(compute, &kinds, orders[3])?;
        Ok(Plan { compute, scale, kinds, shape, batch, epilogue, least })
    }

    /// The page: "in conflict or in an impossible configuration".
    fn shape(&self, ops: [i64; 2]) -> Result<[usize; 3], u32> {
        let size = |l: &Layout| (l[layout::ROWS], l[layout::COLS]);
        let turned = |(r, c), op| if op == 0 { (r, c) } else { (c, r) };
        let ((m, k), (kb, n)) = (turned(size(&self.a), ops[0]), turned(size(&self.b), ops[1]));
        if k != kb || size(&self.c) != (m, n) || size(&self.d) != (m, n) {
            return Err(INVALID_VALUE);
        }
        // "Normally only values that can be expressed as int32_t are supported" (3.3.19).
        if [m, n, k].iter().any(|v| !(0..=i64::from(i32::MAX)).contains(v)) {
            return Err(INVALID_VALUE);
        }
        for (i, l) in self.layouts().into_iter().enumerate() {
            let line = if l[layout::ORDER] == ORDER_ROW { l[layout::COLS] } else { l[layout::ROWS] };
            // "The leading dimension of C can be 0 to achieve row or column broadcast" (the page).
            let broadcast = i == 2 && l[layout::LD] == 0;
            if l[layout::LD] < line && !broadcast {
                return Err(INVALID_VALUE);
            }
        }
        Ok([m, n, k].map(|v| v as usize))
    }

    fn batch(&self) -> Result<usize, u32> {
        let counts = self.layouts().map(|l| l[layout::BATCH_COUNT]);
        if counts[0] < 1 || counts.iter().any(|c| *c != counts[0]) {
            Err(INVALID_VALUE)
        } else {
            Ok(counts[0] as usize)
        }
    }

    /// The tables of the page. `C` and `D` "must have the same data type", but for 8-bit floats.
    fn types(&self) -> Result<(Compute, Kind, [Kind; 4]), u32> {
        let code = |i: usize| self.desc[i] as u32;
        let [a, b, c, d] = self.layouts().map(|l| Kind::of(l[layout::TYPE] as u32));
        let (Some(a), Some(b), Some(c), Some(d)) = (a, b, c, d) else { return Err(NOT_SUPPORTED) };
        let kinds = [a, b, c, d];
        let given_scale = Kind::of(code(desc::SCALE_TYPE)).ok_or(NOT_SUPPORTED)?;
        let compute = code(desc::COMPUTE_TYPE);
        let found = match (compute, a, b) {
            (68, Kind::E4m3, Kind::E4m3) | (68, Kind::E4m3, Kind::E5m2) | (68, Kind::E5m2, Kind::E4m3) => {
                let halves =
                    [Kind::Bf16, Kind::F16].contains(&c) && (d == c || d == Kind::E4m3 || (d == Kind::E5m2 && a != b));
                (halves || (c == Kind::F32 && d == Kind::F32)).then_some((Compute::F32, Kind::F32))
            }
            (72 | 73, Kind::I8, Kind::I8) if c == Kind::I8 => Some((Compute::I32, Kind::F32)),
            _ => supported(compute, a, b, c),
        };
        let (compute, scale) = found.ok_or(NOT_SUPPORTED)?;
        if scale != given_scale || (c != d && !a.is_fp8()) {
            return Err(NOT_SUPPORTED);
        }
        Ok((compute, scale, kinds))
    }

    /// The page, IMMA kernels with a regular data ordering: "All matrix pointers must be 4-byte aligned. Leading
    /// dimensions of matrices A, B, C must be multiples of 4. Only the "TN" format is supported. Dimensions m and k
    /// must be multiples of 4. Pointer mode can be HOST, DEVICE or ALPHA_DEVICE_VECTOR_BETA_HOST." Its table:
    /// "Epilogue is not supported."
    fn imma(&self, tn: bool, [m, _, k]: [usize; 3]) -> Result<u64, u32> {
        let by_four = self.layouts().iter().all(|l| l[layout::LD] % 4 == 0 && l[layout::STRIDED_BATCH_OFFSET] % 4 == 0);
        if tn && by_four && m % 4 == 0 && k % 4 == 0 { Ok(4) } else { Err(NOT_SUPPORTED) }
    }

    /// The page, FP8 kernels: "All matrix dimensions must meet the optimal requirements listed in Tensor Core Usage
    /// (i.e. pointers and matrix dimension must support 16-byte alignment). A must be transposed and B non-transposed
    /// on Hopper. The compute type must be 32F. The scale type must be CUDA_R_32F." As k lies along A and B, and m
    /// along C: multiples of 16 elements of 8 bits; what is wider then fits as well. (2.1.11 would take an m of 8 for
    /// halves; no caller should rely on it.)
    fn fp8(&self, tn: bool, [m, _, k]: [usize; 3]) -> Result<u64, u32> {
        let vectors = |l: &Layout| {
            let bytes = Kind::of(l[layout::TYPE] as u32).map_or(1, Kind::bytes) as i64;
            l[layout::LD] * bytes % VECTOR as i64 == 0 && l[layout::STRIDED_BATCH_OFFSET] * bytes % VECTOR as i64 == 0
        };
        let fits = m % 16 == 0 && k % 16 == 0 && self.layouts().into_iter().all(vectors);
        let has = current().and_then(|device| config().devices.get(device)).is_none_or(|m| has_fp8(m.capability));
        if tn && fits && has { Ok(VECTOR) } else { Err(NOT_SUPPORTED) }
    }

    /// 3.3.9 of each: "If set for an unsupported matrix data, scale, and compute type combination, calling
    /// `cublasLtMatmul()` will return `CUBLAS_INVALID_VALUE`".
    fn scale_pointers(&self, kinds: &[Kind; 4]) -> Result<(), u32> {
        let d = &self.desc;
        let pointers =
            [desc::A_SCALE_POINTER, desc::B_SCALE_POINTER, desc::C_SCALE_POINTER, desc::D_SCALE_POINTER].map(|i| d[i]);
        if pointers.iter().zip(kinds).any(|(at, kind)| *at != 0 && !kind.is_fp8()) {
            return Err(INVALID_VALUE);
        }
        let modes = d[desc::SCALE_MODES].iter().any(|m| *m != 0);
        if modes || [desc::AMAX_D_POINTER, desc::AUX_AMAX_POINTER, desc::D_OUT_SCALE_POINTER].iter().any(|i| d[*i] != 0)
        {
            return Err(not_made("a scaling mode other than one scalar, or a greatest absolute value"));
        }
        Ok(())
    }

    /// The activation, and the type of a bias.
    fn epilogue(
        &self,
        compute: Compute,
        kinds: &[Kind; 4],
        order: i64,
    ) -> Result<(Option<Activation>, Option<Kind>), u32> {
        let (activation, bias) = match self.desc[desc::EPILOGUE] {
            EPILOGUE_DEFAULT => (None, false),
            2 => (Some(Activation::Relu), false),
            4 => (None, true),
            6 => (Some(Activation::Relu), true),
            32 => (Some(Activation::Gelu), false),
            36 => (Some(Activation::Gelu), true),
            128..=1023 => return Err(not_made("an epilogue of training")),
            _ => return Err(INVALID_VALUE),
        };
        let bytes = kinds[0] == Kind::I8;
        if (activation.is_some() || bias) && (compute == Compute::I32 || bytes) {
            return Err(NOT_SUPPORTED);
        }
        // Note 6 of the page.
        if activation.is_some() && bias && order == ORDER_ROW {
            return Err(NOT_SUPPORTED);
        }
        if (activation.is_some() || bias) && compute == Compute::F64 {
            return Err(not_made("an epilogue of f64"));
        }
        // "The same type as the elements of the output matrix", but for 8-bit floats: as C, and bf16 for f32 (the
        // page's tables).
        let kind = match kinds {
            [Kind::E4m3 | Kind::E5m2, _, Kind::F32, _] => Kind::Bf16,
            [_, _, c, _] => *c,
        };
        let asked = self.desc[desc::BIAS_DATA_TYPE];
        if bias && asked != -1 && Kind::of(asked as u32) != Some(kind) {
            return Err(NOT_SUPPORTED);
        }
        Ok((activation, bias.then_some(kind)))
    }

    /// What an algorithm is bound to: not the sizes.
    fn key(&self) -> u64 {
        let d = &self.desc;
        let parts = [d[desc::COMPUTE_TYPE], d[desc::SCALE_TYPE], d[desc::TRANSA], d[desc::TRANSB], d[desc::EPILOGUE]];
        let types = self.layouts().into_iter().flat_map(|l| [l[layout::TYPE], l[layout::ORDER]]);
        parts.into_iter().chain(types).fold(0, |key: u64, v| key.wrapping_mul(0x100_0000_01B3) ^ v as u64)
    }

    /// The one algorithm that there is for it.
    pub fn algorithm(&self, wish: &Preference) -> Result<Algo, u32> {
        let plan = self.plan()?;
        // "Selecting a smaller value will exclude algorithms that can not work with matrix A, which is not as
        // strictly aligned as the algorithms need. Default is 256 bytes" (3.3.13): what nobody says is taken for
        // aligned, and fast loads are chosen.
        let aligned = wish[preference::MIN_ALIGNMENT].iter().copied().min().unwrap_or(256) as u64;
        if aligned < plan.least {
            return Err(NOT_SUPPORTED);
        }
        let lines =
            self.layouts().iter().zip(plan.kinds).all(|(l, k)| l[layout::LD] * k.bytes() as i64 % VECTOR as i64 == 0);
        let needs = if lines { VECTOR.min(aligned) } else { plan.least };
        let room = wish[preference::MAX_WORKSPACE_BYTES] as u64;
        let workspace = room.min(WORKSPACE as u64) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
        Ok(Algo([MARK, self.key(), needs, workspace, 0, 0, 0, 0]))
    }

    /// The product of a call.
    ///
    /// # Safety
    /// Host scalars are of the scale type.
    pub unsafe fn product(
        &self,
        [alpha, beta]: [*const c_void; 2],
        [a, b, c, d]: [u64; 4],
        algo: Option<Algo>,
        (workspace, bytes): (u64, usize),
    ) -> Result<Product, u32> {
        if alpha.is_null() || beta.is_null() || a == 0 || b == 0 || d == 0 {
            return Err(INVALID_VALUE);
        }
        let plan = self.plan()?;
        // "When NULL, an implicit heuristics query with default search preferences will be performed" (the page).
        let algo = algo.unwrap_or(Algo([MARK, self.key(), plan.least, 0, 0, 0, 0, 0]));
        let [mark, key, needs, ..] = algo.0;
        if mark != MARK || key != self.key() {
            return Err(INVALID_VALUE);
        }
        if bytes > 0 && !workspace.is_multiple_of(WORKSPACE_ALIGNMENT) {
            return Err(INVALID_VALUE);
        }
        // "For example, when workspaceSizeInBytes is less than workspace required by the configured algo" (the page).
        if bytes < algo.workspace() || (algo.workspace() > 0 && workspace == 0) {
            return Err(INVALID_VALUE);
        }
        let device = match self.desc[desc::POINTER_MODE] {
            0 => false,
            1 => true,
            2..=4 => return Err(not_made("a vector of factors")),
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller's.
        let (alpha, beta) = unsafe { (Scalar::of(alpha, plan.scale, device), Scalar::of(beta, plan.scale, device)) };
        let no_c = matches!(beta, Scalar::Host(0.0));
        if c == 0 && !no_c {
            return Err(INVALID_VALUE);
        }
        if [a, b, d].iter().any(|at| !at.is_multiple_of(needs)) || (!no_c && !c.is_multiple_of(needs)) {
            // An algorithm cannot work with what is not as strictly aligned as it needs: an impossible configuration.
            return Err(INVALID_VALUE);
        }
        let (activation, bias) = plan.epilogue;
        let at = |i: usize| self.desc[i] as u64;
        let bias =
            bias.map(|kind| Bias { at: at(desc::BIAS_POINTER), kind, stride: self.desc[desc::BIAS_BATCH_STRIDE] });
        if bias.is_some_and(|b| b.at == 0) {
            return Err(INVALID_VALUE);
        }
        let matrix = |at, l: &Layout, kind| Matrix {
            at,
            kind,
            rows: l[layout::ROWS] as usize,
            cols: l[layout::COLS] as usize,
            ld: l[layout::LD] as usize,
            row_major: l[layout::ORDER] == ORDER_ROW,
            stride: l[layout::STRIDED_BATCH_OFFSET],
        };
        let [ka, kb, kc, kd] = plan.kinds;
        Ok(Product {
            who: "cublasLtMatmul",
            compute: plan.compute,
            shape: plan.shape,
            batch: plan.batch,
            a: matrix(a, &self.a, ka),
            transposed_a: self.desc[desc::TRANSA] != 0,
            b: matrix(b, &self.b, kb),
            transposed_b: self.desc[desc::TRANSB] != 0,
            c: matrix(c, &self.c, kc),
            d: matrix(d, &self.d, kd),
            alpha,
            beta,
            scales: Scales {
                a: at(desc::A_SCALE_POINTER),
                b: at(desc::B_SCALE_POINTER),
                c: at(desc::C_SCALE_POINTER),
                d: at(desc::D_SCALE_POINTER),
            },
            epilogue: Epilogue { bias, activation },
            workspace: Workspace { at: workspace, bytes: algo.workspace() },
        })
    }
}
