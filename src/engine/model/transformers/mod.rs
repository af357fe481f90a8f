//! A language model as the directory that transformers opens (`AutoModelForCausalLM.from_pretrained`), and what is built on it: the original's
//! `config.json` with what was cut (`config`), tensors under the family's names (`weights`), the vocabulary (`vocabulary`).
//!
//! What a `config.json` has no words for is refused before anything is written. Weights of 8 or 4 bits and 8-bit floats are stored as
//! `compressed-tensors` has them; what that has no format for is written in floats, with a note. Not here: files that we open again
//! exactly (`export`), what transformers calls things (`families`).

mod config;
mod vocabulary;
mod weights;

use super::export::Manifest;
use super::families::called_there;
use super::llamacpp::{Unfit, Written};
use super::{Model, ModelError, Result, llamacpp, printable};
use crate::files;
use crate::graph::experts::mixtures;
use crate::graph::{Graph, NodeId};
use crate::words::counted;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;

/// The weights' file.
const WEIGHTS: &str = "model.safetensors";
const CONFIG: &str = "config.json";
/// The field of `config.json` that says who wrote it.
const MARK: &str = "paring";

fn refusal(model: &Model, u: Unfit) -> ModelError {
    ModelError::unsupported(&model.info.source, format!("as a directory for transformers, {}", u.why), &u.hint)
}

/// What transformers calls the nodes of a network of the kind `kind`: those of a directory keep their names.
fn names(model: &Model, kind: &str) -> Option<HashMap<String, String>> {
    let nodes = || model.graph.nodes.iter().map(|n| n.name.as_str());
    if !nodes().any(|n| n.starts_with("blk.")) {
        return Some(nodes().map(|n| (n.to_owned(), n.to_owned())).collect());
    }
    let mut names = called_there(&model.graph, kind)?;
    // What all of a class with a head begin with.
    let begun = |n: &str| n.starts_with("model.") || n.starts_with("transformer.") || n == "lm_head";
    for name in names.values_mut().filter(|n| !begun(n)) {
        name.insert_str(0, "model.");
    }
    Some(names)
}

/// `name` with the new number of its place in a list, `layers.`, `h.` or `experts.`.
fn renumbered(name: &str, list: &str, place: &dyn Fn(usize) -> Option<usize>) -> String {
    let found = name.find(list).and_then(|at| {
        let (before, rest) = name.split_at(at + list.len());
        let (number, rest) = rest.split_once('.').unwrap_or((rest, ""));
        let place = place(number.parse().ok()?)?;
        Some(format!("{before}{place}{}{rest}", if rest.is_empty() { "" } else { "." }))
    });
    found.unwrap_or_else(|| name.to_owned())
}

/// Which of those that are left each layer's expert is.
fn experts(graph: &Graph) -> HashMap<String, usize> {
    let of = |(e, layers): (usize, Vec<NodeId>)| layers.into_iter().map(move |id| (graph.node(id).name.clone(), e));
    mixtures(graph).into_iter().flat_map(|m| m.layers.into_iter().enumerate().flat_map(of)).collect()
}

/// What [`folder`] would refuse of `model` whatever its weights become; `factored`: a layer that is to be two by then.
///
/// # Errors
/// As [`folder`].
pub fn check(model: &Model, factored: Option<&str>) -> Result<()> {
    let two = factored.map(str::to_owned).or_else(|| Some(model.graph.factored().first()?.1.name.clone()));
    if let Some(layer) = two {
        let why = format!("`{}` is two low-rank factors, which its classes have no words for", printable(&layer));
        return Err(refusal(model, Unfit::new(why, "export as safetensors or pytorch, or leave the factors out")));
    }
    config::of(model).map(drop)
}

