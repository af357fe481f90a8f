//! Operators that only change how a value lies: nothing is computed, views are changed.

use super::{Attrs, Constant, Lift, Lifter, NodeProto, Op, Scores, Value, View, fold, op};

impl Lifter<'_> {
    pub(super) fn relayout(&mut self, op: &str, a: &Attrs, proto: &NodeProto) -> Lift<Value> {
        let value = self.input(0)?.clone();
        let from = self.value_shape(&value)?;
        let constants: Vec<Option<Constant>> = (0..proto.input.len())
            .map(|i| if i == 0 { Ok(None) } else { self.constant_input(i).map(|c| c.cloned()) })
            .collect::<Lift<_>>()?;
        let ins: Vec<Option<&Constant>> = constants.iter().map(Option::as_ref).collect();
        let change: Change = match op {
            "Reshape" => {
                let target = fold::ints_at(&ins, 1).ok_or("has no shape")?;
                Change::Reshape(fold::reshape_target(target, &from, a.flag("allowzero", false))?)
            }
            "Flatten" => {
                let at = fold::axis(a.int("axis").unwrap_or(1), from.len() + 1)?;
                let product = |s: &[usize]| s.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or("is too large");
                Change::Reshape(vec![product(&from[..at])?, product(&from[at..])?])
            }
            "Squeeze" => Change::Reshape(fold::squeezed(&from, fold::list(a, "axes", &ins, 1).as_deref())?),
            "Unsqueeze" => {
                Change::Reshape(fold::unsqueezed(&from, &fold::list(a, "axes", &ins, 1).ok_or("has no axes")?)?)
            }
            "Transpose" => Change::Transpose(fold::permutation(a, from.len())?),
            "Slice" => Change::Slice(
                fold::slice_args(a, &ins, from.len())?
                    .into_iter()
                    .map(|(axis, start, end, step)| {
                        let (start, step, len) = fold::slice_range(from[axis], start, end, step)?;
                        let step = usize::try_from(step).map_err(|_| "runs backwards".to_owned())?;
                        Ok((axis, start, step, len))
                    })
                    .collect::<Lift<_>>()?,
            ),
            _ => {
                let axis = fold::axis(a.int("axis").unwrap_or(0), from.len())?;
                let c = fold::at(&ins, 1).ok_or("has no indices")?;
                let index = c.as_ints().ok_or("has indices that are no integers")?;
                let dim = *from.get(axis).ok_or("gathers from a scalar")? as i64;
                let wrapped: Vec<i64> = index.iter().map(|&i| if i < 0 { i + dim } else { i }).collect();
                let first = *wrapped.first().ok_or("gathers nothing")?;
                let run = wrapped.iter().enumerate().all(|(k, &i)| i == first.saturating_add(k as i64));
                if wrapped.iter().any(|&i| i < 0 || i >= dim) {
                    return Err(format!("gathers elements outside the {dim} that there are"));
                }
                if run && c.shape.len() > 1 {
                    // A run of indices in the shape of a table: cut out, then laid out like the table.
                    let cut = self.changed(value, &Change::Slice(vec![(axis, first as usize, 1, index.len())]))?;
                    let shape = [&from[..axis], &c.shape, &from[axis + 1..]].concat();
                    return self.changed(cut, &Change::Reshape(shape));
                }
                if !run {
                    let (v, map) = (self.settled_input(0)?, wrapped.iter().map(|&i| Some(i as u32)).collect());
                    return if c.shape.len() == 1 {
                        self.gather_channels(&v, axis, map).map(Value::View)
                    } else {
                        Err("gathers by a table of indices".into())
                    };
                }
                let start = first as usize;
                match c.shape.is_empty() {
                    true => {
                        let gone = from.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, &d)| d).collect();
                        Change::Pick(axis, start, gone)
                    }
                    false => Change::Slice(vec![(axis, start, 1, index.len())]),
                }
            }
        };
        self.changed(value, &change)
    }

    /// Channels in another order, some perhaps left out or repeated.
    fn gather_channels(&mut self, v: &View, axis: usize, map: Vec<Option<u32>>) -> Lift<View> {
        let v = self.selected(v)?;
        let channel = v.channel_axis();
        if v.axes[axis] != v.full(channel) || !v.rolls.is_empty() {
            return Err("gathers elements that do not follow each other".into());
        }
        let op = Op::ChannelPad(op::ChannelPad { stride: 1, in_ch: v.dims[channel], map });
        let base = self.moved(op, v.base)?;
        let mut out = View { base, dims: self.dims(base), ..v };
        let full = out.full(channel);
        out.axes[axis] = full;
        Ok(out)
    }

    /// `value` laid out otherwise.
    pub(super) fn changed(&mut self, value: Value, change: &Change) -> Lift<Value> {
        let refused = |shape: Vec<usize>| format!("lays {shape:?} out in a way that is not followed");
        Ok(match value {
            Value::View(v) => match change.on(&v) {
                Some(v) => Value::View(v),
                None => {
                    // What selects or permutes may be followed again once it is a node of its own.
                    let v = self.selected(&v)?;
                    Value::View(change.on(&v).ok_or_else(|| refused(v.shape()))?)
                }
            },
            Value::Expr { x, e, axis } if !e.mixes() => {
                Value::Expr { x: change.on(&x).ok_or_else(|| refused(x.shape()))?, e, axis }
            }
            // A unit vector per head stays one while its axis does.
            Value::Expr { x, e, axis: Some(at) } => match change {
                Change::Transpose(perm) if !e.flat() => {
                    let x = change.on(&x).ok_or_else(|| refused(x.shape()))?;
                    Value::Expr { x, e, axis: perm.iter().position(|&p| p == at) }
                }
                Change::Reshape(shape) if at + 1 == x.axes.len() && !e.flat() && shape.last() == x.shape().last() => {
                    let x = change.on(&x).ok_or_else(|| refused(x.shape()))?;
                    Value::Expr { axis: Some(x.axes.len() - 1), x, e }
                }
                _ => {
                    let v = self.settled(Value::Expr { x, e, axis: Some(at) })?;
                    Value::View(change.on(&v).ok_or_else(|| refused(v.shape()))?)
                }
            },
            Value::Expr { x, .. } => return Err(refused(x.shape())),
            Value::Scores(s) => {
                let plain = View { base: s.q.base, dims: vec![], offset: vec![], axes: s.axes.clone(), rolls: vec![] };
                let followed = matches!(change, Change::Reshape(_) | Change::Transpose(_));
                let moved = if followed { change.on(&plain) } else { None };
                let axes = moved.ok_or_else(|| refused(plain.shape()))?.axes;
                Value::Scores(Box::new(Scores { axes, ..*s }))
            }
            Value::Const(c) => {
                // Only a constant that is the same for every image gets here.
                let shape = self.value_shape(&Value::Const(c.clone()))?;
                let Change::Reshape(to) = change else { return Err(refused(shape)) };
                let batch = to.first() == Some(&self.batch);
                let rest: Vec<usize> = std::iter::once(1).chain(to.get(1..).unwrap_or(&[]).iter().copied()).collect();
                Value::Const(c.reshaped(rest).filter(|_| batch).ok_or_else(|| refused(shape))?)
            }
            Value::Padded(v, _) => return Err(refused(v.shape())),
            Value::Grid(_) | Value::IsNan(_) | Value::Poison => return Err("lays out what is no tensor".into()),
        })
    }

    pub(super) fn split(&mut self, a: &Attrs) -> Lift<Vec<Value>> {
        let value = self.input(0)?.clone();
        let shape = self.value_shape(&value)?;
        let axis = fold::axis(a.int("axis").unwrap_or(0), shape.len())?;
        let given = self.constant_input(1)?.cloned();
        let dim = *shape.get(axis).ok_or("splits a scalar")?;
        let mut start = 0;
        let mut out = Vec::new();
        for len in fold::split_sizes(a, &[None, given.as_ref()], dim)? {
            out.push(self.changed(value.clone(), &Change::Slice(vec![(axis, start, 1, len)]))?);
            start += len;
        }
        Ok(out)
    }

    /// An expansion to the shape that a value already has.
    pub(super) fn expand(&mut self) -> Lift<Value> {
        let value = self.input(0)?.clone();
        // A mean or length of a row is one number a row however often it is repeated.
        let shape = match &value {
            Value::Expr { x, .. } => x.shape(),
            other => self.value_shape(other)?,
        };
        let to = self.constant_input(1)?.and_then(|c| c.as_ints()).ok_or("has no shape")?;
        let same = to.len() == shape.len() && to.iter().zip(&shape).all(|(&t, &s)| t == 1 || t == -1 || t == s as i64);
        if same { Ok(value) } else { Err(format!("repeats {shape:?} to {to:?}")) }
    }

    /// Zeros around an image, for the convolution that follows; zero channels before and after.
    pub(super) fn pad(&mut self, a: &Attrs) -> Lift<Value> {
        let v = self.settled_input(0)?;
        let rank = v.axes.len();
        let pads = a.ints("pads").map_or_else(|| self.ints_input(1), |p| Ok(Some(p)))?.ok_or("has no widths")?;
        let axes = match self.ints_input(3)? {
            Some(axes) => fold::axes(&axes, rank)?,
            None => (0..rank).collect(),
        };
        let rank_given = axes.len();
        let pads: Vec<usize> =
            pads.iter().map(|&p| usize::try_from(p).map_err(|_| "crops")).collect::<Result<_, _>>()?;
        if pads.len() != 2 * rank_given {
            return Err(format!("has {} widths for {rank_given} axes", pads.len()));
        }
        let mut wide = vec![[0usize; 2]; rank];
        for (k, &axis) in axes.iter().enumerate() {
            wide[axis] = [pads[k], pads[k + rank_given]];
        }
        if wide.iter().all(|w| *w == [0, 0]) {
            return Ok(Value::View(v));
        }
        let fill = self.constant_input(2)?.map_or(Some(f64::from(a.float("value").unwrap_or(0.0))), Constant::scalar);
        let mode = a.text("mode").unwrap_or("constant");
        if mode != "constant" || fill != Some(0.0) {
            return Err(format!("pads with something other than zeros (mode {mode})"));
        }
        let [[0, 0], [before, after], [top, bottom], [left, right]] = wide[..] else {
            return Err(format!("pads {:?} by {wide:?}", v.shape()));
        };
        let limit = 1 << 16;
        if [before, after, top, bottom, left, right].iter().any(|&p| p > limit) {
            return Err("pads by far too much".into());
        }
        let mut v = v;
        if before + after > 0 {
            let from = self.as_image(&v)?;
            // A strided shortcut has just been made a node of its own: one node does both.
            let channels = self.dims(from)[1];
            let map: Vec<Option<u32>> = std::iter::repeat_n(None, before)
                .chain((0..channels as u32).map(Some))
                .chain(std::iter::repeat_n(None, after))
                .collect();
            v = match self.nodes.last().map(|n| n.op.clone()) {
                Some(Op::ChannelPad(op::ChannelPad { stride, in_ch, map: inner }))
                    if from.index() + 1 == self.nodes.len() && self.unread(from) =>
                {
                    let map = map.iter().map(|m| m.and_then(|c| inner.get(c as usize).copied().flatten())).collect();
                    self.replace_last(Op::ChannelPad(op::ChannelPad { stride, in_ch, map }))?
                }
                _ => {
                    let id = self.moved(Op::ChannelPad(op::ChannelPad { stride: 1, in_ch: channels, map }), from)?;
                    self.whole(id)
                }
            };
        }
        Ok(match [top, left, bottom, right] {
            [0, 0, 0, 0] => Value::View(v),
            pads => Value::Padded(v, pads),
        })
    }
}

/// A change of layout.
pub(super) enum Change {
    Reshape(Vec<usize>),
    Transpose(Vec<usize>),
    /// Axis, start, step, length.
    Slice(Vec<(usize, usize, usize, usize)>),
    /// One index along an axis, which goes; the shape that is left.
    Pick(usize, usize, Vec<usize>),
}

impl Change {
    fn on(&self, v: &View) -> Option<View> {
        match self {
            Change::Reshape(shape) => v.reshape(shape),
            Change::Transpose(perm) => v.transpose(perm),
            Change::Slice(parts) => {
                parts.iter().try_fold(v.clone(), |v, &(axis, start, step, len)| v.slice(axis, start, step, len))
            }
            Change::Pick(axis, start, rest) => v.slice(*axis, *start, 1, 1)?.reshape(rest),
        }
    }
}
