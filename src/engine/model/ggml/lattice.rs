//! What the values of a block may become once its scales are chosen, and a block with other codes for the same scales: for those who
//! choose codes by more than the value at hand. Not here: how scales are chosen (`encode`, `weighted`), and who chooses codes (`quant`).

use super::encode::{fifths, nibbles};
use super::{Block, CODES};
use Block::{IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};

/// The values that each place of a block can have: `base[i] + step[i] * n(code)`, where `n` is the code itself, or what it stands for in
/// the uneven formats.
#[derive(Debug, Clone, PartialEq)]
pub struct Lattice {
    base: Vec<f64>,
    step: Vec<f64>,
    codes: u8,
    uneven: bool,
}

impl Lattice {
    /// The code whose value at place `i` is nearest to `x`, and that value.
    pub fn nearest(&self, i: usize, x: f64) -> (u8, f64) {
        let (base, step) = (self.base[i], self.step[i]);
        if step == 0.0 {
            return (0, base);
        }
        let n = (x - base) / step;
        let code = match self.uneven {
            true => CODES.windows(2).take_while(|two| 2.0 * n >= f64::from(two[0]) + f64::from(two[1])).count() as u8,
            // What is no number becomes 0.
            false => n.round().clamp(0.0, f64::from(self.codes - 1)) as u8,
        };
        (code, self.value(i, code))
    }

    /// What `code` stands for at place `i`.
    pub fn value(&self, i: usize, code: u8) -> f64 {
        self.base[i] + self.step[i] * number(self.uneven, code)
    }
}

/// The number that a code is: itself, or in the uneven formats one of sixteen.
fn number(uneven: bool, code: u8) -> f64 {
    f64::from(if uneven { i16::from(CODES[usize::from(code & 15)]) } else { i16::from(code) })
}

impl Block {
    /// What the values of one block may become with the scales that `bytes` has.
    pub fn lattice(self, bytes: &[u8]) -> Lattice {
        let uneven = matches!(self, IQ4_NL | IQ4_XS);
        // Values are linear in what codes stand for: two of them tell base and step.
        let [low, high] = if uneven { [0u8, 8] } else { [0, 1] };
        let of = |code: u8| {
            let mut with = bytes[..self.size()].to_vec();
            self.place(&vec![code; self.values()], &mut with);
            self.decode(&with)
        };
        let n = |code| number(uneven, code);
        let (at, next) = (of(low), of(high));
        let step: Vec<f64> =
            at.iter().zip(&next).map(|(a, b)| (f64::from(*b) - f64::from(*a)) / (n(high) - n(low))).collect();
        let base = at.iter().zip(&step).map(|(a, step)| f64::from(*a) - step * n(low)).collect();
        Lattice { base, step, codes: self.codes(), uneven }
    }

    /// How many codes a value has. Those of `Q8_0` go from 0 too: the lowest is the one that stands for -127.
    fn codes(self) -> u8 {
        match self {
            Q2_K => 4,
            Q3_K => 8,
            Q4_0 | Q4_1 | Q4_K | IQ4_NL | IQ4_XS => 16,
            Q5_0 | Q5_1 | Q5_K => 32,
            Q6_K => 64,
            Q8_0 => 255,
        }
    }

