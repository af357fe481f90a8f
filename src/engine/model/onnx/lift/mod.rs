//! From ONNX operators to our layers: walks the nodes in order, computes constants, follows layouts ([`View`]),
//! collects elementwise formulas ([`E`]) and attention scores, and emits a node whenever a layer is complete.
//!
//! What cannot be lifted is collected, not returned at once: the user sees every unsupported operator in one message.

mod arith;
mod attention;
mod concat;
mod grid;
mod layers;
mod layout;
mod names;
mod place;

use super::attrs::Attrs;
use super::constant::{Constant, Source};
use super::expr::E;
use super::fold;
use super::proto::{NodeProto, is_standard};
use super::view::{Atom, View};
use crate::graph::{Node, NodeId, Op, ParamRef, ParamRole, node_shape, op, param_shapes};
use crate::model::{Param, ParamStore, printable};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// What an ONNX value is.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Const(Constant),
    View(View),
    /// A formula in the elements of `x`; formulas that mix do so along `axis` of it.
    Expr {
        x: View,
        e: Rc<E>,
        axis: Option<usize>,
    },
    Scores(Box<Scores>),
    /// An image with zeros around it, `[top, left, bottom, right]`.
    Padded(View, [usize; 4]),
    /// Indices that count over the batch.
    Grid(grid::Grid),
    /// "Is it not a number" of the value of that name.
    IsNan(String),
    /// The output of something unsupported.
    Poison,
}

/// Attention under way: from q·kᵀ to the softmax.
#[derive(Debug, Clone)]
pub(super) struct Scores {
    pub q: View,
    pub k: View,
    /// q and k were brought to length 1.
    pub unit: bool,
    pub mul: f64,
    /// A factor per head.
    pub head_mul: Option<Vec<f32>>,
    /// Added per head and pair, `[heads, t, t]`.
    pub bias: Option<Vec<f32>>,
    /// The bias' initializer, when it is that and nothing else.
    pub bias_name: Option<std::rc::Rc<str>>,
    /// Added per window and pair, `[windows, t, t]`.
    pub mask: Option<Vec<f32>>,
    pub soft: bool,
    /// The scores' own layout; atoms of keys count from axis [`KEYS`] on.
    pub axes: Vec<Vec<Atom>>,
}

/// Where axes of the keys begin in a [`Scores`] layout.
pub(super) const KEYS: usize = 100;

/// Elements that are read for constants at most: a second or two, where real files take milliseconds.
const MAX_WORK: usize = 1 << 30;
/// Elements of a parameter that is made up here.
const MAX_MADE: usize = 1 << 24;

/// A node that could not be lifted.
pub(super) struct Failure {
    pub op: String,
    pub node: String,
    /// Empty for an operator that is not known at all.
    pub why: String,
}

pub(super) struct Lifter<'a> {
    pub source: Source,
    pub opset: i64,
    /// The batch axis' length in shapes: 1, or a marker.
    pub batch: usize,
    pub nodes: Vec<Node>,
    pub params: ParamStore,
    pub failures: Vec<Failure>,
    pub env: HashMap<String, Value>,
    protos: &'a [NodeProto],
    /// How many nodes read a value.
    uses: HashMap<&'a str, usize>,
    /// Output shapes with the batch.
    shapes: Vec<Vec<usize>>,
    taken: HashSet<String>,
    /// The last number given to a name that was taken.
    numbered: HashMap<String, usize>,
    /// The value that a node was made as, as long as nothing else came of it.
    born: HashMap<NodeId, String>,
    /// Elements that constants may still take.
    budget: usize,
    /// Elements that computing constants may still read.
    work: usize,
    /// The ONNX node being lifted.
    at: usize,
}

type Lift<T> = Result<T, String>;

