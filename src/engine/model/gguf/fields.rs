//! Metadata that is to be written: keys with typed values, each as the bytes that a file has of it.
//!
//! Invariant: a value that was read is written again byte for byte, unless it is given another.

use super::Metadata;
use super::metadata::Kind;
use indexmap::IndexMap;

/// Keys and values, in the order in which they are written.
#[derive(Debug, Clone, Default)]
pub(in crate::model) struct Fields {
    /// A value's type and its bytes.
    values: IndexMap<String, Vec<u8>>,
}

/// A string as files have it.
fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Fields {
    /// What a file says.
    pub fn of(m: &Metadata) -> Fields {
        let one = |(key, value): (&String, &super::metadata::Value)| {
            let mut bytes = (value.kind as u32).to_le_bytes().to_vec();
            match value.list {
                Some((of, count)) => {
                    bytes.extend((of as u32).to_le_bytes());
                    bytes.extend((count as u64).to_le_bytes());
                }
                None if value.kind == Kind::String => bytes.extend((value.bytes.len() as u64).to_le_bytes()),
                None => {}
            }
            bytes.extend(m.bytes(value));
            (key.clone(), bytes)
        };
        Fields { values: m.values.iter().map(one).collect() }
    }

    fn set(&mut self, key: &str, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = (kind as u32).to_le_bytes().to_vec();
        write(&mut bytes);
        self.values.insert(key.to_owned(), bytes);
    }

    pub fn u32(&mut self, key: &str, n: usize) {
        // Counts of a network; none comes near the limit.
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        self.set(key, Kind::U32, |out| out.extend(n.to_le_bytes()));
    }

    pub fn f32(&mut self, key: &str, n: f64) {
        self.set(key, Kind::F32, |out| out.extend((n as f32).to_le_bytes()));
    }

    pub fn bool(&mut self, key: &str, yes: bool) {
        self.set(key, Kind::Bool, |out| out.push(u8::from(yes)));
    }

    pub fn string(&mut self, key: &str, value: &str) {
        self.set(key, Kind::String, |out| text(out, value));
    }

    fn list<T>(&mut self, key: &str, of: Kind, all: &[T], mut one: impl FnMut(&mut Vec<u8>, &T)) {
        self.set(key, Kind::Array, |out| {
            out.extend((of as u32).to_le_bytes());
            out.extend((all.len() as u64).to_le_bytes());
            all.iter().for_each(|v| one(out, v));
        });
    }

    pub fn strings<S: AsRef<str>>(&mut self, key: &str, all: &[S]) {
        self.list(key, Kind::String, all, |out, v| text(out, v.as_ref()));
    }

    pub fn i32s(&mut self, key: &str, all: &[i32]) {
        self.list(key, Kind::I32, all, |out, v| out.extend(v.to_le_bytes()));
    }

    pub fn u32s(&mut self, key: &str, all: &[usize]) {
        self.list(key, Kind::U32, all, |out, v| out.extend(u32::try_from(*v).unwrap_or(u32::MAX).to_le_bytes()));
    }

    pub fn f32s(&mut self, key: &str, all: &[f32]) {
        self.list(key, Kind::F32, all, |out, v| out.extend(v.to_le_bytes()));
    }

    pub fn remove(&mut self, key: &str) {
        self.values.shift_remove(key);
    }

    /// Leaves of a list of numbers the elements `kept`; what is no such list, or shorter, stays.
    pub fn pick(&mut self, key: &str, kept: &[usize]) {
        let Some(bytes) = self.values.get(key) else { return };
        let Some((head, values)) = bytes.split_at_checked(16) else { return };
        let number = |at: usize| head[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | u32::from(*b));
        let size = Kind::of(number(4)).and_then(Kind::size);
        let (Some(Kind::Array), Some(size)) = (Kind::of(number(0)), size) else { return };
        let mut out = head[..8].to_vec();
        out.extend((kept.len() as u64).to_le_bytes());
        for i in kept {
            let Some(value) = values.get(i * size..(i + 1) * size) else { return };
            out.extend(value);
        }
        self.values.insert(key.to_owned(), out);
    }

    /// Keys that begin with `from` begin with `to` from now on.
    pub fn rename(&mut self, from: &str, to: &str) {
        let renamed = |key: String| key.strip_prefix(from).map(|rest| format!("{to}{rest}")).unwrap_or(key);
        self.values = std::mem::take(&mut self.values).into_iter().map(|(k, v)| (renamed(k), v)).collect();
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &[u8])> {
        self.values.iter().map(|(k, v)| (k.as_str(), v.as_slice()))
    }
}
