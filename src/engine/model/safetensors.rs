//! Reading the safetensors container, strictly: a header that lies about sizes, overlaps tensors or repeats a name is
//! refused before anything is allocated for it. (<https://huggingface.co/docs/safetensors>, "Format".)
//!
//! Not by the `safetensors` crate: its parser drops repeated names without a word, and cannot say which tensor of which file
//! is at fault, so that all of these checks would stand beside it. Tests write with it.

use super::checkpoint::float_dtype;
use super::{Blob, Checkpoint, ModelError, Param, RawTensor, Result, numel_of, printable};
use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use std::fmt;
use std::path::Path;

/// The reference implementation's own limit on the header, bytes.
const MAX_HEADER: u64 = 100_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// The header's object in file order, refusing a name that comes twice.
#[derive(Default)]
struct Header {
    metadata: IndexMap<String, String>,
    tensors: IndexMap<String, Entry>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Header, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Header, M::Error> {
                let mut header = Header::default();
                let mut seen_metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    let twice = if name == "__metadata__" {
                        header.metadata = map.next_value()?;
                        std::mem::replace(&mut seen_metadata, true)
                    } else {
                        let entry = map.next_value()?;
                        header.tensors.insert(name.clone(), entry).is_some()
                    };
                    if twice {
                        return Err(M::Error::custom(format!("`{}` is listed twice", printable(&name))));
                    }
                }
                Ok(header)
            }
        }
        d.deserialize_map(V)
    }
}

/// Bytes per element of a header's dtype word.
fn element_size(dtype: &str) -> Option<usize> {
    Some(match dtype {
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" => 1,
        "I16" | "U16" | "F16" | "BF16" => 2,
        "I32" | "U32" | "F32" => 4,
        "I64" | "U64" | "F64" | "C64" => 8,
        _ => return None,
    })
}

/// Whether these bytes begin as such a file does.
pub(super) fn is(bytes: &[u8]) -> bool {
    bytes.get(8) == Some(&b'{')
}

/// Reads header and tensors; floats stay views into `blob`.
pub(super) fn read(blob: &Blob, path: &Path) -> Result<Checkpoint> {
    let damaged = |why: String| ModelError::damaged(path, why);
    let (length, rest) = blob.split_first_chunk::<8>().ok_or_else(|| damaged("it ends inside its header".into()))?;
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        return Err(damaged(format!("its header claims {length} bytes")));
    }
    let header = rest.get(..length as usize).ok_or_else(|| damaged("it ends inside its header".into()))?;
    let start = 8 + length as usize;
    let header: Header = serde_json::from_slice(header)
        .map_err(|e| damaged(format!("its header is not valid: {}", printable(&e.to_string()))))?;

    let mut spans: Vec<(usize, usize, &str)> = Vec::with_capacity(header.tensors.len());
    let mut out = Checkpoint { metadata: header.metadata, ..Checkpoint::default() };
    for (name, entry) in &header.tensors {
        let shown = printable(name);
        let [from, to] = entry.data_offsets;
        let Some(size) = element_size(&entry.dtype) else {
            return Err(damaged(format!("tensor `{shown}` has the unknown type `{}`", printable(&entry.dtype))));
        };
        let bytes = numel_of(&entry.shape).and_then(|n| n.checked_mul(size));
        if from > to || Some(to - from) != bytes {
            return Err(damaged(format!("tensor `{shown}` claims bytes {from}..{to} for shape {:?}", entry.shape)));
        }
        if to > blob.len() - start {
            return Err(damaged(format!("tensor `{shown}` reaches past the end of the file")));
        }
        spans.push((from, to, name));
        let offset = start + from;
        let (shape, blob) = (entry.shape.clone(), blob.clone());
        let tensor = match float_dtype(&entry.dtype) {
            Some(dtype) => Param::view(shape, blob, offset, dtype).map(RawTensor::Float),
            None => Some(match ["I8", "U8", "F8_E4M3"].into_iter().find(|t| entry.dtype == *t) {
                Some(dtype) => RawTensor::Bytes { dtype, shape, blob, offset },
                None => RawTensor::Other { shape, dtype: entry.dtype.clone() },
            }),
        };
        let tensor = tensor.ok_or_else(|| damaged(format!("tensor `{shown}` reaches past the end of the file")))?;
        out.tensors.insert(name.clone(), tensor);
    }
    spans.sort_unstable();
    if let Some(w) = spans.windows(2).find(|w| w[1].0 < w[0].1) {
        return Err(damaged(format!("tensors `{}` and `{}` overlap", printable(w[0].2), printable(w[1].2))));
    }
    Ok(out)
}
