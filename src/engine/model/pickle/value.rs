//! What a pickle makes, which globals it may name, and why one is refused.
//!
//! Not here: reading (`pickle`). Invariant: containers are named by their place in the arena, never held by a value.

use crate::model::printable;
use std::ops::Range;
use std::rc::Rc;

/// Why a pickle was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PickleError {
    #[error("the pickle ends too early")]
    Truncated,
    #[error("the pickle is malformed ({0})")]
    Malformed(&'static str),
    #[error("the pickle uses opcode 0x{0:02x}, which no state dict needs")]
    Opcode(u8),
    #[error("the pickle wants to load `{0}`, which is not part of a state dict")]
    Global(String),
    #[error("the pickle is unreasonably large")]
    TooLarge,
}

/// A value; containers by arena index.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond `i64`, little-endian two's complement.
    BigInt(Rc<[u8]>),
    /// A float, whose value nobody asks for.
    Float,
    Str(Rc<str>),
    /// Bytes, as a range of the input.
    Bytes(Range<usize>),
    Tuple(usize),
    List(usize),
    Dict(usize),
    Global(Global),
    Storage(Rc<StorageRef>),
    Tensor(Rc<TensorRef>),
    /// A numpy array, whose state [`Arena::state`] tells.
    Array(usize),
    /// Something allowed but of no interest (training arguments, numpy scalars).
    Opaque,
    Mark,
}

/// What the allow-list admits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Size,
    Set,
    /// Makes an empty numpy array, which BUILD fills.
    Reconstruct,
    /// `torch.FloatStorage` and so on, by class name.
    StorageType(&'static str),
    /// Callable, result ignored.
    Opaque,
}

/// A storage that the pickle refers to by persistent id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StorageRef {
    /// PyTorch's class name, e.g. `FloatStorage`.
    pub kind: &'static str,
    /// Shared with the pickle's own string: a long one may be used a million times.
    pub key: Rc<str>,
    /// For a legacy view storage: the offset into the root storage `key`, in elements.
    pub view_offset: usize,
}

/// A tensor as a strided window over a storage, in elements.
#[derive(Debug)]
pub(crate) struct TensorRef {
    pub storage: Rc<StorageRef>,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub stride: Vec<usize>,
}

/// Storage classes and nothing else from `torch`.
const STORAGES: [&str; 10] = [
    "FloatStorage",
    "HalfStorage",
    "BFloat16Storage",
    "DoubleStorage",
    "LongStorage",
    "IntStorage",
    "ShortStorage",
    "CharStorage",
    "ByteStorage",
    "BoolStorage",
];

pub(super) fn global(module: &str, name: &str) -> Result<Global, PickleError> {
    let found = match (module, name) {
        ("collections", "OrderedDict") => Global::OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor") => Global::RebuildTensor,
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Global::RebuildParameter,
        ("torch", "Size") => Global::Size,
        ("builtins" | "__builtin__", "set" | "frozenset") => Global::Set,
        ("torch", kind) if let Some(kind) = STORAGES.iter().find(|s| **s == kind) => Global::StorageType(kind),
        ("torch", "device" | "float32" | "float16" | "bfloat16" | "float64" | "int64")
        | ("argparse", "Namespace")
        | ("types", "SimpleNamespace")
        | ("collections", "defaultdict" | "Counter")
        | ("pathlib", "Path" | "PosixPath" | "WindowsPath")
        | ("_codecs", "encode")
        | ("builtins" | "__builtin__", "dict" | "list" | "int" | "float" | "complex" | "bytearray")
        | ("numpy", "dtype" | "ndarray")
        | ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Global::Opaque,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => Global::Reconstruct,
        _ => return Err(PickleError::Global(printable(&format!("{module}.{name}")))),
    };
    Ok(found)
}

/// Everything a finished pickle made.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    pub(super) seqs: Vec<Vec<Value>>,
    pub(super) dicts: Vec<Vec<(Value, Value)>>,
    pub(super) storages: Vec<Rc<StorageRef>>,
    pub(super) arrays: Vec<Value>,
}

impl Arena {
    /// Every storage that the pickle named, also those of tensors that were dropped on the way.
    pub fn storages(&self) -> &[Rc<StorageRef>] {
        &self.storages
    }

    /// The items of a tuple or list.
    pub fn items(&self, v: &Value) -> Option<&[Value]> {
        let (Value::Tuple(i) | Value::List(i)) = v else { return None };
        self.seqs.get(*i).map(Vec::as_slice)
    }

    /// The entries of a dict, in insertion order (a key that was set twice comes twice).
    pub fn entries(&self, v: &Value) -> Option<&[(Value, Value)]> {
        let Value::Dict(i) = v else { return None };
        self.dicts.get(*i).map(Vec::as_slice)
    }

    /// `dict[key]` for a string key; the last one wins, as in Python.
    pub fn get(&self, dict: &Value, key: &str) -> Option<&Value> {
        self.entries(dict)?.iter().rev().find(|(k, _)| matches!(k, Value::Str(s) if &**s == key)).map(|(_, v)| v)
    }

    /// A numpy array's state: the tuple `(version, shape, dtype, column-major, bytes)`.
    pub fn state(&self, v: &Value) -> Option<&Value> {
        let Value::Array(i) = v else { return None };
        self.arrays.get(*i)
    }

    /// The items of a tuple or list that are all counts.
    pub fn usizes(&self, v: &Value) -> Option<Vec<usize>> {
        self.items(v)?.iter().map(as_usize).collect()
    }
}

pub(super) fn as_usize(v: &Value) -> Option<usize> {
    let Value::Int(i) = v else { return None };
    usize::try_from(*i).ok()
}
