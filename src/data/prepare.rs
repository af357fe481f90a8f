//! From RGB bytes to a network's input: resize, centre crop, normalise.
//!
//! Follows PIL and torchvision: antialiased bilinear or bicubic (Catmull-Rom, a = -0.5) on bytes, the long side floored,
//! the crop's corner rounded. Images that already have the wanted size are not resampled.

use super::DataError;
use crate::model::{Interpolation, Preprocess};
use image::RgbImage;
use image::imageops::{self, FilterType};

/// A checked [`Preprocess`] with its byte → value tables.
pub(super) struct Ready<'a> {
    prep: &'a Preprocess,
    table: [[f32; 256]; 3],
}

impl<'a> Ready<'a> {
    pub(super) fn new(prep: &'a Preprocess) -> Result<Ready<'a>, DataError> {
        let bad = |reason: String| Err(DataError::Preprocess { reason });
        let [h, w] = prep.size;
        if !(1..=4096).contains(&h) || !(1..=4096).contains(&w) {
            return bad(format!("input size `{h}x{w}` is not within 1 to 4096"));
        }
        if prep.resize_shorter.is_some_and(|s| !(1..=8192).contains(&s)) {
            return bad(format!("shorter side `{}` is not within 1 to 8192", prep.resize_shorter.unwrap_or(0)));
        }
        if !prep.std.iter().all(|s| s.is_finite() && *s > 0.0) || !prep.mean.iter().all(|m| m.is_finite()) {
            return bad(format!("mean `{:?}` and std `{:?}` must be finite, std above zero", prep.mean, prep.std));
        }
        let mut table = [[0f32; 256]; 3];
        for (t, (mean, std)) in table.iter_mut().zip(prep.mean.iter().zip(&prep.std)) {
            for (byte, v) in t.iter_mut().enumerate() {
                *v = (byte as f32 / 255.0 - mean) / std;
            }
        }
        Ok(Ready { prep, table })
    }

    /// `pixels`: three `side`x`side` planes; `out`: `[3, h, w]`.
    pub(super) fn planes(&self, pixels: &[u8], side: usize, out: &mut [f32]) -> Result<(), DataError> {
        let area = side * side;
        if self.prep.size == [side, side] && self.prep.resize_shorter.is_none_or(|s| s == side) {
            for ((out, plane), table) in out.chunks_exact_mut(area).zip(pixels.chunks_exact(area)).zip(&self.table) {
                for (o, &b) in out.iter_mut().zip(plane) {
                    *o = table[usize::from(b)];
                }
            }
            return Ok(());
        }
        let interleaved = (0..area).flat_map(|i| [0, 1, 2].map(|c| pixels.get(c * area + i).copied().unwrap_or(0)));
        let image = RgbImage::from_raw(side as u32, side as u32, interleaved.collect())
            .ok_or_else(|| DataError::Preprocess { reason: "image planes of the wrong size".into() })?;
        self.image(image, out);
        Ok(())
    }

    /// `out`: `[3, h, w]`.
    pub(super) fn image(&self, image: RgbImage, out: &mut [f32]) {
        let image = fit(image, self.prep);
        let area = self.prep.size[0] * self.prep.size[1];
        for (c, (out, table)) in out.chunks_exact_mut(area).zip(&self.table).enumerate() {
            for (o, px) in out.iter_mut().zip(image.pixels()) {
                *o = table[usize::from(px.0[c])];
            }
        }
    }
}

/// Resizes and crops to exactly `prep.size`.
fn fit(image: RgbImage, prep: &Preprocess) -> RgbImage {
    let [h, w] = prep.size.map(|s| s as u32);
    let filter = match prep.interpolation {
        Interpolation::Bilinear => FilterType::Triangle,
        Interpolation::Bicubic => FilterType::CatmullRom,
    };
    let resize = |im: RgbImage, w: u32, h: u32| {
        if im.dimensions() == (w, h) { im } else { imageops::resize(&im, w, h, filter) }
    };
    let Some(shorter) = prep.resize_shorter else {
        return resize(image, w, h);
    };
    let (iw, ih) = image.dimensions();
    let (nw, nh) = cover(iw, ih, shorter as u32, w, h);
    let resized = resize(image, nw, nh);
    let corner = |have: u32, want: u32| have.saturating_sub(want).div_ceil(2);
    // torchvision rounds half to even: 0.5 → 0, 1.5 → 2, 2.5 → 2.
    let even = |have: u32, want: u32| {
        let up = corner(have, want);
        if have.saturating_sub(want) % 4 == 1 { up - 1 } else { up }
    };
    imageops::crop_imm(&resized, even(nw, w), even(nh, h), w, h).to_image()
}

/// Size after scaling the shorter side to `shorter`, or as much more as covering `w`x`h` takes; at most 16 times longer
/// than wide, so that a hostile strip of pixels cannot ask for gigabytes.
fn cover(iw: u32, ih: u32, shorter: u32, w: u32, h: u32) -> (u32, u32) {
    let (iw, ih) = (u64::from(iw.max(1)), u64::from(ih.max(1)));
    let short = iw.min(ih);
    let scaled = |s: u64| (iw * s / short, ih * s / short);
    let mut s = u64::from(shorter);
    let (nw, nh) = scaled(s);
    if nw < u64::from(w) || nh < u64::from(h) {
        s = u64::from(w.max(h));
    }
    let (nw, nh) = scaled(s);
    let cap = 16 * s;
    (nw.min(cap) as u32, nh.min(cap) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prep(size: [usize; 2], resize_shorter: Option<usize>) -> Preprocess {
        Preprocess {
            size,
            resize_shorter,
            mean: [0.5, 0.25, 0.0],
            std: [0.5, 0.25, 1.0],
            interpolation: Interpolation::Bilinear,
            origin: String::new(),
        }
    }

    #[test]
    fn normalises_each_channel() {
        let p = prep([1, 1], None);
        let mut out = [0f32; 3];
        Ready::new(&p).unwrap().image(RgbImage::from_raw(1, 1, vec![255, 0, 51]).unwrap(), &mut out);
        assert_eq!(out, [1.0, -1.0, 51.0 / 255.0]);
    }

    #[test]
    fn covers_and_floors_as_torchvision_does() {
        assert_eq!(cover(500, 375, 256, 224, 224), (341, 256));
        assert_eq!(cover(375, 500, 256, 224, 224), (256, 341));
        assert_eq!(cover(32, 32, 16, 24, 24), (24, 24));
        assert_eq!(cover(1, 60_000, 256, 224, 224), (256, 4096));
    }

    #[test]
    fn crops_the_centre() {
        // Columns 0..6 hold 0,10,..,50; cropping 2 of 6 takes columns 2 and 3.
        let image = RgbImage::from_fn(6, 2, |x, _| image::Rgb([0, 0, x as u8 * 10]));
        let p = prep([2, 2], Some(2));
        let mut out = [0f32; 12];
        Ready::new(&p).unwrap().image(image, &mut out);
        assert_eq!(&out[8..], [20.0 / 255.0, 30.0 / 255.0, 20.0 / 255.0, 30.0 / 255.0]);
        // An odd surplus of three rounds 1.5 to 2, of one rounds 0.5 to 0.
        let strip = |n: u32| RgbImage::from_fn(n, 2, |x, _| image::Rgb([x as u8, 0, 0]));
        assert_eq!(fit(strip(5), &p).get_pixel(0, 0).0[0], 2);
        assert_eq!(fit(strip(3), &p).get_pixel(0, 0).0[0], 0);
    }

    #[test]
    fn refuses_impossible_preprocessing() {
        assert!(Ready::new(&prep([0, 4], None)).is_err());
        assert!(Ready::new(&prep([4, 4], Some(0))).is_err());
        let mut p = prep([4, 4], None);
        p.std[1] = 0.0;
        assert!(matches!(Ready::new(&p), Err(DataError::Preprocess { .. })));
    }
}
