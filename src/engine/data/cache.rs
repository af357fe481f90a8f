//! Decoded and cropped images of a set that is read again and again: calibration and evaluation images of every round.
//!
//! It holds bytes after resizing and before normalisation, the first ones that came until it is full, and forgets all of
//! them when another geometry is asked for. What it holds is the same as decoding again.

use crate::model::{Fit, Interpolation, Preprocess};
use image::RgbImage;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Bytes of pixels that a set keeps: some 1,700 images of 224 by 224.
const MOST: usize = 256 << 20;

/// All of a [`Preprocess`] that resized bytes depend on.
type Geometry = ([usize; 2], Option<usize>, Fit, Interpolation);

#[derive(Debug, Default)]
struct Held {
    geometry: Option<Geometry>,
    bytes: usize,
    images: HashMap<usize, Arc<RgbImage>>,
}

#[derive(Debug, Default)]
pub(super) struct Cache(RwLock<Held>);

fn geometry(prep: &Preprocess) -> Geometry {
    (prep.size, prep.resize_shorter, prep.fit, prep.interpolation)
}

impl Cache {
    pub fn get(&self, k: usize, prep: &Preprocess) -> Option<Arc<RgbImage>> {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        (held.geometry == Some(geometry(prep))).then(|| held.images.get(&k).cloned()).flatten()
    }

    pub fn put(&self, k: usize, prep: &Preprocess, image: Arc<RgbImage>) {
        let mut held = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if held.geometry != Some(geometry(prep)) {
            *held = Held { geometry: Some(geometry(prep)), ..Held::default() };
        }
        let bytes = image.as_raw().len();
        if held.bytes + bytes <= MOST && held.images.insert(k, image).is_none() {
            held.bytes += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_what_fits_and_forgets_another_geometry() {
        let (cache, prep) = (Cache::default(), Preprocess::imagenet([4096, 4096]));
        // 48 MiB each: five fit.
        let image = Arc::new(RgbImage::new(4096, 4096));
        (0..7).for_each(|k| cache.put(k, &prep, image.clone()));
        (0..7).for_each(|k| cache.put(k, &prep, image.clone()));
        assert_eq!((0..7).filter(|&k| cache.get(k, &prep).is_some()).count(), 5);
        let other = Preprocess { resize_shorter: Some(5000), ..prep.clone() };
        assert!(cache.get(0, &other).is_none());
        cache.put(6, &other, image);
        assert!(cache.get(6, &other).is_some() && cache.get(0, &prep).is_none());
    }
}
