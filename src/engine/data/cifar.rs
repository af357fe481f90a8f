//! The CIFAR-10 and CIFAR-100 binary formats (Krizhevsky 2009): fixed-size records of one or two label bytes and three
//! 32x32 colour planes.

use super::part::{self, Part};
use super::raw::{self, Raw, Shape};
use super::{DataCard, DataError, Dataset, Source, clean_name};
use std::path::{Path, PathBuf};

/// Side length of the images.
pub(super) const SIDE: usize = 32;
/// Bytes of one image: red, green and blue plane, row-major.
pub(super) const PIXELS: usize = 3 * SIDE * SIDE;

/// The two record layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// label, pixels
    Ten,
    /// coarse label, fine label, pixels; the fine label is the class
    Hundred,
}

impl Layout {
    fn labels(self) -> usize {
        match self {
            Layout::Ten => 1,
            Layout::Hundred => 2,
        }
    }

    fn record(self) -> usize {
        self.labels() + PIXELS
    }

    fn classes(self) -> usize {
        match self {
            Layout::Ten => 10,
            Layout::Hundred => 100,
        }
    }

    fn names_file(self) -> &'static str {
        match self {
            Layout::Ten => "batches.meta.txt",
            Layout::Hundred => "fine_label_names.txt",
        }
    }
}

/// The record files of a directory's part, `None` when it has none.
///
/// # Errors
/// It has record files, and none of the wished part.
pub(super) fn files_in(dir: &Path, part: Option<Part>) -> Result<Option<Vec<PathBuf>>, DataError> {
    let batches = ["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"];
    choose(dir, part, ["test_batch.bin", "test.bin"], batches, "train.bin", &|_| true)
}

/// CIFAR's files of a part, by their names in CIFAR-10 and CIFAR-100.
pub(super) fn choose(
    dir: &Path,
    part: Option<Part>,
    tests: [&str; 2],
    batches: [&str; 5],
    train: &str,
    fits: &dyn Fn(&Path) -> bool,
) -> Result<Option<Vec<PathBuf>>, DataError> {
    let existing = |names: &[&str]| -> Vec<PathBuf> {
        names.iter().map(|n| dir.join(n)).filter(|p| p.is_file() && fits(p)).collect()
    };
    let pick = |sets: [Vec<PathBuf>; 2]| sets.into_iter().find(|s| !s.is_empty());
    let [ten, hundred] = tests;
    let test = pick([existing(&[ten]), existing(&[hundred])]);
    let train = pick([existing(&batches), existing(&[train])]);
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
    let mut runs = Vec::new();
    for path in paths {
        runs.push(raw::read(path)?);
    }
    let mut layout: Option<Layout> = None;
    for (path, bytes) in paths.iter().zip(&runs) {
        let found = recognise(path, bytes)?;
        if *layout.get_or_insert(found) != found {
            return Err(DataError::Mixed { reason: format!("`{}` is of the other CIFAR format", path.display()) });
        }
    }
    let (Some(layout), Some(first)) = (layout, paths.first()) else {
        return Err(DataError::Empty { what: spec.to_owned(), hint: "name at least one file".into() });
    };
    let folder = first.parent().unwrap_or(Path::new("."));
    let names = class_names(&folder.join(layout.names_file()))?;
    let class_names = names.unwrap_or_else(|| (0..layout.classes()).map(|c| c.to_string()).collect());
    for (path, bytes) in paths.iter().zip(&runs) {
        check_labels(path, bytes, layout, class_names.len())?;
    }
    let label = |record: &[u8]| record.get(layout.labels() - 1).map_or(0, |&l| u32::from(l));
    let labels: Vec<u32> = runs.iter().flat_map(|r| r.chunks_exact(layout.record()).map(label)).collect();
    let images = labels.len();
    if images == 0 {
        return Err(DataError::Empty {
            what: spec.to_owned(),
            hint: "the file has no bytes: download it again".into(),
        });
    }
    let card = DataCard {
        name: name_of(paths),
        images,
        classes: class_names.len(),
        class_names,
        source: spec.to_owned(),
        limit: 0,
    };
    let shape = Shape { width: SIDE, height: SIDE, channels: 3 };
    let planes = Raw::new(shape, layout.labels(), runs, labels);
    let planes = planes.ok_or_else(|| DataError::Truncated { path: first.to_owned(), bytes: 0 })?;
    Ok(Dataset::new(card, Source::Raw(planes), true))
}

pub(super) fn name_of(paths: &[PathBuf]) -> String {
    let stem = |p: &Path| p.file_stem().map(|s| clean_name(&s.to_string_lossy())).unwrap_or_default();
    let folder = |p: &Path| {
        let dir = p.canonicalize().ok()?.parent()?.file_name()?.to_string_lossy().into_owned();
        Some(clean_name(&dir))
    };
    match paths {
        [one] => folder(one).map_or_else(|| stem(one), |d| format!("{d}/{}", stem(one))),
        [first, .., last] => format!("{}..{}", stem(first), stem(last)),
        [] => String::new(),
    }
}

/// The layout by size; where both fit (a multiple of 3073 and 3074), the one whose labels are all in range.
fn recognise(path: &Path, bytes: &[u8]) -> Result<Layout, DataError> {
    let fits = |l: Layout| bytes.len().is_multiple_of(l.record());
    let sane = |l: Layout| {
        let limit = l.classes() as u8;
        bytes.chunks_exact(l.record()).all(|r| r.get(l.labels() - 1).is_some_and(|&v| v < limit))
    };
    match (fits(Layout::Ten), fits(Layout::Hundred)) {
        (true, false) => Ok(Layout::Ten),
        (false, true) => Ok(Layout::Hundred),
        (true, true) if !sane(Layout::Ten) && sane(Layout::Hundred) => Ok(Layout::Hundred),
        (true, true) => Ok(Layout::Ten),
        (false, false) => Err(DataError::Truncated { path: path.to_owned(), bytes: bytes.len() as u64 }),
    }
}

fn check_labels(path: &Path, bytes: &[u8], layout: Layout, classes: usize) -> Result<(), DataError> {
    for (index, record) in bytes.chunks_exact(layout.record()).enumerate() {
        let label = record.get(layout.labels() - 1).copied().unwrap_or(u8::MAX);
        if usize::from(label) >= classes {
            let hint = format!("the file is damaged, or `{}` beside it lists too few names", layout.names_file());
            return Err(DataError::Label { path: path.to_owned(), index, label: label.into(), classes, hint });
        }
    }
    Ok(())
}

/// Class names, one per line; `None` without such a file.
fn class_names(path: &Path) -> Result<Option<Vec<String>>, DataError> {
    if !path.is_file() {
        return Ok(None);
    }
    let bytes =
        crate::files::read(path, raw::MAX_BYTES).map_err(|source| DataError::Io { path: path.to_owned(), source })?;
    let text = String::from_utf8_lossy(&bytes);
    let names: Vec<String> = text.lines().map(clean_name).filter(|l| !l.is_empty()).take(256).collect();
    Ok((!names.is_empty()).then_some(names))
}
