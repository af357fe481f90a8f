//! What classifiers of text have in common, whatever their layers: which of the networks of a kind they are, and what is refused.
//!
//! Not here: what a kind's layers are (`bert`, `modernbert`).

use super::{Reader, Result};
use crate::model::{Checkpoint, printable};

/// Classes of the classifier whose weight is called `own`.
///
/// # Errors
/// Another kind of network than one of `kinds`, another task than one class a text; by name.
pub(super) fn classes(r: &Reader, kinds: &[&str], own: &str) -> Result<usize> {
    let c = &r.sidecar.config;
    if !c.is_there() {
        return Err(r.not("weights do not tell the number of heads, and no `config.json` lies beside them"));
    }
    if let Some(kind) = c.string("model_type")?.filter(|k| !kinds.contains(k)) {
        return Err(r.not(format!(
            "`{}` is a relative that is not supported ({} is)",
            printable(kind),
            kinds.join(", ")
        )));
    }
    let built = c.strings("architectures")?.unwrap_or_default();
    if let Some(other) = built.first().filter(|a| !a.ends_with("ForSequenceClassification")) {
        let why = "only classifiers of whole texts are read (`…ForSequenceClassification`)";
        return Err(r.not(format!("it is a `{}`; {why}", printable(other))));
    }
    if !r.has(own) {
        return Err(r.not(format!("it has no classifier: tensor `{}` is missing", r.names.of(own))));
    }
    let classes = r.out(own)?;
    match c.string("problem_type")? {
        None | Some("single_label_classification") if classes > 1 => Ok(classes),
        None | Some("single_label_classification") => Err(r.not("one output is a number and no class (regression)")),
        Some(other) => Err(r.not(format!("its texts have no single class (`problem_type` is `{}`)", printable(other)))),
    }
}

/// Layers, of which each has a tensor that is called `own` in it, as many as the configuration tells of.
pub(super) fn layers(r: &Reader, told: Option<usize>, own: &str) -> Result<usize> {
    let layers = r.count(|i| format!("layers.{i}.{own}"))?;
    match told.filter(|n| *n != layers) {
        None => Ok(layers),
        Some(n) => Err(r.not(format!("its configuration tells of {n} layers, and there are weights for {layers}"))),
    }
}

/// The first files of BERT call a norm's factors `gamma` and its offsets `beta`.
pub(super) fn rename_norms(c: &mut Checkpoint) {
    let newer = |name: &str| {
        let (at, word) = name.rsplit_once('.')?;
        let word = if word == "gamma" { "weight" } else { Some("bias").filter(|_| word == "beta")? };
        at.ends_with("LayerNorm").then(|| format!("{at}.{word}"))
    };
    if c.tensors.keys().any(|name| newer(name).is_some()) {
        let all = std::mem::take(&mut c.tensors);
        c.tensors = all.into_iter().map(|(name, tensor)| (newer(&name).unwrap_or(name), tensor)).collect();
    }
}
