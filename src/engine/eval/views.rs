//! Disturbed views of images: what makes a network err on images that it was trained on about as often as it errs on new
//! ones. Calibration images are usually training images; a trial on them as they are sees next to no damage.
//!
//! Views must stay images of the kind that the network was trained on. Corruptions (noise, blur, dimming) are left out on
//! purpose: compressed networks suffer from them out of proportion (Hooker et al., "What do compressed deep neural
//! networks forget?", 2019), and a re-fit never saw such statistics, so that they would exaggerate every loss.
//!
//! Each kind has one strength, 0 (the image itself) to 1; every image gets its own draw below it, so that a set of views
//! has easy and hard ones as new images do. Invariants: a view is a function of (kind, strength, image number, seed) and
//! of the batch it is blended within; values stay finite; input and output are prepared images `[N, C, H, W]`, f32.

use candle_core::{Device, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// What is done to an image. What comes in from outside repeats the edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disturbance {
    /// Moved, by up to 60 % of each side.
    Shift,
    /// Turned, by up to half a turn.
    Turn,
    /// A part of it enlarged, down to a quarter of each side.
    Zoom,
    /// Mixed with another image of the batch (as in mixup, Zhang et al. 2018, under the label of the stronger one).
    Blend,
}

impl Disturbance {
    pub const ALL: [Disturbance; 4] = [Disturbance::Shift, Disturbance::Turn, Disturbance::Zoom, Disturbance::Blend];

    pub fn label(self) -> &'static str {
        match self {
            Disturbance::Shift => "shift",
            Disturbance::Turn => "turn",
            Disturbance::Zoom => "zoom",
            Disturbance::Blend => "blend",
        }
    }

    /// Views of `x` `[N, C, H, W]`, prepared images of which the first is number `first` of its set.
    ///
    /// # Errors
    /// A tensor that is no batch of images.
    pub fn views(self, x: &Tensor, first: usize, strength: f64, seed: u64) -> candle_core::Result<Tensor> {
        let (n, c, h, w) = x.dims4()?;
        let values = x.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
        let one = c * h * w;
        let mut out = vec![0f32; values.len()];
        out.par_chunks_mut(one.max(1)).enumerate().for_each(|(i, out)| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed ^ ((first + i) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            rng.set_stream(self as u64 + 1);
            let image = Image { values: &values[i * one..(i + 1) * one], c, h, w };
            // Uniform below the strength: a set has all degrees.
            let s = (strength.clamp(0.0, 1.0) * rng.random::<f64>()) as f32;
            let mut sign = || rng.random::<f32>() * 2.0 - 1.0;
            match self {
                Disturbance::Shift => {
                    let (dy, dx) = (0.6 * s * sign() * h as f32, 0.6 * s * sign() * w as f32);
                    image.seen(0.0, 1.0, (dy, dx), out);
                }
                Disturbance::Turn => image.seen(s * std::f32::consts::PI * sign().signum(), 1.0, (0.0, 0.0), out),
                Disturbance::Zoom => {
                    let part = 0.25f32.powf(s);
                    let room = 0.5 * (1.0 - part);
                    image.seen(0.0, part, (room * sign() * h as f32, room * sign() * w as f32), out);
                }
                Disturbance::Blend => {
                    let other = if n > 1 { (i + 1 + rng.random_range(0..n - 1)) % n } else { i };
                    let part = 0.65 * s;
                    for ((o, a), b) in out.iter_mut().zip(image.values).zip(&values[other * one..(other + 1) * one]) {
                        *o = (1.0 - part) * a + part * b;
                    }
                }
            }
        });
        Tensor::from_vec(out, (n, c, h, w), &Device::Cpu)
    }
}

/// One prepared image, planes of rows.
struct Image<'a> {
    values: &'a [f32],
    c: usize,
    h: usize,
    w: usize,
}

