//! Common corruptions of images, at five strengths: those of Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common
//! Corruptions and Perturbations" (ICLR 2019, arXiv:1903.12261), with the constants that made CIFAR-10-C and ImageNet-C
//! (`make_cifar_c.py`, `make_imagenet_c.py` of hendrycks/robustness).
//!
//! They work on the bytes that the network's preparation made of an image, at the network's size, and leave bytes: fractions are cut off, as there.
//! Invariant: what comes out is a function of the image, its number, kind, strength and seed. Not here: what JPEG does (`jpeg`).

use super::jpeg;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Strengths, counted from 1.
pub const STRENGTHS: usize = 5;

/// The largest side that has CIFAR-10-C's constants; larger images have ImageNet-C's, which are of 224 pixels.
const SMALL: usize = 64;

/// Pixels of one image: planes of rows, one or three.
#[derive(Debug)]
pub struct Image<'a> {
    pub bytes: &'a mut [u8],
    pub channels: usize,
    pub height: usize,
    pub width: usize,
}

/// What befalls an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Corruption {
    /// Independent normal noise on every value. The same draws at every strength, only larger.
    Noise,
    /// A Gaussian blur, cut off at four deviations; what comes in from outside repeats the edge.
    Blur,
    /// Less contrast: values are drawn towards their channel's mean.
    Contrast,
    /// Baseline JPEG with chroma halved both ways (4:2:0), as libjpeg does it.
    Jpeg,
}

impl Corruption {
    pub const ALL: [Corruption; 4] = [Corruption::Noise, Corruption::Blur, Corruption::Contrast, Corruption::Jpeg];

    pub fn label(self) -> &'static str {
        match self {
            Corruption::Noise => "noise",
            Corruption::Blur => "blur",
            Corruption::Contrast => "contrast",
            Corruption::Jpeg => "jpeg",
        }
    }

    /// The constant of a strength, 1 to [`STRENGTHS`], for images of this longer side: the deviation of noise (of values from 0 to 1) and of the
    /// blur (in pixels), the part of the contrast that is left, JPEG's quality.
    pub fn constant(self, strength: usize, side: usize) -> f64 {
        let (small, large) = match self {
            Corruption::Noise => ([0.04, 0.06, 0.08, 0.09, 0.10], [0.08, 0.12, 0.18, 0.26, 0.38]),
            Corruption::Blur => ([0.4, 0.6, 0.7, 0.8, 1.0], [1.0, 2.0, 3.0, 4.0, 6.0]),
            Corruption::Contrast => ([0.75, 0.5, 0.4, 0.3, 0.15], [0.4, 0.3, 0.2, 0.1, 0.05]),
            Corruption::Jpeg => ([80.0, 65.0, 58.0, 50.0, 40.0], [25.0, 18.0, 15.0, 10.0, 7.0]),
        };
        let at = strength.clamp(1, STRENGTHS) - 1;
        if side <= SMALL { small[at] } else { large[at] }
    }

    /// Corrupts image number `item`.
    pub fn apply(self, strength: usize, image: &mut Image<'_>, item: u64, seed: u64) {
        let by = self.constant(strength, image.height.max(image.width));
        match self {
            Corruption::Noise => {
                let mut normal = Normals::of(seed, item);
                let noisy: Vec<f64> = image.bytes.iter().map(|b| f64::from(*b) / 255.0 + by * normal.draw()).collect();
                put(&noisy, image.bytes);
            }
            Corruption::Blur => {
                let kernel = kernel(by);
                for plane in image.bytes.chunks_exact_mut((image.height * image.width).max(1)) {
                    let values: Vec<f64> = plane.iter().map(|b| f64::from(*b) / 255.0).collect();
                    let down = along(&values, (image.width, image.height), &kernel);
                    put(&along(&down, (1, image.width), &kernel), plane);
                }
            }
            Corruption::Contrast => {
                for plane in image.bytes.chunks_exact_mut((image.height * image.width).max(1)) {
                    let values: Vec<f64> = plane.iter().map(|b| f64::from(*b) / 255.0).collect();
                    let mean = values.iter().sum::<f64>() / values.len() as f64;
                    put(&values.iter().map(|v| (v - mean) * by + mean).collect::<Vec<f64>>(), plane);
                }
            }
            Corruption::Jpeg => jpeg::lossy(image, by as u32),
        }
    }
}

impl std::str::FromStr for Corruption {
    type Err = String;

    fn from_str(word: &str) -> Result<Corruption, String> {
        let known = || Corruption::ALL.map(Corruption::label).join(", ");
        let found = Corruption::ALL.into_iter().find(|c| c.label() == word);
        found.ok_or_else(|| format!("unknown corruption `{word}`; hint: {}, all or none", known()))
    }
}

/// Values from 0 to 1 as bytes; fractions are cut off.
fn put(values: &[f64], bytes: &mut [u8]) {
    bytes.iter_mut().zip(values).for_each(|(b, v)| *b = (v.clamp(0.0, 1.0) * 255.0) as u8);
}

/// Weights of a Gaussian blur, the middle one first: as far as four deviations, adding up to 1 on both sides together.
fn kernel(sigma: f64) -> Vec<f64> {
    let radius = (4.0 * sigma + 0.5) as usize;
    let mut half: Vec<f64> = (0..=radius).map(|d| (-0.5 * (d as f64 / sigma).powi(2)).exp()).collect();
    let sum = half[0] + 2.0 * half[1..].iter().sum::<f64>();
    half.iter_mut().for_each(|w| *w /= sum);
    half
}

/// `values` blurred along one axis, which has `length` places `step` values apart.
fn along(values: &[f64], (step, length): (usize, usize), kernel: &[f64]) -> Vec<f64> {
    let of = |i: usize| {
        let at = i / step % length;
        let line = i - at * step;
        let value = |p: isize| values[line + p.clamp(0, length as isize - 1) as usize * step];
        let sides = kernel.iter().enumerate().skip(1).map(|(d, w)| {
            let (at, d) = (at as isize, d as isize);
            w * (value(at - d) + value(at + d))
        });
        kernel[0] * values[i] + sides.sum::<f64>()
    };
    (0..values.len()).map(of).collect()
}

/// Standard normal numbers of one image: Box and Muller's, from words of ChaCha with eight rounds, whose key begins with the seed and whose
/// stream is the image's number.
pub(super) struct Normals {
    rng: ChaCha8Rng,
    /// The second of a pair.
    kept: Option<f64>,
}

impl Normals {
    pub fn of(seed: u64, item: u64) -> Normals {
        Normals { rng: stream(seed, item), kept: None }
    }

    pub fn draw(&mut self) -> f64 {
        if let Some(second) = self.kept.take() {
            return second;
        }
        let (radius, turn) = (uniform(&mut self.rng), uniform(&mut self.rng));
        let (radius, turn) = ((-2.0 * radius.ln()).sqrt(), std::f64::consts::TAU * turn);
        self.kept = Some(radius * turn.sin());
        radius * turn.cos()
    }
}

/// Words of image `item`.
pub(super) fn stream(seed: u64, item: u64) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_stream(item);
    rng
}

/// Between 0 and 1, neither of them.
pub(super) fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    (f64::from(rng.next_u32()) + 0.5) / 4_294_967_296.0
}
