//! The synthetic demo set: ten classes of 32x32 RGB images, drawn from a seed.
//!
//! A class is a silhouette (disc, square, triangle, cross, ring) with a plain or a striped fill. Position, size,
//! tilt, aspect, colours, background, clutter, an occluding bar and noise vary freely and say nothing of the class.
//! Training images are a little harder than those that models are calibrated and evaluated on.
//! Invariant: image `i` of a split is a function of (split, `i`) alone and the same bytes on every machine: one ChaCha8
//! stream per image, and only `+ - * /`, square roots, comparisons and floors, which IEEE 754 defines exactly (no
//! `sin`, no `exp`, no fused multiply-add).

use super::cifar::{PIXELS, SHAPE, SIDE};
use super::raw::Raw;
use super::{DataCard, DataError, Dataset, Source, prepare};
use crate::model::Preprocess;
use candle_core::{Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rayon::prelude::*;

/// One name per class; class = 2 · silhouette + striped.
pub const CLASSES: [&str; 10] = [
    "disc",
    "striped disc",
    "square",
    "striped square",
    "triangle",
    "striped triangle",
    "cross",
    "striped cross",
    "ring",
    "striped ring",
];

/// [`CLASSES`] as models and data sets hold them.
pub fn class_names() -> Vec<String> {
    CLASSES.map(str::to_owned).to_vec()
}

/// Normalisation of the demo models: bytes become values from -2 to 2.
pub const MEAN: [f32; 3] = [0.5, 0.5, 0.5];
pub const STD: [f32; 3] = [0.25, 0.25, 0.25];

const SEED: u64 = 0x7061_7269_6e67_0001;

/// Disjoint parts: each draws from its own random streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    Train,
    Calib,
    Eval,
}

impl Split {
    /// Images in the split.
    pub fn images(self) -> usize {
        match self {
            Split::Train => 20_000,
            Split::Calib => 2_000,
            Split::Eval => 4_000,
        }
    }

    /// Its name, its random streams' number and how hard its images are.
    fn facts(self) -> (&'static str, u64, Look) {
        let usual = Look { noise: 14.0, occluded: 0.3, radius: 8.0, stripes: 0.5 };
        // Training images are harder than the others, which is cheap augmentation.
        let hard = Look { noise: 18.0, occluded: 0.4, radius: 7.0, stripes: 0.8 };
        match self {
            Split::Train => ("train", 1, hard),
            Split::Calib => ("calib", 2, usual),
            Split::Eval => ("eval", 3, usual),
        }
    }

    /// The number of its random streams.
    pub(super) fn stream(self) -> u64 {
        self.facts().1
    }

    /// Its name, as [`Split::parse`] takes it.
    pub(super) fn name(self) -> &'static str {
        self.facts().0
    }

    /// `synthetic` (the evaluation split) or `synthetic:NAME`; `None` for any other spec.
    pub(super) fn parse(spec: &str) -> Result<Option<Split>, DataError> {
        if spec == "synthetic" {
            return Ok(Some(Split::Eval));
        }
        let Some(name) = spec.strip_prefix("synthetic:") else { return Ok(None) };
        let found = [Split::Train, Split::Calib, Split::Eval].into_iter().find(|s| s.facts().0 == name);
        let hint = "use `synthetic:eval`, `synthetic:calib` or `synthetic:train`".to_owned();
        found.map(Some).ok_or(DataError::Split { spec: spec.to_owned(), hint })
    }
}

/// How hard the images of a split are.
#[derive(Debug, Clone, Copy)]
struct Look {
    /// Largest standard deviation of the noise, in byte steps.
    noise: f32,
    /// Share of images with a bar across.
    occluded: f32,
    /// Smallest radius in pixels.
    radius: f32,
    /// How near the stripes' second tone may come to the first, 0 to 1.
    stripes: f32,
}

/// The split, at most `limit` images of it (0: all).
pub fn dataset(split: Split, limit: usize) -> Dataset {
    let images = if limit == 0 { split.images() } else { limit.min(split.images()) };
    let mut bytes = vec![0u8; images * (1 + PIXELS)];
    bytes.par_chunks_exact_mut(1 + PIXELS).enumerate().for_each(|(i, record)| {
        if let Some((label, pixels)) = record.split_first_mut() {
            *label = draw(split, i as u64, pixels);
        }
    });
    let (name, ..) = split.facts();
    let (name, spec) = (format!("synthetic-{name}"), format!("synthetic:{name}"));
    let card = DataCard { limit, ..DataCard::of(name, &spec, images, class_names()) };
    Dataset::new(card, Source::Raw(Raw::from_records(SHAPE, bytes)), true)
}

