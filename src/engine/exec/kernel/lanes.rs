//! Sixteen f32 lanes, as one AVX-512 register, two AVX2 registers or an array, and the functions of them that activations
//! and softmax are made of.
//!
//! Invariant: every version gives the same bits. Lanes are always sixteen, multiply-adds are always fused (in software, and
//! slowly, where the processor has none), and sums over lanes add halves to halves.

#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

use half::f16;

/// Sixteen numbers. Only [`dispatch`] makes those that need a feature of the processor, after it has looked for it.
pub(super) trait Lanes: Copy {
    const NAME: &'static str;

    fn splat(v: f32) -> Self;

    /// # Safety
    /// Sixteen values from `p` on can be read.
    unsafe fn load(p: *const f32) -> Self;

    /// The first `n < 16` lanes from `p` on, `fill` in the others.
    ///
    /// # Safety
    /// `n` values from `p` on can be read.
    unsafe fn load_part(p: *const f32, n: usize, fill: f32) -> Self;

    /// Half-precision numbers.
    ///
    /// # Safety
    /// Sixteen values from `p` on can be read.
    unsafe fn load_f16(p: *const f16) -> Self;

    /// # Safety
    /// Sixteen values from `p` on can be read.
    unsafe fn load_i8(p: *const i8) -> Self;

    /// # Safety
    /// Sixteen values from `p` on can be written.
    unsafe fn store(self, p: *mut f32);

    /// The first `n < 16` lanes.
    ///
    /// # Safety
    /// `n` values from `p` on can be written.
    unsafe fn store_part(self, p: *mut f32, n: usize);

    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;

    /// `self · b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;

    /// `self > b ? self : b`: a NaN in either makes it `b`.
    fn max(self, b: Self) -> Self;

    /// `self < b ? self : b`: a NaN in either makes it `b`.
    fn min(self, b: Self) -> Self;

    /// `self · 2^n` for results in the normal range, where `t = 1.5·2^23 + n`.
    fn scale2(self, t: Self) -> Self;

    /// `self` where `x ≥ least` or `x` is NaN, else zero.
    fn where_at_least(self, x: Self, least: Self) -> Self;

    fn sum(self) -> f32;

    /// The largest lane.
    fn top(self) -> f32;
}

/// What is compiled for every kind of lanes.
pub(super) trait LaneKernel {
    type Out;

    /// `#[inline(always)]`, so that it is compiled with the features of the function that calls it.
    fn run<V: Lanes>(self) -> Self::Out;
}

/// The widest lanes of this processor, for people.
pub(super) fn kind() -> &'static str {
    struct Kind;
    impl LaneKernel for Kind {
        type Out = &'static str;

        #[inline(always)]
        fn run<V: Lanes>(self) -> &'static str {
            V::NAME
        }
    }
    dispatch(Kind)
}

/// Runs `job` with the widest lanes of this processor.
pub(super) fn dispatch<J: LaneKernel>(job: J) -> J::Out {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
        fn wide<J: LaneKernel>(job: J) -> J::Out {
            job.run::<x86::Wide>()
        }
        #[target_feature(enable = "avx2,fma,f16c")]
        fn pair<J: LaneKernel>(job: J) -> J::Out {
            job.run::<x86::Pair>()
        }
        let middle =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        if middle && super::avx512::floats() && is_x86_feature_detected!("avx512dq") {
            // SAFETY: the features were detected.
            return unsafe { wide(job) };
        }
        if middle {
            // SAFETY: the features were detected.
            return unsafe { pair(job) };
        }
    }
    job.run::<Plain>()
}

/// An array, for the compiler to make of it what it can.
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; 16]);

impl Plain {
    #[inline(always)]
    fn zip(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Plain(std::array::from_fn(|i| f(self.0[i], b.0[i])))
    }

    #[inline(always)]
    fn halve(self, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut v = self.0;
        for n in [8, 4, 2, 1] {
            for i in 0..n {
                v[i] = f(v[i], v[i + n]);
            }
        }
        v[0]
    }
}

/// Functions of two, lane by lane.
macro_rules! plain {
    ($($name:ident($a:ident, $b:ident) = $value:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, other: Self) -> Self {
            self.zip(other, |$a, $b| $value)
        }
    )*};
}

impl Lanes for Plain {
    const NAME: &'static str = "portable";

