//! ModernBERT (Warner et al. 2024) with a classifier of whole texts: rotary positions, norms before attention and MLP, most layers with
//! attention to the tokens nearby, an MLP whose neurons are gated, the first token or all tokens' mean as the text's vector.
//!
//! From transformers' directories. Not here: what is common to classifiers of text (`text_classifier`).

use super::decoder::split;
use super::names::Rules;
use super::{FamilySpec, Graph, GraphError, Names, Reader, Result, Source, text_classifier};
use crate::graph::rotary::Pairs;
use crate::graph::{Activation, Builder, NodeId, Op, ResidualAdd, op};
use crate::model::hf::Json;
use crate::model::{Checkpoint, Param, RawTensor, printable};

/// A network of the family.
#[derive(Debug, Clone, PartialEq)]
pub struct ModernBertSpec {
    pub names: &'static Names,
    pub vocab: usize,
    pub dim: usize,
    pub heads: usize,
    /// Neurons of the gated MLP.
    pub hidden: usize,
    pub act: Activation,
    /// Of every norm.
    pub eps: f64,
    /// Of each layer, how far a token sees on both sides; `None`: everywhere.
    pub reach: Vec<Option<usize>>,
    /// Bases of rotary positions, where a token sees everywhere and where it does not.
    pub theta: f64,
    pub local_theta: f64,
    pub bias: Biases,
    /// The text's vector is the mean of its tokens', not the first one's.
    pub mean: bool,
    /// After the layer before the classifier.
    pub pool: Activation,
    pub classes: usize,
}

/// Which layers have biases; norms without them get ones that are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Biases {
    pub attention: bool,
    pub mlp: bool,
    /// Of the layer before the classifier.
    pub pool: bool,
}

const RULES: Rules = &[
    ("embed", "{p}embeddings.tok_embeddings"),
    ("embed_norm", "{p}embeddings.norm"),
    ("layers.#.attn_norm", "{p}layers.{0}.attn_norm"),
    ("layers.#.qkv", "{p}layers.{0}.attn.Wqkv"),
    ("layers.#.q", "{p}layers.{0}.attn.q"),
    ("layers.#.k", "{p}layers.{0}.attn.k"),
    ("layers.#.v", "{p}layers.{0}.attn.v"),
    ("layers.#.q_rope", "{p}layers.{0}.attn.q_rope"),
    ("layers.#.k_rope", "{p}layers.{0}.attn.k_rope"),
    ("layers.#.core", "{p}layers.{0}.attn.core"),
    ("layers.#.o", "{p}layers.{0}.attn.Wo"),
    ("layers.#.mlp_norm", "{p}layers.{0}.mlp_norm"),
    ("layers.#.wi", "{p}layers.{0}.mlp.Wi"),
    ("layers.#.fc", "{p}layers.{0}.mlp.input"),
    ("layers.#.act", "{p}layers.{0}.mlp.act"),
    ("layers.#.gate", "{p}layers.{0}.mlp.gate"),
    ("layers.#.mul", "{p}layers.{0}.mlp.mul"),
    ("layers.#.down", "{p}layers.{0}.mlp.Wo"),
    ("layers.#", "{p}layers.{0}"),
    ("norm", "{p}final_norm"),
    ("pooled", "head.pooled"),
    ("pool", "head.dense"),
    ("pool_act", "head.act"),
    ("pool_norm", "head.norm"),
    ("head", "classifier"),
];

/// Networks without a prefix have no classifier, and say so.
pub(super) static NAMES: [Names; 2] =
    [Names::new(Source::HuggingFace, "model.", &[RULES]), Names::new(Source::HuggingFace, "", &[RULES])];
pub(super) const MARKS: &[&str] = &["embed.weight", "layers.0.qkv.weight", "layers.0.wi.weight", "norm.weight"];

