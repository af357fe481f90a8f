//! How an ONNX value lies in the output of one of our nodes: which element of that output every element of the value is.
//!
//! Exporters write attention, windows and patch merging as long chains of `Reshape`, `Transpose`, `Slice` and `Split`.
//! None of these computes anything, so none becomes a node: each only changes a [`View`], and the layer that reads the
//! value sees from the view what is meant (heads, windows, tokens of an image), whatever chain led there.
//!
//! A view's axes are products of atoms. An atom walks one axis of the node's output by `stride`, `len` times. Axis 0 of
//! the output is the batch; in a model exported for one image it has length 1 and appears in no view.

use crate::graph::NodeId;

/// Steps along one axis of the base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Atom {
    pub axis: usize,
    pub stride: usize,
    pub len: usize,
}

/// A coordinate of the base that is rolled: element `i` of the value is element `(i + shift) mod len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Roll {
    pub axis: usize,
    pub stride: usize,
    pub len: usize,
    pub shift: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct View {
    pub base: NodeId,
    /// The base's dimensions with the batch first.
    pub dims: Vec<usize>,
    /// Where the view starts along each axis of the base.
    pub offset: Vec<usize>,
    pub axes: Vec<Vec<Atom>>,
    pub rolls: Vec<Roll>,
}

/// Puts neighbouring atoms that walk on where the other ends into one.
fn merge(atoms: &[Atom]) -> Vec<Atom> {
    let mut out: Vec<Atom> = Vec::with_capacity(atoms.len());
    for &a in atoms.iter().filter(|a| a.len != 1) {
        match out.last_mut() {
            Some(l) if l.axis == a.axis && l.stride == a.stride.saturating_mul(a.len) => {
                *l = Atom { axis: a.axis, stride: a.stride, len: l.len.saturating_mul(a.len) };
            }
            _ => out.push(a),
        }
    }
    out
}

pub(super) fn size(atoms: &[Atom]) -> usize {
    atoms.iter().fold(1usize, |n, a| n.saturating_mul(a.len))
}

impl View {
    /// The whole output of `base`, whose dimensions with the batch are `dims`.
    pub fn whole(base: NodeId, dims: Vec<usize>) -> View {
        let axes = dims.iter().enumerate().map(|(axis, &len)| merge(&[Atom { axis, stride: 1, len }])).collect();
        View { base, offset: vec![0; dims.len()], dims, axes, rolls: Vec::new() }
    }

    pub fn shape(&self) -> Vec<usize> {
        self.axes.iter().map(|a| size(a)).collect()
    }

    /// All atoms of axis `axis` of the base, as one walk over the whole of it.
    pub fn full(&self, axis: usize) -> Vec<Atom> {
        merge(&[Atom { axis, stride: 1, len: self.dims[axis] }])
    }

    /// The base's channel axis: 1 for images `[n, c, h, w]`, else the last.
    pub fn channel_axis(&self) -> usize {
        if self.dims.len() == 4 { 1 } else { self.dims.len() - 1 }
    }

    /// Whether the view is the base's output as it is.
    pub fn is_whole(&self) -> bool {
        *self == View::whole(self.base, self.dims.clone())
    }

    /// Whether every element of the base is in the view exactly once, however ordered.
    pub fn covers(&self) -> bool {
        let all: usize = self.dims.iter().fold(1, |n, &d| n.saturating_mul(d));
        let here = self.axes.iter().fold(1usize, |n, a| n.saturating_mul(size(a)));
        // Atoms never walk an element twice: they come from splitting whole axes.
        all == here && self.offset.iter().all(|&o| o == 0)
    }

    /// The same elements seen through another base with the same dimensions but for the channel axis, which both views
    /// must have whole as their last axis.
    pub fn onto(&self, base: NodeId, dims: Vec<usize>) -> View {
        let mut out = View { base, dims, ..self.clone() };
        let last = out.dims.len() - 1;
        if out.dims[last] != self.dims[self.channel_axis()] {
            out.axes.pop();
            out.axes.push(out.full(last));
        }
        out
    }

    /// The same axes, with atoms of the base in normal form.
    fn normal(mut self) -> View {
        for axis in &mut self.axes {
            *axis = merge(axis);
        }
        self
    }

    pub fn reshape(&self, shape: &[usize]) -> Option<View> {
        let axes = regroup(self.axes.concat(), shape)?;
        Some(View { axes, ..self.clone() }.normal())
    }

