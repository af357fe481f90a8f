//! A pickle reader for PyTorch checkpoints and CIFAR's Python files that never executes anything: a stack machine over an allow-list of opcodes
//! and of globals. Containers live in an arena and values refer to them by index, so that neither cycles nor
//! million-deep nesting can overflow the stack. What a pickle makes is paid for out of a budget that its own length sets,
//! before it is made: a few bytes can ask again and again for a copy of what is there already.
//!
//! Source: CPython's `Lib/pickletools.py`; PyTorch's `torch/serialization.py`, `torch/_utils.py`.

use super::printable;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

/// More values on the stack than any checkpoint needs at once.
const MAX_STACK: usize = 4_000_000;
/// Memory that a pickle may fill for each of its bytes. A list of small numbers takes 12, a state dict about 4; the most that
/// opcodes fill which copy nothing is 80, by tuples of one byte each.
const MEMORY_PER_BYTE: usize = 96;
/// Added to it, so that a tiny pickle need not count its bytes.
const MEMORY_BASE: usize = 1 << 20;
/// And in all: hundreds of thousands of tensors.
const MAX_MEMORY: usize = 512 << 20;

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

use PickleError::{Malformed, Truncated};

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

/// More axes than any layer's weights have.
const MAX_AXES: usize = 8;

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

