//! Gradients on the CPU through our own kernels: a forward pass that keeps what the backward pass needs, and the backward pass.
//!
//! Values are channels-last, as in compiled plans; convolutions and linears run the same packed kernels both ways, norms, activations and
//! attention have kernels of their own, and every other op is computed and differentiated by its definition (`candle`), so that no op
//! is without a gradient. Which it is: `rule`. Not here: what a loss is and what is done with gradients (`train`).
//! Invariant: a pass runs on the thread that calls it, and its result depends on nothing else.

mod attention;
mod buffer;
mod defined;
mod dense;
mod rule;
mod shortcut;
#[cfg(test)]
mod tests;
mod weights;

use super::candle::Mode;
use super::error::{ExecError, Result};
use super::input;
use super::kernel::{batch, rows, simple, slope};
use crate::graph::{Graph, Node, NodeId, Op, ParamRole, param_shapes, shapes};
use buffer::{Buffer, Pool};
use candle_core::{DType, Tensor};
use dense::Packed;
use rayon::prelude::*;
use rule::Rule;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

pub use weights::weights;

/// Parameters by checkpoint name, in the checkpoint's layout.
pub type Weights = HashMap<String, Vec<f32>>;

/// Statistics of a batch norm's input over batch and positions: mean and unbiased variance, as they are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Statistics {
    pub mean: Vec<f64>,
    pub var: Vec<f64>,
}

/// A graph that gradients are taken of.
#[derive(Debug)]
pub struct Tape {
    graph: Graph,
    /// How each node is computed; `None` where the output does not depend on it.
    rules: Vec<Option<Rule>>,
    shapes: Vec<Vec<usize>>,
    /// The node that holds a node's value: itself, or one whose value is the same.
    home: Vec<usize>,
    /// A parameter lies before the node, or in it.
    learns: Vec<bool>,
    pool: Arc<Pool>,
}

/// A tape with packed weights.
pub struct Ready<'a> {
    tape: &'a Tape,
    weights: &'a Weights,
    packed: Vec<Option<Packed>>,
}

/// What a forward pass leaves for the backward pass.
pub struct Trace {
    images: usize,
    values: Vec<Option<Rc<Buffer>>>,
    saved: Vec<Saved>,
    /// In [`Mode::Batch`], of every batch norm that was passed, by node name.
    pub statistics: BTreeMap<String, Statistics>,
}

/// Gradients that a backward pass is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Params,
    Input,
    All,
}

/// What a node keeps besides its value.
enum Saved {
    Nothing,
    /// What a batch norm took away and multiplied by.
    Norm {
        mean: Vec<f32>,
        inverse: Vec<f32>,
    },
    Defined(Box<defined::Traced>),
}

impl Tape {
    /// Chooses a rule for every node that the output depends on.
    ///
    /// # Errors
    /// A graph whose shapes do not fit.
    pub fn of(graph: &Graph) -> Result<Tape> {
        let (shapes, needed) = (shapes(graph)?, graph.reachable());
        let rules = rule::choose(graph, &shapes, &needed);
        let mut home: Vec<usize> = (0..graph.nodes.len()).collect();
        let mut learns = vec![false; graph.nodes.len()];
        for (id, node) in graph.iter().filter(|(id, _)| needed[id.index()]) {
            learns[id.index()] = !node.params.is_empty() || node.inputs.iter().any(|i| learns[i.index()]);
            if let (Some(Rule::Same), Some(first)) = (&rules[id.index()], node.inputs.first()) {
                home[id.index()] = home[first.index()];
            }
        }
        Ok(Tape { graph: graph.clone(), rules, shapes, home, learns, pool: Arc::default() })
    }

    /// Packs `weights` for both passes.
    ///
    /// # Errors
    /// A parameter that is missing or has another size, with its node.
    pub fn ready<'a>(&'a self, weights: &'a Weights) -> Result<Ready<'a>> {
        for (_, node) in self.graph.iter().filter(|(id, _)| self.rules[id.index()].is_some()) {
            for (role, shape) in param_shapes(&node.op) {
                let name = node.param(role).ok_or_else(|| ExecError::no_param(node, role))?;
                let found = weights.get(name).map(Vec::len);
                if found != Some(shape.iter().product()) {
                    return Err(ExecError::shape(node, found, format!("`{name}` of {shape:?}")));
                }
            }
        }
        let pack = |i: usize| match &self.rules[i] {
            Some(Rule::Dense(geo)) => {
                let node = &self.graph.nodes[i];
                let of = |role| node.param(role).and_then(|name| weights.get(name));
                let back = node.inputs.first().is_some_and(|x| self.learns[x.index()]);
                of(ParamRole::Weight).map(|w| Packed::of(*geo, w, of(ParamRole::Bias).map(Vec::as_slice), back))
            }
            _ => None,
        };
        let packed = (0..self.rules.len()).into_par_iter().map(pack).collect();
        Ok(Ready { tape: self, weights, packed })
    }

