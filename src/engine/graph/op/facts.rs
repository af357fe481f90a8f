//! What every op says of itself without a tensor, and what the families share to say it.

use crate::graph::axes::{AxisRef, NodeLinks, Site};
use crate::graph::macs::Macs;
use crate::graph::role::ParamRole;

/// Largest number of elements one node's output may have for one image: 1 GiB of `f32`, far beyond any network here. A
/// damaged file must fail here and not in an allocator.
pub const MAX_ELEMENTS: usize = 1 << 28;

/// What an op is called, and yes or no for whoever walks a graph. Every op says all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// The op in messages: `conv2d`, `layer norm`.
    pub name: &'static str,
    /// One word to make a node's name of, where a file gives none: `conv`, `bn`.
    pub word: &'static str,
    /// What it is in lists, where its geometry does not matter.
    pub kind: &'static str,
    /// An engineer would name it as a layer of its own.
    pub layer: bool,
    /// Token `t` of its output depends on token `t` of its inputs alone.
    pub per_token: bool,
    /// Its output is of its first input's kind (image, tokens, vector), and channel `c` of it is made of channel `c`.
    pub per_channel: bool,
    /// It may run in half precision: a move, a maximum or elementwise, never a sum over many values.
    pub half: bool,
    /// It only moves values about.
    pub moves: bool,
}

impl Traits {
    /// Called so everywhere, and nothing else is true of it.
    pub(super) fn of(name: &'static str, word: &'static str) -> Traits {
        Traits { name, word, kind: name, layer: false, per_token: false, per_channel: false, half: false, moves: false }
    }
}

/// An op's traits: its name and word, and what is true of it besides.
macro_rules! traits {
    (@) => { true };
    (@ $value:literal) => { $value };
    ($name:literal, $word:literal $(, $what:ident $(: $value:literal)?)*) => {
        fn traits(&self) -> $crate::graph::op::Traits {
            $crate::graph::op::Traits {
                $($what: $crate::graph::op::facts::traits!(@ $($value)?),)*
                ..$crate::graph::op::Traits::of($name, $word)
            }
        }
    };
}
pub(super) use traits;

/// How many tokens an op asks its first input for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    Any,
    AtLeast(usize),
    /// It fixes the number: learned positions, windows of a grid.
    Exactly(usize),
}

/// Everything that is true of an op without tensors. Shapes leave out the batch axis, which is always first.
pub trait Facts {
    fn traits(&self) -> Traits;

    /// A few words for people, with what matters of its geometry: `conv 3x3/2`, `attention 8h`; `None` where nothing does.
    fn describe(&self) -> Option<String> {
        None
    }

    /// How many inputs it takes.
    fn arity(&self) -> usize {
        1
    }

    /// The output's shape, or why these inputs do not fit: that of the first input, whose channels are those of axis 0, where
    /// an op says nothing else. `ins` has [`Facts::arity`] shapes.
    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let first = ins.first().copied().unwrap_or(&[]);
        if let Some(n) = self.axis_len(0) {
            want("channel count", channels(first), n)?;
        }
        Ok(first.to_vec())
    }

    /// How many tokens its first input must have; [`Facts::shape`] refuses others.
    fn length(&self) -> Length {
        Length::Any
    }

    /// Token `t` of its output depends on no later token of its inputs, so that tokens may come one after the other.
    fn causal(&self) -> bool {
        self.traits().per_token
    }

    /// How many tokens may come one after the other so that nothing changes for those that came; `None`: any number.
    fn most_in_turn(&self) -> Option<usize> {
        None
    }

    /// Which axes lose their elements together: channel by channel from every input to the output and to the first axis of
    /// every parameter, where an op says nothing else. `ins` and `out` are shapes that fit.
    fn links(&self, ins: &[&[usize]], out: &[usize]) -> NodeLinks {
        let mut l = NodeLinks::default();
        let (to, width) = (output(channel_axis(out)), channels(out));
        (0..ins.len()).for_each(|i| l.each(ends(ins, i, out).0, to, width));
        self.params().iter().for_each(|(role, _)| l.each(to, param(*role, 0), width));
        l
    }

    /// The parameters it needs with their shapes, in PyTorch's layout and order.
    fn params(&self) -> Vec<(ParamRole, Vec<usize>)> {
        Vec::new()
    }

    /// Multiply-accumulates for one image, split by convention.
    fn macs(&self, _ins: &[&[usize]], _out: &[usize]) -> Macs {
        Macs::default()
    }

    /// Input and output width of a layer with a weight matrix, whose precision and zeros can be chosen.
    fn widths(&self) -> Option<(usize, usize)> {
        None
    }

    /// Length of an axis that pruning may shorten: a parameter's axis, or the one that [`Facts::narrow`] explains.
    fn axis_len(&self, _axis: usize) -> Option<usize> {
        None
    }

    /// Shortens that axis to the indices that `mask` keeps. Nothing to do for ops that carry whatever width arrives.
    fn narrow(&mut self, _axis: usize, _mask: &[bool]) {}
}

