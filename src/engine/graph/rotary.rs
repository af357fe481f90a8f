//! Rotary positions: by which angles pairs of a head's values are turned. Plain numbers, no tensors.
//!
//! Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".

use serde::{Deserialize, Serialize};

/// Which values of a head are turned together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairs {
    /// `2i` and `2i + 1`: the paper's, Meta's own code, GGUF files of Llama.
    Neighbours,
    /// `i` and `i + dim/2`: transformers, GPT-NeoX.
    Halves,
}

impl Pairs {
    /// The two places of pair `i` among `dim` values.
    pub fn places(self, i: usize, dim: usize) -> [usize; 2] {
        match self {
            Pairs::Neighbours => [2 * i, 2 * i + 1],
            Pairs::Halves => [i, i + dim / 2],
        }
    }
}

/// Cosines and sines of `positions`, `[positions, frequencies]` each, times `factor`: pair `i` at position `p` is turned by
/// `p · frequencies[i]` ([`super::op::Rope::frequencies`]). Frequencies and angles are rounded to f32, as the networks were trained with.
pub fn turns(positions: std::ops::Range<usize>, frequencies: &[f64], factor: f64) -> (Vec<f32>, Vec<f32>) {
    let frequencies: Vec<f32> = frequencies.iter().map(|f| *f as f32).collect();
    let angles = positions.flat_map(|p| frequencies.iter().map(move |f| f64::from(p as f32 * f)));
    angles.map(|a| ((a.cos() * factor) as f32, (a.sin() * factor) as f32)).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_position_is_not_turned_and_later_ones_slower_along_the_head() {
        let (cos, sin) = turns(0..3, &[1.0, 0.1], 1.0);
        assert_eq!((&cos[..2], &sin[..2]), (&[1.0, 1.0][..], &[0.0, 0.0][..]));
        assert!((sin[2] - 1f32.sin()).abs() < 1e-7 && (sin[3] - 0.1f32.sin()).abs() < 1e-7);
        assert!((cos[5] - 0.2f32.cos()).abs() < 1e-7);
        // From anywhere on, the same; and all of it longer.
        assert_eq!(turns(2..3, &[1.0, 0.1], 1.0).0, cos[4..]);
        assert_eq!(turns(0..1, &[1.0], 1.5), (vec![1.5], vec![0.0]));
    }

    #[test]
    fn pairs_cover_every_place_once() {
        for pairs in [Pairs::Neighbours, Pairs::Halves] {
            let mut all: Vec<usize> = (0..4).flat_map(|i| pairs.places(i, 8)).collect();
            all.sort_unstable();
            assert_eq!(all, (0..8).collect::<Vec<_>>());
        }
        assert_eq!((Pairs::Neighbours.places(1, 8), Pairs::Halves.places(1, 8)), ([2, 3], [1, 5]));
    }
}
