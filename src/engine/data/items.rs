//! Items that are no images: what a task of another kind brings as its data.

use super::{DataCard, DataError, Dataset, Source};
use crate::task::{Targets, Task};
use candle_core::Tensor;
use std::fmt::Debug;
use std::sync::Arc;

/// How the documents of a text follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Joined {
    /// As they stand in the file, which is one piece.
    #[default]
    AsWritten,
    /// Each begins with this token.
    BegunWith(u32),
    /// Two newlines stand between them, and no token is added.
    ByLines,
}

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

    /// How the documents of a text follow one another.
    fn joined(&self) -> Joined {
        Joined::default()
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

    /// [`Items::joined`] of its items.
    pub fn joined(&self) -> Joined {
        match &*self.source {
            Source::Items(items) => items.joined(),
            _ => Joined::default(),
        }
    }

    /// What the set is made for.
    pub fn task(&self) -> &dyn Task {
        &*self.task
    }
}
