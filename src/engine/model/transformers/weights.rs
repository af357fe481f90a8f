//! The tensors: floats as they are stored, weights of 8 or 4 bits and 8-bit floats in the layouts of `compressed-tensors` (its `pack-quantized`,
//! `int-quantized` and `float-quantized` formats), all else as what it stands for.
//!
//! Invariant: no tensor is decoded before it is its turn.

use crate::graph::rotary::Pairs;
use crate::graph::{Node, Op, ParamRole, Precision, WeightFormat};
use crate::model::export::format_of;
use crate::model::llamacpp::neighbours;
use crate::model::params::f32_bytes;
use crate::model::{Dtype, Model, ModelError, Param, Result, printable, written};
use indexmap::IndexMap;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// How a weight is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Layout {
    Float,
    /// Codes in words of 32 bits along a row: bits a weight, and how many weights share a scale (`None`: a row).
    Packed(u8, Option<usize>),
    /// Bytes, activations rounded to 8 bits as they come.
    Bytes,
    /// 8-bit floats, activations too.
    Fp8,
}

/// A tensor of the original's that is written, as one or as several of the file's.
pub(super) struct Tensor<'a> {
    /// Of the module, and what the tensor is called in it.
    module: String,
    ending: String,
    param: Cow<'a, Param>,
    layout: Layout,
    /// A linear layer's weight.
    linear: bool,
    /// The precision that there is no layout for.
    pub widened: Option<&'static str>,
    /// Rows in another order: where each comes from.
    order: Option<Vec<usize>>,
    /// Norms are stored without their 1.
    less_one: bool,
    /// Whose rows follow its own in the same tensor.
    rest: Vec<Tensor<'a>>,
    /// A matrix that stands the other way round (`Conv1D`).
    turned: bool,
}

/// The tensors of `model`, a network of the kind `kind`, under `names`.
///
/// # Errors
/// A parameter that is missing; a node without a name.
pub(super) fn of<'a>(model: &'a Model, names: &HashMap<String, String>, kind: &str) -> Result<Vec<Tensor<'a>>> {
    let graph = &model.graph;
    let gemma = graph.live().any(|(_, n)| matches!(n.op, Op::Scalar(_)) && n.name.ends_with("embed_scale"));
    let rope = graph.live().find_map(|(_, n)| if let Op::Rope(r) = &n.op { Some(r) } else { None });
    let turn = rope.filter(|r| r.pairs == Pairs::Neighbours).map(|r| r.head_dim);
    let (mut out, mut seen) = (Vec::new(), HashSet::new());
    for (_, node) in graph.live() {
        for (p, (role, expected)) in node.params.iter().zip(crate::graph::param_shapes(&node.op)) {
            if !seen.insert(p.name.as_str()) {
                continue;
            }
            let param = model.params.get(&p.name)?;
            param.check(&p.name, &expected)?;
            let param = param.without_ones();
            let ending = p.name.rsplit_once('.').map_or("", |(_, ending)| ending);
            let module = names.get(&node.name).ok_or_else(|| {
                let why = format!("`{}` has no name in transformers", printable(&node.name));
                ModelError::unsupported(&model.info.source, why, "export as safetensors or pytorch")
            })?;
            let module = if ending.is_empty() { p.name.clone() } else { module.clone() };
            let turned = turn.filter(|_| module.ends_with(".q_proj") || module.ends_with(".k_proj"));
            let rows = expected.first().copied().unwrap_or(0);
            let order = turned.map(|head| {
                let mut back = vec![0; rows];
                neighbours(rows, head).into_iter().enumerate().for_each(|(at, from)| back[from] = at);
                back
            });
            let (layout, widened) = layout(model, node, role, &expected);
            let format = format_of(graph, node, role, &model.precision);
            let stored = match (layout, format) {
                (Layout::Float, WeightFormat::F32) => param,
                _ => Cow::Owned(param.stored_in(format)),
            };
            // Codes and their scales go by rows, which are then floats in another order.
            let (layout, widened) = match order.is_some() && stored.as_fp8().is_some() {
                true => (Layout::Float, Some(model.precision.get(&node.name).label())),
                false => (layout, widened),
            };
            let linear = matches!(node.op, Op::Linear(_)) && role == ParamRole::Weight;
            let less_one = gemma && role == ParamRole::Weight && expected.len() == 1;
            let ending = if ending.is_empty() { "weight" } else { ending }.to_owned();
            let one = Tensor {
                turned: kind == "gpt2" && linear && module != "lm_head",
                module,
                ending,
                param: stored,
                layout,
                linear,
                widened,
                order,
                less_one,
                rest: Vec::new(),
            };
            out.push(if kind == "gpt2" { one.wide() } else { one });
        }
    }
    Ok(fused(out, kind))
}

