//! Windows of a token grid and position biases for attention: plain geometry, no tensors.
//!
//! Swin (Liu et al. 2021) splits a grid of tokens into windows and attends within each; every other layer rolls the
//! grid first, so that windows cross the old borders, and masks pairs that the roll made neighbours.

use serde::{Deserialize, Serialize};

/// Attention within windows of a grid of tokens (row by row). Sizes divide the grid, shifts are below sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Windows {
    /// Rows and columns of tokens.
    pub grid: [usize; 2],
    /// Rows and columns of a window.
    pub size: [usize; 2],
    /// How far the grid is rolled up and left before it is cut.
    pub shift: [usize; 2],
}

/// What is added to attention scores for where query and key lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(tag = "bias", rename_all = "snake_case")]
pub enum PositionBias {
    #[default]
    None,
    /// A learned table over relative positions in a window.
    Table,
    /// Learned for every pair of `tokens` tokens (those of a window), `[heads, tokens, tokens]`.
    Full { tokens: usize },
    /// Swin v2: `16·sigmoid` of a small network of the log-spaced relative position. `trained` is the window that
    /// coordinates are scaled by; zeros: the window itself.
    Continuous { hidden: usize, trained: [usize; 2] },
}

/// What a pair of tokens that only the roll made neighbours gets added; the networks were trained with it.
pub const MASKED: f32 = -100.0;

/// `bias` `[.., n, n]` over the pairs of a window whose `n` tokens come from `parts`, those of different parts masked.
pub fn masked<'a>(bias: &'a [f32], parts: &'a [u8]) -> impl Iterator<Item = f32> + 'a {
    let n = parts.len();
    let one = move |(i, b): (usize, &f32)| if parts[i / n % n] == parts[i % n] { *b } else { b + MASKED };
    bias.iter().enumerate().map(one)
}

impl Windows {
    /// Why these windows cannot be, if so.
    pub fn check(&self, tokens: usize) -> Result<(), String> {
        let Windows { grid: [h, w], size, shift } = *self;
        if h.checked_mul(w) != Some(tokens) {
            return Err(format!("a grid of {h}x{w} does not have {tokens} tokens"));
        }
        for i in 0..2 {
            if size[i] == 0 || !self.grid[i].is_multiple_of(size[i]) {
                return Err(format!("windows of {}x{} do not divide the grid {h}x{w}", size[0], size[1]));
            }
            if shift[i] >= size[i] {
                return Err(format!("a shift of {} is not below the window's {}", shift[i], size[i]));
            }
        }
        Ok(())
    }

    /// Tokens of a window.
    pub fn tokens(&self) -> usize {
        self.size[0] * self.size[1]
    }

    /// Windows of the grid.
    pub fn count(&self) -> usize {
        (self.grid[0] / self.size[0].max(1)) * (self.grid[1] / self.size[1].max(1))
    }

    /// Window by window, row by row: which token of the grid stands there.
    pub fn order(&self) -> Vec<u32> {
        self.places(|y, x| {
            let at = |p: usize, i: usize| (p + self.shift[i]) % self.grid[i];
            (at(y, 0) * self.grid[1] + at(x, 1)) as u32
        })
    }

    /// In the same order: the part of the grid that a token comes from. Only tokens of one part attend to each other.
    pub fn parts(&self) -> Vec<u8> {
        self.places(|y, x| {
            let part = |p: usize, i: usize| match self.shift[i] {
                0 => 0,
                s => u8::from(p >= self.grid[i] - self.size[i]) + u8::from(p >= self.grid[i] - s),
            };
            3 * part(y, 0) + part(x, 1)
        })
    }

    fn places<T>(&self, f: impl Fn(usize, usize) -> T) -> Vec<T> {
        let ([h, w], [sh, sw]) = (self.grid, self.size);
        let mut out = Vec::with_capacity(h * w);
        for wy in (0..h).step_by(sh.max(1)) {
            for wx in (0..w).step_by(sw.max(1)) {
                for y in wy..wy + sh {
                    out.extend((wx..wx + sw).map(|x| f(y, x)));
                }
            }
        }
        out
    }
}

