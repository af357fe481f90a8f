//! The CIFAR-10 and CIFAR-100 binary formats (Krizhevsky 2009): fixed-size records of one or two label bytes and three
//! 32x32 colour planes.

use super::part::{self, Part};
use super::raw::{self, Raw, Shape};
use super::{DataCard, DataError, Dataset, Source, clean_name, in_folder, names};
use std::path::{Path, PathBuf};

/// Side length of the images.
pub(super) const SIDE: usize = 32;
/// Bytes of one image: red, green and blue plane, row-major.
pub(super) const PIXELS: usize = 3 * SIDE * SIDE;

/// What the images are.
pub(super) const SHAPE: Shape = Shape { width: SIDE, height: SIDE, channels: 3 };

/// A record layout: labels, then pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    /// Bytes of labels, the last of which is the class.
    labels: usize,
    classes: usize,
    /// The file beside it that names the classes.
    names: &'static str,
}

/// label, pixels
const TEN: Layout = Layout { labels: 1, classes: 10, names: "batches.meta.txt" };
/// coarse label, fine label, pixels
const HUNDRED: Layout = Layout { labels: 2, classes: 100, names: "fine_label_names.txt" };

impl Layout {
    fn record(self) -> usize {
        self.labels + PIXELS
    }

    /// The class of a record.
    fn label(self, record: &[u8]) -> u8 {
        record.get(self.labels - 1).copied().unwrap_or(u8::MAX)
    }
}

/// The record files of a directory's part, `None` when it has none.
///
/// # Errors
/// It has record files, and none of the wished part.
pub(super) fn files_in(dir: &Path, part: Option<Part>) -> Result<Option<Vec<PathBuf>>, DataError> {
    choose(dir, part, ".bin", &|_| true)
}

/// CIFAR's files of a part, by their names in CIFAR-10 and CIFAR-100 and how these end.
pub(super) fn choose(
    dir: &Path,
    part: Option<Part>,
    end: &str,
    fits: &dyn Fn(&Path) -> bool,
) -> Result<Option<Vec<PathBuf>>, DataError> {
    let existing = |names: &[&str]| -> Vec<PathBuf> {
        names.iter().map(|n| dir.join(format!("{n}{end}"))).filter(|p| p.is_file() && fits(p)).collect()
    };
    let first = |sets: [&[&str]; 2]| sets.into_iter().map(existing).find(|s| !s.is_empty());
    let test = first([&["test_batch"], &["test"]]);
    let batches = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"];
    let train = first([&batches, &["train"]]);
    let there = [test.is_some(), false, train.is_some()];
    if there == [false; 3] {
        return Ok(None);
    }
    let found = match part {
        None => test.or(train),
        Some(Part::Test) => test,
        Some(Part::Validation) => None,
        Some(Part::Train) => train,
    };
    found.map(Some).ok_or_else(|| part::missing(dir, part, there))
}

/// Opens record files as one set, in the given order.
pub(super) fn open_files(paths: &[PathBuf], spec: &str) -> Result<Dataset, DataError> {
    let runs = paths.iter().map(|p| raw::read(p)).collect::<Result<Vec<_>, _>>()?;
    let mut layout: Option<Layout> = None;
    for (path, bytes) in paths.iter().zip(&runs) {
        let found = recognise(path, bytes)?;
        if *layout.get_or_insert(found) != found {
            return Err(other_format(path));
        }
    }
    let (Some(layout), Some(first)) = (layout, paths.first()) else {
        return Err(DataError::empty(spec, "name at least one file"));
    };
    let folder = first.parent().unwrap_or(Path::new("."));
    let names = class_names(&folder.join(layout.names))?.unwrap_or_else(|| names::numbers(layout.classes));
    let mut labels = Vec::new();
    for (path, bytes) in paths.iter().zip(&runs) {
        let own: Vec<u32> = bytes.chunks_exact(layout.record()).map(|r| layout.label(r).into()).collect();
        check_labels(path, &own, names.len(), layout.names)?;
        labels.extend(own);
    }
    if labels.is_empty() {
        return Err(DataError::empty(spec, "the file has no bytes: download it again"));
    }
    let card = DataCard::of(name_of(paths), spec, labels.len(), names);
    let planes = Raw::new(SHAPE, layout.labels, runs, labels);
    let planes = planes.ok_or_else(|| DataError::Truncated { path: first.to_owned(), bytes: 0 })?;
    Ok(Dataset::new(card, Source::Raw(planes), true))
}

pub(super) fn name_of(paths: &[PathBuf]) -> String {
    let stem = |p: &Path| p.file_stem().map(|s| clean_name(&s.to_string_lossy())).unwrap_or_default();
    match paths {
        [one] => in_folder(one, stem(one)),
        [first, .., last] => format!("{}..{}", stem(first), stem(last)),
        [] => String::new(),
    }
}

pub(super) fn other_format(path: &Path) -> DataError {
    DataError::Mixed { reason: format!("`{}` is of the other CIFAR format", path.display()) }
}

/// The layout by size; where both fit (a multiple of 3073 and 3074), the one whose labels are all in range.
fn recognise(path: &Path, bytes: &[u8]) -> Result<Layout, DataError> {
    let fits = |l: Layout| bytes.len().is_multiple_of(l.record());
    let sane = |l: Layout| bytes.chunks_exact(l.record()).all(|r| usize::from(l.label(r)) < l.classes);
    match (fits(TEN), fits(HUNDRED)) {
        (false, false) => Err(DataError::Truncated { path: path.to_owned(), bytes: bytes.len() as u64 }),
        (false, true) => Ok(HUNDRED),
        (true, true) if !sane(TEN) && sane(HUNDRED) => Ok(HUNDRED),
        (true, _) => Ok(TEN),
    }
}

/// Refuses labels that no class has; `names` is the file that may name the classes.
pub(super) fn check_labels(path: &Path, labels: &[u32], classes: usize, names: &str) -> Result<(), DataError> {
    let Some((index, &label)) = labels.iter().enumerate().find(|(_, l)| **l as usize >= classes) else {
        return Ok(());
    };
    let hint = format!("the file is damaged, or `{names}` beside it lists too few names");
    Err(DataError::Label { path: path.to_owned(), index, label: label.into(), classes, hint })
}

/// Class names, one per line; `None` without such a file.
fn class_names(path: &Path) -> Result<Option<Vec<String>>, DataError> {
    if !path.is_file() {
        return Ok(None);
    }
    let bytes = crate::files::read(path, raw::MAX_BYTES).map_err(DataError::io(path))?;
    let text = String::from_utf8_lossy(&bytes);
    let names: Vec<String> = text.lines().map(clean_name).filter(|l| !l.is_empty()).take(256).collect();
    Ok((!names.is_empty()).then_some(names))
}
