//! GPT-2 (Radford et al. 2019): layer norms before attention and MLP, learned positions, queries, keys and values in one projection
//! with biases everywhere, the embedding as the last layer's weight.
//!
//! From transformers' directories, whose matrices stand the other way round (`Conv1D`), and GGUF files.

use super::decoder::split;
use super::names::Rules;
use super::{FamilySpec, Graph, GraphError, Names, Reader, Result, Source};
use crate::graph::{Activation, Builder, NodeId, Op, ParamRole, ResidualAdd, op};
use crate::model::{Checkpoint, RawTensor, printable};

/// A network of the family.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpt2Spec {
    pub names: &'static Names,
    pub vocab: usize,
    pub dim: usize,
    pub layers: usize,
    pub heads: usize,
    /// Neurons of the MLP.
    pub hidden: usize,
    pub act: Activation,
    /// Longest sequence.
    pub positions: usize,
    /// Of every norm.
    pub eps: f64,
    /// Scores are divided by the root of a head's width; by the layer's number besides.
    pub scaled: bool,
    pub by_layer: bool,
    /// The embedding is the last layer's weight as well.
    pub tied: bool,
}

const HUGGING_FACE: Rules = &[
    ("embed", "{p}wte"),
    ("positions", "{p}wpe"),
    ("layers.#.attn_norm", "{p}h.{0}.ln_1"),
    ("layers.#.qkv", "{p}h.{0}.attn.c_attn"),
    ("layers.#.q", "{p}h.{0}.attn.q"),
    ("layers.#.k", "{p}h.{0}.attn.k"),
    ("layers.#.v", "{p}h.{0}.attn.v"),
    ("layers.#.core", "{p}h.{0}.attn.core"),
    ("layers.#.o", "{p}h.{0}.attn.c_proj"),
    ("layers.#.mlp_norm", "{p}h.{0}.ln_2"),
    ("layers.#.fc", "{p}h.{0}.mlp.c_fc"),
    ("layers.#.act", "{p}h.{0}.mlp.act"),
    ("layers.#.down", "{p}h.{0}.mlp.c_proj"),
    ("layers.#", "{p}h.{0}"),
    ("norm", "{p}ln_f"),
    ("head", "lm_head"),
];
const GGUF: Rules = &[
    ("embed", "token_embd"),
    ("positions", "position_embd"),
    ("layers.#.qkv", "blk.{0}.attn_qkv"),
    ("layers.#.q", "blk.{0}.attn_q"),
    ("layers.#.k", "blk.{0}.attn_k"),
    ("layers.#.v", "blk.{0}.attn_v"),
    ("layers.#.o", "blk.{0}.attn_output"),
    ("layers.#.mlp_norm", "blk.{0}.ffn_norm"),
    ("layers.#.fc", "blk.{0}.ffn_up"),
    ("layers.#.down", "blk.{0}.ffn_down"),
    ("layers.#", "blk.{0}"),
    ("norm", "output_norm"),
    ("head", "output"),
];

/// The masks that older versions of transformers saved.
const UNUSED: &[&str] = &[".attn.bias", ".attn.masked_bias"];

pub(super) static NAMES: [Names; 3] = [
    Names { unused: UNUSED, ..Names::new(Source::HuggingFace, "transformer.", &[HUGGING_FACE]) },
    // The first that were published.
    Names { unused: UNUSED, ..Names::new(Source::HuggingFace, "", &[HUGGING_FACE]) },
    Names::new(Source::Gguf, "", &[GGUF]),
];
pub(super) const MARKS: &[&str] =
    &["embed.weight", "positions.weight", "layers.0.qkv.weight", "layers.0.fc.weight", "norm.weight"];

pub(super) fn read(r: &Reader) -> Result<FamilySpec> {
    let c = &r.sidecar.config;
    if let Some(kind) = c.string("model_type")?.filter(|k| *k != "gpt2") {
        return Err(r.not(format!("`{}` is a relative that is not supported", printable(kind))));
    }
    let either = |a: &str, b: &str| c.count(a).and_then(|n| n.map_or_else(|| c.count(b), |n| Ok(Some(n))));
    let [vocab, dim] = r.shape("embed.weight")?;
    r.agrees(&["vocab_size"], vocab, "embed.weight")?;
    r.agrees(&["n_embd", "hidden_size"], dim, "embed.weight")?;
    let hidden = r.out("layers.0.fc.bias")?;
    r.agrees(&["n_inner", "intermediate_size"], hidden, "layers.0.fc.bias")?;
    let heads = r.options.heads.map_or_else(|| either("n_head", "num_attention_heads"), |h| Ok(Some(h)))?;
    let heads = heads.ok_or_else(|| r.not("its configuration does not tell the number of heads"))?;
    if !dim.is_multiple_of(heads) {
        return Err(r.not(format!("{heads} heads do not divide its width of {dim}")));
    }
    let act = match c.string("activation_function")? {
        None | Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => Activation::GeluTanh,
        Some("gelu") => Activation::GeluErf,
        Some("relu") => Activation::Relu,
        Some("silu" | "swish") => Activation::Silu,
        Some(other) => return Err(r.not(format!("its MLP has another activation (`{}`)", printable(other)))),
    };
    if c.bool("add_cross_attention")? == Some(true) {
        return Err(r.not("it attends to another network"));
    }
    let eps = match c.number("layer_norm_epsilon")? {
        Some(e) if !(0.0..=0.1).contains(&e) => return Err(c.bad("the epsilon of its norms is out of range")),
        told => told.unwrap_or(1e-5),
    };
    let layers = r.count(|i| format!("layers.{i}.qkv.weight"))?;
    if let Some(told) = either("n_layer", "num_hidden_layers")?.filter(|n| *n != layers) {
        return Err(r.not(format!("its configuration tells of {told} layers, and there are weights for {layers}")));
    }
    Ok(FamilySpec::Gpt2(Gpt2Spec {
        names: r.names,
        vocab,
        dim,
        layers,
        heads,
        hidden,
        act,
        positions: r.out("positions.weight")?,
        eps,
        scaled: c.bool("scale_attn_weights")? != Some(false),
        by_layer: c.bool("scale_attn_by_inverse_layer_idx")? == Some(true),
        tied: !r.has("head.weight"),
    }))
}

