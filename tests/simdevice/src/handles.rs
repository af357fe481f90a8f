//! Handles that the libraries give out: numbers that look like addresses, kept in a table for each kind.
//!
//! Invariants: a number is never given out twice, so that a handle that was destroyed is told from one that never
//! was; null is no handle, and what it means is each library's own answer. Not here: what a handle stands for.

use crate::misuse;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Handles of one kind.
pub struct Handles<T> {
    /// What NVIDIA calls the type.
    name: &'static str,
    /// The first handle; the kind's magic number in its upper half.
    first: usize,
    table: Mutex<Table<T>>,
}

struct Table<T> {
    made: usize,
    live: BTreeMap<usize, T>,
}

/// Bytes from one handle to the next: as far apart as allocations are.
const STEP: usize = 16;

impl<T> Handles<T> {
    /// `magic` tells the kinds apart.
    pub const fn new(name: &'static str, magic: u16) -> Handles<T> {
        let first = (0xC0DE << 48) | (magic as usize) << 32;
        Handles { name, first, table: Mutex::new(Table { made: 0, live: BTreeMap::new() }) }
    }

    fn table(&self) -> MutexGuard<'_, Table<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn make(&self, value: T) -> usize {
        let mut table = self.table();
        let handle = self.first + table.made * STEP;
        table.made += 1;
        table.live.insert(handle, value);
        handle
    }

    /// Calls `f` with what `handle` stands for; `None` for null. Any other number ends the run.
    pub fn with<R>(&self, handle: usize, who: &str, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        if handle == 0 {
            return None;
        }
        let mut table = self.table();
        match table.live.get_mut(&handle) {
            Some(value) => Some(f(value)),
            None => self.unknown(table.made, handle, who),
        }
    }

    /// What `handle` stands for now.
    pub fn get(&self, handle: usize, who: &str) -> Option<T>
    where
        T: Clone,
    {
        self.with(handle, who, |v| v.clone())
    }

    /// Ends `handle`. As [`Handles::with`] for null and for what is no handle.
    pub fn destroy(&self, handle: usize, who: &str) -> Option<T> {
        if handle == 0 {
            return None;
        }
        let mut table = self.table();
        match table.live.remove(&handle) {
            Some(value) => Some(value),
            None => self.unknown(table.made, handle, who),
        }
    }

    /// Whether `handle` is one of this kind, alive or not.
    pub fn owns(&self, handle: usize) -> bool {
        (self.first..self.first + self.table().made * STEP).contains(&handle)
    }

    fn unknown(&self, made: usize, handle: usize, who: &str) -> ! {
        let name = self.name;
        if (self.first..self.first + made * STEP).contains(&handle) {
            misuse!("{who}: the {name} {handle:#x} was destroyed")
        }
        misuse!("{who}: {handle:#x} is no {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_live_and_die() {
        let handles = Handles::new("cublasThing_t", 9);
        let (a, b) = (handles.make(1), handles.make(2));
        assert_eq!(handles.with(a, "t", |v| std::mem::replace(v, 5)), Some(1));
        assert_eq!((handles.get(a, "t"), handles.get(b, "t"), handles.get(0, "t")), (Some(5), Some(2), None));
        assert_eq!((handles.destroy(a, "t"), handles.destroy(0, "t")), (Some(5), None));
        assert!(handles.owns(a) && handles.owns(b) && !handles.owns(b + STEP));
        assert_eq!(handles.make(3), b + STEP);
    }

    #[test]
    fn a_dead_handle_ends_the_run_with_its_name() {
        let said = crate::testing::ends("handles::tests::a_dead_handle_ends_the_run_with_its_name", || {
            let handles = Handles::new("cublasThing_t", 9);
            let a = handles.make(());
            handles.destroy(a, "cublasDestroy");
            handles.get(a, "cublasSgemm");
        });
        assert!(said.contains("cublasSgemm: the cublasThing_t 0xc0de000900000000 was destroyed"), "{said}");
    }
}
