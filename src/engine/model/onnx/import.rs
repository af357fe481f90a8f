//! From the bytes of an ONNX file to a [`Model`]: which input is the image, which output the logits, and everything in
//! between lifted to layers.

use super::blocks;
use super::constant::{Constant, Source};
use super::export;
use super::lift::{Failure, Lifter, Value};
use super::proto::{self, GraphProto, ModelProto, ValueInfoProto, data_type, is_standard};
use crate::graph::{Graph, NodeId};
use crate::model::hf::Sidecar;
use crate::model::{
    ASSUMED, Blob, Family, LoadOptions, Model, ModelError, Preprocess, Result, imported, printable, values,
};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Stands for the batch axis in shapes of a model with a dynamic batch: a prime that no layer has as a width, so that
/// shape arithmetic in the file carries it along recognisably.
const BATCH: usize = 1_000_003;
/// Opsets that were tried; others may have changed an operator's meaning.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=26;
/// Image side for models that leave it open.
const SIDE: usize = 224;

/// Whether `bytes` look like an ONNX model: a small version number first, then another known field.
pub(in crate::model) fn is_onnx(bytes: &[u8]) -> bool {
    matches!(bytes, [0x08, 1..=31, 0x12 | 0x1a | 0x22 | 0x28 | 0x32 | 0x3a | 0x42 | 0x72, ..])
}

/// Reads an ONNX model. `dir` is where external data may lie.
///
/// # Errors
/// [`ModelError::Damaged`], [`ModelError::Unsupported`], or [`ModelError::Operators`] with everything in the file that
/// has no counterpart here.
pub(in crate::model) fn import(
    blob: &Blob,
    path: &Path,
    dir: Option<&Path>,
    sidecar: &Sidecar,
    options: &LoadOptions,
) -> Result<Model> {
    let damaged = |why: String| ModelError::damaged(path, why);
    let model = proto::decode(Bytes::from_owner(blob.clone())).map_err(damaged)?;
    if let (Some(text), Some(graph)) = (export::own(&model), &model.graph) {
        return export::reopen(graph, &mut Source::new(blob.clone(), dir), text, path);
    }
    let mut notes = Vec::new();
    let (graph, params) = Importer { blob, path, dir, options }.lift(&model, &mut notes)?;
    values::check(&graph, &params)?;
    let shapes = crate::graph::shapes(&graph)?;
    let classes = shapes.get(graph.output.index()).and_then(|s| s.last().copied()).unwrap_or(0);
    let image = graph.input_shape()?;
    let size = [image.get(1).copied().unwrap_or(0), image.get(2).copied().unwrap_or(0)];
    let preprocess = sidecar.preprocess(Preprocess::imagenet(size))?;
    if preprocess.assumed() {
        notes.push(ASSUMED.into());
    }
    Ok(imported::model(graph, params, Family::Onnx, classes, preprocess, sidecar, path, notes))
}

struct Importer<'a> {
    blob: &'a Blob,
    path: &'a Path,
    dir: Option<&'a Path>,
    options: &'a LoadOptions,
}

