//! The CIFAR-10 and CIFAR-100 binary formats (Krizhevsky 2009): fixed-size records of one or two label bytes and three
//! 32x32 colour planes. Files are read whole, so that a file changed later cannot disturb a running session.

use super::{DataCard, DataError, Dataset, Part, Source, clean_name};
use std::path::{Path, PathBuf};

/// Side length of the images.
pub(super) const SIDE: usize = 32;
/// Bytes of one image: red, green and blue plane, row-major.
pub(super) const PIXELS: usize = 3 * SIDE * SIDE;
/// No file of this format is nearly as large; a mistaken path must not fill the memory.
const MAX_BYTES: u64 = 4 << 30;

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

/// Images in memory, in one or more runs of records.
#[derive(Debug)]
pub(super) struct Planes {
    layout: Layout,
    runs: Vec<Vec<u8>>,
}

impl Planes {
    /// Records of `[label, pixels]` made in memory; `bytes` is a whole number of them.
    pub(super) fn from_records(bytes: Vec<u8>) -> Planes {
        Planes { layout: Layout::Ten, runs: vec![bytes] }
    }

    /// Label and planes of record `k`, counted over all runs.
    pub(super) fn get(&self, mut k: usize) -> Option<(u32, &[u8])> {
        let record = self.layout.record();
        for run in &self.runs {
            let n = run.len() / record;
            if k < n {
                let bytes = run.get(k * record..(k + 1) * record)?;
                let (labels, pixels) = bytes.split_at(self.layout.labels());
                return Some((u32::from(*labels.last()?), pixels));
            }
            k -= n;
        }
        None
    }
}

/// The record files of a directory: the test part or the training part, `None` when it has neither.
pub(super) fn files_in(dir: &Path, part: Part) -> Result<Option<Vec<PathBuf>>, DataError> {
    let existing =
        |names: &[&str]| -> Vec<PathBuf> { names.iter().map(|n| dir.join(n)).filter(|p| p.is_file()).collect() };
    let batches = ["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"];
    let tests = [existing(&["test_batch.bin"]), existing(&["test.bin"])];
    let trains = [existing(&batches), existing(&["train.bin"])];
    let pick = |sets: [Vec<PathBuf>; 2]| sets.into_iter().find(|s| !s.is_empty());
    let (test, train) = (pick(tests), pick(trains));
    Ok(match part {
        Part::Train if train.is_none() && test.is_some() => {
            return Err(DataError::Split {
                spec: format!("{}:train", dir.display()),
                hint: "the directory has no `data_batch_*.bin` or `train.bin`".into(),
            });
        }
        Part::Train => train,
        Part::Test => test.or(train),
    })
}

/// Opens record files as one set, in the given order.
pub(super) fn open_files(paths: &[PathBuf], spec: &str) -> Result<Dataset, DataError> {
    let mut runs = Vec::new();
    for path in paths {
        runs.push(read(path)?);
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
    let images = runs.iter().map(|r| r.len() / layout.record()).sum();
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
    Ok(Dataset::new(card, Source::Planes(Planes { layout, runs }), true))
}

fn name_of(paths: &[PathBuf]) -> String {
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

fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    let io = |source| DataError::Io { path: path.to_owned(), source };
    let meta = std::fs::metadata(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => DataError::NotFound { path: path.to_owned() },
        _ => io(e),
    })?;
    if !meta.is_file() {
        return Err(DataError::Unknown { path: path.to_owned(), seen: "not a regular file".into() });
    }
    if meta.len() > MAX_BYTES {
        return Err(DataError::TooLarge { path: path.to_owned(), bytes: meta.len(), limit: MAX_BYTES });
    }
    std::fs::read(path).map_err(io)
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
    let bytes = std::fs::read(path).map_err(|source| DataError::Io { path: path.to_owned(), source })?;
    let text = String::from_utf8_lossy(&bytes);
    let names: Vec<String> = text.lines().map(clean_name).filter(|l| !l.is_empty()).take(256).collect();
    Ok((!names.is_empty()).then_some(names))
}
