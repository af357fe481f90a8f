//! What tokens left on a device: keys and values of every attention core and sequence, and attention of new tokens over them.
//!
//! Not here: how many tokens that are (`exec::cache`), a CPU's own cache (`exec::kernel::cached`). Invariant: what lies beyond a sequence's length is written
//! anew before it is read.

use super::ops;
use crate::exec::cache::Past;
use crate::exec::kernel::cached::KvFormat;
use candle_core::{DType, Result, Tensor};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Tokens that there is room for at first; a buffer that is full doubles.
const LEAST: usize = 256;

/// Keys (`false`) and values (`true`) by attention core and sequence, `[room, width]` each.
#[derive(Debug, Default)]
pub struct Kept(BTreeMap<(String, usize, bool), Tensor>);

/// New tokens over those that were.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    pub past: Past<'a>,
    pub kept: &'a Mutex<Kept>,
}

impl std::fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn").field("sequences", &self.past.sequences).finish_non_exhaustive()
    }
}

/// What keys and values are kept in; `None` where the tensor library has no such type.
pub fn kept_in(format: KvFormat) -> Option<DType> {
    match format {
        KvFormat::F32 => Some(DType::F32),
        KvFormat::F16 => Some(DType::F16),
        KvFormat::Int8 => None,
    }
}

impl Kept {
    /// Writes `x`, `[tokens, width]`, after the first `before` rows of a buffer and returns its rows from `first` to the last of
    /// them, `[1, rows, width]` in f32.
    fn push(&mut self, of: (String, usize, bool), x: &Tensor, [first, before, most]: [usize; 3]) -> Result<Tensor> {
        let (tokens, width) = x.dims2()?;
        let end = before + tokens;
        let room = self.0.get(&of).map_or(Ok(0), |t| t.dim(0))?;
        if room < end {
            let grown =
                Tensor::zeros((end.next_power_of_two().max(LEAST).min(most.max(end)), width), x.dtype(), x.device())?;
            if let Some(old) = self.0.get(&of).filter(|_| before > 0) {
                grown.slice_set(&old.narrow(0, 0, before)?.contiguous()?, 0, 0)?;
            }
            self.0.insert(of.clone(), grown);
        }
        let Some(buffer) = self.0.get(&of) else { candle_core::bail!("no buffer for keys and values") };
        buffer.slice_set(&x.contiguous()?, 0, before)?;
        buffer.narrow(0, first, end - first)?.to_dtype(DType::F32)?.unsqueeze(0)
    }
}

impl Turn<'_> {
    /// Tokens before those of each image; one number where it is the same for all.
    pub(super) fn starts(&self) -> Vec<usize> {
        let mut starts: Vec<usize> = (0..self.past.sequences.len()).map(|i| self.past.tokens(i)).collect();
        if starts.windows(2).all(|two| two[0] == two[1]) {
            starts.truncate(1);
        }
        starts
    }

    /// As [`ops::Attention::run`] of attention core `core`, image by image: each has a past of its own length.
    pub(super) fn attend(&self, core: &str, a: &ops::Attention, [q, k, v]: [&Tensor; 3], scale: f64) -> Result<Tensor> {
        let cache = self.past.cache;
        let Some(format) = cache.format().and_then(kept_in) else {
            candle_core::bail!("keys and values in {} are not kept here", cache.label())
        };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut outs = Vec::with_capacity(self.past.sequences.len());
        for (i, sequence) in self.past.sequences.iter().enumerate() {
            let before = self.past.tokens(i);
            // Those that none of the new ones sees any more.
            let first = a.most.map_or(0, |most| (before + 1).saturating_sub(most));
            let mut all = |x: &Tensor, values: bool| {
                let of = (core.to_owned(), *sequence, values);
                kept.push(of, &x.get(i)?.to_dtype(format)?, [first, before, cache.context()])
            };
            let (k, v) = (all(k, false)?, all(v, true)?);
            outs.push(a.run(&q.narrow(0, i, 1)?, &k, &v, scale)?);
        }
        Tensor::cat(&outs, 0)
    }
}
