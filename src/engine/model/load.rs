//! From a path to a [`Model`]: find the files, read the checkpoint, recognise the network, fetch and check parameters.

use super::checkpoint::{Checkpoint, RawTensor};
use super::hf::{Json, Sidecar};
use super::{
    Blob, FamilySpec, LoadOptions, Model, ModelError, Origin, Param, ParamError, ParamStore, Result, container, export,
    gguf, imported, onnx, printable, recognise, values,
};
use crate::graph::{Graph, Node, Op, ParamRole, op, param_shapes};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Loads a model from a checkpoint file (`.safetensors`, `.th`, `.pth`, `.pt`, `.gguf`), an ONNX model, a Hugging Face directory or a file
/// that `paring` exported. The format is told by content, not by name.
///
/// # Errors
/// [`ModelError`]: unreadable, damaged, of no known family, shapes that do not fit, weights that are not finite.
pub fn load(path: &Path, options: &LoadOptions) -> Result<Model> {
    let model = as_filed(read(path, options)?);
    // Its hash was worked out while it was read: from here on the file must be what it was.
    model.params.unchanged()?;
    Ok(model)
}

fn read(path: &Path, options: &LoadOptions) -> Result<Model> {
    let (files, dir) = weight_files(path)?;
    let mut checkpoint = Checkpoint::default();
    // What cannot be asked for its size cannot be opened either, and says so then.
    let all = files.iter().filter_map(|f| f.metadata().ok()).map(|m| m.len()).sum();
    for file in &files {
        let blob = Blob::open_shard(file, all).map_err(ModelError::read(file))?;
        if files.len() == 1 && onnx::is_onnx(&blob) {
            return onnx::import(&blob, path, Some(&dir), &Sidecar::read(&dir)?, options);
        }
        checkpoint.absorb(container::parse(&blob, file)?, file)?;
    }
    let sidecar = match aside(&checkpoint, path) {
        Some(sidecar) => sidecar,
        None => Sidecar::read(&dir)?,
    };
    assemble(checkpoint, &sidecar, options, path)
}

/// Loads a model from bytes compiled into the program; `name` is what it will be called.
///
/// # Errors
/// As [`load`].
pub fn load_bytes(name: &str, bytes: &'static [u8], options: &LoadOptions) -> Result<Model> {
    let path = Path::new(name);
    if onnx::is_onnx(bytes) {
        return onnx::import(&Blob::Static(bytes), path, None, &Sidecar::default(), options).map(as_filed);
    }
    let checkpoint = container::parse(&Blob::Static(bytes), path)?;
    let sidecar = aside(&checkpoint, path).unwrap_or_default();
    assemble(checkpoint, &sidecar, options, path).map(as_filed)
}

/// What a file says itself instead of those that lie beside it, if it does.
fn aside(checkpoint: &Checkpoint, path: &Path) -> Option<Sidecar> {
    match &checkpoint.gguf {
        Some(metadata) => Some(Sidecar::of(path, gguf::config(metadata)?)),
        None => checkpoint.metadata.contains_key(export::KEY).then(Sidecar::default),
    }
}

/// `model` with the precision of every layer whose weight the file stores in fewer than 32 bits: what nobody decides otherwise stays
/// so, and is counted so.
fn as_filed(mut model: Model) -> Model {
    let mut found = Vec::new();
    for (_, node) in model.graph.live().filter(|(_, n)| n.op.is_conv_or_linear()) {
        let weight = node.param(ParamRole::Weight).and_then(|w| model.params.get(w).ok());
        let precision = weight.and_then(Param::filed).filter(|p| p.unfit(&node.op).is_none());
        found.extend(
            precision.filter(|_| !model.precision.nodes.contains_key(&node.name)).map(|p| (node.name.clone(), p)),
        );
    }
    model.precision.nodes.extend(found);
    model
}

