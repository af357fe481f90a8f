//! What thirty-two values of each format become in two registers, bit for bit as `model::ggml` decodes them.
//!
//! Not here: products (`super`).

use std::arch::x86_64::*;

/// A format whose values come in blocks of a multiple of thirty-two.
pub(super) trait Unpack {
    /// Values and bytes of a block.
    const VALUES: usize;
    const BYTES: usize;

    /// Values `32·sub..` of the block at `p`. `#[inline(always)]`, so that it is compiled with the features of its caller.
    ///
    /// # Safety
    /// The block is there; AVX-512 F, BW, VL and DQ are.
    unsafe fn pair(p: *const u8, sub: usize) -> (__m512, __m512);
}

/// Evaluates `$e` with `$u` bound to the format of `$packed`.
macro_rules! with_unpack {
    ($packed:expr, $u:ident => $e:expr) => {
        with_unpack!(@ $packed, $u, $e, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS)
    };
    (@ $packed:expr, $u:ident, $e:expr, $($name:ident)*) => {
        match $packed {
            $($crate::model::Packed::Block($crate::model::ggml::Block::$name) => {
                type $u = $crate::exec::kernel::blocks::unpack::$name;
                $e
            })*
            $crate::model::Packed::F16 => {
                type $u = $crate::exec::kernel::blocks::unpack::F16;
                $e
            }
            $crate::model::Packed::Bf16 => {
                type $u = $crate::exec::kernel::blocks::unpack::Bf16;
                $e
            }
        }
    };
}
pub(super) use with_unpack;

/// The half-precision number `at` bytes on, in all lanes.
#[inline(always)]
unsafe fn half(p: *const u8, at: usize) -> __m512 {
    // SAFETY: as the callers vouch.
    unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(p.add(at).cast::<i16>().read_unaligned())) }
}

#[inline(always)]
unsafe fn splat(v: f32) -> __m512 {
    // SAFETY: as the callers vouch.
    unsafe { _mm512_set1_ps(v) }
}

#[inline(always)]
unsafe fn load(p: *const u8, at: usize) -> __m128i {
    // SAFETY: as the callers vouch.
    unsafe { _mm_loadu_si128(p.add(at).cast()) }
}

/// The low and the high four bits of sixteen bytes.
#[inline(always)]
unsafe fn nibbles(q: __m128i) -> [__m128i; 2] {
    // SAFETY: as the callers vouch.
    unsafe {
        let mask = _mm_set1_epi8(15);
        [_mm_and_si128(q, mask), _mm_and_si128(_mm_srli_epi16::<4>(q), mask)]
    }
}

/// Bits `shift..` of sixteen bytes under a mask.
#[inline(always)]
unsafe fn bits(q: __m128i, shift: usize, mask: i8) -> __m128i {
    // SAFETY: as the callers vouch.
    unsafe { _mm_and_si128(_mm_srl_epi16(q, _mm_cvtsi32_si128(shift as i32)), _mm_set1_epi8(mask)) }
}

/// Sixteen signed bytes as floats.
#[inline(always)]
unsafe fn floats(q: __m128i) -> __m512 {
    // SAFETY: as the callers vouch.
    unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)) }
}

/// Bytes with sixteen added where `high` has a bit.
#[inline(always)]
unsafe fn fifth(q: __m128i, high: u32) -> __m128i {
    // SAFETY: as the callers vouch.
    unsafe { _mm_mask_add_epi8(q, high as u16, q, _mm_set1_epi8(16)) }
}

/// `d · q`, `d · q + m`, `d · q - m`: products and sums rounded each.
#[inline(always)]
unsafe fn times(d: __m512, q: __m128i) -> __m512 {
    // SAFETY: as the callers vouch.
    unsafe { _mm512_mul_ps(d, floats(q)) }
}

/// The word `at` bytes on.
#[inline(always)]
unsafe fn word(p: *const u8, at: usize) -> u32 {
    // SAFETY: as the callers vouch.
    unsafe { p.add(at).cast::<u32>().read_unaligned() }
}

