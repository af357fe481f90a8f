//! Constants of an ONNX graph: initializers and what is computed from them before the network runs.
//!
//! Invariants: floats of a file stay views into it until something computes with them; a constant's element count
//! always fits its shape.

use super::proto::{StringStringEntryProto, TensorProto, data_type};
use crate::model::params::{Dtype, Param, numel_of};
use crate::model::{Blob, printable};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A tensor known at import.
#[derive(Debug, Clone)]
pub(super) struct Constant {
    pub shape: Vec<usize>,
    pub data: Data,
    /// The initializer that these are the values of, if nothing but their shape was changed.
    pub name: Option<Arc<str>>,
    /// The leading axis is the batch times `shape[0]` (mostly 1), and every image has these same values.
    pub batched: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Data {
    /// Integers and booleans.
    Ints(Arc<[i64]>),
    Floats(Param),
}

impl Constant {
    pub fn ints(shape: Vec<usize>, values: Vec<i64>) -> Option<Constant> {
        let data = (numel_of(&shape)? == values.len()).then(|| Data::Ints(values.into()))?;
        Some(Constant { shape, data, name: None, batched: false })
    }

    pub fn floats(shape: Vec<usize>, values: Vec<f32>) -> Option<Constant> {
        let data = Data::Floats(Param::owned(shape.clone(), values)?);
        Some(Constant { shape, data, name: None, batched: false })
    }

    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// The integers, if it holds integers.
    pub fn as_ints(&self) -> Option<&[i64]> {
        let Data::Ints(v) = &self.data else { return None };
        Some(v)
    }

    pub fn as_param(&self) -> Option<&Param> {
        let Data::Floats(p) = &self.data else { return None };
        Some(p)
    }

    /// The values as `f32`, integers converted.
    pub fn to_f32(&self) -> Vec<f32> {
        match &self.data {
            Data::Ints(v) => v.iter().map(|&v| v as f32).collect(),
            Data::Floats(p) => p.values().into_owned(),
        }
    }

    /// The one number that it holds, whatever its shape.
    pub fn scalar(&self) -> Option<f64> {
        if self.numel() != 1 || self.batched {
            return None;
        }
        match &self.data {
            Data::Ints(v) => v.first().map(|&v| v as f64),
            Data::Floats(p) => p.values().first().map(|&v| f64::from(v)),
        }
    }

    /// The same values in another shape; `None` when the counts differ.
    pub fn reshaped(&self, shape: Vec<usize>) -> Option<Constant> {
        if numel_of(&shape)? != self.numel() {
            return None;
        }
        let data = match &self.data {
            Data::Ints(v) => Data::Ints(v.clone()),
            Data::Floats(p) => Data::Floats(p.reshaped(shape.clone())?),
        };
        Some(Constant { shape, data, ..self.clone() })
    }
}

/// Where tensors come from: the model file and files beside it.
pub(super) struct Source {
    blob: Blob,
    /// The folder of external data; `None` for a model from memory.
    dir: Option<PathBuf>,
    external: HashMap<String, Blob>,
}

impl Source {
    pub fn new(blob: Blob, dir: Option<&Path>) -> Source {
        Source { blob, dir: dir.map(Path::to_owned), external: HashMap::new() }
    }

    /// Reads one tensor.
    ///
    /// # Errors
    /// In words, without the tensor's name.
    pub fn tensor(&mut self, t: &TensorProto) -> Result<Constant, String> {
        let shape: Option<Vec<usize>> = t.dims.iter().map(|&d| usize::try_from(d).ok()).collect();
        let shape = shape.filter(|s| s.len() <= 16).ok_or_else(|| format!("has the shape {:?}", t.dims))?;
        let numel = numel_of(&shape).ok_or_else(|| format!("has the shape {shape:?}"))?;
        let kind = t.data_type.unwrap_or(0);
        let float = match kind {
            data_type::FLOAT => Some(Dtype::F32),
            data_type::FLOAT16 => Some(Dtype::F16),
            data_type::BFLOAT16 => Some(Dtype::Bf16),
            data_type::DOUBLE => Some(Dtype::F64),
            _ => None,
        };
        let name = t.name.as_deref().filter(|n| !n.is_empty()).map(Arc::from);
        let short = |found: usize| format!("holds {found} values where its shape {shape:?} needs {numel}");
        let located = self.raw(t)?;
        let data = match (located, float) {
            (Some((blob, offset, len)), Some(dtype)) => {
                if numel.checked_mul(dtype.size()) != Some(len) {
                    return Err(short(len / dtype.size()));
                }
                let view = Param::view(shape.clone(), blob, offset, dtype);
                Data::Floats(view.ok_or_else(|| "reaches past the end of its file".to_owned())?)
            }
            (Some((blob, offset, len)), None) => {
                let bytes = blob.get(offset..offset + len).unwrap_or(&[]);
                let (values, size) = integers(bytes, kind).ok_or_else(|| unknown_type(kind))?;
                if numel.checked_mul(size) != Some(len) {
                    return Err(short(values.len()));
                }
                Data::Ints(values.into())
            }
            (None, Some(dtype)) => {
                let half = |f: fn(u16) -> f32| t.int32_data.iter().map(|&v| f(v as u16)).collect();
                let values: Vec<f32> = match dtype {
                    Dtype::F32 => t.float_data.clone(),
                    Dtype::F64 => t.double_data.iter().map(|&v| v as f32).collect(),
                    Dtype::F16 => half(|b| half::f16::from_bits(b).to_f32()),
                    Dtype::Bf16 => half(|b| half::bf16::from_bits(b).to_f32()),
                };
                let found = values.len();
                Data::Floats(Param::owned(shape.clone(), values).ok_or_else(|| short(found))?)
            }
            (None, None) => {
                let values: Vec<i64> = match kind {
                    data_type::INT64 => t.int64_data.clone(),
                    data_type::UINT32 | data_type::UINT64 => t.uint64_data.iter().map(|&v| v as i64).collect(),
                    k if integers(&[], k).is_some() => t.int32_data.iter().map(|&v| i64::from(v)).collect(),
                    k => return Err(unknown_type(k)),
                };
                if values.len() != numel {
                    return Err(short(values.len()));
                }
                Data::Ints(values.into())
            }
        };
        Ok(Constant { shape, data, name, batched: false })
    }

