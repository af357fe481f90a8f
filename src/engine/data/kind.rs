//! What kind of data a path holds, by content first and by names second.

use super::error::KINDS;
use super::part::{self, Part};
use super::{DataError, Dataset, cifar, cifar_py, decode, file_name, folder, idx, labels, list, parquet, raw, shards};
use std::path::{Path, PathBuf};

/// Folders that well-known archives unpack to and that a user may stop above.
const INSIDE: [&str; 7] = [
    "cifar-10-batches-bin",
    "cifar-10-batches-py",
    "cifar-100-binary",
    "cifar-100-python",
    "raw",
    "MNIST",
    "FashionMNIST",
];

/// Opens a file or directory. `imagenet`: class folders are indexed among ImageNet's classes.
pub(super) fn open(path: &Path, part: Option<Part>, imagenet: bool, spec: &str) -> Result<Dataset, DataError> {
    let meta = std::fs::metadata(path).map_err(DataError::opening(path, KINDS))?;
    if meta.is_file() {
        return open_files(&[path.to_owned()], spec);
    }
    if !meta.is_dir() {
        return Err(DataError::unknown(path, "neither a file nor a directory"));
    }
    open_dir(path, part, imagenet, spec, 0)
}

/// Opens files of one kind as one set, in the given order.
pub(super) fn open_files(paths: &[PathBuf], spec: &str) -> Result<Dataset, DataError> {
    let Some(first) = paths.first() else {
        return Err(DataError::empty(spec, "name at least one file"));
    };
    for path in paths {
        if !std::fs::metadata(path).map_err(DataError::opening(path, KINDS))?.is_file() {
            return Err(DataError::unknown(path, "not a regular file"));
        }
    }
    let bytes = decode::head(first).map_err(DataError::io(first))?;
    let ends = |ext: &str| first.extension().is_some_and(|e| e.eq_ignore_ascii_case(ext));
    let dir = first.parent().unwrap_or(Path::new("."));
    let one = |opened: fn(&Path, &str) -> Result<Dataset, DataError>| match paths {
        [one] => opened(one, spec),
        _ => Err(DataError::Mixed { reason: format!("`{}` is of a kind that is opened alone", first.display()) }),
    };
    // A CIFAR record may begin with any bytes, so its usual name counts before other kinds' first bytes.
    if ends("bin") {
        return cifar::open_files(paths, spec);
    }
    if parquet::looks_like(&bytes) || ends("parquet") {
        return parquet::open(paths, spec);
    }
    if shards::looks_like(&bytes) || ends("tar") {
        return shards::open(paths, dir, spec);
    }
    if idx::looks_like(&bytes) || (bytes.starts_with(&raw::GZIP) && file_name(first).contains("ubyte")) {
        return one(idx::open);
    }
    if cifar_py::looks_like(&bytes) {
        return cifar_py::open_files(paths, spec);
    }
    if ends("csv") {
        return one(labels::open);
    }
    let packed = [(&raw::GZIP[..], "gzip"), (b"PK\x03\x04", "zip"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz")];
    if let Some((_, kind)) = packed.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Err(DataError::unknown(first, format!("it is a {kind} archive: unpack it first")));
    }
    cifar::open_files(paths, spec)
}

fn open_dir(dir: &Path, part: Option<Part>, imagenet: bool, spec: &str, depth: usize) -> Result<Dataset, DataError> {
    let (mut subs, mut files): (Vec<PathBuf>, Vec<PathBuf>) = list(dir)?.into_iter().partition(|p| p.is_dir());
    subs.retain(|s| !file_name(s).starts_with('.'));
    files.retain(|f| f.is_file());
    files.sort();
    subs.sort();
    if let Some(found) = cifar::files_in(dir, part)? {
        return cifar::open_files(&found, spec);
    }
    if let Some(found) = cifar_py::files_in(dir, part)? {
        return cifar_py::open_files(&found, spec);
    }
    if let Some(images) = idx::find(&files, part, dir)? {
        return idx::open(&images, spec);
    }
    let csv = dir.join("labels.csv");
    if csv.is_file() {
        return labels::open(&csv, spec);
    }
    // Hub data sets hold their shards here, or in `data/`, or in a folder per configuration and part.
    let many = subs.len() > 16;
    let parquets = found(&files, if many { &[] } else { &subs }, "parquet", 3);
    if !parquets.is_empty() {
        let chosen = part::choose(&parquets, part, dir)?;
        one_configuration(&chosen, dir)?;
        return parquet::open(&chosen, spec);
    }
    let tars = found(&files, &[], "tar", 0);
    if !tars.is_empty() {
        return shards::open(&part::choose(&tars, part, dir)?, dir, spec);
    }
    if depth < 2 {
        if let Some(inside) = subs.iter().find(|s| INSIDE.contains(&file_name(s).as_str())) {
            return open_dir(inside, part, imagenet, spec, depth + 1);
        }
        if let Some(inside) = part::folder(dir, &subs, part)? {
            return open_dir(&inside, None, imagenet, spec, depth + 1);
        }
    }
    if part.is_some() && depth == 0 {
        return Err(part::missing(dir, part, [false; 3]));
    }
    folder::open(dir, imagenet, spec)
}

/// Files of an extension here and up to `depth` folders down, sorted.
fn found(files: &[PathBuf], subs: &[PathBuf], ext: &str, depth: usize) -> Vec<PathBuf> {
    /// More shards than any data set has.
    const MOST: usize = 100_000;
    let mut all: Vec<PathBuf> =
        files.iter().filter(|f| f.extension().is_some_and(|e| e.eq_ignore_ascii_case(ext))).cloned().collect();
    if depth > 0 {
        for sub in subs {
            let inside = list(sub).unwrap_or_default();
            let (files, subs): (Vec<PathBuf>, Vec<PathBuf>) = inside.into_iter().partition(|p| p.is_file());
            let subs: Vec<PathBuf> = subs.into_iter().filter(|s| s.is_dir()).take(64).collect();
            all.extend(found(&files, &subs, ext, depth - 1));
        }
    }
    all.sort();
    all.truncate(MOST);
    all
}

/// Refuses files of several configurations of one hub data set (`fine/test-0.parquet`, `coarse/test-0.parquet`).
fn one_configuration(files: &[PathBuf], dir: &Path) -> Result<(), DataError> {
    let top = |f: &PathBuf| {
        let below = f.strip_prefix(dir).ok()?;
        let mut folders = below.parent()?.iter().map(|p| p.to_string_lossy().into_owned());
        folders.find(|f| Part::parse(f).is_none())
    };
    let first = files.first().map(top);
    match files.iter().find(|f| Some(top(f)) != first) {
        None => Ok(()),
        Some(other) => Err(DataError::Mixed {
            reason: format!("`{}` and `{}` are of two configurations", files[0].display(), other.display()),
        }),
    }
}
