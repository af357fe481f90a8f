//! Bringing a view into the place that a layer reads: tokens, an image or a vector as our nodes have them, emitting the
//! few nodes that move data (to tokens, to image, select token, channel map, flatten, patch merge).

use super::super::view::size;
use super::{Atom, Lift, Lifter, NodeId, Op, View, op};

impl Lifter<'_> {
    /// A view that has every element of its base: selections become nodes.
    pub(super) fn selected(&mut self, v: &View) -> Lift<View> {
        if v.covers() {
            return Ok(v.clone());
        }
        if !v.rolls.is_empty() {
            return Err("reads a part of a rolled grid".into());
        }
        let uses = |v: &View, axis: usize| v.axes.iter().flatten().any(|a| a.axis == axis);
        let mut v = v.clone();
        // One token of the sequence.
        if v.dims.len() == 3 && v.dims[1] > 1 && !uses(&v, 1) {
            let id = self.moved(Op::SelectToken(op::SelectToken { index: v.offset[1] }), v.base)?;
            let shift = |a: &Atom| Atom { axis: if a.axis == 2 { 1 } else { a.axis }, ..*a };
            let axes = v.axes.iter().map(|axis| axis.iter().map(shift).collect()).collect();
            v = View { offset: vec![0, v.offset[2]], ..self.arranged(id, axes) };
        }
        // Every stride-th row and column: He et al.'s shortcut.
        let mut stride = 1;
        if v.dims.len() == 4 {
            let step = |axis: usize| {
                let mut found = v.axes.iter().flatten().filter(|a| a.axis == axis);
                let first = found.next().map_or((1, 1), |a| (a.stride, a.len));
                (found.next().is_none() && v.offset[axis] == 0).then_some(first)
            };
            if let (Some((sy, ny)), Some((sx, nx))) = (step(2), step(3))
                && (sy, sx) != (1, 1)
            {
                let fits = |s: usize, n: usize, dim: usize| n == dim.div_ceil(s);
                let s = sy.max(sx);
                let even = |s1: usize, n: usize, dim: usize| s1 == s || (n == 1 && fits(s, n, dim));
                if [(sy, ny, v.dims[2]), (sx, nx, v.dims[3])]
                    .iter()
                    .any(|&(s1, n, d)| !even(s1, n, d) || !fits(s, n, d))
                {
                    return Err("takes rows and columns in an uneven way".into());
                }
                stride = s;
            }
        }
        let v = self.channels(&v, stride)?;
        if v.covers() { Ok(v) } else { Err(format!("takes a part of a tensor that is not read ({:?})", v.shape())) }
    }

    /// Makes a node of a selection or permutation of channels, if `v` has one, together with a step over the image.
    fn channels(&mut self, v: &View, stride: usize) -> Lift<View> {
        let axis = v.channel_axis();
        let atoms: Vec<Atom> = v.axes.iter().flatten().filter(|a| a.axis == axis).copied().collect();
        let all = v.dims[axis];
        let whole = v.offset[axis] == 0 && (atoms == v.full(axis) || atoms.is_empty() && all == 1);
        let count = size(&atoms);
        if stride == 1 && (whole || (count == all && v.offset[axis] == 0 && in_order(&atoms))) {
            return Ok(v.clone());
        }
        if count > all.saturating_mul(4) || count > 1 << 20 {
            return Err("repeats channels".into());
        }
        let mut map = vec![v.offset[axis]];
        for a in &atoms {
            map = map.iter().flat_map(|&m| (0..a.len).map(move |i| m + i * a.stride)).collect();
        }
        let map = map.iter().map(|&m| u32::try_from(m).ok().filter(|_| m < all).map(Some)).collect::<Option<Vec<_>>>();
        let map = map.ok_or("reads channels that are not there")?;
        let id = self.moved(Op::ChannelPad(op::ChannelPad { stride, in_ch: all, map }), v.base)?;
        // Channels now lie in the order in which they are read.
        let mut left = count;
        let mut place = |a: &Atom| {
            if a.axis == axis {
                left /= a.len;
                return Atom { axis, stride: left, len: a.len };
            }
            let step = if v.dims.len() == 4 && (a.axis == 2 || a.axis == 3) { stride } else { 1 };
            Atom { stride: (a.stride / step).max(1), ..*a }
        };
        let axes: Vec<Vec<Atom>> = v.axes.iter().map(|x| x.iter().map(&mut place).collect()).collect();
        let mut offset = v.offset.clone();
        offset[axis] = 0;
        let view = View { offset, rolls: v.rolls.clone(), ..self.arranged(id, axes) };
        view.merged().ok_or_else(|| "reads channels in an odd order".into())
    }

    /// The same elements as tokens `[n, h·w, c]` instead of an image.
    pub(super) fn tokens_of(&mut self, v: &View) -> Lift<View> {
        let v = self.selected(v)?;
        let &[_, _, _, w] = v.dims.as_slice() else { return Ok(v) };
        let id = self.moved(Op::ToTokens, v.base)?;
        let place = |a: &Atom| match a.axis {
            1 => Atom { axis: 2, ..*a },
            2 => Atom { axis: 1, stride: a.stride * w, len: a.len },
            3 => Atom { axis: 1, ..*a },
            _ => *a,
        };
        let axes = v.axes.iter().map(|x| x.iter().map(place).collect()).collect();
        self.arranged(id, axes).merged().ok_or_else(|| "has tokens in an odd order".into())
    }

    /// The same elements as an image of `h x w` instead of tokens.
    fn image_of(&mut self, v: &View, h: usize, w: usize) -> Lift<View> {
        let v = self.selected(v)?;
        if v.dims.len() != 3 || h.checked_mul(w) != Some(v.dims[1]) || !v.rolls.is_empty() {
            return Err(format!("reads {:?} as an image", v.shape()));
        }
        let mut axes = Vec::with_capacity(v.axes.len());
        for axis in &v.axes {
            let mut out = Vec::new();
            for a in axis {
                let end = a.stride.saturating_mul(a.len);
                match a.axis {
                    2 => out.push(Atom { axis: 1, ..*a }),
                    1 if a.stride.is_multiple_of(w) => out.push(Atom { axis: 2, stride: a.stride / w, len: a.len }),
                    1 if end <= w => out.push(Atom { axis: 3, ..*a }),
                    1 if end.is_multiple_of(w) && w.is_multiple_of(a.stride) => {
                        out.push(Atom { axis: 2, stride: 1, len: end / w });
                        out.push(Atom { axis: 3, stride: a.stride, len: w / a.stride });
                    }
                    1 => return Err(format!("reads {:?} as an image", v.shape())),
                    _ => out.push(*a),
                }
            }
            axes.push(out);
        }
        let id = self.moved(Op::ToImage(op::ToImage { h, w }), v.base)?;
        Ok(self.arranged(id, axes))
    }

    /// An image `[n, c, h, w]`.
    pub(super) fn as_image(&mut self, v: &View) -> Lift<NodeId> {
        let mut v = self.selected(v)?;
        if let (3, &[_, _, h, w]) = (v.dims.len(), v.shape().as_slice()) {
            v = self.image_of(&v, h, w)?;
        }
        let v = self.channels(&v, 1)?;
        if v.dims.len() == 4 && v.is_whole() {
            return Ok(v.base);
        }
        Err(format!("reads {:?} as an image, which it is not", v.shape()))
    }

    /// A view whose last axis is all channels of its base, which are tokens or a vector. An image stays one with
    /// `keep_image`.
    pub(super) fn rows(&mut self, v: &View, keep_image: bool) -> Lift<View> {
        let mut v = self.selected(v)?;
        let last = v.axes.last().cloned().unwrap_or_default();
        if v.dims.len() == 4 {
            let flat: Vec<Atom> = (1..4).flat_map(|axis| v.full(axis)).collect();
            let channels_only = last == v.full(1);
            // All of `[c, h, w]` in one row.
            if !channels_only && last == flat || (v.dims[2..] == [1, 1] && channels_only && v.axes.len() == 2) {
                let id = self.moved(Op::Flatten, v.base)?;
                let row = |x: Vec<Atom>| if x == last { vec![Atom { axis: 1, stride: 1, len: size(&x) }] } else { x };
                v = self.arranged(id, v.axes.into_iter().map(row).collect());
            } else if !(keep_image && channels_only) {
                v = self.tokens_of(&v)?;
            }
        }
        if let Some(merged) = self.merged_patches(&v)? {
            return Ok(merged);
        }
        let v = self.channels(&v, 1)?;
        match v.axes.last() {
            Some(l) if *l == v.full(v.channel_axis()) => Ok(v),
            _ => Err(format!("needs all channels as the last axis of {:?}", v.shape())),
        }
    }

    /// Patch merging written as a reshape: the last axis walks over the column, then the row in a 2x2 cell, then
    /// channels.
    pub(super) fn merged_patches(&mut self, v: &View) -> Lift<Option<View>> {
        let Some(last) = v.axes.last().filter(|l| l.len() == 3 && v.dims.len() == 3) else { return Ok(None) };
        let c = v.dims[2];
        let [x, y, channel] = [last[0], last[1], last[2]];
        let w = y.stride;
        let cell = x == Atom { axis: 1, stride: 1, len: 2 } && (y.axis, y.len) == (1, 2);
        if !cell || channel != (Atom { axis: 2, stride: 1, len: c }) || w == 0 || !v.dims[1].is_multiple_of(w) {
            return Ok(None);
        }
        let id = self.moved(Op::PatchMerge(op::PatchMerge { grid: [v.dims[1] / w, w] }), v.base)?;
        // Remaining atoms walk rows by 2w and columns by 2.
        let half = |a: &Atom| match a.axis {
            1 if a.stride.is_multiple_of(2 * w) => {
                Some(Atom { axis: 1, stride: a.stride / (2 * w) * (w / 2), len: a.len })
            }
            1 if a.stride.is_multiple_of(2) && a.stride * a.len <= w => {
                Some(Atom { axis: 1, stride: a.stride / 2, len: a.len })
            }
            1 => None,
            _ => Some(*a),
        };
        let mut axes = Vec::new();
        for axis in &v.axes[..v.axes.len() - 1] {
            let placed: Option<Vec<Atom>> = axis.iter().map(half).collect();
            axes.push(placed.ok_or("merges patches in an odd order")?);
        }
        axes.push(vec![Atom { axis: 2, stride: 1, len: self.dims(id)[2] }]);
        self.arranged(id, axes).merged().map(Some).ok_or_else(|| "merges patches in an odd order".into())
    }

    /// Four views of 2x2 cells beside each other, as Swin's reference code writes patch merging.
    pub(super) fn merge_patches(&mut self, parts: &[View]) -> Lift<Option<View>> {
        let [a, ..] = parts else { return Ok(None) };
        let shape = a.shape();
        let (3, 4, &[_, h2, w2, _]) = (a.dims.len(), parts.len(), shape.as_slice()) else { return Ok(None) };
        let w = 2 * w2;
        let fits = |(i, p): (usize, &View)| {
            // (row, column) of the cell: (0,0), (1,0), (0,1), (1,1).
            let offset = vec![0, (i % 2) * w + i / 2, 0];
            let walk = |stride, len| if len > 1 { vec![Atom { axis: 1, stride, len }] } else { vec![] };
            p.base == a.base
                && p.rolls.is_empty()
                && p.offset == offset
                && p.axes[0] == p.full(0)
                && p.axes[1] == walk(2 * w, h2)
                && p.axes[2] == walk(2, w2)
                && p.axes[3] == p.full(2)
        };
        if parts.iter().any(|p| p.axes.len() != 4) || !parts.iter().enumerate().all(fits) || a.dims[1] != 4 * h2 * w2 {
            return Ok(None);
        }
        let id = self.moved(Op::PatchMerge(op::PatchMerge { grid: [2 * h2, w] }), a.base)?;
        let whole = self.whole(id);
        let channels = 4 * shape[3];
        Ok(Some(whole.reshape(&[shape[0], h2, w2, channels]).ok_or("merges patches in an odd order")?))
    }

    /// Two views on the same footing: the same elements at the same places of equal shapes.
    pub(super) fn joined(&mut self, a: &View, b: &View) -> Lift<(View, View)> {
        let same = |a: &View, b: &View| a.dims == b.dims && a.axes == b.axes && a.rolls == b.rolls;
        let (mut a, mut b) = (self.selected(a)?, self.selected(b)?);
        if same(&a, &b) {
            return Ok((a, b));
        }
        if a.shape() == b.shape() {
            // An image and tokens meet as what their shape says.
            match (a.dims.len(), b.dims.len(), a.shape().as_slice()) {
                (4, 3, &[_, _, h, w]) if a.is_whole() => b = self.image_of(&b, h, w)?,
                (3, 4, &[_, _, h, w]) if b.is_whole() => a = self.image_of(&a, h, w)?,
                (4, 3, _) => a = self.tokens_of(&a)?,
                (3, 4, _) => b = self.tokens_of(&b)?,
                _ => {}
            }
            if same(&a, &b) {
                return Ok((a, b));
            }
            (a, b) = (self.channels(&a, 1)?, self.channels(&b, 1)?);
            if same(&a, &b) {
                return Ok((a, b));
            }
        }
        Err(format!("joins {:?} and {:?}, which lie differently", a.shape(), b.shape()))
    }
}

/// Whether atoms of one axis walk it from its beginning to its end.
fn in_order(atoms: &[Atom]) -> bool {
    let mut width = 1usize;
    atoms.iter().rev().all(|a| {
        let fits = a.stride == width;
        width = width.saturating_mul(a.len);
        fits
    })
}