/// Images `at..at + size` of `split` as `prep` makes them, `[size, 3, height, width]`, and their classes.
///
/// # Errors
/// A preprocessing that does not fit images of three channels.
pub fn batch(split: Split, at: u64, size: usize, prep: &Preprocess) -> Result<(Tensor, Vec<u32>), DataError> {
    let ready = prepare::Ready::new(prep)?;
    let [h, w] = prep.size;
    let mut x = vec![0f32; size * 3 * h * w];
    let labels = x
        .par_chunks_mut(3 * h * w)
        .enumerate()
        .map(|(i, out)| {
            let mut bytes = vec![0u8; PIXELS];
            let class = draw(split, at + i as u64, &mut bytes);
            ready.planes(&bytes, SHAPE, out)?;
            Ok(u32::from(class))
        })
        .collect::<Result<Vec<u32>, DataError>>()?;
    Ok((Tensor::from_vec(x, (size, 3, h, w), &Device::Cpu)?, labels))
}

/// Draws image `index` of `split` into `[3, 32, 32]` bytes and returns its class; classes alternate. Indices past
/// [`Split::images`] are further images of the same kind (training may use as many as it likes).
pub fn draw(split: Split, index: u64, pixels: &mut [u8]) -> u8 {
    let (_, stream, look) = split.facts();
    let mut seed = [0u8; 32];
    for (part, v) in seed.chunks_exact_mut(8).zip([SEED, stream, index, 0]) {
        part.copy_from_slice(&v.to_le_bytes());
    }
    let class = (index % CLASSES.len() as u64) as u8;
    Scene::new(class, look, Dice(ChaCha8Rng::from_seed(seed))).render(pixels);
    class
}

/// Random numbers with our own, fixed mapping from bits.
struct Dice(ChaCha8Rng);

impl Dice {
    /// Uniform in `[0, 1)`, a multiple of 2⁻²⁴.
    fn unit(&mut self) -> f32 {
        (self.0.next_u32() >> 8) as f32 / 16_777_216.0
    }

