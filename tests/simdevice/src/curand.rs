//! cuRAND: pseudorandom generators of the host interface.
//!
//! By the cuRAND 13.0 documentation (docs.nvidia.com/cuda/curand), "Host API Overview" and the module "Host API".
//! Every kind of pseudorandom generator draws from Philox 4x32-10 here: good numbers, the same in every run, and
//! **not** the sequence that XORWOW, the default kind, has on a real device. Not here: quasirandom generators,
//! Poisson numbers, the device interface.

use crate::gemm::peak;
use crate::handles::Handles;
use crate::memory::check_write;
use crate::misuse;
use crate::stream::{Cost, enqueue};
use std::f64::consts::TAU;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SUCCESS: u32 = 0;
const NOT_INITIALIZED: u32 = 101;
const TYPE_ERROR: u32 = 103;
const OUT_OF_RANGE: u32 = 104;
const LENGTH_NOT_MULTIPLE: u32 = 105;
const LAUNCH_FAILURE: u32 = 201;

/// A generator: where it is in its sequence is the device's knowledge, for what is queued advances it when it is
/// carried out.
#[derive(Debug, Clone, Default)]
struct Generator {
    stream: usize,
    seed: u64,
    /// Words of 32 bits that were drawn.
    position: Arc<AtomicU64>,
}

static GENERATORS: Handles<Generator> = Handles::new("curandGenerator_t", 0xC0A0);

fn with(generator: usize, who: &str, f: impl FnOnce(&mut Generator)) -> u32 {
    GENERATORS.with(generator, who, f).map_or(NOT_INITIALIZED, |()| SUCCESS)
}

