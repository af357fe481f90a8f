//! What outputs are scored against.

use candle_core::Tensor;

/// Targets of a batch, in the items' order.
#[derive(Debug, Clone)]
pub enum Targets {
    /// One class an item.
    Classes(Vec<u32>),
    /// Anything else, `[N, …]`: next tokens (u32), numbers (f32).
    Values(Tensor),
}

impl Targets {
    /// Items.
    pub fn len(&self) -> usize {
        match self {
            Targets::Classes(c) => c.len(),
            Targets::Values(t) => t.dims().first().copied().unwrap_or(0),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The classes; empty where targets are no classes.
    pub fn classes(&self) -> &[u32] {
        match self {
            Targets::Classes(c) => c,
            Targets::Values(_) => &[],
        }
    }

    /// Those of `count` items from `start` on.
    ///
    /// # Errors
    /// Past the end.
    pub fn narrow(&self, start: usize, count: usize) -> candle_core::Result<Targets> {
        match self {
            Targets::Classes(c) => match c.get(start..start + count) {
                Some(part) => Ok(Targets::Classes(part.to_vec())),
                None => candle_core::bail!("items {start} to {} of {}", start + count, c.len()),
            },
            Targets::Values(t) => Ok(Targets::Values(t.narrow(0, start, count)?)),
        }
    }

    /// Those of several batches after one another.
    ///
    /// # Errors
    /// Targets of unlike kinds or shapes.
    pub fn join(parts: &[Targets]) -> candle_core::Result<Targets> {
        let mut classes = Vec::new();
        let mut values = Vec::new();
        for part in parts {
            match part {
                Targets::Classes(c) => classes.extend_from_slice(c),
                Targets::Values(t) => values.push(t),
            }
        }
        match (values.is_empty(), classes.is_empty()) {
            (true, _) => Ok(Targets::Classes(classes)),
            (false, true) => Ok(Targets::Values(Tensor::cat(&values, 0)?)),
            (false, false) => candle_core::bail!("some targets are classes and some are not"),
        }
    }

    /// The bytes of one item's target.
    ///
    /// # Errors
    /// Past the end; values that are neither f32 nor u32.
    pub fn bytes(&self, i: usize) -> candle_core::Result<Vec<u8>> {
        match self.narrow(i, 1)? {
            Targets::Classes(c) => Ok(c.iter().flat_map(|v| v.to_le_bytes()).collect()),
            Targets::Values(t) if t.dtype() == candle_core::DType::U32 => {
                Ok(t.flatten_all()?.to_vec1::<u32>()?.iter().flat_map(|v| v.to_le_bytes()).collect())
            }
            Targets::Values(t) => Ok(t.flatten_all()?.to_vec1::<f32>()?.iter().flat_map(|v| v.to_le_bytes()).collect()),
        }
    }
}
