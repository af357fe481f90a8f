//! Other views of images: moved, mirrored, laid over one another.
//!
//! Invariant: what a step sees is a function of the seed, its place and the images.

use super::healing::Healing;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A batch as it is trained on.
pub(super) struct Views {
    /// `[n, c, h, w]`.
    pub images: Vec<f32>,
    /// For every image the one that lies over it, and the first one's share.
    pub mixed: Option<(Vec<usize>, f32)>,
}

/// The numbers that are drawn for `what` of a round: 0 its order, 1 the order in which a time through it takes them, from 2 its batches' views.
pub(super) fn lots(seed: u64, round: u32, what: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x6865_616c);
    rng.set_stream((u64::from(round) << 32) | what);
    rng
}

/// Whether nothing is laid over the images of this part of a batch: where batch norms go by a batch's statistics every second one is such, since
/// running statistics must be those of images as they will come.
pub(super) fn stays_plain(part: usize, how: &Healing) -> bool {
    !how.stored_norms && part % 2 == 1
}

/// Views of `images`, prepared, of `shape` `[c, h, w]`, in parts of `part` images: batch `batch` of round `round`.
pub(super) fn views(
    images: Vec<f32>,
    [c, h, w]: [usize; 3],
    how: &Healing,
    (round, batch): (u32, u32),
    part: usize,
) -> Views {
    let mut rng = lots(how.seed, round, 2 + u64::from(batch));
    let (one, mut images) = (c * h * w, images);
    if how.augment {
        let mut moved = vec![0f32; images.len()];
        for (x, out) in images.chunks_exact(one).zip(moved.chunks_exact_mut(one)) {
            let mut by = |side: usize| rng.random_range(0..=side as u64 / 8 * 2) as isize - (side / 8) as isize;
            let (dy, dx) = (by(h), by(w));
            let mirror = c > 1 && rng.random_bool(0.5);
            shifted(x, [c, h, w], [dy, dx], mirror, out);
        }
        images = moved;
    }
    let mixed = how.mixup.then(|| {
        let share: f32 = rng.random_range(0.0..1.0);
        let mut other: Vec<usize> = (0..images.len() / one.max(1)).collect();
        other.shuffle(&mut rng);
        (other, share)
    });
    if let Some((other, share)) = &mixed {
        let plain = images.clone();
        for (i, (x, o)) in images.chunks_exact_mut(one).zip(other).enumerate() {
            if stays_plain(i / part.max(1), how) {
                continue;
            }
            x.iter_mut().zip(&plain[o * one..][..one]).for_each(|(x, y)| *x = share * *x + (1.0 - share) * y);
        }
    }
    Views { images, mixed }
}

/// `x` moved down by `dy` and right by `dx`, nothing where it was not, and mirrored left to right.
fn shifted(x: &[f32], [c, h, w]: [usize; 3], [dy, dx]: [isize; 2], mirror: bool, out: &mut [f32]) {
    for ch in 0..c {
        for y in 0..h {
            let Some(from) = y.checked_add_signed(-dy).filter(|y| *y < h) else { continue };
            let (row, to) = (&x[(ch * h + from) * w..][..w], &mut out[(ch * h + y) * w..][..w]);
            for (i, to) in to.iter_mut().enumerate() {
                let i = if mirror { w - 1 - i } else { i };
                if let Some(i) = i.checked_add_signed(-dx).filter(|i| *i < w) {
                    *to = row[i];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_move_and_turn_and_nothing_comes_in() {
        let x: Vec<f32> = (1..=6).map(|v| v as f32).collect();
        let mut out = vec![0.0; 6];
        shifted(&x, [1, 2, 3], [0, 0], true, &mut out);
        assert_eq!(out, [3.0, 2.0, 1.0, 6.0, 5.0, 4.0]);
        let mut out = vec![0.0; 6];
        shifted(&x, [1, 2, 3], [1, -1], false, &mut out);
        assert_eq!(out, [0.0, 0.0, 0.0, 2.0, 3.0, 0.0]);
    }

    #[test]
    fn a_step_draws_the_same_every_time_and_steps_differ() {
        let how = Healing::usual(10, true, 3);
        let images: Vec<f32> = (0..4 * 3 * 64).map(|v| v as f32).collect();
        let at = |batch| views(images.clone(), [3, 8, 8], &how, (0, batch), 2);
        assert_eq!((at(4).images, at(4).mixed), (at(4).images, at(4).mixed));
        assert_ne!(at(4).images, at(5).images);
        let plain = Healing { augment: false, mixup: false, ..how };
        assert_eq!(views(images.clone(), [3, 8, 8], &plain, (0, 1), 2).images, images);
    }
}
