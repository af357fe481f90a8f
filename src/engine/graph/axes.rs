//! The words in which ops say how their axes hang together: sites, spans, links.

use super::role::ParamRole;
use serde::{Deserialize, Serialize};

/// Which tensor of a node an axis belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    /// The node's input number so-and-so.
    Input(usize),
    Output,
    Param(ParamRole),
}

/// One axis (without the batch axis) of one tensor of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AxisRef {
    pub site: Site,
    pub axis: usize,
}

/// Which indices of an axis a unit owns: `offset + b·stride + u·width .. + width` for `b` in `0..blocks`.
/// (The geometry of `prune::Member`.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Span {
    pub offset: usize,
    pub width: usize,
    pub blocks: usize,
    pub stride: usize,
}

impl Span {
    /// Unit `u` owns index `u`.
    pub const EACH: Span = Span { offset: 0, width: 1, blocks: 1, stride: 0 };

    /// Unit `u` owns `width` indices, the first unit's beginning at `offset`.
    pub fn run(offset: usize, width: usize) -> Span {
        Span { offset, width, blocks: 1, stride: 0 }
    }

    /// The indices that unit `u` owns, ascending.
    pub fn indices(self, u: usize) -> impl Iterator<Item = usize> {
        (0..self.blocks).flat_map(move |b| {
            let start = self.offset + b * self.stride + u * self.width;
            start..start + self.width
        })
    }
}

/// Unit `u` of `0..units` owns `a_span(u)` on axis `a` and `b_span(u)` on axis `b`; all of it stays or goes together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub a: AxisRef,
    pub b: AxisRef,
    pub units: usize,
    pub a_span: Span,
    pub b_span: Span,
}

/// An axis that must keep all its elements, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protected {
    pub axis: AxisRef,
    pub why: &'static str,
}

/// The axis facts of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeLinks {
    pub links: Vec<Link>,
    /// Axes that may lose any element without a partner losing one, because the op itself absorbs it: the sides of a
    /// [`Op::ChannelPad`] (losing input `c` turns map entries `c` to zero; losing output `j` drops map entry `j`).
    pub free: Vec<AxisRef>,
    /// Axes that must stay whole, with the reason. Axes in none of the three lists are protected without words.
    pub protected: Vec<Protected>,
}

impl NodeLinks {
    pub(super) fn each(&mut self, a: AxisRef, b: AxisRef, units: usize) {
        self.links.push(Link { a, b, units, a_span: Span::EACH, b_span: Span::EACH });
    }

    pub(super) fn protect(&mut self, axis: AxisRef, why: &'static str) {
        self.protected.push(Protected { axis, why });
    }
}
