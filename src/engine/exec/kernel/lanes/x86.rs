//! Lanes of AVX-512 and AVX2.

use super::{Lanes, Plain};
use half::f16;
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub struct Wide(pub __m512);

#[derive(Clone, Copy)]
pub struct Pair(__m256, __m256);

/// Sixteen lanes that are made of a register of bytes, and what masks do to such registers.
pub trait Bytes: Lanes {
    /// Sixteen signed bytes as numbers.
    ///
    /// # Safety
    /// The lanes' features are there, as in all that follow.
    unsafe fn bytes(q: __m128i) -> Self;

    /// The first lane of `v` in all.
    ///
    /// # Safety
    /// As [`Bytes::bytes`].
    unsafe fn all(v: __m128) -> Self;

    /// Sixteen of bfloat16.
    ///
    /// # Safety
    /// They are at `p`.
    unsafe fn bf16(p: *const u8) -> Self;

    /// `q` and `by` where bit `i` of `mask` is set for byte `i`.
    ///
    /// # Safety
    /// As [`Bytes::bytes`].
    unsafe fn add_by_bits(q: __m128i, mask: u32, by: i8) -> __m128i;

    /// `q` and `by` where the byte of `of` has the bits of `mask`, of which there is one.
    ///
    /// # Safety
    /// As [`Bytes::bytes`].
    unsafe fn add_where(q: __m128i, of: __m128i, mask: i8, by: i8) -> __m128i;
}

impl Bytes for Wide {
    #[inline(always)]
    unsafe fn bytes(q: __m128i) -> Self {
        // SAFETY: as the caller vouches.
        Wide(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)) })
    }

    #[inline(always)]
    unsafe fn all(v: __m128) -> Self {
        // SAFETY: as the caller vouches.
        Wide(unsafe { _mm512_broadcastss_ps(v) })
    }

    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> Self {
        // SAFETY: as the caller vouches.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            Wide(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn add_by_bits(q: __m128i, mask: u32, by: i8) -> __m128i {
        // SAFETY: as the caller vouches.
        unsafe { _mm_mask_add_epi8(q, mask as u16, q, _mm_set1_epi8(by)) }
    }

    #[inline(always)]
    unsafe fn add_where(q: __m128i, of: __m128i, mask: i8, by: i8) -> __m128i {
        // SAFETY: as the caller vouches.
        unsafe { _mm_mask_add_epi8(q, _mm_test_epi8_mask(of, _mm_set1_epi8(mask)), q, _mm_set1_epi8(by)) }
    }
}

impl Bytes for Pair {
    #[inline(always)]
    unsafe fn bytes(q: __m128i) -> Self {
        // SAFETY: as the caller vouches.
        unsafe {
            let half = |q| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q));
            Pair(half(q), half(_mm_unpackhi_epi64(q, q)))
        }
    }

    #[inline(always)]
    unsafe fn all(v: __m128) -> Self {
        // SAFETY: as the caller vouches.
        let v = unsafe { _mm256_broadcastss_ps(v) };
        Pair(v, v)
    }

    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> Self {
        // SAFETY: as the caller vouches.
        unsafe {
            let half = |at: usize| {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(at).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            };
            Pair(half(0), half(16))
        }
    }

    #[inline(always)]
    unsafe fn add_by_bits(q: __m128i, mask: u32, by: i8) -> __m128i {
        // SAFETY: as the caller vouches.
        unsafe {
            // Eight bytes of the low byte of the mask, eight of the high one, each under a bit of its own.
            let places = _mm_set_epi8(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
            let bits = _mm_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let each = _mm_and_si128(_mm_shuffle_epi8(_mm_cvtsi32_si128(mask as i32), places), bits);
            _mm_add_epi8(q, _mm_and_si128(_mm_cmpeq_epi8(each, bits), _mm_set1_epi8(by)))
        }
    }

    #[inline(always)]
    unsafe fn add_where(q: __m128i, of: __m128i, mask: i8, by: i8) -> __m128i {
        // SAFETY: as the caller vouches.
        unsafe {
            let bit = _mm_set1_epi8(mask);
            let there = _mm_cmpeq_epi8(_mm_and_si128(of, bit), bit);
            _mm_add_epi8(q, _mm_and_si128(there, _mm_set1_epi8(by)))
        }
    }
}

/// Lets sums of both kinds end alike: halves onto halves.
///
/// # Safety
/// AVX is there.
#[inline(always)]
unsafe fn sum8(v: __m256) -> f32 {
    // SAFETY: as the caller vouches.
    unsafe {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
}

/// # Safety
/// AVX is there.
#[inline(always)]
unsafe fn top8(v: __m256) -> f32 {
    // SAFETY: as the caller vouches.
    unsafe {
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
}

/// The lower and upper half.
///
/// # Safety
/// AVX-512F is there.
#[inline(always)]
unsafe fn halves(v: __m512) -> (__m256, __m256) {
    // SAFETY: as the caller vouches.
    unsafe {
        let high = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v));
        (_mm512_castps512_ps256(v), _mm256_castpd_ps(high))
    }
}

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    (1u16 << n) - 1
}

