//! Pooling: the largest or the mean of what lies together.

use super::site::{Expected, Site, U, taps};
use crate::graph::op;
use anyhow::Result;

pub(super) fn max(at: &Site<'_>, op::MaxPool2d { kernel, stride, padding }: &op::MaxPool2d) -> Result<Expected> {
    let most = |(m, off): (f64, f64), (y, t): (f64, f64)| (m.max(y), off.max(t));
    let one = |seen: Vec<usize>| seen.iter().map(|i| at.x.get(*i)).fold((f64::NEG_INFINITY, 0.0), most);
    Ok(windows(at, *kernel, *stride, *padding)?.map(one).collect())
}

pub(super) fn average(at: &Site<'_>, pool: &op::AvgPool2d) -> Result<Expected> {
    let op::AvgPool2d { kernel, stride, padding, count_padding } = *pool;
    let one = |seen: Vec<usize>| {
        let n = if count_padding { kernel[0] * kernel[1] } else { seen.len() };
        mean(seen.iter().map(|i| at.x.get(*i)), n)
    };
    Ok(windows(at, kernel, stride, padding)?.map(one).collect())
}

/// For every pixel of the output, plane by plane, the elements of the input under its window; padding is left out.
fn windows(
    at: &Site<'_>,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 4],
) -> Result<impl Iterator<Item = Vec<usize>>> {
    let [[c, h, w], [_, oh, ow]] = at.images()?;
    let under = move |plane: usize, place: usize| {
        let mut seen = Vec::new();
        taps(place / ow, place % ow, kernel, stride, padding, [h, w], |_, pixel| seen.push(plane * h * w + pixel));
        seen
    };
    Ok((0..at.run.images * c).flat_map(move |plane| (0..oh * ow).map(move |place| under(plane, place))))
}

pub(super) fn adaptive(at: &Site<'_>) -> Result<Expected> {
    let [[c, h, w], [_, oh, ow]] = at.images()?;
    let range = |o: usize, len: usize, n: usize| o * len / n..((o + 1) * len).div_ceil(n);
    let one = |plane: usize, place: usize| {
        let (ys, xs) = (range(place / ow, h, oh), range(place % ow, w, ow));
        let n = ys.len() * xs.len();
        let pixels = ys.flat_map(|y| xs.clone().map(move |px| (plane * h + y) * w + px));
        mean(pixels.map(|i| at.x.get(i)), n)
    };
    Ok((0..at.run.images * c).flat_map(|p| (0..oh * ow).map(move |i| (p, i))).map(|(p, i)| one(p, i)).collect())
}

pub(super) fn global(at: &Site<'_>) -> Result<Expected> {
    let [c, h, w] = at.image()?;
    let one = |plane: usize| mean((plane * h * w..(plane + 1) * h * w).map(|i| at.x.get(i)), h * w);
    Ok((0..at.run.images * c).map(one).collect())
}

pub(super) fn tokens(at: &Site<'_>, skip: usize) -> Expected {
    let (rows, last) = (at.tokens(), at.last());
    let one = |i: usize| {
        let (image, column) = (i / last, i % last);
        mean((skip..rows).map(|r| at.x.get((image * rows + r) * last + column)), rows - skip)
    };
    (0..at.run.images * last).map(one).collect()
}

/// The sum of `values` over `n`.
fn mean(values: impl Iterator<Item = (f64, f64)>, n: usize) -> (f64, f64) {
    let (n, mut sum, mut size, mut off) = (n as f64, 0.0, 0.0, 0.0);
    for (y, t) in values {
        sum += y;
        size += f64::abs(y);
        off += t;
    }
    (sum / n, off / n + (f64::sqrt(n) + 4.0) * U * size / n)
}
