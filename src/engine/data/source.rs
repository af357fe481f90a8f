//! Where the images of a set lie, and what a reader of encoded images tells of them.

use super::{DataError, Items, raw};
use bytes::Bytes;
use std::fmt::Debug;
use std::sync::Arc;

/// Where the images lie.
#[derive(Debug)]
pub(super) enum Source {
    /// Images of one size as bytes in memory (CIFAR, IDX, the synthetic set).
    Raw(raw::Raw),
    /// Encoded images, decoded on demand: image files, in tar files, in Parquet files.
    Encoded(Box<dyn Encoded>),
    /// No images.
    Items(Arc<dyn Items>),
}

/// Encoded images of one kind of source.
pub(super) trait Encoded: Debug + Send + Sync {
    /// The class of image `k`; `None` past the end.
    fn label(&self, k: usize) -> Option<u32>;

    /// Where image `k` is, in words.
    fn name(&self, k: usize) -> String;

    /// Bytes of image `k` when they can be told without reading it.
    fn size(&self, _k: usize) -> Option<u64> {
        None
    }

    /// What `picks` are called, or the files that they are in, wherever the whole set lies; and how many bytes each has.
    fn stored(&self, picks: &[usize]) -> Vec<(String, u64)>;

    /// The encoded bytes of image `k`.
    ///
    /// # Errors
    /// A file that cannot be read, an index past the end.
    fn read(&self, k: usize) -> Result<Bytes, DataError>;

    /// The encoded bytes of all of `picks`, in their order, where it is better to read them together; else nothing.
    ///
    /// # Errors
    /// As [`Encoded::read`].
    fn together(&self, _picks: &[usize]) -> Result<Vec<Bytes>, DataError> {
        Ok(Vec::new())
    }
}

impl Source {
    /// The class of image `k` of the source.
    pub fn label(&self, k: usize) -> Option<u32> {
        match self {
            Source::Raw(r) => r.label(k),
            Source::Encoded(e) => e.label(k),
            Source::Items(_) => None,
        }
    }

    /// See [`Encoded::together`].
    pub fn together(&self, picks: &[usize]) -> Result<Vec<Bytes>, DataError> {
        match self {
            Source::Encoded(e) => e.together(picks),
            Source::Raw(_) | Source::Items(_) => Ok(Vec::new()),
        }
    }

    /// What each of `picks` holds: pixels, the bytes of its encoded form, an item's content. One is read when it is asked
    /// for, unless they are read together.
    pub fn contents<'a>(&'a self, picks: &'a [usize]) -> impl Iterator<Item = Result<Bytes, DataError>> + 'a {
        let mut together = self.together(picks).unwrap_or_default().into_iter();
        picks.iter().map(move |&k| match (together.next(), self) {
            (Some(bytes), _) => Ok(bytes),
            (None, Source::Raw(r)) => {
                r.pixels(k).map(Bytes::copy_from_slice).ok_or(DataError::Index { index: k, len: r.len() })
            }
            (None, Source::Encoded(e)) => e.read(k),
            (None, Source::Items(items)) => {
                items.content(k).map(Bytes::from).ok_or(DataError::Index { index: k, len: items.len() })
            }
        })
    }
}
