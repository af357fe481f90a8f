//! Writing a compressed model as one safetensors file, and opening it again with the same outputs.
//!
//! The file's `__metadata__["paring"]` is a JSON manifest: the graph as it is now (pruned shapes, removed blocks),
//! precisions, what is known of the model, and how it came about. Weights are stored in their precision's format: `F16`,
//! `BF16`, the very `I8` or `F8_E4M3` rows and `F32` scales that kernels run, 4-bit rows, two weights a `U8`, with `F32` scales, or GGML's blocks
//! as `U8`, whose format the manifest tells: those that were decided, and those of a GGUF file that were left as they are. Written to a
//! temporary file, synced, then renamed.

use super::codebook::Codebook;
use super::ggml::Block;
use super::int4::Int4;
use super::origin::{CARRIED, Origin};
use super::params::f32_bytes;
use super::{
    Blob, Checkpoint, Dtype, Graph, ImatrixMark, Model, ModelError, ModelInfo, Param, ParamError, ParamStore,
    Precisions, Result,
};
use super::{RawTensor, numel_of, printable, values, written};
use crate::graph::{Node, Op, ParamRole, WeightFormat, least, param_shapes, shapes_at};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Our key in the safetensors metadata.
pub(super) const KEY: &str = "paring";
/// Version of the manifest; a file with a higher one is refused. The first knew no blocks, and is written where there are none.
const FORMAT: u32 = 2;
const WITHOUT_BLOCKS: u32 = 1;
/// Appended to a quantized weight's name for its scales, and for the values that its weights share.
pub(super) const SCALES: &str = ".paring_scales";
pub(super) const VALUES: &str = ".paring_values";

/// How a model came about, for people and for replay; `paring` carries it along unread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// What was done to the original weights, enough to do it again.
    #[serde(default)]
    pub recipe: serde_json::Value,
    /// The decisions with authors and reasons.
    #[serde(default)]
    pub decisions: serde_json::Value,
    /// Measured figures, with what they were measured on.
    #[serde(default)]
    pub figures: serde_json::Value,
    /// [`ModelInfo::hash`] of the original.
    pub original: Option<String>,
}

impl Manifest {
    /// The importances that weights were rounded by, where the recipe names some.
    pub fn imatrix(&self) -> Option<ImatrixMark> {
        serde_json::from_value(self.recipe.get("imatrix")?.clone()).ok()
    }
}

#[derive(Serialize, Deserialize)]
struct Header<'a> {
    format: u32,
    program: String,
    graph: Cow<'a, Graph>,
    info: Cow<'a, ModelInfo>,
    precision: Cow<'a, Precisions>,
    /// [`ParamStore::hash`] of the tensors as stored.
    params: String,
    /// The formats of tensors that are stored in GGML's blocks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    blocks: BTreeMap<String, Block>,
    #[serde(flatten)]
    manifest: Cow<'a, Manifest>,
}

/// The parameters that `model` runs with: those of reachable nodes, weights in their precision's format, the rest f32.
pub(super) fn stored(model: &Model) -> Result<ParamStore> {
    let mut out = ParamStore::default();
    for (_, node) in model.graph.live() {
        for (p, (role, shape)) in node.params.iter().zip(param_shapes(&node.op)) {
            let param = model.params.get(&p.name)?;
            param.check(&p.name, &shape)?;
            let param = match format_of(&model.graph, node, role, &model.precision) {
                // Nothing was decided: blocks that were read stay, which have the same values, and so do tables of narrow floats.
                WeightFormat::F32 if param.as_blocks().is_some() || is_own_table(&model.graph, node, role) => {
                    param.clone()
                }
                format => param.stored_in(format),
            };
            if let Some(why) = model.precision.get(&node.name).unfit(&node.op) {
                let why = format!("`{}`: {why}", printable(&node.name));
                return Err(ModelError::unsupported(&model.info.source, why, "give that layer another precision"));
            }
            // Layers may share a tensor, of which a file holds one.
            if out.get(&p.name).is_ok_and(|other| !other.is_stored_like(&param)) {
                let why = format!("`{}` is shared by layers of unlike precisions", printable(&p.name));
                let hint = format!("keep `{}` in f32", printable(&node.name));
                return Err(ModelError::unsupported(&model.info.source, why, &hint));
            }
            out.insert(p.name.clone(), param);
        }
    }
    Ok(out)
}

