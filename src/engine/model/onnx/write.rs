//! Our graphs as ONNX, opset 17: every layer as the operators that any runtime has, parameters under their own names,
//! the batch axis free.
//!
//! Values are called `/` and the node's name, so that none collides with a parameter's. Weights of int8 layers are
//! stored as the very rows and scales that we run and dequantized in the graph (`DequantizeLinear`, per channel); layers
//! of static int8 get their inputs rounded to 8 bits over their ranges as well (QDQ). Weights that share values are stored as
//! numbers, a byte each, and looked up in the graph (`Gather`).

use super::proto::{
    AttributeProto, DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto, attribute_type, data_type,
};
use crate::graph::op::{self, Dim, InputType};
use crate::graph::{
    Activation, Binding, Graph, Node, Op, ParamRole, PositionBias, Range, channel_axis, least, shapes_at, window,
};
use crate::model::export::{SCALES, VALUES};
use crate::model::params::{Param, ParamStore, f32_bytes};
use std::collections::BTreeMap;

const OPSET: i64 = 17;
/// The IR version that came with opset 17.
const IR: i64 = 8;

/// Attributes.
fn attr(name: &str) -> AttributeProto {
    AttributeProto { name: Some(name.to_owned()), ..Default::default() }
}

fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { i: Some(i), r#type: Some(attribute_type::INT), ..attr(name) }
}

