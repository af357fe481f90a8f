//! Where in one buffer each value lies: values that are never alive together may share bytes.
//!
//! "Greedy by size" (Pisarchyk and Lee, *Efficient Memory Management for Deep Neural Net Inference*, 2020): the largest
//! values choose first, each the smallest gap that fits between those alive with it. Two other orders are tried and the
//! smallest arena wins. Invariant: values alive during the same step never overlap, so a step can write one while it
//! reads the others.

/// Values begin at multiples of this many elements: a cache line.
pub(super) const LINE: usize = 16;

/// A value's size and the steps, both included, between which its place is its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    pub numel: usize,
    pub first: usize,
    pub last: usize,
}

impl Life {
    fn meets(&self, other: &Life) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn room(&self) -> usize {
        self.numel.next_multiple_of(LINE)
    }
}

/// Every value's first element, and the elements of the whole arena.
pub(super) fn place(lives: &[Life]) -> (Vec<usize>, usize) {
    let by = |key: fn(&Life) -> usize| {
        let mut order: Vec<usize> = (0..lives.len()).collect();
        order.sort_by_key(|&v| (std::cmp::Reverse(key(&lives[v])), lives[v].first));
        place_in(lives, &order)
    };
    let orders = [by(Life::room), by(|l| l.room() * (l.last - l.first + 1)), by(|_| 0)];
    orders.into_iter().min_by_key(|(_, end)| *end).unwrap_or_default()
}

fn place_in(lives: &[Life], order: &[usize]) -> (Vec<usize>, usize) {
    let mut at = vec![0; lives.len()];
    let mut end = 0;
    for (i, &v) in order.iter().enumerate() {
        let mut taken: Vec<(usize, usize)> = order[..i]
            .iter()
            .filter(|&&o| lives[o].meets(&lives[v]))
            .map(|&o| (at[o], at[o] + lives[o].room()))
            .collect();
        taken.sort_unstable();
        let (mut best, mut from) = (None, 0);
        for (start, stop) in taken {
            let gap = start.saturating_sub(from);
            if gap >= lives[v].room() && best.is_none_or(|(least, _)| gap < least) {
                best = Some((gap, from));
            }
            from = from.max(stop);
        }
        at[v] = best.map_or(from, |(_, gap_at)| gap_at);
        end = end.max(at[v] + lives[v].room());
    }
    (at, end)
}

/// Largest sum of sizes alive during one step: no arena can be smaller.
pub(super) fn largest_live(lives: &[Life]) -> usize {
    let at = |step: usize| lives.iter().filter(|l| l.first <= step && step <= l.last).map(|l| l.numel).sum();
    // The sum only rises where a value begins.
    lives.iter().map(|l| at(l.first)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn life(numel: usize, first: usize, last: usize) -> Life {
        Life { numel, first, last }
    }

    #[test]
    fn a_residual_block_needs_no_more_than_what_is_alive() {
        // Stream, two inner values, the next stream: the first inner value is gone when the next stream begins.
        let lives = [life(96, 0, 3), life(32, 1, 2), life(32, 2, 3), life(96, 3, 4)];
        assert_eq!(place(&lives).1, 96 + 32 + 96);
        assert_eq!(largest_live(&lives), 96 + 32 + 96);
    }

    proptest! {
        #[test]
        fn values_alive_together_never_overlap(raw in prop::collection::vec((1usize..90, 0usize..30, 0usize..8), 1..40)) {
            let lives: Vec<Life> = raw.iter().map(|&(n, first, len)| life(n, first, first + len)).collect();
            let (at, end) = place(&lives);
            for (a, la) in lives.iter().enumerate() {
                prop_assert!(at[a] % LINE == 0 && at[a] + la.numel <= end);
                for (b, lb) in lives.iter().enumerate().skip(a + 1) {
                    let apart = at[a] + la.numel <= at[b] || at[b] + lb.numel <= at[a];
                    prop_assert!(apart || !la.meets(lb), "{la:?} and {lb:?} overlap");
                }
            }
            prop_assert!(end >= largest_live(&lives));
        }
    }
}