    fn range(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    fn chance(&mut self, p: f32) -> bool {
        self.unit() < p
    }

    /// A unit vector: a rational point of the circle in a random quadrant.
    fn direction(&mut self) -> [f32; 2] {
        let t = self.unit();
        let d = 1.0 + t * t;
        let (c, s) = ((1.0 - t * t) / d, 2.0 * t / d);
        match self.0.next_u32() >> 30 {
            0 => [c, s],
            1 => [-s, c],
            2 => [-c, -s],
            _ => [s, -c],
        }
    }

    fn colour(&mut self, low: f32, high: f32) -> [f32; 3] {
        [self.range(low, high), self.range(low, high), self.range(low, high)]
    }

    /// A unit vector near the first axis: slope between plus and minus `tilt`.
    fn upright(&mut self, tilt: f32) -> [f32; 2] {
        let t = self.range(-tilt, tilt);
        let norm = (1.0 + t * t).sqrt();
        [1.0 / norm, t / norm]
    }
}

fn mix(a: [f32; 3], b: [f32; 3], t: f32) -> [f32; 3] {
    [a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t, a[2] + (b[2] - a[2]) * t]
}

fn luminance(c: [f32; 3]) -> f32 {
    0.3 * c[0] + 0.59 * c[1] + 0.11 * c[2]
}

/// A straight bar of given half width; bounded along its length.
struct Bar {
    centre: [f32; 2],
    along: [f32; 2],
    half_length: f32,
    half_width: f32,
    colour: [f32; 3],
}

impl Bar {
    fn covers(&self, x: f32, y: f32) -> bool {
        let (dx, dy) = (x - self.centre[0], y - self.centre[1]);
        let u = dx * self.along[0] + dy * self.along[1];
        let v = dy * self.along[0] - dx * self.along[1];
        u.abs() <= self.half_length && v.abs() <= self.half_width
    }
}

/// Everything that is drawn, chosen before the first pixel.
struct Scene {
    class: u8,
    dice: Dice,
    centre: [f32; 2],
    axis: [f32; 2],
    radius: f32,
    aspect: f32,
    fill: [[f32; 3]; 2],
    stripe: [f32; 2],
    period: f32,
    phase: f32,
    ground: [[f32; 3]; 2],
    slope: [f32; 2],
    grid: [[f32; GRID]; GRID],
    clutter: Vec<Bar>,
    occluder: Option<Bar>,
    noise: f32,
}

/// Nodes per side of the background's smooth noise.
const GRID: usize = 6;
/// Least difference in luminance between a fill and the middle of its ground.
const CONTRAST: f32 = 40.0;

impl Scene {
    fn new(class: u8, look: Look, mut dice: Dice) -> Scene {
        let ground = dice.colour(20.0, 140.0);
        let ground2 = mix(ground, dice.colour(20.0, 140.0), 0.4);
        let middle = luminance(mix(ground, ground2, 0.5));
        // A fill that is brighter than its ground by at least a little; after some tries pale grey is.
        let mut body = dice.colour(60.0, 240.0);
        for _ in 0..16 {
            if luminance(body) - middle >= CONTRAST {
                break;
            }
            body = dice.colour(60.0, 240.0);
        }
        if luminance(body) - middle < CONTRAST {
            body = [225.0; 3];
        }
        // Stripes fall back towards the ground, never all the way.
        let other = mix(body, ground, dice.range(0.5, look.stripes));
        let clutter = (0..2 + dice.0.next_u32() % 4)
            .map(|_| Bar {
                centre: [dice.range(0.0, 32.0), dice.range(0.0, 32.0)],
                along: dice.direction(),
                half_length: dice.range(0.8, 3.2),
                half_width: dice.range(0.6, 1.3),
                colour: dice.colour(20.0, 235.0),
            })
            .collect();
        let occluder = dice.chance(look.occluded).then(|| Bar {
            centre: [dice.range(8.0, 24.0), dice.range(8.0, 24.0)],
            along: dice.direction(),
            half_length: 64.0,
            half_width: dice.range(0.7, 1.6),
            colour: dice.colour(20.0, 235.0),
        });
        let mut grid = [[0f32; GRID]; GRID];
        let swing = dice.range(4.0, 22.0);
        for v in grid.iter_mut().flatten() {
            *v = dice.range(-swing, swing);
        }
        Scene {
            class,
            centre: [dice.range(12.5, 19.5), dice.range(12.5, 19.5)],
            axis: dice.upright(0.5),
            radius: dice.range(look.radius, 11.0),
            aspect: dice.range(0.85, 1.18),
            fill: [body, other],
            stripe: dice.direction(),
            period: dice.range(3.2, 5.0),
            phase: dice.range(0.0, 5.0),
            ground: [ground, ground2],
            slope: dice.direction(),
            grid,
            clutter,
            occluder,
            noise: dice.range(6.0, look.noise),
            dice,
        }
    }

    /// Whether the silhouette covers the point.
    fn inside(&self, x: f32, y: f32) -> bool {
        let (dx, dy) = ((x - self.centre[0]) / self.radius, (y - self.centre[1]) / self.radius);
        let u = (dx * self.axis[0] + dy * self.axis[1]) * self.aspect;
        let v = (dy * self.axis[0] - dx * self.axis[1]) / self.aspect;
        let (au, av) = (u.abs(), v.abs());
        match self.class / 2 {
            0 => u * u + v * v <= 1.0,
            1 => au <= 0.88 && av <= 0.88,
            2 => v >= -0.62 && au * 1.732 + v <= 1.24,
            3 => (au <= 0.36 && av <= 1.12) || (av <= 0.36 && au <= 1.12),
            _ => (0.3..=1.2).contains(&(u * u + v * v)),
        }
    }

    fn striped(&self, x: f32, y: f32) -> bool {
        let s = (x * self.stripe[0] + y * self.stripe[1] + self.phase) / self.period + 64.0;
        self.class % 2 == 1 && s - s.floor() < 0.5
    }

