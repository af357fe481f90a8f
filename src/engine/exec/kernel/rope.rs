//! Rotary positions: every head of every token turned by its place.
//!
//! Not here: the angles (`graph::rotary`). Cosines and sines are worked out once a thread for all layers that share them.

use super::vector;
use crate::graph::op::Rope;
use crate::graph::rotary::{Pairs, turns};
use std::cell::RefCell;
use std::ops::Range;

/// Cosines and sines of positions `0..`, for one width and base.
#[derive(Default)]
struct Table {
    turned: usize,
    theta: f64,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

thread_local! {
    static TABLE: RefCell<Table> = RefCell::default();
}

impl Table {
    /// Makes it hold at least `positions` positions of `rope`.
    fn reach(&mut self, rope: &Rope, positions: usize) {
        if self.turned != rope.turned || self.theta != rope.theta {
            *self = Table { turned: rope.turned, theta: rope.theta, ..Table::default() };
        }
        let have = self.cos.len() / (rope.turned / 2).max(1);
        if have < positions {
            let (cos, sin) = turns(have..positions, rope.turned, rope.theta);
            self.cos.extend(cos);
            self.sin.extend(sin);
        }
    }
}

/// `out` becomes the rows `x` of `width` values, turned; `rows` are their places in a batch of images of `tokens` rows each, the
/// first of which is at position `past` of the image's sequence.
pub(crate) fn turn(
    rope: &Rope,
    width: usize,
    (tokens, past): (usize, impl Fn(usize) -> usize),
    rows: Range<usize>,
    x: &[f32],
    out: &mut [f32],
) {
    let n = rope.turned / 2;
    TABLE.with_borrow_mut(|table| {
        let lines = x.chunks_exact(width.max(1)).zip(out.chunks_exact_mut(width.max(1)));
        for (row, (x, out)) in rows.zip(lines) {
            let (image, token) = (row / tokens.max(1), row % tokens.max(1));
            let position = past(image) + token;
            table.reach(rope, position + 1);
            let place = position * n;
            let (cos, sin) = (&table.cos[place..place + n], &table.sin[place..place + n]);
            for (x, out) in x.chunks_exact(rope.head_dim).zip(out.chunks_exact_mut(rope.head_dim)) {
                let (x, (out, rest)) = (x.split_at(rope.turned), out.split_at_mut(rope.turned));
                rest.copy_from_slice(x.1);
                match rope.pairs {
                    Pairs::Halves => vector::turn_halves(x.0, cos, sin, out),
                    Pairs::Neighbours => vector::turn_neighbours(x.0, cos, sin, out),
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::kernel::noise;

    #[test]
    fn heads_are_turned_by_their_tokens_place_and_keep_their_length() {
        for (pairs, turned) in [(Pairs::Halves, 8), (Pairs::Neighbours, 8), (Pairs::Halves, 6), (Pairs::Neighbours, 2)]
        {
            let rope = Rope { head_dim: 8, turned, theta: 50.0, pairs };
            // Two images of 5 tokens of 3 heads.
            let x = noise(2 * 5 * 24, 7);
            let mut out = vec![f32::NAN; x.len()];
            turn(&rope, 24, (5, |_| 0), 0..10, &x, &mut out);
            for (i, (x, y)) in x.chunks_exact(8).zip(out.chunks_exact(8)).enumerate() {
                let position = (i / 3 % 5) as f64;
                for p in 0..turned / 2 {
                    let [a, b] = pairs.places(p, turned);
                    let (sin, cos) = (position * 50f64.powf(-2.0 * p as f64 / turned as f64)).sin_cos();
                    let (xa, xb) = (f64::from(x[a]), f64::from(x[b]));
                    assert!((f64::from(y[a]) - (xa * cos - xb * sin)).abs() < 1e-5, "{rope:?} {i} {p}");
                    assert!((f64::from(y[b]) - (xb * cos + xa * sin)).abs() < 1e-5, "{rope:?} {i} {p}");
                }
                assert_eq!(x[turned..], y[turned..]);
            }
            // A band of rows is the same on its own.
            let mut band = vec![f32::NAN; 4 * 24];
            turn(&rope, 24, (5, |_| 0), 3..7, &x[3 * 24..7 * 24], &mut band);
            assert_eq!(band, out[3 * 24..7 * 24]);
            // A token that comes after others is turned by all of them.
            let mut late = vec![f32::NAN; 24];
            turn(&rope, 24, (1, |_| 4), 0..1, &x[4 * 24..5 * 24], &mut late);
            assert_eq!(late, out[4 * 24..5 * 24]);
        }
    }
}