/// Does the folder hold an earlier export and nothing else?
pub(super) fn is_export(dir: &Path) -> bool {
    let Ok(Ok(entries)) = std::fs::read_dir(dir).map(|all| all.collect::<Result<Vec<_>, _>>()) else { return false };
    let known = |name: &std::ffi::OsStr| [WEIGHTS, CONFIG].iter().chain(vocabulary::FILES).any(|k| name == *k);
    let config = files::read_text(&dir.join(CONFIG), super::hf::MAX_BYTES).ok();
    let config = config.and_then(|text| serde_json::from_str::<Value>(&text).ok());
    config.is_some_and(|c| c.get(MARK).is_some()) && entries.iter().all(|e| known(&e.file_name()))
}

/// Writes `model.safetensors`, `config.json` and the vocabulary's files into the folder `dir`, which appears whole or not at all, in the place of an
/// earlier export if there is one.
///
/// # Errors
/// [`ModelError::Unsupported`] for what a `config.json` has no words for, before anything is written; [`ModelError::Write`], also when
/// `dir` holds anything else.
pub fn folder(dir: &Path, model: &Model, manifest: &Manifest) -> Result<Written> {
    check(model, None)?;
    // What `fill` says itself passes through as the inside of an I/O error.
    let failed = |e: io::Error| e.downcast().unwrap_or_else(ModelError::write(dir));
    files::replace_folder(dir, is_export, |new| fill(new, model, manifest).map_err(io::Error::other)).map_err(failed)
}

fn fill(dir: &Path, model: &Model, manifest: &Manifest) -> Result<Written> {
    let mut config = config::of(model)?;
    let nothing = || refusal(model, Unfit::new("its layers have no names there", "export as safetensors or pytorch"));
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let names = names(model, &kind).ok_or_else(nothing)?;
    let kept: Vec<usize> = llamacpp::shape(model)?.layers.iter().map(|l| l.was).collect();
    let experts = experts(&model.graph);
    let name = |(own, theirs): (String, String)| {
        let list = if theirs.contains("layers.") { "layers." } else { ".h." };
        let theirs = renumbered(&theirs, list, &|was| kept.iter().position(|k| *k == was));
        let theirs = match experts.get(&own) {
            Some(place) => renumbered(&theirs, "experts.", &|_| Some(*place)),
            None => theirs,
        };
        (own, theirs)
    };
    let names = names.into_iter().map(name).collect();
    let tensors = weights::of(model, &names, &kind)?;
    let mut notes = Vec::new();
    let mut wide: BTreeMap<&str, usize> = BTreeMap::new();
    for label in tensors.iter().filter_map(|t| t.widened) {
        *wide.entry(label).or_default() += 1;
    }
    for (label, n) in wide {
        notes.push(format!(
            "{} in {label}: compressed-tensors has no such format for them; what they stand for is written in floats",
            counted(n, "weight")
        ));
    }
    if let Some(quantized) = weights::quantization(&tensors) {
        if quantized["config_groups"].as_object().is_some_and(|groups| groups.len() > 1) {
            notes.push(
                "its layers are quantized in several ways, which vLLM's format has room for and transformers (5.24) does not open; hint: one precision for all"
                    .into(),
            );
        }
        notes.push(
            "its quantized weights are in the layout of compressed-tensors, which transformers needs that package for"
                .into(),
        );
        config.insert("quantization_config".into(), quantized);
    }
    config.insert("torch_dtype".into(), weights::dtype(&tensors).into());
    config.remove("dtype");
    let about = serde_json::json!({ "version": env!("CARGO_PKG_VERSION"), "recipe": manifest.recipe, "original": manifest.original });
    config.insert(MARK.into(), about);
    let put = |name: &str, text: &str| {
        let path = dir.join(name);
        files::write(&path, text).map_err(ModelError::write(&path))
    };
    put(CONFIG, &format!("{:#}\n", Value::Object(config)))?;
    notes.extend(vocabulary::put(model, dir)?);
    let path = dir.join(WEIGHTS);
    let hash = weights::write(&path, &tensors)?;
    Ok(Written { hash, notes, ..Written::default() })
}