/// Is it an embedding's table that is no layer's weight besides? No decision is about those: they stay as their file has them.
fn is_own_table(graph: &Graph, node: &Node, role: ParamRole) -> bool {
    role == ParamRole::Weight && matches!(node.op, Op::Embedding(_)) && graph.sharing(node).is_none()
}

/// What a parameter of `node` is stored in: a weight in its layer's precision, and so an embedding that is a layer's weight.
pub(super) fn format_of(graph: &Graph, node: &Node, role: ParamRole, precision: &Precisions) -> WeightFormat {
    let layer = match (role, &node.op) {
        (ParamRole::Weight, op) if op.is_conv_or_linear() => Some(node),
        (ParamRole::Weight, Op::Embedding(_)) => graph.sharing(node).filter(|n| n.op.is_conv_or_linear()),
        _ => None,
    };
    layer.map_or(WeightFormat::F32, |n| precision.get(&n.name).weights())
}

/// The parameters as embeddings read them that are layers' weights: what such a layer's precision rounds is rounded for both.
pub(crate) fn settled<'a>(graph: &Graph, params: &'a ParamStore, precision: &Precisions) -> Cow<'a, ParamStore> {
    let mut out = Cow::Borrowed(params);
    for (_, node) in graph.live().filter(|(_, n)| matches!(n.op, Op::Embedding(_))) {
        let format = format_of(graph, node, ParamRole::Weight, precision);
        let Some(name) = node.param(ParamRole::Weight).filter(|_| format != WeightFormat::F32) else { continue };
        if let Ok(param) = params.get(name) {
            out.to_mut().insert(name.to_owned(), param.stored_in(format));
        }
    }
    out
}

/// One tensor of the file, in the order in which it is written.
struct Entry<'a> {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

fn f32_entry(name: String, shape: Vec<usize>, values: &[f32]) -> Entry<'static> {
    Entry { name, dtype: "F32", shape, bytes: f32_bytes(values).into() }
}

/// A parameter as the file holds it: values, and scales of what is quantized.
fn entries<'a>(name: &str, param: &'a Param) -> Vec<Entry<'a>> {
    let (name, shape) = (name.to_owned(), param.shape().to_vec());
    let scales = |shape: Vec<usize>, scales: &[f32]| f32_entry(name.clone() + SCALES, shape, scales);
    if let Some((q, s)) = param.as_int8() {
        let bytes: Vec<u8> = q.iter().map(|v| v.to_le_bytes()[0]).collect();
        let scales = scales(vec![s.len()], s);
        return vec![Entry { name, dtype: "I8", shape, bytes: bytes.into() }, scales];
    }
    if let Some((q, s)) = param.as_fp8() {
        let scales = scales(vec![s.len()], s);
        return vec![Entry { name, dtype: "F8_E4M3", shape, bytes: q.into() }, scales];
    }
    if let Some(q) = param.as_int4() {
        let [shape, groups] = int4_shapes(q.rows, q.cols, q.group);
        let scales = scales(groups.to_vec(), &q.scales);
        return vec![Entry { name, dtype: "U8", shape: shape.to_vec(), bytes: q.packed.as_slice().into() }, scales];
    }
    if let Some(c) = param.as_codebook() {
        let values = f32_entry(name.clone() + VALUES, vec![c.values.len()], &c.values);
        let shape = vec![c.rows, c.packed.len().checked_div(c.rows).unwrap_or(0)];
        return vec![Entry { name, dtype: "U8", shape, bytes: c.packed.as_slice().into() }, values];
    }
    if let Some((_, bytes)) = param.as_blocks() {
        return vec![Entry { name, dtype: "U8", shape: vec![bytes.len()], bytes: bytes.into() }];
    }
    let (dtype, bytes) = param.float_bytes();
    let dtype = match dtype {
        Dtype::F32 => "F32",
        Dtype::F16 => "F16",
        Dtype::Bf16 => "BF16",
        Dtype::F64 => "F64",
    };
    vec![Entry { name, dtype, shape, bytes }]
}