pub(super) fn build(s: &Gpt2Spec) -> Result<Graph, GraphError> {
    let b = &mut Builder::default();
    let ids = b.input_of(op::Input::ids(s.vocab));
    let x = b.embedding("embed", ids, s.vocab, s.dim);
    let positions = op::AddPositions { shorter: true, ..op::AddPositions::of(s.positions, s.dim) };
    let mut x = b.node("positions", Op::AddPositions(positions), &[x]);
    b.rename_param(x, ParamRole::Embedding, "positions.weight");
    for i in 0..s.layers {
        x = layer(b, s, i, x);
    }
    x = b.layer_norm("norm", x, s.dim, s.eps);
    x = b.linear("head", x, s.dim, s.vocab, false);
    if s.tied {
        b.rename_param(x, ParamRole::Weight, "embed.weight");
    }
    s.names.apply(std::mem::take(b).finish(x)?)
}

fn layer(b: &mut Builder, s: &Gpt2Spec, i: usize, x: NodeId) -> NodeId {
    let at = format!("layers.{i}");
    b.begin_block(&at);
    let h = b.layer_norm(format!("{at}.attn_norm"), x, s.dim, s.eps);
    let qkv = ["q", "k", "v"].map(|n| b.linear(format!("{at}.{n}"), h, s.dim, s.dim, true));
    let head_dim = s.dim / s.heads.max(1);
    let width = if s.scaled { (head_dim as f64).sqrt() } else { 1.0 };
    let scale = 1.0 / if s.by_layer { width * (i + 1) as f64 } else { width };
    let core = op::Attention { scale, ..op::Attention::decoder(s.heads, 1, head_dim) };
    let y = b.node(format!("{at}.core"), Op::Attention(core), &qkv);
    let y = b.linear(format!("{at}.o"), y, s.dim, s.dim, true);
    let attended = b.add(format!("{at}.attn_add"), y, x);
    let h = b.layer_norm(format!("{at}.mlp_norm"), attended, s.dim, s.eps);
    let y = b.linear(format!("{at}.fc"), h, s.dim, s.hidden, true);
    let y = b.act(format!("{at}.act"), y, s.act);
    let y = b.linear(format!("{at}.down"), y, s.hidden, s.dim, true);
    let out = b.add(format!("{at}.mlp_add"), y, attended);
    b.end_block(vec![ResidualAdd { add: attended, skip: x }, ResidualAdd { add: out, skip: attended }]);
    out
}

/// Turns transformers' matrices and takes queries, keys and values apart.
pub(super) fn adapt(s: &Gpt2Spec, c: &mut Checkpoint) {
    for i in 0..s.layers {
        let name = |part: &str| s.names.of(&format!("layers.{i}.{part}"));
        for part in ["qkv", "o", "fc", "down"] {
            let turned = s.names.source == Source::HuggingFace;
            let found = c.tensors.get_mut(&name(&format!("{part}.weight"))).filter(|_| turned);
            let Some(RawTensor::Float(p)) = found else { continue };
            if let Some(t) = p.transposed() {
                *p = t;
            }
        }
        for kind in ["weight", "bias"] {
            let parts = ["q", "k", "v"].map(|n| (name(&format!("{n}.{kind}")), s.dim));
            split(c, &name(&format!("qkv.{kind}")), &parts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Binding, macs_at, node_params};
    use crate::prune::{GroupKind, groups};

    #[test]
    fn heads_and_neurons_can_be_cut_and_sequences_are_no_longer_than_its_positions() {
        let spec = Gpt2Spec {
            names: &NAMES[0],
            vocab: 50,
            dim: 24,
            layers: 2,
            heads: 4,
            hidden: 40,
            act: Activation::GeluTanh,
            positions: 9,
            eps: 1e-5,
            scaled: true,
            by_layer: true,
            tied: true,
        };
        let graph = build(&spec).unwrap();
        for name in ["transformer.wte", "transformer.h.1.attn.q", "transformer.h.0.mlp.c_proj", "transformer.ln_f"] {
            assert!(graph.by_name(name).is_some(), "{name}");
        }
        let params: u64 = graph.nodes.iter().map(|n| node_params(&n.op)).sum();
        let layer = 4 * (24 * 24 + 24) + 24 * 40 + 40 + 40 * 24 + 24 + 4 * 24;
        assert_eq!(params, 2 * 50 * 24 + 9 * 24 + 2 * layer + 2 * 24);
        let open: Vec<_> = groups(&graph).into_iter().filter(|g| g.protected.is_none()).collect();
        for (kind, size) in [(GroupKind::Heads, 4), (GroupKind::Neurons, 40)] {
            let of: Vec<usize> = open.iter().filter(|g| g.kind == kind).map(|g| g.size).collect();
            assert_eq!(of, [size; 2], "{kind:?}");
        }
        assert!(macs_at(&graph, Binding::tokens(9)).is_ok() && macs_at(&graph, Binding::tokens(1)).is_ok());
        let error = macs_at(&graph, Binding::tokens(10)).unwrap_err().to_string();
        assert!(error.contains("10 tokens are more than its 9 positions"), "{error}");
    }
}