    fn background(&self, x: f32, y: f32) -> [f32; 3] {
        let along = (x - 16.0) * self.slope[0] + (y - 16.0) * self.slope[1];
        let base = mix(self.ground[0], self.ground[1], (along / 32.0 + 0.5).clamp(0.0, 1.0));
        let step = SIDE as f32 / (GRID - 1) as f32;
        let (gx, gy) = (x / step, y / step);
        let (ix, iy) = ((gx as usize).min(GRID - 2), (gy as usize).min(GRID - 2));
        let (fx, fy) = (gx - ix as f32, gy - iy as f32);
        let row = |r: usize| self.grid[r][ix] + (self.grid[r][ix + 1] - self.grid[r][ix]) * fx;
        let swell = row(iy) + (row(iy + 1) - row(iy)) * fy;
        base.map(|v| v + swell)
    }

    fn render(mut self, pixels: &mut [u8]) {
        let area = SIDE * SIDE;
        for i in 0..area.min(pixels.len() / 3) {
            let (x, y) = ((i % SIDE) as f32, (i / SIDE) as f32);
            // Four samples per pixel soften the edges.
            let mut sum = [0f32; 3];
            for (sx, sy) in [(0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75)] {
                let c = self.sample(x + sx, y + sy);
                sum = [sum[0] + c[0], sum[1] + c[1], sum[2] + c[2]];
            }
            for (c, total) in sum.iter().enumerate() {
                pixels[c * area + i] = (total * 0.25 + self.grain() + 0.5).clamp(0.0, 255.0) as u8;
            }
        }
    }

    fn sample(&self, x: f32, y: f32) -> [f32; 3] {
        if let Some(bar) = self.occluder.as_ref().filter(|b| b.covers(x, y)) {
            return bar.colour;
        }
        if self.inside(x, y) {
            return self.fill[usize::from(self.striped(x, y))];
        }
        match self.clutter.iter().find(|b| b.covers(x, y)) {
            Some(bar) => bar.colour,
            None => self.background(x, y),
        }
    }

    /// Noise of standard deviation `noise`, nearly normal: the sum of four uniform bytes.
    fn grain(&mut self) -> f32 {
        let sum: u32 = self.dice.0.next_u32().to_le_bytes().iter().map(|&b| u32::from(b)).sum();
        (sum as f32 - 510.0) / 147.8 * self.noise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_the_same_bytes_everywhere() {
        let mut all = vec![0u8; 40 * PIXELS];
        for (i, px) in all.chunks_exact_mut(PIXELS).enumerate() {
            assert_eq!(usize::from(draw(Split::Eval, i as u64, px)), i % 10);
        }
        assert_eq!(
            blake3::hash(&all).to_hex().as_str(),
            "493ee04a578128d91e41513618e81cb95b4d0807e3ca24f71051fa48297bba59"
        );
    }

    #[test]
    fn splits_differ_and_limits_are_prefixes() {
        let eval = dataset(Split::Eval, 60);
        let calib = dataset(Split::Calib, 60);
        assert_eq!((eval.len(), eval.classes(), eval.overlaps(&calib)), (60, 10, 0));
        assert_eq!(dataset(Split::Eval, 25).overlaps(&eval), 25);
        assert_eq!(
            (0..20).map(|i| eval.label(i)).collect::<Vec<_>>(),
            (0..20).map(|i| Some(i % 10)).collect::<Vec<_>>()
        );
    }

    #[test]
    fn names_its_splits() {
        assert_eq!(Split::parse("synthetic").unwrap(), Some(Split::Eval));
        assert_eq!(Split::parse("synthetic:calib").unwrap(), Some(Split::Calib));
        assert_eq!(Split::parse("cifar").unwrap(), None);
        assert!(Split::parse("synthetic:nonsense").is_err());
    }

    #[test]
    fn fills_the_range_that_the_models_expect() {
        let d = dataset(Split::Train, 500);
        let p = Preprocess { mean: MEAN, std: STD, ..Preprocess::imagenet([SIDE, SIDE]) };
        let (x, _) = d.batch(0..500, &p).unwrap();
        let v = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let mean = v.iter().map(|&v| f64::from(v)).sum::<f64>() / v.len() as f64;
        let var = v.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / v.len() as f64 - mean * mean;
        assert!(mean.abs() < 0.7 && (0.4..1.6).contains(&var), "{mean} {var}");
    }
}
