//! What thirty-two values of each format become in sixteen lanes twice, bit for bit as `model::ggml` decodes them.
//!
//! Not here: products (`super`).

use crate::exec::kernel::lanes::x86::Bytes;
use std::arch::x86_64::*;

/// A format whose values come in blocks of a multiple of thirty-two.
pub(super) trait Unpack {
    /// Values and bytes of a block.
    const VALUES: usize;
    const BYTES: usize;

    /// Values `32·sub..` of the block at `p`. `#[inline(always)]`, so that it is compiled with the features of its caller.
    ///
    /// # Safety
    /// The block is there; the lanes' features are, and F16C.
    #[inline(always)]
    unsafe fn pair<V: Bytes>(p: *const u8, sub: usize) -> (V, V) {
        // SAFETY: as the caller vouches.
        unsafe {
            let Parts { codes, scales, mins } = Self::parts::<V>(p, sub);
            match (Self::SCALED, Self::MINS) {
                (false, _) => codes,
                (true, false) => (scales.0.mul(codes.0), scales.1.mul(codes.1)),
                (true, true) => {
                    (scales.0.mul(codes.0).add(V::splat(mins.0)), scales.1.mul(codes.1).add(V::splat(mins.1)))
                }
            }
        }
    }

    /// Codes are multiplied with a scale; else they are the values.
    const SCALED: bool;
    /// Something is added to the products.
    const MINS: bool;
    /// Each half has a scale of its own.
    const SPLIT: bool;

    /// The same before products and sums: `scale · code + min`, halves each.
    ///
    /// # Safety
    /// As [`Unpack::pair`].
    unsafe fn parts<V: Bytes>(p: *const u8, sub: usize) -> Parts<V>;
}

/// Thirty-two values before products and sums. What a format does not have is not looked at.
pub(super) struct Parts<V> {
    pub codes: (V, V),
    pub scales: (V, V),
    pub mins: (f32, f32),
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

/// Two half-precision numbers, `at` bytes on: the first in all lanes, and the second.
#[inline(always)]
unsafe fn halves<V: Bytes>(p: *const u8, at: usize) -> (V, f32) {
    // SAFETY: as the callers vouch.
    unsafe {
        let both = _mm_cvtph_ps(_mm_cvtsi32_si128(word(p, at) as i32));
        (V::all(both), number(_mm_movehdup_ps(both)))
    }
}

/// The half-precision number `at` bytes on.
#[inline(always)]
unsafe fn half(p: *const u8, at: usize) -> __m128 {
    // SAFETY: as the callers vouch.
    unsafe { _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(p.add(at).cast::<u16>().read_unaligned()))) }
}

