//! Rotary positions: every head of every token turned by its place.
//!
//! Not here: the angles (`graph::rotary`). Cosines and sines are worked out once a thread for all layers that share them.

use super::vector;
use crate::graph::op::{Rope, Scaling};
use crate::graph::rotary::{Pairs, turns};
use std::cell::RefCell;
use std::ops::Range;

/// Cosines and sines of positions `0..`, for sequences that are turned alike.
struct Table {
    turned: usize,
    theta: f64,
    scaling: Option<Box<Scaling>>,
    /// [`Rope::turned_like`] of the sequences.
    like: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// Tables that a thread keeps: layers may differ in their bases.
const KEPT: usize = 4;

thread_local! {
    static TABLES: RefCell<Vec<Table>> = const { RefCell::new(Vec::new()) };
}

/// The table of `rope` for sequences of `tokens`, with at least as many positions.
fn table<'a>(tables: &'a mut Vec<Table>, rope: &Rope, tokens: usize) -> &'a Table {
    let like = rope.turned_like(tokens);
    let is = |t: &Table| (t.turned, t.theta, t.like) == (rope.turned, rope.theta, like) && t.scaling == rope.scaling;
    let at = tables.iter().position(is).unwrap_or_else(|| {
        tables.truncate(KEPT - 1);
        let Rope { turned, theta, ref scaling, .. } = *rope;
        let none = Table { turned, theta, scaling: scaling.clone(), like, cos: Vec::new(), sin: Vec::new() };
        tables.insert(0, none);
        0
    });
    let found = &mut tables[at];
    let have = found.cos.len() / (rope.turned / 2).max(1);
    if have < tokens {
        let (cos, sin) = turns(have..tokens, &rope.frequencies(tokens), rope.factor());
        found.cos.extend(cos);
        found.sin.extend(sin);
    }
    found
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
    let each = tokens.max(1);
    TABLES.with_borrow_mut(|tables| {
        let mut lines = x.chunks_exact(width.max(1)).zip(out.chunks_exact_mut(width.max(1)));
        let mut at = rows.start;
        while at < rows.end {
            // The rows of one image are of one sequence.
            let (image, before) = (at / each, past(at / each));
            let end = rows.end.min((image + 1) * each);
            let table = table(tables, rope, before + tokens);
            for (row, (x, out)) in (at..end).zip(&mut lines) {
                let place = (before + row % each) * n;
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
            at = end;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::kernel::noise;
    use crate::graph::op::{Beyond, Longer};

    #[test]
    fn heads_are_turned_by_their_tokens_place_and_keep_their_length() {
        for (pairs, turned) in [(Pairs::Halves, 8), (Pairs::Neighbours, 8), (Pairs::Halves, 6), (Pairs::Neighbours, 2)]
        {
            let rope = Rope::plain(8, turned, 50.0, pairs);
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

    /// More kinds than a thread keeps tables for, there and back, in sequences on both sides of where they change.
    #[test]
    fn every_kind_and_length_has_its_own_angles() {
        let kinds: Vec<Rope> = (0..6)
            .map(|i| {
                let how = match i % 2 {
                    0 => Longer::Divided(vec![3.0, 5.0]),
                    _ => Longer::Stretched(4.0),
                };
                let beyond = Some(Beyond { tokens: 6, how });
                let scaling = Scaling { divisors: vec![1.0, 1.0 + i as f64], factor: 1.25, beyond };
                Rope { scaling: Some(Box::new(scaling)), ..Rope::plain(4, 4, 50.0, Pairs::Halves) }
            })
            .collect();
        let x = noise(9 * 4, 3);
        for rope in kinds.iter().chain(kinds.iter().rev()) {
            for tokens in [9, 5, 8, 6] {
                let mut out = vec![f32::NAN; tokens * 4];
                turn(rope, 4, (tokens, |_| 0), 0..tokens, &x[..tokens * 4], &mut out);
                let frequencies = rope.frequencies(tokens);
                for (t, (x, y)) in x.chunks_exact(4).zip(out.chunks_exact(4)).enumerate() {
                    for (p, f) in frequencies.iter().enumerate() {
                        let (sin, cos) = (t as f64 * f).sin_cos();
                        let want = 1.25 * (f64::from(x[p]) * cos - f64::from(x[p + 2]) * sin);
                        assert!((f64::from(y[p]) - want).abs() < 2e-6, "{rope:?}, {tokens} tokens");
                    }
                }
            }
        }
    }
}