/// The weight files that `path` stands for, and the folder to look for configuration in.
pub(super) fn weight_files(path: &Path) -> Result<(Vec<PathBuf>, PathBuf)> {
    let read = ModelError::read(path);
    let meta = std::fs::metadata(path).map_err(&read)?;
    if !meta.is_dir() {
        let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return Ok((vec![path.to_owned()], dir.to_owned()));
    }
    let first = |names: &[&str]| names.iter().map(|n| path.join(n)).find(|f| f.is_file());
    if let Some(index) = first(&["model.safetensors.index.json", "pytorch_model.bin.index.json"]) {
        return Ok((shards(&index, path)?, path.to_owned()));
    }
    if let Some(file) = first(&["model.safetensors", "pytorch_model.bin", "model.onnx"]) {
        return Ok((vec![file], path.to_owned()));
    }
    // A folder with exactly one weight file leaves no doubt either.
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(&read)? {
        let file = entry.map_err(&read)?.path();
        let known = file
            .extension()
            .is_some_and(|e| ["safetensors", "th", "pth", "pt", "onnx", "gguf"].iter().any(|k| e == *k));
        if known && file.is_file() {
            found.push(file);
        }
    }
    found.sort();
    match found.len() {
        1 => Ok((found, path.to_owned())),
        0 => {
            let why = "the folder holds no `model.safetensors`, `pytorch_model.bin` or other checkpoint";
            Err(ModelError::format(path, why))
        }
        n => Err(ModelError::format(path, format!("the folder holds {n} checkpoints; name one of them"))),
    }
}

/// The shard files of a Hugging Face index (`weight_map`: tensor → file name), each once. Names stay inside `dir`.
fn shards(index: &Path, dir: &Path) -> Result<Vec<PathBuf>> {
    let json = Json::read(index.to_owned())?;
    let map = json.field("weight_map").and_then(|m| m.as_object()).ok_or_else(|| json.bad("it has no `weight_map`"))?;
    let mut files = BTreeSet::new();
    for value in map.values() {
        let name = value.as_str().unwrap_or_default();
        let plain = Path::new(name).file_name().is_some_and(|f| f == name);
        if !plain {
            return Err(json.bad(format!("`{}` is no file name", printable(name))));
        }
        files.insert(name);
    }
    Ok(files.into_iter().map(|name| dir.join(name)).collect())
}

fn assemble(mut checkpoint: Checkpoint, sidecar: &Sidecar, options: &LoadOptions, path: &Path) -> Result<Model> {
    if let Some(manifest) = checkpoint.metadata.get(export::KEY).cloned() {
        return export::reopen(&checkpoint, &manifest, path);
    }
    checkpoint.strip_wrappers();
    let mut notes = Vec::new();
    let spec = recognise::spec(&checkpoint, sidecar, options, path, &mut notes)?;
    let mut graph = spec.build()?;
    if grey(&checkpoint, &mut graph) {
        graph.check()?;
    }
    let family = spec.family();
    spec.adapt(&mut checkpoint);
    let params = fetch(&checkpoint, &graph)?;
    extras(&checkpoint, &params, &spec, &mut notes)?;
    values::check(&graph, &params)?;
    notes.extend(unpacked(&params));
    // What takes no images has no sides.
    let shape = if graph.is_free() { Vec::new() } else { graph.input_shape()? };
    let side = |axis: usize| shape.get(axis).copied().unwrap_or(0);
    let preprocess = sidecar.preprocess(spec.preprocess([side(1), side(2)]))?;
    let origin = Origin::of(&checkpoint, &graph, &params);
    let model = imported::model(graph, params, family, spec.classes(), preprocess, sidecar, path, notes);
    Ok(Model { origin, ..model })
}

/// A note on weights in formats that no kernel here multiplies.
fn unpacked(params: &ParamStore) -> Option<String> {
    let coded: BTreeSet<&str> = params.iter().filter_map(|(_, p)| Some(p.as_coded()?.0.label())).collect();
    let labels: Vec<&str> = coded.into_iter().collect();
    let some = !labels.is_empty();
    some.then(|| format!("weights in {} are unpacked to f32 when they are computed with", labels.join(", ")))
}

