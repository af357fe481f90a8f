//! Masks over the weights of one layer: their patterns, and which weights become zero by magnitude or another score. (`masks`: by what a
//! layer reads.)
//!
//! Zeros stay in place: shapes, MACs and stored bytes do not change, and no kernel here skips them. They are for
//! hardware that does (2:4 on NVIDIA's sparse tensor cores) and for what comes after export.

use crate::graph::Op;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Which weights of a layer become zero.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "pattern")]
pub enum Sparsity {
    /// The `ratio` of smallest magnitude in the whole tensor (Han et al. 2015).
    Unstructured { ratio: f64 },
    /// Of every `m` consecutive inputs of an output, the `n` largest stay (Mishra et al. 2021). A convolution's inputs
    /// are its channels at one place of the kernel; a last, shorter run stays whole.
    NofM { n: u8, m: u8 },
}

impl Sparsity {
    /// Why this pattern cannot be, if so.
    pub fn check(self) -> Result<(), String> {
        match self {
            Sparsity::Unstructured { ratio } if !(0.0..1.0).contains(&ratio) => {
                Err(format!("a ratio of {ratio} is not within 0..1"))
            }
            Sparsity::NofM { n, m } if n == 0 || n >= m => Err(format!("{n}:{m} does not keep some and drop some")),
            _ => Ok(()),
        }
    }

    /// Why this pattern cannot be laid on the weights of `op`, if so.
    pub fn check_on(self, op: &Op) -> Result<(), &'static str> {
        if !op.is_conv_or_linear() {
            return Err("only convolutions and linear layers have masks");
        }
        self.check().map_err(|_| "the pattern drops all or nothing")
    }

    /// Sets what goes to zero in weights of `shape` (`[out, in]` or `[out, in, kh, kw]`), row-major. Of equal
    /// magnitudes the later one goes. Returns how many are zero now.
    pub fn apply(self, weights: &mut [f32], shape: &[usize]) -> usize {
        let scores: Vec<f32> = weights.iter().map(|w| w.abs()).collect();
        self.lowest(&scores, shape).into_iter().for_each(|i| weights[i] = 0.0);
        weights.iter().filter(|w| **w == 0.0).count()
    }

    /// Which of weights of `shape` go by their scores, those with the lowest; of equal ones the later.
    pub(super) fn lowest(self, scores: &[f32], shape: &[usize]) -> Vec<usize> {
        let mut out = Vec::new();
        match self {
            Sparsity::Unstructured { ratio } => {
                let count = (scores.len() as f64 * ratio).round() as usize;
                lowest_of(scores, (0..scores.len()).collect(), count, &mut out);
            }
            Sparsity::NofM { n, m } => {
                let (n, m) = (usize::from(n), usize::from(m));
                let inputs = shape.get(1).copied().unwrap_or(1).max(1);
                let taps: usize = shape.iter().skip(2).product();
                let width = (inputs * taps).max(1);
                for row in (0..scores.len() / width).map(|r| r * width) {
                    for tap in 0..taps {
                        for first in (0..inputs / m * m).step_by(m) {
                            let run = (first..first + m).map(|i| row + i * taps + tap).collect();
                            lowest_of(scores, run, m - n, &mut out);
                        }
                    }
                }
            }
        }
        out
    }
}

/// The `count` places with the lowest scores among `places`.
fn lowest_of(scores: &[f32], mut places: Vec<usize>, count: usize, out: &mut Vec<usize>) {
    if count == 0 || places.is_empty() {
        return;
    }
    let count = count.min(places.len());
    let order = |a: &usize, b: &usize| scores[*a].total_cmp(&scores[*b]).then(b.cmp(a));
    places.select_nth_unstable_by(count - 1, order);
    out.extend_from_slice(&places[..count]);
}

impl fmt::Display for Sparsity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sparsity::Unstructured { ratio } => write!(f, "{:.0}% zeros", ratio * 100.0),
            Sparsity::NofM { n, m } => write!(f, "{n}:{m}"),
        }
    }
}

/// `2:4`, `50%` or `0.5`.
impl FromStr for Sparsity {
    type Err = String;

    fn from_str(s: &str) -> Result<Sparsity, String> {
        let bad = || format!("`{s}` is no pattern; hint: 2:4, 4:8, 50% or 0.5");
        let s = s.trim();
        let pattern = match s.split_once(':') {
            Some((n, m)) => {
                Sparsity::NofM { n: n.trim().parse().map_err(|_| bad())?, m: m.trim().parse().map_err(|_| bad())? }
            }
            None => {
                let (text, factor) = s.strip_suffix('%').map_or((s, 1.0), |t| (t, 0.01));
                Sparsity::Unstructured { ratio: text.trim().parse::<f64>().map_err(|_| bad())? * factor }
            }
        };
        pattern.check().map_err(|why| format!("{why}; hint: 2:4, 4:8, 50% or 0.5"))?;
        Ok(pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_go_and_ties_are_settled() {
        let mut w = [3.0, -1.0, 2.0, 1.0, -4.0, 0.5];
        assert_eq!(Sparsity::Unstructured { ratio: 0.5 }.apply(&mut w, &[2, 3]), 3);
        assert_eq!(w, [3.0, 0.0, 2.0, 0.0, -4.0, 0.0]);
        let mut w = [1.0; 4];
        Sparsity::Unstructured { ratio: 0.5 }.apply(&mut w, &[1, 4]);
        assert_eq!(w, [1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn two_of_four_inputs_stay_at_every_tap() {
        let mut w = [4.0, -3.0, 2.0, 1.0, 0.5, 6.0];
        Sparsity::NofM { n: 2, m: 4 }.apply(&mut w, &[1, 6]);
        assert_eq!(w, [4.0, -3.0, 0.0, 0.0, 0.5, 6.0], "a shorter last run stays");
        // [1, 4, 1, 2]: channels at tap 0 are 1, 2, 3, 4 and at tap 1 are 8, 7, 6, 5.
        let mut w = [1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0];
        assert_eq!(Sparsity::NofM { n: 2, m: 4 }.apply(&mut w, &[1, 4, 1, 2]), 4);
        assert_eq!(w, [0.0, 8.0, 0.0, 7.0, 3.0, 0.0, 4.0, 0.0]);
    }

    #[test]
    fn patterns_are_read_as_they_are_written() {
        assert_eq!("2:4".parse(), Ok(Sparsity::NofM { n: 2, m: 4 }));
        assert_eq!(" 50% ".parse(), Ok(Sparsity::Unstructured { ratio: 0.5 }));
        assert_eq!("0.25".parse(), Ok(Sparsity::Unstructured { ratio: 0.25 }));
        for bad in ["4:2", "0:4", "x", "100%", "-1", "nan", "2:"] {
            assert!(bad.parse::<Sparsity>().is_err_and(|e| e.contains("hint")), "{bad}");
        }
    }
}