/// Shapes of 4-bit rows' bytes and of their scales, as the file has them.
fn int4_shapes(rows: usize, cols: usize, group: usize) -> [[usize; 2]; 2] {
    [[rows, cols.div_ceil(2)], [rows, cols.div_ceil(group.max(1))]]
}

/// The manifest's JSON for `model`, whose tensors are stored as `params`.
pub(super) fn header_text(model: &Model, params: &ParamStore, manifest: &Manifest) -> serde_json::Result<String> {
    let blocks: BTreeMap<String, Block> =
        params.iter().filter_map(|(name, p)| Some((name.to_owned(), p.as_blocks()?.0))).collect();
    let header = Header {
        format: if blocks.is_empty() { WITHOUT_BLOCKS } else { FORMAT },
        program: concat!("paring ", env!("CARGO_PKG_VERSION")).into(),
        // Text may be of any length again.
        graph: Cow::Owned(Graph::clone(&model.graph).freed()),
        info: Cow::Owned(ModelInfo {
            // A path on this machine means nothing elsewhere.
            source: model.info.source.file_name().map(Into::into).unwrap_or_default(),
            ..model.info.clone()
        }),
        precision: Cow::Borrowed(&model.precision),
        params: params.hash(),
        blocks,
        manifest: Cow::Borrowed(manifest),
    };
    serde_json::to_string(&header)
}

/// What travels in a model's file beside it: bytes that this room does not read.
#[derive(Debug, Clone, Copy)]
pub struct Extra<'a> {
    /// A tensor's name that no network has.
    pub name: &'a str,
    pub bytes: &'a [u8],
}

/// Writes `model` and its manifest to `path`. Returns the BLAKE3 (hex) of the whole file.
///
/// # Errors
/// [`ModelError::Write`] when the file cannot be written (an older file of that name then stays as it was),
/// [`ModelError::Param`] when the model lacks a parameter that its graph names.
pub fn safetensors(path: &Path, model: &Model, manifest: &Manifest) -> Result<String> {
    safetensors_with(path, model, manifest, &[])
}

/// [`ModelInfo::hash`] of what [`safetensors`] writes, once it is read.
///
/// # Errors
/// As [`safetensors`].
pub fn hash(model: &Model) -> Result<String> {
    Ok(stored(model)?.hash())
}

/// The bytes that travel under `name` in the file at `path`, where it is one of ours that has such.
///
/// # Errors
/// As reading a checkpoint.
pub fn carried(path: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    if path.is_dir() {
        return Ok(None);
    }
    // A second copy of all the weights for one tensor would be a waste.
    let blob = Blob::look(path).map_err(ModelError::read(path))?;
    if !super::safetensors::is(&blob) {
        return Ok(None);
    }
    let checkpoint = super::safetensors::read(&blob, path)?;
    let found = checkpoint.tensors.get(name).filter(|_| checkpoint.metadata.contains_key(KEY));
    let Some(RawTensor::Bytes { dtype: "U8", shape, blob, offset }) = found else { return Ok(None) };
    Ok(Some(slice(blob, *offset, numel_of(shape)).to_vec()))
}

