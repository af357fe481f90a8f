//! Calibration images in two parts: those that work may be fitted on, and those that nothing touches but a trial (and healing, of which no trial
//! is made).
//!
//! Invariants: every image is in exactly one part; the same set and seed give the same parts; a set too small to spare
//! any holds nothing back.

use super::Dataset;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::collections::HashSet;

/// Both parts, each in the order of the whole set.
#[derive(Debug, Clone)]
pub struct Split {
    /// For repair, sensitivities, importance and ranges.
    pub work: Dataset,
    /// For trials alone.
    pub held: Dataset,
}

/// Held back at most: this many images tell a loss of two points to about half a point.
const MOST_HELD: usize = 1000;
/// One image in this many is held back.
const ONE_IN: usize = 3;
/// A smaller set is not split.
const FEWEST: usize = 10;

impl Dataset {
    /// Images that are held back unless something else is said: a third, 1,000 at most, none of a handful.
    pub fn usually_held(&self) -> usize {
        if self.len() < FEWEST { 0 } else { (self.len() / ONE_IN).min(MOST_HELD) }
    }

    /// Holds back `held` images, drawn by `seed`.
    pub fn split(&self, seed: u64, held: usize) -> Split {
        let held = held.min(self.len());
        let mut order: Vec<usize> = (0..self.len()).collect();
        // A stream of its own: repair shuffles what is left by the same seed.
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(0x6865_6c64);
        order.shuffle(&mut rng);
        let (back, work) = order.split_at(held);
        Split { work: self.pick(work), held: self.pick(back) }
    }

    /// The images at `picks`, in the set's own order; numbers past the end are left out.
    pub fn pick(&self, picks: &[usize]) -> Dataset {
        let mut sorted = picks.to_vec();
        sorted.sort_unstable();
        self.ordered(sorted.into_iter().filter_map(|i| self.at(i)))
    }

    /// The images that are not among those of `others`, a part of the same source.
    pub fn without(&self, others: &Dataset) -> Dataset {
        let gone: HashSet<usize> = (0..others.len()).filter_map(|i| others.at(i)).collect();
        self.ordered((0..self.len()).filter_map(|i| self.at(i)).filter(|k| !gone.contains(k)))
    }
}

#[cfg(test)]
mod tests {
    use super::MOST_HELD;
    use crate::data::synthetic::{self, Split};

    #[test]
    fn every_image_is_in_one_part_and_the_seed_decides_which() {
        let set = synthetic::dataset(Split::Calib, 200);
        let parts = set.split(3, set.usually_held());
        assert_eq!((parts.work.len(), parts.held.len()), (134, 66));
        let at = |d: &crate::data::Dataset| (0..d.len()).filter_map(|i| d.at(i)).collect::<Vec<_>>();
        let (work, held) = (at(&parts.work), at(&parts.held));
        let mut all = [work.clone(), held.clone()].concat();
        all.sort_unstable();
        assert_eq!(all, at(&set));
        assert!(work.is_sorted() && held.is_sorted());
        assert_eq!(at(&set.split(3, set.usually_held()).held), held);
        assert_ne!(at(&set.split(4, set.usually_held()).held), held);
        assert_eq!(parts.work.overlaps(&parts.held), 0);
        assert_eq!(at(&set.without(&parts.work.pick(&[0, 5]))).len(), 198);
        assert_eq!(at(&set.without(&parts.work)), held);
        assert_eq!(synthetic::dataset(Split::Calib, 9).usually_held(), 0);
        assert_eq!(synthetic::dataset(Split::Train, 6000).usually_held(), MOST_HELD);
    }
}