/// Families are built for images of three channels. A network for grey ones differs in that number alone, and its first
/// convolution tells; then `graph` becomes one.
fn grey(c: &Checkpoint, graph: &mut Graph) -> bool {
    let Some(input) = graph.iter().find(|(_, n)| matches!(n.op, Op::Input(_))).map(|(id, _)| id) else {
        return false;
    };
    let reads = |n: &Node| n.inputs.contains(&input);
    let one = |n: &Node| n.param(ParamRole::Weight).and_then(|w| c.shape(w)).and_then(|s| s.get(1)) == Some(&1);
    if !graph
        .nodes
        .iter()
        .filter(|n| reads(n))
        .all(|n| matches!(n.op, Op::Conv2d(op::Conv2d { in_ch: 3, groups: 1, .. })) && one(n))
    {
        return false;
    }
    for node in &mut graph.nodes {
        match &mut node.op {
            Op::Input(op::Input { dims, .. }) => dims[..1].fill(op::Dim::Fixed(1)),
            Op::Conv2d(op::Conv2d { in_ch, .. }) if node.inputs.contains(&input) => *in_ch = 1,
            _ => {}
        }
    }
    true
}

/// Every parameter that `graph` names, with the shape that it must have.
fn fetch(c: &Checkpoint, graph: &Graph) -> Result<ParamStore> {
    let mut params = ParamStore::default();
    for node in &graph.nodes {
        for (p, (_, expected)) in node.params.iter().zip(param_shapes(&node.op)) {
            let raw = c.tensors.get(&p.name).ok_or_else(|| ParamError::Missing { name: printable(&p.name) })?;
            if !same_but_for_ones(raw.shape(), &expected) {
                let found = raw.shape().to_vec();
                return Err(ParamError::Shape { name: printable(&p.name), found, expected }.into());
            }
            let dtype = match raw {
                RawTensor::Float(param) => {
                    params.insert(p.name.clone(), param.reshaped(expected).unwrap_or_else(|| param.clone()));
                    continue;
                }
                RawTensor::Bytes { dtype, .. } => dtype,
                RawTensor::Other { dtype, .. } => dtype.as_str(),
            };
            return Err(ParamError::Type { name: p.name.clone(), dtype: printable(dtype) }.into());
        }
    }
    Ok(params)
}

/// Is it the same tensor but for axes of length 1? A linear may be stored as a 1x1 convolution and the other way round.
fn same_but_for_ones(a: &[usize], b: &[usize]) -> bool {
    let long = |s: &[usize]| s.iter().copied().filter(|&d| d != 1).collect::<Vec<_>>();
    a == b || long(a) == long(b)
}

/// Tensors that the graph does not use. Counters and pooling heads that the classifier never reads are noted; anything
/// else means that this is another network, and leaving it out would silently give wrong answers.
fn extras(c: &Checkpoint, params: &ParamStore, spec: &FamilySpec, notes: &mut Vec<String>) -> Result<()> {
    let harmless =
        |name: &str| name.ends_with("num_batches_tracked") || spec.unused().iter().any(|part| name.contains(part));
    let mut ignored = 0usize;
    let mut names = Vec::new();
    for (name, tensor) in &c.tensors {
        match tensor {
            _ if params.contains(name) => {}
            RawTensor::Other { .. } | RawTensor::Bytes { dtype: "U8" | "F8_E4M3", .. } => ignored += 1,
            _ if harmless(name) => ignored += 1,
            _ => names.push(printable(name)),
        }
    }
    if !names.is_empty() {
        return Err(ModelError::Extra { family: spec.family(), names });
    }
    if ignored > 0 {
        notes.push(format!(
            "{ignored} tensors without influence on the output were left out (counters, buffers, poolers)"
        ));
    }
    Ok(())
}