    #[inline(always)]
    fn splat(v: f32) -> Self {
        Plain([v; 16])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: as the caller vouches.
        Plain(unsafe { p.cast::<[f32; 16]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize, fill: f32) -> Self {
        let mut v = [fill; 16];
        // SAFETY: as the caller vouches.
        v[..n].copy_from_slice(unsafe { std::slice::from_raw_parts(p, n) });
        Plain(v)
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: as the caller vouches.
        Plain(unsafe { p.cast::<[f16; 16]>().read_unaligned() }.map(f16::to_f32))
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: as the caller vouches.
        Plain(unsafe { p.cast::<[i8; 16]>().read_unaligned() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: as the caller vouches.
        unsafe { p.cast::<[f32; 16]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        // SAFETY: as the caller vouches; an array of ours does not overlap it.
        unsafe { p.copy_from_nonoverlapping(self.0[..n].as_ptr(), n) };
    }

    plain! {
        add(a, b) = a + b;
        sub(a, b) = a - b;
        mul(a, b) = a * b;
        div(a, b) = a / b;
        max(a, b) = if a > b { a } else { b };
        min(a, b) = if a < b { a } else { b };
        scale2(y, t) = f32::from_bits(y.to_bits().wrapping_add(t.to_bits() << 23));
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        Plain(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }

    #[inline(always)]
    fn where_at_least(self, x: Self, least: Self) -> Self {
        Plain(std::array::from_fn(|i| if x.0[i] < least.0[i] { 0.0 } else { self.0[i] }))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        self.halve(|a, b| a + b)
    }

    #[inline(always)]
    fn top(self) -> f32 {
        self.halve(|a, b| if a > b { a } else { b })
    }
}

/// A function of one number, lane by lane. `of` is `#[inline(always)]`, as [`LaneKernel::run`].
pub(super) trait Map: Copy {
    fn of<V: Lanes>(self, x: V) -> V;
}

/// `Σ c[i]·x^i`, highest power first in `c`.
#[inline(always)]
fn poly<V: Lanes>(x: V, c: &[f32]) -> V {
    let mut y = V::splat(c[0]);
    for &c in &c[1..] {
        y = y.fma(x, V::splat(c));
    }
    y
}

/// As [`poly`] with a one before the first of `c`: the highest power costs no product.
#[inline(always)]
fn monic<V: Lanes>(x: V, c: &[f32]) -> V {
    let mut y = x.add(V::splat(c[0]));
    for &c in &c[1..] {
        y = y.fma(x, V::splat(c));
    }
    y
}

/// `e^x` to 2 parts in 10^7; zero below -87, no more than `e^88`. Two to the nearest whole power of `x / ln 2`, times a minimax
/// polynomial (relative error 7.5e-8) of what is left.
#[inline(always)]
pub(super) fn exp<V: Lanes>(x: V) -> V {
    // Constants come first so that NaN passes.
    let (least, most) = (V::splat(-87.0), V::splat(88.0));
    let c = most.min(least.max(x));
    // Adding 1.5·2^23 rounds to the nearest integer.
    let magic = V::splat(12_582_912.0);
    let log2e = V::splat(std::f32::consts::LOG2_E);
    let t = c.fma(log2e, magic);
    // The product is exact within the multiply-add; the second constant is what `log2e` lacks.
    let f = c.fma(log2e, magic.sub(t));
    let f = c.fma(V::splat(1.925_963_2e-8), f);
    let y = poly(f, &[0.001_327_647_2, 0.009_675_542, 0.055_507_13, 0.240_221_2, 0.693_146_94, 1.000_000_1]);
    y.scale2(t).where_at_least(x, least)
}

/// `Φ(x) - 1/2` of the normal distribution. It is odd, so `x` times a rational function of `x²` (degrees 5 and 5, fitted for the least
/// largest error of its product with `x`, 2e-8 without rounding). Beyond ±5.5 the tail is below 2e-8.
#[inline(always)]
pub(super) fn normal_part<V: Lanes>(x: V) -> V {
    let c = V::splat(5.5).min(V::splat(-5.5).max(x));
    let u = c.mul(c);
    let p = poly(u, &[0.018_584_553, 5.463_234, 152.968_37, 3_983.283_2, 29_397.975, 333_730.9]);
    let q = monic(u, &[65.760_74, 1_641.655_8, 24_593.19, 213_110.53, 836_539.94]);
    c.mul(p).div(q)
}

/// Functions of one number that hold nothing.
macro_rules! maps {
    ($($(#[$doc:meta])* $name:ident($x:ident: $v:ident) -> V $body:block)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Map for $name {
            #[inline(always)]
            fn of<$v: Lanes>(self, $x: $v) -> $v $body
        }
    )*};
}

maps! {
    Same(x: V) -> V {
        x
    }

    Relu(x: V) -> V {
        V::splat(0.0).max(x)
    }

    /// `x·Φ(x)`.
    GeluErf(x: V) -> V {
        // What goes in below the tail stays there, or its product would grow again.
        let low = V::splat(-5.5).max(x);
        low.mul(normal_part(low).add(V::splat(0.5)))
    }

    /// `x·σ(x)`.
    Silu(x: V) -> V {
        // The exponential ends at e^88: so must what it divides.
        let x = V::splat(-88.0).max(x);
        x.div(exp(V::splat(0.0).sub(x)).add(V::splat(1.0)))
    }

    /// `x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`, which is `x·σ(2√(2/π)·(x + 0.044715·x³))`.
    GeluTanh(x: V) -> V {
        const A: f32 = -1.595_769;
        let x = V::splat(-88.0).max(x);
        let inner = x.mul(x.mul(x).fma(V::splat(0.044_715 * A), V::splat(A)));
        x.div(exp(inner).add(V::splat(1.0)))
    }

    Sigmoid(x: V) -> V {
        V::splat(1.0).div(exp(V::splat(0.0).sub(x)).add(V::splat(1.0)))
    }

    /// `x` times a rational function of `x²` (degrees 4 and 4, relative error 2e-8 without rounding).
    Tanh(x: V) -> V {
        let c = V::splat(9.02).min(V::splat(-9.02).max(x));
        let u = c.mul(c);
        let p = poly(u, &[1.331_906_3e-8, 2.058_347_3e-5, 0.003_494_034, 0.133_797_17, 1.0]);
        let q = poly(u, &[7.762_015_5e-7, 0.000_328_309_2, 0.025_871_072, 0.467_130_33, 1.0]);
        // Rounding could lift the ends above one.
        V::splat(1.0).min(V::splat(-1.0).max(c.mul(p).div(q)))
    }

    Relu6(x: V) -> V {
        V::splat(6.0).min(V::splat(0.0).max(x))
    }

    /// `min(max(x + 3, 0), 6) / 6`.
    HardSigmoid(x: V) -> V {
        Relu6.of(x.add(V::splat(3.0))).mul(V::splat(1.0 / 6.0))
    }

    /// `x · min(max(x + 3, 0), 6) / 6`.
    HardSwish(x: V) -> V {
        let x = V::splat(-3.0).max(x);
        x.mul(HardSigmoid.of(x))
    }
}
