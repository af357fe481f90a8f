//! What a data set held when a session first used it, so that a later start notices when it holds something else.
//!
//! Three hashes of rising cost. *Labels* of all images, in order. *Names*: what each image is called and how many bytes it
//! has, which needs no image read. *Content*: the bytes of the images, read at opening up to a limit (sets in memory
//! always), because reading a set of any size would make every start of a session as slow as an evaluation. Of larger sets
//! each image is hashed when it is read for use, which costs next to nothing beside decoding it: [`Dataset::seen`] tells
//! then whether a later pass over the same images saw the same bytes, before its figures are believed.

use super::{DataError, Dataset, Source};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

/// A 128-bit cut of BLAKE3 over one image's bytes.
type Digest = [u8; 16];

/// Images read at a time.
const CHUNK: usize = 64;

/// Hashes of a data set; see the module's page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataMark {
    pub images: usize,
    pub labels: String,
    pub names: String,
    /// `None`: more bytes than were to be read at opening.
    pub content: Option<String>,
}

impl DataMark {
    /// What `now` has otherwise, in words; `None` when both are the same as far as they were looked at.
    pub fn difference(&self, now: &DataMark) -> Option<String> {
        if self.images != now.images {
            return Some(format!("it has {} images, it had {}", now.images, self.images));
        }
        if self.labels != now.labels {
            return Some("its labels are not those of then".to_owned());
        }
        if self.names != now.names {
            return Some("its images have other names or sizes".to_owned());
        }
        match (&self.content, &now.content) {
            (Some(old), Some(new)) if old != new => Some("the content of its images changed".to_owned()),
            _ => None,
        }
    }
}

fn digest(bytes: &[u8]) -> Digest {
    let mut short = Digest::default();
    short.iter_mut().zip(blake3::hash(bytes).as_bytes()).for_each(|(s, b)| *s = *b);
    short
}

fn hex(hash: &blake3::Hasher) -> String {
    hash.finalize().to_hex().to_string()
}

/// Digests of images that were read, by their index in the source.
#[derive(Debug, Default)]
pub(super) struct Seen(RwLock<HashMap<usize, Digest>>);

impl Seen {
    /// Notes what image `k` held; false when it held something else before.
    pub fn note(&self, k: usize, bytes: &[u8]) -> bool {
        let new = digest(bytes);
        match self.get(k) {
            Some(old) => old == new,
            None => {
                self.0.write().unwrap_or_else(PoisonError::into_inner).insert(k, new);
                true
            }
        }
    }

    fn get(&self, k: usize) -> Option<Digest> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&k).copied()
    }
}

impl Dataset {
    /// What the set holds now; contents are read when they are no more than `most` bytes.
    ///
    /// # Errors
    /// An image that cannot be read.
    pub fn mark(&self, most: u64) -> Result<DataMark, DataError> {
        let all: Vec<usize> = (0..self.len()).filter_map(|i| self.at(i)).collect();
        let mut labels = blake3::Hasher::new();
        for &k in &all {
            labels.update(&self.source.label(k).unwrap_or(u32::MAX).to_le_bytes());
        }
        let mut names = blake3::Hasher::new();
        let mut total = 0u64;
        let mut add = |name: &str, size: u64| {
            names.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes()).update(&size.to_le_bytes());
            total = total.saturating_add(size);
        };
        match &*self.source {
            Source::Encoded(e) => e.stored(&all).iter().for_each(|(name, size)| add(name, *size)),
            Source::Raw(_) | Source::Items(_) => {}
        }
        let content = if total <= most { Some(self.content(&all)?) } else { None };
        Ok(DataMark { images: self.len(), labels: hex(&labels), names: hex(&names), content })
    }

    /// The hash over contents and labels of the given images, of which each was read before: `None` if one was not.
    pub fn seen<I>(&self, indices: I) -> Option<String>
    where
        I: IntoIterator<Item = usize>,
    {
        let mut hash = blake3::Hasher::new();
        for i in indices {
            let k = self.at(i)?;
            let (one, label) = match &*self.source {
                Source::Raw(r) => (digest(r.pixels(k)?), self.source.label(k)?),
                Source::Encoded(_) => (self.seen.get(k)?, self.source.label(k)?),
                // Their content has their targets in it.
                Source::Items(items) => (digest(&items.content(k)?), 0),
            };
            hash.update(&one).update(&label.to_le_bytes());
        }
        Some(hex(&hash))
    }

    /// The hash over the bytes of all images of `picks` (indices into the source).
    fn content(&self, picks: &[usize]) -> Result<String, DataError> {
        let chunk = |picks: &[usize]| -> Result<Vec<Digest>, DataError> {
            self.source.contents(picks).map(|bytes| Ok(digest(&bytes?))).collect()
        };
        let parts = picks.par_chunks(CHUNK).map(chunk).collect::<Result<Vec<_>, DataError>>()?;
        let mut hash = blake3::Hasher::new();
        parts.iter().flatten().for_each(|d| {
            hash.update(d);
        });
        Ok(hex(&hash))
    }
}