/// What one kind has as one tensor: the module, and the parts of it in their order.
fn parts_of(kind: &str) -> &'static [(&'static str, &'static [&'static str])] {
    match kind {
        "phi3" => &[(".qkv_proj", &[".q_proj", ".k_proj", ".v_proj"]), (".gate_up_proj", &[".gate_proj", ".up_proj"])],
        "gpt2" => &[(".attn.c_attn", &[".attn.q", ".attn.k", ".attn.v"])],
        _ => &[],
    }
}

/// `all` with those that are rows of one tensor joined.
fn fused<'a>(all: Vec<Tensor<'a>>, kind: &str) -> Vec<Tensor<'a>> {
    let mut out: IndexMap<(String, String), Vec<(usize, Tensor<'a>)>> = IndexMap::new();
    for tensor in all {
        let whole = parts_of(kind).iter().find_map(|(whole, parts)| {
            let (place, before) =
                parts.iter().enumerate().find_map(|(i, p)| Some((i, tensor.module.strip_suffix(p)?)))?;
            Some((place, format!("{before}{whole}")))
        });
        let (place, module) = whole.unwrap_or_else(|| (0, tensor.module.clone()));
        out.entry((module, tensor.ending.clone())).or_default().push((place, tensor));
    }
    let joined = |((module, _), mut parts): ((String, String), Vec<(usize, Tensor<'a>)>)| {
        parts.sort_by_key(|(place, _)| *place);
        let layout = parts.first().map(|(_, t)| t.layout)?;
        let alike = parts.iter().all(|(_, t)| t.layout == layout);
        let mut parts = parts.into_iter().map(|(_, t)| if alike { t } else { t.wide() });
        let first = parts.next()?;
        let rest: Vec<_> = parts.collect();
        let widened = first.widened.or_else(|| rest.iter().find_map(|t| t.widened));
        Some(Tensor { module, rest, widened, ..first })
    };
    out.into_iter().filter_map(joined).collect()
}

/// How the weight of `node` is laid out, and the precision that there is no layout for.
fn layout(model: &Model, node: &Node, role: ParamRole, shape: &[usize]) -> (Layout, Option<&'static str>) {
    let precision = model.precision.get(&node.name);
    // An embedding that is a layer's weight is one for both, and no embedding is quantized there.
    let own = role == ParamRole::Weight && matches!(node.op, Op::Linear(_)) && model.graph.sharing(node).is_none();
    let cols = shape.last().copied().unwrap_or(0);
    let found = match precision {
        _ if format_of(&model.graph, node, role, &model.precision) == WeightFormat::F32 => {
            return (Layout::Float, None);
        }
        Precision::F16 | Precision::Bf16 | Precision::F32 => return (Layout::Float, None),
        Precision::Int8 if own => Some(Layout::Bytes),
        Precision::W8 if own && cols.is_multiple_of(4) => Some(Layout::Packed(8, None)),
        Precision::Fp8 if own => Some(Layout::Fp8),
        Precision::W4 if own && cols.is_multiple_of(8) => Some(Layout::Packed(4, None)),
        Precision::W4g128 | Precision::W4g64 | Precision::W4g32 if own => match precision.weights() {
            WeightFormat::Int4 { group: Some(g) } if cols.is_multiple_of(g) => Some(Layout::Packed(4, Some(g))),
            _ => None,
        },
        _ => None,
    };
    match found {
        Some(layout) => (layout, None),
        None => (Layout::Float, Some(precision.label())),
    }
}

impl Tensor<'_> {
    /// In floats, whatever it was decided to be in.
    fn wide(self) -> Self {
        let label = match self.layout {
            Layout::Float => return self,
            Layout::Packed(4, _) => "w4",
            Layout::Packed(..) => "w8",
            Layout::Bytes => "int8",
            Layout::Fp8 => "fp8",
        };
        Tensor { layout: Layout::Float, widened: Some(label), ..self }
    }

    /// The name of its part `ending`.
    fn name(&self, ending: &str) -> String {
        format!("{}.{ending}", self.module)
    }

    /// Its parts: what the safetensors header says of each.
    fn parts(&self) -> Vec<(String, &'static str, Vec<usize>, usize)> {
        let mut shape = self.param.shape().to_vec();
        let more = self.rest.iter().filter_map(|t| t.param.shape().first());
        shape.iter_mut().take(1).for_each(|rows| *rows += more.clone().sum::<usize>());
        let (rows, cols) = (shape.first().copied().unwrap_or(0), shape.last().copied().unwrap_or(0));
        let scales = |n: usize| (self.name("weight_scale"), "F32", vec![rows, n], 4 * rows * n);
        match self.layout {
            Layout::Float => {
                let (dtype, size) = self.float();
                let bytes = shape.iter().product::<usize>() * size;
                if self.turned {
                    shape.reverse();
                }
                vec![(self.name(&self.ending), dtype, shape, bytes)]
            }
            Layout::Bytes => vec![(self.name("weight"), "I8", shape, rows * cols), scales(1)],
            Layout::Fp8 => vec![(self.name("weight"), "F8_E4M3", shape, rows * cols), scales(1)],
            Layout::Packed(bits, group) => {
                let words = cols * usize::from(bits) / 32;
                vec![
                    (self.name("weight_packed"), "I32", vec![rows, words], 4 * rows * words),
                    scales(cols.checked_div(group.unwrap_or(cols)).unwrap_or(0)),
                    (self.name("weight_shape"), "I64", vec![2], 16),
                ]
            }
        }
    }

    /// The floats that it is written in, with the bytes of one.
    fn float(&self) -> (&'static str, usize) {
        let alike = self.rest.iter().all(|t| t.param.dtype() == self.param.dtype());
        match self.param.dtype().filter(|_| !self.less_one && alike) {
            Some(Dtype::F16) => ("F16", 2),
            Some(Dtype::Bf16) => ("BF16", 2),
            _ => ("F32", 4),
        }
    }

    /// The bytes of its parts, one after the other.
    fn bytes(&self) -> Cow<'_, [u8]> {
        let (dtype, size) = self.float();
        let own = self.own_bytes(dtype);
        if self.rest.is_empty() && !self.turned {
            return own;
        }
        let pieces: Vec<Cow<'_, [u8]>> =
            std::iter::once(own).chain(self.rest.iter().map(|t| t.own_bytes(dtype))).collect();
        if self.layout == Layout::Float {
            let all = pieces.concat();
            if !self.turned {
                return all.into();
            }
            let cols = self.param.shape().last().copied().unwrap_or(1).max(1);
            let rows = all.len() / size / cols;
            let one = |i: usize| &all[(i % rows * cols + i / rows) * size..][..size];
            return (0..rows * cols).flat_map(|i| one(i).iter().copied()).collect::<Vec<u8>>().into();
        }
        // Codes after codes, scales after scales; a shape is of the whole.
        let whole = self.parts();
        let mut at = vec![0usize; pieces.len()];
        let mut out = Vec::new();
        for (part, (name, _, _, _)) in whole.iter().enumerate() {
            if name.ends_with("weight_shape") {
                let cols = self.param.shape().last().copied().unwrap_or(0);
                let rows = whole[0].2.first().copied().unwrap_or(0);
                out.extend([rows as i64, cols as i64].map(i64::to_le_bytes).concat());
                continue;
            }
            for (i, t) in std::iter::once(self).chain(&self.rest).enumerate() {
                let n = Tensor::alone(t)[part];
                out.extend_from_slice(&pieces[i][at[i]..at[i] + n]);
                at[i] += n;
            }
        }
        out.into()
    }

    /// Bytes of each of its parts without those that follow it.
    fn alone(t: &Tensor<'_>) -> Vec<usize> {
        let rows = |t: &Tensor<'_>| t.param.shape().first().copied().unwrap_or(0);
        let all = rows(t) + t.rest.iter().map(rows).sum::<usize>();
        t.parts().iter().map(|p| p.3 / all.max(1) * rows(t)).collect()
    }

    /// Those without what follows it; floats as `dtype`.
    fn own_bytes(&self, dtype: &str) -> Cow<'_, [u8]> {
        let rows = self.param.shape().first().copied().unwrap_or(0);
        // Where row `r` comes from.
        let from = |r: usize| self.order.as_ref().map_or(r, |order| order[r]);
        let turned = |bytes: &[u8]| -> Vec<u8> {
            let row = bytes.len().checked_div(rows).unwrap_or(0);
            (0..rows).flat_map(|r| &bytes[from(r) * row..][..row]).copied().collect()
        };
        let scales = |all: &[f32]| turned(&f32_bytes(all));
        match self.layout {
            Layout::Float => {
                let bytes = match dtype {
                    "F32" => {
                        let less = f32::from(u8::from(self.less_one));
                        Cow::Owned(f32_bytes(&self.param.values().iter().map(|v| v - less).collect::<Vec<_>>()))
                    }
                    _ => self.param.float_bytes().1,
                };
                if self.order.is_some() { turned(&bytes).into() } else { bytes }
            }
            Layout::Fp8 => match self.param.as_fp8() {
                Some((q, s)) => [q.to_vec(), f32_bytes(s)].concat().into(),
                None => Cow::Borrowed(&[]),
            },
            Layout::Bytes => match self.param.as_int8() {
                Some((q, s)) => {
                    let codes: Vec<u8> = q.iter().map(|q| q.cast_unsigned()).collect();
                    [turned(&codes), scales(s)].concat().into()
                }
                None => Cow::Borrowed(&[]),
            },
            Layout::Packed(bits, _) => {
                let cols = self.param.shape().last().copied().unwrap_or(0);
                let (codes, s): (Vec<i8>, &[f32]) = match (self.param.as_int8(), self.param.as_int4()) {
                    (Some((q, s)), _) => (q.to_vec(), s),
                    (None, Some(q)) => ((0..q.rows).flat_map(|r| q.codes(r)).collect(), &q.scales),
                    (None, None) => return Cow::Borrowed(&[]),
                };
                let each = 32 / usize::from(bits);
                let words = codes.chunks_exact(each).flat_map(|codes| {
                    let one =
                        |(i, q): (usize, &i8)| ((i32::from(*q) + (1 << (bits - 1))) as u32) << (i * usize::from(bits));
                    codes.iter().enumerate().map(one).fold(0u32, |a, b| a | b).to_le_bytes()
                });
                let words: Vec<u8> = words.collect();
                let shape = [rows as i64, cols as i64].map(i64::to_le_bytes).concat();
                [turned(&words), scales(s), shape].concat().into()
            }
        }
    }
}

