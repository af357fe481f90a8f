//! Our graphs as ONNX, opset 17: every layer as the operators that any runtime has, parameters under their own names,
//! the batch axis free.
//!
//! Values are called `/` and the node's name, so that none collides with a parameter's. Weights of int8 layers are
//! stored as the very rows and scales that we run and dequantized in the graph (`DequantizeLinear`, per channel); layers
//! of static int8 get their inputs rounded to 8 bits over their ranges as well (QDQ).

use super::proto::{
    AttributeProto, DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto, attribute_type, data_type,
};
use crate::graph::op::{self, Dim, InputType};
use crate::graph::{
    Activation, Binding, Graph, Node, Op, ParamRole, PositionBias, Range, Windows, channel_axis, least, shapes_at,
    window,
};
use crate::model::{Param, ParamStore};
use std::collections::BTreeMap;

const OPSET: i64 = 17;
/// The IR version that came with opset 17.
const IR: i64 = 8;
/// Appended to an int8 weight's name for its scales, as in our safetensors.
pub(in crate::model) const SCALES: &str = ".paring_scales";

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

fn tensor(name: &str, shape: &[usize], kind: i32, bytes: Vec<u8>) -> TensorProto {
    TensorProto {
        dims: shape.iter().map(|&d| d as i64).collect(),
        data_type: Some(kind),
        name: Some(name.to_owned()),
        raw_data: Some(bytes.into()),
        ..Default::default()
    }
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
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
    let mut w = Writer {
        out: GraphProto { name: Some("main".into()), ..Default::default() },
        params,
        ranges,
        free: graph.is_free(),
        node: "",
        helpers: 0,
    };
    for (name, param) in params.iter() {
        w.parameter(name, param);
    }
    let reachable = graph.reachable();
    for (_, node) in graph.iter().filter(|(id, _)| reachable[id.index()]) {
        let ins: Vec<&[usize]> = node.inputs.iter().map(|i| shapes[i.index()].as_slice()).collect();
        let names: Vec<String> = node.inputs.iter().map(|i| value(graph.node(*i))).collect();
        w.node = &node.name;
        w.helpers = 0;
        w.layer(node, &names, &ins)?;
    }
    let io = |name: &str, kind: i32, dims: &[Dim]| ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: Some(TypeProto {
            tensor_type: Some(TensorTypeProto {
                elem_type: Some(kind),
                shape: Some(TensorShapeProto {
                    dim: std::iter::once(DimensionProto { dim_param: Some("N".into()), dim_value: None })
                        .chain(dims.iter().map(|d| match d {
                            Dim::Fixed(n) => DimensionProto { dim_value: Some(*n as i64), dim_param: None },
                            Dim::Tokens => DimensionProto { dim_param: Some("tokens".into()), dim_value: None },
                        }))
                        .collect(),
                }),
            }),
        }),
    };
    let last = value(graph.node(graph.output));
    w.op("Identity", &[&last], "logits", vec![]);
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