    fn size(&self, i: usize) -> usize {
        self.shapes[i].iter().product()
    }
}

impl Ready<'_> {
    fn param(&self, node: &Node, role: ParamRole) -> Result<&[f32]> {
        let found = node.param(role).and_then(|name| self.weights.get(name));
        found.map(Vec::as_slice).ok_or_else(|| ExecError::no_param(node, role))
    }

    /// Runs the network on `x`, `[N, …]` as the graph's input takes it.
    ///
    /// # Errors
    /// An input of another shape; what an op's definition reports.
    pub fn forward(&self, x: &Tensor, mode: Mode) -> Result<Trace> {
        let Tape { graph, rules, home, pool, .. } = self.tape;
        let images = x.dims().first().copied().unwrap_or(0);
        let mut trace = Trace {
            images,
            values: vec![None; rules.len()],
            saved: rules.iter().map(|_| Saved::Nothing).collect(),
            statistics: BTreeMap::new(),
        };
        for (id, node) in graph.iter() {
            let (i, Some(rule)) = (id.index(), &rules[id.index()]) else { continue };
            let mut out = match rule {
                Rule::Same => continue,
                _ => pool.take(images * self.tape.size(i)),
            };
            let value = |k: usize| -> Result<&Buffer> {
                let at = node.inputs.get(k).map(|id| home[id.index()]);
                at.and_then(|at| trace.values[at].as_deref())
                    .ok_or_else(|| ExecError::unsupported(node, "has an input that was not computed"))
            };
            let mut saved = Saved::Nothing;
            match rule {
                Rule::Same => {}
                Rule::Input => self.read(node, x, &mut out)?,
                Rule::Dense(_) => {
                    if let Some(packed) = &self.packed[i] {
                        packed.forward(value(0)?, &mut out);
                    }
                }
                Rule::BatchNorm { channels, eps, relu } => {
                    let (x, c) = (value(0)?, *channels);
                    let (mean, var): (Vec<f64>, Vec<f64>) = match mode {
                        Mode::Batch => batch::moments(x, c).iter().map(|m| (m.mean, m.var)).unzip(),
                        Mode::Eval => {
                            let of = |role| self.param(node, role).map(|v| v.iter().map(|v| f64::from(*v)).collect());
                            (of(ParamRole::Mean)?, of(ParamRole::Var)?)
                        }
                    };
                    let inverse: Vec<f32> = var.iter().map(|v| (1.0 / (v + eps).sqrt()) as f32).collect();
                    let (w, b) = (self.param(node, ParamRole::Weight)?, self.param(node, ParamRole::Bias)?);
                    let scale: Vec<f32> = w.iter().zip(&inverse).map(|(w, i)| w * i).collect();
                    let shift: Vec<f32> = b
                        .iter()
                        .zip(&mean)
                        .zip(&scale)
                        .map(|((b, m), s)| (f64::from(*b) - m * f64::from(*s)) as f32)
                        .collect();
                    batch::affine(x, &scale, &shift, *relu, &mut out);
                    saved = Saved::Norm { mean: mean.iter().map(|m| *m as f32).collect(), inverse };
                    if mode == Mode::Batch {
                        let n = (x.len() / c.max(1)) as f64;
                        let var = var.iter().map(|v| v * n / (n - 1.0).max(1.0)).collect();
                        trace.statistics.insert(node.name.clone(), Statistics { mean, var });
                    }
                }
                Rule::LayerNorm { eps } => {
                    let (w, b) = (self.param(node, ParamRole::Weight)?, self.param(node, ParamRole::Bias)?);
                    rows::layer_norm(value(0)?, w, b, *eps as f32, &mut out);
                }
                Rule::Activation(act) => rows::activate_into(value(0)?, *act, &mut out),
                Rule::Add { relu } => {
                    rows::add(value(0)?, value(1)?, relu.then_some(crate::graph::Activation::Relu), &mut out);
                }
                Rule::MeanPlaces { places, channels } => {
                    simple::mean_rows(*places, 0, *channels, value(0)?, &mut out, super::kernel::Par::ALONE);
                }
                Rule::Shortcut(cut) => cut.forward(value(0)?, &mut out),
                Rule::Attention(core) => core.forward(&self.inputs(&trace, node)?, &mut out),
                Rule::Defined => {
                    let inputs = self.inputs(&trace, node)?;
                    saved =
                        Saved::Defined(Box::new(self.tape.define(self.weights, (i, node), &inputs, mode, &mut out)?));
                }
            }
            trace.values[i] = Some(Rc::new(out));
            trace.saved[i] = saved;
        }
        Ok(trace)
    }

    fn inputs<'t>(&self, trace: &'t Trace, node: &Node) -> Result<Vec<&'t [f32]>> {
        let one = |id: &NodeId| {
            let found = trace.values[self.tape.home[id.index()]].as_deref();
            found.map(|v| &v[..]).ok_or_else(|| ExecError::unsupported(node, "has an input that was not computed"))
        };
        node.inputs.iter().map(one).collect()
    }

    /// Brings the graph's input into the layout of values.
    fn read(&self, node: &Node, x: &Tensor, out: &mut [f32]) -> Result<()> {
        if let Op::Input(op) = &node.op {
            input::check(node, op, x)?;
        }
        let failed = |e| ExecError::candle(node, e);
        let flat = x.to_dtype(DType::F32).and_then(|x| x.flatten_all()?.to_vec1::<f32>()).map_err(failed)?;
        if flat.len() != out.len() {
            return Err(ExecError::shape(node, x.dims(), "an input of the graph's size"));
        }
        buffer::last(&self.tape.shapes[self.index(node)], &flat, out);
        Ok(())
    }

    fn index(&self, node: &Node) -> usize {
        self.tape.graph.by_name(&node.name).map_or(0, NodeId::index)
    }

    /// Gradients of every parameter that was reached, by checkpoint name and in the checkpoint's layout, for `seeds`: gradients of the loss
    /// by values of nodes, as [`Trace::value`] gives them. With `input` also the graph's input's, as that was given.
    ///
    /// # Errors
    /// A seed for a node that was not computed or of another size; what an op's definition reports.
    pub fn backward(&self, trace: Trace, seeds: Vec<(NodeId, Vec<f32>)>, input: bool) -> Result<Gradients> {
        self.back(trace, seeds, if input { Wanted::All } else { Wanted::Params })
    }

    /// The gradient of the graph's input alone, as that was given: a third of the work less than with those of parameters.
    ///
    /// # Errors
    /// As [`Ready::backward`]; an output that does not depend on the input.
    pub fn input_gradient(&self, trace: Trace, seeds: Vec<(NodeId, Vec<f32>)>) -> Result<Vec<f32>> {
        let found = self.back(trace, seeds, Wanted::Input)?.input;
        let output = self.tape.graph.node(self.tape.graph.output);
        found.ok_or_else(|| ExecError::unsupported(output, "does not depend on the input"))
    }

    fn back(&self, mut trace: Trace, seeds: Vec<(NodeId, Vec<f32>)>, what: Wanted) -> Result<Gradients> {
        let (input, params) = (what != Wanted::Params, what != Wanted::Input);
        let Tape { graph, rules, home, learns, pool, .. } = self.tape;
        let mut grads = Adjoints { of: vec![None; rules.len()] };
        let mut out = Gradients::default();
        for (id, seed) in seeds {
            let (at, node) = (home[id.index()], graph.node(id));
            match trace.values[at].as_deref() {
                Some(v) if v.len() == seed.len() => {}
                v => return Err(ExecError::shape(node, v.map(|v| v.len()), format!("{} gradients", seed.len()))),
            }
            let mut own = pool.take(seed.len());
            own.copy_from_slice(&seed);
            grads.add(at, Rc::new(own));
        }
        for (id, node) in graph.iter().rev() {
            let i = id.index();
            let (Some(rule), Some(g)) = (&rules[i], grads.of[i].take()) else { continue };
            let wanted = |k: usize| node.inputs.get(k).is_some_and(|id| input || learns[id.index()]);
            let at = |k: usize| home[node.inputs[k].index()];
            let value = |k: usize| trace.values[at(k)].as_deref().map(|v| &v[..]).unwrap_or_default();
            match rule {
                Rule::Same => {}
                Rule::Input => {
                    let mut first = vec![0.0; g.len()];
                    buffer::first(&self.tape.shapes[i], &g, &mut first);
                    out.input = Some(first);
                }
                Rule::Dense(geo) => {
                    if params {
                        out.add(node, ParamRole::Weight, dense::weight_gradient(geo, value(0), &g));
                    }
                    if params && node.param(ParamRole::Bias).is_some() {
                        out.add(node, ParamRole::Bias, narrow(&batch::columns(&g, geo.out_channels)));
                    }
                    if wanted(0) {
                        let mut dx = pool.take(value(0).len());
                        let before = grads.of[at(0)].take();
                        let weight = self.param(node, ParamRole::Weight)?;
                        match &self.packed[i] {
                            Some(packed) => {
                                packed.backward(geo, weight, &g, before.as_deref().map(|b| &b[..]), &mut dx)
                            }
                            None => return Err(ExecError::no_param(node, ParamRole::Weight)),
                        }
                        grads.of[at(0)] = Some(Rc::new(dx));
                    }
                }
                Rule::BatchNorm { channels, relu, .. } => {
                    let Saved::Norm { mean, inverse } = &trace.saved[i] else { continue };
                    let (x, y) = (value(0), trace.values[i].as_deref().map(|v| &v[..]).unwrap_or_default());
                    let mut masked = None;
                    if *relu {
                        let mut cut = pool.take(g.len());
                        batch::masked(&g, y, &mut cut);
                        masked = Some(cut);
                    }
                    let g: &[f32] = masked.as_deref().unwrap_or(&g);
                    let batch_mode = trace.statistics.contains_key(&node.name);
                    let sums = if params || batch_mode { batch::against(x, g, mean) } else { Vec::new() };
                    let w = self.param(node, ParamRole::Weight)?;
                    let unit = |ch: usize| f64::from(inverse[ch]);
                    if params {
                        let weight = (0..*channels).map(|ch| (sums[ch].1 * unit(ch)) as f32).collect();
                        out.add(node, ParamRole::Weight, weight);
                        out.add(node, ParamRole::Bias, sums.iter().map(|s| s.0 as f32).collect());
                    }
                    if wanted(0) {
                        // gx = w/σ·(g - Σg/n - x̂·Σ(g·x̂)/n), as one function of g and x; with stored statistics w/σ·g.
                        let n = (x.len() / (*channels).max(1)) as f64;
                        let mut factors = [vec![0f32; *channels], vec![0f32; *channels], vec![0f32; *channels]];
                        for ch in 0..*channels {
                            let a = f64::from(w[ch]) * unit(ch);
                            factors[0][ch] = a as f32;
                            if batch_mode {
                                let slope = a * unit(ch).powi(2) * sums[ch].1 / n;
                                factors[1][ch] = -slope as f32;
                                factors[2][ch] = (slope * f64::from(mean[ch]) - a * sums[ch].0 / n) as f32;
                            }
                        }
                        let mut dx = pool.take(x.len());
                        batch::combined(g, x, [&factors[0], &factors[1], &factors[2]], &mut dx);
                        grads.add(at(0), Rc::new(dx));
                    }
                }
                Rule::LayerNorm { eps } => {
                    let mut dx = pool.take(g.len());
                    let (w, b) = slope::layer_norm(&g, value(0), self.param(node, ParamRole::Weight)?, *eps, &mut dx);
                    out.add(node, ParamRole::Weight, w);
                    out.add(node, ParamRole::Bias, b);
                    if wanted(0) {
                        grads.add(at(0), Rc::new(dx));
                    }
                }
                Rule::Activation(act) if wanted(0) => {
                    let mut dx = pool.take(g.len());
                    slope::activation(&g, value(0), *act, &mut dx);
                    grads.add(at(0), Rc::new(dx));
                }
                Rule::Add { relu } => {
                    let g = match relu {
                        false => g,
                        true => {
                            let mut cut = pool.take(g.len());
                            let y = trace.values[i].as_deref().map(|v| &v[..]).unwrap_or_default();
                            batch::masked(&g, y, &mut cut);
                            Rc::new(cut)
                        }
                    };
                    for k in (0..2).filter(|k| wanted(*k)) {
                        grads.add(at(k), g.clone());
                    }
                }
                Rule::MeanPlaces { places, channels } if wanted(0) => {
                    let mut dx = pool.take(g.len() * places);
                    for (dx, g) in dx.chunks_exact_mut(places * channels).zip(g.chunks_exact(*channels)) {
                        for row in dx.chunks_exact_mut(*channels) {
                            row.iter_mut().zip(g).for_each(|(d, g)| *d = g / *places as f32);
                        }
                    }
                    grads.add(at(0), Rc::new(dx));
                }
                Rule::Shortcut(cut) if wanted(0) => {
                    let mut dx = pool.take(value(0).len());
                    cut.backward(&g, &mut dx);
                    grads.add(at(0), Rc::new(dx));
                }
                Rule::Activation(_) | Rule::MeanPlaces { .. } | Rule::Shortcut(_) => {}
                Rule::Attention(core) => {
                    let inputs = self.inputs(&trace, node)?;
                    let mut made: Vec<Buffer> = inputs.iter().map(|x| pool.take(x.len())).collect();
                    core.backward(&inputs, &g, &mut made);
                    for (k, dx) in made.into_iter().enumerate().filter(|(k, _)| wanted(*k)) {
                        grads.add(at(k), Rc::new(dx));
                    }
                }
                Rule::Defined => {
                    let Saved::Defined(traced) = std::mem::replace(&mut trace.saved[i], Saved::Nothing) else {
                        continue;
                    };
                    let (params, inputs) = self.tape.differentiate((i, node), *traced, &g)?;
                    params.into_iter().for_each(|(role, grad)| out.add(node, role, grad));
                    for (k, dx) in inputs.into_iter().enumerate().filter(|(k, _)| wanted(*k)) {
                        if let Some(dx) = dx {
                            let mut own = pool.take(dx.len());
                            own.copy_from_slice(&dx);
                            grads.add(at(k), Rc::new(own));
                        }
                    }
                }
            }
            trace.values[i] = None;
        }
        Ok(out)
    }
}

