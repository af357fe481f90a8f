//! Reading the container, strictly: every length is held against what is left of the file before anything is made of it, and
//! tensors that overlap, repeat a name or reach past the end are refused. Tensors stay views of the file.

use super::metadata::{Kind, Metadata, Value};
use crate::model::checkpoint::{Checkpoint, RawTensor};
use crate::model::ggml::{Block, Coded};
use crate::model::params::{Dtype, Param, numel_of};
use crate::model::{Blob, ModelError, Result, printable};
use indexmap::IndexMap;
use std::path::{Path, PathBuf};

/// Dimensions that a tensor may have in ggml.
const MAX_DIMS: u32 = 4;

/// Lists in lists in lists: nobody writes them deeper.
const MAX_DEPTH: usize = 4;

/// Where tensors begin, unless `general.alignment` says otherwise.
const ALIGNMENT: usize = 32;

/// What is left of a file's beginning, read front to back.
struct Cursor<'a> {
    blob: &'a Blob,
    at: usize,
    path: &'a Path,
}

impl<'a> Cursor<'a> {
    fn damaged<T>(&self, why: impl Into<String>) -> Result<T> {
        Err(ModelError::damaged(self.path, why))
    }

    fn left(&self) -> usize {
        self.blob.len() - self.at
    }

    fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        match self.at.checked_add(n).and_then(|end| self.blob.get(self.at..end)) {
            Some(bytes) => {
                self.at += n;
                Ok(bytes)
            }
            None => self.damaged(format!("it ends inside {what}")),
        }
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        let b = self.take(4, what)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        let b = self.take(8, what)?;
        Ok(b.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
    }

    /// So many things of at least `least` bytes each; there must be room for them.
    fn count(&mut self, least: usize, what: &str) -> Result<usize> {
        let n = self.u64(what)?;
        match usize::try_from(n).ok().filter(|n| *n <= self.left() / least.max(1)) {
            Some(n) => Ok(n),
            None => self.damaged(format!("{what} claims {n} entries, more than the file has room for")),
        }
    }

    /// A string's bytes, checked to be UTF-8.
    fn string(&mut self, what: &str) -> Result<&'a str> {
        let n = self.count(1, what)?;
        let bytes = self.take(n, what)?;
        std::str::from_utf8(bytes).or_else(|_| self.damaged(format!("{what} is not UTF-8")))
    }

    fn kind(&mut self, what: &str) -> Result<Kind> {
        let number = self.u32(what)?;
        Kind::of(number).map_or_else(|| self.damaged(format!("{what} has the unknown type {number}")), Ok)
    }

    /// Walks over one value of `kind`.
    fn value(&mut self, kind: Kind, what: &str, depth: usize) -> Result<Value> {
        let mut list = None;
        let mut start = self.at;
        match (kind, kind.size()) {
            (_, Some(size)) => {
                self.take(size, what)?;
            }
            (Kind::String, _) => {
                start += 8;
                self.string(what)?;
            }
            _ => {
                if depth >= MAX_DEPTH {
                    return self.damaged(format!("{what} is a list of lists of lists"));
                }
                let of = self.kind(what)?;
                let count = self.count(of.size().unwrap_or(8), what)?;
                start = self.at;
                match of.size() {
                    Some(size) => {
                        // No overflow: there is room for them.
                        self.take(count * size, what)?;
                    }
                    None => {
                        for _ in 0..count {
                            self.value(of, what, depth + 1)?;
                        }
                    }
                }
                list = Some((of, count));
            }
        }
        Ok(Value { kind, list, bytes: start..self.at })
    }
}

/// A tensor as its info tells.
struct Info<'a> {
    name: &'a str,
    /// Outermost first.
    shape: Vec<usize>,
    kind: u32,
    /// From the beginning of the tensors' data.
    offset: u64,
}

/// The metadata of the GGUF file that `files`, those of a checkpoint, are, and which file that is; `None` where they are another. Its tensors
/// are not looked at.
///
/// # Errors
/// What cannot be read; as [`read`].
pub(in crate::model) fn told(files: &[PathBuf]) -> Result<Option<(Metadata, &Path)>> {
    let [path] = files else { return Ok(None) };
    let blob = &Blob::look(path).map_err(ModelError::read(path))?;
    if !blob.starts_with(super::MAGIC) {
        return Ok(None);
    }
    let (_, metadata) = header(&mut Cursor { blob, at: 0, path })?;
    Ok(Some((metadata, path)))
}

