//! The stack machine below the opcodes: reading its input, its stack, its memo, and paying for what it makes.
//!
//! Not here: what an opcode does (`pickle`). Invariant: memory is paid for before it is filled.

use super::value::PickleError::{self, Malformed, Truncated};
use super::value::{Arena, Value};
use std::collections::HashMap;

/// More values on the stack than any checkpoint needs at once.
const MAX_STACK: usize = 4_000_000;

/// The stack machine: its input, what lies on its stack and what was made.
pub(super) struct Machine<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
    pub stack: Vec<Value>,
    pub memo: HashMap<u32, Value>,
    pub arena: Arena,
    /// Bytes that may still be filled.
    pub memory: usize,
}

/// What `n` values take in a list or on the heap, with what an allocation itself costs.
pub(super) fn size_of<T>(n: usize) -> usize {
    n.saturating_mul(std::mem::size_of::<T>()).saturating_add(16)
}

impl<'a> Machine<'a> {
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], PickleError> {
        let end = self.at.checked_add(n).ok_or(Truncated)?;
        let slice = self.bytes.get(self.at..end).ok_or(Truncated)?;
        self.at = end;
        Ok(slice)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        self.take(N)?.try_into().map_err(|_| Truncated)
    }

    pub fn u8(&mut self) -> Result<usize, PickleError> {
        Ok(usize::from(self.array::<1>()?[0]))
    }

    pub fn u32(&mut self) -> Result<u32, PickleError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<usize, PickleError> {
        usize::try_from(u64::from_le_bytes(self.array()?)).map_err(|_| PickleError::TooLarge)
    }

    pub fn line(&mut self) -> Result<&'a str, PickleError> {
        let rest = self.bytes.get(self.at..).ok_or(Truncated)?;
        let n = rest.iter().take(1024).position(|&b| b == b'\n').ok_or(Truncated)?;
        self.at += n + 1;
        std::str::from_utf8(&rest[..n]).map_err(|_| Malformed("a name is not text"))
    }

    /// Pays for `bytes` of memory that are about to be filled, and for good: containers are not given back.
    pub fn pay(&mut self, bytes: usize) -> Result<(), PickleError> {
        self.memory = self.memory.checked_sub(bytes).ok_or(PickleError::TooLarge)?;
        Ok(())
    }

    pub fn text(&mut self, n: usize) -> Result<Value, PickleError> {
        let bytes = self.take(n)?;
        self.pay(size_of::<u8>(n))?;
        let s = std::str::from_utf8(bytes).map_err(|_| Malformed("a string is not UTF-8"))?;
        Ok(Value::Str(s.into()))
    }

    /// Python 2 strings: text when they are UTF-8, else of no interest.
    pub fn old_text(&mut self, n: usize) -> Result<Value, PickleError> {
        let bytes = self.take(n)?;
        self.pay(size_of::<u8>(n))?;
        Ok(std::str::from_utf8(bytes).map_or(Value::Bytes(self.at - n..self.at), |s| Value::Str(s.into())))
    }

    pub fn long(&mut self, n: usize) -> Result<Value, PickleError> {
        let bytes = self.take(n)?;
        let mut wide = [if bytes.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 }; 8];
        if bytes.len() > 8 {
            self.pay(size_of::<u8>(n))?;
            return Ok(Value::BigInt(bytes.into()));
        }
        wide[..bytes.len()].copy_from_slice(bytes);
        Ok(Value::Int(i64::from_le_bytes(wide)))
    }

    pub fn push(&mut self, v: Value) -> Result<(), PickleError> {
        if self.stack.len() >= MAX_STACK {
            return Err(PickleError::TooLarge);
        }
        self.stack.push(v);
        Ok(())
    }

    pub fn pop(&mut self) -> Result<Value, PickleError> {
        match self.stack.pop() {
            None | Some(Value::Mark) => Err(Malformed("a value is missing")),
            Some(v) => Ok(v),
        }
    }

    pub fn pop_mark(&mut self) -> Result<Vec<Value>, PickleError> {
        let at = self.stack.iter().rposition(|v| matches!(v, Value::Mark)).ok_or(Malformed("a mark is missing"))?;
        let items = self.stack.split_off(at + 1);
        self.stack.pop();
        Ok(items)
    }

    pub fn seq(&mut self, items: Vec<Value>) -> Result<usize, PickleError> {
        self.pay(size_of::<Vec<Value>>(1) + size_of::<Value>(items.len()))?;
        self.arena.seqs.push(items);
        Ok(self.arena.seqs.len() - 1)
    }

    /// A dict of entries that were paid for.
    pub fn dict(&mut self, entries: Vec<(Value, Value)>) -> Result<Value, PickleError> {
        self.pay(size_of::<Vec<Value>>(1))?;
        self.arena.dicts.push(entries);
        Ok(Value::Dict(self.arena.dicts.len() - 1))
    }

    /// A tuple of the `n` values on top.
    pub fn tuple(&mut self, n: usize) -> Result<Value, PickleError> {
        let at = self.stack.len().checked_sub(n).ok_or(Malformed("a value is missing"))?;
        let items = self.stack.split_off(at);
        if items.iter().any(|v| matches!(v, Value::Mark)) {
            return Err(Malformed("a value is missing"));
        }
        Ok(Value::Tuple(self.seq(items)?))
    }

    pub fn memoize(&mut self, key: u32) -> Result<(), PickleError> {
        let v = self.stack.last().cloned().ok_or(Malformed("a value is missing"))?;
        self.pay(size_of::<(u32, Value)>(1))?;
        self.memo.insert(key, v);
        Ok(())
    }

    /// Adds items to the list on top (or to something opaque, where they are lost).
    pub fn extend(&mut self, items: Vec<Value>) -> Result<(), PickleError> {
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

    pub fn set_items(&mut self, items: Vec<Value>) -> Result<(), PickleError> {
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
}
