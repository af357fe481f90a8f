//! Which images two sets share: calibration images must not be evaluation images unless the user says so.
//!
//! Two sets of encoded images share those with equal bytes; a set of raw pixels shares images that decode to them.

use super::raw::Shape;
use super::{Dataset, Source, decode};
use rayon::prelude::*;
use std::collections::HashSet;

type Key = [u8; 32];

/// Images read at a time.
const CHUNK: usize = 64;

/// Number of images of `a` that are also in `b`.
pub(super) fn count(a: &Dataset, b: &Dataset) -> usize {
    match (&*a.source, &*b.source) {
        (Source::Raw(x), Source::Raw(y)) if x.shape != y.shape => 0,
        (Source::Raw(x), _) => shared(&pixel_keys(a, x.shape), pixel_keys(b, x.shape)),
        (_, Source::Raw(y)) => shared(&pixel_keys(a, y.shape), pixel_keys(b, y.shape)),
        _ => {
            // Sizes first where they are known: reading every file of two large sets would take minutes.
            let sizes = |d: &Dataset| -> Option<HashSet<u64>> { (0..d.len()).map(|i| size(d, d.at(i)?)).collect() };
            let (in_a, in_b) = (sizes(a), sizes(b));
            let keys = |d: &Dataset, other: &Option<HashSet<u64>>| -> Vec<Key> {
                let alike = |k: &usize| match (size(d, *k), other) {
                    (Some(size), Some(other)) => other.contains(&size),
                    _ => true,
                };
                let alike: Vec<usize> = (0..d.len()).filter_map(|i| d.at(i)).filter(alike).collect();
                each(d, &alike, |bytes| Some(hash(bytes)))
            };
            shared(&keys(a, &in_b), keys(b, &in_a))
        }
    }
}

fn hash(bytes: &[u8]) -> Key {
    *blake3::hash(bytes).as_bytes()
}

fn shared(a: &[Key], b: Vec<Key>) -> usize {
    let b: HashSet<Key> = b.into_iter().collect();
    a.iter().filter(|k| b.contains(*k)).count()
}

/// Bytes of image `k` when they can be told without reading it.
fn size(d: &Dataset, k: usize) -> Option<u64> {
    match &*d.source {
        Source::Encoded(e) => e.size(k),
        Source::Raw(_) | Source::Items(_) => None,
    }
}

/// `key` of the encoded bytes of each of `picks`; those that cannot be read are left out.
fn each(d: &Dataset, picks: &[usize], key: impl Fn(&[u8]) -> Option<Key> + Sync) -> Vec<Key> {
    let chunk = |picks: &[usize]| -> Vec<Key> { d.source.contents(picks).filter_map(|b| key(&b.ok()?)).collect() };
    picks.par_chunks(CHUNK).flat_map_iter(chunk).collect()
}

/// Keys over the pixel planes of all images of `shape`; others cannot equal a raw one.
fn pixel_keys(d: &Dataset, shape: Shape) -> Vec<Key> {
    let picks: Vec<usize> = (0..d.len()).filter_map(|i| d.at(i)).collect();
    if let Source::Raw(raw) = &*d.source {
        return picks.par_iter().filter_map(|&k| Some(hash(raw.pixels(k)?))).collect();
    }
    each(d, &picks, |bytes| {
        if decode::dimensions(bytes)? != (shape.width as u32, shape.height as u32) {
            return None;
        }
        let image = decode::decode(bytes, &String::new).ok()?;
        let grey = image.pixels().all(|p| p.0[0] == p.0[1] && p.0[1] == p.0[2]);
        if shape.channels == 1 && !grey {
            return None;
        }
        let planes: Vec<u8> = (0..shape.channels).flat_map(|c| image.pixels().map(move |p| p.0[c])).collect();
        Some(hash(&planes))
    })
}
