//! Elementwise operators and means: they grow formulas, which become nodes when something else reads them.

use super::super::expr::Known;
use super::{
    Atom, Attrs, Constant, E, HashMap, Lift, Lifter, NodeId, NodeProto, Op, Param, Rc, Value, View, Weight, fold, op,
};
use crate::graph::{Activation, ParamRef, ParamRole};

/// Parts of a formula that are nodes already.
type Done = HashMap<*const E, View>;

impl Lifter<'_> {
    /// `value` as a view: a formula becomes nodes.
    pub(super) fn settled(&mut self, value: Value) -> Lift<View> {
        match value {
            Value::View(v) => Ok(v),
            Value::Expr { x, e, axis } => self.emit_part(&x, &e, axis, &mut HashMap::new()),
            Value::Const(_) => Err("needs something computed from the image where it has a constant".into()),
            Value::Scores(_) => Err("reads attention scores outside attention".into()),
            Value::Padded(..) => Err("reads a padded image, which only a convolution may".into()),
            Value::Grid(_) | Value::IsNan(_) | Value::Poison => Err("reads what is no tensor".into()),
        }
    }

    /// Input `i` as a view; what becomes a node here is remembered for other readers.
    pub(super) fn settled_input(&mut self, i: usize) -> Lift<View> {
        let name = self.protos[self.at].input.get(i).cloned().unwrap_or_default();
        let value = self.input(i)?.clone();
        let formula = matches!(value, Value::Expr { .. });
        let v = self.settled(value)?;
        if formula {
            self.env.insert(name.clone(), Value::View(v.clone()));
            self.born.insert(v.base, name);
        }
        Ok(v)
    }

    /// A part of a formula; parts that come twice become nodes once.
    fn emit_part(&mut self, x: &View, e: &Rc<E>, axis: Option<usize>, done: &mut Done) -> Lift<View> {
        if let Some(v) = done.get(&Rc::as_ptr(e)) {
            return Ok(v.clone());
        }
        let v = self.emit_new(x, e, axis, done)?;
        done.insert(Rc::as_ptr(e), v.clone());
        Ok(v)
    }

    fn emit_new(&mut self, x: &View, e: &Rc<E>, axis: Option<usize>, done: &mut Done) -> Lift<View> {
        match e.known() {
            Some(Known::Affine { mul, add }) if mul == 1.0 && add == 0.0 => return Ok(x.clone()),
            Some(Known::Affine { mul, add }) => return self.pointwise(Op::Scalar(op::Scalar { mul, add }), x),
            Some(Known::Act(act)) => return self.pointwise(Op::Activation { act }, x),
            Some(Known::LayerNorm(eps)) => {
                return self.norm(x, axis, |dim| Op::LayerNorm(op::LayerNorm { dim, eps }), &[1.0, 0.0]);
            }
            Some(Known::RmsNorm(eps)) => {
                return self.norm(x, axis, |dim| Op::RmsNorm(op::RmsNorm { dim, eps }), &[1.0]);
            }
            Some(Known::Unit) => return Err("brings vectors to length 1 outside attention".into()),
            None => {}
        }
        // No layer as a whole: operation by operation, as far as there are nodes for them.
        match e.as_ref() {
            E::Binary(op @ ("Add" | "Mul"), _, a, b) if !a.flat() && !b.flat() => {
                let (a, b) = (self.emit_part(x, a, axis, done)?, self.emit_part(x, b, axis, done)?);
                self.pair(if *op == "Add" { Op::Add } else { Op::Mul }, &a, &b)
            }
            E::Binary(op @ ("Add" | "Sub" | "Mul" | "Div"), _, a, b) => {
                let (inner, c, first) = match (a.as_ref(), b.as_ref()) {
                    (_, E::C(c)) => (a, *c, true),
                    (E::C(c), _) => (b, *c, false),
                    _ => return Err(format!("computes a formula ({op}) that no layer here has")),
                };
                let (mul, add) = match (*op, first) {
                    ("Add", _) => (1.0, c),
                    ("Sub", true) => (1.0, -c),
                    ("Sub", false) => (-1.0, c),
                    ("Mul", _) => (c, 0.0),
                    ("Div", true) => (1.0 / c, 0.0),
                    _ => return Err("divides a constant by a tensor".into()),
                };
                let inner = self.emit_part(x, inner, axis, done)?;
                self.pointwise(Op::Scalar(op::Scalar { mul, add }), &inner)
            }
            _ => Err("computes a formula that no layer here has".into()),
        }
    }

    /// A norm over all channels, with parameters that change nothing yet.
    fn norm(&mut self, x: &View, axis: Option<usize>, op: impl Fn(usize) -> Op, fills: &[f32]) -> Lift<View> {
        let x = self.selected(x)?;
        let dim = x.dims[x.channel_axis()];
        if axis.and_then(|a| x.axes.get(a)) != Some(&x.full(x.channel_axis())) {
            return Err("normalises over something else than all channels".into());
        }
        let params = fills.iter().map(|&v| Weight::filled(vec![dim], v)).collect::<Lift<_>>()?;
        self.over(op(dim), x, params)
    }

    /// An elementwise node: it does not matter how its input lies.
    pub(super) fn pointwise(&mut self, op: Op, x: &View) -> Lift<View> {
        let x = self.selected(x)?;
        self.over(op, x, vec![])
    }

    /// A node of two views of equal elements.
    fn pair(&mut self, op: Op, a: &View, b: &View) -> Lift<View> {
        let (a, b) = self.joined(a, b)?;
        let base = self.emit(op, &[a.base, b.base], vec![])?;
        Ok(View { base, ..a })
    }

    /// The view and formula of an operand.
    fn operand(value: Value) -> Lift<(View, Rc<E>, Option<usize>)> {
        match value {
            Value::View(x) => Ok((x, Rc::new(E::X), None)),
            Value::Expr { x, e, axis } => Ok((x, e, axis)),
            _ => Err("reads what is no plain tensor".into()),
        }
    }

    pub(super) fn unary(&mut self, op: &str, f: fn(f64) -> f64) -> Lift<Value> {
        if !["Erf", "Sigmoid", "Tanh", "Sqrt", "Exp", "Reciprocal", "Neg", "Abs"].contains(&op) {
            return Err("is no function of an image that is known here".into());
        }
        let (x, e, axis) = Self::operand(self.input(0)?.clone())?;
        self.grown(x, E::Unary(f, e), axis)
    }

    /// A formula, unless it has become too large to be looked at.
    fn grown(&mut self, x: View, e: E, axis: Option<usize>) -> Lift<Value> {
        let e = Rc::new(e);
        if !e.fits() {
            return self.settled(Value::Expr { x, e, axis }).map(Value::View);
        }
        Ok(Value::Expr { x, e, axis })
    }

    pub(super) fn activation(&mut self, op: &str, a: &Attrs) -> Lift<Value> {
        let (x, e, axis) = Self::operand(self.input(0)?.clone())?;
        let act = match op {
            "Relu" => Activation::Relu,
            "Swish" if a.float("alpha").unwrap_or(1.0) == 1.0 => Activation::Silu,
            "Swish" => return Err("has a factor other than 1".into()),
            "Gelu" if a.text("approximate") == Some("tanh") => Activation::GeluTanh,
            "Gelu" => Activation::GeluErf,
            "HardSwish" => Activation::HardSwish,
            "HardSigmoid" => {
                let k = f64::from(a.float("alpha").unwrap_or(0.2));
                let d = f64::from(a.float("beta").unwrap_or(0.5));
                return self.grown(x, E::HardSigmoid(k, d, e), axis);
            }
            _ => {
                let bound = |i: usize, name: &str, none: f64| -> Lift<f64> {
                    match self.constant_input(i)? {
                        Some(c) => c.scalar().ok_or_else(|| "has a bound that is no number".into()),
                        None => Ok(a.float(name).map_or(none, f64::from)),
                    }
                };
                let (lo, hi) = (bound(1, "min", f64::MIN)?, bound(2, "max", f64::MAX)?);
                return self.grown(x, E::Clip(lo, hi, e), axis);
            }
        };
        let x = self.settled_input(0)?;
        Ok(Value::View(self.pointwise(Op::Activation { act }, &x)?))
    }

    pub(super) fn binary(&mut self, op: &str, f: fn(f64, f64) -> f64, proto: &NodeProto) -> Lift<Value> {
        let words = ["Add", "Sub", "Mul", "Div", "Pow", "Min", "Max"];
        let op = if op == "Sum" { "Add" } else { op };
        let word = words.into_iter().find(|w| *w == op).ok_or("is no arithmetic on images that is known here")?;
        if proto.input.len() != 2 {
            return Err(format!("has {} inputs", proto.input.len()));
        }
        let (a, b) = (self.input(0)?.clone(), self.input(1)?.clone());
        match (a, b) {
            (Value::Scores(s), Value::Const(c)) => self.scores_with(*s, &c, word, true),
            (Value::Const(c), Value::Scores(s)) => self.scores_with(*s, &c, word, false),
            (Value::Const(c), other) => self.with_constant(word, f, other, &c, 1, false),
            (other, Value::Const(c)) => self.with_constant(word, f, other, &c, 0, true),
            (a, b) => {
                let (xa, ea, axa) = Self::operand(a)?;
                let (xb, eb, axb) = Self::operand(b)?;
                let e = E::Binary(word, f, ea, eb);
                if xa == xb && (axa.is_none() || axb.is_none() || axa == axb) && e.fits() {
                    return self.grown(xa, e, axa.or(axb));
                }
                let (a, b) = (self.settled_input(0)?, self.settled_input(1)?);
                self.two(word, &a, &b).map(Value::View)
            }
        }
    }

    /// Two tensors of different origin.
    fn two(&mut self, op: &str, a: &View, b: &View) -> Lift<View> {
        match op {
            "Add" => self.pair(Op::Add, a, b),
            "Sub" => {
                let b = self.pointwise(Op::Scalar(op::Scalar { mul: -1.0, add: 0.0 }), b)?;
                self.pair(Op::Add, a, &b)
            }
            "Mul" if a.shape() == b.shape() => self.pair(Op::Mul, a, b),
            "Mul" => {
                // A vector of factors, one a channel of the other side.
                let (x, s) =
                    if a.shape().iter().product::<usize>() >= b.shape().iter().product() { (a, b) } else { (b, a) };
                let (x, mut s) = (self.selected(x)?, self.selected(s)?);
                // An image of one pixel is a vector.
                if s.dims.len() == 4 && s.dims[2..] == [1, 1] {
                    let base = self.moved(Op::Flatten, s.base)?;
                    s = self.arranged(base, s.axes);
                }
                let n = x.dims[x.channel_axis()];
                let at = |v: &View| v.axes.iter().position(|axis| *axis == v.full(v.channel_axis()));
                let alike = s.dims.len() == 2 && s.dims[1] == n && s.axes.len() == x.axes.len() && at(&s) == at(&x);
                if !alike {
                    return Err(format!("multiplies {:?} by {:?}", a.shape(), b.shape()));
                }
                let base = self.emit(Op::Mul, &[x.base, s.base], vec![])?;
                Ok(View { base, ..x })
            }
            _ => Err(format!("computes {op} of two tensors")),
        }
    }

    /// `op` with a constant on the right (`right`) or left; `i` is the other input.
    fn with_constant(
        &mut self,
        op: &'static str,
        f: fn(f64, f64) -> f64,
        x: Value,
        c: &Constant,
        i: usize,
        right: bool,
    ) -> Lift<Value> {
        if let Some(number) = c.scalar() {
            let (x, e, axis) = Self::operand(x)?;
            let (l, r) = (e, Rc::new(E::C(number)));
            let (l, r) = if right { (l, r) } else { (r, l) };
            return self.grown(x, E::Binary(op, f, l, r), axis);
        }
        let v = self.settled_input(i)?;
        let c = match (op, right) {
            ("Add" | "Mul", _) => c.clone(),
            ("Sub", true) => mapped(c, |v| -v)?,
            ("Div", true) => mapped(c, |v| 1.0 / v)?,
            _ => return Err(format!("computes {op} with a constant of shape {:?}", c.shape)),
        };
        let v = if matches!(op, "Add" | "Sub") { self.add_constant(&v, &c, i)? } else { self.scale(&v, &c, i)? };
        Ok(Value::View(v))
    }

    /// The axis of `v` that `c` has one value for each index of, if it is all channels of the base.
    fn per_channel(v: &View, c: &Constant) -> bool {
        let skip = v.axes.len() as isize - c.shape.len() as isize;
        let mut wide = c.shape.iter().enumerate().filter(|(_, d)| **d != 1);
        let (Some((at, _)), None) = (wide.next(), wide.next()) else { return false };
        usize::try_from(at as isize + skip).ok().and_then(|at| v.axes.get(at)) == Some(&v.full(v.channel_axis()))
            && c.numel() == v.dims[v.channel_axis()]
    }

    /// A factor per channel: a norm's own, or layer scale.
    fn scale(&mut self, v: &View, c: &Constant, i: usize) -> Lift<View> {
        if !Self::per_channel(v, c) {
            return Err(format!("multiplies {:?} by a constant of shape {:?}", v.shape(), c.shape));
        }
        let n = c.numel();
        let c = c.reshaped(vec![n]).ok_or("has a factor whose shape does not fit")?;
        let weight = Weight::of(&c)?;
        if let Some(id) = self.fresh(i, v)
            && matches!(self.nodes[id.index()].op, Op::LayerNorm(_) | Op::RmsNorm(_))
            && self.untouched(id, ParamRole::Weight, 1.0)
            && self.untouched(id, ParamRole::Bias, 0.0)
        {
            self.complete(id, ParamRole::Weight, weight)?;
            return Ok(v.clone());
        }
        let v = self.selected(v)?;
        self.over(Op::Scale(op::Scale { channels: n }), v, vec![weight])
    }

    /// A bias of the layer before, or learned positions.
    fn add_constant(&mut self, v: &View, c: &Constant, i: usize) -> Lift<View> {
        if Self::per_channel(v, c) {
            let n = c.numel();
            let bias = Weight::of(&c.reshaped(vec![n]).ok_or("has a bias whose shape does not fit")?)?;
            if let Some(id) = self.fresh(i, v) {
                let complete = match &mut self.nodes[id.index()].op {
                    Op::Linear(op::Linear { bias, .. }) | Op::Conv2d(op::Conv2d { bias, .. }) if !*bias => {
                        *bias = true;
                        true
                    }
                    Op::LayerNorm(_) => self.untouched(id, ParamRole::Bias, 0.0),
                    _ => false,
                };
                if complete {
                    self.complete(id, ParamRole::Bias, bias)?;
                    return Ok(v.clone());
                }
            }
        }
        let v = self.tokens_of(v)?;
        let (dim, tokens) = (v.dims[v.dims.len() - 1], v.dims[1]);
        let shape = v.shape();
        let natural: Vec<_> = v.axes.iter().flatten().filter(|a| a.axis > 0).copied().collect();
        let flat: Vec<_> = [v.full(1), v.full(2.min(v.dims.len() - 1))].concat();
        let wide = fold::broadcast(&c.shape, &shape[1..]).filter(|s| s[..] == shape[1..]);
        let own = match c.batched || c.shape.len() == shape.len() {
            true => Some(c.shape.get(1..).unwrap_or(&[]).to_vec()).filter(|_| c.shape.first() == Some(&1)),
            false => wide.is_some().then(|| c.shape.clone()),
        };
        let row = |atoms| View { axes: vec![atoms], ..v.clone() }.reshape(&[tokens * dim]);
        let in_order = v.dims.len() == 3 && row(natural) == row(flat);
        let (Some(own), true) = (own, in_order && v.rolls.is_empty()) else {
            return Err(format!("adds a constant of shape {:?} to {shape:?}", c.shape));
        };
        let positions = if own == shape[1..] {
            c.reshaped(vec![1, tokens, dim])
        } else {
            let own =
                c.reshaped(own).map(|c| Constant { batched: false, ..c }).ok_or("adds a constant that does not fit")?;
            fold::expand_to(&own, &shape[1..])?.reshaped(vec![1, tokens, dim])
        };
        let positions = positions.ok_or_else(|| format!("adds a constant of shape {:?} to {shape:?}", c.shape))?;
        self.over(Op::AddPositions(op::AddPositions::of(tokens, dim)), v, vec![Weight::of(&positions)?])
    }

    /// Whether the node's `role` parameter is still the one made up for it.
    fn untouched(&self, id: NodeId, role: ParamRole, value: f32) -> bool {
        let node = &self.nodes[id.index()];
        node.param(role).is_none_or(|name| {
            let made = name.starts_with(&node.name);
            made && self.params.get(name).is_ok_and(|p| p.values().iter().all(|v| *v == value))
        })
    }

    /// Gives a node the parameter that the graph adds or multiplies right after it, and what the node is then: the
    /// later value is the node's own now.
    fn complete(&mut self, id: NodeId, role: ParamRole, weight: Weight) -> Lift<()> {
        // A layer whose weight was anonymous is called after the bias.
        let bare = self.nodes[id.index()].params.iter().all(|p| p.name.starts_with(&self.nodes[id.index()].name));
        if let Some(name) = weight.name.as_deref().filter(|_| bare) {
            self.rename(id, name);
        }
        let node_name = self.nodes[id.index()].name.clone();
        let old = self.nodes[id.index()].params.extract_if(.., |p| p.role == role);
        old.for_each(|p| self.params.remove(&p.name));
        let name = self.param_name(&node_name, role, weight.name.as_deref());
        self.params.insert(name.clone(), weight.param);
        let at = if role == ParamRole::Weight { 0 } else { 1 };
        let node = &mut self.nodes[id.index()];
        node.params.insert(at.min(node.params.len()), ParamRef { role, name });
        if let Some(out) = self.protos[self.at].output.first() {
            self.born.insert(id, out.clone());
        }
        Ok(())
    }

    /// Renames a node after parameter `hint`, and with it those parameters that were called after the node.
    fn rename(&mut self, id: NodeId, hint: &str) {
        let old = self.nodes[id.index()].name.clone();
        let op = self.nodes[id.index()].op.clone();
        self.taken.remove(&old);
        let new = self.node_name(&op, Some(hint));
        let mut params = std::mem::take(&mut self.nodes[id.index()].params);
        for p in &mut params {
            if p.name.starts_with(&format!("{old}."))
                && let Ok(param) = self.params.get(&p.name).cloned()
            {
                self.params.remove(&p.name);
                p.name = self.param_name(&new, p.role, None);
                self.params.insert(p.name.clone(), param);
            }
        }
        let node = &mut self.nodes[id.index()];
        (node.name, node.params) = (new, params);
    }

    /// Mean over `axes`: global pooling, mean of tokens, or part of a norm.
    pub(super) fn mean(&mut self, axes: &[usize], keep: bool) -> Lift<Value> {
        let (mut x, e, at) = Self::operand(self.input(0)?.clone())?;
        // A norm over merged patches: the merge is a node, and everything else of the norm reads that.
        if matches!(e.as_ref(), E::X)
            && x.covers()
            && axes.len() == 1
            && axes[0] + 1 == x.axes.len()
            && let Some(merged) = self.merged_patches(&x)?
        {
            let name = self.protos[self.at].input.first().cloned().unwrap_or_default();
            self.env.insert(name, Value::View(merged.clone()));
            x = merged;
        }
        if let [axis] = *axes
            && x.axes.get(axis).is_some_and(|a| *a == x.full(x.channel_axis()))
            && keep
            && at.is_none_or(|a| a == axis)
        {
            return self.grown(x, E::Mean(e), Some(axis));
        }
        let v = self.settled_input(0)?;
        let gone: Vec<_> = axes.iter().filter_map(|&i| v.axes.get(i)).flatten().copied().collect();
        let walks = |axis: usize| gone.iter().filter(|a| a.axis == axis).map(|a| a.len).product::<usize>();
        let refused = || format!("takes the mean over axes {axes:?} of {:?}", v.shape());
        let (op, channel) = match v.dims.len() {
            4 => {
                let all =
                    v.covers() && walks(2) == v.dims[2] && walks(3) == v.dims[3] && walks(1) == 1 && walks(0) == 1;
                (all.then_some(Op::GlobalAvgPool), 1)
            }
            3 => {
                // Tokens from some on: the class token is left out.
                let skip = v.offset[1];
                let run = skip == 0 || gone.iter().all(|a| a.axis == 1 && a.stride == 1) && gone.len() <= 1;
                let all = skip + walks(1) == v.dims[1] && walks(2) == 1 && walks(0) == 1 && v.offset[2] == 0;
                ((run && all).then_some(Op::MeanTokens(op::MeanTokens { skip })), 2)
            }
            _ => (None, 1),
        };
        let op = op.ok_or_else(refused)?;
        let base = self.moved(op, v.base)?;
        let place = |a: &Atom| Atom { axis: if a.axis == channel { 1 } else { a.axis }, ..*a };
        let kept = v.axes.iter().enumerate().filter(|(i, _)| keep || !axes.contains(i));
        let left = kept.map(|(i, a)| if axes.contains(&i) { vec![] } else { a.iter().map(place).collect() });
        Ok(Value::View(self.arranged(base, left.collect())))
    }

    /// `ReduceL2`, part of bringing vectors to length 1.
    pub(super) fn length(&mut self, a: &Attrs) -> Lift<Value> {
        let (x, e, at) = Self::operand(self.input(0)?.clone())?;
        let axes = self.axes(a, 1)?.ok_or("takes the length of everything")?;
        match *fold::axes(&axes, x.axes.len())? {
            [axis] if a.flag("keepdims", true) && at.is_none_or(|a| a == axis) => self.grown(x, E::Norm(e), Some(axis)),
            _ => Err("takes lengths over several axes".into()),
        }
    }

    /// The last node of this step with another operation instead.
    pub(super) fn replace_last(&mut self, op: Op) -> Lift<View> {
        let node = self.nodes.pop().ok_or("has no node to replace")?;
        self.shapes.pop();
        self.taken.remove(&node.name);
        let id = self.emit(op, &node.inputs, vec![])?;
        Ok(self.whole(id))
    }

    /// Whether nothing but the node at hand can have read `id` yet.
    pub(super) fn unread(&self, id: NodeId) -> bool {
        self.protos[self.at].output.first().is_some_and(|o| self.born.get(&id) == Some(o))
    }
}

fn mapped(c: &Constant, f: impl Fn(f32) -> f32) -> Lift<Constant> {
    let data = Param::owned(c.shape.clone(), c.to_f32().into_iter().map(f).collect()).ok_or("does not fit")?;
    Ok(Constant { data: super::super::constant::Data::Floats(data), name: None, ..c.clone() })
}