impl<'a> Lifter<'a> {
    /// `budget`: how many elements computed constants may have together.
    pub fn new(source: Source, protos: &'a [NodeProto], opset: i64, batch: usize, budget: usize) -> Lifter<'a> {
        let mut uses = HashMap::new();
        for name in protos.iter().flat_map(|n| &n.input) {
            *uses.entry(name.as_str()).or_insert(0) += 1;
        }
        Lifter {
            source,
            opset,
            batch,
            nodes: Vec::new(),
            params: ParamStore::default(),
            failures: Vec::new(),
            env: HashMap::new(),
            protos,
            uses,
            shapes: Vec::new(),
            taken: HashSet::new(),
            numbered: HashMap::new(),
            born: HashMap::new(),
            budget,
            work: MAX_WORK,
            at: 0,
        }
    }

    /// Lifts node `i`, recording a failure if it cannot be.
    pub fn step(&mut self, i: usize) {
        self.at = i;
        let proto = &self.protos[i];
        let op = proto.op_type.as_deref().unwrap_or("");
        let outputs = || proto.output.iter().filter(|o| !o.is_empty()).cloned();
        if proto.input.iter().any(|n| matches!(self.env.get(n), Some(Value::Poison))) {
            return self.env.extend(outputs().map(|o| (o, Value::Poison)));
        }
        let known_domain = is_standard(proto.domain.as_deref());
        let result = if known_domain { self.lift(op, proto) } else { Ok(None) };
        match result {
            Ok(Some(values)) => {
                let named = proto.output.iter().cloned().zip(values);
                self.env.extend(named.filter(|(name, _)| !name.is_empty()));
            }
            failed => {
                self.env.extend(outputs().map(|o| (o, Value::Poison)));
                let op = match known_domain {
                    true => printable(op),
                    false => printable(&format!("{}::{op}", proto.domain.as_deref().unwrap_or(""))),
                };
                let node = printable(proto.called().unwrap_or("unnamed"));
                let why = failed.err().map(|w| printable(&w)).unwrap_or_default();
                self.failures.push(Failure { op, node, why });
            }
        }
    }

    /// `Ok(None)`: the operator is unknown.
    fn lift(&mut self, op: &str, proto: &'a NodeProto) -> Lift<Option<Vec<Value>>> {
        let a = Attrs(proto);
        if let Some(folded) = self.fold(op, &a, proto)? {
            return Ok(Some(folded));
        }
        let one = |v: Value| Ok(Some(vec![v]));
        if let Some(v) = self.grid(op, &a, proto.input.len())? {
            return one(v);
        }
        let v = match op {
            "Identity" | "Dropout" => self.input(0)?.clone(),
            "Cast" => match a.int("to") {
                Some(1 | 10 | 11 | 16) => self.input(0)?.clone(),
                to => return Err(format!("casts an image to type {}", to.unwrap_or(0))),
            },
            "Shape" => return one(Value::Const(self.shape_of(&a)?)),
            "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Transpose" | "Slice" | "Gather" => {
                self.relayout(op, &a, proto)?
            }
            "Split" => return self.split(&a).map(Some),
            "Concat" => self.concat(&a)?,
            "Pad" => self.pad(&a)?,
            "Expand" => self.expand()?,
            "Conv" => self.conv(&a)?,
            "Gemm" => self.gemm(&a)?,
            "MatMul" => self.matmul()?,
            "BatchNormalization" => self.batch_norm(&a)?,
            "LayerNormalization" => self.layer_norm(&a)?,
            "MaxPool" | "AveragePool" => self.pool(op, &a)?,
            "GlobalAveragePool" => self.mean(&[2, 3], true)?,
            "ReduceMean" => {
                let axes = self.axes(&a, 1)?.ok_or("takes the mean of everything")?;
                let axes = fold::axes(&axes, self.shape_of_input(0)?.len())?;
                self.mean(&axes, a.flag("keepdims", true))?
            }
            "ReduceL2" => self.length(&a)?,
            "Softmax" => self.softmax(&a)?,
            "IsNaN" => Value::IsNan(proto.input.first().cloned().unwrap_or_default()),
            "Where" => self.choose(proto)?,
            "Relu" | "Gelu" | "HardSwish" | "HardSigmoid" | "Clip" | "Swish" => self.activation(op, &a)?,
            _ => match (fold::unary(op), fold::binary(op)) {
                (Some(f), _) => self.unary(op, f)?,
                (_, Some(f)) => self.binary(op, f, proto)?,
                _ => return Ok(None),
            },
        };
        one(v)
    }

    /// Computes the node when all its inputs are constants.
    fn fold(&mut self, op: &str, a: &Attrs, proto: &NodeProto) -> Lift<Option<Vec<Value>>> {
        let wrap = |c: Vec<Constant>| Some(c.into_iter().map(Value::Const).collect());
        if op == "Constant" {
            return Ok(wrap(vec![self.constant(a)?]));
        }
        let mut ins = Vec::with_capacity(proto.input.len());
        for name in &proto.input {
            match self.env.get(name) {
                _ if name.is_empty() => ins.push(None),
                Some(Value::Const(c)) => ins.push(Some(c)),
                _ => return Ok(None),
            }
        }
        let batch = self.batch as i64;
        let cheap = matches!(op, "Reshape" | "Identity" | "Shape" | "Squeeze" | "Unsqueeze" | "Flatten");
        let read: usize = if cheap { 0 } else { ins.iter().flatten().map(|c| c.numel()).sum() };
        self.work = self.work.checked_sub(read).ok_or("computes too much with constants")?;
        let folded = match op {
            "ConstantOfShape" => {
                let fill = a.tensor("value").map(|t| self.source.tensor(t)).transpose()?;
                let shape = fold::ints_at(&ins, 0).ok_or("has no shape")?;
                Some(filled(shape, fill.as_ref(), self.batch, self.budget).map(|c| vec![c]))
            }
            "Range" if self.batch > 1 && number(&ins, 1) == Some(batch) => {
                let (start, delta) = (number(&ins, 0).ok_or("has no start")?, number(&ins, 2).unwrap_or(1));
                let grid =
                    grid::Grid::range(start, delta, self.batch).ok_or("counts over the batch, but not from 0")?;
                return Ok(Some(vec![Value::Grid(grid)]));
            }
            "Reshape" if let Some(c) = fold::at(&ins, 0).filter(|c| c.batched) => {
                let target = fold::ints_at(&ins, 1).ok_or("has no shape")?;
                let mut shape = fold::reshape_target(target, &self.repeated(c), a.flag("allowzero", false))?;
                let whole = shape.first_mut().filter(|n| **n % self.batch == 0).map(|n| *n /= self.batch);
                let c = whole.and_then(|()| c.reshaped(shape)).ok_or("mixes the batch with other axes")?;
                Some(Ok(vec![c]))
            }
            // Repeated for every image: kept once.
            "Expand" if self.batch > 1 => {
                let shape = fold::ints_at(&ins, 1).ok_or("has no shape")?;
                let c = fold::at(&ins, 0).ok_or("has no input")?;
                let own = [&vec![1; shape.len().saturating_sub(c.shape.len())], c.shape.as_slice()].concat();
                match shape.first() {
                    Some(&n) if n == batch && own.first() == Some(&1) && own.len() == shape.len() => {
                        let same = shape.iter().zip(&own).skip(1).all(|(&s, &o)| s == 1 || s == -1 || s == o as i64);
                        let wanted: Option<Vec<usize>> = shape[1..].iter().map(|&s| usize::try_from(s).ok()).collect();
                        let c = match (same, wanted) {
                            (true, _) => c.reshaped(own),
                            (false, Some(rest)) => {
                                let shape = fold::broadcast(&own, &[&[1], rest.as_slice()].concat());
                                shape.map(|s| fold::expand_to(c, &s)).transpose()?
                            }
                            (false, None) => None,
                        };
                        let c = c.ok_or("expands to a shape that does not fit")?;
                        Some(Ok(vec![Constant { batched: true, ..c }]))
                    }
                    _ => fold::fold(op, a, &ins),
                }
            }
            _ => fold::fold(op, a, &ins),
        };
        let Some(out) = folded.transpose()? else { return Ok(None) };
        // A chain of constant operators in a hostile file must not fill the memory.
        for c in out.iter().filter(|c| c.name.is_none()) {
            self.budget =
                self.budget.checked_sub(c.numel()).ok_or("computes more constants than the file has room for")?;
        }
        Ok(wrap(out))
    }

    fn constant(&mut self, a: &Attrs) -> Lift<Constant> {
        if let Some(t) = a.tensor("value") {
            return Ok(Constant { name: None, ..self.source.tensor(t)? });
        }
        let made = (a.float("value_float").and_then(|v| Constant::floats(vec![], vec![v])))
            .or_else(|| a.int("value_int").and_then(|v| Constant::ints(vec![], vec![v])))
            .or_else(|| a.floats("value_floats").and_then(|v| Constant::floats(vec![v.len()], v)))
            .or_else(|| a.ints("value_ints").and_then(|v| Constant::ints(vec![v.len()], v)));
        made.ok_or_else(|| "holds no tensor or number".into())
    }

    /// The shape with the batch of a constant that every image has.
    fn repeated(&self, c: &Constant) -> Vec<usize> {
        let mut shape = c.shape.clone();
        if let Some(first) = shape.first_mut() {
            *first = first.saturating_mul(self.batch);
        }
        shape
    }

    /// The value of input `i` of the node at hand.
    fn input(&self, i: usize) -> Lift<&Value> {
        let name = self.protos[self.at].input.get(i).filter(|n| !n.is_empty()).ok_or("lacks an input")?;
        self.env.get(name).ok_or_else(|| format!("reads `{}`, which nothing writes", printable(name)))
    }

    /// The constant of input `i`; `None` when it is absent.
    fn constant_input(&self, i: usize) -> Lift<Option<&Constant>> {
        match self.protos[self.at].input.get(i).filter(|n| !n.is_empty()) {
            None => Ok(None),
            Some(_) => match self.input(i)? {
                Value::Const(c) => Ok(Some(c)),
                _ => Err(format!("needs a constant as input {i}")),
            },
        }
    }

    /// The integers of input `i`, if it has such.
    fn ints_input(&self, i: usize) -> Lift<Option<Vec<i64>>> {
        Ok(self.constant_input(i)?.and_then(|c| c.as_ints()).map(<[i64]>::to_vec))
    }

    /// Axes from the attribute or from input `i`.
    fn axes(&self, a: &Attrs, i: usize) -> Lift<Option<Vec<i64>>> {
        a.ints("axes").map_or_else(|| self.ints_input(i), |axes| Ok(Some(axes)))
    }

    /// The shape of `v` with the batch.
    fn value_shape(&self, v: &Value) -> Lift<Vec<usize>> {
        Ok(match v {
            Value::Const(c) if c.batched => self.repeated(c),
            Value::Const(c) => c.shape.clone(),
            Value::View(v) => v.shape(),
            Value::Expr { x, e, axis } => {
                let mut s = x.shape();
                if let (true, Some(d)) = (e.flat(), axis.and_then(|a| s.get_mut(a))) {
                    *d = 1;
                }
                s
            }
            Value::Scores(s) => s.axes.iter().map(|a| super::view::size(a)).collect(),
            Value::Padded(..) | Value::Grid(_) | Value::IsNan(_) | Value::Poison => {
                return Err("asks for a shape in an odd place".into());
            }
        })
    }

    fn shape_of_input(&self, i: usize) -> Lift<Vec<usize>> {
        self.value_shape(self.input(i)?)
    }

    fn shape_of(&self, a: &Attrs) -> Lift<Constant> {
        let shape = self.shape_of_input(0)?;
        let n = shape.len() as i64;
        let bound = |name: &str, none: i64| {
            let v = a.int(name).unwrap_or(none);
            (if v < 0 { v.saturating_add(n) } else { v }).clamp(0, n) as usize
        };
        let (from, to) = (bound("start", 0), bound("end", n));
        let dims: Vec<i64> = shape.get(from..to.max(from)).unwrap_or(&[]).iter().map(|&d| d as i64).collect();
        Constant::ints(vec![dims.len()], dims).ok_or_else(|| "has no shape".into())
    }

    /// Output dimensions of `id` with the batch.
    fn dims(&self, id: NodeId) -> Vec<usize> {
        self.shapes[id.index()].clone()
    }

    fn whole(&self, id: NodeId) -> View {
        View::whole(id, self.dims(id))
    }

    /// A node that moves the elements of `x` or selects from them.
    fn moved(&mut self, op: Op, x: NodeId) -> Lift<NodeId> {
        self.emit(op, &[x], vec![])
    }

    /// A node in whose output the elements lie as those of `v` do in its input.
    fn over(&mut self, op: Op, v: View, params: Vec<Weight>) -> Lift<View> {
        let base = self.emit(op, &[v.base], params)?;
        Ok(View { base, ..v })
    }

    /// The elements of `base` in the order of `axes`.
    fn arranged(&self, base: NodeId, axes: Vec<Vec<Atom>>) -> View {
        View { axes, ..self.whole(base) }
    }

    /// Emits a node, called after the first of its parameters that has a name.
    fn emit(&mut self, op: Op, inputs: &[NodeId], params: Vec<Weight>) -> Lift<NodeId> {
        let hint = params.iter().find_map(|p| p.name.clone());
        self.emit_named(op, inputs, params, hint)
    }

    /// Emits a node; `params` in the order of [`param_shapes`]. `hint`: a parameter's name to call it after.
    fn emit_named(&mut self, op: Op, inputs: &[NodeId], params: Vec<Weight>, hint: Option<String>) -> Lift<NodeId> {
        let name = self.node_name(&op, hint.as_deref());
        let expected = param_shapes(&op);
        if expected.len() != params.len() {
            return Err("has parameters that do not fit".into());
        }
        let ins: Vec<&[usize]> = inputs.iter().map(|i| &self.shapes[i.index()][1..]).collect();
        let mut node = Node { name, op, inputs: inputs.to_vec(), params: Vec::new() };
        let shape = node_shape(&node, &ins).map_err(|e| e.to_string())?;
        for (w, (role, want)) in params.into_iter().zip(expected) {
            let unfit = || format!("has a parameter of shape {:?}, expected {want:?}", w.param.shape());
            let param = w.param.reshaped(want.clone()).ok_or_else(unfit)?;
            let name = self.param_name(&node.name, role, w.name.as_deref());
            self.params.insert(name.clone(), param);
            node.params.push(ParamRef { role, name });
        }
        self.shapes.push([&[self.batch], shape.as_slice()].concat());
        self.nodes.push(node);
        let id = NodeId((self.nodes.len() - 1) as u32);
        if let Some(out) = self.protos[self.at].output.first() {
            self.born.insert(id, out.clone());
        }
        Ok(id)
    }

    /// The image itself, as `[c, h, w]`.
    pub fn image(&mut self, shape: [usize; 3]) -> Lift<View> {
        let node =
            Node { name: "input".into(), op: Op::Input(op::Input::fixed(shape)), inputs: vec![], params: vec![] };
        self.taken.insert(node.name.clone());
        self.nodes.push(node);
        self.shapes.push([&[self.batch], shape.as_slice()].concat());
        Ok(self.whole(NodeId(0)))
    }

    /// The node of the network's output, a vector.
    pub fn logits(&mut self, value: Value) -> Lift<NodeId> {
        let shape = self.value_shape(&value)?;
        let v = self.settled(value)?;
        let v = self.rows(&v, false)?;
        let vector = v.dims.len() == 2 && v.shape().iter().filter(|&&d| d != 1).count() <= 2;
        if vector && v.covers() { Ok(v.base) } else { Err(format!("has the shape {shape:?}")) }
    }

    /// A node that input `i` is the fresh and only reading of, so that it may still be completed.
    fn fresh(&self, i: usize, v: &View) -> Option<NodeId> {
        let name = self.protos[self.at].input.get(i)?;
        let mine = self.born.get(&v.base).is_some_and(|b| b == name);
        (mine && self.uses.get(name.as_str()) == Some(&1)).then_some(v.base)
    }
}

/// A parameter for a node to be.
pub(super) struct Weight {
    pub param: Param,
    /// Its initializer's name, if it is one.
    pub name: Option<String>,
}

impl Weight {
    fn of(c: &Constant) -> Lift<Weight> {
        let param = c.as_param().ok_or("has integers for weights")?.clone();
        Ok(Weight { param, name: c.name.as_deref().map(str::to_owned) })
    }