/// Reads metadata and tensors; floats and blocks stay views into `blob`.
///
/// # Errors
/// Another version, what is damaged, and formats that are not read, by name.
pub(in crate::model) fn read(blob: &Blob, path: &Path) -> Result<Checkpoint> {
    let c = &mut Cursor { blob, at: 0, path };
    let (tensors, metadata) = header(c)?;
    if let Some(parts) = metadata.count("split.count").filter(|n| *n > 1) {
        let hint = "join them with llama.cpp's `llama-gguf-split --merge`";
        return Err(ModelError::unsupported(path, format!("it is one of {parts} parts of a model"), hint));
    }
    let infos = (0..tensors).map(|_| info(c)).collect::<Result<Vec<_>>>()?;
    let alignment = match metadata.has("general.alignment") {
        false => ALIGNMENT,
        true => match metadata.count("general.alignment").filter(|n| n.is_power_of_two()) {
            Some(n) => n,
            None => return c.damaged("its alignment is no power of two"),
        },
    };
    let Some(start) = c.at.checked_next_multiple_of(alignment) else { return c.damaged("its alignment is too large") };
    let mut out = Checkpoint::default();
    let mut spans = Vec::with_capacity(infos.len());
    for info in &infos {
        let shown = printable(info.name);
        let (tensor, bytes) = tensor(c, info, start, alignment)?;
        spans.push((info.offset, info.offset + bytes as u64, info.name));
        if out.tensors.insert(info.name.to_owned(), tensor).is_some() {
            return c.damaged(format!("tensor `{shown}` is listed twice"));
        }
    }
    spans.sort_unstable();
    if let Some(w) = spans.windows(2).find(|w| w[1].0 < w[0].1) {
        return c.damaged(format!("tensors `{}` and `{}` overlap", printable(w[0].2), printable(w[1].2)));
    }
    out.gguf = Some(metadata);
    Ok(out)
}

/// What stands before the tensors' infos: how many there are, and the metadata.
fn header(c: &mut Cursor<'_>) -> Result<(usize, Metadata)> {
    c.take(super::MAGIC.len(), "its header")?;
    match c.u32("its header")? {
        2 | 3 => {}
        v if matches!(v.swap_bytes(), 1..=3) => {
            return Err(ModelError::format(c.path, "it is a big-endian GGUF file; little-endian ones are read"));
        }
        v => return Err(ModelError::format(c.path, format!("GGUF version {v} is not read; versions 2 and 3 are"))),
    }
    // Name, dimensions, type and offset take 24 bytes at least; key, type and value 13.
    let tensors = c.count(24, "its list of tensors")?;
    let entries = c.count(13, "its metadata")?;
    // What is declared is not yet there: an entry takes many times its thirteen bytes once it is read.
    let mut values = IndexMap::new();
    for _ in 0..entries {
        let key = c.string("a key of its metadata")?;
        let what = format!("metadata `{}`", printable(key));
        let kind = c.kind(&what)?;
        let value = c.value(kind, &what, 0)?;
        if values.insert(key.to_owned(), value).is_some() {
            return c.damaged(format!("{what} is listed twice"));
        }
    }
    Ok((tensors, Metadata { blob: c.blob.clone(), values }))
}

fn info<'a>(c: &mut Cursor<'a>) -> Result<Info<'a>> {
    let name = c.string("a tensor's name")?;
    let what = format!("tensor `{}`", printable(name));
    let dims = c.u32(&what)?;
    if dims > MAX_DIMS {
        return c.damaged(format!("{what} has {dims} dimensions"));
    }
    let mut shape = Vec::with_capacity(MAX_DIMS as usize);
    for _ in 0..dims {
        let n = c.u64(&what)?;
        match usize::try_from(n) {
            Ok(n) => shape.push(n),
            Err(_) => return c.damaged(format!("{what} has a dimension of {n}")),
        }
    }
    // Files have the innermost dimension first.
    shape.reverse();
    Ok(Info { name, shape, kind: c.u32(&what)?, offset: c.u64(&what)? })
}

