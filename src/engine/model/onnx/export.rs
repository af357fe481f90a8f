//! A compressed model as one ONNX file that other runtimes run and that opens here again exactly as it was.
//!
//! The manifest of [`export`](crate::model::export) travels in the file's metadata together with a hash of its operators:
//! a file whose operators another program changed is read as any other ONNX file.

use super::constant::{Constant, Data, Source};
use super::proto::{GraphProto, ModelProto, NodeProto, data_type};
use super::write;
use crate::graph::{Precision, Precisions, WeightFormat, least, shapes_at};
use crate::model::checkpoint::{Checkpoint, RawTensor};
use crate::model::export::{self, KEY, Manifest};
use crate::model::{Model, ModelError, ParamStore, Result, printable, written};
use prost::Message;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// Our key for the hash of the operators.
const NODES: &str = "paring.nodes";
/// Protobuf's own limit on a message.
const MAX_BYTES: usize = i32::MAX as usize;

/// Writes `model` as ONNX, opset 17, with a free batch axis, and free tokens where the graph leaves them free. 8-bit weights are stored in 8 bits and dequantized in the
/// graph, as are numbers of shared values, of which each takes a byte; inputs of static int8 layers are rounded to 8 bits too. Returns the BLAKE3 (hex) of the file.
///
/// Other precisions are stored as the f32 weights that they give, and are f32 when opened again; but for fp8, whose activations
/// are rounded too, which this opset has no words for.
///
/// # Errors
/// [`ModelError::Write`]; [`ModelError::Param`] for a missing parameter; [`ModelError::Unsupported`] beyond 2 GB, and for a layer in fp8.
pub fn onnx(path: &Path, model: &Model, manifest: &Manifest) -> Result<String> {
    let write_error = ModelError::write(path);
    if let Some((name, _)) = model.precision.nodes.iter().find(|(_, p)| **p == Precision::Fp8) {
        let why = format!("`{}` is in fp8, which ONNX has from opset 19 on, and this writes opset 17", printable(name));
        return Err(ModelError::unsupported(path, why, "export as safetensors, or choose int8 or w8 for such layers"));
    }
    let model = &plain(model)?;
    let params = export::stored(model)?;
    let text = export::header_text(model, &params, manifest).map_err(|e| write_error(e.into()))?;
    let shapes = shapes_at(&model.graph, least(&model.graph)?)?;
    let unfit = |why: String| ModelError::unsupported(path, why, HINT);
    let mut proto =
        write::model(&model.graph, &shapes, &params, &model.precision.inputs, &[(KEY, text)]).map_err(unfit)?;
    let hash = proto.graph.as_ref().map(|g| nodes_hash(&g.node)).unwrap_or_default();
    proto.metadata_props.push(super::proto::StringStringEntryProto { key: Some(NODES.into()), value: Some(hash) });
    if proto.encoded_len() > MAX_BYTES {
        return Err(unfit("it would be larger than the 2 GB that one ONNX file may have".into()));
    }
    let bytes = proto.encode_to_vec();
    drop(proto);
    written::replace(path, |out: &mut dyn Write| out.write_all(&bytes)).map_err(write_error)
}

const HINT: &str = "export as safetensors or pytorch";

/// What [`onnx`] would refuse of the layers of `model`, whatever their weights become.
///
/// # Errors
/// [`ModelError::Unsupported`].
pub fn check(model: &Model) -> Result<()> {
    let shapes = shapes_at(&model.graph, least(&model.graph)?)?;
    let unfit = |why: String| ModelError::unsupported(&model.info.source, why, HINT);
    write::check(&model.graph, &shapes, &model.params).map_err(unfit)
}

/// `model` with precisions that ONNX has: f32, 8-bit weights and shared values; others as the f32 weights that they give.
fn plain(model: &Model) -> Result<Model> {
    let told = |p: &Precision| matches!(p.weights(), WeightFormat::Int8 | WeightFormat::Codebook { .. });
    let has = model.precision.nodes.iter().filter(|(_, p)| told(p));
    let precision: Precisions = has.map(|(name, p)| (name, *p)).collect();
    let kept = |(name, _): &(&String, _)| precision.nodes.contains_key(*name);
    let inputs = model.precision.inputs.iter().filter(kept).map(|(n, r)| (n.clone(), *r)).collect();
    let mut params = ParamStore::default();
    for (name, param) in export::stored(model)?.iter() {
        let kept = model.graph.nodes.iter().any(|n| {
            n.params.iter().any(|p| p.name == name) && precision.nodes.contains_key(&n.name) && n.op.is_conv_or_linear()
        });
        // What is stored in halves is written out as what it holds.
        let other = param.as_int4().is_some() || param.as_blocks().is_some() || param.filed().is_some();
        let quantized = (param.as_int8().is_some() || param.as_codebook().is_some()) && !kept || other;
        params.insert(name, if quantized { param.stored_in(WeightFormat::F32) } else { param.clone() });
    }
    let precision = Precisions { inputs, ..precision };
    Ok(Model { graph: Arc::clone(&model.graph), params, precision, ..model.clone() })
}

fn nodes_hash(nodes: &[NodeProto]) -> String {
    let mut h = blake3::Hasher::new();
    for n in nodes {
        h.update(&n.encode_length_delimited_to_vec());
    }
    h.finalize().to_hex().to_string()
}

/// The manifest of a file that we wrote and nobody changed.
pub(super) fn own(model: &ModelProto) -> Option<&str> {
    let get = |key: &str| model.metadata_props.iter().find(|p| p.key.as_deref() == Some(key))?.value.as_deref();
    let graph = model.graph.as_ref()?;
    (get(NODES)? == nodes_hash(&graph.node)).then(|| get(KEY)).flatten()
}

/// Opens such a file exactly as it was written.
pub(super) fn reopen(graph: &GraphProto, source: &mut Source, text: &str, path: &Path) -> Result<Model> {
    let mut c = Checkpoint::default();
    for t in &graph.initializer {
        let name = t.name.clone().unwrap_or_default();
        let damaged = |why| ModelError::damaged(path, format!("tensor `{}` {why}", printable(&name)));
        // Shapes and indices of operators are no parameters.
        let Constant { shape, data, .. } = match t.data_type {
            Some(data_type::FLOAT | data_type::INT8 | data_type::UINT8) => source.tensor(t).map_err(damaged)?,
            _ => continue,
        };
        let raw = match data {
            Data::Floats(p) => RawTensor::Float(p),
            Data::Ints(_) => match source.raw(t).map_err(damaged)? {
                Some((blob, offset, _)) => {
                    let dtype = if t.data_type == Some(data_type::UINT8) { "U8" } else { "I8" };
                    RawTensor::Bytes { dtype, shape, blob, offset }
                }
                None => continue,
            },
        };
        c.tensors.insert(name, raw);
    }
    export::reopen(&c, text, path)
}