    fn filled(shape: Vec<usize>, value: f32) -> Lift<Weight> {
        let n = crate::model::params::numel_of(&shape).filter(|&n| n <= MAX_MADE).ok_or("is too wide")?;
        Weight::made(shape, vec![value; n])
    }

    fn made(shape: Vec<usize>, values: Vec<f32>) -> Lift<Weight> {
        let param = Param::owned(shape, values).ok_or("has a parameter whose values do not fit its shape")?;
        Ok(Weight { param, name: None })
    }
}

/// The whole number that input `i` is.
fn number(ins: &[Option<&Constant>], i: usize) -> Option<i64> {
    let &[n] = fold::ints_at(ins, i)? else { return None };
    Some(n)
}

/// `ConstantOfShape`; a leading batch axis is not filled.
fn filled(shape: &[i64], fill: Option<&Constant>, batch: usize, limit: usize) -> Lift<Constant> {
    let batched = batch > 1 && shape.first() == Some(&(batch as i64));
    let dims: Option<Vec<usize>> = shape.iter().map(|&d| usize::try_from(d).ok()).collect();
    let mut dims = dims.ok_or("has a negative shape")?;
    if batched {
        dims[0] = 1;
    }
    let n = crate::model::params::numel_of(&dims).filter(|&n| n <= limit).ok_or("fills a tensor that is too large")?;
    let made = match fill {
        None => Constant::floats(dims, vec![0.0; n]),
        Some(c) => match c.as_ints() {
            Some(v) => Constant::ints(dims, vec![v.first().copied().unwrap_or(0); n]),
            None => Constant::floats(dims, vec![c.to_f32().first().copied().unwrap_or(0.0); n]),
        },
    };
    made.map(|c| Constant { batched, ..c }).ok_or_else(|| "has a shape that does not fit".into())
}

/// The role's word in a parameter's name.
fn suffix(role: ParamRole) -> &'static str {
    match role {
        ParamRole::Weight => "weight",
        ParamRole::Bias => "bias",
        ParamRole::Mean => "running_mean",
        ParamRole::Var => "running_var",
        ParamRole::Embedding => "embedding",
        ParamRole::PositionBias => "position_bias",
        ParamRole::LogitScale => "logit_scale",
        ParamRole::PositionMlp1 => "position_mlp.0.weight",
        ParamRole::PositionMlp1Bias => "position_mlp.0.bias",
        ParamRole::PositionMlp2 => "position_mlp.2.weight",
    }
}