/// Writes the file of weights. Returns its BLAKE3 (hex).
///
/// # Errors
/// [`ModelError::Write`].
pub(super) fn write(path: &Path, tensors: &[Tensor<'_>]) -> Result<String> {
    let failed = ModelError::write(path);
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut at = 0usize;
    for (name, dtype, shape, bytes) in tensors.iter().flat_map(Tensor::parts) {
        header.insert(name, json!({ "dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes] }));
        at += bytes;
    }
    let mut text = serde_json::to_vec(&header).map_err(|e| failed(e.into()))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let wrote = written::replace(path, |out| {
        out.write_all(&(text.len() as u64).to_le_bytes())?;
        out.write_all(&text)?;
        for tensor in tensors {
            let (bytes, promised) = (tensor.bytes(), tensor.parts().iter().map(|p| p.3).sum::<usize>());
            if bytes.len() != promised {
                return Err(std::io::Error::other(format!("`{}` has other bytes than were promised", tensor.module)));
            }
            out.write_all(&bytes)?;
            std::iter::once(tensor).chain(&tensor.rest).for_each(|t| t.param.release());
        }
        Ok(())
    });
    wrote.map_err(ModelError::write(path))
}

/// The floats that most values are in, as `torch_dtype`.
pub(super) fn dtype(tensors: &[Tensor<'_>]) -> &'static str {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for t in tensors.iter().filter(|t| t.layout == Layout::Float) {
        *counts.entry(t.float().0).or_default() += t.param.numel();
    }
    match counts.into_iter().max_by_key(|(_, n)| *n).map(|(dtype, _)| dtype) {
        Some("F16") => "float16",
        Some("BF16") => "bfloat16",
        _ => "float32",
    }
}

/// The `quantization_config`; `None` where all is floats.
pub(super) fn quantization(tensors: &[Tensor<'_>]) -> Option<Value> {
    let mut groups: BTreeMap<Layout, Vec<&str>> = BTreeMap::new();
    let mut ignore = Vec::new();
    for t in tensors.iter().filter(|t| t.linear) {
        match t.layout {
            Layout::Float => ignore.push(t.module.as_str()),
            layout => groups.entry(layout).or_default().push(&t.module),
        }
    }
    if groups.is_empty() {
        return None;
    }
    // A tied head has no weight of its own, and stays as the embedding is.
    if !tensors.iter().any(|t| t.module == "lm_head") {
        ignore.push("lm_head");
    }
    let word = |layout: Layout| match layout {
        Layout::Float | Layout::Packed(..) => "pack-quantized",
        Layout::Bytes => "int-quantized",
        Layout::Fp8 => "float-quantized",
    };
    let scheme = |bits: u8, kind: &str, group: Option<usize>| {
        json!({ "num_bits": bits, "type": kind, "symmetric": true, "dynamic": false, "observer": "minmax",
            "strategy": if group.is_some() { "group" } else { "channel" }, "group_size": group })
    };
    let inputs =
        |kind: &str| json!({ "num_bits": 8, "type": kind, "symmetric": true, "dynamic": true, "strategy": "token" });
    let all = groups.iter().enumerate().map(|(i, (layout, targets))| {
        let (weights, inputs) = match *layout {
            Layout::Packed(bits, group) => (scheme(bits, "int", group), Value::Null),
            Layout::Float | Layout::Bytes => (scheme(8, "int", None), inputs("int")),
            Layout::Fp8 => (scheme(8, "float", None), inputs("float")),
        };
        let group = json!({ "targets": targets, "weights": weights, "input_activations": inputs, "output_activations": null,
            "format": word(*layout) });
        (format!("group_{i}"), group)
    });
    let formats: HashSet<&str> = groups.keys().map(|l| word(*l)).collect();
    let format = if formats.len() > 1 { "mixed-precision" } else { formats.into_iter().next().unwrap_or_default() };
    Some(json!({ "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
        "config_groups": all.collect::<Map<String, Value>>(), "ignore": ignore, "kv_cache_scheme": null,
        "global_compression_ratio": null }))
}