    /// Gives one block other `codes`, a value each; its scales stay.
    pub fn place(self, codes: &[u8], bytes: &mut [u8]) {
        let code = |i: usize| codes[i];
        match self {
            Q4_0 | IQ4_NL => nibbles(code, &mut bytes[2..]),
            Q4_1 => nibbles(code, &mut bytes[4..]),
            Q5_0 => {
                fifths(code, &mut bytes[2..]);
                nibbles(code, &mut bytes[6..]);
            }
            Q5_1 => {
                fifths(code, &mut bytes[4..]);
                nibbles(code, &mut bytes[8..]);
            }
            Q8_0 => bytes[2..].iter_mut().zip(codes).for_each(|(b, q)| *b = q.wrapping_sub(127)),
            Q2_K => crumbs(code, &mut bytes[16..80]),
            Q3_K => {
                for (i, b) in bytes[..32].iter_mut().enumerate() {
                    *b = (0..8).fold(0, |bits, plane| bits | (codes[32 * plane + i] >> 2 & 1) << plane);
                }
                crumbs(code, &mut bytes[32..96]);
            }
            Q4_K => halves(code, &mut bytes[16..144]),
            Q5_K => {
                for (i, b) in bytes[16..48].iter_mut().enumerate() {
                    *b = (0..8).fold(0, |bits, group| bits | (codes[32 * group + i] >> 4 & 1) << group);
                }
                halves(code, &mut bytes[48..176]);
            }
            Q6_K => {
                for (i, low) in bytes[..128].iter_mut().enumerate() {
                    let at = i / 64 * 128 + i % 64;
                    *low = codes[at] & 15 | codes[at + 64] << 4;
                }
                crumbs(|i| codes[i] >> 4, &mut bytes[128..192]);
            }
            IQ4_XS => (0..8).for_each(|j| nibbles(|i| codes[32 * j + i], &mut bytes[8 + 16 * j..])),
        }
    }
}

/// Four planes of two bits in every 32 bytes.
fn crumbs(codes: impl Fn(usize) -> u8, out: &mut [u8]) {
    for (i, b) in out[..64].iter_mut().enumerate() {
        let at = i / 32 * 128 + i % 32;
        *b = (0..4).fold(0, |bits, plane| bits | (codes(at + 32 * plane) & 3) << (2 * plane));
    }
}

/// Two planes of four bits in every 32 bytes.
fn halves(codes: impl Fn(usize) -> u8, out: &mut [u8]) {
    for (i, b) in out[..128].iter_mut().enumerate() {
        let at = i / 32 * 64 + i % 32;
        *b = codes(at) & 15 | codes(at + 32) << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_codes_of_a_blocks_own_scales_are_those_that_were_written_and_any_others_come_back() {
        for block in Block::ALL {
            let x: Vec<f32> = (0..block.values()).map(|i| ((i * 7919 % 1009) as f32 / 504.5 - 1.0).powi(3)).collect();
            let bytes = block.encode_weighted(&x, &vec![1.0; x.len()]);
            let (lattice, y) = (block.lattice(&bytes), block.decode(&bytes));
            let codes: Vec<u8> = (0..x.len())
                .map(|i| {
                    let (code, value) = lattice.nearest(i, f64::from(y[i]));
                    assert!((value - f64::from(y[i])).abs() < 1e-6, "{block:?} {i}: {value} {}", y[i]);
                    // Nothing that it could have been is nearer to anything.
                    let off = (lattice.nearest(i, f64::from(x[i])).1 - f64::from(x[i])).abs();
                    assert!((0..block.codes()).all(|c| (lattice.value(i, c) - f64::from(x[i])).abs() >= off - 1e-12));
                    code
                })
                .collect();
            let mut again = bytes.clone();
            block.place(&codes, &mut again);
            assert_eq!(block.decode(&again), y, "{block:?}");
            // Every code is another value.
            let others: Vec<u8> = (0..x.len()).map(|i| (i * 31 % usize::from(block.codes())) as u8).collect();
            block.place(&others, &mut again);
            for (i, (y, code)) in block.decode(&again).into_iter().zip(others).enumerate() {
                let value = lattice.value(i, code);
                assert!((value - f64::from(y)).abs() <= 1e-6 * value.abs().max(1e-3), "{block:?} {i}: {value} {y}");
            }
            // Without a scale there is one value.
            let nothing = block.lattice(&block.encode(&vec![0.0; block.values()]));
            assert_eq!(nothing.nearest(0, 3.0).1, 0.0, "{block:?}");
        }
    }
}