/// Word `at` of the sequence of `seed`: Salmon and others, "Parallel random numbers: as easy as 1, 2, 3" (2011).
fn philox(seed: u64, block: u64) -> [u32; 4] {
    let mut counter = [block as u32, (block >> 32) as u32, 0, 0];
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let product = |m: u32, c: u32| u64::from(m) * u64::from(c);
        let (a, b) = (product(0xD251_1F53, counter[0]), product(0xCD9E_8D57, counter[2]));
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// The words of a sequence from some place on.
struct Words {
    seed: u64,
    at: u64,
    block: [u32; 4],
}

impl Words {
    fn next(&mut self) -> u32 {
        if self.at.is_multiple_of(4) {
            self.block = philox(self.seed, self.at / 4);
        }
        self.at += 1;
        self.block[(self.at as usize - 1) % 4]
    }

    /// In `(0, 1]`: "0.0 is excluded and 1.0 is included".
    fn uniform(&mut self) -> f32 {
        (f64::from(self.next()) * 2f64.powi(-32) + 2f64.powi(-33)) as f32
    }

    fn uniform_f64(&mut self) -> f64 {
        let wide = u64::from(self.next()) << 32 | u64::from(self.next());
        ((wide >> 11) + 1) as f64 * 2f64.powi(-53)
    }
}

/// Two independent normal numbers, by Box and Muller.
fn normal(u: f64, v: f64) -> [f64; 2] {
    let (radius, (sin, cos)) = ((-2.0 * u.ln()).sqrt(), (TAU * v).sin_cos());
    [radius * sin, radius * cos]
}

/// Queues the writing of `n` values of `T` to `out`. `words` are drawn for each; `f` makes two at once.
fn generate<T: 'static>(
    who: &'static str,
    generator: usize,
    out: u64,
    n: usize,
    words: u64,
    f: impl Fn(&mut Words) -> [T; 2] + Send + Sync + 'static,
) -> u32 {
    let Some(generator) = GENERATORS.get(generator, who) else { return NOT_INITIALIZED };
    if n == 0 {
        return SUCCESS;
    }
    let bytes = n * size_of::<T>();
    // Ten rounds and a transform: some twenty operations a number.
    let cost = Cost { bytes: bytes as u64, flops: 20 * n as u64, peak: peak::F32 };
    let result = enqueue(
        generator.stream,
        who,
        cost,
        Box::new(move || {
            if !out.is_multiple_of(size_of::<T>() as u64) {
                misuse!("{who}: {out:#x} is no address of a value of {} bytes", size_of::<T>())
            }
            check_write(out, bytes, who);
            // Each call begins with a block of its own.
            let drawn = (n.next_multiple_of(2) as u64 * words).next_multiple_of(4);
            let at = generator.position.fetch_add(drawn, Ordering::AcqRel);
            let mut source = Words { seed: generator.seed, at, block: philox(generator.seed, at / 4) };
            for i in (0..n).step_by(2) {
                for (j, value) in f(&mut source).into_iter().enumerate().take(n - i) {
                    // SAFETY: checked.
                    unsafe { (out as *mut T).add(i + j).write(value) };
                }
            }
        }),
    );
    if result == 0 { SUCCESS } else { LAUNCH_FAILURE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandCreateGenerator(to: *mut usize, kind: u32) -> u32 {
    match kind {
        100 | 101 | 121 | 141 | 142 | 161 => {}
        200..=204 => {
            eprintln!("simdevice: cuRAND: a quasirandom generator is not made of software");
            return TYPE_ERROR;
        }
        _ => return TYPE_ERROR,
    }
    // SAFETY: the library's contract: room for one.
    unsafe { to.write(GENERATORS.make(Generator::default())) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandDestroyGenerator(generator: usize) -> u32 {
    GENERATORS.destroy(generator, "curandDestroyGenerator").map_or(NOT_INITIALIZED, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandGetVersion(version: *mut c_int) -> u32 {
    if version.is_null() {
        return OUT_OF_RANGE;
    }
    // SAFETY: the library's contract. cuRAND counts on its own: 10.4 comes with CUDA 13.0.
    unsafe { version.write(10_400) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandSetStream(generator: usize, stream: usize) -> u32 {
    with(generator, "curandSetStream", |g| g.stream = stream)
}

/// The sequence of the seed begins anew; what was queued before keeps to the old one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandSetPseudoRandomGeneratorSeed(generator: usize, seed: u64) -> u32 {
    with(generator, "curandSetPseudoRandomGeneratorSeed", |g| {
        *g = Generator { seed, position: Arc::default(), ..g.clone() };
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandSetGeneratorOffset(generator: usize, offset: u64) -> u32 {
    with(generator, "curandSetGeneratorOffset", |g| g.position = Arc::new(AtomicU64::new(offset)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandGenerate(generator: usize, out: u64, n: usize) -> u32 {
    generate("curandGenerate", generator, out, n, 1, |w| [w.next(), w.next()])
}

/// "`CURAND_STATUS_TYPE_ERROR` if the generator is not a 64 bit quasirandom generator": none is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandGenerateLongLong(generator: usize, _out: u64, _n: usize) -> u32 {
    with(generator, "curandGenerateLongLong", |_| ()).max(TYPE_ERROR * u32::from(generator != 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandGenerateUniform(generator: usize, out: u64, n: usize) -> u32 {
    generate("curandGenerateUniform", generator, out, n, 1, |w| [w.uniform(), w.uniform()])
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandGenerateUniformDouble(generator: usize, out: u64, n: usize) -> u32 {
    generate("curandGenerateUniformDouble", generator, out, n, 2, |w| [w.uniform_f64(), w.uniform_f64()])
}

/// The calls for normal numbers and what follows from them. "Normally distributed results are generated from
/// pseudorandom generators with a Box-Muller transform, and so require `n` to be even":
/// `CURAND_STATUS_LENGTH_NOT_MULTIPLE`.
macro_rules! normal {
    ($name:ident, $type:ty, $words:expr, $draw:ident, $end:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(generator: usize, out: u64, n: usize, mean: $type, deviation: $type) -> u32 {
            let (mean, deviation): (f64, f64) = (mean.into(), deviation.into());
            if GENERATORS.get(generator, stringify!($name)).is_some() && n % 2 == 1 {
                return LENGTH_NOT_MULTIPLE;
            }
            generate(stringify!($name), generator, out, n, $words, move |w| {
                normal(w.$draw().into(), w.$draw().into()).map(|z| $end(mean + deviation * z) as $type)
            })
        }
    };
}

normal!(curandGenerateNormal, f32, 1, uniform, |v: f64| v);
normal!(curandGenerateNormalDouble, f64, 2, uniform_f64, |v: f64| v);
normal!(curandGenerateLogNormal, f32, 1, uniform, f64::exp);
normal!(curandGenerateLogNormalDouble, f64, 2, uniform_f64, f64::exp);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ends, take, test_memory};

    fn generator(seed: u64) -> usize {
        let mut generator = 0;
        // SAFETY: room for one.
        unsafe {
            assert_eq!(curandCreateGenerator(&raw mut generator, 100), SUCCESS);
            assert_eq!(curandSetPseudoRandomGeneratorSeed(generator, seed), SUCCESS);
        }
        generator
    }

    fn uniform(generator: usize, n: usize) -> Vec<f32> {
        let at = test_memory(4 * n);
        // SAFETY: room for `n`.
        assert_eq!(unsafe { curandGenerateUniform(generator, at, n) }, SUCCESS);
        take(at, n)
    }

    #[test]
    fn philox_is_the_published_one() {
        // The known answers of Random123 for 4x32 with ten rounds: zeros, and a counter of ones with a key of ones.
        assert_eq!(philox(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    }

    #[test]
    fn a_seed_names_a_sequence() {
        let (a, b, c) = (generator(7), generator(7), generator(8));
        let (x, y) = (uniform(a, 12), uniform(b, 12));
        assert_eq!(x, y);
        assert_ne!(x, uniform(c, 12));
        assert_ne!(x, uniform(a, 12), "the sequence goes on");
        // SAFETY: a handle that lives.
        assert_eq!(unsafe { curandSetGeneratorOffset(a, 4) }, SUCCESS);
        assert_eq!(uniform(a, 8), x[4..], "from the fifth number on");
    }

    #[test]
    fn uniform_numbers_are_above_zero_and_may_be_one() {
        let values = uniform(generator(1), 100_001);
        assert!(values.iter().all(|v| *v > 0.0 && *v <= 1.0));
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
        let ends = |word| (f64::from(word) * 2f64.powi(-32) + 2f64.powi(-33)) as f32;
        assert!(ends(0u32) > 0.0 && ends(u32::MAX) == 1.0);
    }

    #[test]
    fn normal_numbers_have_their_moments() {
        let (n, g) = (100_000, generator(2));
        let (at, wide) = (test_memory(4 * n), test_memory(8 * n));
        // SAFETY: room for `n`.
        unsafe {
            assert_eq!(curandGenerateNormal(g, at, n, 3.0, 2.0), SUCCESS);
            assert_eq!(curandGenerateNormalDouble(g, wide, n, -1.0, 0.5), SUCCESS);
        }
        let moments = |v: Vec<f64>| {
            let mean = v.iter().sum::<f64>() / n as f64;
            (mean, (v.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64).sqrt())
        };
        let (mean, deviation) = moments(take::<f32>(at, n).into_iter().map(f64::from).collect());
        assert!((mean - 3.0).abs() < 0.03 && (deviation - 2.0).abs() < 0.02, "{mean} {deviation}");
        let (mean, deviation) = moments(take::<f64>(wide, n));
        assert!((mean + 1.0).abs() < 0.01 && (deviation - 0.5).abs() < 0.01, "{mean} {deviation}");
    }

    #[test]
    fn what_the_documentation_refuses_is_refused() {
        let g = generator(3);
        let at = test_memory(64);
        let mut to = 0;
        // SAFETY: room for seven and eight values.
        unsafe {
            assert_eq!(curandGenerateNormal(g, at, 7, 0.0, 1.0), LENGTH_NOT_MULTIPLE);
            assert_eq!(curandGenerateNormalDouble(g, at, 7, 0.0, 1.0), LENGTH_NOT_MULTIPLE);
            assert_eq!(curandGenerateLogNormal(g, at, 8, 0.0, 1.0), SUCCESS);
            assert_eq!(curandGenerateUniform(g, at, 7), SUCCESS);
            assert_eq!(curandGenerateUniform(0, at, 7), NOT_INITIALIZED);
            assert_eq!(curandGenerateNormal(0, at, 7, 0.0, 1.0), NOT_INITIALIZED);
            assert_eq!(curandGenerateLongLong(g, at, 2), TYPE_ERROR);
            assert_eq!(curandCreateGenerator(&raw mut to, 99), TYPE_ERROR);
            assert_eq!(curandCreateGenerator(&raw mut to, 201), TYPE_ERROR);
            assert_eq!((curandDestroyGenerator(0), curandDestroyGenerator(g)), (NOT_INITIALIZED, SUCCESS));
        }
    }

    #[test]
    fn a_generator_after_its_end_ends_the_run() {
        let said = ends("curand::tests::a_generator_after_its_end_ends_the_run", || {
            let g = generator(3);
            // SAFETY: that is the test.
            unsafe {
                curandDestroyGenerator(g);
                curandGenerateUniform(g, 256, 1);
            }
        });
        assert!(said.contains("curandGenerateUniform: the curandGenerator_t"), "{said}");
    }
}
