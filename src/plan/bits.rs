//! Which of GGML's formats each weight of a language model goes into, so that all of them fit into so many bytes with the least harm.
//!
//! Harm is taken to add up over weights: an error times what an error of that weight costs (`profile::roundings` says where that is from).
//! Not here: how it is solved (`choices`), what is measured (`profile`), sessions' plans (`planner`).

use super::choices::{self, Choice};
use crate::profile::{Rounding, Roundings};

/// A weight's choices, and what a relative squared error of one would cost it.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    pub roundings: Roundings,
    /// In the unit that harm is told in; 1 where nothing was measured.
    pub cost: f64,
}

/// What was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// By weight, an index into its formats.
    pub formats: Vec<usize>,
    pub bytes: u64,
    /// Errors times costs, summed.
    pub harm: f64,
    /// No choice of so many bytes has less harm than this: what the price of a byte says.
    pub least: f64,
}

/// The formats with which `weights` take at most `room` bytes with the least harm; `None` where not even their smallest ones fit.
pub fn allocate(weights: &[Weight], room: u64) -> Option<Chosen> {
    let choice = |w: &Weight, f: &Rounding| Choice { size: f.bytes, harm: w.cost * f.error };
    let all: Vec<Vec<Choice>> =
        weights.iter().map(|w| w.roundings.formats.iter().map(|f| choice(w, f)).collect()).collect();
    let found = choices::allocate(&all, room)?;
    Some(Chosen { formats: found.taken, bytes: found.size, harm: found.harm, least: found.least })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn weights(n: usize, seed: u64) -> Vec<Weight> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..n)
            .map(|i| {
                let values = rng.random_range(100..2000u64);
                let scale = rng.random::<f64>();
                // Finer formats are larger, but for one that is worse than another in both.
                let mut formats: Vec<Rounding> = (1..6u64)
                    .map(|bits| Rounding {
                        format: None,
                        bytes: values * bits,
                        error: scale * 0.25f64.powi(bits as i32) * rng.random_range(0.7..1.3),
                    })
                    .collect();
                formats.push(Rounding { format: None, bytes: values * 3, error: scale });
                let roundings = Roundings { layer: i.to_string(), values, looked_at: 1.0, formats };
                Weight { roundings, cost: rng.random::<f64>() * 10.0 }
            })
            .collect()
    }

    fn told(weights: &[Weight], formats: Vec<usize>) -> Chosen {
        let each = || weights.iter().zip(&formats).map(|(w, &i)| (w, w.roundings.formats[i]));
        let bytes = each().map(|(_, f)| f.bytes).sum();
        let harm = each().map(|(w, f)| w.cost * f.error).sum();
        Chosen { formats, bytes, harm, least: 0.0 }
    }

    /// All combinations.
    fn by_force(weights: &[Weight], room: u64) -> Option<f64> {
        let n = weights[0].roundings.formats.len();
        let all = (0..n.pow(weights.len() as u32)).map(|mut k| {
            let mut formats = Vec::new();
            for _ in weights {
                formats.push(k % n);
                k /= n;
            }
            told(weights, formats)
        });
        all.filter(|c| c.bytes <= room).map(|c| c.harm).reduce(f64::min)
    }

    #[test]
    fn it_fits_and_is_as_near_the_best_as_it_says() {
        let mut exact = 0;
        for seed in 0..40 {
            let all = weights(5, seed);
            let values: u64 = all.iter().map(|w| w.roundings.values).sum();
            let room = (values as f64 * (1.2 + 0.08 * seed as f64)) as u64;
            let found = allocate(&all, room).unwrap();
            let best = by_force(&all, room).unwrap();
            assert!(found.bytes <= room, "{seed}");
            assert!(found.harm >= best - 1e-12, "{seed}: nothing is better than the best");
            assert!(found.least <= best + 1e-12, "{seed}: {} {best}", found.least);
            exact += usize::from(found.harm <= best * 1.001);
            assert!(found.harm <= best * 2.5 + 1e-9, "{seed}: {} {best}", found.harm);
        }
        // With five weights what is left over counts for much; with two hundred for nothing.
        assert!(exact >= 20, "{exact}");
        let many = weights(200, 99);
        let values: u64 = many.iter().map(|w| w.roundings.values).sum();
        let found = allocate(&many, 5 * values / 2).unwrap();
        assert!(found.harm <= 1.01 * found.least, "{} {}", found.harm, found.least);
        assert!(found.bytes <= 5 * values / 2 && found.bytes > 249 * values / 100);
    }

    #[test]
    fn what_does_not_fit_is_none_and_what_fits_anyway_is_left() {
        let all = weights(4, 1);
        let least: u64 = all.iter().map(|w| w.roundings.values).sum();
        assert!(allocate(&all, least - 1).is_none());
        assert_eq!(allocate(&all, least).unwrap().bytes, least);
        let free = allocate(&all, u64::MAX).unwrap();
        assert!(free.formats.iter().all(|i| *i == 4), "{:?}", free.formats);
        assert_eq!(allocate(&[], 0).unwrap().formats, Vec::<usize>::new());
        // Weights that cost nothing go into what is smallest.
        let mut some = all.clone();
        some[0].cost = 0.0;
        assert_eq!(allocate(&some, 3 * least).unwrap().formats[0], 0);
    }
}
