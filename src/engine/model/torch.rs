//! PyTorch checkpoints: the zip container and the older stream format, as written by `torch.save`.
//!
//! Source: PyTorch's `torch/serialization.py` (`_save`, `_legacy_save`). Tensors stay views into the file where they
//! are contiguous; strided ones are copied, under a budget that the file's own size sets.

use super::checkpoint::float_dtype;
use super::params::{row_major, strided};
use super::pickle::{self, Arena, PickleError, TensorRef, Value};
use super::{Blob, Checkpoint, ModelError, Param, RawTensor, Result, numel_of, printable};
use std::collections::HashMap;
use std::io::Cursor;
use std::path::Path;

/// Largest `data.pkl` that is read; real ones are well under a megabyte.
const MAX_PICKLE: u64 = 64 << 20;

fn pickle_error(path: &Path, e: PickleError) -> ModelError {
    let hint = "save the weights alone with `torch.save(model.state_dict(), path)`, nothing in a file is ever executed";
    match &e {
        PickleError::Truncated | PickleError::Malformed(_) | PickleError::TooLarge => {
            ModelError::damaged(path, e.to_string())
        }
        PickleError::Opcode(_) | PickleError::Global(_) => ModelError::unsupported(path, e.to_string(), hint),
    }
}

/// Where each storage's bytes lie in the file: key → (offset, length).
type Storages = HashMap<String, (usize, usize)>;

/// Reads the zip container (PyTorch 1.6 and later).
pub(super) fn zip(blob: &Blob, path: &Path) -> Result<Checkpoint> {
    let bytes: &[u8] = blob;
    let broken = |e: zip::result::ZipError| {
        ModelError::damaged(path, format!("its zip directory: {}", printable(&e.to_string())))
    };
    // PyTorch writes the records of large archives also for small ones, between the directory and the record that every zip
    // file ends with. Told to find out where the archive begins, the reader takes the directory to end at that last record;
    // it is then wrong by the 76 bytes between, and believes it where an entry happens to begin there: below a root of 21
    // letters. These archives begin where the file does.
    let config = zip::read::Config { archive_offset: zip::read::ArchiveOffset::Known(0) };
    let mut archive = zip::ZipArchive::with_config(config, Cursor::new(bytes)).map_err(broken)?;
    let mut storages = Storages::new();
    let mut root: Option<(usize, usize)> = None;
    for i in 0..archive.len() {
        let file = archive.by_index(i).map_err(broken)?;
        let name = file.name().map_err(broken)?.into_owned();
        // Entries are `<anything>/data.pkl`, `<anything>/data/<key>`, `<anything>/byteorder` and so on.
        let Some((_, inner)) = name.split_once('/') else { continue };
        let stored = file.compression() == zip::CompressionMethod::Stored && !file.encrypted();
        let span = file.data_start().and_then(|start| {
            let (start, size) = (usize::try_from(start).ok()?, usize::try_from(file.size()).ok()?);
            (start.checked_add(size)? <= bytes.len()).then_some((start, size))
        });
        let span = || {
            if !stored {
                let why = format!("its entry `{}` is compressed", printable(&name));
                return Err(ModelError::unsupported(path, why, "PyTorch stores entries as they are; save it again"));
            }
            span.ok_or_else(|| {
                ModelError::damaged(path, format!("its entry `{}` reaches past the end", printable(&name)))
            })
        };
        match inner {
            "data.pkl" => root = Some(span()?),
            "byteorder" => {
                let (start, size) = span()?;
                if bytes[start..start + size].starts_with(b"big") {
                    return Err(big_endian(path));
                }
            }
            "constants.pkl" => {
                let hint = "save the weights alone with `torch.save(model.state_dict(), path)`";
                return Err(ModelError::unsupported(path, "it is a TorchScript program", hint));
            }
            _ => {
                if let Some(key) = inner.strip_prefix("data/") {
                    storages.insert(key.to_owned(), span()?);
                }
            }
        }
    }
    let (start, size) = root.ok_or_else(|| ModelError::damaged(path, "it has no `data.pkl`"))?;
    if size as u64 > MAX_PICKLE {
        return Err(pickle_error(path, PickleError::TooLarge));
    }
    let (value, arena, _) = pickle::read(&bytes[start..start + size]).map_err(|e| pickle_error(path, e))?;
    state_dict(blob, path, &value, &arena, &storages)
}