/// Functions that one instruction does.
macro_rules! wide {
    ($($name:ident($($arg:ident),*) = $instruction:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: Self),*) -> Self {
            // SAFETY: see below.
            Wide(unsafe { $instruction(self.0, $($arg.0),*) })
        }
    )*};
}

/// Functions that one instruction does, on both halves.
macro_rules! pair {
    ($($name:ident($($arg:ident),*) = $instruction:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: Self),*) -> Self {
            // SAFETY: see below.
            unsafe { Pair($instruction(self.0, $($arg.0),*), $instruction(self.1, $($arg.1),*)) }
        }
    )*};
}

// SAFETY of all blocks below: these lanes are only made where `dispatch` found their features; pointers are as the
// callers vouch.
impl Lanes for Wide {
    const NAME: &'static str = "avx512";

    #[inline(always)]
    fn splat(v: f32) -> Self {
        // SAFETY: see above.
        Wide(unsafe { _mm512_set1_ps(v) })
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see above.
        Wide(unsafe { _mm512_loadu_ps(p) })
    }

    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize, fill: f32) -> Self {
        // SAFETY: see above.
        Wide(unsafe { _mm512_mask_loadu_ps(_mm512_set1_ps(fill), mask(n), p) })
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: see above.
        Wide(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) })
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: see above.
        Wide(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(p, self.0) };
    }

    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        // SAFETY: see above.
        unsafe { _mm512_mask_storeu_ps(p, mask(n), self.0) };
    }

    wide! {
        add(b) = _mm512_add_ps;
        sub(b) = _mm512_sub_ps;
        mul(b) = _mm512_mul_ps;
        div(b) = _mm512_div_ps;
        fma(b, c) = _mm512_fmadd_ps;
        max(b) = _mm512_max_ps;
        min(b) = _mm512_min_ps;
    }

    #[inline(always)]
    fn scale2(self, t: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(t.0));
            Wide(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(self.0), n)))
        }
    }

    #[inline(always)]
    fn where_at_least(self, x: Self, least: Self) -> Self {
        // SAFETY: see above.
        unsafe { Wide(_mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x.0, least.0), self.0)) }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: see above.
        unsafe {
            let (a, b) = halves(self.0);
            sum8(_mm256_add_ps(a, b))
        }
    }

    #[inline(always)]
    fn top(self) -> f32 {
        // SAFETY: see above.
        unsafe {
            let (a, b) = halves(self.0);
            top8(_mm256_max_ps(a, b))
        }
    }
}

impl Lanes for Pair {
    const NAME: &'static str = "avx2";

    #[inline(always)]
    fn splat(v: f32) -> Self {
        // SAFETY: see above.
        let v = unsafe { _mm256_set1_ps(v) };
        Pair(v, v)
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see above.
        unsafe { Pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }

    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize, fill: f32) -> Self {
        // SAFETY: see above.
        unsafe { Self::load(Plain::load_part(p, n, fill).0.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: see above.
        unsafe {
            let half = |at| _mm256_cvtph_ps(_mm_loadu_si128(p.add(at).cast()));
            Pair(half(0), half(8))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: see above.
        unsafe {
            let half = |at| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(at).cast())));
            Pair(half(0), half(8))
        }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }

    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        let mut all = [0f32; 16];
        // SAFETY: see above.
        unsafe {
            self.store(all.as_mut_ptr());
            Plain(all).store_part(p, n);
        }
    }

    pair! {
        add(b) = _mm256_add_ps;
        sub(b) = _mm256_sub_ps;
        mul(b) = _mm256_mul_ps;
        div(b) = _mm256_div_ps;
        fma(b, c) = _mm256_fmadd_ps;
        max(b) = _mm256_max_ps;
        min(b) = _mm256_min_ps;
    }

    #[inline(always)]
    fn scale2(self, t: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let one = |y, t| {
                let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(t));
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), n))
            };
            Pair(one(self.0, t.0), one(self.1, t.1))
        }
    }

    #[inline(always)]
    fn where_at_least(self, x: Self, least: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            Pair(
                _mm256_and_ps(self.0, _mm256_cmp_ps::<_CMP_NLT_UQ>(x.0, least.0)),
                _mm256_and_ps(self.1, _mm256_cmp_ps::<_CMP_NLT_UQ>(x.1, least.1)),
            )
        }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: see above.
        unsafe { sum8(_mm256_add_ps(self.0, self.1)) }
    }

    #[inline(always)]
    fn top(self) -> f32 {
        // SAFETY: see above.
        unsafe { top8(_mm256_max_ps(self.0, self.1)) }
    }
}
