//! Whole numbers that are affine in their place, over the batch: what PyTorch's exporter gathers by for `as_strided`
//! (`Range(0, N) · stride + …`). With a free batch they have no values to compute with, but a start and strides.

use super::layout::Change;
use super::{Attrs, Constant, Lift, Lifter, Value, fold};
use crate::model::params::row_major;

/// `start + Σ stride[i] · index[i]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::model::onnx) struct Grid {
    pub shape: Vec<usize>,
    pub start: i64,
    /// 0 along axes of length 1.
    pub strides: Vec<i64>,
}

impl Grid {
    /// `Range` up to the batch's length.
    pub fn range(start: i64, delta: i64, batch: usize) -> Option<Grid> {
        (start == 0).then(|| Grid { shape: vec![batch], start, strides: vec![delta] })
    }

    /// The constant as a grid, if it is one.
    fn of(c: &Constant) -> Option<Grid> {
        let values = c.as_ints()?;
        let start = *values.first()?;
        let along = |(&d, step): (&usize, isize)| match d > 1 {
            true => values.get(step as usize)?.checked_sub(start),
            false => Some(0),
        };
        let strides: Option<Vec<i64>> = c.shape.iter().zip(row_major(&c.shape)).map(along).collect();
        let grid = Grid { shape: c.shape.clone(), start, strides: strides? };
        let fits = values.iter().enumerate().all(|(i, v)| grid.at(i) == Some(*v));
        fits.then_some(grid)
    }

    /// Element `i` in row-major order.
    fn at(&self, mut i: usize) -> Option<i64> {
        let mut sum = self.start;
        for (s, &d) in self.strides.iter().zip(&self.shape).rev() {
            sum = sum.checked_add(s.checked_mul((i % d) as i64)?)?;
            i /= d;
        }
        Some(sum)
    }

    fn plus(&self, other: &Grid) -> Option<Grid> {
        let shape = fold::broadcast(&self.shape, &other.shape)?;
        let part = |g: &Grid, i: usize| (i + g.shape.len()).checked_sub(shape.len()).map_or(0, |i| g.strides[i]);
        let strides: Option<Vec<i64>> = (0..shape.len()).map(|i| part(self, i).checked_add(part(other, i))).collect();
        Some(Grid { start: self.start.checked_add(other.start)?, strides: strides?, shape })
    }

    fn times(&self, by: i64) -> Option<Grid> {
        let strides: Option<Vec<i64>> = self.strides.iter().map(|s| s.checked_mul(by)).collect();
        Some(Grid { start: self.start.checked_mul(by)?, strides: strides?, shape: self.shape.clone() })
    }

    /// Whether it counts from 0 to its own number of elements in row-major order.
    fn counts(&self) -> bool {
        let wanted = self.shape.iter().zip(row_major(&self.shape));
        self.start == 0 && self.strides.iter().zip(wanted).all(|(&s, (&d, want))| d == 1 || s == want as i64)
    }
}

impl Lifter<'_> {
    /// A node that reads a grid; `None` when none of its inputs is one.
    pub(super) fn grid(&mut self, op: &str, a: &Attrs, inputs: usize) -> Lift<Option<Value>> {
        let value = |i: usize| self.input(i).ok();
        if !(0..inputs).any(|i| matches!(value(i), Some(Value::Grid(_)))) {
            return Ok(None);
        }
        let odd = || format!("computes {op} with a count over the batch");
        let pair = || match (value(0), value(1)) {
            (Some(Value::Grid(g)), Some(other)) | (Some(other), Some(Value::Grid(g))) => Some((g, other)),
            _ => None,
        };
        let made = match op {
            "Identity" | "Cast" => self.input(0)?.clone(),
            "Unsqueeze" => {
                let Value::Grid(g) = self.input(0)? else { return Err(odd()) };
                let axes = self.axes(a, 1)?.ok_or("has no axes")?;
                let shape = fold::unsqueezed(&g.shape, &axes)?;
                let axes = fold::axes(&axes, shape.len())?;
                let mut old = g.strides.iter();
                let strides = (0..shape.len()).map(|i| match axes.contains(&i) {
                    true => 0,
                    false => old.next().copied().unwrap_or(0),
                });
                Value::Grid(Grid { strides: strides.collect(), start: g.start, shape })
            }
            "Mul" => match pair() {
                Some((g, Value::Const(c))) if c.as_ints().is_some() => {
                    let by = c.scalar().ok_or_else(odd)?;
                    let fits = c.shape.len() <= g.shape.len();
                    Value::Grid(g.times(by as i64).filter(|_| fits).ok_or_else(odd)?)
                }
                _ => return Err(odd()),
            },
            "Add" => match pair() {
                Some((g, Value::Grid(other))) => Value::Grid(g.plus(other).ok_or_else(odd)?),
                Some((g, Value::Const(c))) => Value::Grid(Grid::of(c).and_then(|o| g.plus(&o)).ok_or_else(odd)?),
                _ => return Err(odd()),
            },
            "Gather" => {
                let Value::Grid(g) = self.input(1)?.clone() else { return Err(odd()) };
                let from = self.value_shape(self.input(0)?)?;
                let all: Option<usize> = g.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
                // Every element in its order: only the shape changes.
                if a.int("axis").unwrap_or(0) != 0 || from.len() != 1 || all != from.first().copied() || !g.counts() {
                    return Err("gathers by a count over the batch that leaves the order".into());
                }
                let data = self.input(0)?.clone();
                self.changed(data, &Change::Reshape(g.shape))?
            }
            _ => return Err(odd()),
        };
        Ok(Some(made))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_add_and_tell_their_order() {
        let channels = Constant::ints(vec![1, 3, 1, 1], vec![0, 1, 2]).unwrap();
        let rows = Grid::range(0, 1, 5).unwrap().times(3).unwrap();
        let rows = Grid { shape: vec![5, 1, 1, 1], start: 0, strides: vec![rows.strides[0], 0, 0, 0] };
        let all = rows.plus(&Grid::of(&channels).unwrap()).unwrap();
        assert_eq!((all.shape.as_slice(), all.strides.as_slice()), (&[5, 3, 1, 1][..], &[3, 1, 0, 0][..]));
        assert!(all.counts());
        assert_eq!((0..15).map(|i| all.at(i).unwrap()).collect::<Vec<_>>(), (0..15).collect::<Vec<i64>>());
        assert!(!rows.times(2).unwrap().plus(&Grid::of(&channels).unwrap()).unwrap().counts());
        let uneven = Constant::ints(vec![3], vec![0, 1, 3]).unwrap();
        assert!(Grid::of(&uneven).is_none());
    }
}
