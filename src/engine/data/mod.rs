//! Data sets and preprocessing, windows of text, texts with classes, questions with choices, and the synthetic demo sets.
//!
//! A [`Dataset`] is an immutable, cheaply cloned list of labelled images; [`Dataset::batch`] turns some of them into a
//! network's input. Not here: metrics (`eval`). Invariants: image `i` is the same image for as long as the set is open;
//! labels lie below `classes()`; foreign bytes never panic.

mod answered;
mod cache;
mod card;
mod cifar;
mod cifar_py;
mod classed;
mod decode;
mod documents;
mod error;
mod folder;
mod guard;
mod idx;
mod items;
mod kind;
mod labels;
mod mark;
mod names;
mod overlap;
mod parquet;
mod part;
mod prepare;
mod questions;
mod raw;
mod resize;
mod shards;
mod source;
mod split;
pub mod stories;
pub mod synthetic;
mod text;

#[cfg(test)]
mod tests;

pub use answered::{Answered, Asked};
pub use card::DataCard;
pub use classed::{ClassedOptions, classed};
pub use error::DataError;
pub use items::{Items, Joined};
pub use mark::DataMark;
pub use questions::{Form, Question, Questions};
pub use split::Split;
pub(crate) use text::unfit;
pub use text::{Counted, TextOptions, holds_ids, text, windows_of};

use crate::model::{ModelInfo, Preprocess};
use crate::task::{Classify, Targets, Task};
use candle_core::{Device, Tensor};
use rayon::prelude::*;
use source::{Encoded, Source};
use std::borrow::Borrow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A list of labelled images, or of another task's items.
#[derive(Debug, Clone)]
pub struct Dataset {
    card: DataCard,
    task: Arc<dyn Task>,
    source: Arc<Source>,
    /// Decoded images of `source`, by their index in it.
    cache: Arc<cache::Cache>,
    /// What images of `source` held when they were read.
    seen: Arc<mark::Seen>,
    /// Which images of `source`, in order; `None`: all of them in their own order.
    order: Option<Arc<[u32]>>,
    /// Whether `card.classes` is a fact of the data set or only the largest label seen plus one.
    classes_known: bool,
}

/// Opens a data set; at most `limit` images of it (0: all).
///
/// `spec` is a path, told by content and names:
/// - a folder with one sub-folder of png, jpeg or webp images per class (classes in sorted order, or as a `classes.txt`,
///   `synset_words.txt` or `imagenet_class_index.json` inside lists them);
/// - images with a `labels.csv`;
/// - CIFAR-10/100 binaries or Python pickles: a file or their directory;
/// - IDX images (MNIST), perhaps gzipped, with their labels beside them: the file or its directory;
/// - Parquet files with images, as the Hugging Face hub has them: a file or the data set's directory;
/// - WebDataset tars: a file or a directory.
///
/// Several files are joined by commas or by a range, `val-{000..063}.tar`. Of a directory with several parts the one for
/// evaluation is taken; `DIR:train`, `DIR:validation` and `DIR:test` name one. `DIR:imagenet` takes class folders that are
/// named by WordNet ids as classes of ImageNet-1k. `synthetic`, `synthetic:eval`, `synthetic:calib` and `synthetic:train`
/// are the demo's own images.
pub fn open(spec: &str, limit: usize) -> Result<Dataset, DataError> {
    if let Some(split) = synthetic::Split::parse(spec)? {
        return Ok(synthetic::dataset(split, limit));
    }
    let whole = Path::new(spec);
    let full = if whole.exists() {
        kind::open(whole, None, false, spec)?
    } else if let Some(dir) = spec.strip_suffix(":imagenet") {
        let (dir, part) = part::suffix(dir).map_or((dir, None), |(d, p)| (d, Some(p)));
        kind::open(Path::new(dir), part, true, spec)?
    } else if let Some((dir, part)) = part::suffix(spec) {
        kind::open(Path::new(dir), Some(part), false, spec)?
    } else if let Some(names) = part::expand(spec) {
        kind::open_files(&names.into_iter().map(PathBuf::from).collect::<Vec<_>>(), spec)?
    } else if spec.contains(',') {
        let paths: Vec<PathBuf> = spec.split(',').map(|s| PathBuf::from(s.trim())).collect();
        kind::open_files(&paths, spec)?
    } else {
        return Err(DataError::NotFound { path: whole.to_owned(), kinds: error::KINDS });
    };
    Ok(if limit == 0 { full } else { full.take(limit) })
}