    /// The same axes, of as few atoms as they can be.
    pub fn merged(&self) -> Option<View> {
        self.reshape(&self.shape())
    }

    pub fn transpose(&self, perm: &[usize]) -> Option<View> {
        let mut seen = vec![false; self.axes.len()];
        if perm.len() != self.axes.len() {
            return None;
        }
        for &p in perm {
            if std::mem::replace(seen.get_mut(p)?, true) {
                return None;
            }
        }
        Some(View { axes: perm.iter().map(|&p| self.axes[p].clone()).collect(), ..self.clone() })
    }

    /// `start, start + step, …` (`len` of them) along `axis`.
    pub fn slice(&self, axis: usize, start: usize, step: usize, len: usize) -> Option<View> {
        let atoms = self.axes.get(axis)?;
        if start == 0 && step == 1 && len == size(atoms) {
            return Some(self.clone());
        }
        if len == 1 {
            let mut v = self.clone();
            let mut left = start;
            for a in atoms.iter().rev() {
                // One image of the batch is no layer's business.
                if a.axis == 0 {
                    return None;
                }
                v.offset[a.axis] = v.offset[a.axis].checked_add((left % a.len).checked_mul(a.stride)?)?;
                left /= a.len;
            }
            v.axes[axis] = Vec::new();
            return (left == 0).then_some(v);
        }
        let (outer, inner) = atoms.split_first()?;
        let width = size(inner);
        if outer.axis == 0 || !start.is_multiple_of(width) || !len.is_multiple_of(width) || (step != 1 && width != 1) {
            return None;
        }
        let (start, len) = (start / width, len / width);
        let last = len.checked_sub(1)?.checked_mul(step)?.checked_add(start)?;
        if last >= outer.len {
            return None;
        }
        let mut v = self.clone();
        v.offset[outer.axis] = v.offset[outer.axis].checked_add(start.checked_mul(outer.stride)?)?;
        v.axes[axis] = std::iter::once(Atom { axis: outer.axis, stride: outer.stride.checked_mul(step)?, len })
            .chain(inner.iter().copied())
            .collect();
        Some(v.normal())
    }

    /// What concatenating `self` and `next` along `axis` is, if it is a roll of one coordinate: `self` is its end,
    /// `next` its beginning.
    pub fn rolled_with(&self, next: &View, axis: usize) -> Option<View> {
        if self.base != next.base || self.dims != next.dims || self.axes.len() != next.axes.len() {
            return None;
        }
        let ([a], [b]) = (self.axes.get(axis).map(|v| [v])?, next.axes.get(axis).map(|v| [v])?);
        // A piece of length 1 has no atom left; its width is then told by the other.
        let (ka, kb) = (size(a), size(b));
        let atom = a.first().or(b.first())?;
        if a.len() > 1 || b.len() > 1 || atom.axis == 0 {
            return None;
        }
        let len = ka + kb;
        let step = Atom { len: 1, ..*atom };
        let same = self.rolls == next.rolls
            && (0..self.axes.len()).all(|i| i == axis || self.axes[i] == next.axes[i])
            && a.first().is_none_or(|x| Atom { len: 1, ..*x } == step)
            && b.first().is_none_or(|x| Atom { len: 1, ..*x } == step);
        // `next` starts where the whole does; `self` starts `kb` further.
        let mut begin = next.offset.clone();
        begin[atom.axis] = begin[atom.axis].checked_add(kb.checked_mul(atom.stride)?)?;
        if !same || begin != self.offset || !next.offset[atom.axis].is_multiple_of(atom.stride.checked_mul(len)?) {
            return None;
        }
        let mut v = View { offset: next.offset.clone(), ..self.clone() };
        v.axes[axis] = vec![Atom { axis: atom.axis, stride: atom.stride, len }];
        let at = v.rolls.iter().position(|r| (r.axis, r.stride, r.len) == (atom.axis, atom.stride, len));
        let before = at.map_or(0, |i| v.rolls.remove(i).shift);
        let shift = (before + kb) % len;
        if shift != 0 {
            v.rolls.push(Roll { axis: atom.axis, stride: atom.stride, len, shift });
            v.rolls.sort_by_key(|r| (r.axis, r.stride));
        }
        Some(v.normal())
    }
}

