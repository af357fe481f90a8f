//! Reading a decoder's dimensions off a checkpoint and its configuration; what kinds have in common.
//!
//! Not here: what only one kind has (`llama`, `gemma`), rotary positions (`decoder_rope`), experts (`decoder_experts`).

use super::decoder::{DecoderSpec, LayerShape, LlamaDims, QkNorms, Stored};
use super::decoder_rope::Heads;
use super::{Reader, Result, Source, decoder_experts, decoder_rope};
use crate::graph::Activation;
use crate::graph::op;
use crate::graph::rotary::Pairs;
use crate::model::printable;

/// All kinds whose layers are known.
const KINDS: [&str; 10] =
    ["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "phi3", "olmo2", "gemma2", "gemma3"];

/// The kind that the configuration names; what shares `own`'s names but computes otherwise is refused. Where it names none, the first.
pub(super) fn kind<'a>(r: &Reader<'a>, own: &[&'a str]) -> Result<&'a str> {
    let c = &r.sidecar.config;
    if !c.is_there() {
        return Err(r.not("weights do not tell the number of heads, and no `config.json` lies beside them"));
    }
    let told = c.string("model_type")?;
    match told {
        None => Ok(own[0]),
        Some(told) => own.iter().copied().find(|k| *k == told).ok_or_else(|| {
            r.not(format!("`{}` is a relative that is not supported ({} are)", printable(told), KINDS.join(", ")))
        }),
    }
}

/// A number under transformers' name or Meta's.
fn either(r: &Reader, a: &str, b: &str) -> Result<Option<usize>> {
    let c = &r.sidecar.config;
    c.count(a).and_then(|n| n.map_or_else(|| c.count(b), |n| Ok(Some(n))))
}

/// Everything that does not depend on the kind; `positions` reads the rotary ones. A kind changes what is otherwise with it.
pub(super) fn spec(
    r: &Reader,
    kind: &str,
    act: Activation,
    fused: bool,
    positions: impl FnOnce(Heads<'_>) -> Result<op::Rope>,
) -> Result<DecoderSpec> {
    let c = &r.sidecar.config;
    let [vocab, dim] = r.shape("embed.weight")?;
    r.agrees(&["vocab_size"], vocab, "embed.weight")?;
    r.agrees(&["hidden_size", "dim"], dim, "embed.weight")?;
    let shapes = if kind == UNEVEN { shapes(r)? } else { Vec::new() };
    let one = |a, b, of: fn(&LayerShape) -> usize| match shapes.first() {
        Some(first) => Ok(Some(of(first)).filter(|n| *n > 0)),
        None => either(r, a, b),
    };
    let heads = r.options.heads.map_or_else(|| one("num_attention_heads", "n_heads", |l| l.heads), |h| Ok(Some(h)))?;
    let heads = heads.ok_or_else(|| r.not("its configuration does not tell the number of heads"))?;
    let head_dim = c.count("head_dim")?.unwrap_or(dim / heads.max(1));
    if c.count("v_head_dim")?.is_some_and(|n| n != head_dim) {
        return Err(r.not("its values have another width than its keys"));
    }
    let told = one("num_key_value_heads", "n_kv_heads", |l| l.kv_heads)?;
    let first = if fused { "qkv" } else { "q" };
    let layers = match shapes.len() {
        0 => r.count(|i| format!("layers.{i}.{first}.weight"))?,
        n => n,
    };
    for (i, l) in shapes.iter().enumerate() {
        fits(r, i, l, head_dim)?;
    }
    let experts = decoder_experts::read(r, kind, layers)?;
    let kv_heads = match fused {
        true => told.unwrap_or(heads),
        false => told.unwrap_or(r.out("layers.0.k.weight")? / head_dim.max(1)),
    };
    let has_mlp =
        |i: &usize| experts.as_ref().is_none_or(|e| !e.layers[*i]) && shapes.get(*i).is_none_or(|l| l.hidden > 0);
    let dense = (0..layers).find(has_mlp);
    let hidden = match (dense, fused) {
        (Some(i), true) => r.out(&format!("layers.{i}.gate_up.weight"))? / 2,
        (Some(i), false) => r.out(&format!("layers.{i}.gate.weight"))?,
        (None, _) => experts.as_ref().map_or(0, |e| e.hidden),
    };
    if let Some(i) = dense.filter(|_| shapes.is_empty()) {
        let tensor = if fused { "gate_up" } else { "gate" };
        r.agrees(&["intermediate_size"], hidden, &format!("layers.{i}.{tensor}.weight"))?;
    }
    let rows = [heads.checked_mul(head_dim), kv_heads.checked_mul(head_dim)];
    let found = match (fused, rows) {
        (false, _) => [Some(r.out("layers.0.q.weight")?), Some(r.out("layers.0.k.weight")?)],
        // Queries and twice as many rows as keys have.
        (true, [q, kv]) => {
            let rest = r.out("layers.0.qkv.weight")?.checked_sub(q.unwrap_or(usize::MAX));
            [q, rest.filter(|n| kv.is_some_and(|kv| kv.checked_mul(2) == Some(*n))).and(kv)]
        }
    };
    if rows != found || rows.contains(&None) || kv_heads == 0 {
        let tensors = if fused { "layers.0.qkv.weight" } else { "layers.0.q.weight" };
        return Err(r.not(format!(
            "{heads} heads of {head_dim} values with {kv_heads} of keys do not make the rows of `{}`",
            r.names.of(tensors)
        )));
    }
    if let Some(told) = either(r, "num_hidden_layers", "n_layers")?.filter(|n| *n != layers) {
        return Err(r.not(format!("its configuration tells of {told} layers, and there are weights for {layers}")));
    }
    let tied = !r.has("head.weight");
    if tied && c.bool("tie_word_embeddings")? == Some(false) {
        return Err(r.not(format!("tensor `{}` is missing", r.names.of("head.weight"))));
    }
    let meta = r.names.source == Source::Paper;
    let pairs = if c.bool("rope_interleaved")?.unwrap_or(meta) { Pairs::Neighbours } else { Pairs::Halves };
    let plain = DecoderSpec::llama(LlamaDims { vocab, dim, layers, heads, kv_heads, head_dim, hidden });
    Ok(DecoderSpec {
        names: r.names,
        experts,
        act,
        eps: eps(r)?,
        rope: positions(Heads { kind, dim: head_dim, pairs })?,
        qkv_bias: r.has(&format!("layers.0.{first}.bias")),
        out_bias: r.has("layers.0.o.bias"),
        qk_norms: if r.has("layers.0.q_norm.weight") { QkNorms::Heads } else { QkNorms::None },
        tied,
        stored: Stored { fused, less_one: false },
        shapes,
        ..plain
    })
}

/// The kind that tells its shapes layer by layer.
const UNEVEN: &str = "deci";

/// Each layer's shape, of numbers for all or of lists with one for each; empty where no list is told.
fn shapes(r: &Reader) -> Result<Vec<LayerShape>> {
    let c = &r.sidecar.config;
    let layers =
        c.count("num_hidden_layers")?.ok_or_else(|| r.not("its metadata does not tell how many layers it has"))?;
    let list = |key: &str| c.field(key).is_some_and(serde_json::Value::is_array);
    let all = ["num_attention_heads", "num_key_value_heads", "intermediate_size"];
    if !all.into_iter().any(list) {
        return Ok(Vec::new());
    }
    let each = |key: &str| -> Result<Vec<usize>> {
        let told = if list(key) { c.counts(key)? } else { c.count(key)?.map(|n| vec![n; layers.min(1 << 10)]) };
        let told = told.ok_or_else(|| r.not(format!("its metadata does not tell `{key}`")))?;
        match told.len() == layers {
            true => Ok(told),
            false => Err(c.bad(format!("`{key}` tells of {} layers, and there are {layers}", told.len()))),
        }
    };
    let [heads, kv_heads, hidden] = all.map(each);
    let zipped = heads?.into_iter().zip(kv_heads?).zip(hidden?);
    Ok(zipped.map(|((heads, kv_heads), hidden)| LayerShape { heads, kv_heads, hidden }).collect())
}

/// Whether layer `i`'s tensors are those of its shape.
fn fits(r: &Reader, i: usize, l: &LayerShape, head_dim: usize) -> Result<()> {
    if (l.heads == 0) != (l.kv_heads == 0) {
        return Err(r.not(format!("layer {i} has {} heads and {} of keys", l.heads, l.kv_heads)));
    }
    if l.hidden == 0 {
        // With it goes its attention, if it has any: llama.cpp passes over the whole layer.
        let attention =
            if l.heads == 0 { "nor attention" } else { "and its attention counts for nothing in llama.cpp" };
        return Err(r.not(format!("layer {i} has no MLP, {attention}: it does nothing")));
    }
    let [q, k] = [l.heads, l.kv_heads].map(|n| n.saturating_mul(head_dim));
    for (part, rows) in [("q", q), ("k", k), ("v", k), ("gate", l.hidden), ("up", l.hidden)] {
        let name = format!("layers.{i}.{part}.weight");
        let found = if r.has(&name) { r.out(&name)? } else { 0 };
        if found != rows {
            let name = r.names.of(&name);
            return Err(r.not(format!("`{name}` has {found} rows, and its metadata tells of {rows}")));
        }
    }
    Ok(())
}

/// Rotary positions that are the same in all layers.
pub(super) fn everywhere<'a>(r: &'a Reader<'a>) -> impl FnOnce(Heads<'_>) -> Result<op::Rope> + 'a {
    |heads| decoder_rope::rope(r, heads)
}

fn eps(r: &Reader) -> Result<f64> {
    let c = &r.sidecar.config;
    match c.number("rms_norm_eps")?.map_or_else(|| c.number("norm_eps"), |e| Ok(Some(e)))? {
        Some(e) if !(0.0..=0.1).contains(&e) => Err(c.bad("the epsilon of its norms is out of range")),
        Some(e) => Ok(e),
        None => {
            r.note("an epsilon of 1e-6 is assumed for its norms (`config.json` does not tell)");
            Ok(1e-6)
        }
    }
}

/// A positive number that a kind has `default` of where the configuration does not mention it; `None` where it says null.
pub(super) fn positive(r: &Reader, key: &str, default: Option<f64>) -> Result<Option<f64>> {
    let c = &r.sidecar.config;
    match c.number(key)? {
        Some(n) if n > 0.0 => Ok(Some(n)),
        Some(_) => Err(c.bad(format!("`{key}` is not positive"))),
        None => Ok(default.filter(|_| !c.mentions(key))),
    }
}

/// The same for a count.
pub(super) fn count(r: &Reader, key: &str, default: usize) -> Result<Option<usize>> {
    let c = &r.sidecar.config;
    Ok(c.count(key)?.or((!c.mentions(key)).then_some(default)))
}

/// For each of `layers` the window of `most` tokens where it has one: as `layer_types` lists them, else by `otherwise`.
pub(super) fn windows(
    r: &Reader,
    layers: usize,
    most: Option<usize>,
    otherwise: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>> {
    let c = &r.sidecar.config;
    let Some(types) = c.strings("layer_types")? else {
        return Ok((0..layers).map(|i| most.filter(|_| otherwise(i))).collect());
    };
    if types.len() != layers {
        return Err(c.bad(format!("`layer_types` tells of {} layers, and there are {layers}", types.len())));
    }
    let one = |kind: &&str| match *kind {
        "full_attention" => Ok(None),
        "sliding_attention" => Ok(most),
        other => Err(r.not(format!("a layer with `{}` is not supported", printable(other)))),
    };
    types.iter().map(one).collect()
}