/// As [`safetensors`], with what else travels in the file.
///
/// # Errors
/// As [`safetensors`].
pub fn safetensors_with(path: &Path, model: &Model, manifest: &Manifest, extras: &[Extra]) -> Result<String> {
    let params = stored(model)?;
    let manifest = header_text(model, &params, manifest).map_err(|e| ModelError::write(path)(e.into()))?;
    let mut entries: Vec<Entry<'_>> = params.iter().flat_map(|(name, param)| entries(name, param)).collect();
    if let Some(bytes) = model.origin.bytes(&model.graph, &model.info)? {
        entries.push(Entry { name: CARRIED.into(), dtype: "U8", shape: vec![bytes.len()], bytes: bytes.into() });
    }
    entries.extend(extras.iter().map(|e| Entry {
        name: e.name.to_owned(),
        dtype: "U8",
        shape: vec![e.bytes.len()],
        bytes: e.bytes.into(),
    }));
    // The reference reader wants wider types first, so that every tensor is aligned.
    entries.sort_by_key(|e| match e.dtype {
        "F64" => 0,
        "F32" => 1,
        "F16" | "BF16" => 2,
        _ => 3,
    });
    write_entries(path, serde_json::json!({ "format": "pt", KEY: manifest }), &entries)
}

/// Writes what `model` computes with as plain f32 tensors under the checkpoint's own names: weights of quantized nodes
/// are what their codes stand for.
///
/// # Errors
/// As [`safetensors`].
pub fn floats(path: &Path, model: &Model) -> Result<String> {
    let params = stored(model)?;
    let entry = |(name, p): (&str, &Param)| f32_entry(name.to_owned(), p.shape().to_vec(), &p.values());
    let entries: Vec<Entry<'_>> = params.iter().map(entry).collect();
    write_entries(path, serde_json::json!({ "format": "pt" }), &entries)
}

/// Writes a safetensors file of `entries`, in their order. Returns its hash.
fn write_entries(path: &Path, metadata: serde_json::Value, entries: &[Entry]) -> Result<String> {
    let write = ModelError::write(path);
    let mut object = serde_json::Map::new();
    object.insert("__metadata__".into(), metadata);
    let mut at = 0usize;
    for e in entries {
        let end = at + e.bytes.len();
        let entry = serde_json::json!({ "dtype": e.dtype, "shape": e.shape, "data_offsets": [at, end] });
        object.insert(e.name.clone(), entry);
        at = end;
    }
    let mut text = serde_json::to_vec(&object).map_err(|e| write(e.into()))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    written::replace(path, |out| {
        out.write_all(&(text.len() as u64).to_le_bytes())?;
        out.write_all(&text)?;
        entries.iter().try_for_each(|e| out.write_all(&e.bytes))
    })
    .map_err(write)
}

fn header(text: &str, path: &Path) -> Result<Header<'static>> {
    #[derive(Deserialize)]
    struct Version {
        format: u32,
    }
    let damaged = |e: serde_json::Error| {
        ModelError::damaged(path, format!("its manifest is not valid: {}", printable(&e.to_string())))
    };
    let Version { format } = serde_json::from_str(text).map_err(damaged)?;
    if format > FORMAT {
        let why = format!("its manifest has format {format}, this program knows {FORMAT}");
        return Err(ModelError::unsupported(path, why, "open it with the newer `paring` that wrote it"));
    }
    serde_json::from_str(text).map_err(damaged)
}

