//! Which buffer holds which value: values that are never alive together share one.
//!
//! "Greedy by size" for shared objects (Pisarchyk and Lee, *Efficient Memory Management for Deep Neural Net Inference*,
//! 2020): the largest values choose first, so that no buffer has to grow for a value that comes later in the run.
//! Buffers stay separate, because a step writes one while it reads others.

/// A value's size and the steps, both included, between which its buffer is its own.
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
}

/// Every value's buffer, and every buffer's size.
pub(super) fn share(lives: &[Life]) -> (Vec<usize>, Vec<usize>) {
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|&v| (std::cmp::Reverse(lives[v].numel), lives[v].first));
    let mut slot_of = vec![0; lives.len()];
    let mut slots: Vec<(usize, Vec<Life>)> = Vec::new();
    for v in order {
        let life = lives[v];
        let free = |(_, held): &(usize, Vec<Life>)| !held.iter().any(|h| h.meets(&life));
        // The smallest buffer that is free all the while: every one is large enough, because its first value was.
        let fit = (0..slots.len()).filter(|&s| free(&slots[s])).min_by_key(|&s| slots[s].0);
        let slot = fit.unwrap_or_else(|| {
            slots.push((life.numel, Vec::new()));
            slots.len() - 1
        });
        slots[slot].1.push(life);
        slot_of[v] = slot;
    }
    (slot_of, slots.into_iter().map(|(numel, _)| numel).collect())
}

/// Largest sum of sizes alive during one step: no assignment needs less.
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
    fn a_small_value_before_a_large_one_does_not_take_a_buffer_that_must_grow() {
        // A residual block: stream, two inner values, the next stream.
        let lives = [life(100, 0, 3), life(25, 1, 2), life(25, 2, 3), life(100, 3, 4)];
        let (of, slots) = share(&lives);
        assert_eq!(slots.iter().sum::<usize>(), 225);
        assert_eq!(largest_live(&lives), 225);
        assert_eq!(of[1], of[3], "the first inner value is gone when the next stream begins");
    }

    proptest! {
        #[test]
        fn values_alive_together_never_share(raw in prop::collection::vec((1usize..50, 0usize..30, 0usize..8), 1..40)) {
            let lives: Vec<Life> = raw.iter().map(|&(n, first, len)| life(n, first, first + len)).collect();
            let (of, slots) = share(&lives);
            for (a, la) in lives.iter().enumerate() {
                prop_assert!(slots[of[a]] >= la.numel);
                for (b, lb) in lives.iter().enumerate().skip(a + 1) {
                    prop_assert!(of[a] != of[b] || !la.meets(lb), "{la:?} and {lb:?} share");
                }
            }
            prop_assert!(slots.iter().sum::<usize>() >= largest_live(&lives));
        }
    }
}
