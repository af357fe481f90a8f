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

    /// How long item `i` is, where items have lengths of their own: only such of one length make a batch. `None` where all are alike.
    fn length(&self, _i: usize) -> Option<usize> {
        None
    }

    /// How the documents of a text follow one another.
    fn joined(&self) -> Joined {
        Joined::default()
    }

    /// The class of item `i`, where items have one each; `None` past the end too.
    fn label(&self, _i: usize) -> Option<u32> {
        None
    }

    /// Bytes that tell item `i`, target included, from every other; `None` past the end.
    fn content(&self, i: usize) -> Option<Vec<u8>>;
}

impl Dataset {
    /// Items of a task of their own. `card.images` becomes their number.
    pub fn of_items(mut card: DataCard, items: Arc<dyn Items>, task: Arc<dyn Task>) -> Dataset {
        card.images = items.len();
        Dataset { task, ..Dataset::new(card, Source::Items(items), false) }
    }

    /// [`Items::joined`] of its items.
    pub fn joined(&self) -> Joined {
        match &*self.source {
            Source::Items(items) => items.joined(),
            _ => Joined::default(),
        }
    }

    /// `picks` in parts of at most `batch` that [`Dataset::batch`] makes one batch of, in their order; where items have lengths of their
    /// own, short ones first.
    pub fn parts(&self, picks: &[usize], batch: usize) -> Vec<Vec<usize>> {
        let mut picks = picks.to_vec();
        if self.length(0).is_some() {
            picks.sort_by_key(|&i| self.length(i));
        }
        let alike = picks.chunk_by(|&a, &b| self.length(a) == self.length(b));
        alike.flat_map(|run| run.chunks(batch.max(1))).map(<[usize]>::to_vec).collect()
    }

    /// [`Items::length`] of item `i`.
    fn length(&self, i: usize) -> Option<usize> {
        match &*self.source {
            Source::Items(items) => items.length(self.at(i)?),
            _ => None,
        }
    }

    /// The length in the middle of all, where items have lengths of their own.
    pub fn usual_length(&self) -> Option<usize> {
        let mut all = (0..self.len()).map(|i| self.length(i)).collect::<Option<Vec<usize>>>()?;
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    }

    /// Whether its items are images.
    pub fn holds_images(&self) -> bool {
        !matches!(&*self.source, Source::Items(_))
    }

    /// What the set is made for.
    pub fn task(&self) -> &dyn Task {
        &*self.task
    }
}