/// The methods of an op that can be shortened on one axis only, whose length is one of its fields.
macro_rules! width {
    ($axis:literal: $field:ident) => {
        fn axis_len(&self, axis: usize) -> Option<usize> {
            (axis == $axis).then_some(self.$field)
        }

        fn narrow(&mut self, _axis: usize, mask: &[bool]) {
            self.$field = $crate::graph::op::facts::kept(mask);
        }
    };
}
pub(super) use width;

/// How many indices a mask keeps.
pub(super) fn kept(mask: &[bool]) -> usize {
    mask.iter().filter(|&&k| k).count()
}

/// The axis that carries channels or width in a shape without the batch axis: the first of an image `[c, h, w]`, the
/// last of tokens `[t, d]` and vectors `[d]`.
pub fn channel_axis(shape: &[usize]) -> usize {
    if shape.len() == 3 { 0 } else { shape.len().saturating_sub(1) }
}

/// The channels of `shape`.
pub(super) fn channels(shape: &[usize]) -> usize {
    shape.get(channel_axis(shape)).copied().unwrap_or(0)
}

pub(super) fn image(ins: &[&[usize]]) -> Result<[usize; 3], String> {
    match ins {
        &[&[c, h, w]] => Ok([c, h, w]),
        _ => Err("it needs `[channels, height, width]`".into()),
    }
}

pub(super) fn tokens(ins: &[&[usize]]) -> Result<[usize; 2], String> {
    match ins {
        &[&[t, d]] => Ok([t, d]),
        _ => Err("it needs `[tokens, width]`".into()),
    }
}

pub(super) fn want(what: &str, found: usize, expected: usize) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what} is {found}, expected {expected}")) }
}

/// Output rows and columns of a window that slides over `[h, w]`.
pub(super) fn window(
    [h, w]: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 4],
) -> Result<[usize; 2], String> {
    let side = |size: usize, i: usize| {
        if kernel[i] == 0 || stride[i] == 0 {
            return Err("kernel and stride must be at least 1".to_owned());
        }
        let padded = padding[i].checked_add(padding[i + 2]).and_then(|p| p.checked_add(size));
        let padded = padded.ok_or("padding is too large")?;
        let span = padded.checked_sub(kernel[i]).ok_or("the kernel is larger than the image")?;
        Ok(span / stride[i] + 1)
    };
    Ok([side(h, 0)?, side(w, 1)?])
}

/// The product of dimensions, at most `u64::MAX`.
pub(in crate::graph) fn product(dims: &[usize]) -> u64 {
    dims.iter().fold(1u64, |n, &d| n.saturating_mul(d as u64))
}

/// Axis `axis` of input `index`.
pub(super) fn input(index: usize, axis: usize) -> AxisRef {
    AxisRef { site: Site::Input(index), axis }
}

pub(in crate::graph) fn output(axis: usize) -> AxisRef {
    AxisRef { site: Site::Output, axis }
}

pub(super) fn param(role: ParamRole, axis: usize) -> AxisRef {
    AxisRef { site: Site::Param(role), axis }
}

/// The channels of input `i` and of the output, and how many the output has.
pub(super) fn ends(ins: &[&[usize]], i: usize, out: &[usize]) -> (AxisRef, AxisRef, usize) {
    let from = input(i, ins.get(i).map_or(0, |s| channel_axis(s)));
    (from, output(channel_axis(out)), channels(out))
}