impl Importer<'_> {
    fn damaged(&self, why: impl Into<String>) -> ModelError {
        ModelError::damaged(self.path, why)
    }

    fn unsupported(&self, why: impl Into<String>, hint: &str) -> ModelError {
        ModelError::unsupported(self.path, why, hint)
    }

    fn lift(&self, model: &ModelProto, notes: &mut Vec<String>) -> Result<(Graph, crate::model::ParamStore)> {
        let opset = model.opset_import.iter().find(|o| is_standard(o.domain.as_deref())).and_then(|o| o.version);
        let opset = opset.ok_or_else(|| self.damaged("it names no operator set"))?;
        if !OPSETS.contains(&opset) {
            let why = format!("its operator set is {opset}, {} to {} are known", OPSETS.start(), OPSETS.end());
            return Err(self.unsupported(why, "export it again with opset 17 or later"));
        }
        let graph = model.graph.as_ref().ok_or_else(|| self.damaged("it has no graph"))?;
        if !graph.sparse_initializer.is_empty() {
            return Err(self.unsupported("it has sparse tensors", "export it with dense weights"));
        }
        let mut source = Source::new(self.blob.clone(), self.dir);
        let mut env: HashMap<String, Value> = HashMap::new();
        for t in &graph.initializer {
            let name = t.name.clone().unwrap_or_default();
            let bad = |why: String| self.damaged(format!("tensor `{}` {why}", printable(&name)));
            let constant: Constant = source.tensor(t).map_err(bad)?;
            if env.insert(name.clone(), Value::Const(constant)).is_some() {
                return Err(self.damaged(format!("tensor `{}` is there twice", printable(&name))));
            }
        }
        let input = self.input(graph, &env)?;
        let (batch, nchw, shape) = self.image(input, notes)?;
        let needed = self.needed(graph)?;
        // What is computed before running (masks, positions, transposed weights) is no more than a few times the file.
        let budget = self.blob.len().saturating_mul(2).max(1 << 22);
        let mut lifter = Lifter::new(source, &graph.node, opset, batch, budget);
        lifter.env = env;
        let bad = |why: String| self.damaged(format!("its input {why}"));
        let image = lifter.image(shape).map_err(bad)?;
        let image = if nchw { Some(image) } else { image.transpose(&[0, 2, 3, 1]) };
        let image = image.ok_or_else(|| self.damaged("its input is no image"))?;
        lifter.env.insert(input.name.clone().unwrap_or_default(), Value::View(image));
        for (i, needed) in needed.into_iter().enumerate() {
            if needed {
                lifter.step(i);
            }
        }
        if !lifter.failures.is_empty() {
            return Err(ModelError::Operators { path: self.path.to_owned(), list: listing(&lifter.failures) });
        }
        let output = self.output(graph, &mut lifter)?;
        if graph.output.len() > 1 {
            notes.push(format!("only the first of its {} outputs is used", graph.output.len()));
        }
        if lifter.nodes.len() < 2 {
            return Err(self.unsupported("it computes nothing", "is it the right file?"));
        }
        let mut result = Graph { nodes: lifter.nodes, output, blocks: Vec::new() };
        let mut params = lifter.params;
        prune_unread(&mut result, &mut params);
        result.blocks = blocks::find(&result);
        result.check()?;
        Ok((result, params))
    }

    /// The one graph input that is no initializer.
    fn input<'g>(&self, graph: &'g GraphProto, env: &HashMap<String, Value>) -> Result<&'g ValueInfoProto> {
        let mut free = graph.input.iter().filter(|i| !env.contains_key(i.name.as_deref().unwrap_or_default()));
        let first = free.next().ok_or_else(|| self.damaged("it has no input"))?;
        if free.next().is_some() {
            return Err(self.unsupported("it has more than one input", "networks that read one image are supported"));
        }
        Ok(first)
    }

    /// Batch marker, whether channels come first, and `[c, h, w]`.
    fn image(&self, input: &ValueInfoProto, notes: &mut Vec<String>) -> Result<(usize, bool, [usize; 3])> {
        let hint = "networks that read one float image `[batch, channels, height, width]` are supported";
        let tensor = input.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let tensor = tensor.ok_or_else(|| self.unsupported("its input has no type", hint))?;
        let float = [data_type::FLOAT, data_type::FLOAT16, data_type::BFLOAT16, data_type::DOUBLE];
        let kind = tensor.elem_type.unwrap_or(0);
        if !float.contains(&kind) {
            return Err(self.unsupported(format!("its input has the data type {kind}"), hint));
        }
        let dims = tensor.shape.as_ref().map(|s| s.dim.as_slice()).unwrap_or_default();
        // 0 and below mean unknown to some writers.
        let fixed: Vec<Option<usize>> =
            dims.iter().map(|d| d.dim_value.and_then(|v| usize::try_from(v).ok()).filter(|v| *v > 0)).collect();
        let &[batch, a, b, c] = fixed.as_slice() else {
            return Err(self.unsupported(format!("its input has {} axes", fixed.len()), hint));
        };
        let small = |d: Option<usize>| matches!(d, Some(1..=4));
        let nchw = small(a) || !small(c);
        let (channels, sides) = if nchw { (a, [b, c]) } else { (c, [a, b]) };
        let channels =
            channels.ok_or_else(|| self.unsupported("its input does not say how many channels it has", hint))?;
        let side = self.options.image.unwrap_or(SIDE);
        if sides.contains(&None) {
            notes.push(format!("the file leaves the image's size open; {side} pixels are taken"));
        }
        let batch = batch.unwrap_or(BATCH);
        if batch > BATCH || sides.iter().flatten().any(|s| *s > 1 << 14) || channels > 1 << 10 {
            return Err(self.unsupported(format!("its input has the shape {fixed:?}"), hint));
        }
        Ok((batch, nchw, [channels, sides[0].unwrap_or(side), sides[1].unwrap_or(side)]))
    }

    /// Which nodes the first output depends on. Nodes must come after what they read.
    fn needed(&self, graph: &GraphProto) -> Result<Vec<bool>> {
        let mut writer: HashMap<&str, usize> = HashMap::new();
        for (i, node) in graph.node.iter().enumerate() {
            for out in node.output.iter().filter(|o| !o.is_empty()) {
                if writer.insert(out, i).is_some() {
                    return Err(self.damaged(format!("two nodes write `{}`", printable(out))));
                }
            }
        }
        let mut needed = vec![false; graph.node.len()];
        let last = graph.output.first().and_then(|o| o.name.as_deref()).unwrap_or_default();
        let mut open: Vec<usize> = writer.get(last).copied().into_iter().collect();
        while let Some(i) = open.pop() {
            if !std::mem::replace(&mut needed[i], true) {
                for input in &graph.node[i].input {
                    if let Some(&w) = writer.get(input.as_str()) {
                        if w >= i {
                            return Err(self.damaged(format!("its nodes are not in order at `{}`", printable(input))));
                        }
                        open.push(w);
                    }
                }
            }
        }
        Ok(needed)
    }

    /// The node of the logits, `[classes]`.
    fn output(&self, graph: &GraphProto, lifter: &mut Lifter) -> Result<NodeId> {
        let hint = "classifiers with one output `[batch, classes]` are supported";
        let name = graph.output.first().and_then(|o| o.name.as_deref()).unwrap_or_default();
        let value = lifter.env.get(name).cloned();
        let value = value.ok_or_else(|| self.damaged(format!("nothing writes its output `{}`", printable(name))))?;
        lifter.logits(value).map_err(|why| self.unsupported(format!("its output {why}"), hint))
    }
}