fn ints(name: &str, v: &[usize]) -> AttributeProto {
    let ints = v.iter().map(|&v| v as i64).collect();
    AttributeProto { ints, r#type: Some(attribute_type::INTS), ..attr(name) }
}

fn float(name: &str, f: f64) -> AttributeProto {
    AttributeProto { f: Some(f as f32), r#type: Some(attribute_type::FLOAT), ..attr(name) }
}

/// What ONNX files are not written for yet, at `node`.
fn unwritten(node: &Node, what: &str) -> String {
    format!("{what} are not written to ONNX (`{}`)", node.name)
}

/// The last axis alone.
fn last_axis() -> AttributeProto {
    AttributeProto { ints: vec![-1], r#type: Some(attribute_type::INTS), ..attr("axes") }
}

/// Where a window over an image lies.
fn window_attrs(kernel: &[usize], stride: &[usize], padding: &[usize]) -> Vec<AttributeProto> {
    vec![ints("kernel_shape", kernel), ints("strides", stride), ints("pads", padding)]
}

fn tensor(name: &str, shape: &[usize], kind: i32, bytes: Vec<u8>) -> TensorProto {
    TensorProto {
        dims: shape.iter().map(|&d| d as i64).collect(),
        data_type: Some(kind),
        name: Some(name.to_owned()),
        raw_data: Some(bytes.into()),
        ..Default::default()
    }
}

/// Whether the layers of `graph` are written at all, with the shapes and parameters that they have.
///
/// # Errors
/// As [`model`].
pub(in crate::model) fn check(graph: &Graph, shapes: &[Vec<usize>], params: &ParamStore) -> Result<(), String> {
    let ranges = BTreeMap::new();
    Writer::of(graph, params, &ranges).layers(graph, shapes)
}

/// The model as protobuf; `shapes` are those of the fewest tokens, where their number is free. `metadata` becomes `metadata_props`.
///
/// # Errors
/// In words: a parameter that is missing.
pub(in crate::model) fn model(
    graph: &Graph,
    shapes: &[Vec<usize>],
    params: &ParamStore,
    ranges: &BTreeMap<String, Range>,
    metadata: &[(&str, String)],
) -> Result<ModelProto, String> {
    let mut w = Writer::of(graph, params, ranges);
    for (name, param) in params.iter() {
        w.parameter(name, param);
    }
    w.layers(graph, shapes)?;
    let free = |word: &str| DimensionProto { dim_param: Some(word.into()), dim_value: None };
    let io = |name: &str, kind: i32, dims: &[Dim]| ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: Some(TypeProto {
            tensor_type: Some(TensorTypeProto {
                elem_type: Some(kind),
                shape: Some(TensorShapeProto {
                    dim: std::iter::once(free("N"))
                        .chain(dims.iter().map(|d| match d {
                            Dim::Fixed(n) => DimensionProto { dim_value: Some(*n as i64), dim_param: None },
                            Dim::Tokens | Dim::Usual(_) => free("tokens"),
                        }))
                        .collect(),
                }),
            }),
        }),
    };
    let last = value(graph.node(graph.output));
    w.op("Identity", &[&last], vec![]);
    w.call_last("logits");
    if let Some((_, input)) = graph.input() {
        let kind = match input.dtype {
            InputType::F32 => data_type::FLOAT,
            InputType::Ids { .. } => data_type::INT64,
        };
        w.out.input.push(io("input", kind, &input.dims));
    }
    w.out.output.push(io("logits", data_type::FLOAT, &free_dims(graph, &shapes[graph.output.index()])));
    let entry = |(k, v): &(&str, String)| StringStringEntryProto { key: Some((*k).to_owned()), value: Some(v.clone()) };
    Ok(ModelProto {
        ir_version: Some(IR),
        producer_name: Some("paring".into()),
        producer_version: Some(env!("CARGO_PKG_VERSION").into()),
        graph: Some(w.out),
        opset_import: vec![OperatorSetIdProto { domain: Some(String::new()), version: Some(OPSET) }],
        metadata_props: metadata.iter().map(entry).collect(),
    })
}

/// The output's axes, `shape` being that of the fewest tokens: those that one token more makes longer are free.
fn free_dims(graph: &Graph, shape: &[usize]) -> Vec<Dim> {
    let tokens = least(graph).ok().and_then(|b| b.tokens);
    let more = tokens.and_then(|n| shapes_at(graph, Binding::tokens(n + 1)).ok());
    let longer = |axis: usize, n: usize| {
        more.as_ref().and_then(|all| all[graph.output.index()].get(axis)).is_some_and(|more| *more != n)
    };
    shape.iter().enumerate().map(|(i, &n)| if longer(i, n) { Dim::Tokens } else { Dim::Fixed(n) }).collect()
}

/// What a node's output is called.
fn value(node: &Node) -> String {
    match node.op {
        Op::Input(_) => "input".to_owned(),
        _ => format!("/{}", node.name),
    }
}

struct Writer<'a> {
    out: GraphProto,
    params: &'a ParamStore,
    ranges: &'a BTreeMap<String, Range>,
    /// The number of tokens is free: no operator may have it as a constant.
    free: bool,
    /// The node being written.
    node: &'a str,
    /// Helper values made for it so far.
    helpers: usize,
}

impl<'a> Writer<'a> {
    fn of(graph: &Graph, params: &'a ParamStore, ranges: &'a BTreeMap<String, Range>) -> Writer<'a> {
        let out = GraphProto { name: Some("main".into()), ..Default::default() };
        Writer { out, params, ranges, free: graph.is_open(), node: "", helpers: 0 }
    }

    fn layers(&mut self, graph: &'a Graph, shapes: &[Vec<usize>]) -> Result<(), String> {
        for (_, node) in graph.live().filter(|(_, n)| !matches!(n.op, Op::Input(_))) {
            let ins: Vec<&[usize]> = node.inputs.iter().map(|i| shapes[i.index()].as_slice()).collect();
            let names: Vec<String> = node.inputs.iter().map(|i| value(graph.node(*i))).collect();
            self.node = &node.name;
            self.helpers = 0;
            self.layer(node, &names, &ins)?;
            self.call_last(&value(node));
        }
        Ok(())
    }
}

