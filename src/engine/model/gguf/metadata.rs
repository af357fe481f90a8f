//! A GGUF file's metadata, typed and kept where it lies: values are views of the file, which were walked once.
//!
//! Invariants: every range lies within the file; every string is UTF-8; lists are decoded when they are asked for.

use crate::model::Blob;
use indexmap::IndexMap;
use std::ops::Range;

/// The types of values, by their numbers in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    pub fn of(number: u32) -> Option<Kind> {
        use Kind::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64]
            .get(usize::try_from(number).ok()?)
            .copied()
    }

    /// Bytes of a value; `None` where that depends on it.
    pub fn size(self) -> Option<usize> {
        Some(match self {
            Kind::U8 | Kind::I8 | Kind::Bool => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 => 8,
            Kind::String | Kind::Array => return None,
        })
    }
}

/// One value: its type, for a list that of its elements and their number, and where its bytes lie.
#[derive(Debug, Clone)]
pub(super) struct Value {
    pub kind: Kind,
    /// Of a list: what it is a list of, and how long it is.
    pub list: Option<(Kind, usize)>,
    /// Without type and length.
    pub bytes: Range<usize>,
}

/// Everything that a file says besides its tensors.
#[derive(Debug, Clone)]
pub(in crate::model) struct Metadata {
    pub(super) blob: Blob,
    pub(super) values: IndexMap<String, Value>,
}

impl Metadata {
    /// The same in memory of its own, where the file is mapped: what becomes of the file does not matter then.
    pub fn detached(&self) -> Metadata {
        let mut out = self.clone();
        let end = self.values.values().map(|v| v.bytes.end).max().unwrap_or(0);
        if let Some(bytes) = self.blob.get(..end).filter(|_| self.blob.is_mapped()) {
            out.blob = Blob::Owned(bytes.into());
        }
        out
    }

    /// Is there a value called `key`?
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    pub(super) fn bytes(&self, value: &Value) -> &[u8] {
        self.blob.get(value.bytes.clone()).unwrap_or_default()
    }

    /// A single value's bytes with its type.
    fn single(&self, key: &str) -> Option<(Kind, &[u8])> {
        let value = self.values.get(key).filter(|v| v.list.is_none())?;
        Some((value.kind, self.bytes(value)))
    }

    pub fn string(&self, key: &str) -> Option<&str> {
        match self.single(key)? {
            (Kind::String, bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.single(key)? {
            (Kind::Bool, bytes) => Some(bytes.first().is_some_and(|b| *b != 0)),
            _ => None,
        }
    }

    /// Any number, of whichever type.
    pub fn number(&self, key: &str) -> Option<f64> {
        let (kind, bytes) = self.single(key)?;
        number(kind, bytes)
    }

    /// A whole number that is not negative.
    pub fn count(&self, key: &str) -> Option<usize> {
        let (kind, bytes) = self.single(key)?;
        whole(kind, bytes).and_then(|n| usize::try_from(n).ok())
    }

    /// Keys of lists that have `len` elements.
    pub fn lists(&self, len: usize) -> impl Iterator<Item = &str> {
        self.values.iter().filter(move |(_, v)| v.list.is_some_and(|(_, n)| n == len)).map(|(k, _)| k.as_str())
    }

    /// A list of strings.
    pub fn strings(&self, key: &str) -> Option<Vec<&str>> {
        let value = self.values.get(key)?;
        let Some((Kind::String, count)) = value.list else { return None };
        let mut rest = self.bytes(value);
        let mut out = Vec::with_capacity(count);
        for _ in 0..count {
            let (len, after) = rest.split_first_chunk::<8>()?;
            let (text, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
            out.push(std::str::from_utf8(text).ok()?);
            rest = after;
        }
        Some(out)
    }

    /// A list of numbers.
    pub fn numbers(&self, key: &str) -> Option<Vec<f64>> {
        let value = self.values.get(key)?;
        let (kind, _) = value.list?;
        self.bytes(value).chunks_exact(kind.size()?).map(|b| number(kind, b)).collect()
    }

    /// A list of whole numbers that are not negative.
    pub fn counts(&self, key: &str) -> Option<Vec<usize>> {
        let whole = |n: f64| (n >= 0.0 && n.fract() == 0.0 && n <= f64::from(u32::MAX)).then_some(n as usize);
        self.numbers(key)?.into_iter().map(whole).collect()
    }

    /// One number for all, or one for each: the only one where all are the same.
    pub fn same(&self, key: &str) -> Option<usize> {
        if let Some(n) = self.count(key) {
            return Some(n);
        }
        let all = self.numbers(key)?;
        let first = *all.first()?;
        (first >= 0.0 && first.fract() == 0.0 && all.iter().all(|n| *n == first)).then_some(first as usize)
    }
}

fn number(kind: Kind, b: &[u8]) -> Option<f64> {
    match kind {
        Kind::F32 => Some(f64::from(f32::from_le_bytes(b.try_into().ok()?))),
        Kind::F64 => Some(f64::from_le_bytes(b.try_into().ok()?)),
        _ => whole(kind, b).map(|n| n as f64),
    }
}

fn whole(kind: Kind, b: &[u8]) -> Option<i128> {
    Some(match kind {
        Kind::U8 => u8::from_le_bytes(b.try_into().ok()?).into(),
        Kind::I8 => i8::from_le_bytes(b.try_into().ok()?).into(),
        Kind::U16 => u16::from_le_bytes(b.try_into().ok()?).into(),
        Kind::I16 => i16::from_le_bytes(b.try_into().ok()?).into(),
        Kind::U32 => u32::from_le_bytes(b.try_into().ok()?).into(),
        Kind::I32 => i32::from_le_bytes(b.try_into().ok()?).into(),
        Kind::U64 => u64::from_le_bytes(b.try_into().ok()?).into(),
        Kind::I64 => i64::from_le_bytes(b.try_into().ok()?).into(),
        Kind::F32 | Kind::F64 | Kind::Bool | Kind::String | Kind::Array => return None,
    })
}
