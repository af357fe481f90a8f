//! From RGB bytes to a network's input: resize, centre crop, grey where the network wants it, normalise.
//!
//! Resizing is Pillow's (`resize`); sizes and corners are torchvision's, timm's or Hugging Face's as [`Fit`] says. Images
//! that already have the wanted size are not resampled.

use super::DataError;
use super::raw::Shape;
use super::resize::{Window, resize};
use crate::model::{Fit, Preprocess};
use image::RgbImage;

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
        if !matches!(prep.channels, 1 | 3) {
            return bad(format!("the network's input has {} channels: images have 3, or 1 when grey", prep.channels));
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

    /// `pixels`: planes of `shape`; `out`: `[C, h, w]`.
    pub(super) fn planes(&self, pixels: &[u8], shape: Shape, out: &mut [f32]) -> Result<(), DataError> {
        let area = shape.width * shape.height;
        let fits = self.prep.size == [shape.height, shape.width] && self.keeps(shape.width, shape.height);
        // Equal planes, or one plane for each wanted.
        if fits && (shape.channels == self.prep.channels || shape.channels == 1) {
            let planes = pixels.chunks_exact(area).cycle();
            for ((out, plane), table) in out.chunks_exact_mut(area).zip(planes).zip(&self.table) {
                for (o, &b) in out.iter_mut().zip(plane) {
                    *o = table[usize::from(b)];
                }
            }
            return Ok(());
        }
        let plane = |c: usize| if shape.channels == 1 { 0 } else { c };
        let interleaved =
            (0..area).flat_map(|i| [0, 1, 2].map(|c| pixels.get(plane(c) * area + i).copied().unwrap_or(0)));
        let image = RgbImage::from_raw(shape.width as u32, shape.height as u32, interleaved.collect())
            .ok_or_else(|| DataError::Preprocess { reason: "image planes of the wrong size".into() })?;
        self.image(image, out);
        Ok(())
    }

    /// Whether an image of this size, which is the network's, passes through unchanged.
    fn keeps(&self, width: usize, height: usize) -> bool {
        self.prep
            .resize_shorter
            .is_none_or(|s| s == width.min(height) && (width == height || self.prep.fit != Fit::SquashFloor))
    }

    /// `out`: `[C, h, w]`.
    pub(super) fn image(&self, image: RgbImage, out: &mut [f32]) {
        self.fitted(&self.fit(image), out);
    }

    /// Resized and cropped to exactly the network's size.
    pub(super) fn fit(&self, image: RgbImage) -> RgbImage {
        let prep = self.prep;
        let [h, w] = prep.size;
        let have = (image.width() as usize, image.height() as usize);
        let full = match prep.resize_shorter {
            None => (w, h),
            Some(s) => resized(have, s, prep.fit, (w, h)),
        };
        let corner = |have: usize, want: usize| corner(have - want.min(have), prep.fit);
        let window = Window { x: corner(full.0, w), y: corner(full.1, h), w, h };
        if full == have && full == (w, h) {
            return image;
        }
        resize(&image, full, window, prep.interpolation)
    }

    /// `image` has the network's size; `out`: `[C, h, w]`.
    pub(super) fn fitted(&self, image: &RgbImage, out: &mut [f32]) {
        let area = self.prep.size[0] * self.prep.size[1];
        if self.prep.channels == 1 {
            let [table, ..] = &self.table;
            for (o, px) in out.iter_mut().zip(image.pixels()) {
                *o = table[usize::from(grey(px.0))];
            }
            return;
        }
        for (c, (out, table)) in out.chunks_exact_mut(area).zip(&self.table).enumerate() {
            for (o, px) in out.iter_mut().zip(image.pixels()) {
                *o = table[usize::from(px.0[c])];
            }
        }
    }
}

/// Pillow's `convert("L")`: ITU-R 601-2 luma with 16 fractional bits. Grey stays as it is.
fn grey([r, g, b]: [u8; 3]) -> u8 {
    ((u32::from(r) * 19595 + u32::from(g) * 38470 + u32::from(b) * 7471 + 0x8000) >> 16) as u8
}

/// Where a crop begins that leaves `surplus` pixels out.
fn corner(surplus: usize, fit: Fit) -> usize {
    match fit {
        Fit::ShorterFloor | Fit::SquashFloor => surplus / 2,
        // `int(round(surplus / 2.0))` of Python: half to even, 0.5 → 0, 1.5 → 2, 2.5 → 2.
        Fit::Shorter if surplus % 4 == 3 => surplus / 2 + 1,
        Fit::Shorter => surplus / 2,
    }
}