/// Distributes `atoms` over axes of the given lengths, splitting them where a boundary falls inside one.
pub(super) fn regroup(atoms: Vec<Atom>, shape: &[usize]) -> Option<Vec<Vec<Atom>>> {
    let mut rest: std::collections::VecDeque<Atom> = atoms.into();
    let mut axes = Vec::with_capacity(shape.len());
    for &d in shape {
        let mut left = d;
        let mut axis = Vec::new();
        while left > 1 {
            let a = rest.pop_front()?;
            if a.len == 0 {
                return None;
            } else if left.is_multiple_of(a.len) {
                left /= a.len;
                axis.push(a);
            } else if a.len.is_multiple_of(left) {
                let inner = a.len / left;
                axis.push(Atom { axis: a.axis, stride: a.stride.checked_mul(inner)?, len: left });
                rest.push_front(Atom { len: inner, ..a });
                left = 1;
            } else {
                return None;
            }
        }
        if left == 0 {
            return None;
        }
        axes.push(axis);
    }
    rest.iter().all(|a| a.len == 1).then_some(axes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> View {
        View::whole(NodeId(7), vec![1_000_003, 16, 12])
    }

    #[test]
    fn heads_of_a_fused_projection_are_seen_through_reshape_transpose_and_gather() {
        let v = tokens().reshape(&[1_000_003, 16, 3, 2, 2]).unwrap().transpose(&[2, 0, 3, 1, 4]).unwrap();
        let k = v.slice(0, 1, 1, 1).unwrap().reshape(&[1_000_003, 2, 16, 2]).unwrap();
        assert_eq!(k.offset, [0, 0, 4]);
        assert_eq!(k.axes[1], [Atom { axis: 2, stride: 2, len: 2 }]);
        assert_eq!(k.axes[3], [Atom { axis: 2, stride: 1, len: 2 }]);
        assert_eq!(k.shape(), [1_000_003, 2, 16, 2]);
    }

    #[test]
    fn windows_and_their_reverse_are_the_same_tokens() {
        let n = 1_000_003;
        let v = tokens().reshape(&[n, 4, 4, 12]).unwrap();
        let w = v.reshape(&[n, 2, 2, 2, 2, 12]).unwrap().transpose(&[0, 1, 3, 2, 4, 5]).unwrap();
        let w = w.reshape(&[n * 4, 4, 12]).unwrap();
        let at = |stride, len| Atom { axis: 1, stride, len };
        assert_eq!(w.axes[0], [Atom { axis: 0, stride: 1, len: n }, at(8, 2), at(2, 2)]);
        assert_eq!(w.axes[1], [at(4, 2), at(1, 2)]);
        let back = w.reshape(&[n, 2, 2, 2, 2, 12]).unwrap().transpose(&[0, 1, 3, 2, 4, 5]).unwrap();
        assert!(back.reshape(&[n, 16, 12]).unwrap().is_whole());
        assert!(w.covers() && !w.is_whole());
    }

    #[test]
    fn a_roll_and_its_inverse_cancel() {
        let v = View::whole(NodeId(1), vec![1, 16, 3]).reshape(&[1, 4, 4, 3]).unwrap();
        let roll = |v: &View, axis: usize, k: usize| {
            v.slice(axis, k, 1, 4 - k).unwrap().rolled_with(&v.slice(axis, 0, 1, k).unwrap(), axis)
        };
        let r = roll(&v, 1, 1).unwrap();
        assert_eq!(r.rolls, [Roll { axis: 1, stride: 4, len: 4, shift: 1 }]);
        let rr = roll(&r, 2, 1).unwrap();
        assert_eq!(rr.rolls.len(), 2);
        assert_eq!(rr.shape(), [1, 4, 4, 3]);
        let back = roll(&roll(&rr, 1, 3).unwrap(), 2, 3).unwrap();
        assert_eq!(back, v);
        // The beginning before the end is no roll but the same again.
        assert_eq!(v.slice(1, 0, 1, 2).unwrap().rolled_with(&v.slice(1, 0, 1, 2).unwrap(), 1), None);
    }

    #[test]
    fn what_cannot_be_seen_as_a_view_is_refused() {
        let v = tokens();
        assert_eq!(v.reshape(&[1_000_003, 12, 15]), None);
        assert_eq!(v.reshape(&[1_000_003, 5, 12]), None);
        assert_eq!(v.slice(0, 0, 1, 1), None);
        assert_eq!(v.slice(1, 10, 1, 7), None);
        assert_eq!(v.transpose(&[0, 0, 1]), None);
    }
}