/// Rows of a table over relative positions in a window, `(2h-1)·(2w-1)`.
pub fn relative_positions(size: [usize; 2]) -> usize {
    let side = |n: usize| n.saturating_mul(2).saturating_sub(1);
    side(size[0]).saturating_mul(side(size[1]))
}

/// For every pair (query, key) of a window's tokens, row-major: the row of that table.
pub fn relative_index(size: [usize; 2]) -> Vec<u32> {
    let [h, w] = size;
    let n = h * w;
    let mut out = Vec::with_capacity(n * n);
    for q in 0..n {
        for k in 0..n {
            let dy = q / w + h - 1 - k / w;
            let dx = q % w + w - 1 - k % w;
            out.push((dy * (2 * w - 1) + dx) as u32);
        }
    }
    out
}

/// For every row of that table: the log-spaced coordinates `(y, x)` that Swin v2's network reads,
/// `sign(r) · log2(1 + |8r|) / 3` for `r` scaled to -1..1 by the window the network was `trained` with.
pub fn log_coordinates(size: [usize; 2], trained: [usize; 2]) -> Vec<[f32; 2]> {
    let one = |i: usize, d: usize| {
        let base = if trained[i] > 0 { trained[i] } else { size[i] };
        let r = (d as f64 - (size[i] as f64 - 1.0)) / (base.max(2) - 1) as f64 * 8.0;
        (r.signum() * (r.abs() + 1.0).log2() / 3.0 * f64::from(u8::from(r != 0.0))) as f32
    };
    let [h, w] = size.map(|n| 2 * n.max(1) - 1);
    (0..h * w).map(|i| [one(0, i / w), one(1, i % w)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_the_grid_once_and_rolls_wrap() {
        let plain = Windows { grid: [4, 4], size: [2, 2], shift: [0, 0] };
        assert_eq!(&plain.order()[..8], [0, 1, 4, 5, 2, 3, 6, 7]);
        assert!(plain.parts().iter().all(|p| *p == 0));
        let rolled = Windows { shift: [1, 1], ..plain };
        assert_eq!(&rolled.order()[..4], [5, 6, 9, 10]);
        assert_eq!(&rolled.order()[12..], [15, 12, 3, 0]);
        // The last window joins four corners that have nothing to do with each other.
        assert_eq!(&rolled.parts()[12..], [4, 5, 7, 8]);
        let mut seen = rolled.order();
        seen.sort_unstable();
        assert_eq!(seen, (0..16).collect::<Vec<_>>());
    }

    #[test]
    fn one_axis_may_be_rolled_alone() {
        let w = Windows { grid: [2, 4], size: [2, 2], shift: [0, 1] };
        assert_eq!(w.check(8), Ok(()));
        assert_eq!(w.parts(), [0, 0, 0, 0, 1, 2, 1, 2]);
        assert!(Windows { size: [2, 3], ..w }.check(8).unwrap_err().contains("do not divide"));
        assert!(Windows { shift: [0, 2], ..w }.check(8).unwrap_err().contains("not below"));
        assert!(w.check(9).is_err());
    }

    #[test]
    fn relative_positions_are_numbered_as_the_reference_does() {
        // 2x2 windows: 3x3 relative positions; the diagonal is the centre.
        let index = relative_index([2, 2]);
        assert_eq!(relative_positions([2, 2]), 9);
        assert_eq!(index, [4, 3, 1, 0, 5, 4, 2, 1, 7, 6, 4, 3, 8, 7, 5, 4]);
        let c = log_coordinates([2, 2], [0, 0]);
        assert_eq!(c.len(), 9);
        assert_eq!(c[4], [0.0, 0.0]);
        let far = (9f64.log2() / 3.0) as f32;
        assert_eq!((c[0], c[8]), ([-far, -far], [far, far]));
    }
}