impl Trace {
    /// Images, or sequences, that were run.
    pub fn images(&self) -> usize {
        self.images
    }

    /// The value of a node of the tape's graph, `[N, h, w, c]`, `[N, tokens, c]` or `[N, c]`. Of a batch norm or sum that a ReLU follows and nothing
    /// else reads, it is that ReLU's.
    pub fn value(&self, tape: &Tape, id: NodeId) -> Option<&[f32]> {
        self.values.get(*tape.home.get(id.index())?)?.as_deref().map(|v| &v[..])
    }

    /// What the network answers, as [`Trace::value`].
    pub fn output(&self, tape: &Tape) -> &[f32] {
        self.value(tape, tape.graph.output).unwrap_or_default()
    }
}

/// Gradients of parameters, by checkpoint name.
#[derive(Debug, Default)]
pub struct Gradients {
    pub params: HashMap<String, Vec<f32>>,
    /// Of the graph's input, as it was given.
    pub input: Option<Vec<f32>>,
}

impl Gradients {
    /// Layers may share a parameter.
    fn add(&mut self, node: &Node, role: ParamRole, grad: Vec<f32>) {
        let Some(name) = node.param(role) else { return };
        match self.params.get_mut(name) {
            Some(have) => rows::add_assign(have, &grad, None),
            None => drop(self.params.insert(name.to_owned(), grad)),
        }
    }
}

/// Gradients by values of nodes, as far as they are known.
struct Adjoints {
    of: Vec<Option<Rc<Buffer>>>,
}

impl Adjoints {
    fn add(&mut self, at: usize, g: Rc<Buffer>) {
        match self.of[at].take() {
            None => self.of[at] = Some(g),
            Some(mut have) => {
                match Rc::get_mut(&mut have) {
                    Some(own) => rows::add_assign(own, &g, None),
                    None => {
                        let mut sum = g.another();
                        rows::add(&have, &g, None, &mut sum);
                        have = Rc::new(sum);
                    }
                }
                self.of[at] = Some(have);
            }
        }
    }
}

fn narrow(v: &[f64]) -> Vec<f32> {
    v.iter().map(|v| *v as f32).collect()
}
