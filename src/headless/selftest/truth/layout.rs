//! Moves: what comes out is what went in, elsewhere.

use super::site::{Expected, Site};
use crate::graph::{ParamRole, op};
use anyhow::Result;

pub(super) fn concat(at: &Site<'_>) -> Expected {
    let all: Vec<(&Expected, &[usize])> = std::iter::once((at.x, at.shape)).chain(at.rest.iter().copied()).collect();
    // Runs of values that go one after the other: planes of an image, the columns of a row.
    let run = |s: &[usize]| if s.len() == 3 { s.iter().product() } else { s.last().copied().unwrap_or(1) };
    let mut v = Vec::new();
    for i in 0..at.x.y.len() / run(at.shape).max(1) {
        for (value, s) in &all {
            let n: usize = run(s);
            v.extend((i * n..(i + 1) * n).map(|j| value.get(j)));
        }
    }
    v.into_iter().collect()
}

pub(super) fn to_tokens(at: &Site<'_>) -> Result<Expected> {
    let [c, h, w] = at.image()?;
    Ok(at.turned(at.x, c, h * w))
}

pub(super) fn patch_merge(at: &Site<'_>, [h, w]: [usize; 2]) -> Expected {
    let last = at.last();
    let from = |i: usize| {
        let (place, cell, d) = (i / (4 * last), i % (4 * last) / last, i % last);
        let (image, y, column) = (place / (h * w / 4), place / (w / 2) % (h / 2), place % (w / 2));
        ((image * h + 2 * y + cell % 2) * w + 2 * column + cell / 2) * last + d
    };
    (0..at.run.images * h * w * last).map(|i| at.x.get(from(i))).collect()
}

pub(super) fn channel_pad(at: &Site<'_>, pad: &op::ChannelPad) -> Result<Expected> {
    // Rows of tokens are images of one pixel.
    let ([c, h, w], [oh, ow], images) = match at.shape.len() < 3 {
        true => ([at.last(), 1, 1], [1, 1], at.x.y.len() / at.last()),
        false => at.images().map(|[from, [_, oh, ow]]| (from, [oh, ow], at.run.images))?,
    };
    let places = |image: usize| pad.map.iter().flat_map(move |m| (0..oh * ow).map(move |place| (image, m, place)));
    let one = |(image, from, place): (usize, &Option<u32>, usize)| {
        let pixel = place / ow * pad.stride * w + place % ow * pad.stride;
        from.map_or((0.0, 0.0), |channel| at.x.get((image * c + channel as usize) * h * w + pixel))
    };
    Ok((0..images).flat_map(places).map(one).collect())
}

pub(super) fn prepend(at: &Site<'_>, tokens: &op::PrependTokens) -> Result<Expected> {
    let learned = at.param(ParamRole::Embedding)?;
    let each = at.x.y.len() / at.run.images.max(1);
    let mut v = Vec::new();
    for image in 0..at.run.images {
        let split = image * each + tokens.at * at.last();
        v.extend((image * each..split).map(|i| at.x.get(i)));
        v.extend(learned.iter().map(|t| (*t, 0.0)));
        v.extend((split..(image + 1) * each).map(|i| at.x.get(i)));
    }
    Ok(v.into_iter().collect())
}

/// Row `id` of the table for every id; exact, as ids are.
pub(super) fn embedding(at: &Site<'_>, dim: usize) -> Result<Expected> {
    let table = at.param(ParamRole::Weight)?;
    let row = |id: &f64| table.iter().skip(*id as usize * dim).take(dim).map(|v| (*v, 0.0));
    Ok(at.x.y.iter().flat_map(row).collect())
}

pub(super) fn select(at: &Site<'_>, index: usize) -> Expected {
    let (rows, last) = (at.tokens(), at.last());
    let from = |image: usize| (image * rows + index) * last;
    (0..at.run.images).flat_map(|image| from(image)..from(image) + last).map(|i| at.x.get(i)).collect()
}