fn big_endian(path: &Path) -> ModelError {
    ModelError::unsupported(path, "it was written on a big-endian machine", "save it again on a little-endian one")
}

/// The first pickle of the stream format: 0x1950a86a20f9469cfc6c.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const PROTOCOL: i64 = 1001;

/// Reads the stream format (before PyTorch 1.6): pickles of magic, protocol, system facts, the object and the list of
/// storage keys; then per key an i64 count and the raw elements.
pub(super) fn legacy(blob: &Blob, path: &Path) -> Result<Checkpoint> {
    let bytes: &[u8] = blob;
    let mut at = 0;
    let mut next = || {
        let rest = &bytes[at..];
        let rest = &rest[..rest.len().min(MAX_PICKLE as usize)];
        let (value, arena, used) = pickle::read(rest).map_err(|e| pickle_error(path, e))?;
        at += used;
        Ok::<_, ModelError>((value, arena))
    };
    match next()?.0 {
        Value::BigInt(b) if *b == MAGIC => {}
        _ => return Err(ModelError::format(path, "it is a pickle, but not one that `torch.save` wrote")),
    }
    if !matches!(next()?.0, Value::Int(PROTOCOL)) {
        return Err(ModelError::damaged(path, "it has an unknown protocol number"));
    }
    let (facts, facts_arena) = next()?;
    if matches!(facts_arena.get(&facts, "little_endian"), Some(Value::Bool(false))) {
        return Err(big_endian(path));
    }
    let (value, arena) = next()?;
    let (keys, keys_arena) = next()?;
    let keys = keys_arena.items(&keys).ok_or_else(|| ModelError::damaged(path, "its list of storages is missing"))?;
    let sizes: HashMap<&str, usize> = arena.storages().iter().map(|s| (&*s.key, element_size(s.kind))).collect();
    let mut storages = Storages::new();
    for key in keys {
        let Value::Str(key) = key else { return Err(ModelError::damaged(path, "a storage has no name")) };
        let count = bytes.get(at..).and_then(|b| b.first_chunk::<8>()).map(|b| i64::from_le_bytes(*b));
        let count = count.ok_or_else(|| ModelError::damaged(path, "it ends inside its tensor data"))?;
        let size =
            *sizes.get(&**key).ok_or_else(|| ModelError::damaged(path, "a storage is listed that no tensor uses"))?;
        let length = usize::try_from(count).ok().and_then(|n| n.checked_mul(size));
        let end = length.and_then(|n| n.checked_add(at + 8)).filter(|&end| end <= bytes.len());
        let (Some(length), Some(end)) = (length, end) else {
            return Err(ModelError::damaged(path, "it ends inside its tensor data"));
        };
        if storages.insert(key.to_string(), (at + 8, length)).is_some() {
            return Err(ModelError::damaged(path, format!("storage `{}` is listed twice", printable(key))));
        }
        at = end;
    }
    state_dict(blob, path, &value, &arena, &storages)
}

fn element_size(kind: &str) -> usize {
    match kind {
        "DoubleStorage" | "LongStorage" => 8,
        "FloatStorage" | "IntStorage" => 4,
        "HalfStorage" | "BFloat16Storage" | "ShortStorage" => 2,
        _ => 1,
    }
}

/// Keys under which training scripts nest the state dict, most telling first.
const NESTS: [&str; 8] =
    ["state_dict", "model_state_dict", "model", "model_state", "net", "network", "module", "weights"];