/// Rebuilds the model from a checkpoint that carries our manifest.
pub(super) fn reopen(c: &Checkpoint, text: &str, path: &Path) -> Result<Model> {
    let damaged = |why: String| ModelError::damaged(path, why);
    let Header { graph, info, precision, params: hash, blocks, .. } = header(text, path)?;
    let (graph, mut info, precision) = (graph.into_owned(), info.into_owned(), precision.into_owned());
    // Names from here on reach screens as they are, so they must be harmless.
    let names = graph.nodes.iter().flat_map(|n| std::iter::once(&n.name).chain(n.params.iter().map(|p| &p.name)));
    for name in names.chain(graph.blocks.iter().map(|b| &b.name)) {
        if name.is_empty() || name.len() > 1024 || name.chars().any(crate::plain::hostile) {
            return Err(damaged(format!("its manifest has the name `{}`", printable(name))));
        }
    }
    graph.check()?;
    if let Some((node, _)) = precision.inputs.iter().find(|(_, r)| !r.is_sound()) {
        return Err(damaged(format!("its input range of `{}` is none", printable(node))));
    }
    for node in precision.nodes.keys().chain(precision.inputs.keys()) {
        if !graph.by_name(node).is_some_and(|id| graph.node(id).op.has_precision()) {
            return Err(damaged(format!("it sets a precision for `{}`, which is no such layer", printable(node))));
        }
    }
    let params = fetch(c, &graph, &precision, &blocks, path)?;
    values::check(&graph, &params)?;
    if params.hash() != hash {
        return Err(damaged("its tensors are not those that were written".into()));
    }
    let classes =
        shapes_at(&graph, least(&graph)?)?.get(graph.output.index()).and_then(|s| s.last().copied()).unwrap_or(0);
    let p = &info.preprocess;
    // Only images have a size that preprocessing brings them to.
    let size_fits = !matches!(graph.input_shape().as_deref(), Ok([_, h, w]) if [*h, *w] != p.size);
    if classes != info.classes || !size_fits || p.std.iter().any(|s| !s.is_finite() || *s <= 0.0) {
        return Err(damaged("its manifest does not fit its graph".into()));
    }
    info.name = printable(&info.name);
    info.class_names =
        info.class_names.filter(|n| n.len() == classes).map(|n| n.iter().map(|s| printable(s)).collect());
    info.notes = info.notes.iter().map(|n| printable(n)).collect();
    info.preprocess.origin = printable(&info.preprocess.origin);
    info.source = path.to_owned();
    info.hash = hash;
    let origin = Origin::carried(c, path)?;
    Ok(Model { graph: Arc::new(graph), params, precision, info, origin })
}

/// Parameters of reachable nodes; quantized weights with their scales.
fn fetch(
    c: &Checkpoint,
    graph: &Graph,
    precision: &Precisions,
    blocks: &BTreeMap<String, Block>,
    path: &Path,
) -> Result<ParamStore> {
    let mut params = ParamStore::default();
    for (_, node) in graph.live() {
        for (p, (role, expected)) in node.params.iter().zip(param_shapes(&node.op)) {
            let raw = c.tensors.get(&p.name).ok_or_else(|| ParamError::Missing { name: p.name.clone() })?;
            let format = format_of(graph, node, role, precision);
            let scales = || beside(c, &p.name, SCALES);
            let param = match (raw, format) {
                (RawTensor::Bytes { dtype: "U8", shape, blob, offset }, _) if blocks.contains_key(&p.name) => {
                    let block = blocks.get(&p.name).copied();
                    let row: usize = expected.iter().skip(1).product();
                    let meant = match format {
                        WeightFormat::Block(decided) => block == Some(decided),
                        _ => format == WeightFormat::F32,
                    };
                    let whole = meant && block.is_some_and(|b| row.is_multiple_of(b.values()));
                    let param = block.and_then(|b| Param::blocks(expected.clone(), blob.clone(), *offset, b));
                    param.filter(|p| whole && numel_of(shape).is_some_and(|n| n as u64 == p.stored_bytes()))
                }
                (RawTensor::Bytes { dtype: "U8", shape, blob, offset }, WeightFormat::Int4 { group }) => {
                    fetch_int4(&expected, group, (shape, blob, *offset), &scales()?)
                }
                (RawTensor::Bytes { dtype: "U8", shape, blob, offset }, WeightFormat::Codebook { bits }) => {
                    fetch_codebook(&expected, bits, (shape, blob, *offset), &beside(c, &p.name, VALUES)?)
                }
                (RawTensor::Float(_) | RawTensor::Bytes { dtype: "I8" | "F8_E4M3", .. }, _)
                    if raw.shape() != expected =>
                {
                    let found = raw.shape().to_vec();
                    return Err(ParamError::Shape { name: p.name.clone(), found, expected }.into());
                }
                (RawTensor::Float(param), _) => Some(param.clone()),
                (RawTensor::Bytes { dtype: "I8", shape, blob, offset }, _) => {
                    let scales = scales()?.values().into_owned();
                    let bytes = slice(blob, *offset, numel_of(shape));
                    let q: Vec<i8> = bytes.iter().map(|b| i8::from_le_bytes([*b])).collect();
                    let sound = q.iter().all(|v| *v != i8::MIN) && scales.iter().all(|s| s.is_finite() && *s >= 0.0);
                    Param::int8(shape.clone(), q, scales).filter(|_| sound)
                }
                (RawTensor::Bytes { dtype: "F8_E4M3", shape, blob, offset }, WeightFormat::Fp8) => {
                    let scales = scales()?.values().into_owned();
                    let q = slice(blob, *offset, numel_of(shape)).to_vec();
                    let sound = q.iter().all(|v| v & 0x7f != 0x7f) && scales.iter().all(|s| s.is_finite() && *s >= 0.0);
                    Param::fp8(shape.clone(), q, scales).filter(|_| sound)
                }
                (RawTensor::Bytes { .. } | RawTensor::Other { .. }, _) => None,
            };
            let odd = || ModelError::damaged(path, format!("tensor `{}` is not stored as it should be", p.name));
            let param = param.ok_or_else(odd)?;
            params.insert(p.name.clone(), param);
        }
    }
    Ok(params)
}

