//! Items that are no images: what a task of another kind brings as its data.

use super::{DataCard, DataError, Dataset, Source};
use crate::task::{Targets, Task};
use candle_core::Tensor;
use std::fmt::Debug;
use std::sync::Arc;

/// Items with their targets. The same index is the same item for as long as they are there.
pub trait Items: Debug + Send + Sync {
    /// Items there are.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Inputs `[N, …]` on the host, and targets, of the items at `picks`.
    ///
    /// # Errors
    /// An index past the end, an item that cannot be read.
    fn batch(&self, picks: &[usize]) -> Result<(Tensor, Targets), DataError>;

    /// The token that was put before every document of a text; `None` where nothing was added.
    fn begun_with(&self) -> Option<u32> {
        None
    }

    /// Bytes that tell item `i`, target included, from every other; `None` past the end.
    fn content(&self, i: usize) -> Option<Vec<u8>>;
}

impl Dataset {
    /// Items of a task of their own. `card.images` becomes their number.
    pub fn of_items(mut card: DataCard, items: Arc<dyn Items>, task: Arc<dyn Task>) -> Dataset {
        card.images = items.len();
        Dataset { task, ..Dataset::new(card, Source::Items(items), true) }
    }

    /// [`Items::begun_with`] of its items.
    pub fn begun_with(&self) -> Option<u32> {
        match &*self.source {
            Source::Items(items) => items.begun_with(),
            _ => None,
        }
    }

    /// What the set is made for.
    pub fn task(&self) -> &dyn Task {
        &*self.task
    }
}
