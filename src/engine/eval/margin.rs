//! Margins, how far the logit of the right class lies above the best other one: what tells how near an image is to being
//! answered otherwise. Images whose margins are distributed otherwise than on new images (training images: hardly any is
//! near) are weighted until they are distributed alike (post-stratification; Holt and Smith, "Post Stratification", 1979).
//!
//! Invariants: a distribution is of one model, the original, and says nothing of any changed one; weights are at least 0
//! and add up to 1, or to less where no image stands for a part of the new ones. Pure.

use serde::{Deserialize, Serialize};

/// The margins of one model on a set of images, as quantiles.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Margins {
    /// Part of the images that it gets wrong, 0 to 1.
    pub error: f64,
    /// Ascending, in logits, each standing for as many images; empty: not known.
    pub quantiles: Vec<f32>,
}

/// Quantiles that are kept.
const MOST: usize = 512;
/// Fewest quantiles and fewest images in a stratum.
const FEWEST: usize = 6;
/// Where strata of right answers end, by how many of them are nearer to the boundary: narrow where answers turn.
const RIGHT: [f64; 11] = [0.01, 0.02, 0.04, 0.06, 0.09, 0.13, 0.18, 0.25, 0.35, 0.5, 0.7];
/// The same of wrong ones.
const WRONG: [f64; 3] = [0.1, 0.25, 0.5];

impl Margins {
    /// Of all images' margins; those that are no numbers count as wrong by far.
    pub fn of(margins: &[f32]) -> Margins {
        let mut all: Vec<f32> = margins.iter().map(|m| if m.is_nan() { f32::MIN } else { *m }).collect();
        all.sort_by(f32::total_cmp);
        let error = all.iter().filter(|m| !right(**m)).count() as f64 / all.len().max(1) as f64;
        let k = all.len().min(MOST);
        let quantiles = (0..k).filter_map(|i| all.get((2 * i + 1) * all.len() / (2 * k)).copied()).collect();
        Margins { error, quantiles }
    }

    /// Of a model of which only the error is known.
    pub fn unknown(error: f64) -> Margins {
        Margins { error, quantiles: Vec::new() }
    }

    /// Strata of images with the margins `seen`, with the part of the new images that each stands for. Both sides of the
    /// boundary are kept apart; strata with few of either are joined with their neighbour. Without quantiles: one stratum.
    pub fn strata(&self, seen: &[f32]) -> Vec<Stratum> {
        if self.quantiles.is_empty() {
            return vec![Stratum { share: 1.0, images: (0..seen.len()).collect() }];
        }
        let side = |is_right: bool, share: f64, ends: &[f64]| -> Vec<Stratum> {
            // By distance from the boundary.
            let near = |m: &f32| m.abs();
            let mut new: Vec<f32> = self.quantiles.iter().filter(|m| right(**m) == is_right).map(near).collect();
            new.sort_by(f32::total_cmp);
            let mut here: Vec<usize> = (0..seen.len()).filter(|&i| right(seen[i]) == is_right).collect();
            here.sort_by(|&a, &b| seen[a].abs().total_cmp(&seen[b].abs()));
            if here.is_empty() {
                return Vec::new();
            }
            let n = new.len();
            let mut out: Vec<Stratum> = Vec::new();
            let (mut from_new, mut from_here) = (0, 0);
            for (last, end) in ends.iter().map(|e| (false, *e)).chain([(true, 1.0)]) {
                let to_new = if last { n } else { (end * n as f64).round() as usize };
                let edge = if last { f32::INFINITY } else { new.get(to_new).copied().unwrap_or(f32::INFINITY) };
                let to_here = here.partition_point(|&i| last || seen[i].abs() < edge);
                let few = to_new - from_new < FEWEST || to_here - from_here < FEWEST;
                if few && !last {
                    continue;
                }
                let part = if n == 0 { 1.0 } else { (to_new - from_new) as f64 / n as f64 };
                let images = &here[from_here..to_here];
                match out.last_mut().filter(|_| few) {
                    Some(before) => {
                        before.share += share * part;
                        before.images.extend(images);
                    }
                    None => out.push(Stratum { share: share * part, images: images.to_vec() }),
                }
                (from_new, from_here) = (to_new, to_here);
            }
            out
        };
        let mut all = side(false, self.error, &WRONG);
        all.extend(side(true, 1.0 - self.error, &RIGHT));
        all
    }
}

