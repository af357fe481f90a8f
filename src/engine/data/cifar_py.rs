//! CIFAR-10 and CIFAR-100 as Python pickles (`cifar-10-batches-py`, `cifar-100-python`): dicts of a byte array `[N, 3072]`
//! and a list of labels. They are parsed by `model::pickle`, never executed.

use super::cifar::{PIXELS, SHAPE};
use super::part::Part;
use super::raw::{self, Raw};
use super::{DataCard, DataError, Dataset, Source, cifar, clean_name, names};
use crate::model::pickle::{self, Arena, Value};
use std::path::{Path, PathBuf};

/// One file's images and labels.
struct Batch {
    pixels: Vec<u8>,
    labels: Vec<u32>,
    /// Of CIFAR-100 (`fine_labels`).
    fine: bool,
}

/// Whether a file's first bytes are those of a pickle of protocol 2 or later.
pub(super) fn looks_like(head: &[u8]) -> bool {
    matches!(head, [0x80, 2..=5, ..])
}

/// The pickles of a directory's part; `None` when it has none.
///
/// # Errors
/// It has pickles, and none of the wished part.
pub(super) fn files_in(dir: &Path, part: Option<Part>) -> Result<Option<Vec<PathBuf>>, DataError> {
    cifar::choose(dir, part, "", &is_pickle)
}

fn is_pickle(path: &Path) -> bool {
    looks_like(&super::decode::head(path).unwrap_or_default())
}

pub(super) fn open_files(paths: &[PathBuf], spec: &str) -> Result<Dataset, DataError> {
    let (mut runs, mut labels, mut fine) = (Vec::new(), Vec::new(), None);
    for path in paths {
        let batch = read(path)?;
        if *fine.get_or_insert(batch.fine) != batch.fine {
            return Err(cifar::other_format(path));
        }
        runs.push(batch.pixels);
        labels.extend(batch.labels);
    }
    let (Some(fine), Some(first)) = (fine, paths.first()) else {
        return Err(DataError::empty(spec, "name at least one file"));
    };
    let folder = first.parent().unwrap_or(Path::new("."));
    let class_names = class_names(folder, fine);
    cifar::check_labels(first, &labels, class_names.len(), "batches.meta")?;
    if labels.is_empty() {
        return Err(DataError::empty(spec, "download the file again"));
    }
    let card = DataCard::of(cifar::name_of(paths), spec, labels.len(), class_names);
    let raw = Raw::new(SHAPE, 0, runs, labels).ok_or_else(|| bad(first, "images and labels do not fit"))?;
    Ok(Dataset::new(card, Source::Raw(raw), true))
}

fn bad(path: &Path, reason: &str) -> DataError {
    DataError::Pickle { path: path.to_owned(), reason: reason.to_owned() }
}

/// `dict[key]`, whether Python 2 or 3 wrote the key.
fn get<'a>(arena: &'a Arena, dict: &Value, key: &str, input: &[u8]) -> Option<&'a Value> {
    let is = |k: &Value| bytes(k, input).is_some_and(|b| b == key.as_bytes());
    arena.entries(dict)?.iter().rev().find(|(k, _)| is(k)).map(|(_, v)| v)
}

/// The content of a string, text or not.
fn bytes<'a>(v: &'a Value, input: &'a [u8]) -> Option<&'a [u8]> {
    match v {
        Value::Str(s) => Some(s.as_bytes()),
        Value::Bytes(range) => input.get(range.clone()),
        _ => None,
    }
}

fn read(path: &Path) -> Result<Batch, DataError> {
    let input = raw::read(path)?;
    let (dict, arena, _) = pickle::read(&input).map_err(|e| bad(path, &e.to_string()))?;
    if arena.entries(&dict).is_none() {
        return Err(bad(path, "it is no dict"));
    }
    let found = |key: &str| get(&arena, &dict, key, &input);
    let fine = found("fine_labels").is_some();
    let labels = found("fine_labels").or_else(|| found("labels")).and_then(|v| arena.items(v));
    let labels = labels.ok_or_else(|| bad(path, "it has neither `labels` nor `fine_labels`"))?;
    let label = |v: &Value| match v {
        Value::Int(i) => u8::try_from(*i).ok().map(u32::from),
        _ => None,
    };
    let labels: Vec<u32> =
        labels.iter().map(label).collect::<Option<_>>().ok_or_else(|| bad(path, "a label is no small number"))?;
    let state = found("data").and_then(|v| arena.items(arena.state(v)?));
    let Some([_, shape, _, order, data]) = state else {
        return Err(bad(path, "its `data` is no numpy array"));
    };
    let pixels = bytes(data, &input).ok_or_else(|| bad(path, "its `data` holds no bytes"))?;
    let shape = arena.usizes(shape).unwrap_or_default();
    if shape != [labels.len(), PIXELS] || Some(pixels.len()) != labels.len().checked_mul(PIXELS) {
        let (have, want) = (pixels.len(), labels.len());
        return Err(bad(path, &format!("its `data` is {shape:?} over {have} bytes, not [{want}, {PIXELS}] bytes")));
    }
    if matches!(order, Value::Bool(true)) {
        return Err(bad(path, "its `data` is stored by columns"));
    }
    Ok(Batch { pixels: pixels.to_vec(), labels, fine })
}

/// Class names from `batches.meta` or `meta`; numbers where there is no such file.
fn class_names(folder: &Path, fine: bool) -> Vec<String> {
    let (file, key, classes) =
        if fine { ("meta", "fine_label_names", 100) } else { ("batches.meta", "label_names", 10) };
    let read = || {
        let input = raw::read(&folder.join(file)).ok()?;
        let (dict, arena, _) = pickle::read(&input).ok()?;
        let names = arena.items(get(&arena, &dict, key, &input)?)?;
        names.iter().map(|v| Some(clean_name(&String::from_utf8_lossy(bytes(v, &input)?)))).collect::<Option<Vec<_>>>()
    };
    read().filter(|n| n.len() == classes).unwrap_or_else(|| names::numbers(classes))
}
