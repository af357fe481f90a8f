//! Images of one size as bytes in memory: what CIFAR's files, IDX files and the synthetic set come down to.
//!
//! Files of this kind are read whole, so that a file changed later cannot disturb a running session.

use super::DataError;
use super::error::KINDS;
use crate::files;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// No file of this kind is nearly as large; a mistaken path, or a small file that inflates, must not fill the memory.
pub(super) const MAX_BYTES: u64 = 1 << 30;

/// Size and colours of the images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub width: usize,
    pub height: usize,
    /// 1 (grey) or 3 (red, green, blue).
    pub channels: usize,
}

impl Shape {
    pub fn bytes(self) -> usize {
        self.width * self.height * self.channels
    }
}

/// Images in one or more runs of records: some bytes of another kind, then the planes, row-major.
#[derive(Debug)]
pub(super) struct Raw {
    pub shape: Shape,
    /// Bytes before the pixels in each record.
    skip: usize,
    runs: Vec<Vec<u8>>,
    labels: Vec<u32>,
}

impl Raw {
    /// `None` when the runs do not hold exactly one whole record for each label.
    pub fn new(shape: Shape, skip: usize, runs: Vec<Vec<u8>>, labels: Vec<u32>) -> Option<Raw> {
        let record = skip.checked_add(shape.bytes())?;
        let whole = shape.bytes() > 0 && runs.iter().all(|r| r.len().is_multiple_of(record));
        let count: usize = runs.iter().map(|r| r.len() / record.max(1)).sum();
        (whole && count == labels.len()).then_some(Raw { shape, skip, runs, labels })
    }

    /// Records of one label byte and the planes; what is left of the last one is dropped.
    pub fn from_records(shape: Shape, records: Vec<u8>) -> Raw {
        let labels = records.chunks_exact(1 + shape.bytes()).filter_map(|r| r.first().copied().map(u32::from));
        Raw { shape, skip: 1, labels: labels.collect(), runs: vec![records] }
    }

    /// Images there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    pub fn label(&self, k: usize) -> Option<u32> {
        self.labels.get(k).copied()
    }

    /// The planes of image `k`, counted over all runs.
    pub fn pixels(&self, mut k: usize) -> Option<&[u8]> {
        let record = self.skip + self.shape.bytes();
        for run in &self.runs {
            let n = run.len() / record;
            if k < n {
                return run.get(k * record + self.skip..(k + 1) * record);
            }
            k -= n;
        }
        None
    }
}

/// A whole file, inflated when it is gzipped; at most [`MAX_BYTES`] of it.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    let large = || DataError::TooLarge { path: path.to_owned(), limit: MAX_BYTES };
    let mut bytes = files::read(path, MAX_BYTES).map_err(|e| match e.kind() {
        ErrorKind::InvalidInput => DataError::unknown(path, e.to_string()),
        ErrorKind::FileTooLarge => large(),
        _ => DataError::opening(path, KINDS)(e),
    })?;
    if bytes.starts_with(&GZIP) {
        let mut inflated = Vec::new();
        let mut reader = flate2::read::MultiGzDecoder::new(&bytes[..]).take(MAX_BYTES + 1);
        reader.read_to_end(&mut inflated).map_err(DataError::io(path))?;
        bytes = inflated;
    }
    if bytes.len() as u64 > MAX_BYTES {
        return Err(large());
    }
    Ok(bytes)
}

/// How a gzip file begins.
pub(super) const GZIP: [u8; 2] = [0x1f, 0x8b];
