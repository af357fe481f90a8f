//! Data sets and preprocessing, and the synthetic demo set.
//!
//! A [`Dataset`] is an immutable, cheaply cloned list of labelled images; [`Dataset::batch`] turns some of them into a
//! network's input. Not here: metrics (`eval`). Invariants: image `i` is the same image for as long as the set is open;
//! labels lie below `classes()`; foreign bytes never panic.

mod card;
mod cifar;
pub mod demo;
mod error;
mod folder;
mod overlap;
mod prepare;
pub mod synthetic;
pub mod train;

#[cfg(test)]
mod tests;

pub use card::DataCard;
pub use error::DataError;

use crate::model::Preprocess;
use candle_core::{Device, Tensor};
use rayon::prelude::*;
use std::borrow::Borrow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the images lie.
#[derive(Debug)]
enum Source {
    /// 32x32 images as byte planes in memory (CIFAR files, the synthetic set).
    Planes(cifar::Planes),
    /// Encoded image files, decoded on demand.
    Files(folder::Files),
}

/// A list of labelled RGB images.
#[derive(Debug, Clone)]
pub struct Dataset {
    card: DataCard,
    source: Arc<Source>,
    /// Which images of `source`, in order; `None`: all of them in their own order.
    order: Option<Arc<[u32]>>,
    /// Whether `card.classes` is a fact of the data set or only the largest label seen plus one.
    classes_known: bool,
}

/// Opens a data set; at most `limit` images of it (0: all).
///
/// `spec` is a CIFAR-10/100 binary file, several joined by commas, a directory of them (`DIR` takes the test part,
/// `DIR:train` the training part), a folder with one sub-folder of png/jpeg images per class (classes in sorted order),
/// a folder of images with a `labels.csv`, or `synthetic`, `synthetic:eval`, `synthetic:calib`, `synthetic:train`.
pub fn open(spec: &str, limit: usize) -> Result<Dataset, DataError> {
    if let Some(split) = synthetic::Split::parse(spec)? {
        return Ok(synthetic::dataset(split, limit));
    }
    let whole = Path::new(spec);
    let full = if whole.exists() {
        open_path(whole, Part::Test, spec)?
    } else if let Some((dir, part)) = split_suffix(spec) {
        open_path(Path::new(dir), part, spec)?
    } else if spec.contains(',') {
        let paths: Vec<PathBuf> = spec.split(',').map(|s| PathBuf::from(s.trim())).collect();
        cifar::open_files(&paths, spec)?
    } else {
        return Err(DataError::NotFound { path: whole.to_owned() });
    };
    Ok(if limit == 0 { full } else { full.take(limit) })
}

/// Which part of a directory that holds both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Test,
    Train,
}

fn split_suffix(spec: &str) -> Option<(&str, Part)> {
    let (dir, part) = spec.rsplit_once(':')?;
    match part {
        "test" => Some((dir, Part::Test)),
        "train" => Some((dir, Part::Train)),
        _ => None,
    }
}

fn open_path(path: &Path, part: Part, spec: &str) -> Result<Dataset, DataError> {
    let meta = std::fs::metadata(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => DataError::NotFound { path: path.to_owned() },
        _ => DataError::Io { path: path.to_owned(), source },
    })?;
    if meta.is_file() {
        return cifar::open_files(&[path.to_owned()], spec);
    }
    if !meta.is_dir() {
        return Err(DataError::Unknown { path: path.to_owned(), seen: "neither a file nor a directory".into() });
    }
    match cifar::files_in(path, part)? {
        Some(files) => cifar::open_files(&files, spec),
        None => folder::open(path, spec),
    }
}