/// Every failure, operators that are not known first, each with its nodes.
fn listing(failures: &[Failure]) -> String {
    /// Nodes named per operator, and cases told.
    const NODES: usize = 8;
    const CASES: usize = 40;
    let mut groups: BTreeMap<(bool, &str, &str), Vec<&str>> = BTreeMap::new();
    for f in failures {
        groups.entry((!f.why.is_empty(), &f.op, &f.why)).or_default().push(&f.node);
    }
    let all = groups.len();
    let told = groups.into_iter().take(CASES).map(|((_, op, why), nodes)| {
        let shown: Vec<String> = nodes.iter().take(NODES).map(|n| format!("`{n}`")).collect();
        let more = nodes.len().saturating_sub(NODES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let why = if why.is_empty() { String::new() } else { format!(" {why}") };
        format!("`{op}`{why} (at {}{more})", shown.join(", "))
    });
    let mut told: Vec<String> = told.collect();
    if all > CASES {
        told.push(format!("{} more", all - CASES));
    }
    told.join("; ")
}

/// Takes nodes out that the output does not read (layouts that turned out not to be needed), with their parameters.
fn prune_unread(graph: &mut Graph, params: &mut crate::model::ParamStore) {
    let mut kept = graph.reachable();
    if let Some(first) = kept.first_mut() {
        *first = true;
    }
    let mut place = vec![NodeId(0); kept.len()];
    let mut nodes = Vec::with_capacity(kept.len());
    for (i, mut node) in std::mem::take(&mut graph.nodes).into_iter().enumerate() {
        if !kept[i] {
            node.params.iter().for_each(|p| params.remove(&p.name));
            continue;
        }
        node.inputs.iter_mut().for_each(|n| *n = place[n.index()]);
        place[i] = NodeId(nodes.len() as u32);
        nodes.push(node);
    }
    graph.output = place[graph.output.index()];
    graph.nodes = nodes;
}
