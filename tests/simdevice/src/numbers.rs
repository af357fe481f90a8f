//! The types of numbers that the libraries compute with: their codes, sizes, and rounding between them.
//!
//! Not here: which types a call takes together (each library's own tables).

use half::{bf16, f16};

/// A real type of `cudaDataType_t` that some call here takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    F16,
    Bf16,
    F32,
    F64,
    I8,
    I32,
    E4m3,
    E5m2,
}

/// `cudaDataType_t` goes up to `CUDA_R_8F_UE5M3`.
const LAST_CODE: u32 = 34;

/// Whether `cudaDataType_t` has `code` at all.
pub fn is_data_type(code: u32) -> bool {
    code <= LAST_CODE
}

impl Kind {
    /// The type of `cudaDataType_t` `code`; `None` where nothing here computes with it.
    pub fn of(code: u32) -> Option<Kind> {
        Some(match code {
            0 => Kind::F32,
            1 => Kind::F64,
            2 => Kind::F16,
            3 => Kind::I8,
            10 => Kind::I32,
            14 => Kind::Bf16,
            28 => Kind::E4m3,
            29 => Kind::E5m2,
            _ => return None,
        })
    }

    pub fn bytes(self) -> usize {
        match self {
            Kind::I8 | Kind::E4m3 | Kind::E5m2 => 1,
            Kind::F16 | Kind::Bf16 => 2,
            Kind::F32 | Kind::I32 => 4,
            Kind::F64 => 8,
        }
    }

    pub fn is_fp8(self) -> bool {
        matches!(self, Kind::E4m3 | Kind::E5m2)
    }

    /// The value at `at`.
    ///
    /// # Safety
    /// A value of this type can be read there.
    pub unsafe fn read(self, at: u64) -> f64 {
        // SAFETY: the caller's.
        unsafe {
            match self {
                Kind::F64 => *(at as *const f64),
                Kind::I32 => f64::from(*(at as *const i32)),
                _ => {
                    let mut one = [0f32];
                    self.read_line(at, &mut one);
                    f64::from(one[0])
                }
            }
        }
    }

    /// Fills `out` with the values from `at` on, as `f32` (rounded for the wider types).
    ///
    /// # Safety
    /// As many values of this type can be read there.
    pub unsafe fn read_line(self, at: u64, out: &mut [f32]) {
        /// # Safety
        /// As [`Kind::read_line`].
        unsafe fn each<T: Copy>(at: u64, out: &mut [f32], f: impl Fn(T) -> f32) {
            // SAFETY: the caller's.
            let from = unsafe { std::slice::from_raw_parts(at as *const T, out.len()) };
            out.iter_mut().zip(from).for_each(|(o, v)| *o = f(*v));
        }
        // SAFETY: the caller's.
        unsafe {
            match self {
                Kind::F32 => each(at, out, |v: f32| v),
                Kind::F64 => each(at, out, |v: f64| v as f32),
                Kind::F16 => each(at, out, f16::to_f32),
                Kind::Bf16 => each(at, out, bf16::to_f32),
                Kind::I8 => each(at, out, |v: i8| f32::from(v)),
                Kind::I32 => each(at, out, |v: i32| v as f32),
                Kind::E4m3 => each(at, out, e4m3_to_f32),
                // The upper byte of a half, by definition of the format.
                Kind::E5m2 => each(at, out, |v: u8| f16::from_bits(u16::from(v) << 8).to_f32()),
            }
        }
    }