impl Image<'_> {
    /// Bilinear value at a place, clamped to the edge.
    fn at(&self, plane: usize, y: f32, x: f32) -> f32 {
        let (y, x) = (y.clamp(0.0, (self.h - 1) as f32), x.clamp(0.0, (self.w - 1) as f32));
        let (y0, x0) = (y as usize, x as usize);
        let (y1, x1) = ((y0 + 1).min(self.h - 1), (x0 + 1).min(self.w - 1));
        let (fy, fx) = (y - y0 as f32, x - x0 as f32);
        let v = |y: usize, x: usize| self.values[(plane * self.h + y) * self.w + x];
        let top = v(y0, x0) * (1.0 - fx) + v(y0, x1) * fx;
        let bottom = v(y1, x0) * (1.0 - fx) + v(y1, x1) * fx;
        top * (1.0 - fy) + bottom * fy
    }

    /// The image turned by `turn` radians, `part` of each side filling the frame, seen from `(dy, dx)` pixels beside its
    /// middle.
    fn seen(&self, turn: f32, part: f32, (dy, dx): (f32, f32), out: &mut [f32]) {
        let (sin, cos) = (turn.sin() * part, turn.cos() * part);
        let (cy, cx) = ((self.h - 1) as f32 / 2.0, (self.w - 1) as f32 / 2.0);
        for plane in 0..self.c {
            for y in 0..self.h {
                for x in 0..self.w {
                    let (ry, rx) = (y as f32 - cy, x as f32 - cx);
                    let value = self.at(plane, cy + dy + cos * ry - sin * rx, cx + dx + sin * ry + cos * rx);
                    out[(plane * self.h + y) * self.w + x] = value;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(n: usize) -> Tensor {
        let values: Vec<f32> = (0..n * 3 * 12 * 10).map(|i| ((i * 7919) % 1013) as f32 / 500.0 - 1.0).collect();
        Tensor::from_vec(values, (n, 3, 12, 10), &Device::Cpu).unwrap()
    }

    fn flat(x: &Tensor) -> Vec<f32> {
        x.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn strength_zero_is_the_image_and_more_strength_is_farther_from_it() {
        let x = images(8);
        for kind in Disturbance::ALL {
            let far = |s: f64| -> f64 {
                let v = kind.views(&x, 5, s, 1).unwrap();
                assert_eq!(v.dims(), x.dims());
                let d: f64 = flat(&v).iter().zip(flat(&x)).map(|(a, b)| f64::from((a - b) * (a - b))).sum();
                assert!(d.is_finite(), "{kind:?}");
                d
            };
            assert!(far(0.0) < 1e-6, "{kind:?} moves at strength 0: {}", far(0.0));
            assert!(far(0.05) < far(1.0) && far(0.05) > 0.0, "{kind:?}: {} {}", far(0.05), far(1.0));
        }
    }

    #[test]
    fn a_view_depends_on_the_image_number_and_the_seed_alone() {
        let x = images(6);
        for kind in [Disturbance::Shift, Disturbance::Turn, Disturbance::Zoom] {
            let all = kind.views(&x, 0, 0.8, 3).unwrap();
            let tail = kind.views(&x.narrow(0, 4, 2).unwrap(), 4, 0.8, 3).unwrap();
            assert_eq!(flat(&all.narrow(0, 4, 2).unwrap()), flat(&tail), "{kind:?}");
            assert_ne!(flat(&all), flat(&kind.views(&x, 0, 0.8, 4).unwrap()), "{kind:?}");
        }
    }

    #[test]
    fn a_shift_moves_and_repeats_the_edge_and_a_zoom_keeps_a_constant() {
        let ramp: Vec<f32> = (0..64).map(|i| (i % 8) as f32).collect();
        let image = Image { values: &ramp, c: 1, h: 8, w: 8 };
        let mut out = vec![0f32; 64];
        image.seen(0.0, 1.0, (0.0, 2.0), &mut out);
        assert_eq!(out[..8], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 7.0, 7.0]);
        image.seen(std::f32::consts::PI, 1.0, (0.0, 0.0), &mut out);
        assert!((out[0] - 7.0).abs() < 1e-4 && out[7].abs() < 1e-4, "{:?}", &out[..8]);
        image.seen(0.0, 0.5, (0.0, 0.0), &mut out);
        assert!((out[0] - 1.75).abs() < 1e-5 && (out[7] - 5.25).abs() < 1e-5, "the middle half: {:?}", &out[..8]);
        let constant = Tensor::full(0.5f32, (1, 1, 9, 9), &Device::Cpu).unwrap();
        for kind in Disturbance::ALL {
            let v = flat(&kind.views(&constant, 0, 1.0, 0).unwrap());
            assert!(v.iter().all(|v| (v - 0.5).abs() < 1e-5), "{kind:?}");
        }
    }
}