macro_rules! formats {
    ($($name:ident $values:literal $bytes:literal ($p:ident, $sub:pat) $body:block)*) => {$(
        #[allow(non_camel_case_types, reason = "ggml's own names")]
        pub(in crate::exec::kernel) struct $name;

        impl Unpack for $name {
            const VALUES: usize = $values;
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn pair($p: *const u8, $sub: usize) -> (__m512, __m512) {
                // SAFETY: all reads are within the block, as the caller vouches.
                unsafe { $body }
            }
        }
    )*};
}

/// What the four bits of `IQ4_NL` and `IQ4_XS` stand for.
const CODES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

#[inline(always)]
unsafe fn codes(q: __m128i) -> __m128i {
    // SAFETY: as the callers vouch.
    unsafe { _mm_shuffle_epi8(_mm_loadu_si128(CODES.as_ptr().cast()), q) }
}

/// Scale and minimum, six bits each, of group `j` of 8.
#[inline(always)]
unsafe fn scale_min(p: *const u8, j: usize) -> (f32, f32) {
    // SAFETY: as the callers vouch.
    let s = |i: usize| unsafe { *p.add(4 + i) };
    let (scale, min) = match j {
        0..4 => (s(j) & 63, s(j + 4) & 63),
        _ => (s(j + 4) & 15 | s(j - 4) >> 2 & 0x30, s(j + 4) >> 4 | s(j) >> 2 & 0x30),
    };
    (f32::from(scale), f32::from(min))
}