/// The tensor of an info, and the bytes that it takes.
fn tensor(c: &Cursor<'_>, info: &Info<'_>, start: usize, alignment: usize) -> Result<(RawTensor, usize)> {
    let shown = printable(info.name);
    let stored = stored(info.kind);
    let Some((values, size)) = stored.block() else {
        let word = stored.word();
        let hint = "floats, Q4_0 to Q8_0, Q2_K to Q6_K, IQ1 to IQ4, TQ1_0, TQ2_0 and MXFP4 are read";
        return Err(ModelError::unsupported(c.path, format!("tensor `{shown}` is stored as {word}"), hint));
    };
    let inner = info.shape.last().copied().unwrap_or(1);
    if !inner.is_multiple_of(values) {
        return c
            .damaged(format!("tensor `{shown}` has rows of {inner} values, which are no whole blocks of {values}"));
    }
    let Some(bytes) = numel_of(&info.shape).and_then(|n| (n / values).checked_mul(size)) else {
        return c.damaged(format!("tensor `{shown}` is impossibly large: {:?}", info.shape));
    };
    let offset = usize::try_from(info.offset).ok();
    if offset.is_none_or(|o| !o.is_multiple_of(alignment)) {
        return c.damaged(format!("tensor `{shown}` does not begin at a multiple of {alignment}"));
    }
    let past = || ModelError::damaged(c.path, format!("tensor `{shown}` reaches past the end of the file"));
    let from = offset.and_then(|o| o.checked_add(start)).ok_or_else(past)?;
    if from.checked_add(bytes).is_none_or(|end| end > c.blob.len()) {
        return Err(past());
    }
    let (shape, blob) = (info.shape.clone(), c.blob.clone());
    let tensor = match stored {
        Stored::Float(dtype) => RawTensor::Float(Param::view(shape, blob, from, dtype).ok_or_else(past)?),
        Stored::Blocks(block) => RawTensor::Float(Param::blocks(shape, blob, from, block).ok_or_else(past)?),
        Stored::Coded(code) => RawTensor::Float(Param::coded(shape, blob, from, code).ok_or_else(past)?),
        Stored::Whole(word, _) => RawTensor::Other { shape, dtype: word.to_owned() },
        Stored::Unread(_) => return Err(past()),
    };
    Ok((tensor, bytes))
}

/// What a tensor's values are stored as.
enum Stored {
    Float(Dtype),
    Blocks(Block),
    /// In a format that is only read.
    Coded(Coded),
    /// Whole numbers of so many bytes.
    Whole(&'static str, usize),
    /// A format that is not read, by its name or number.
    Unread(String),
}

impl Stored {
    /// Values and bytes a block.
    fn block(&self) -> Option<(usize, usize)> {
        match self {
            Stored::Float(dtype) => Some((1, dtype.size())),
            Stored::Blocks(block) => Some((block.values(), block.size())),
            Stored::Coded(code) => Some((code.values(), code.size())),
            Stored::Whole(_, size) => Some((1, *size)),
            Stored::Unread(_) => None,
        }
    }

    fn word(&self) -> &str {
        match self {
            Stored::Unread(word) => word,
            Stored::Float(_) => "floats",
            Stored::Blocks(block) => block.label(),
            Stored::Coded(code) => code.label(),
            Stored::Whole(word, _) => word,
        }
    }
}

/// By `ggml_type`'s number.
fn stored(number: u32) -> Stored {
    if let Some(block) = Block::of(number) {
        return Stored::Blocks(block);
    }
    if let Some(code) = Coded::of(number) {
        return Stored::Coded(code);
    }
    let unread = |name: &str| Stored::Unread(name.to_owned());
    match number {
        0 => Stored::Float(Dtype::F32),
        1 => Stored::Float(Dtype::F16),
        28 => Stored::Float(Dtype::F64),
        30 => Stored::Float(Dtype::Bf16),
        24 => Stored::Whole("I8", 1),
        25 => Stored::Whole("I16", 2),
        26 => Stored::Whole("I32", 4),
        27 => Stored::Whole("I64", 8),
        9 => unread("Q8_1"),
        15 => unread("Q8_K"),
        40 => unread("NVFP4"),
        other => Stored::Unread(format!("type {other}, which is not known")),
    }
}