fn global(module: &str, name: &str) -> Result<Global, PickleError> {
    let found = match (module, name) {
        ("collections", "OrderedDict") => Global::OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor") => Global::RebuildTensor,
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Global::RebuildParameter,
        ("torch", "Size") => Global::Size,
        ("builtins" | "__builtin__", "set" | "frozenset") => Global::Set,
        ("torch", kind) if STORAGES.contains(&kind) => {
            Global::StorageType(STORAGES.iter().copied().find(|s| *s == kind).unwrap_or("FloatStorage"))
        }
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
    seqs: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
    storages: Vec<Rc<StorageRef>>,
    arrays: Vec<Value>,
}

impl Arena {
    /// Every storage that the pickle named, also those of tensors that were dropped on the way.
    pub fn storages(&self) -> &[Rc<StorageRef>] {
        &self.storages
    }

    /// The items of a tuple or list.
    pub fn items(&self, v: &Value) -> Option<&[Value]> {
        match v {
            Value::Tuple(i) | Value::List(i) => self.seqs.get(*i).map(Vec::as_slice),
            _ => None,
        }
    }

    /// The entries of a dict, in insertion order (a key that was set twice comes twice).
    pub fn entries(&self, v: &Value) -> Option<&[(Value, Value)]> {
        match v {
            Value::Dict(i) => self.dicts.get(*i).map(Vec::as_slice),
            _ => None,
        }
    }

    /// `dict[key]` for a string key; the last one wins, as in Python.
    pub fn get(&self, dict: &Value, key: &str) -> Option<&Value> {
        self.entries(dict)?.iter().rev().find(|(k, _)| matches!(k, Value::Str(s) if &**s == key)).map(|(_, v)| v)
    }

    /// A numpy array's state: the tuple `(version, shape, dtype, column-major, bytes)`.
    pub fn state(&self, v: &Value) -> Option<&Value> {
        match v {
            Value::Array(i) => self.arrays.get(*i),
            _ => None,
        }
    }

    /// The items of a tuple or list that are all counts.
    pub fn usizes(&self, v: &Value) -> Option<Vec<usize>> {
        self.items(v)?.iter().map(as_usize).collect()
    }
}

fn as_usize(v: &Value) -> Option<usize> {
    match v {
        Value::Int(i) => usize::try_from(*i).ok(),
        _ => None,
    }
}

/// Reads one pickle from the start of `bytes`: the value, the arena that it refers to, and how many bytes it took.
pub(crate) fn read(bytes: &[u8]) -> Result<(Value, Arena, usize), PickleError> {
    let memory = bytes.len().saturating_mul(MEMORY_PER_BYTE).saturating_add(MEMORY_BASE).min(MAX_MEMORY);
    let mut m = Machine { bytes, at: 0, stack: Vec::new(), memo: HashMap::new(), arena: Arena::default(), memory };
    let value = m.run()?;
    Ok((value, m.arena, m.at))
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    memo: HashMap<u32, Value>,
    arena: Arena,
    /// Bytes that may still be filled.
    memory: usize,
}

/// What `n` values take in a list or on the heap, with what an allocation itself costs.
fn size_of<T>(n: usize) -> usize {
    n.saturating_mul(std::mem::size_of::<T>()).saturating_add(16)
}

impl<'a> Machine<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], PickleError> {
        let end = self.at.checked_add(n).ok_or(Truncated)?;
        let slice = self.bytes.get(self.at..end).ok_or(Truncated)?;
        self.at = end;
        Ok(slice)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        self.take(N)?.try_into().map_err(|_| Truncated)
    }

    fn u8(&mut self) -> Result<usize, PickleError> {
        Ok(usize::from(self.array::<1>()?[0]))
    }

    fn u32(&mut self) -> Result<u32, PickleError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<usize, PickleError> {
        usize::try_from(u64::from_le_bytes(self.array()?)).map_err(|_| PickleError::TooLarge)
    }

    fn line(&mut self) -> Result<&'a str, PickleError> {
        let rest = self.bytes.get(self.at..).ok_or(Truncated)?;
        let n = rest.iter().take(1024).position(|&b| b == b'\n').ok_or(Truncated)?;
        self.at += n + 1;
        std::str::from_utf8(&rest[..n]).map_err(|_| Malformed("a name is not text"))
    }

    /// Pays for `bytes` of memory that are about to be filled, and for good: containers are not given back.
    fn pay(&mut self, bytes: usize) -> Result<(), PickleError> {
        self.memory = self.memory.checked_sub(bytes).ok_or(PickleError::TooLarge)?;
        Ok(())
    }

    fn text(&mut self, n: usize) -> Result<Value, PickleError> {
        let bytes = self.take(n)?;
        self.pay(size_of::<u8>(n))?;
        let s = std::str::from_utf8(bytes).map_err(|_| Malformed("a string is not UTF-8"))?;
        Ok(Value::Str(s.into()))
    }

    /// Python 2 strings: text when they are UTF-8, else of no interest.
    fn old_text(&mut self, n: usize) -> Result<Value, PickleError> {
        let bytes = self.take(n)?;
        self.pay(size_of::<u8>(n))?;
        Ok(std::str::from_utf8(bytes).map_or(Value::Bytes(self.at - n..self.at), |s| Value::Str(s.into())))
    }

    fn long(&mut self, n: usize) -> Result<Value, PickleError> {
        let bytes = self.take(n)?;
        let mut wide = [if bytes.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 }; 8];
        if bytes.len() > 8 {
            self.pay(size_of::<u8>(n))?;
            return Ok(Value::BigInt(bytes.into()));
        }
        wide[..bytes.len()].copy_from_slice(bytes);
        Ok(Value::Int(i64::from_le_bytes(wide)))
    }

    fn push(&mut self, v: Value) -> Result<(), PickleError> {
        if self.stack.len() >= MAX_STACK {
            return Err(PickleError::TooLarge);
        }
        self.stack.push(v);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, PickleError> {
        match self.stack.pop() {
            None | Some(Value::Mark) => Err(Malformed("a value is missing")),
            Some(v) => Ok(v),
        }
    }

    fn pop_mark(&mut self) -> Result<Vec<Value>, PickleError> {
        let at = self.stack.iter().rposition(|v| matches!(v, Value::Mark)).ok_or(Malformed("a mark is missing"))?;
        let items = self.stack.split_off(at + 1);
        self.stack.pop();
        Ok(items)
    }

    fn seq(&mut self, items: Vec<Value>) -> Result<usize, PickleError> {
        self.pay(size_of::<Vec<Value>>(1) + size_of::<Value>(items.len()))?;
        self.arena.seqs.push(items);
        Ok(self.arena.seqs.len() - 1)
    }

    /// A dict of entries that were paid for.
    fn dict(&mut self, entries: Vec<(Value, Value)>) -> Result<Value, PickleError> {
        self.pay(size_of::<Vec<Value>>(1))?;
        self.arena.dicts.push(entries);
        Ok(Value::Dict(self.arena.dicts.len() - 1))
    }

    fn tuple(&mut self, n: usize) -> Result<(), PickleError> {
        let at = self.stack.len().checked_sub(n).ok_or(Malformed("a value is missing"))?;
        let items = self.stack.split_off(at);
        if items.iter().any(|v| matches!(v, Value::Mark)) {
            return Err(Malformed("a value is missing"));
        }
        let id = self.seq(items)?;
        self.push(Value::Tuple(id))
    }

    fn memoize(&mut self, key: u32) -> Result<(), PickleError> {
        let v = self.stack.last().cloned().ok_or(Malformed("a value is missing"))?;
        self.pay(size_of::<(u32, Value)>(1))?;
        self.memo.insert(key, v);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Result<(), PickleError> {
        let v = self.memo.get(&key).cloned().ok_or(Malformed("a memo is missing"))?;
        self.push(v)
    }

    /// Adds items to the list on top (or to something opaque, where they are lost).
    fn extend(&mut self, items: Vec<Value>) -> Result<(), PickleError> {
        self.pay(size_of::<Value>(items.len()))?;
        match self.stack.last() {
            Some(Value::List(id)) => {
                if let Some(list) = self.arena.seqs.get_mut(*id) {
                    list.extend(items);
                }
                Ok(())
            }
            Some(Value::Opaque | Value::Array(_)) => Ok(()),
            _ => Err(Malformed("items for what is no list")),
        }
    }

    fn set_items(&mut self, items: Vec<Value>) -> Result<(), PickleError> {
        if !items.len().is_multiple_of(2) {
            return Err(Malformed("a key without a value"));
        }
        self.pay(size_of::<Value>(items.len()))?;
        match self.stack.last() {
            Some(Value::Dict(id)) => {
                if let Some(dict) = self.arena.dicts.get_mut(*id) {
                    let mut items = items.into_iter();
                    while let (Some(k), Some(v)) = (items.next(), items.next()) {
                        dict.push((k, v));
                    }
                }
                Ok(())
            }
            Some(Value::Opaque) => Ok(()),
            _ => Err(Malformed("entries for what is no dict")),
        }
    }

    /// `callable(*args)` for the callables that the allow-list admits.
    fn reduce(&mut self) -> Result<(), PickleError> {
        let args = self.pop()?;
        let callable = self.pop()?;
        let Value::Global(callable) = callable else {
            return Err(Malformed("a call of what is no global"));
        };
        let args = self.arena.items(&args).ok_or(Malformed("call arguments are no tuple"))?;
        let result = match callable {
            Global::OrderedDict => {
                let pairs = args.first().and_then(|a| self.arena.items(a)).map_or(0, <[Value]>::len);
                let paid = self.memory.checked_sub(size_of::<(Value, Value)>(pairs)).ok_or(PickleError::TooLarge)?;
                let entries = self.pairs(args)?;
                self.memory = paid;
                self.dict(entries)?
            }
            Global::RebuildTensor => {
                let tensor = self.tensor(args)?;
                self.pay(size_of::<TensorRef>(1) + 2 * size_of::<usize>(MAX_AXES))?;
                tensor
            }
            Global::RebuildParameter => match args.first() {
                Some(v @ Value::Tensor(_)) => v.clone(),
                _ => return Err(Malformed("a parameter without a tensor")),
            },
            Global::Size => args.first().cloned().ok_or(Malformed("a size without numbers"))?,
            Global::Reconstruct => {
                self.pay(size_of::<Value>(1))?;
                self.arena.arrays.push(Value::None);
                Value::Array(self.arena.arrays.len() - 1)
            }
            Global::Set | Global::Opaque => Value::Opaque,
            Global::StorageType(_) => return Err(Malformed("a storage made from nothing")),
        };
        self.push(result)
    }

    /// The entries of `OrderedDict(pairs)`.
    fn pairs(&self, args: &[Value]) -> Result<Vec<(Value, Value)>, PickleError> {
        let pair = |pair: &Value| match self.arena.items(pair) {
            Some([k, v]) => Ok((k.clone(), v.clone())),
            _ => Err(Malformed("an ordered dict without pairs")),
        };
        args.first().and_then(|a| self.arena.items(a)).unwrap_or(&[]).iter().map(pair).collect()
    }

    /// `(storage, offset, size, stride, ..)`.
    fn tensor(&self, args: &[Value]) -> Result<Value, PickleError> {
        let [Value::Storage(storage), offset, shape, stride, ..] = args else {
            return Err(Malformed("a tensor without a storage"));
        };
        // Before they are copied: a long list is named again with a byte or two.
        if [shape, stride].iter().any(|v| self.arena.items(v).is_none_or(|items| items.len() > MAX_AXES)) {
            return Err(Malformed("a tensor with impossible sizes"));
        }
        let numbers = (as_usize(offset), self.arena.usizes(shape), self.arena.usizes(stride));
        let (Some(offset), Some(shape), Some(stride)) = numbers else {
            return Err(Malformed("a tensor with impossible sizes"));
        };
        if shape.len() != stride.len() {
            return Err(Malformed("a tensor with impossible sizes"));
        }
        Ok(Value::Tensor(Rc::new(TensorRef { storage: storage.clone(), offset, shape, stride })))
    }

    /// `('storage', type, key, location, numel)`, in the legacy format followed by a view `(key, offset, size)` or None.
    fn persistent(&mut self) -> Result<(), PickleError> {
        let id = self.pop()?;
        let items = self.arena.items(&id).ok_or(Malformed("a storage id is no tuple"))?;
        let [Value::Str(tag), Value::Global(Global::StorageType(kind)), Value::Str(key), _, _numel, view @ ..] = items
        else {
            return Err(Malformed("a storage id of an unknown form"));
        };
        if &**tag != "storage" {
            return Err(Malformed("a storage id of an unknown form"));
        }
        let view_offset = match view.first().map(|v| self.arena.items(v)) {
            Some(Some([_, offset, _])) => as_usize(offset).ok_or(Malformed("a storage view of an unknown form"))?,
            _ => 0,
        };
        let storage = Rc::new(StorageRef { kind, key: key.clone(), view_offset });
        self.pay(size_of::<StorageRef>(1) + size_of::<Rc<StorageRef>>(1))?;
        self.arena.storages.push(storage.clone());
        self.push(Value::Storage(storage))
    }

    fn run(&mut self) -> Result<Value, PickleError> {
        loop {
            let op = self.array::<1>()?[0];
            match op {
                b'.' => return self.pop(),
                0x80 => {
                    self.u8()?; // PROTO
                }
                0x95 => {
                    self.u64()?; // FRAME: a length that nobody needs
                }
                b'(' => self.push(Value::Mark)?,
                b'0' => {
                    self.pop()?;
                }
                b'1' => {
                    self.pop_mark()?;
                }
                b'2' => {
                    let v = self.pop()?;
                    self.push(v.clone())?;
                    self.push(v)?;
                }
                b'N' => self.push(Value::None)?,
                0x88 => self.push(Value::Bool(true))?,
                0x89 => self.push(Value::Bool(false))?,
                b'J' => {
                    let v = i32::from_le_bytes(self.array()?);
                    self.push(Value::Int(v.into()))?;
                }
                b'K' => {
                    let v = self.u8()?;
                    self.push(Value::Int(v as i64))?;
                }
                b'M' => {
                    let v = u16::from_le_bytes(self.array()?);
                    self.push(Value::Int(v.into()))?;
                }
                0x8a => {
                    let n = self.u8()?;
                    let v = self.long(n)?;
                    self.push(v)?;
                }
                0x8b => {
                    let n = self.u32()?;
                    let v = self.long(n as usize)?;
                    self.push(v)?;
                }
                b'G' => {
                    self.take(8)?;
                    self.push(Value::Float)?;
                }
                b'X' => {
                    let n = self.u32()?;
                    let v = self.text(n as usize)?;
                    self.push(v)?;
                }
                0x8c => {
                    let n = self.u8()?;
                    let v = self.text(n)?;
                    self.push(v)?;
                }
                0x8d => {
                    let n = self.u64()?;
                    let v = self.text(n)?;
                    self.push(v)?;
                }
                b'U' => {
                    let n = self.u8()?;
                    let v = self.old_text(n)?;
                    self.push(v)?;
                }
                b'T' => {
                    let n = self.u32()?;
                    let v = self.old_text(n as usize)?;
                    self.push(v)?;
                }
                b'C' | b'B' | 0x8e => {
                    let n = match op {
                        b'C' => self.u8()?,
                        b'B' => self.u32()? as usize,
                        _ => self.u64()?,
                    };
                    self.take(n)?;
                    self.push(Value::Bytes(self.at - n..self.at))?;
                }
                b'}' => {
                    let v = self.dict(Vec::new())?;
                    self.push(v)?;
                }
                b']' => {
                    let id = self.seq(Vec::new())?;
                    self.push(Value::List(id))?;
                }
                0x8f => self.push(Value::Opaque)?, // EMPTY_SET
                b')' => self.tuple(0)?,
                0x85..=0x87 => self.tuple(usize::from(op - 0x84))?,
                b't' => {
                    let items = self.pop_mark()?;
                    let id = self.seq(items)?;
                    self.push(Value::Tuple(id))?;
                }
                b'l' => {
                    let items = self.pop_mark()?;
                    let id = self.seq(items)?;
                    self.push(Value::List(id))?;
                }
                b'd' => {
                    let items = self.pop_mark()?;
                    let v = self.dict(Vec::new())?;
                    self.push(v)?;
                    self.set_items(items)?;
                }
                b'a' => {
                    let v = self.pop()?;
                    self.extend(vec![v])?;
                }
                b'e' | 0x90 => {
                    let items = self.pop_mark()?;
                    self.extend(items)?;
                }
                b's' => {
                    let v = self.pop()?;
                    let k = self.pop()?;
                    self.set_items(vec![k, v])?;
                }
                b'u' => {
                    let items = self.pop_mark()?;
                    self.set_items(items)?;
                }
                b'q' => {
                    let key = self.u8()?;
                    self.memoize(key as u32)?;
                }
                b'r' => {
                    let key = self.u32()?;
                    self.memoize(key)?;
                }
                0x94 => {
                    let key = self.memo.len() as u32;
                    self.memoize(key)?;
                }
                b'h' => {
                    let key = self.u8()?;
                    self.recall(key as u32)?;
                }
                b'j' => {
                    let key = self.u32()?;
                    self.recall(key)?;
                }
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.push(Value::Global(global(module, name)?))?;
                }
                0x93 => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    let (Value::Str(module), Value::Str(name)) = (module, name) else {
                        return Err(Malformed("a global without a name"));
                    };
                    self.push(Value::Global(global(&module, &name)?))?;
                }
                b'Q' => self.persistent()?,
                b'R' => self.reduce()?,
                0x81 => {
                    // NEWOBJ: `cls.__new__(cls, *args)`
                    self.pop()?;
                    match self.pop()? {
                        Value::Global(Global::OrderedDict) => {
                            let v = self.dict(Vec::new())?;
                            self.push(v)?;
                        }
                        Value::Global(Global::Opaque | Global::Set) => self.push(Value::Opaque)?,
                        _ => return Err(Malformed("an object of an unexpected class")),
                    }
                }
                b'b' => {
                    // BUILD: an array's content; else attributes such as a state dict's `_metadata`, of no interest
                    let state = self.pop()?;
                    if let Some(Value::Array(id)) = self.stack.last()
                        && let Some(slot) = self.arena.arrays.get_mut(*id)
                    {
                        *slot = state;
                    }
                }
                other => return Err(PickleError::Opcode(other)),
            }
        }
    }
}
