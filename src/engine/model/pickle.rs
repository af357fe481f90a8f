//! A pickle reader for PyTorch checkpoints and CIFAR's Python files that never executes anything: a stack machine over an allow-list of opcodes
//! and of globals. Containers live in an arena and values refer to them by index, so that neither cycles nor
//! million-deep nesting can overflow the stack. What a pickle makes is paid for out of a budget that its own length sets,
//! before it is made: a few bytes can ask again and again for a copy of what is there already.
//!
//! Source: CPython's `Lib/pickletools.py`; PyTorch's `torch/serialization.py`, `torch/_utils.py`.

mod machine;
mod value;

use machine::{Machine, size_of};
use std::collections::HashMap;
use std::rc::Rc;
use value::PickleError::Malformed;
pub(crate) use value::{Arena, PickleError, TensorRef, Value};
use value::{Global, StorageRef, as_usize, global};

/// Memory that a pickle may fill for each of its bytes. A list of small numbers takes 12, a state dict about 4; the most that
/// opcodes fill which copy nothing is 80, by tuples of one byte each.
const MEMORY_PER_BYTE: usize = 96;
/// Added to it, so that a tiny pickle need not count its bytes.
const MEMORY_BASE: usize = 1 << 20;
/// And in all: hundreds of thousands of tensors.
const MAX_MEMORY: usize = 512 << 20;

/// More axes than any layer's weights have.
const MAX_AXES: usize = 8;

/// Reads one pickle from the start of `bytes`: the value, the arena that it refers to, and how many bytes it took.
pub(crate) fn read(bytes: &[u8]) -> Result<(Value, Arena, usize), PickleError> {
    let memory = bytes.len().saturating_mul(MEMORY_PER_BYTE).saturating_add(MEMORY_BASE).min(MAX_MEMORY);
    let mut m = Machine { bytes, at: 0, stack: Vec::new(), memo: HashMap::new(), arena: Arena::default(), memory };
    let value = m.run()?;
    Ok((value, m.arena, m.at))
}

impl Machine<'_> {
    /// `callable(*args)` for the callables that the allow-list admits.
    fn reduce(&mut self) -> Result<Value, PickleError> {
        let args = self.pop()?;
        let callable = self.pop()?;
        let Value::Global(callable) = callable else { return Err(Malformed("a call of what is no global")) };
        let args = self.arena.items(&args).ok_or(Malformed("call arguments are no tuple"))?;
        Ok(match callable {
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
        })
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
        let impossible = Malformed("a tensor with impossible sizes");
        // Before they are copied: a long list is named again with a byte or two.
        if [shape, stride].iter().any(|v| self.arena.items(v).is_none_or(|items| items.len() > MAX_AXES)) {
            return Err(impossible);
        }
        match (as_usize(offset), self.arena.usizes(shape), self.arena.usizes(stride)) {
            (Some(offset), Some(shape), Some(stride)) if shape.len() == stride.len() => {
                Ok(Value::Tensor(Rc::new(TensorRef { storage: storage.clone(), offset, shape, stride })))
            }
            _ => Err(impossible),
        }
    }

    /// `('storage', type, key, location, numel)`, in the legacy format followed by a view `(key, offset, size)` or None.
    fn persistent(&mut self) -> Result<Value, PickleError> {
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
        Ok(Value::Storage(storage))
    }

    fn run(&mut self) -> Result<Value, PickleError> {
        loop {
            let op = self.array::<1>()?[0];
            match op {
                b'.' => return self.pop(),
                0x80 => drop(self.u8()?),  // PROTO
                0x95 => drop(self.u64()?), // FRAME: a length that nobody needs
                b'0' => drop(self.pop()?),
                b'1' => drop(self.pop_mark()?),
                b'2' => {
                    let v = self.pop()?;
                    self.push(v.clone())?;
                    self.push(v)?;
                }
                b'd' => {
                    let items = self.pop_mark()?;
                    let v = self.dict(Vec::new())?;
                    self.push(v)?;
                    self.set_items(items)?;
                }
                b'a' | b'e' | 0x90 => {
                    let items = if op == b'a' { vec![self.pop()?] } else { self.pop_mark()? };
                    self.extend(items)?;
                }
                b's' => {
                    let (v, k) = (self.pop()?, self.pop()?);
                    self.set_items(vec![k, v])?;
                }
                b'u' => {
                    let items = self.pop_mark()?;
                    self.set_items(items)?;
                }
                b'q' | b'r' | 0x94 => {
                    let key = match op {
                        b'q' => self.u8()? as u32,
                        b'r' => self.u32()?,
                        _ => self.memo.len() as u32,
                    };
                    self.memoize(key)?;
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
                _ => {
                    let v = self.made(op)?;
                    self.push(v)?;
                }
            }
        }
    }

    /// What an opcode pushes that makes a container, finds a global or calls one; else [`Machine::literal`].
    fn made(&mut self, op: u8) -> Result<Value, PickleError> {
        Ok(match op {
            b'(' => Value::Mark,
            b'}' => self.dict(Vec::new())?,
            0x8f => Value::Opaque, // EMPTY_SET
            b')' => self.tuple(0)?,
            0x85..=0x87 => self.tuple(usize::from(op - 0x84))?,
            b't' => {
                let items = self.pop_mark()?;
                Value::Tuple(self.seq(items)?)
            }
            b']' => Value::List(self.seq(Vec::new())?),
            b'l' => {
                let items = self.pop_mark()?;
                Value::List(self.seq(items)?)
            }
            b'h' | b'j' => {
                let key = if op == b'h' { self.u8()? as u32 } else { self.u32()? };
                self.memo.get(&key).cloned().ok_or(Malformed("a memo is missing"))?
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                Value::Global(global(module, name)?)
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Value::Str(module), Value::Str(name)) = (module, name) else {
                    return Err(Malformed("a global without a name"));
                };
                Value::Global(global(&module, &name)?)
            }
            b'Q' => self.persistent()?,
            b'R' => self.reduce()?,
            0x81 => {
                // NEWOBJ: `cls.__new__(cls, *args)`
                self.pop()?;
                match self.pop()? {
                    Value::Global(Global::OrderedDict) => self.dict(Vec::new())?,
                    Value::Global(Global::Opaque | Global::Set) => Value::Opaque,
                    _ => return Err(Malformed("an object of an unexpected class")),
                }
            }
            _ => self.literal(op)?,
        })
    }

    /// What stands in the pickle as it is: numbers, text and bytes.
    fn literal(&mut self, op: u8) -> Result<Value, PickleError> {
        // What follows behind a length of one, four or eight bytes.
        let n = match op {
            0x8a | 0x8c | b'U' | b'C' => self.u8()?,
            0x8b | b'X' | b'T' | b'B' => self.u32()? as usize,
            0x8d | 0x8e => self.u64()?,
            _ => 0,
        };
        Ok(match op {
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'J' => Value::Int(i32::from_le_bytes(self.array()?).into()),
            b'K' => Value::Int(self.u8()? as i64),
            b'M' => Value::Int(u16::from_le_bytes(self.array()?).into()),
            b'G' => {
                self.take(8)?;
                Value::Float
            }
            0x8a | 0x8b => self.long(n)?,
            b'X' | 0x8c | 0x8d => self.text(n)?,
            b'U' | b'T' => self.old_text(n)?,
            b'C' | b'B' | 0x8e => {
                self.take(n)?;
                Value::Bytes(self.at - n..self.at)
            }
            other => return Err(PickleError::Opcode(other)),
        })
    }
}