    /// Writes `values` from `at` on, each rounded once: to nearest, ties to even; integers and 8-bit floats saturate.
    ///
    /// # Safety
    /// As many values of this type can be written there.
    pub unsafe fn write_line(self, at: u64, values: &[f32]) {
        /// # Safety
        /// As [`Kind::write_line`].
        unsafe fn each<T>(at: u64, values: &[f32], f: impl Fn(f32) -> T) {
            // SAFETY: the caller's; the memory may never have been written, so no slice of it is made.
            values.iter().enumerate().for_each(|(i, v)| unsafe { (at as *mut T).add(i).write(f(*v)) });
        }
        // SAFETY: the caller's.
        unsafe {
            match self {
                Kind::F32 => each(at, values, |v| v),
                Kind::F64 => each(at, values, f64::from),
                Kind::F16 => each(at, values, f16::from_f32),
                Kind::Bf16 => each(at, values, bf16::from_f32),
                Kind::I8 => each(at, values, |v| v.round_ties_even() as i8),
                Kind::I32 => each(at, values, |v| v.round_ties_even() as i32),
                Kind::E4m3 => each(at, values, |v| f32_to_fp8(v, 3, -6, 448.0, 0x7f)),
                Kind::E5m2 => each(at, values, |v| f32_to_fp8(v, 2, -14, 57344.0, 0x7f)),
            }
        }
    }
}

/// Four bits of exponent (bias 7), three of mantissa; no infinity, and one NaN of each sign.
pub fn e4m3_to_f32(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let size = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if bits & 0x80 == 0 { size } else { -size }
}

/// The nearest 8-bit float with `mantissa` bits and `least` as its smallest normal exponent; what is beyond `most`
/// becomes `most`, as NVIDIA's saturating conversions do.
fn f32_to_fp8(v: f32, mantissa: i32, least: i32, most: f32, nan: u8) -> u8 {
    let sign = if v.is_sign_negative() { 0x80 } else { 0 };
    if v.is_nan() {
        return sign | nan;
    }
    let size = v.abs().min(most);
    if size == 0.0 {
        return sign;
    }
    let exponent = (((size.to_bits() >> 23) as i32) - 127).max(least);
    // In steps of the last place: at most eleven bits, so exact. A carry makes the next exponent.
    let steps = (size / 2f32.powi(exponent - mantissa)).round_ties_even() as i32;
    sign | ((exponent - least) * (1 << mantissa) + steps) as u8
}

/// TF32, which tensor cores take for `f32`: ten bits of mantissa, to nearest with ties away from zero
/// (`cvt.rna.tf32.f32`).
pub fn to_tf32(v: f32) -> f32 {
    if !v.is_finite() {
        return v;
    }
    f32::from_bits((v.to_bits() + 0x1000) & !0x1fff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_go_there_and_back() {
        for bits in 0..=255u8 {
            let mut v = [0f32];
            for kind in [Kind::E4m3, Kind::E5m2] {
                let mut out = 0u8;
                // SAFETY: one byte each.
                unsafe { kind.read_line(&raw const bits as u64, &mut v) };
                if v[0].is_finite() {
                    unsafe { kind.write_line(&raw mut out as u64, &v) };
                    assert_eq!(out, bits, "{kind:?} {}", v[0]);
                }
            }
        }
        let e4m3 = |v| f32_to_fp8(v, 3, -6, 448.0, 0x7f);
        assert_eq!(e4m3_to_f32(e4m3(1e9)), 448.0);
        assert_eq!(e4m3_to_f32(e4m3(17.0)), 16.0, "a tie goes to the even mantissa");
        assert_eq!(e4m3_to_f32(e4m3(19.0)), 20.0);
        assert_eq!(e4m3_to_f32(e4m3(15.9)), 16.0, "a carry");
        assert_eq!(e4m3_to_f32(e4m3(0.0009)), 0.0, "below half of the least");
        assert!(e4m3_to_f32(e4m3(f32::NAN)).is_nan());
    }

    #[test]
    fn tf32_has_ten_bits_of_mantissa() {
        assert_eq!(to_tf32(1.0 + 2f32.powi(-10)), 1.0 + 2f32.powi(-10));
        assert_eq!(to_tf32(1.0 + 2f32.powi(-11)), 1.0 + 2f32.powi(-10));
        assert_eq!(to_tf32(1.0 + 2f32.powi(-12)), 1.0);
        assert_eq!(to_tf32(f32::INFINITY), f32::INFINITY);
    }

    #[test]
    fn integers_saturate() {
        let mut out = [0i8; 4];
        // SAFETY: room for four.
        unsafe { Kind::I8.write_line(out.as_mut_ptr() as u64, &[300.0, -300.0, 2.5, -3.5]) };
        assert_eq!(out, [127, -128, 2, -4]);
    }
}
