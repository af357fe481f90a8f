//! Memory of values and gradients, which is used again from step to step; and the two layouts of an image.

use crate::exec::kernel::simple;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory that is free, by its length.
#[derive(Debug, Default)]
pub(super) struct Pool {
    free: Mutex<HashMap<usize, Vec<Vec<f32>>>>,
}

/// Numbers in memory of a pool, to which it goes back.
#[derive(Debug)]
pub(super) struct Buffer {
    data: Vec<f32>,
    len: usize,
    pool: Arc<Pool>,
}

impl Pool {
    /// Room for `n` numbers, which hold anything.
    pub fn take(self: &Arc<Pool>, n: usize) -> Buffer {
        // Lengths within an eighth of one another share memory.
        let step = (n.next_power_of_two() / 16).max(16);
        let whole = n.next_multiple_of(step);
        let found = self.free.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&whole).and_then(Vec::pop);
        Buffer { data: found.unwrap_or_else(|| vec![0.0; whole]), len: n, pool: Arc::clone(self) }
    }
}

impl Buffer {
    /// Another of the same length and pool.
    pub fn another(&self) -> Buffer {
        self.pool.take(self.len)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let data = std::mem::take(&mut self.data);
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.entry(data.len()).or_default().push(data);
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.data[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.data[..self.len]
    }
}

/// Channels and places of an image; `None` for what has one layout.
fn image(shape: &[usize]) -> Option<(usize, usize)> {
    match *shape {
        [c, h, w] if c > 1 && h * w > 1 => Some((c, h * w)),
        _ => None,
    }
}

/// Brings values of a node of this shape from channels first to channels last.
pub(super) fn last(shape: &[usize], x: &[f32], out: &mut [f32]) {
    match image(shape) {
        Some((c, p)) => simple::to_channels_last(c, p, x, out),
        None => out.copy_from_slice(x),
    }
}

/// And back.
pub(super) fn first(shape: &[usize], x: &[f32], out: &mut [f32]) {
    match image(shape) {
        Some((c, p)) => simple::to_channels_first(c, p, x, out),
        None => out.copy_from_slice(x),
    }
}