formats! {
    Q4_0 32 18 (p, _) {
        let (d, [low, high], eight) = (half(p, 0), nibbles(load(p, 2)), _mm_set1_epi8(8));
        (times(d, _mm_sub_epi8(low, eight)), times(d, _mm_sub_epi8(high, eight)))
    }
    Q4_1 32 20 (p, _) {
        let (d, m, [low, high]) = (half(p, 0), half(p, 2), nibbles(load(p, 4)));
        (_mm512_add_ps(times(d, low), m), _mm512_add_ps(times(d, high), m))
    }
    Q5_0 32 22 (p, _) {
        let (d, fifths, [low, high]) = (half(p, 0), word(p, 2), nibbles(load(p, 6)));
        let half = _mm_set1_epi8(16);
        (
            times(d, _mm_sub_epi8(fifth(low, fifths & 0xffff), half)),
            times(d, _mm_sub_epi8(fifth(high, fifths >> 16), half)),
        )
    }
    Q5_1 32 24 (p, _) {
        let (d, m, fifths, [low, high]) = (half(p, 0), half(p, 2), word(p, 4), nibbles(load(p, 8)));
        (
            _mm512_add_ps(times(d, fifth(low, fifths & 0xffff)), m),
            _mm512_add_ps(times(d, fifth(high, fifths >> 16)), m),
        )
    }
    Q8_0 32 34 (p, _) {
        let d = half(p, 0);
        (times(d, load(p, 2)), times(d, load(p, 18)))
    }
    Q2_K 256 84 (p, sub) {
        let (d, dmin) = (half(p, 80), half(p, 82));
        let of = |i: usize| {
            let s = *p.add(2 * sub + i);
            let q = bits(load(p, 16 + sub / 4 * 32 + 16 * i), 2 * (sub % 4), 3);
            let (dl, ml) = (_mm512_mul_ps(d, splat(f32::from(s & 15))), _mm512_mul_ps(dmin, splat(f32::from(s >> 4))));
            _mm512_sub_ps(times(dl, q), ml)
        };
        (of(0), of(1))
    }
    Q3_K 256 110 (p, sub) {
        let d = half(p, 108);
        let of = |i: usize| {
            let group = 2 * sub + i;
            let low = *p.add(96 + group % 8) >> (4 * (group / 8)) & 15;
            let high = *p.add(104 + group % 4) >> (2 * (group / 4)) & 3;
            let dl = _mm512_mul_ps(d, splat(f32::from(low | high << 4) - 32.0));
            let q = bits(load(p, 32 + sub / 4 * 32 + 16 * i), 2 * (sub % 4), 3);
            let missing = _mm_testn_epi8_mask(load(p, 16 * i), _mm_set1_epi8((1u8 << sub) as i8));
            times(dl, _mm_mask_sub_epi8(q, missing, q, _mm_set1_epi8(4)))
        };
        (of(0), of(1))
    }
    Q4_K 256 144 (p, sub) {
        let (scale, min) = scale_min(p, sub);
        let (dl, ml) = (_mm512_mul_ps(half(p, 0), splat(scale)), _mm512_mul_ps(half(p, 2), splat(min)));
        let of = |i: usize| {
            let q = bits(load(p, 16 + sub / 2 * 32 + 16 * i), 4 * (sub % 2), 15);
            _mm512_sub_ps(times(dl, q), ml)
        };
        (of(0), of(1))
    }
    Q5_K 256 176 (p, sub) {
        let (scale, min) = scale_min(p, sub);
        let (dl, ml) = (_mm512_mul_ps(half(p, 0), splat(scale)), _mm512_mul_ps(half(p, 2), splat(min)));
        let of = |i: usize| {
            let q = bits(load(p, 48 + sub / 2 * 32 + 16 * i), 4 * (sub % 2), 15);
            let high = _mm_test_epi8_mask(load(p, 16 + 16 * i), _mm_set1_epi8((1u8 << sub) as i8));
            _mm512_sub_ps(times(dl, fifth(q, u32::from(high))), ml)
        };
        (of(0), of(1))
    }
    Q6_K 256 210 (p, sub) {
        let d = half(p, 208);
        let of = |i: usize| {
            let dl = _mm512_mul_ps(d, splat(f32::from(*p.add(192 + 2 * sub + i) as i8)));
            let low = bits(load(p, sub / 4 * 64 + sub % 2 * 32 + 16 * i), 4 * (sub / 2 % 2), 15);
            let high = bits(load(p, 128 + sub / 4 * 32 + 16 * i), 2 * (sub % 4), 3);
            let q = _mm_or_si128(low, _mm_slli_epi16::<4>(high));
            times(dl, _mm_sub_epi8(q, _mm_set1_epi8(32)))
        };
        (of(0), of(1))
    }
    IQ4_NL 32 18 (p, _) {
        let (d, [low, high]) = (half(p, 0), nibbles(load(p, 2)));
        (times(d, codes(low)), times(d, codes(high)))
    }
    IQ4_XS 256 136 (p, sub) {
        let low = *p.add(4 + sub / 2) >> (4 * (sub % 2)) & 15;
        let high = (p.add(2).cast::<u16>().read_unaligned() >> (2 * sub)) as u8 & 3;
        let dl = _mm512_mul_ps(half(p, 0), splat(f32::from(low | high << 4) - 32.0));
        let [low, high] = nibbles(load(p, 8 + 16 * sub));
        (times(dl, codes(low)), times(dl, codes(high)))
    }
    F16 32 64 (p, _) {
        let of = |at: usize| _mm512_cvtph_ps(_mm256_loadu_si256(p.add(at).cast()));
        (of(0), of(32))
    }
    Bf16 32 64 (p, _) {
        let of = |at: usize| {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.add(at).cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        };
        (of(0), of(32))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Blocks;
    use super::super::tests::stored;
    use super::*;
    use crate::model::Packed;
    use crate::model::ggml::Block;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn all<U: Unpack>(bytes: &[u8]) -> Vec<f32> {
        let mut out = Vec::new();
        for block in bytes.chunks_exact(U::BYTES) {
            for sub in 0..U::VALUES / 32 {
                // SAFETY: a whole block, and the caller looked for the features.
                let (low, high) = unsafe { U::pair(block.as_ptr(), sub) };
                for v in [low, high] {
                    let mut values = [0f32; 16];
                    // SAFETY: room for sixteen.
                    unsafe { _mm512_storeu_ps(values.as_mut_ptr(), v) };
                    out.extend(values);
                }
            }
        }
        out
    }

    #[test]
    fn values_have_the_bits_that_decoding_gives() {
        for packed in Block::ALL.map(Packed::Block).into_iter().chain([Packed::F16, Packed::Bf16]) {
            let weight = stored(packed, 7, 1024);
            if Blocks::of(&weight).is_none() {
                return;
            }
            let (_, bytes) = weight.packed().unwrap();
            // SAFETY: `of` looked for the features.
            let got = unsafe { with_unpack!(packed, U => all::<U>(bytes)) };
            let want: Vec<u32> = weight.values().iter().map(|v| v.to_bits()).collect();
            assert_eq!(got.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), want, "{}", packed.label());
        }
    }
}