pub(super) fn read(r: &Reader) -> Result<FamilySpec> {
    let c = &r.sidecar.config;
    let classes = text_classifier::classes(r, &["modernbert"], "head.weight")?;
    if c.field("rope_scaling").is_some() {
        return Err(r.not("its rotary positions are scaled (`rope_scaling`)"));
    }
    let [vocab, dim] = r.shape("embed.weight")?;
    let hidden = r.out("layers.0.wi.weight")? / 2;
    r.agrees(&["vocab_size"], vocab, "embed.weight")?;
    r.agrees(&["hidden_size"], dim, "embed.weight")?;
    r.agrees(&["intermediate_size"], hidden, "layers.0.wi.weight")?;
    let heads = r.options.heads.map_or_else(|| c.count("num_attention_heads"), |h| Ok(Some(h)))?;
    let heads = heads.ok_or_else(|| r.not("its configuration does not tell the number of heads"))?;
    if heads == 0 || !dim.is_multiple_of(heads) || !(dim / heads).is_multiple_of(2) {
        return Err(r.not(format!("{heads} heads do not divide its width of {dim} into pairs")));
    }
    let layers = text_classifier::layers(r, c.count("num_hidden_layers")?, "qkv.weight")?;
    let mean = match c.string("classifier_pooling")? {
        None | Some("cls") => false,
        Some("mean") => true,
        Some(other) => return Err(r.not(format!("its pooling is `{}`", printable(other)))),
    };
    let eps = match c.number("norm_eps")? {
        Some(e) if !(0.0..=0.1).contains(&e) => return Err(c.bad("`norm_eps` is out of range")),
        told => told.unwrap_or(1e-5),
    };
    let act = |key: &str| -> Result<Activation> { Ok(r.sidecar.activation_at(key)?.unwrap_or(Activation::GeluErf)) };
    Ok(FamilySpec::ModernBert(ModernBertSpec {
        names: r.names,
        vocab,
        dim,
        heads,
        hidden,
        act: act("hidden_activation")?,
        eps,
        reach: reach(r, layers)?,
        theta: theta(r, "full_attention", "global_rope_theta", 160_000.0)?,
        local_theta: theta(r, "sliding_attention", "local_rope_theta", 10_000.0)?,
        bias: Biases {
            attention: r.has("layers.0.qkv.bias"),
            mlp: r.has("layers.0.wi.bias"),
            pool: r.has("pool.bias"),
        },
        mean,
        pool: act("classifier_activation")?,
        classes,
    }))
}

/// How far each layer sees: as `layer_types` lists them, else one of `global_attn_every_n_layers` everywhere. A window has its token in
/// the middle.
fn reach(r: &Reader, layers: usize) -> Result<Vec<Option<usize>>> {
    let c = &r.sidecar.config;
    let near = Some(c.count("local_attention")?.unwrap_or(128) / 2);
    let Some(types) = c.strings("layer_types")? else {
        let every = c.count("global_attn_every_n_layers")?.unwrap_or(3);
        return Ok((0..layers).map(|i| near.filter(|_| !i.is_multiple_of(every))).collect());
    };
    if types.len() != layers {
        return Err(c.bad(format!("`layer_types` tells of {} layers, and there are {layers}", types.len())));
    }
    let one = |kind: &&str| match *kind {
        "full_attention" => Ok(None),
        "sliding_attention" => Ok(near),
        other => Err(r.not(format!("a layer with `{}` is not supported", printable(other)))),
    };
    types.iter().map(one).collect()
}

/// The base of rotary positions of layers of a `kind`, which older files keep under `older`.
fn theta(r: &Reader, kind: &str, older: &str, default: f64) -> Result<f64> {
    let c = &r.sidecar.config;
    let told = c.inside("rope_parameters").and_then(|all| all.inside(kind));
    if let Some(rope) = &told {
        plain(r, rope)?;
    }
    let named = told.map(|rope| rope.number("rope_theta")).transpose()?.flatten();
    match named.map_or_else(|| c.number(older), |n| Ok(Some(n)))?.unwrap_or(default) {
        theta if theta > 0.0 => Ok(theta),
        _ => Err(c.bad(format!("the base of its rotary positions (`{older}`) is not positive"))),
    }
}

fn plain(r: &Reader, rope: &Json) -> Result<()> {
    let kind = rope.string("rope_type")?.map_or_else(|| rope.string("type"), |k| Ok(Some(k)))?;
    match kind.filter(|k| *k != "default") {
        None => Ok(()),
        Some(other) => Err(r.not(format!("its rotary positions are scaled (`{}`)", printable(other)))),
    }
}