/// Finds the dict of tensors in `root` and turns it into a checkpoint.
fn state_dict(blob: &Blob, path: &Path, root: &Value, arena: &Arena, storages: &Storages) -> Result<Checkpoint> {
    let has_tensors = |v: &Value| {
        arena.entries(v).is_some_and(|e| e.iter().any(|(k, v)| matches!((k, v), (Value::Str(_), Value::Tensor(_)))))
    };
    let mut dict = root;
    // Two levels: `{"model": {"state_dict": ..}}` exists in the wild, more does not.
    for _ in 0..2 {
        if !has_tensors(dict) {
            dict = NESTS.iter().find_map(|key| arena.get(dict, key)).unwrap_or(dict);
        }
    }
    let entries = arena.entries(dict).filter(|_| has_tensors(dict)).ok_or_else(|| {
        let keys: Vec<String> = arena
            .entries(root)
            .unwrap_or(&[])
            .iter()
            .filter_map(|(k, _)| if let Value::Str(s) = k { Some(format!("`{}`", printable(s))) } else { None })
            .take(8)
            .collect();
        let why = format!("it holds no state dict; its top-level keys are [{}]", keys.join(", "));
        ModelError::unsupported(path, why, "save the weights with `torch.save(model.state_dict(), path)`")
    })?;
    let mut out = Checkpoint::default();
    // Strided tensors are copied; all copies together stay a small multiple of the file.
    let mut budget = blob.len().saturating_mul(8);
    for (key, value) in entries {
        let (Value::Str(name), Value::Tensor(t)) = (key, value) else { continue };
        let tensor = tensor(blob, t, storages, &mut budget)
            .map_err(|why| ModelError::damaged(path, format!("tensor `{}` {why}", printable(name))))?;
        if out.tensors.insert(name.to_string(), tensor).is_some() {
            return Err(ModelError::damaged(path, format!("tensor `{}` is listed twice", printable(name))));
        }
    }
    Ok(out)
}

fn tensor(blob: &Blob, t: &TensorRef, storages: &Storages, budget: &mut usize) -> Result<RawTensor, &'static str> {
    const PAST: &str = "reaches past the end of its storage";
    let &(start, length) = storages.get(&*t.storage.key).ok_or("has no data in the file")?;
    let size = element_size(t.storage.kind);
    let numel = numel_of(&t.shape).ok_or("has an impossible size")?;
    let first = t.offset.checked_add(t.storage.view_offset).ok_or(PAST)?;
    if numel > 0 {
        // The last element touched, checked against the bytes that are really there.
        let mut last = first;
        for (&d, &s) in t.shape.iter().zip(&t.stride) {
            last = (d - 1).checked_mul(s).and_then(|n| n.checked_add(last)).ok_or(PAST)?;
        }
        let end = last.checked_add(1).and_then(|n| n.checked_mul(size)).ok_or(PAST)?;
        if end > length {
            return Err(PAST);
        }
    }
    let shape = t.shape.clone();
    let Some(dtype) = float_dtype(t.storage.kind) else {
        return Ok(RawTensor::Other { shape, dtype: t.storage.kind.into() });
    };
    if numel == 0 {
        return Param::owned(shape, Vec::new()).map(RawTensor::Float).ok_or("has an impossible size");
    }
    let offset = start + first * size;
    let strides: Vec<isize> = t.stride.iter().map(|&s| s as isize).collect();
    if (0..).zip(row_major(&shape)).all(|(axis, want)| shape[axis] == 1 || strides[axis] == want) {
        return Param::view(shape, blob.clone(), offset, dtype).map(RawTensor::Float).ok_or(PAST);
    }
    let count = (length - first * size) / size;
    let bytes = numel.checked_add(count).and_then(|n| n.checked_mul(4)).ok_or("has an impossible size")?;
    *budget = budget.checked_sub(bytes).ok_or("repeats its storage too often")?;
    let flat = Param::view(vec![count], blob.clone(), offset, dtype).ok_or(PAST)?;
    let values = flat.values();
    let mut out = Vec::with_capacity(numel);
    for at in strided(&shape, &strides, 0) {
        out.push(*values.get(at as usize).ok_or(PAST)?);
    }
    Param::owned(shape, out).map(RawTensor::Float).ok_or("has an impossible size")
}