/// The scales of the quantized weight `name`, or the values that it shares.
fn beside(c: &Checkpoint, name: &str, what: &str) -> Result<Param, ParamError> {
    match c.tensors.get(&format!("{name}{what}")) {
        Some(RawTensor::Float(s)) => Ok(s.clone()),
        _ => Err(ParamError::Missing { name: format!("{name}{what}") }),
    }
}

/// `len` bytes from `offset` on, or none where the blob ends before.
fn slice(blob: &Blob, offset: usize, len: Option<usize>) -> &[u8] {
    let end = len.and_then(|n| n.checked_add(offset));
    end.and_then(|end| blob.get(offset..end)).unwrap_or(&[])
}

/// A weight of shape `expected` whose values are shared, if it is one that [`Codebook`] makes. ONNX has a byte a number, in the weight's shape.
fn fetch_codebook(
    expected: &[usize],
    bits: u8,
    (shape, blob, offset): (&[usize], &Blob, usize),
    values: &Param,
) -> Option<Param> {
    let rows = *expected.first()?;
    let cols = numel_of(expected)?.checked_div(rows)?;
    let (bytes, values) = (slice(blob, offset, numel_of(shape)), values.values().into_owned());
    let packed = [rows, cols.checked_mul(usize::from(bits))?.div_ceil(8)];
    let codebook = match shape {
        _ if shape == packed => Codebook::from_parts(rows, cols, bits, bytes.to_vec(), values),
        _ if shape == expected => Codebook::of_codes(rows, cols, bits, bytes, values),
        _ => None,
    };
    Param::codebook(expected.to_vec(), codebook?)
}

/// 4-bit rows of a weight of shape `expected`, and their scales, if they are what [`Int4::quantize`] makes.
fn fetch_int4(
    expected: &[usize],
    group: Option<usize>,
    (shape, blob, offset): (&[usize], &Blob, usize),
    scales: &Param,
) -> Option<Param> {
    let rows = *expected.first()?;
    let cols = numel_of(expected)?.checked_div(rows)?;
    let [bytes, groups] = int4_shapes(rows, cols, group.unwrap_or(cols));
    if shape != bytes || scales.shape() != groups {
        return None;
    }
    let packed = slice(blob, offset, numel_of(shape)).to_vec();
    Param::int4(expected.to_vec(), Int4::from_parts(rows, cols, group, packed, scales.values().into_owned())?)
}