/// Images alike in their margins.
#[derive(Debug, Clone, PartialEq)]
pub struct Stratum {
    /// Part of the new images that are like these, 0 to 1.
    pub share: f64,
    /// Their places in what was seen.
    pub images: Vec<usize>,
}

/// Whether an answer with this margin is right; a tie is left to the order of the classes and counts as right.
fn right(margin: f32) -> bool {
    margin >= 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_stand_for_equally_many_images_and_the_error_is_exact() {
        let m = Margins::of(&[2.0, -1.0, f32::NAN, 5.0, 0.0, 1.0, 3.0, 4.0]);
        assert_eq!(m.error, 0.25);
        assert_eq!(m.quantiles, [f32::MIN, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let many = Margins::of(&(0..10_000).map(|i| i as f32 - 700.0).collect::<Vec<_>>());
        assert_eq!((many.error, many.quantiles.len()), (0.07, MOST));
        let below = many.quantiles.iter().filter(|q| **q < 0.0).count();
        assert!((below as f64 / MOST as f64 - 0.07).abs() < 1.0 / MOST as f64);
        assert_eq!(Margins::of(&[]), Margins::default());
    }

    #[test]
    fn strata_hold_every_image_once_and_their_shares_are_those_of_new_images() {
        // New: a fifth wrong, the rest spread to 8. Seen: surer by far.
        let new: Vec<f32> = (0..1000).map(|i| i as f32 / 100.0 - 2.0).collect();
        let seen: Vec<f32> = (0..400).map(|i| i as f32 / 20.0 - 1.0).collect();
        let m = Margins::of(&new);
        let strata = m.strata(&seen);
        assert!(strata.len() > 6, "{}", strata.len());
        assert!((strata.iter().map(|s| s.share).sum::<f64>() - 1.0).abs() < 1e-12);
        let mut all: Vec<usize> = strata.iter().flat_map(|s| s.images.clone()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..400).collect::<Vec<_>>());
        let mean: f64 = strata
            .iter()
            .map(|s| s.share * s.images.iter().map(|&i| f64::from(seen[i])).sum::<f64>() / s.images.len() as f64)
            .sum();
        let plain = seen.iter().map(|v| f64::from(*v)).sum::<f64>() / 400.0;
        let wanted = new.iter().map(|v| f64::from(*v)).sum::<f64>() / 1000.0;
        // The last stratum reaches as far as what was seen does; all others are alike.
        assert!((mean - wanted).abs() < 0.35 * (plain - wanted).abs(), "{mean} {plain} {wanted}");
        let near = |v: f32| (0.0..1.0).contains(&v);
        let part: f64 = strata
            .iter()
            .map(|s| s.share * s.images.iter().filter(|&&i| near(seen[i])).count() as f64 / s.images.len() as f64)
            .sum();
        assert!((part - 0.1).abs() < 0.03, "a tenth of the new images are near the boundary: {part}");
    }

    #[test]
    fn the_same_distribution_weighs_all_images_about_alike_and_few_images_make_few_strata() {
        let all: Vec<f32> = (0..512).map(|i| ((i * 7919) % 512) as f32 / 64.0 - 1.0).collect();
        for s in Margins::of(&all).strata(&all) {
            assert!((s.share / s.images.len() as f64 * 512.0 - 1.0).abs() < 0.3, "{s:?}");
        }
        let few = Margins::of(&all).strata(&[3.0, 1.0, 0.5]);
        assert_eq!(few.len(), 1, "nothing wrong was seen: {few:?}");
        assert!((few[0].share - 0.875).abs() < 1e-9);
        assert_eq!(Margins::unknown(0.1).strata(&[1.0, -1.0]).len(), 1);
        assert!(Margins::of(&all).strata(&[]).is_empty());
    }
}