impl Dataset {
    fn new(card: DataCard, source: Source, classes_known: bool) -> Dataset {
        Dataset {
            card,
            task: Arc::new(Classify),
            source: Arc::new(source),
            cache: Arc::default(),
            seen: Arc::default(),
            order: None,
            classes_known,
        }
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

    /// The class of item `i`; `None` past the end, and where items have none.
    pub fn label(&self, i: usize) -> Option<u32> {
        let k = self.at(i)?;
        match &*self.source {
            Source::Items(items) => items.label(k),
            images => images.label(k),
        }
    }

    /// The file of image `i`, or where in an archive it lies; `None` for records without names, and past the end.
    pub fn name(&self, i: usize) -> Option<String> {
        match &*self.source {
            Source::Encoded(images) => Some(clean_long(&images.name(self.at(i)?))),
            Source::Raw(_) | Source::Items(_) => None,
        }
    }

    /// A set of at most `n` of these images: the first `n` of record files (their official order), else evenly spread ones
    /// (the first images of a folder would all be of one class).
    pub fn take(&self, n: usize) -> Dataset {
        let n = n.min(self.len());
        let len = self.len();
        let spread = !matches!(&*self.source, Source::Raw(_));
        let pick = |j: usize| if spread { j * len / n.max(1) } else { j };
        let order = (0..n).filter_map(|j| self.at(pick(j)));
        let mut few = self.ordered(order);
        few.card.limit = n;
        few
    }

    /// The images of the source that `order` names.
    fn ordered(&self, order: impl Iterator<Item = usize>) -> Dataset {
        let order: Arc<[u32]> = order.map(|k| k as u32).collect();
        let card = DataCard { images: order.len(), ..self.card.clone() };
        Dataset { card, order: Some(order), ..self.clone() }
    }

    /// The given images as network input `[N, C, H, W]` (f32, on the host) with their labels; items of another task as it
    /// has them.
    ///
    /// `(byte / 255 - mean) / std` in f32; resized images go through bytes first, as Pillow and torchvision do. Images are
    /// read and decoded by all threads; of encoded images the first 256 MiB of pixels are kept for the next time.
    ///
    /// # Errors
    /// An unreadable or damaged image (which is named), an index past the end, impossible preprocessing.
    pub fn batch<I>(&self, indices: I, prep: &Preprocess) -> Result<(Tensor, Targets), DataError>
    where
        I: IntoIterator,
        I::Item: Borrow<usize>,
    {
        let len = self.len();
        let at = |i: usize| self.at(i).ok_or(DataError::Index { index: i, len });
        let picks = indices.into_iter().map(|i| at(*i.borrow())).collect::<Result<Vec<_>, _>>()?;
        if let Source::Items(items) = &*self.source {
            return items.batch(&picks);
        }
        let ready = prepare::Ready::new(prep)?;
        let cached: Vec<_> = picks.iter().map(|&k| self.cache.get(k, prep)).collect();
        let missing: Vec<usize> = picks.iter().zip(&cached).filter(|(_, c)| c.is_none()).map(|(&k, _)| k).collect();
        let fetched: HashMap<usize, bytes::Bytes> =
            missing.iter().copied().zip(self.source.together(&missing)?).collect();
        let [h, w] = prep.size;
        let one = prep.channels * h * w;
        let mut out = vec![0f32; picks.len() * one];
        let past = |k: usize| DataError::Index { index: k, len };
        // An image is decoded from the bytes that were noted, and those must be the same whenever it is read.
        let decoded = |k: usize, encoded: &dyn Encoded| {
            let bytes = fetched.get(&k).map_or_else(|| encoded.read(k), |b| Ok(b.clone()))?;
            let image = decode::decode(&bytes, &|| encoded.name(k))?;
            let same = self.seen.note(k, &bytes);
            if same { Ok(image) } else { Err(DataError::Changed { name: clean_long(&encoded.name(k)) }) }
        };
        let labels = out
            .par_chunks_mut(one)
            .zip(picks.par_iter().zip(&cached))
            .map(|(out, (&k, cached))| {
                match (&*self.source, cached) {
                    (_, Some(held)) => ready.fitted(held, out),
                    (Source::Raw(r), None) => ready.planes(r.pixels(k).ok_or_else(|| past(k))?, r.shape, out)?,
                    (Source::Encoded(e), None) => {
                        let image = Arc::new(ready.fit(decoded(k, &**e)?));
                        ready.fitted(&image, out);
                        self.cache.put(k, prep, image);
                    }
                    (Source::Items(_), None) => return Err(past(k)),
                }
                self.source.label(k).ok_or_else(|| past(k))
            })
            .collect::<Result<Vec<u32>, DataError>>()?;
        let images = Tensor::from_vec(out, (labels.len(), prep.channels, h, w), &Device::Cpu)?;
        Ok((images, Targets::Classes(labels)))
    }

    /// Refuses a model that the set was not made for: one with another number of classes, where it has classes.
    ///
    /// # Errors
    /// [`DataError::Classes`].
    pub fn check_fits(&self, model: &ModelInfo) -> Result<(), DataError> {
        // Items of some tasks have no classes.
        if !self.holds_images() && self.classes() == 0 {
            Ok(())
        } else {
            self.check_classes(&model.name, model.classes)
        }
    }

    /// Refuses a model with another number of classes. A set whose class count is only known from its labels may have
    /// fewer than the model.
    pub fn check_classes(&self, model: &str, model_classes: usize) -> Result<(), DataError> {
        let fits = if self.classes_known { self.classes() == model_classes } else { self.classes() <= model_classes };
        if fits {
            return Ok(());
        }
        let wordnet = model_classes == 1000 && names::all_imagenet(self.card.class_names.iter().map(String::as_str));
        let hint = match wordnet {
            true => format!("these are classes of ImageNet: give `{}:imagenet`", self.card.source),
            false if !self.holds_images() => "evaluate a model on the data it was trained for".to_owned(),
            false => "evaluate a model on the data it was trained for, or put a `classes.txt` with all of the model's \
                      classes in order into the folder"
                .to_owned(),
        };
        Err(DataError::Classes {
            hint,
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
    crate::plain::stripped(name.trim()).chars().take(80).collect()
}

/// The same for paths and for other programs' messages.
fn clean_long(text: &str) -> String {
    crate::plain::stripped(text.trim()).chars().take(400).collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// `stem` of a file below the name of the folder that the file lies in, where that is known.
fn in_folder(file: &Path, stem: String) -> String {
    let whole = file.canonicalize().unwrap_or_default();
    let folder = whole.parent().and_then(Path::file_name);
    folder.map_or(stem.clone(), |f| format!("{}/{stem}", clean_name(&f.to_string_lossy())))
}

/// What a directory holds, in no order.
fn list(dir: &Path) -> Result<Vec<PathBuf>, DataError> {
    let io = DataError::io(dir);
    std::fs::read_dir(dir).map_err(io)?.map(|e| Ok(e.map_err(io)?.path())).collect()
}

/// The folder of real weights and data that tests and benches use when it is there: `$PARING_REAL`, or `shared/real`
/// beside this checkout or beside one of its ancestors.
///
/// # Panics
/// Where there is none although `PARING_REAL_DATA=required`, so that no test that needs it is skipped unnoticed.
#[doc(hidden)]
pub fn real_dir() -> Option<PathBuf> {
    let found = match std::env::var_os("PARING_REAL") {
        Some(dir) => Some(PathBuf::from(dir)).filter(|d| d.is_dir()),
        None => {
            let here = Path::new(env!("CARGO_MANIFEST_DIR"));
            here.ancestors().map(|a| a.join("shared/real")).find(|d| d.is_dir())
        }
    };
    let required = std::env::var_os("PARING_REAL_DATA").is_some_and(|v| v == "required");
    assert!(
        found.is_some() || !required,
        "PARING_REAL_DATA=required, but there is no `shared/real` and no $PARING_REAL"
    );
    found
}