impl Writer<'_> {
    fn parameter(&mut self, name: &str, param: &Param) {
        let shape = param.shape();
        if let Some(c) = param.as_codebook() {
            let values = tensor(&format!("{name}{VALUES}"), &[c.values.len()], data_type::FLOAT, f32_bytes(&c.values));
            self.out.initializer.extend([tensor(name, shape, data_type::UINT8, c.codes()), values]);
            return;
        }
        self.out.initializer.extend(match param.as_int8() {
            Some((q, scales)) => {
                let bytes = q.iter().map(|v| v.to_le_bytes()[0]).collect();
                let factors = tensor(&format!("{name}{SCALES}"), &[scales.len()], data_type::FLOAT, f32_bytes(scales));
                vec![tensor(name, shape, data_type::INT8, bytes), factors]
            }
            None => vec![tensor(name, shape, data_type::FLOAT, f32_bytes(&param.values()))],
        });
    }

    /// A name of its own for a helper value.
    fn fresh(&mut self, word: &str) -> String {
        self.helpers += 1;
        format!("/{}/{word}_{}", self.node, self.helpers)
    }

    /// An operator whose output only this layer reads, unless it is the last: see [`Writer::call_last`].
    fn op(&mut self, op: &str, ins: &[&str], attribute: Vec<AttributeProto>) -> String {
        let out = self.fresh(op);
        self.out.node.push(NodeProto {
            input: ins.iter().map(|s| (*s).to_owned()).collect(),
            op_type: Some(op.to_owned()),
            attribute,
            ..Default::default()
        });
        self.call_last(&out);
        out
    }

    /// Names what the last operator writes, and so the operator.
    fn call_last(&mut self, out: &str) {
        if let Some(last) = self.out.node.last_mut() {
            last.output = vec![out.to_owned()];
            last.name = Some(out.trim_start_matches('/').to_owned());
        }
    }

    /// A value that does not depend on the input.
    fn constant(&mut self, word: &str, shape: &[usize], kind: i32, bytes: Vec<u8>) -> String {
        let name = self.fresh(word);
        self.out.initializer.push(tensor(&name, shape, kind, bytes));
        name
    }

    fn floats(&mut self, shape: &[usize], values: &[f32]) -> String {
        self.constant("const", shape, data_type::FLOAT, f32_bytes(values))
    }

    fn number(&mut self, v: f64) -> String {
        self.floats(&[], &[v as f32])
    }

    fn integers(&mut self, values: &[i64]) -> String {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.constant("shape", &[values.len()], data_type::INT64, bytes)
    }

    fn reshape(&mut self, x: &str, to: &[i64]) -> String {
        let shape = self.integers(to);
        self.op("Reshape", &[x, &shape], vec![])
    }

    fn transpose(&mut self, x: &str, perm: &[usize]) -> String {
        self.op("Transpose", &[x], vec![ints("perm", perm)])
    }

    /// `x[.., from..to, ..]` along `axis`.
    fn slice(&mut self, x: &str, axis: usize, from: usize, to: usize) -> String {
        let [from, to, axis] = [from, to, axis].map(|v| self.integers(&[v as i64]));
        self.op("Slice", &[x, &from, &to, &axis], vec![])
    }

    fn gather(&mut self, x: &str, index: &[i64], axis: usize) -> String {
        let at = self.integers(index);
        self.op("Gather", &[x, &at], vec![int("axis", axis as i64)])
    }

    fn concat(&mut self, parts: &[String], axis: usize) -> String {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.op("Concat", &parts, vec![int("axis", axis as i64)])
    }

    /// `x` with so many zeros before and after along `axis`.
    fn pad(&mut self, x: &str, rank: usize, axis: usize, [before, after]: [usize; 2]) -> String {
        let mut pads = vec![0i64; 2 * (rank + 1)];
        (pads[axis], pads[rank + 1 + axis]) = (before as i64, after as i64);
        let pads = self.integers(&pads);
        self.op("Pad", &[x, &pads], vec![])
    }

    fn param(&self, node: &Node, role: ParamRole) -> Result<String, String> {
        let name = node.param(role).ok_or_else(|| format!("`{}` lacks a parameter", node.name))?;
        self.params.get(name).map_err(|e| e.to_string())?;
        Ok(name.to_owned())
    }

    /// The float weight of a layer; int8 rows are dequantized, shared values looked up.
    fn weight(&mut self, node: &Node) -> Result<String, String> {
        let name = self.param(node, ParamRole::Weight)?;
        let param = self.params.get(&name).map_err(|e| e.to_string())?;
        if param.as_codebook().is_some() {
            let at = self.op("Cast", &[&name], vec![int("to", i64::from(data_type::INT32))]);
            let values = name.clone() + VALUES;
            return Ok(self.op("Gather", &[&values, &at], vec![int("axis", 0)]));
        }
        let rows = match param.as_int8() {
            None => return Ok(name),
            Some((_, scales)) => scales.len(),
        };
        let zero = self.constant("zeros", &[rows], data_type::INT8, vec![0; rows]);
        let scale = name.clone() + SCALES;
        Ok(self.op("DequantizeLinear", &[&name, &scale, &zero], vec![int("axis", 0)]))
    }

    /// The layer's input, rounded to 8 bits when its range is known: `q = round(x / s) + z` in 0..=255.
    fn rounded(&mut self, node: &Node, x: &str) -> String {
        let Some(&Range { lo, hi }) = self.ranges.get(&node.name) else { return x.to_owned() };
        let (lo, hi) = (lo.min(0.0), hi.max(0.0));
        let scale = ((hi - lo) / 255.0).max(f32::MIN_POSITIVE);
        let zero = (-lo / scale).round().clamp(0.0, 255.0) as u8;
        let s = self.floats(&[], &[scale]);
        let z = self.constant("zero", &[], data_type::UINT8, vec![zero]);
        let q = self.op("QuantizeLinear", &[x, &s, &z], vec![]);
        self.op("DequantizeLinear", &[&q, &s, &z], vec![])
    }

    /// The layer's operators, of which the last writes the layer's value.
    fn layer(&mut self, node: &Node, names: &[String], ins: &[&[usize]]) -> Result<String, String> {
        let first = names.first().map_or("", String::as_str);
        let rank = ins.first().map_or(0, |s| s.len());
        let axis = ins.first().map_or(1, |s| channel_axis(s) + 1);
        Ok(match &node.op {
            Op::Input(_) => value(node),
            Op::Embedding(_) => {
                let w = self.param(node, ParamRole::Weight)?;
                self.op("Gather", &[&w, first], vec![int("axis", 0)])
            }
            Op::Conv2d(op::Conv2d { bias, .. }) | Op::Linear(op::Linear { bias, .. }) => {
                let x = self.rounded(node, first);
                let w = self.weight(node)?;
                let b = bias.then(|| self.param(node, ParamRole::Bias)).transpose()?;
                let all: Vec<&str> = [Some(x.as_str()), Some(w.as_str()), b.as_deref()].into_iter().flatten().collect();
                if let Op::Conv2d(op::Conv2d { kernel, stride, padding, groups, .. }) = &node.op {
                    let group = int("group", *groups as i64);
                    let attrs = [window_attrs(kernel, stride, padding), vec![group]].concat();
                    return Ok(self.op("Conv", &all, attrs));
                }
                if rank == 1 {
                    return Ok(self.op("Gemm", &all, vec![int("transB", 1)]));
                }
                let w = self.transpose(&w, &[1, 0]);
                let y = self.op("MatMul", &[&x, &w], vec![]);
                match b {
                    None => y,
                    Some(b) => self.op("Add", &[&y, &b], vec![]),
                }
            }
            Op::BatchNorm2d(op::BatchNorm2d { eps, .. }) => {
                use ParamRole::{Bias, Mean, Var, Weight};
                let [w, b, m, v] = [Weight, Bias, Mean, Var].map(|r| self.param(node, r));
                let (w, b, m, v) = (w?, b?, m?, v?);
                let x = if rank == 2 { self.transpose(first, &[0, 2, 1]) } else { first.to_owned() };
                let y = self.op("BatchNormalization", &[&x, &w, &b, &m, &v], vec![float("epsilon", *eps)]);
                if rank == 2 { self.transpose(&y, &[0, 2, 1]) } else { y }
            }
            Op::LayerNorm(op::LayerNorm { eps, .. }) => {
                let (w, b) = (self.param(node, ParamRole::Weight)?, self.param(node, ParamRole::Bias)?);
                self.over_channels(first, rank, |s, x| {
                    s.op("LayerNormalization", &[x, &w, &b], vec![int("axis", -1), float("epsilon", *eps)])
                })
            }
            Op::RmsNorm(op::RmsNorm { eps, .. }) => {
                let w = self.param(node, ParamRole::Weight)?;
                self.over_channels(first, rank, |s, x| {
                    let e = s.number(*eps);
                    let square = s.op("Mul", &[x, x], vec![]);
                    let mean = s.op("ReduceMean", &[&square], vec![last_axis(), int("keepdims", 1)]);
                    let mean = s.op("Add", &[&mean, &e], vec![]);
                    let root = s.op("Sqrt", &[&mean], vec![]);
                    let y = s.op("Div", &[x, &root], vec![]);
                    s.op("Mul", &[&y, &w], vec![])
                })
            }
            Op::Activation { act } => self.activation(*act, first),
            Op::Softmax => self.op("Softmax", &[first], vec![int("axis", -1)]),
            Op::Add => self.op("Add", &[first, &names[1]], vec![]),
            Op::Mul => {
                let second = match (ins[1].len() < rank, rank) {
                    (true, 3) => self.reshape(&names[1], &[0, -1, 1, 1]),
                    (true, _) => self.reshape(&names[1], &[0, 1, -1]),
                    (false, _) => names[1].clone(),
                };
                self.op("Mul", &[first, &second], vec![])
            }
            Op::Scale(_) => {
                let w = self.param(node, ParamRole::Weight)?;
                let w = if rank == 3 { self.reshape(&w, &[-1, 1, 1]) } else { w };
                self.op("Mul", &[first, &w], vec![])
            }
            Op::Scalar(op::Scalar { mul, add }) => {
                let (m, a) = (self.number(*mul), self.number(*add));
                let y = self.op("Mul", &[first, &m], vec![]);
                self.op("Add", &[&y, &a], vec![])
            }
            Op::MaxPool2d(op::MaxPool2d { kernel, stride, padding }) => {
                self.op("MaxPool", &[first], window_attrs(kernel, stride, padding))
            }
            Op::AvgPool2d(op::AvgPool2d { kernel, stride, padding, count_padding }) => {
                let count = int("count_include_pad", i64::from(*count_padding));
                self.op("AveragePool", &[first], [window_attrs(kernel, stride, padding), vec![count]].concat())
            }
            Op::AdaptiveAvgPool2d(op::AdaptiveAvgPool2d { out }) => self.adaptive(first, [ins[0][1], ins[0][2]], *out),
            Op::GlobalAvgPool => {
                let y = self.op("GlobalAveragePool", &[first], vec![]);
                self.op("Flatten", &[&y], vec![int("axis", 1)])
            }
            Op::ChannelPad(op) => self.channels(first, rank, axis, op),
            Op::Concat(_) => self.concat(names, axis),
            Op::Flatten => self.op("Flatten", &[first], vec![int("axis", 1)]),
            Op::ToTokens => {
                let y = self.reshape(first, &[0, 0, -1]);
                self.transpose(&y, &[0, 2, 1])
            }
            Op::ToImage(op::ToImage { h, w }) => {
                let y = self.transpose(first, &[0, 2, 1]);
                self.reshape(&y, &[0, 0, *h as i64, *w as i64])
            }
            Op::PatchMerge(op::PatchMerge { grid: [h, w] }) => {
                let d = ins[0].get(1).copied().unwrap_or(0);
                let y = self.reshape(first, &[0, (h / 2) as i64, 2, (w / 2) as i64, 2, d as i64]);
                let y = self.transpose(&y, &[0, 1, 3, 4, 2, 5]);
                self.reshape(&y, &[0, (h / 2 * (w / 2)) as i64, (4 * d) as i64])
            }
            Op::PrependTokens(op::PrependTokens { count, dim, at }) => {
                let tokens = self.param(node, ParamRole::Embedding)?;
                let all = self.op("Shape", &[first], vec![]);
                let batch = self.slice(&all, 0, 0, 1);
                let rest = self.integers(&[*count as i64, *dim as i64]);
                let to = self.concat(&[batch, rest], 0);
                let tokens = self.op("Expand", &[&tokens, &to], vec![]);
                let parts = match *at {
                    0 => vec![tokens, first.to_owned()],
                    at => {
                        let t = self.tokens(ins);
                        let before = self.slice(first, 1, 0, at);
                        let after = (at != t).then(|| self.slice(first, 1, at, t));
                        [before, tokens].into_iter().chain(after).collect()
                    }
                };
                self.concat(&parts, 1)
            }
            Op::AddPositions(op::AddPositions { shorter: true, .. }) => {
                let all = self.param(node, ParamRole::Embedding)?;
                let shape = self.op("Shape", &[first], vec![]);
                let tokens = self.slice(&shape, 0, 1, 2);
                let [from, axis] = [0, 1].map(|v| self.integers(&[v]));
                let p = self.op("Slice", &[&all, &from, &tokens, &axis], vec![]);
                self.op("Add", &[first, &p], vec![])
            }
            Op::AddPositions(_) => {
                let p = self.param(node, ParamRole::Embedding)?;
                self.op("Add", &[first, &p], vec![])
            }
            Op::Attention(a) if !a.is_plain() => return Err(unwritten(node, "shared keys and masks")),
            Op::Rope(_) => return Err(unwritten(node, "rotary positions")),
            Op::HeadNorm(_) => return Err(unwritten(node, "norms of single heads")),
            Op::Route(_) | Op::Dispatch(_) | Op::Combine(_) => return Err(unwritten(node, "mixtures of experts")),
            Op::Attention(a) => {
                let mut parts = names.to_vec();
                if a.fused {
                    let qk = a.heads * a.qk_dim;
                    let bounds = [(0, qk), (qk, 2 * qk), (2 * qk, 2 * qk + a.heads * a.v_dim)];
                    parts = bounds.map(|(from, to)| self.slice(first, 2, from, to)).to_vec();
                }
                let bias = self.position_bias(node, a)?;
                let factors = a.cosine.then(|| self.param(node, ParamRole::LogitScale)).transpose()?;
                self.attention(a, self.tokens(ins), &parts, bias.as_deref(), factors.as_deref())
            }
            Op::SelectToken(op::SelectToken { index }) => {
                let at = self.constant("index", &[], data_type::INT64, (*index as i64).to_le_bytes().to_vec());
                self.op("Gather", &[first, &at], vec![int("axis", 1)])
            }
            Op::MeanTokens(op::MeanTokens { skip }) => {
                let x = match *skip {
                    0 => first.to_owned(),
                    skip => self.slice(first, 1, skip, self.tokens(ins)),
                };
                self.op("ReduceMean", &[&x], vec![ints("axes", &[1]), int("keepdims", 0)])
            }
        })
    }

    /// Tokens of the first input; where that is not known, where slices up to the end go.
    fn tokens(&self, ins: &[&[usize]]) -> usize {
        if self.free { i64::MAX as usize } else { ins[0].first().copied().unwrap_or(0) }
    }

    /// Runs `body`, which works over the last axis, over the channels.
    fn over_channels(&mut self, x: &str, rank: usize, body: impl Fn(&mut Self, &str) -> String) -> String {
        if rank != 3 {
            return body(self, x);
        }
        let x = self.transpose(x, &[0, 2, 3, 1]);
        let y = self.fresh("last");
        body(self, &x);
        self.call_last(&y);
        self.transpose(&y, &[0, 3, 1, 2])
    }

    fn activation(&mut self, act: Activation, x: &str) -> String {
        match act {
            Activation::Relu => self.op("Relu", &[x], vec![]),
            Activation::Relu6 => {
                let (lo, hi) = (self.number(0.0), self.number(6.0));
                self.op("Clip", &[x, &lo, &hi], vec![])
            }
            Activation::GeluErf => {
                let [root, one, half] = [std::f64::consts::SQRT_2, 1.0, 0.5].map(|v| self.number(v));
                let y = self.op("Div", &[x, &root], vec![]);
                let y = self.op("Erf", &[&y], vec![]);
                let y = self.op("Add", &[&y, &one], vec![]);
                let y = self.op("Mul", &[x, &y], vec![]);
                self.op("Mul", &[&y, &half], vec![])
            }
            Activation::GeluTanh => {
                let k = (2.0 / std::f64::consts::PI).sqrt();
                let [k, cube, one, half] = [k, 0.044715, 1.0, 0.5].map(|v| self.number(v));
                let y = self.op("Mul", &[x, x], vec![]);
                let y = self.op("Mul", &[&y, x], vec![]);
                let y = self.op("Mul", &[&y, &cube], vec![]);
                let y = self.op("Add", &[x, &y], vec![]);
                let y = self.op("Mul", &[&y, &k], vec![]);
                let y = self.op("Tanh", &[&y], vec![]);
                let y = self.op("Add", &[&y, &one], vec![]);
                let y = self.op("Mul", &[x, &y], vec![]);
                self.op("Mul", &[&y, &half], vec![])
            }
            Activation::Silu => {
                let y = self.op("Sigmoid", &[x], vec![]);
                self.op("Mul", &[x, &y], vec![])
            }
            Activation::Sigmoid => self.op("Sigmoid", &[x], vec![]),
            Activation::HardSigmoid => {
                self.op("HardSigmoid", &[x], vec![float("alpha", 1.0 / 6.0), float("beta", 0.5)])
            }
            Activation::HardSwish => self.op("HardSwish", &[x], vec![]),
            Activation::Tanh => self.op("Tanh", &[x], vec![]),
        }
    }

    /// Adaptive pooling has no operator: a plain pool where cells are equal, else one averaging matrix a side.
    fn adaptive(&mut self, x: &str, [h, w]: [usize; 2], [oh, ow]: [usize; 2]) -> String {
        if h.is_multiple_of(oh) && w.is_multiple_of(ow) {
            let k = [h / oh.max(1), w / ow.max(1)];
            return self.op("AveragePool", &[x], vec![ints("kernel_shape", &k), ints("strides", &k)]);
        }
        let matrix = |len: usize, cells: usize, turned: bool| {
            let mut m = vec![0f32; len * cells];
            for o in 0..cells {
                let (from, to) = (o * len / cells, ((o + 1) * len).div_ceil(cells));
                (from..to).for_each(|i| m[if turned { o * len + i } else { i * cells + o }] = 1.0 / (to - from) as f32);
            }
            m
        };
        let columns = self.floats(&[w, ow], &matrix(w, ow, false));
        let rows = self.floats(&[oh, h], &matrix(h, oh, true));
        let y = self.op("MatMul", &[x, &columns], vec![]);
        self.op("MatMul", &[&rows, &y], vec![])
    }

    fn channels(&mut self, x: &str, rank: usize, axis: usize, op: &op::ChannelPad) -> String {
        let op::ChannelPad { stride, in_ch, map } = op;
        let mut x = x.to_owned();
        if *stride > 1 {
            let [from, to, axes, steps] =
                [[0; 2], [i64::MAX; 2], [2, 3], [*stride as i64; 2]].map(|v| self.integers(&v));
            x = self.op("Slice", &[&x, &from, &to, &axes, &steps], vec![]);
        }
        let before = map.iter().take_while(|m| m.is_none()).count();
        let kept: Vec<Option<u32>> = map.iter().skip(before).copied().take_while(Option::is_some).collect();
        let after = map.len() - before - kept.len();
        let all = kept.iter().copied().eq((0..*in_ch as u32).map(Some));
        if all && map.iter().rev().take(after).all(Option::is_none) {
            // Every channel, zeros before and after.
            return self.pad(&x, rank, axis, [before, after]);
        }
        if map.iter().any(Option::is_none) {
            // A zero channel at the end stands for the padding.
            x = self.pad(&x, rank, axis, [0, 1]);
        }
        let index: Vec<i64> = map.iter().map(|m| m.map_or(*in_ch as i64, i64::from)).collect();
        self.gather(&x, &index, axis)
    }

    /// `[heads, n, n]`, added to scores.
    fn position_bias(&mut self, node: &Node, a: &op::Attention) -> Result<Option<String>, String> {
        let size = a.windows.as_ref().map_or([1, 1], |w| w.size);
        let table = match &a.bias {
            PositionBias::None => return Ok(None),
            PositionBias::Full { .. } => return self.param(node, ParamRole::PositionBias).map(Some),
            PositionBias::Table => self.param(node, ParamRole::PositionBias)?,
            PositionBias::Continuous { trained, .. } => {
                let w1 = self.param(node, ParamRole::PositionMlp1)?;
                let b1 = self.param(node, ParamRole::PositionMlp1Bias)?;
                let w2 = self.param(node, ParamRole::PositionMlp2)?;
                let at: Vec<f32> = window::log_coordinates(size, *trained).into_iter().flatten().collect();
                let at = self.floats(&[at.len() / 2, 2], &at);
                let sixteen = self.number(16.0);
                let y = self.op("Gemm", &[&at, &w1, &b1], vec![int("transB", 1)]);
                let y = self.op("Relu", &[&y], vec![]);
                let y = self.op("Gemm", &[&y, &w2], vec![int("transB", 1)]);
                let y = self.op("Sigmoid", &[&y], vec![]);
                self.op("Mul", &[&y, &sixteen], vec![])
            }
        };
        let n = (size[0] * size[1]) as i64;
        let index: Vec<i64> = window::relative_index(size).into_iter().map(i64::from).collect();
        let y = self.gather(&table, &index, 0);
        let y = self.reshape(&y, &[n, n, a.heads as i64]);
        Ok(Some(self.transpose(&y, &[2, 0, 1])))
    }

    /// Attention over `t` tokens (fewer in windows) of queries, keys and values.
    fn attention(
        &mut self,
        a: &op::Attention,
        t: usize,
        parts: &[String],
        bias: Option<&str>,
        factors: Option<&str>,
    ) -> String {
        let heads = a.heads as i64;
        let windows = a.windows.as_ref();
        let (t, order) = windows.map_or((t, None), |w| (w.tokens(), Some(w.order())));
        // A reshape works one axis out by itself, the batch where tokens are known, and keeps others (0).
        let (batch, rows) = if self.free && order.is_none() { (0, -1) } else { (-1, t as i64) };
        let mut split = Vec::with_capacity(3);
        for (i, (x, width)) in parts.iter().zip([a.qk_dim, a.qk_dim, a.v_dim]).enumerate() {
            let mut x = x.clone();
            if let Some(order) = &order {
                let index: Vec<i64> = order.iter().map(|&o| i64::from(o)).collect();
                x = self.gather(&x, &index, 1);
            }
            x = self.reshape(&x, &[batch, rows, heads, width as i64]);
            x = self.transpose(&x, &[0, 2, 1, 3]);
            if a.cosine && i < 2 {
                let tiny = self.number(1e-12);
                let length = self.op("ReduceL2", &[&x], vec![last_axis(), int("keepdims", 1)]);
                let length = self.op("Clip", &[&length, &tiny], vec![]);
                x = self.op("Div", &[&x, &length], vec![]);
            }
            if i == 1 {
                x = self.transpose(&x, &[0, 1, 3, 2]);
            }
            split.push(x);
        }
        let mut y = self.op("MatMul", &[&split[0], &split[1]], vec![]);
        if let Some(f) = factors {
            let most = self.number(100f64.ln());
            let f = self.op("Min", &[f, &most], vec![]);
            let f = self.op("Exp", &[&f], vec![]);
            y = self.op("Mul", &[&y, &f], vec![]);
        }
        if a.scale != 1.0 {
            let s = self.number(a.scale);
            y = self.op("Mul", &[&y, &s], vec![]);
        }
        if let Some(b) = bias {
            y = self.op("Add", &[&y, b], vec![]);
        }
        if let Some(w) = windows.filter(|w| w.shift != [0, 0]) {
            let parts = w.parts();
            let pairs = parts.chunks(t).flat_map(|p| p.iter().flat_map(move |a| p.iter().map(move |b| a == b)));
            let mask: Vec<f32> = pairs.map(|same| if same { 0.0 } else { window::MASKED }).collect();
            let n = t as i64;
            let mask = self.floats(&[w.count(), 1, t, t], &mask);
            let wide = self.reshape(&y, &[-1, w.count() as i64, heads, n, n]);
            let wide = self.op("Add", &[&wide, &mask], vec![]);
            y = self.reshape(&wide, &[-1, heads, n, n]);
        }
        let p = self.op("Softmax", &[&y], vec![int("axis", -1)]);
        let y = self.op("MatMul", &[&p, &split[2]], vec![]);
        let y = self.transpose(&y, &[0, 2, 1, 3]);
        let image = windows.map_or(rows, |w| (w.grid[0] * w.grid[1]) as i64);
        let y = self.reshape(&y, &[batch, image, heads * a.v_dim as i64]);
        let Some(order) = order else { return y };
        let mut back = vec![0i64; order.len()];
        (0i64..).zip(&order).for_each(|(i, &o)| back[o as usize] = i);
        self.gather(&y, &back, 1)
    }
}
