//! Where values lie: images and tokens turned into one another, channels picked, put together, merged.

use super::facts::{Facts, Length, channel_axis, channels, ends, image, input, kept, output, tokens, traits, want};
use crate::graph::axes::{Link, NodeLinks, Span};
use serde::{Deserialize, Serialize};

/// Takes every `stride`-th row and column of an image (1 for tokens and vectors), then output channel `j` is input
/// channel `map[j]` or zero: He et al.'s option-A shortcut, slices and shuffles of channels. `in_ch` is the number
/// of input channels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelPad {
    pub stride: usize,
    pub in_ch: usize,
    pub map: Vec<Option<u32>>,
}

/// One after the other along the channels; everything else equal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concat {
    pub inputs: usize,
}

/// `[c, h, w]` → `[c·h·w]`, channel by channel.
pub(super) struct Flatten;

/// `[c, h, w]` → `[h·w, c]`.
pub(super) struct ToTokens;

/// `[h·w, c]` → `[c, h, w]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToImage {
    pub h: usize,
    pub w: usize,
}

/// Swin's patch merging without its norm and projection: the tokens of every 2x2 cell of a grid beside each other,
/// `[h·w, d]` → `[h/2·w/2, 4·d]`, in the order (0,0), (1,0), (0,1), (1,1) of (row, column).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchMerge {
    pub grid: [usize; 2],
}

fn cells(h: usize, w: usize) -> Result<usize, String> {
    h.checked_mul(w).ok_or_else(|| "too many tokens".to_owned())
}

impl Facts for ChannelPad {
    // Its zeros are made in f32.
    traits!("channel pad", "channels", moves);

    fn describe(&self) -> Option<String> {
        Some(match self.stride {
            1 => "channel map".into(),
            stride => format!("shortcut pad /{stride}"),
        })
    }

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        want("channel count", channels(ins[0]), self.in_ch)?;
        if self.stride == 0 {
            return Err("stride must be at least 1".into());
        }
        if self.stride > 1 {
            image(ins)?;
        }
        if let Some(bad) = self.map.iter().flatten().find(|&&i| i as usize >= self.in_ch) {
            return Err(format!("it reads channel {bad} of {}", self.in_ch));
        }
        let axis = channel_axis(ins[0]);
        let side = |(i, &n): (usize, &usize)| if i == axis { self.map.len() } else { n.div_ceil(self.stride) };
        Ok(ins[0].iter().enumerate().map(side).collect())
    }

    fn links(&self, ins: &[&[usize]], out: &[usize]) -> NodeLinks {
        let (from, to, _) = ends(ins, 0, out);
        NodeLinks { free: vec![from, to], ..NodeLinks::default() }
    }

    /// 0: its output channels, 1: its input channels.
    fn axis_len(&self, axis: usize) -> Option<usize> {
        [self.map.len(), self.in_ch].get(axis).copied()
    }

    fn narrow(&mut self, axis: usize, mask: &[bool]) {
        if axis == 0 {
            let mut keep = mask.iter();
            return self.map.retain(|_| keep.next().copied().unwrap_or(true));
        }
        // A pruned input channel is zero, so whatever gathered it gets a zero channel.
        let mut next = 0..;
        let new: Vec<Option<u32>> = mask.iter().map(|&k| if k { next.next() } else { None }).collect();
        for m in self.map.iter_mut() {
            *m = m.and_then(|c| new.get(c as usize).copied().flatten());
        }
        self.in_ch = kept(mask);
    }
}

impl Facts for Concat {
    traits!("concat", "concat", per_token, half);

    fn arity(&self) -> usize {
        self.inputs
    }

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let first = *ins.first().ok_or("it needs at least one input")?;
        want("input count", ins.len(), self.inputs)?;
        let axis = channel_axis(first);
        let mut shape = first.to_vec();
        for other in &ins[1..] {
            let same = other.len() == first.len() && (0..first.len()).all(|i| i == axis || other[i] == first[i]);
            if !same {
                return Err("everything but the channels must be equal".into());
            }
            shape[axis] = shape[axis].checked_add(other[axis]).ok_or("too many channels")?;
        }
        Ok(shape)
    }

    fn links(&self, ins: &[&[usize]], out: &[usize]) -> NodeLinks {
        let mut l = NodeLinks::default();
        let mut offset = 0;
        for (i, shape) in ins.iter().enumerate() {
            let (a, b, _) = ends(ins, i, out);
            let units = channels(shape);
            l.links.push(Link { a, b, units, a_span: Span::EACH, b_span: Span::run(offset, 1) });
            offset += units;
        }
        l
    }
}

impl Facts for Flatten {
    traits!("flatten", "flatten", half, moves);

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let all = image(ins)?.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        Ok(vec![all.ok_or("too many values")?])
    }

    fn links(&self, ins: &[&[usize]], out: &[usize]) -> NodeLinks {
        let units = ins.first().and_then(|s| s.first()).copied().unwrap_or(0);
        let b_span = Span::run(0, channels(out) / units.max(1));
        let link = Link { a: input(0, 0), b: output(0), units, a_span: Span::EACH, b_span };
        NodeLinks { links: vec![link], ..NodeLinks::default() }
    }
}

impl Facts for ToTokens {
    traits!("to tokens", "tokens", half, moves);

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [c, h, w] = image(ins)?;
        Ok(vec![cells(h, w)?, c])
    }
}

impl Facts for ToImage {
    traits!("to image", "image", half, moves);

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [t, d] = tokens(ins)?;
        want("token count", t, cells(self.h, self.w)?)?;
        Ok(vec![d, self.h, self.w])
    }

    fn length(&self) -> Length {
        Length::Exactly(self.h.saturating_mul(self.w))
    }
}

impl Facts for PatchMerge {
    traits!("patch merge", "merge", half, moves);

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [h, w] = self.grid;
        let [t, d] = tokens(ins)?;
        want("token count", t, cells(h, w)?)?;
        if !h.is_multiple_of(2) || !w.is_multiple_of(2) {
            return Err("its grid must have even sides".into());
        }
        Ok(vec![t / 4, d.checked_mul(4).ok_or("too wide")?])
    }

    fn length(&self) -> Length {
        Length::Exactly(self.grid[0].saturating_mul(self.grid[1]))
    }

    fn links(&self, _ins: &[&[usize]], out: &[usize]) -> NodeLinks {
        let units = channels(out) / 4;
        let b_span = Span { offset: 0, width: 1, blocks: 4, stride: units };
        let link = Link { a: input(0, 1), b: output(1), units, a_span: Span::EACH, b_span };
        NodeLinks { links: vec![link], ..NodeLinks::default() }
    }
}
