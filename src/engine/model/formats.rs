//! The formats that a model is written in: which one is meant, and who writes it.

use super::export::{self, Manifest};
use super::llamacpp;
pub use super::llamacpp::Written;
use super::{Model, Result, printable, python, transformers};
use crate::files;
use crate::graph::{Node, WeightFormat};
use crate::words::counted;
use std::collections::BTreeMap;
use std::path::Path;

/// Formats that a model is written in, as commands name them: one file that `paring` opens again (safetensors, or ONNX
/// for other runtimes, see [`super::onnx`]), a folder with a generated PyTorch loader ([`python`]), or a language model for
/// llama.cpp ([`llamacpp`]) or as a directory for transformers ([`transformers`]).
pub const FORMATS: &[&str] = &["safetensors", "pytorch", "onnx", "gguf", "hf"];

/// Those of them that are folders.
pub const FOLDERS: [&str; 2] = ["pytorch", "hf"];

/// Endings of files that others write, and that nobody shall take ours for.
const OTHERS: &[&str] = &["pth", "pt", "th", "bin", "ckpt", "h5", "tflite"];

/// The format called `name`; without a name what `path` ends in, or safetensors.
///
/// # Errors
/// A name that is none of [`FORMATS`], or another than `path` ends in, in words.
pub fn format(name: &str, path: &str) -> Result<&'static str, String> {
    let wanted = name.trim().to_lowercase();
    let ending = Path::new(path.trim()).extension().map(|e| e.to_string_lossy().to_lowercase());
    let named = |word: &str| FORMATS.iter().find(|f| **f == word).copied();
    let ends = ending.as_deref().and_then(named);
    let found = match wanted.as_str() {
        "" => ends.unwrap_or(FORMATS[0]),
        word => named(word)
            .ok_or_else(|| format!("cannot export `{}`; hint: one of {}", printable(word), FORMATS.join(", ")))?,
    };
    let ending = printable(&ending.unwrap_or_default());
    if ends.is_some_and(|e| e != found) || (!FOLDERS.contains(&found) && OTHERS.contains(&&*ending)) {
        let name = if FOLDERS.contains(&found) { "name a folder".to_owned() } else { format!("name it `.{found}`") };
        return Err(format!(
            "a file that ends in `.{ending}` would not be {found}; hint: {name}, or choose another format ({})",
            FORMATS.join(", ")
        ));
    }
    Ok(found)
}

/// Whether a model in `format` can be written at `path`, as far as that can be known before it is made.
///
/// # Errors
/// As [`files::ready`].
pub fn ready(path: &Path, format: &str) -> std::io::Result<()> {
    match format {
        "pytorch" => files::ready(path, Some(&python::is_export)),
        "hf" => files::ready(path, Some(&transformers::is_export)),
        _ => files::ready(path, None),
    }
}

/// What [`write`] would refuse of `model` whatever its weights become; `factored`: a layer that is to be two by then.
///
/// # Errors
/// As [`llamacpp::check`], [`transformers::check`] and [`super::onnx::check`].
pub fn check(model: &Model, format: &str, factored: Option<&str>) -> Result<()> {
    match format {
        "gguf" => llamacpp::check(model, factored),
        "hf" => transformers::check(model, factored),
        "onnx" => super::onnx::check(model),
        _ => Ok(()),
    }
}

/// Whether `format` takes `model` with every layer cut in its own way.
pub fn takes_uneven(model: &Model, format: &str) -> bool {
    match format {
        "gguf" => llamacpp::takes_uneven(model),
        "hf" => false,
        _ => true,
    }
}

/// Writes `model` to `path` in one of [`FORMATS`].
///
/// # Errors
/// As [`export::safetensors`], [`python::folder`], [`super::export_onnx`], [`llamacpp::gguf`] and [`transformers::folder`].
pub fn write(path: &Path, model: &Model, manifest: &Manifest, format: &str) -> Result<Written> {
    let mut notes: Vec<String> = cache(model).filter(|_| format != FORMATS[0]).into_iter().collect();
    let hash = match format {
        "pytorch" => python::folder(path, model, manifest)?,
        "onnx" => {
            notes.extend(widened(model));
            notes.extend(a_byte_each(model));
            super::export_onnx(path, model, manifest)?
        }
        "gguf" | "hf" => {
            let written = match format {
                "gguf" => llamacpp::gguf(path, model, manifest)?,
                _ => transformers::folder(path, model, manifest)?,
            };
            return Ok(Written { notes: written.notes.iter().cloned().chain(notes).collect(), ..written });
        }
        _ => export::safetensors(path, model, manifest)?,
    };
    Ok(Written { hash, notes, ..Written::default() })
}

/// That what keys and values are kept in is said nowhere in other files than our own; `None` where nothing was decided.
fn cache(model: &Model) -> Option<String> {
    let decided = |n: &Node| n.op.caches().then(|| model.precision.nodes.get(&n.name)).flatten();
    let mut labels: Vec<&str> = model.graph.live().filter_map(|(_, n)| Some(decided(n)?.label())).collect();
    labels.sort_unstable();
    labels.dedup();
    (!labels.is_empty()).then(|| {
        format!(
            "keys and values in {}: no such file says what a cache is in, whoever runs it does (llama.cpp's -ctk and -ctv, vLLM's --kv-cache-dtype)",
            labels.join(" and ")
        )
    })
}

/// That an ONNX file has a byte for each number of a shared value; `None` where none are shared.
fn a_byte_each(model: &Model) -> Option<String> {
    let shared = |n: &&Node| {
        n.op.is_conv_or_linear()
            && matches!(model.precision.get(&n.name).weights(), WeightFormat::Codebook { bits } if bits < 8)
    };
    let layers = model.graph.nodes.iter().filter(shared).count();
    let of = counted(layers, "layer");
    (layers > 0).then(|| {
        format!(
            "which of its values a weight of {of} is takes 8 bits in an ONNX file, which has no fewer in this opset"
        )
    })
}

/// That layers were decided to be in what [`super::export_onnx`] has no words for, and are f32 in its file; `None` where none was.
fn widened(model: &Model) -> Option<String> {
    let mut layers = BTreeMap::new();
    for node in model.graph.nodes.iter().filter(|n| n.op.is_conv_or_linear()) {
        let precision = model.precision.get(&node.name);
        if !matches!(precision.weights(), WeightFormat::F32 | WeightFormat::Int8 | WeightFormat::Codebook { .. }) {
            *layers.entry(precision.label()).or_insert(0usize) += 1;
        }
    }
    let all: Vec<String> = layers.iter().map(|(label, n)| format!("{} in {label}", counted(*n, "layer"))).collect();
    let all = (!all.is_empty()).then(|| all.join(", "))?;
    Some(format!(
        "weights of {all} are f32 in an ONNX file, with the values that were decided: it is no smaller for them"
    ))
}