    /// The little-endian bytes of `t` (blob, offset, length), if it has such.
    pub fn raw(&mut self, t: &TensorProto) -> Result<Option<(Blob, usize, usize)>, String> {
        if t.data_location == Some(1) {
            return self.outside(&t.external_data).map(Some);
        }
        let Some(raw) = &t.raw_data else { return Ok(None) };
        // What prost handed out is a piece of the file's own bytes; a copy of it is kept otherwise.
        let offset = (raw.as_ptr() as usize).wrapping_sub(self.blob.as_ptr() as usize);
        let inside = offset.checked_add(raw.len()).is_some_and(|end| end <= self.blob.len());
        let (blob, offset) = if inside { (self.blob.clone(), offset) } else { (Blob::Owned(raw.to_vec().into()), 0) };
        Ok(Some((blob, offset, raw.len())))
    }

    /// External data: a file in the model's own folder, named without any way out of it.
    fn outside(&mut self, entries: &[StringStringEntryProto]) -> Result<(Blob, usize, usize), String> {
        let get = |key: &str| entries.iter().find(|e| e.key.as_deref() == Some(key)).and_then(|e| e.value.as_deref());
        let location = get("location").unwrap_or_default();
        let plain = Path::new(location).components().all(|c| matches!(c, std::path::Component::Normal(_)));
        let outside = || Err(format!("lies in `{}`, which is no path inside the model's folder", printable(location)));
        if location.is_empty() || !plain {
            return outside();
        }
        let Some(dir) = &self.dir else { return Err("lies in another file, and this model has no folder".into()) };
        if !self.external.contains_key(location) {
            let path = dir.join(location);
            // A link must not lead out of the folder either.
            let within = path.canonicalize().ok().zip(dir.canonicalize().ok()).is_some_and(|(p, d)| p.starts_with(d));
            if path.exists() && !within {
                return outside();
            }
            let blob = Blob::open(&path).map_err(|e| format!("lies in `{}`: {e}", printable(location)))?;
            self.external.insert(location.to_owned(), blob);
        }
        let blob = self.external.get(location).cloned().unwrap_or(Blob::Static(&[]));
        let number = |key: &str, otherwise: usize| get(key).map_or(Ok(otherwise), str::parse);
        let offset = number("offset", 0).map_err(|e| format!("has an external offset that is no number: {e}"))?;
        let rest = blob.len().saturating_sub(offset);
        let length = number("length", rest).map_err(|e| format!("has an external length that is no number: {e}"))?;
        if offset.checked_add(length).is_none_or(|end| end > blob.len()) {
            return Err(format!("reaches past the end of `{}`", printable(location)));
        }
        Ok((blob, offset, length))
    }
}

fn unknown_type(kind: i32) -> String {
    format!("has the data type {kind}, which is not read")
}

/// Little-endian integers of `kind` and their size in bytes; `None` for a type that is no integer.
fn integers(bytes: &[u8], kind: i32) -> Option<(Vec<i64>, usize)> {
    macro_rules! read {
        ($t:ty) => {{
            const N: usize = size_of::<$t>();
            let one = |b: &[u8]| <$t>::from_le_bytes(b.try_into().unwrap_or_default()) as i64;
            Some((bytes.chunks_exact(N).map(one).collect(), N))
        }};
    }
    match kind {
        data_type::UINT8 | data_type::BOOL => read!(u8),
        data_type::INT8 => read!(i8),
        data_type::UINT16 => read!(u16),
        data_type::INT16 => read!(i16),
        data_type::INT32 => read!(i32),
        data_type::UINT32 => read!(u32),
        data_type::INT64 => read!(i64),
        data_type::UINT64 => read!(u64),
        _ => None,
    }
}