impl Writer<'_> {
    fn parameter(&mut self, name: &str, param: &Param) {
        match param.as_int8() {
            Some((q, scales)) => {
                let bytes = q.iter().map(|v| v.to_le_bytes()[0]).collect();
                self.out.initializer.push(tensor(name, param.shape(), data_type::INT8, bytes));
                let scale = name.to_owned() + SCALES;
                self.out.initializer.push(tensor(&scale, &[scales.len()], data_type::FLOAT, f32s(scales)));
            }
            None => {
                let bytes = f32s(&param.values());
                self.out.initializer.push(tensor(name, param.shape(), data_type::FLOAT, bytes));
            }
        }
    }

    /// A name of its own for a helper value.
    fn fresh(&mut self, word: &str) -> String {
        self.helpers += 1;
        format!("/{}/{word}_{}", self.node, self.helpers)
    }

    /// An operator that writes `out`.
    fn op(&mut self, op: &str, ins: &[&str], out: &str, attribute: Vec<AttributeProto>) -> String {
        self.out.node.push(NodeProto {
            input: ins.iter().map(|s| (*s).to_owned()).collect(),
            output: vec![out.to_owned()],
            name: Some(out.trim_start_matches('/').to_owned()),
            op_type: Some(op.to_owned()),
            attribute,
            ..Default::default()
        });
        out.to_owned()
    }

    /// An operator whose output only this layer reads.
    fn then(&mut self, op: &str, ins: &[&str], attribute: Vec<AttributeProto>) -> String {
        let out = self.fresh(op);
        self.op(op, ins, &out, attribute)
    }

    fn floats(&mut self, shape: &[usize], values: &[f32]) -> String {
        let name = self.fresh("const");
        self.out.initializer.push(tensor(&name, shape, data_type::FLOAT, f32s(values)));
        name
    }

    fn number(&mut self, v: f64) -> String {
        self.floats(&[], &[v as f32])
    }

    fn integers(&mut self, values: &[i64]) -> String {
        let name = self.fresh("shape");
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.out.initializer.push(tensor(&name, &[values.len()], data_type::INT64, bytes));
        name
    }

    fn reshape(&mut self, x: &str, to: &[i64]) -> String {
        let shape = self.integers(to);
        self.then("Reshape", &[x, &shape], vec![])
    }

    fn transpose(&mut self, x: &str, perm: &[usize]) -> String {
        self.then("Transpose", &[x], vec![ints("perm", perm)])
    }

    /// `x[.., from..to, ..]` along `axis`.
    fn slice(&mut self, x: &str, axis: usize, from: usize, to: usize) -> String {
        let [from, to, axis] = [from, to, axis].map(|v| self.integers(&[v as i64]));
        self.then("Slice", &[x, &from, &to, &axis], vec![])
    }

    fn gather(&mut self, x: &str, index: &[i64], axis: usize) -> String {
        let at = self.integers(index);
        self.then("Gather", &[x, &at], vec![int("axis", axis as i64)])
    }

    fn param(&self, node: &Node, role: ParamRole) -> Result<String, String> {
        let name = node.param(role).ok_or_else(|| format!("`{}` lacks a parameter", node.name))?;
        self.params.get(name).map_err(|e| e.to_string())?;
        Ok(name.to_owned())
    }

    /// The float weight of a layer; int8 rows are dequantized.
    fn weight(&mut self, node: &Node) -> Result<String, String> {
        let name = self.param(node, ParamRole::Weight)?;
        let rows = match self.params.get(&name).map_err(|e| e.to_string())?.as_int8() {
            None => return Ok(name),
            Some((_, scales)) => scales.len(),
        };
        let zero = self.fresh("zeros");
        self.out.initializer.push(tensor(&zero, &[rows], data_type::INT8, vec![0; rows]));
        let scale = name.clone() + SCALES;
        Ok(self.then("DequantizeLinear", &[&name, &scale, &zero], vec![int("axis", 0)]))
    }

    /// The layer's input, rounded to 8 bits when its range is known: `q = round(x / s) + z` in 0..=255.
    fn rounded(&mut self, node: &Node, x: &str) -> String {
        let Some(&Range { lo, hi }) = self.ranges.get(&node.name) else { return x.to_owned() };
        let (lo, hi) = (lo.min(0.0), hi.max(0.0));
        let scale = ((hi - lo) / 255.0).max(f32::MIN_POSITIVE);
        let zero = (-lo / scale).round().clamp(0.0, 255.0) as u8;
        let s = self.floats(&[], &[scale]);
        let z = self.fresh("zero");
        self.out.initializer.push(tensor(&z, &[], data_type::UINT8, vec![zero]));
        let q = self.then("QuantizeLinear", &[x, &s, &z], vec![]);
        self.then("DequantizeLinear", &[&q, &s, &z], vec![])
    }

    fn layer(&mut self, node: &Node, names: &[String], ins: &[&[usize]]) -> Result<(), String> {
        let out = value(node);
        let first = names.first().map_or("", String::as_str);
        let rank = ins.first().map_or(0, |s| s.len());
        let axis = ins.first().map_or(1, |s| channel_axis(s) + 1);
        match &node.op {
            Op::Input(_) => {}
            Op::Embedding(_) => {
                let w = self.param(node, ParamRole::Weight)?;
                self.op("Gather", &[&w, first], &out, vec![int("axis", 0)]);
            }
            Op::Conv2d(op::Conv2d { kernel, stride, padding, groups, bias, .. }) => {
                let x = self.rounded(node, first);
                let w = self.weight(node)?;
                let b = bias.then(|| self.param(node, ParamRole::Bias)).transpose()?;
                let all: Vec<&str> = [Some(x.as_str()), Some(w.as_str()), b.as_deref()].into_iter().flatten().collect();
                let attrs = vec![
                    ints("kernel_shape", kernel),
                    ints("strides", stride),
                    ints("pads", padding),
                    int("group", *groups as i64),
                ];
                self.op("Conv", &all, &out, attrs);
            }
            Op::Linear(op::Linear { bias, .. }) => {
                let x = self.rounded(node, first);
                let w = self.weight(node)?;
                let b = bias.then(|| self.param(node, ParamRole::Bias)).transpose()?;
                if rank == 1 {
                    let all: Vec<&str> =
                        [Some(x.as_str()), Some(w.as_str()), b.as_deref()].into_iter().flatten().collect();
                    self.op("Gemm", &all, &out, vec![int("transB", 1)]);
                    return Ok(());
                }
                let w = self.transpose(&w, &[1, 0]);
                match b {
                    None => self.op("MatMul", &[&x, &w], &out, vec![]),
                    Some(b) => {
                        let y = self.then("MatMul", &[&x, &w], vec![]);
                        self.op("Add", &[&y, &b], &out, vec![])
                    }
                };
            }
            Op::BatchNorm2d(op::BatchNorm2d { eps, .. }) => {
                use ParamRole::{Bias, Mean, Var, Weight};
                let p = [Weight, Bias, Mean, Var].map(|r| self.param(node, r));
                let [w, b, m, v] = p;
                let (w, b, m, v) = (w?, b?, m?, v?);
                let x = if rank == 2 { self.transpose(first, &[0, 2, 1]) } else { first.to_owned() };
                let ins = [x.as_str(), &w, &b, &m, &v];
                if rank == 2 {
                    let y = self.then("BatchNormalization", &ins, vec![float("epsilon", *eps)]);
                    self.op("Transpose", &[&y], &out, vec![ints("perm", &[0, 2, 1])]);
                } else {
                    self.op("BatchNormalization", &ins, &out, vec![float("epsilon", *eps)]);
                }
            }
            Op::LayerNorm(op::LayerNorm { eps, .. }) => {
                let (w, b) = (self.param(node, ParamRole::Weight)?, self.param(node, ParamRole::Bias)?);
                self.over_channels(first, rank, &out, |s, x, out| {
                    s.op("LayerNormalization", &[x, &w, &b], out, vec![int("axis", -1), float("epsilon", *eps)]);
                });
            }
            Op::RmsNorm(op::RmsNorm { eps, .. }) => {
                let w = self.param(node, ParamRole::Weight)?;
                self.over_channels(first, rank, &out, |s, x, out| {
                    let e = s.number(*eps);
                    let square = s.then("Mul", &[x, x], vec![]);
                    let minus = AttributeProto { ints: vec![-1], r#type: Some(attribute_type::INTS), ..attr("axes") };
                    let mean = s.then("ReduceMean", &[&square], vec![minus, int("keepdims", 1)]);
                    let mean = s.then("Add", &[&mean, &e], vec![]);
                    let root = s.then("Sqrt", &[&mean], vec![]);
                    let y = s.then("Div", &[x, &root], vec![]);
                    s.op("Mul", &[&y, &w], out, vec![]);
                });
            }
            Op::Activation { act } => self.activation(*act, first, &out),
            Op::Softmax => drop(self.op("Softmax", &[first], &out, vec![int("axis", -1)])),
            Op::Add => drop(self.op("Add", &[first, &names[1]], &out, vec![])),
            Op::Mul => {
                let second = match (ins[1].len() < rank, rank) {
                    (true, 3) => self.reshape(&names[1], &[0, -1, 1, 1]),
                    (true, _) => self.reshape(&names[1], &[0, 1, -1]),
                    (false, _) => names[1].clone(),
                };
                self.op("Mul", &[first, &second], &out, vec![]);
            }
            Op::Scale(_) => {
                let w = self.param(node, ParamRole::Weight)?;
                let w = if rank == 3 { self.reshape(&w, &[-1, 1, 1]) } else { w };
                self.op("Mul", &[first, &w], &out, vec![]);
            }
            Op::Scalar(op::Scalar { mul, add }) => {
                let (m, a) = (self.number(*mul), self.number(*add));
                let y = self.then("Mul", &[first, &m], vec![]);
                self.op("Add", &[&y, &a], &out, vec![]);
            }
            Op::MaxPool2d(op::MaxPool2d { kernel, stride, padding }) => {
                let attrs = vec![ints("kernel_shape", kernel), ints("strides", stride), ints("pads", padding)];
                self.op("MaxPool", &[first], &out, attrs);
            }
            Op::AvgPool2d(op::AvgPool2d { kernel, stride, padding, count_padding }) => {
                let attrs = vec![
                    ints("kernel_shape", kernel),
                    ints("strides", stride),
                    ints("pads", padding),
                    int("count_include_pad", i64::from(*count_padding)),
                ];
                self.op("AveragePool", &[first], &out, attrs);
            }
            Op::AdaptiveAvgPool2d(op::AdaptiveAvgPool2d { out: size }) => self.adaptive(first, ins[0], *size, &out),
            Op::GlobalAvgPool => {
                let y = self.then("GlobalAveragePool", &[first], vec![]);
                self.op("Flatten", &[&y], &out, vec![int("axis", 1)]);
            }
            Op::ChannelPad(op::ChannelPad { stride, in_ch, map }) => {
                self.channels(first, rank, axis, *stride, *in_ch, map, &out)
            }
            Op::Concat(_) => {
                let all: Vec<&str> = names.iter().map(String::as_str).collect();
                self.op("Concat", &all, &out, vec![int("axis", axis as i64)]);
            }
            Op::Flatten => drop(self.op("Flatten", &[first], &out, vec![int("axis", 1)])),
            Op::ToTokens => {
                let y = self.reshape(first, &[0, 0, -1]);
                self.op("Transpose", &[&y], &out, vec![ints("perm", &[0, 2, 1])]);
            }
            Op::ToImage(op::ToImage { h, w }) => {
                let y = self.transpose(first, &[0, 2, 1]);
                let to = self.integers(&[0, 0, *h as i64, *w as i64]);
                self.op("Reshape", &[&y, &to], &out, vec![]);
            }
            Op::PatchMerge(op::PatchMerge { grid: [h, w] }) => {
                let d = ins[0].get(1).copied().unwrap_or(0);
                let y = self.reshape(first, &[0, (h / 2) as i64, 2, (w / 2) as i64, 2, d as i64]);
                let y = self.transpose(&y, &[0, 1, 3, 4, 2, 5]);
                let to = self.integers(&[0, (h / 2 * (w / 2)) as i64, (4 * d) as i64]);
                self.op("Reshape", &[&y, &to], &out, vec![]);
            }
            Op::PrependTokens(op::PrependTokens { count, dim, at }) => {
                let tokens = self.param(node, ParamRole::Embedding)?;
                let all = self.then("Shape", &[first], vec![]);
                let batch = self.slice(&all, 0, 0, 1);
                let rest = self.integers(&[*count as i64, *dim as i64]);
                let to = self.then("Concat", &[&batch, &rest], vec![int("axis", 0)]);
                let tokens = self.then("Expand", &[&tokens, &to], vec![]);
                let parts = match *at {
                    0 => vec![tokens, first.to_owned()],
                    at => {
                        let t = self.tokens(ins);
                        let before = self.slice(first, 1, 0, at);
                        match at == t {
                            true => vec![before, tokens],
                            false => {
                                let after = self.slice(first, 1, at, t);
                                vec![before, tokens, after]
                            }
                        }
                    }
                };
                let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
                self.op("Concat", &parts, &out, vec![int("axis", 1)]);
            }
            Op::AddPositions(_) => {
                let p = self.param(node, ParamRole::Embedding)?;
                self.op("Add", &[first, &p], &out, vec![]);
            }
            Op::Attention(op::Attention { heads, qk_dim, v_dim, fused, scale, cosine, windows, bias }) => {
                let t = self.tokens(ins);
                let a =
                    Attention { heads: *heads, widths: [*qk_dim, *qk_dim, *v_dim], t, scale: *scale, cosine: *cosine };
                let parts = match *fused {
                    false => names.to_vec(),
                    true => {
                        let qk = heads * qk_dim;
                        let bounds = [(0, qk), (qk, 2 * qk), (2 * qk, 2 * qk + heads * v_dim)];
                        bounds.map(|(from, to)| self.slice(first, 2, from, to)).to_vec()
                    }
                };
                let bias = self.position_bias(node, *heads, windows.as_ref(), bias)?;
                let factors = cosine.then(|| self.param(node, ParamRole::LogitScale)).transpose()?;
                self.attention(&a, &parts, windows.as_ref(), bias.as_deref(), factors.as_deref(), &out);
            }
            Op::SelectToken(op::SelectToken { index }) => {
                let at = self.fresh("index");
                let bytes = (*index as i64).to_le_bytes().to_vec();
                self.out.initializer.push(tensor(&at, &[], data_type::INT64, bytes));
                self.op("Gather", &[first, &at], &out, vec![int("axis", 1)]);
            }
            Op::MeanTokens(op::MeanTokens { skip }) => {
                let x = match *skip {
                    0 => first.to_owned(),
                    skip => {
                        let t = self.tokens(ins);
                        self.slice(first, 1, skip, t)
                    }
                };
                self.op("ReduceMean", &[&x], &out, vec![ints("axes", &[1]), int("keepdims", 0)]);
            }
        }
        Ok(())
    }

    /// Tokens of the first input; where that is not known, where slices up to the end go.
    fn tokens(&self, ins: &[&[usize]]) -> usize {
        if self.free { i64::MAX as usize } else { ins[0].first().copied().unwrap_or(0) }
    }

    /// Runs `body`, which works over the last axis, over the channels.
    fn over_channels(&mut self, x: &str, rank: usize, out: &str, body: impl Fn(&mut Self, &str, &str)) {
        if rank != 3 {
            return body(self, x, out);
        }
        let x = self.transpose(x, &[0, 2, 3, 1]);
        let y = self.fresh("last");
        body(self, &x, &y);
        self.op("Transpose", &[&y], out, vec![ints("perm", &[0, 3, 1, 2])]);
    }

    fn activation(&mut self, act: Activation, x: &str, out: &str) {
        match act {
            Activation::Relu => drop(self.op("Relu", &[x], out, vec![])),
            Activation::Relu6 => {
                let (lo, hi) = (self.number(0.0), self.number(6.0));
                self.op("Clip", &[x, &lo, &hi], out, vec![]);
            }
            Activation::GeluErf => {
                let [root, one, half] = [std::f64::consts::SQRT_2, 1.0, 0.5].map(|v| self.number(v));
                let y = self.then("Div", &[x, &root], vec![]);
                let y = self.then("Erf", &[&y], vec![]);
                let y = self.then("Add", &[&y, &one], vec![]);
                let y = self.then("Mul", &[x, &y], vec![]);
                self.op("Mul", &[&y, &half], out, vec![]);
            }
            Activation::GeluTanh => {
                let k = (2.0 / std::f64::consts::PI).sqrt();
                let [k, cube, one, half] = [k, 0.044715, 1.0, 0.5].map(|v| self.number(v));
                let y = self.then("Mul", &[x, x], vec![]);
                let y = self.then("Mul", &[&y, x], vec![]);
                let y = self.then("Mul", &[&y, &cube], vec![]);
                let y = self.then("Add", &[x, &y], vec![]);
                let y = self.then("Mul", &[&y, &k], vec![]);
                let y = self.then("Tanh", &[&y], vec![]);
                let y = self.then("Add", &[&y, &one], vec![]);
                let y = self.then("Mul", &[x, &y], vec![]);
                self.op("Mul", &[&y, &half], out, vec![]);
            }
            Activation::Silu => {
                let y = self.then("Sigmoid", &[x], vec![]);
                self.op("Mul", &[x, &y], out, vec![]);
            }
            Activation::Sigmoid => drop(self.op("Sigmoid", &[x], out, vec![])),
            Activation::HardSigmoid => {
                self.op("HardSigmoid", &[x], out, vec![float("alpha", 1.0 / 6.0), float("beta", 0.5)]);
            }
            Activation::HardSwish => drop(self.op("HardSwish", &[x], out, vec![])),
            Activation::Tanh => drop(self.op("Tanh", &[x], out, vec![])),
        }
    }

    /// Adaptive pooling has no operator: a plain pool where cells are equal, else one averaging matrix a side.
    fn adaptive(&mut self, x: &str, from: &[usize], [oh, ow]: [usize; 2], out: &str) {
        let &[_, h, w] = from else { return };
        if h.is_multiple_of(oh) && w.is_multiple_of(ow) {
            let k = [h / oh.max(1), w / ow.max(1)];
            self.op("AveragePool", &[x], out, vec![ints("kernel_shape", &k), ints("strides", &k)]);
            return;
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
        let y = self.then("MatMul", &[x, &columns], vec![]);
        self.op("MatMul", &[&rows, &y], out, vec![]);
    }

    #[allow(clippy::too_many_arguments)]
    fn channels(
        &mut self,
        x: &str,
        rank: usize,
        axis: usize,
        stride: usize,
        in_ch: usize,
        map: &[Option<u32>],
        out: &str,
    ) {
        let mut x = x.to_owned();
        if stride > 1 {
            let [from, to, axes, steps] =
                [[0; 2], [i64::MAX; 2], [2, 3], [stride as i64; 2]].map(|v| self.integers(&v));
            x = self.then("Slice", &[&x, &from, &to, &axes, &steps], vec![]);
        }
        let before = map.iter().take_while(|m| m.is_none()).count();
        let kept: Vec<Option<u32>> = map.iter().skip(before).copied().take_while(Option::is_some).collect();
        let after = map.len() - before - kept.len();
        let all = kept.iter().copied().eq((0..in_ch as u32).map(Some));
        if all && map.iter().rev().take(after).all(Option::is_none) {
            // Every channel, zeros before and after.
            let mut pads = vec![0i64; 2 * (rank + 1)];
            (pads[axis], pads[rank + 1 + axis]) = (before as i64, after as i64);
            let pads = self.integers(&pads);
            self.op("Pad", &[&x, &pads], out, vec![]);
            return;
        }
        if map.iter().any(Option::is_none) {
            // A zero channel at the end stands for the padding.
            let mut pads = vec![0i64; 2 * (rank + 1)];
            pads[rank + 1 + axis] = 1;
            let pads = self.integers(&pads);
            x = self.then("Pad", &[&x, &pads], vec![]);
        }
        let index: Vec<i64> = map.iter().map(|m| m.map_or(in_ch as i64, i64::from)).collect();
        let at = self.integers(&index);
        self.op("Gather", &[&x, &at], out, vec![int("axis", axis as i64)]);
    }

    /// `[heads, n, n]`, added to scores.
    fn position_bias(
        &mut self,
        node: &Node,
        heads: usize,
        windows: Option<&Windows>,
        bias: &PositionBias,
    ) -> Result<Option<String>, String> {
        let size = windows.map_or([1, 1], |w| w.size);
        let table = match bias {
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
                let y = self.then("Gemm", &[&at, &w1, &b1], vec![int("transB", 1)]);
                let y = self.then("Relu", &[&y], vec![]);
                let y = self.then("Gemm", &[&y, &w2], vec![int("transB", 1)]);
                let y = self.then("Sigmoid", &[&y], vec![]);
                self.then("Mul", &[&y, &sixteen], vec![])
            }
        };
        let n = (size[0] * size[1]) as i64;
        let index: Vec<i64> = window::relative_index(size).into_iter().map(i64::from).collect();
        let y = self.gather(&table, &index, 0);
        let y = self.reshape(&y, &[n, n, heads as i64]);
        Ok(Some(self.transpose(&y, &[2, 0, 1])))
    }

    fn attention(
        &mut self,
        a: &Attention,
        parts: &[String],
        windows: Option<&Windows>,
        bias: Option<&str>,
        factors: Option<&str>,
        out: &str,
    ) {
        let heads = a.heads as i64;
        let (t, order) = match windows {
            None => (a.t, None),
            Some(w) => (w.tokens(), Some(w.order())),
        };
        // A reshape works one axis out by itself, the batch where tokens are known, and keeps others (0).
        let (batch, rows) = if self.free && order.is_none() { (0, -1) } else { (-1, t as i64) };
        let mut split = Vec::with_capacity(3);
        for (i, (x, width)) in parts.iter().zip(a.widths).enumerate() {
            let mut x = x.clone();
            if let Some(order) = &order {
                let index: Vec<i64> = order.iter().map(|&o| i64::from(o)).collect();
                x = self.gather(&x, &index, 1);
            }
            x = self.reshape(&x, &[batch, rows, heads, width as i64]);
            x = self.transpose(&x, &[0, 2, 1, 3]);
            if a.cosine && i < 2 {
                let tiny = self.number(1e-12);
                let minus = AttributeProto { ints: vec![-1], r#type: Some(attribute_type::INTS), ..attr("axes") };
                let length = self.then("ReduceL2", &[&x], vec![minus, int("keepdims", 1)]);
                let length = self.then("Clip", &[&length, &tiny], vec![]);
                x = self.then("Div", &[&x, &length], vec![]);
            }
            if i == 1 {
                x = self.transpose(&x, &[0, 1, 3, 2]);
            }
            split.push(x);
        }
        let mut y = self.then("MatMul", &[&split[0], &split[1]], vec![]);
        if let Some(f) = factors {
            let most = self.number(100f64.ln());
            let f = self.then("Min", &[f, &most], vec![]);
            let f = self.then("Exp", &[&f], vec![]);
            y = self.then("Mul", &[&y, &f], vec![]);
        }
        if a.scale != 1.0 {
            let s = self.number(a.scale);
            y = self.then("Mul", &[&y, &s], vec![]);
        }
        if let Some(b) = bias {
            y = self.then("Add", &[&y, b], vec![]);
        }
        if let Some(w) = windows.filter(|w| w.shift != [0, 0]) {
            let parts = w.parts();
            let pairs = parts.chunks(t).flat_map(|p| p.iter().flat_map(move |a| p.iter().map(move |b| a == b)));
            let mask: Vec<f32> = pairs.map(|same| if same { 0.0 } else { window::MASKED }).collect();
            let n = t as i64;
            let mask = self.floats(&[w.count(), 1, t, t], &mask);
            let wide = self.reshape(&y, &[-1, w.count() as i64, heads, n, n]);
            let wide = self.then("Add", &[&wide, &mask], vec![]);
            y = self.reshape(&wide, &[-1, heads, n, n]);
        }
        let p = self.then("Softmax", &[&y], vec![int("axis", -1)]);
        let y = self.then("MatMul", &[&p, &split[2]], vec![]);
        let y = self.transpose(&y, &[0, 2, 1, 3]);
        let image = match windows {
            Some(w) => (w.grid[0] * w.grid[1]) as i64,
            None => rows,
        };
        let to = self.integers(&[batch, image, heads * a.widths[2] as i64]);
        match order {
            None => drop(self.op("Reshape", &[&y, &to], out, vec![])),
            Some(order) => {
                let mut back = vec![0i64; order.len()];
                (0i64..).zip(&order).for_each(|(i, &o)| back[o as usize] = i);
                let y = self.then("Reshape", &[&y, &to], vec![]);
                let at = self.integers(&back);
                self.op("Gather", &[&y, &at], out, vec![int("axis", 1)]);
            }
        }
    }
}

/// The dimensions of an attention core.
struct Attention {
    heads: usize,
    /// Of a head of q, k, v.
    widths: [usize; 3],
    t: usize,
    scale: f64,
    cosine: bool,
}
