//! The `llama-quantize` command that makes the same file of the original, where there is one: layers removed and tensors rounded, all else
//! as it was.
//!
//! Source: llama.cpp's `tools/quantize` (`--tensor-type` takes regular expressions, `--prune-layers` numbers of layers).

use super::layers::{Shape, layer_of};
use super::tensors::{Kind, Tensor};
use crate::model::Dtype;
use crate::model::export::Manifest;
use crate::model::gguf::Metadata;
use std::collections::BTreeMap;

/// The command; `None` where weights are otherwise than rounded.
pub(super) fn quantize(
    m: &Metadata,
    manifest: &Manifest,
    shape: &Shape,
    arch: &str,
    tensors: &[Tensor<'_>],
) -> Option<String> {
    // Cut, repaired or thinned out: no option of theirs does that.
    let same = |name: &str, of: fn(&super::layers::Layer) -> usize| {
        let was = m.same(&format!("{arch}.{name}"))?;
        shape.layers.iter().all(|l| of(l) == was).then_some(())
    };
    same("feed_forward_length", |l| l.hidden)?;
    same("attention.head_count", |l| l.heads)?;
    m.same(&format!("{arch}.embedding_length")).filter(|n| *n == shape.dim)?;
    if ["repair", "rounding"].iter().any(|by| !manifest.recipe[by].is_null())
        || manifest.recipe["actions"].to_string().contains("sparsif")
    {
        return None;
    }
    if tensors.iter().any(|t| t.change.is_some()) {
        return None;
    }
    let kinds = by_part(tensors);
    let usual = most(tensors)?;
    let mut words = vec!["llama-quantize".to_owned()];
    // All but files of plain floats are refused otherwise (`llama_ftype`).
    if m.count("general.file_type").is_some_and(|kind| ![0, 1, 32].contains(&kind)) {
        words.push("--allow-requantize".to_owned());
    }
    if manifest.imatrix().is_some() {
        words.push("--imatrix IMATRIX".to_owned());
    }
    let gone: Vec<String> =
        (0..shape.were).filter(|i| shape.layers.iter().all(|l| l.was != *i)).map(|i| i.to_string()).collect();
    if !gone.is_empty() {
        words.push(format!("--prune-layers {}", gone.join(",")));
    }
    for (part, kinds) in kinds {
        let flag = match part {
            "token_embd" => "--token-embedding-type",
            "output" => "--output-tensor-type",
            _ => "--tensor-type",
        };
        for (kind, layers) in &kinds {
            let kind = kind.label().to_lowercase();
            words.push(match (flag, kinds.len()) {
                ("--tensor-type", 1) => format!("{flag} {part}={kind}"),
                ("--tensor-type", _) => {
                    let layers: Vec<String> = layers.iter().map(usize::to_string).collect();
                    format!("{flag} 'blk\\.({})\\.{part}={kind}'", layers.join("|"))
                }
                _ => format!("{flag} {kind}"),
            });
        }
    }
    words.push(format!("ORIGINAL.gguf OUT.gguf {}", usual.label()));
    Some(words.join(" "))
}

/// What every matrix is stored as: by its part of a layer, each format with the layers that have it.
fn by_part<'a>(tensors: &'a [Tensor<'_>]) -> BTreeMap<&'a str, Vec<(Kind, Vec<usize>)>> {
    let mut out: BTreeMap<&str, Vec<(Kind, Vec<usize>)>> = BTreeMap::new();
    for t in tensors.iter().filter(|t| t.is_matrix()) {
        let name = t.name.strip_suffix(".weight").unwrap_or(&t.name);
        let (layer, part) = layer_of(name).unwrap_or((0, name));
        let kinds = out.entry(part).or_default();
        match kinds.iter_mut().find(|(kind, _)| *kind == t.kind) {
            Some((_, layers)) => layers.push(layer),
            None => kinds.push((t.kind, vec![layer])),
        }
    }
    out
}

/// What most matrices are stored as.
pub(super) fn most(tensors: &[Tensor<'_>]) -> Option<Kind> {
    let mut counts: BTreeMap<u32, (usize, Kind)> = BTreeMap::new();
    for t in tensors.iter().filter(|t| t.is_matrix()) {
        counts.entry(t.kind.number()).or_insert((0, t.kind)).0 += 1;
    }
    counts.values().max_by_key(|(n, _)| *n).map(|(_, kind)| *kind).filter(|k| *k != Kind::Float(Dtype::F64))
}