/// Size (width, height) before the crop: the shorter side becomes `shorter`, the other one in proportion and floored; or
/// as much more as covering `want` takes, where the libraries would pad with black.
fn resized(have: (usize, usize), shorter: usize, fit: Fit, want: (usize, usize)) -> (usize, usize) {
    let short = have.0.min(have.1).max(1);
    let scaled = |s: usize| match fit {
        Fit::SquashFloor => (s, s),
        Fit::Shorter | Fit::ShorterFloor => (have.0 * s / short, have.1 * s / short),
    };
    let full = scaled(shorter);
    if full.0 < want.0 || full.1 < want.1 { scaled(want.0.max(want.1)) } else { full }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prep(size: [usize; 2], resize_shorter: Option<usize>) -> Preprocess {
        let (mean, std) = ([0.5, 0.25, 0.0], [0.5, 0.25, 1.0]);
        Preprocess { resize_shorter, fit: Fit::Shorter, mean, std, ..Preprocess::imagenet(size) }
    }

    #[test]
    fn normalises_each_channel() {
        let p = prep([1, 1], None);
        let mut out = [0f32; 3];
        Ready::new(&p).unwrap().image(RgbImage::from_raw(1, 1, vec![255, 0, 51]).unwrap(), &mut out);
        assert_eq!(out, [1.0, -1.0, 51.0 / 255.0]);
    }

    #[test]
    fn sizes_and_corners_are_the_libraries() {
        let size = |have, shorter, fit| resized(have, shorter, fit, (224, 224));
        assert_eq!(size((500, 375), 256, Fit::Shorter), (341, 256));
        assert_eq!(size((375, 500), 256, Fit::ShorterFloor), (256, 341));
        assert_eq!(size((375, 500), 256, Fit::SquashFloor), (256, 256));
        assert_eq!(size((32, 32), 16, Fit::Shorter), (224, 224));
        assert_eq!(size((1, 20_000), 256, Fit::Shorter), (256, 5_120_000));
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(|s| corner(s, Fit::Shorter)), [0, 0, 1, 2, 2, 2, 3, 4]);
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(|s| corner(s, Fit::ShorterFloor)), [0, 0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn a_long_strip_takes_no_more_memory_than_its_crop() {
        // Resized whole it would have four billion pixels.
        let strip = RgbImage::from_fn(1, 20_000, |_, y| image::Rgb([if y < 10_000 { 0 } else { 250 }; 3]));
        let p = prep([224, 224], Some(256));
        let out = Ready::new(&p).unwrap().fit(strip);
        assert_eq!(out.dimensions(), (224, 224));
        assert!(out.get_pixel(0, 0).0[0] < 126 && out.get_pixel(0, 223).0[0] > 124);
    }

    #[test]
    fn grey_networks_take_any_image() {
        let mut p = prep([2, 2], None);
        p.channels = 1;
        let ready = Ready::new(&p).unwrap();
        let mut out = [0f32; 4];
        ready.image(RgbImage::from_pixel(2, 2, image::Rgb([255, 0, 0])), &mut out);
        // Pillow: (255 * 19595 + 32768) >> 16 = 76.
        assert_eq!(out, [(76.0 / 255.0 - 0.5) / 0.5; 4]);
        let shape = Shape { width: 2, height: 2, channels: 1 };
        ready.planes(&[0, 255, 51, 102], shape, &mut out).unwrap();
        assert_eq!(out[1], 1.0);
        // And grey images feed colour networks.
        let p = prep([2, 2], None);
        let mut out = [0f32; 12];
        Ready::new(&p).unwrap().planes(&[0, 255, 51, 102], shape, &mut out).unwrap();
        assert_eq!((out[1], out[5], out[9]), (1.0, 3.0, 1.0));
        p.channels.checked_sub(3).unwrap();
        assert!(Ready::new(&Preprocess { channels: 4, ..p }).is_err());
    }

    #[test]
    fn crops_the_centre() {
        // Columns 0..6 hold 0,10,..,50; cropping 2 of 6 takes columns 2 and 3.
        let image = RgbImage::from_fn(6, 2, |x, _| image::Rgb([0, 0, x as u8 * 10]));
        let p = prep([2, 2], Some(2));
        let mut out = [0f32; 12];
        let ready = Ready::new(&p).unwrap();
        ready.image(image, &mut out);
        assert_eq!(&out[8..], [20.0 / 255.0, 30.0 / 255.0, 20.0 / 255.0, 30.0 / 255.0]);
        // An odd surplus of three rounds 1.5 to 2, of one rounds 0.5 to 0.
        let strip = |n: u32| RgbImage::from_fn(n, 2, |x, _| image::Rgb([x as u8, 0, 0]));
        assert_eq!(ready.fit(strip(5)).get_pixel(0, 0).0[0], 2);
        assert_eq!(ready.fit(strip(3)).get_pixel(0, 0).0[0], 0);
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
