//! How well a score tells images of one set from those of another: the area under the receiver operating characteristic.

use crate::task::Estimate;

/// Two sets of scores, in order.
#[derive(Debug, Clone)]
pub struct Separation {
    /// Place in its set, and whether that is the inner one, by score.
    order: Vec<(u32, bool)>,
    /// Where runs of equal scores end.
    ends: Vec<usize>,
    sizes: [usize; 2],
}

impl Separation {
    /// Of scores that are to be larger inside than outside.
    pub fn of(inside: &[f64], outside: &[f64]) -> Separation {
        let mut all: Vec<(f64, u32, bool)> = inside.iter().zip(0..).map(|(s, i)| (*s, i, true)).collect();
        all.extend(outside.iter().zip(0..).map(|(s, i)| (*s, i, false)));
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut ends: Vec<usize> = (1..all.len()).filter(|&i| all[i - 1].0 != all[i].0).collect();
        ends.push(all.len());
        let order = all.into_iter().map(|(_, i, inner)| (i, inner)).collect();
        Separation { order, ends, sizes: [inside.len(), outside.len()] }
    }

    /// The chance that one from inside scores higher than one from outside, ties half (Mann and Whitney): 0.5 where nothing is told, 1 where all
    /// is.
    pub fn auroc(&self) -> f64 {
        self.counted(&self.sizes.map(|n| vec![1; n]))
    }

    /// The same with each taken as often as `counts` of both sets say.
    fn counted(&self, counts: &[Vec<u32>]) -> f64 {
        let (mut below, mut wins, mut inside, mut from) = (0f64, 0f64, 0f64, 0);
        for &end in &self.ends {
            let mut here = [0f64; 2];
            for &(i, inner) in &self.order[from..end] {
                here[usize::from(!inner)] += f64::from(counts[usize::from(!inner)][i as usize]);
            }
            wins += here[0] * (below + here[1] / 2.0);
            (below, inside, from) = (below + here[1], inside + here[0], end);
        }
        if inside * below > 0.0 { wins / (inside * below) } else { 0.5 }
    }

    /// By how much the area is larger than `base`'s over the same images, with its paired interval.
    pub fn beyond(&self, base: &Separation) -> Estimate {
        Estimate::resampled(&self.sizes, |counts| self.counted(counts) - base.counted(counts))
    }
}
