//! `Concat`: learned tokens before a sequence, rolled grids, patch merging, channels beside each other.

use super::{Attrs, Constant, Lift, Lifter, Op, Value, View, Weight, fold, op};

impl Lifter<'_> {
    pub(super) fn concat(&mut self, a: &Attrs) -> Lift<Value> {
        let count = self.protos[self.at].input.len();
        let mut shapes = Vec::with_capacity(count);
        for i in 0..count {
            shapes.push(self.shape_of_input(i)?);
        }
        let rank = shapes.first().map_or(0, Vec::len);
        let axis = fold::axis(a.int("axis").unwrap_or(0), rank)?;
        let fits = |s: &Vec<usize>| s.len() == rank && (0..rank).all(|i| i == axis || s[i] == shapes[0][i]);
        if rank == 0 || !shapes.iter().all(fits) {
            return Err(format!("puts {shapes:?} beside each other"));
        }
        if (0..count).any(|i| matches!(self.input(i), Ok(Value::Const(_)))) {
            return self.with_tokens(axis).map(Value::View);
        }
        let mut parts = (0..count).map(|i| self.settled_input(i)).collect::<Lift<Vec<View>>>()?;
        if count == 1 {
            return parts.pop().map(Value::View).ok_or_else(|| "has no input".into());
        }
        if let [a, b] = parts.as_slice()
            && let Some(rolled) = a.rolled_with(b, axis)
        {
            return Ok(Value::View(rolled));
        }
        if axis + 1 == rank
            && let Some(merged) = self.merge_patches(&parts)?
        {
            return Ok(Value::View(merged));
        }
        self.channels_beside(&parts, axis).map(Value::View)
    }

    /// Learned tokens among those of a sequence.
    fn with_tokens(&mut self, axis: usize) -> Lift<View> {
        let mut tokens: Vec<Constant> = Vec::new();
        let mut views: Vec<View> = Vec::new();
        let (mut at, mut running) = (0, false);
        for i in 0..self.protos[self.at].input.len() {
            match self.input(i)?.clone() {
                Value::Const(_) if !tokens.is_empty() && !running => {
                    return Err("puts learned tokens in several places".into());
                }
                Value::Const(c) => {
                    if tokens.is_empty() {
                        at = views.iter().map(|v| v.shape()[axis]).sum();
                    }
                    tokens.push(c);
                    running = true;
                }
                _ => {
                    views.push(self.settled_input(i)?);
                    running = false;
                }
            }
        }
        let view = match views.as_slice() {
            [v] => v.clone(),
            // The sequence was cut to put tokens in between.
            [a, b] => {
                let whole = View::whole(a.base, a.dims.clone());
                let n = a.shape()[axis];
                let rest = whole.shape().get(axis).and_then(|t| t.checked_sub(n));
                let cut = whole.slice(axis, 0, 1, n).zip(rest.and_then(|r| whole.slice(axis, n, 1, r)));
                if cut.as_ref() != Some(&(a.clone(), b.clone())) {
                    return Err("puts learned tokens between different tensors".into());
                }
                whole
            }
            _ => return Err("puts constants beside several tensors".into()),
        };
        let v = self.tokens_of(&view)?;
        if v.dims.len() != 3 || axis != 1 || !v.is_whole() {
            return Err(format!("puts constants beside {:?} along axis {axis}", view.shape()));
        }
        let dim = v.dims[2];
        let count: usize = tokens.iter().map(|c| c.shape.get(1).copied().unwrap_or(0)).sum();
        let plain: Option<Vec<Constant>> = tokens
            .iter()
            .map(|c| {
                let k = c.shape.get(1).copied().filter(|_| c.shape.first() == Some(&1))?;
                c.reshaped(vec![1, k, dim]).map(|c| Constant { batched: false, ..c })
            })
            .collect();
        let plain = plain.ok_or("puts constants that differ from image to image beside tokens")?;
        let weight = match plain.as_slice() {
            [one] => Weight::of(one)?,
            several => {
                let values: Vec<f32> = several.iter().flat_map(Constant::to_f32).collect();
                Weight::made(vec![1, count, dim], values)?
            }
        };
        let id = self.emit(Op::PrependTokens(op::PrependTokens { count, dim, at }), &[v.base], vec![weight])?;
        Ok(self.whole(id))
    }

    /// Channels of several tensors beside each other.
    fn channels_beside(&mut self, parts: &[View], axis: usize) -> Lift<View> {
        let refused = || "puts tensors beside each other along something else than channels".to_owned();
        let mut bases = Vec::with_capacity(parts.len());
        let mut model: Option<View> = None;
        for p in parts {
            let p = self.selected(p)?;
            let p = if p.dims.len() == 4 && !p.is_whole() { self.tokens_of(&p)? } else { p };
            if p.axes.get(axis) != Some(&p.full(p.channel_axis())) || !p.rolls.is_empty() {
                return Err(refused());
            }
            // Everything but the channels must lie alike.
            let bare = |v: &View| {
                v.axes.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, a)| a.clone()).collect::<Vec<_>>()
            };
            if model.as_ref().is_some_and(|m| m.dims.len() != p.dims.len() || bare(m) != bare(&p)) {
                return Err(refused());
            }
            bases.push(p.base);
            model.get_or_insert(p);
        }
        let model = model.ok_or_else(refused)?;
        let id = self.emit(Op::Concat(op::Concat { inputs: bases.len() }), &bases, vec![])?;
        let mut v = View { base: id, dims: self.dims(id), ..model };
        let full = v.full(v.channel_axis());
        v.axes[axis] = full;
        Ok(v)
    }
}