pub(super) fn build(s: &ModernBertSpec) -> Result<Graph, GraphError> {
    let b = &mut Builder::default();
    let ids = b.input_of(op::Input::ids(s.vocab));
    let x = b.embedding("embed", ids, s.vocab, s.dim);
    let mut x = b.layer_norm("embed_norm", x, s.dim, s.eps);
    for (i, reach) in s.reach.iter().enumerate() {
        let at = &format!("layers.{i}");
        b.begin_block(at);
        // The first layer's norm is the embeddings'.
        let h = if i == 0 { x } else { b.layer_norm(format!("{at}.attn_norm"), x, s.dim, s.eps) };
        let y = attention(b, s, at, h, *reach);
        let attended = b.add(format!("{at}.attn_add"), y, x);
        let h = b.layer_norm(format!("{at}.mlp_norm"), attended, s.dim, s.eps);
        let [fc, gate] = ["fc", "gate"].map(|n| b.linear(format!("{at}.{n}"), h, s.dim, s.hidden, s.bias.mlp));
        let fc = b.act(format!("{at}.act"), fc, s.act);
        let y = b.node(format!("{at}.mul"), Op::Mul, &[fc, gate]);
        let y = b.linear(format!("{at}.down"), y, s.hidden, s.dim, s.bias.mlp);
        let out = b.add(format!("{at}.mlp_add"), y, attended);
        b.end_block(vec![ResidualAdd { add: attended, skip: x }, ResidualAdd { add: out, skip: attended }]);
        x = out;
    }
    let x = b.layer_norm("norm", x, s.dim, s.eps);
    let pooled = match s.mean {
        true => Op::MeanTokens(op::MeanTokens { skip: 0 }),
        false => Op::SelectToken(op::SelectToken { index: 0 }),
    };
    let x = b.node("pooled", pooled, &[x]);
    let x = b.linear("pool", x, s.dim, s.dim, s.bias.pool);
    let x = b.act("pool_act", x, s.pool);
    let x = b.layer_norm("pool_norm", x, s.dim, s.eps);
    let x = b.linear("head", x, s.dim, s.classes, true);
    s.names.apply(std::mem::take(b).finish(x)?)
}

fn attention(b: &mut Builder, s: &ModernBertSpec, at: &str, h: NodeId, reach: Option<usize>) -> NodeId {
    let head = s.dim / s.heads.max(1);
    let theta = if reach.is_some() { s.local_theta } else { s.theta };
    let rope = op::Rope::plain(head, head, theta, Pairs::Halves);
    let [q, k, v] = ["q", "k", "v"].map(|n| b.linear(format!("{at}.{n}"), h, s.dim, s.dim, s.bias.attention));
    let [q, k] = [("q", q), ("k", k)].map(|(n, x)| b.node(format!("{at}.{n}_rope"), Op::Rope(rope.clone()), &[x]));
    let plain = op::Attention::plain(s.heads, head, head, false, 1.0 / (head as f64).sqrt());
    let y = b.node(format!("{at}.core"), Op::Attention(op::Attention { reach, ..plain }), &[q, k, v]);
    b.linear(format!("{at}.o"), y, s.dim, s.dim, s.bias.attention)
}

/// Takes projections apart that are stored as one, and gives norms without biases zeros.
pub(super) fn adapt(s: &ModernBertSpec, c: &mut Checkpoint) {
    for i in 0..s.reach.len() {
        for kind in ["weight", "bias"] {
            let name = |part: &str| s.names.of(&format!("layers.{i}.{part}.{kind}"));
            split(c, &name("qkv"), &["q", "k", "v"].map(|n| (name(n), s.dim)));
            split(c, &name("wi"), &["fc", "gate"].map(|n| (name(n), s.hidden)));
        }
    }
    let norms = (0..s.reach.len()).flat_map(|i| ["attn_norm", "mlp_norm"].map(|n| format!("layers.{i}.{n}")));
    for norm in norms.chain(["embed_norm", "norm", "pool_norm"].map(str::to_owned)) {
        let bias = s.names.of(&format!("{norm}.bias"));
        let zeros = Param::owned(vec![s.dim], vec![0.0; s.dim]);
        if let (Some(zeros), true, false) = (zeros, c.has(&s.names.of(&format!("{norm}.weight"))), c.has(&bias)) {
            c.tensors.insert(bias, RawTensor::Float(zeros));
        }
    }
}