#[inline(always)]
unsafe fn number(v: __m128) -> f32 {
    // SAFETY: as the callers vouch.
    unsafe { _mm_cvtss_f32(v) }
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

/// Bytes with sixteen added where `high` has a bit.
#[inline(always)]
unsafe fn fifth<V: Bytes>(q: __m128i, high: u32) -> __m128i {
    // SAFETY: as the callers vouch.
    unsafe { V::add_by_bits(q, high, 16) }
}

/// The word `at` bytes on.
#[inline(always)]
unsafe fn word(p: *const u8, at: usize) -> u32 {
    // SAFETY: as the callers vouch.
    unsafe { p.add(at).cast::<u32>().read_unaligned() }
}

macro_rules! formats {
    ($($name:ident $values:literal $bytes:literal $scaled:literal $mins:literal $split:literal ($p:ident, $sub:pat) $body:block)*) => {$(
        #[allow(non_camel_case_types, reason = "ggml's own names")]
        pub(in crate::exec::kernel) struct $name;

        impl Unpack for $name {
            const VALUES: usize = $values;
            const BYTES: usize = $bytes;
            const SCALED: bool = $scaled;
            const MINS: bool = $mins;
            const SPLIT: bool = $split;

            #[inline(always)]
            unsafe fn parts<V: Bytes>($p: *const u8, $sub: usize) -> Parts<V> {
                // SAFETY: all reads are within the block, as the caller vouches.
                unsafe { $body }
            }
        }
    )*};
}

/// One scale for both halves, and one minimum.
#[inline(always)]
unsafe fn one<V: Bytes>((low, high): (__m128i, __m128i), scale: V, min: f32) -> Parts<V> {
    // SAFETY: as the callers vouch.
    unsafe { Parts { codes: (V::bytes(low), V::bytes(high)), scales: (scale, scale), mins: (min, min) } }
}

/// Both halves, `$i` constant in each: what is computed is compiled into the caller, which has the features.
macro_rules! both {
    ($i:ident => $e:expr) => {
        (
            {
                const $i: usize = 0;
                $e
            },
            {
                const $i: usize = 1;
                $e
            },
        )
    };
}

/// Codes, scale and minimum of each half.
#[inline(always)]
unsafe fn two<V: Bytes>((low, high): ((__m128i, f32, f32), (__m128i, f32, f32))) -> Parts<V> {
    // SAFETY: as the callers vouch.
    unsafe {
        let (codes, scales) = ((V::bytes(low.0), V::bytes(high.0)), (V::splat(low.1), V::splat(high.1)));
        Parts { codes, scales, mins: (low.2, high.2) }
    }
}

/// Values that need nothing.
#[inline(always)]
unsafe fn values<V: Bytes>(codes: (V, V)) -> Parts<V> {
    Parts { codes, scales: (V::splat(0.0), V::splat(0.0)), mins: (0.0, 0.0) }
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
    Q4_0 32 18 true false false (p, _) {
        let ([low, high], eight) = (nibbles(load(p, 2)), _mm_set1_epi8(8));
        one((_mm_sub_epi8(low, eight), _mm_sub_epi8(high, eight)), V::all(half(p, 0)), 0.0)
    }
    Q4_1 32 20 true true false (p, _) {
        let ((d, m), [low, high]) = (halves(p, 0), nibbles(load(p, 4)));
        one((low, high), d, m)
    }
    Q5_0 32 22 true false false (p, _) {
        let (fifths, [low, high], half_way) = (word(p, 2), nibbles(load(p, 6)), _mm_set1_epi8(16));
        let [low, high] = [fifth::<V>(low, fifths & 0xffff), fifth::<V>(high, fifths >> 16)];
        one((_mm_sub_epi8(low, half_way), _mm_sub_epi8(high, half_way)), V::all(half(p, 0)), 0.0)
    }
    Q5_1 32 24 true true false (p, _) {
        let ((d, m), fifths, [low, high]) = (halves(p, 0), word(p, 4), nibbles(load(p, 8)));
        one((fifth::<V>(low, fifths & 0xffff), fifth::<V>(high, fifths >> 16)), d, m)
    }
    Q8_0 32 34 true false false (p, _) {
        one((load(p, 2), load(p, 18)), V::all(half(p, 0)), 0.0)
    }
    Q2_K 256 84 true true true (p, sub) {
        let (d, dmin) = (number(half(p, 80)), number(half(p, 82)));
        two(both!(I => {
            let s = *p.add(2 * sub + I);
            let q = bits(load(p, 16 + sub / 4 * 32 + 16 * I), 2 * (sub % 4), 3);
            (q, d * f32::from(s & 15), -(dmin * f32::from(s >> 4)))
        }))
    }
    Q3_K 256 110 true false true (p, sub) {
        let d = number(half(p, 108));
        two(both!(I => {
            let group = 2 * sub + I;
            let low = *p.add(96 + group % 8) >> (4 * (group / 8)) & 15;
            let high = *p.add(104 + group % 4) >> (2 * (group / 4)) & 3;
            let q = bits(load(p, 32 + sub / 4 * 32 + 16 * I), 2 * (sub % 4), 3);
            // Four less where a bit is missing.
            let q = V::add_where(_mm_sub_epi8(q, _mm_set1_epi8(4)), load(p, 16 * I), (1u8 << sub) as i8, 4);
            (q, d * (f32::from(low | high << 4) - 32.0), 0.0)
        }))
    }
    Q4_K 256 144 true true false (p, sub) {
        let (scale, min) = scale_min(p, sub);
        let q = both!(I => bits(load(p, 16 + sub / 2 * 32 + 16 * I), 4 * (sub % 2), 15));
        one(q, V::splat(number(half(p, 0)) * scale), -(number(half(p, 2)) * min))
    }
    Q5_K 256 176 true true false (p, sub) {
        let (scale, min) = scale_min(p, sub);
        let q = both!(I => {
            let low = bits(load(p, 48 + sub / 2 * 32 + 16 * I), 4 * (sub % 2), 15);
            V::add_where(low, load(p, 16 + 16 * I), (1u8 << sub) as i8, 16)
        });
        one(q, V::splat(number(half(p, 0)) * scale), -(number(half(p, 2)) * min))
    }
    Q6_K 256 210 true false true (p, sub) {
        let d = number(half(p, 208));
        two(both!(I => {
            let low = bits(load(p, sub / 4 * 64 + sub % 2 * 32 + 16 * I), 4 * (sub / 2 % 2), 15);
            let high = bits(load(p, 128 + sub / 4 * 32 + 16 * I), 2 * (sub % 4), 3);
            let q = _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16::<4>(high)), _mm_set1_epi8(32));
            (q, d * f32::from(*p.add(192 + 2 * sub + I) as i8), 0.0)
        }))
    }
    IQ4_NL 32 18 true false false (p, _) {
        let [low, high] = nibbles(load(p, 2));
        one((codes(low), codes(high)), V::all(half(p, 0)), 0.0)
    }
    IQ4_XS 256 136 true false false (p, sub) {
        let low = *p.add(4 + sub / 2) >> (4 * (sub % 2)) & 15;
        let high = (p.add(2).cast::<u16>().read_unaligned() >> (2 * sub)) as u8 & 3;
        let [first, second] = nibbles(load(p, 8 + 16 * sub));
        let scale = number(half(p, 0)) * (f32::from(low | high << 4) - 32.0);
        one((codes(first), codes(second)), V::splat(scale), 0.0)
    }
    F16 32 64 false false false (p, _) {
        values(both!(I => V::load_f16(p.add(32 * I).cast())))
    }
    Bf16 32 64 false false false (p, _) {
        values(both!(I => V::bf16(p.add(32 * I))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::With;
    use super::super::tests::stored;
    use super::*;
    use crate::exec::kernel::lanes::x86::{Pair, Wide};
    use crate::model::Packed;
    use crate::model::ggml::Block;

    #[inline(always)]
    unsafe fn every<V: Bytes, U: Unpack>(bytes: &[u8]) -> Vec<f32> {
        let mut out = Vec::new();
        for block in bytes.chunks_exact(U::BYTES) {
            for sub in 0..U::VALUES / 32 {
                // SAFETY: a whole block, and the caller looked for the features.
                let (low, high) = unsafe { U::pair::<V>(block.as_ptr(), sub) };
                for v in [low, high] {
                    let mut values = [0f32; 16];
                    // SAFETY: room for sixteen.
                    unsafe { v.store(values.as_mut_ptr()) };
                    out.extend(values);
                }
            }
        }
        out
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
    unsafe fn wide<U: Unpack>(bytes: &[u8]) -> Vec<f32> {
        // SAFETY: as the caller vouches.
        unsafe { every::<Wide, U>(bytes) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn pair<U: Unpack>(bytes: &[u8]) -> Vec<f32> {
        // SAFETY: as the caller vouches.
        unsafe { every::<Pair, U>(bytes) }
    }

    #[test]
    fn values_have_the_bits_that_decoding_gives() {
        for packed in Block::ALL.map(Packed::Block).into_iter().chain([Packed::F16, Packed::Bf16]) {
            let weight = stored(packed, 7, 1024);
            let (_, bytes) = weight.packed().unwrap();
            let want: Vec<u32> = weight.values().iter().map(|v| v.to_bits()).collect();
            for with in [With::Wide, With::Pair].into_iter().filter(|with| with.runs()) {
                // SAFETY: the features are there.
                let got = unsafe {
                    match with {
                        With::Wide => with_unpack!(packed, U => wide::<U>(bytes)),
                        With::Pair => with_unpack!(packed, U => pair::<U>(bytes)),
                    }
                };
                let got: Vec<u32> = got.iter().map(|v| v.to_bits()).collect();
                assert_eq!(got, want, "{} {with:?}", packed.label());
            }
        }
    }
}