impl Dataset {
    fn new(card: DataCard, source: Source, classes_known: bool) -> Dataset {
        Dataset { card, source: Arc::new(source), order: None, classes_known }
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.card.images
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of classes; every label is below it.
    pub fn classes(&self) -> usize {
        self.card.classes
    }

    /// One name per class.
    pub fn class_names(&self) -> &[String] {
        &self.card.class_names
    }

    pub fn card(&self) -> DataCard {
        self.card.clone()
    }

    /// The index into `source` of image `i`.
    fn at(&self, i: usize) -> Option<usize> {
        match &self.order {
            Some(order) => order.get(i).map(|&k| k as usize),
            None => (i < self.len()).then_some(i),
        }
    }

    /// The class of image `i`; `None` past the end.
    pub fn label(&self, i: usize) -> Option<u32> {
        let k = self.at(i)?;
        match &*self.source {
            Source::Planes(p) => p.get(k).map(|(label, _)| label),
            Source::Files(f) => f.get(k).map(|e| e.label),
        }
    }

    /// A set of at most `n` of these images: the first `n` of record files (their official order), evenly spread ones of
    /// an image folder (whose first images would all be of one class).
    pub fn take(&self, n: usize) -> Dataset {
        let n = n.min(self.len());
        let len = self.len();
        let spread = matches!(&*self.source, Source::Files(_));
        let pick = |j: usize| if spread { j * len / n.max(1) } else { j };
        let order = (0..n).filter_map(|j| self.at(pick(j))).map(|k| k as u32).collect();
        let mut card = self.card.clone();
        card.images = n;
        card.limit = n;
        Dataset { card, source: self.source.clone(), order: Some(order), classes_known: self.classes_known }
    }

    /// The given images as network input `[N, 3, H, W]` (f32, on the host) with their labels.
    ///
    /// `(byte / 255 - mean) / std` in f32; resized images go through bytes first, as PIL and torchvision do.
    pub fn batch<I>(&self, indices: I, prep: &Preprocess) -> Result<(Tensor, Vec<u32>), DataError>
    where
        I: IntoIterator,
        I::Item: Borrow<usize>,
    {
        let ready = prepare::Ready::new(prep)?;
        let len = self.len();
        let at = |i: usize| self.at(i).ok_or(DataError::Index { index: i, len });
        let picks = indices.into_iter().map(|i| at(*i.borrow())).collect::<Result<Vec<_>, _>>()?;
        let [h, w] = prep.size;
        let mut out = vec![0f32; picks.len() * 3 * h * w];
        let labels = out
            .par_chunks_mut(3 * h * w)
            .zip(picks.par_iter())
            .map(|(out, &k)| match &*self.source {
                Source::Planes(p) => {
                    let (label, pixels) = p.get(k).ok_or(DataError::Index { index: k, len })?;
                    ready.planes(pixels, cifar::SIDE, out)?;
                    Ok(label)
                }
                Source::Files(f) => {
                    let entry = f.get(k).ok_or(DataError::Index { index: k, len })?;
                    ready.image(folder::decode(&entry.path)?, out);
                    Ok(entry.label)
                }
            })
            .collect::<Result<Vec<u32>, DataError>>()?;
        Ok((Tensor::from_vec(out, (labels.len(), 3, h, w), &Device::Cpu)?, labels))
    }

    /// Refuses a model with another number of classes. A set whose class count is only known from its labels may have
    /// fewer than the model.
    pub fn check_classes(&self, model: &str, model_classes: usize) -> Result<(), DataError> {
        let fits = if self.classes_known { self.classes() == model_classes } else { self.classes() <= model_classes };
        if fits {
            return Ok(());
        }
        Err(DataError::Classes {
            data: self.card.name.clone(),
            data_classes: self.classes(),
            model: model.to_owned(),
            model_classes,
        })
    }

    /// How many images of this set are also in `other` (same pixels, or same file bytes between two folders). Images
    /// that cannot be read count as different.
    pub fn overlaps(&self, other: &Dataset) -> usize {
        overlap::count(self, other)
    }
}

/// Names read from files are shown on a terminal later: no control characters, no unbounded length.
fn clean_name(name: &str) -> String {
    name.trim().chars().filter(|c| !c.is_control()).take(80).collect()
}

/// The folder of real weights and data that tests and benches use when it is there: `$PARING_REAL`, or `shared/real`
/// beside this checkout or beside one of its ancestors.
#[doc(hidden)]
pub fn real_dir() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("PARING_REAL") {
        return Some(PathBuf::from(dir)).filter(|d| d.is_dir());
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().map(|a| a.join("shared/real")).find(|d| d.is_dir())
}
