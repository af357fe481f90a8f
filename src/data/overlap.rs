//! Which images two sets share: calibration images must not be evaluation images unless the user says so.

use super::cifar::SIDE;
use super::{Dataset, Source, folder};
use rayon::prelude::*;
use std::collections::HashSet;
use std::path::Path;

type Key = [u8; 32];

/// Number of images of `a` that are also in `b`.
pub(super) fn count(a: &Dataset, b: &Dataset) -> usize {
    match (&*a.source, &*b.source) {
        (Source::Files(_), Source::Files(_)) => {
            // File sizes first: reading every file of two large sets would take minutes.
            let sizes = |d: &Dataset| -> HashSet<u64> { paths(d).filter_map(size).collect() };
            let (in_a, in_b) = (sizes(a), sizes(b));
            let keys = |d: &Dataset, other: &HashSet<u64>| -> Vec<Key> {
                let alike: Vec<&Path> = paths(d).filter(|p| size(p).is_some_and(|s| other.contains(&s))).collect();
                alike.par_iter().filter_map(|p| Some(*blake3::hash(&std::fs::read(p).ok()?).as_bytes())).collect()
            };
            shared(&keys(a, &in_b), keys(b, &in_a))
        }
        _ => shared(&pixel_keys(a), pixel_keys(b)),
    }
}

fn shared(a: &[Key], b: Vec<Key>) -> usize {
    let b: HashSet<Key> = b.into_iter().collect();
    a.iter().filter(|k| b.contains(*k)).count()
}

fn paths(d: &Dataset) -> impl Iterator<Item = &Path> {
    (0..d.len()).filter_map(|i| match &*d.source {
        Source::Files(f) => Some(f.get(d.at(i)?)?.path.as_path()),
        Source::Planes(_) => None,
    })
}

fn size(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|m| m.len())
}

/// Keys over the pixel planes of all 32x32 images; others cannot equal a record's.
fn pixel_keys(d: &Dataset) -> Vec<Key> {
    let one = |i: usize| -> Option<Key> {
        match &*d.source {
            Source::Planes(p) => Some(*blake3::hash(p.get(d.at(i)?)?.1).as_bytes()),
            Source::Files(f) => {
                let path = &f.get(d.at(i)?)?.path;
                let side = SIDE as u32;
                if image::image_dimensions(path).ok()? != (side, side) {
                    return None;
                }
                let image = folder::decode(path).ok()?;
                let planes: Vec<u8> = (0..3).flat_map(|c| image.pixels().map(move |p| p.0[c])).collect();
                Some(*blake3::hash(&planes).as_bytes())
            }
        }
    };
    (0..d.len()).into_par_iter().filter_map(one).collect()
}
