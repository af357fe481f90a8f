//! Decoder-only language models of Llama's kind (Touvron et al. 2023): RMS norms before attention and a gated MLP, rotary positions,
//! keys and values shared by groups of heads. Llama, SmolLM2, Mistral, Qwen2 (biases on queries, keys and values) and Qwen3 (norms of
//! single heads) differ in what [`DecoderSpec`] says and in nothing else.
//!
//! From transformers' directories, GGUF files and Meta's own names. What shares these names but computes otherwise is refused by its `model_type`.

use super::names::Rules;
use super::{FamilySpec, Graph, GraphError, Names, Reader, Result, Source};
use crate::graph::rotary::Pairs;
use crate::graph::{Activation, Builder, NodeId, Op, ParamRole, ResidualAdd, op};
use crate::model::printable;

/// A network of the family.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderSpec {
    pub names: &'static Names,
    pub vocab: usize,
    pub dim: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Neurons of the gated MLP.
    pub hidden: usize,
    /// Of every norm.
    pub eps: f64,
    /// Base of the rotary frequencies, how many values of each head they turn, and which together.
    pub theta: f64,
    pub turned: usize,
    pub pairs: Pairs,
    /// Biases of queries, keys and values; of the projection after attention.
    pub qkv_bias: bool,
    pub out_bias: bool,
    /// RMS norms of the heads of queries and keys.
    pub head_norms: bool,
    /// The embedding is the last layer's weight as well.
    pub tied: bool,
    /// Tokens that a layer sees at most (a sliding window).
    pub sliding: Option<usize>,
}

const HUGGING_FACE: Rules = &[
    ("embed", "{p}embed_tokens"),
    ("layers.#.attn_norm", "{p}layers.{0}.input_layernorm"),
    ("layers.#.q", "{p}layers.{0}.self_attn.q_proj"),
    ("layers.#.k", "{p}layers.{0}.self_attn.k_proj"),
    ("layers.#.v", "{p}layers.{0}.self_attn.v_proj"),
    ("layers.#.q_norm", "{p}layers.{0}.self_attn.q_norm"),
    ("layers.#.k_norm", "{p}layers.{0}.self_attn.k_norm"),
    ("layers.#.q_rope", "{p}layers.{0}.self_attn.q_rope"),
    ("layers.#.k_rope", "{p}layers.{0}.self_attn.k_rope"),
    ("layers.#.core", "{p}layers.{0}.self_attn.core"),
    ("layers.#.o", "{p}layers.{0}.self_attn.o_proj"),
    ("layers.#.mlp_norm", "{p}layers.{0}.post_attention_layernorm"),
    ("layers.#.gate", "{p}layers.{0}.mlp.gate_proj"),
    ("layers.#.up", "{p}layers.{0}.mlp.up_proj"),
    ("layers.#.act", "{p}layers.{0}.mlp.act_fn"),
    ("layers.#.mul", "{p}layers.{0}.mlp.mul"),
    ("layers.#.down", "{p}layers.{0}.mlp.down_proj"),
    ("layers.#", "{p}layers.{0}"),
    ("norm", "{p}norm"),
    ("head", "lm_head"),
];
const META: Rules = &[
    ("embed", "tok_embeddings"),
    ("layers.#.attn_norm", "layers.{0}.attention_norm"),
    ("layers.#.q", "layers.{0}.attention.wq"),
    ("layers.#.k", "layers.{0}.attention.wk"),
    ("layers.#.v", "layers.{0}.attention.wv"),
    ("layers.#.o", "layers.{0}.attention.wo"),
    ("layers.#.mlp_norm", "layers.{0}.ffn_norm"),
    ("layers.#.gate", "layers.{0}.feed_forward.w1"),
    ("layers.#.up", "layers.{0}.feed_forward.w3"),
    ("layers.#.down", "layers.{0}.feed_forward.w2"),
    ("head", "output"),
];
const GGUF: Rules = &[
    ("embed", "token_embd"),
    ("layers.#.q", "blk.{0}.attn_q"),
    ("layers.#.k", "blk.{0}.attn_k"),
    ("layers.#.v", "blk.{0}.attn_v"),
    ("layers.#.q_norm", "blk.{0}.attn_q_norm"),
    ("layers.#.k_norm", "blk.{0}.attn_k_norm"),
    ("layers.#.o", "blk.{0}.attn_output"),
    ("layers.#.mlp_norm", "blk.{0}.ffn_norm"),
    ("layers.#.gate", "blk.{0}.ffn_gate"),
    ("layers.#.up", "blk.{0}.ffn_up"),
    ("layers.#.down", "blk.{0}.ffn_down"),
    ("layers.#", "blk.{0}"),
    ("norm", "output_norm"),
    ("head", "output"),
];

/// The frequencies that older versions of transformers saved.
const UNUSED: &[&str] = &["rotary_emb.inv_freq"];

pub(super) static NAMES: [Names; 4] = [
    Names { unused: UNUSED, ..Names::new(Source::HuggingFace, "model.", &[HUGGING_FACE]) },
    // Where every tensor's name began with `model.`: the last layer's weight is the embedding.
    Names { unused: UNUSED, ..Names::new(Source::HuggingFace, "", &[HUGGING_FACE]) },
    Names::new(Source::Gguf, "", &[GGUF]),
    Names::new(Source::Paper, "", &[META]),
];
pub(super) const MARKS: &[&str] = &["embed.weight", "layers.0.q.weight", "layers.0.gate.weight", "norm.weight"];

/// Those whose layers are these and nothing else.
const KINDS: [&str; 4] = ["llama", "mistral", "qwen2", "qwen3"];

pub(super) fn read(r: &Reader) -> Result<FamilySpec> {
    let c = &r.sidecar.config;
    if !c.is_there() {
        return Err(r.not("weights do not tell the number of heads, and no `config.json` lies beside them"));
    }
    let kind = c.string("model_type")?;
    if let Some(other) = kind.filter(|k| !KINDS.contains(k)) {
        return Err(r.not(format!(
            "`{}` is a relative that is not supported ({} are)",
            printable(other),
            KINDS.join(", ")
        )));
    }
    // Meta's own words come second.
    let either = |a: &str, b: &str| c.count(a).and_then(|n| n.map_or_else(|| c.count(b), |n| Ok(Some(n))));
    let [vocab, dim] = r.shape("embed.weight")?;
    let heads = match r.options.heads.map_or_else(|| either("num_attention_heads", "n_heads"), |h| Ok(Some(h)))? {
        Some(heads) => heads,
        None => return Err(r.not("its configuration does not tell the number of heads")),
    };
    let head_dim = c.count("head_dim")?.unwrap_or(dim / heads.max(1));
    if c.count("v_head_dim")?.is_some_and(|n| n != head_dim) {
        return Err(r.not("its values have another width than its keys"));
    }
    let (q, k) = (r.out("layers.0.q.weight")?, r.out("layers.0.k.weight")?);
    let kv_heads = either("num_key_value_heads", "n_kv_heads")?.unwrap_or(k / head_dim.max(1));
    if heads.checked_mul(head_dim) != Some(q) || kv_heads.checked_mul(head_dim) != Some(k) {
        return Err(r.not(format!(
            "{heads} heads of {head_dim} values with {kv_heads} of keys do not make {q} rows of queries and {k} of keys"
        )));
    }
    if r.sidecar.activation()?.is_some_and(|a| a != Activation::Silu) {
        return Err(r.not("its MLP has another activation than SiLU"));
    }
    let eps = match c.number("rms_norm_eps")?.map_or_else(|| c.number("norm_eps"), |e| Ok(Some(e)))? {
        Some(e) if !(0.0..=0.1).contains(&e) => return Err(c.bad("the epsilon of its norms is out of range")),
        Some(e) => e,
        None => {
            r.note("an epsilon of 1e-6 is assumed for its norms (`config.json` does not tell)");
            1e-6
        }
    };
    let (theta, turned) = rotary(r, head_dim)?;
    let meta = r.names.source == Source::Paper;
    let neighbours = c.bool("rope_interleaved")?.unwrap_or(meta);
    let experts = either("num_local_experts", "num_experts")?.is_some_and(|n| n > 1);
    if experts {
        return Err(r.not("it has experts"));
    }
    let layers = r.count(|i| format!("layers.{i}.q.weight"))?;
    if let Some(told) = either("num_hidden_layers", "n_layers")?.filter(|n| *n != layers) {
        return Err(r.not(format!("its configuration tells of {told} layers, and there are weights for {layers}")));
    }
    let tied = !r.has("head.weight");
    if tied && c.bool("tie_word_embeddings")? == Some(false) {
        return Err(r.not(format!("tensor `{}` is missing", r.names.of("head.weight"))));
    }
    Ok(FamilySpec::Llama(DecoderSpec {
        names: r.names,
        vocab,
        dim,
        layers,
        heads,
        kv_heads,
        head_dim,
        hidden: r.out("layers.0.gate.weight")?,
        eps,
        theta,
        turned,
        pairs: if neighbours { Pairs::Neighbours } else { Pairs::Halves },
        qkv_bias: r.has("layers.0.q.bias"),
        out_bias: r.has("layers.0.o.bias"),
        head_norms: r.has("layers.0.q_norm.weight"),
        tied,
        sliding: match c.bool("use_sliding_window")? {
            Some(false) => None,
            _ => c.count("sliding_window")?,
        },
    }))
}

/// Base and number of turned values; scaled frequencies are refused, which would give other angles.
fn rotary(r: &Reader, head_dim: usize) -> Result<(f64, usize)> {
    let c = &r.sidecar.config;
    // Since transformers 5 in an object of its own.
    let inside = c.inside("rope_parameters");
    for (key, scaling) in [("rope_scaling", c.inside("rope_scaling")), ("rope_parameters", inside.clone())] {
        let Some(scaling) = scaling else { continue };
        if !scaling.is_object() {
            return Err(c.bad(format!("`{key}` is no JSON object")));
        }
        if scaling.holds_objects() {
            return Err(r.not(format!("rotary positions that differ between layers (`{key}`) are not supported")));
        }
        let kind = match scaling.string("rope_type")? {
            Some(kind) => Some(kind),
            None => scaling.string("type")?,
        };
        if let Some(kind) = kind.filter(|k| *k != "default") {
            return Err(r.not(format!("scaled rotary positions (`{}`) are not supported", printable(kind))));
        }
        if kind.is_none() && scaling.field("factor").is_some() {
            return Err(r.not(format!("scaled rotary positions (`{key}` has a factor) are not supported")));
        }
    }
    // What stands in that object goes before what stands beside it.
    let number = |key: &str| {
        let own = inside.as_ref().map_or(Ok(None), |i| i.number(key))?;
        own.map_or_else(|| c.number(key), |n| Ok(Some(n)))
    };
    let theta = number("rope_theta")?.unwrap_or(10_000.0);
    if theta <= 0.0 {
        return Err(c.bad("`rope_theta` is not positive"));
    }
    let turned = match (c.count("rotary_dim")?, number("partial_rotary_factor")?) {
        (Some(n), _) => n,
        (None, Some(share)) if (0.0..=1.0).contains(&share) => (head_dim as f64 * share) as usize,
        (None, Some(_)) => return Err(c.bad("`partial_rotary_factor` is out of range")),
        (None, None) => head_dim,
    };
    Ok((theta, turned))
}

pub(super) fn build(s: &DecoderSpec) -> Result<Graph, GraphError> {
    let b = &mut Builder::default();
    let ids = b.input_of(op::Input::ids(s.vocab));
    let mut x = b.embedding("embed", ids, s.vocab, s.dim);
    for i in 0..s.layers {
        x = layer(b, s, &format!("layers.{i}"), x);
    }
    x = norm(b, s, "norm", x);
    x = b.linear("head", x, s.dim, s.vocab, false);
    if s.tied {
        b.rename_param(x, ParamRole::Weight, "embed.weight");
    }
    s.names.apply(std::mem::take(b).finish(x)?)
}

fn norm(b: &mut Builder, s: &DecoderSpec, name: &str, x: NodeId) -> NodeId {
    b.node(name, Op::RmsNorm(op::RmsNorm { dim: s.dim, eps: s.eps }), &[x])
}

fn layer(b: &mut Builder, s: &DecoderSpec, at: &str, x: NodeId) -> NodeId {
    b.begin_block(at);
    let (q_width, kv_width) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
    let h = norm(b, s, &format!("{at}.attn_norm"), x);
    let [q, k, v] = [("q", q_width), ("k", kv_width), ("v", kv_width)]
        .map(|(n, width)| b.linear(format!("{at}.{n}"), h, s.dim, width, s.qkv_bias));
    let [q, k] = [("q", q), ("k", k)].map(|(n, x)| {
        let x = match s.head_norms {
            true => {
                b.node(format!("{at}.{n}_norm"), Op::HeadNorm(op::HeadNorm { head_dim: s.head_dim, eps: s.eps }), &[x])
            }
            false => x,
        };
        let rope = op::Rope::plain(s.head_dim, s.turned, s.theta, s.pairs);
        b.node(format!("{at}.{n}_rope"), Op::Rope(rope), &[x])
    });
    let group = s.heads / s.kv_heads.max(1);
    let core = op::Attention { most: s.sliding, ..op::Attention::decoder(s.heads, group, s.head_dim) };
    let y = b.node(format!("{at}.core"), Op::Attention(core), &[q, k, v]);
    let y = b.linear(format!("{at}.o"), y, q_width, s.dim, s.out_bias);
    let attended = b.add(format!("{at}.attn_add"), y, x);
    let h = norm(b, s, &format!("{at}.mlp_norm"), attended);
    let gate = b.linear(format!("{at}.gate"), h, s.dim, s.hidden, false);
    let gate = b.act(format!("{at}.act"), gate, Activation::Silu);
    let up = b.linear(format!("{at}.up"), h, s.dim, s.hidden, false);
    let y = b.node(format!("{at}.mul"), Op::Mul, &[gate, up]);
    let y = b.linear(format!("{at}.down"), y, s.hidden, s.dim, false);
    let out = b.add(format!("{at}.mlp_add"), y, attended);
    b.end_block(vec![ResidualAdd { add: attended, skip: x }, ResidualAdd { add: out, skip: attended }]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Binding, macs_at, node_params};
    use crate::model::{LoadOptions, load};
    use crate::prune::{GroupKind, groups};
    use std::path::Path;

    fn small(kv_heads: usize) -> DecoderSpec {
        DecoderSpec {
            names: &NAMES[0],
            vocab: 50,
            dim: 24,
            layers: 2,
            heads: 4,
            kv_heads,
            head_dim: 6,
            hidden: 40,
            eps: 1e-5,
            theta: 1e4,
            turned: 6,
            pairs: Pairs::Halves,
            qkv_bias: true,
            out_bias: false,
            head_norms: true,
            tied: true,
            sliding: None,
        }
    }

    #[test]
    fn names_are_the_checkpoints_and_the_embedding_is_shared() {
        let graph = build(&small(2)).unwrap();
        for name in ["model.embed_tokens", "model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj", "lm_head"]
        {
            assert!(graph.by_name(name).is_some(), "{name}");
        }
        let head = graph.node(graph.by_name("lm_head").unwrap());
        assert_eq!(head.param(ParamRole::Weight), Some("model.embed_tokens.weight"));
        let params: u64 = graph.nodes.iter().map(|n| node_params(&n.op)).sum();
        let layer = 24 * (24 + 12 + 12) + 48 + 24 * 24 + 3 * 24 * 40 + 2 * 24 + 2 * 6;
        assert_eq!(params, 2 * 50 * 24 + 2 * layer + 24);
        let all: u64 = macs_at(&graph, Binding::tokens(7)).unwrap().into_iter().sum::<crate::graph::Macs>().conv_linear;
        assert_eq!(all, 7 * (2 * (24 * 48 + 24 * 24 + 3 * 24 * 40) + 24 * 50));
    }

    #[test]
    fn heads_of_keys_go_with_their_queries_and_neurons_with_their_gates() {
        let groups = groups(&build(&small(2)).unwrap());
        let heads = groups.iter().find(|g| g.id.ends_with("layers.0.self_attn.q_proj")).unwrap();
        assert_eq!((heads.kind, heads.size, &heads.protected), (GroupKind::Heads, 2, &None));
        let rows = |node: &str, axis: usize| -> Vec<usize> {
            let of =
                |m: &&crate::prune::Member| m.node.ends_with(node) && m.axis == axis && m.node.contains("layers.0.");
            heads.members.iter().find(of).unwrap().indices(1).collect()
        };
        assert_eq!((rows("q_proj", 0), rows("o_proj", 1)), ((12..24).collect(), (12..24).collect()));
        assert_eq!((rows("k_proj", 0), rows("v_proj", 0)), ((6..12).collect::<Vec<_>>(), (6..12).collect::<Vec<_>>()));
        let neurons = groups.iter().find(|g| g.id.ends_with("layers.1.mlp.gate_proj")).unwrap();
        assert_eq!((neurons.kind, neurons.size, &neurons.protected), (GroupKind::Neurons, 40, &None));
        for node in ["gate_proj", "up_proj", "down_proj"] {
            assert!(neurons.members.iter().any(|m| m.node.ends_with(&format!("layers.1.mlp.{node}"))), "{node}");
        }
        let protected = |id: &str| groups.iter().find(|g| g.id.ends_with(id)).and_then(|g| g.protected.clone());
        assert!(protected("lm_head").is_some_and(|why| why.contains("output")));
    }

    /// A small Llama with a line of its `config.json` written anew.
    fn with(old: &str, new: &str) -> crate::model::Result<crate::model::Model> {
        let dir = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/language/llama");
        std::fs::copy(from.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
        let config = std::fs::read_to_string(from.join("config.json")).unwrap();
        assert!(config.contains(old), "{old}");
        std::fs::write(dir.path().join("config.json"), config.replace(old, new)).unwrap();
        load(dir.path(), &LoadOptions::default())
    }

    fn refused(old: &str, new: &str, words: &str) {
        let error = with(old, new).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn a_layer_too_many_or_too_few_is_not_passed_over() {
        for n in [1, 3] {
            let words = format!("{n} layers, and there are weights for 2");
            refused("\"num_hidden_layers\": 2", &format!("\"num_hidden_layers\": {n}"), &words);
        }
    }

    #[test]
    fn scaled_positions_are_refused_however_they_are_written() {
        let last = "\"rope_type\": \"default\"";
        refused(last, "\"factor\": 2.0", "`rope_parameters` has a factor");
        refused(last, "\"full_attention\": {\"rope_theta\": 1e6}", "differ between layers");
        let beside = |text: &str| format!("\"rope_scaling\": {text}, \"rope_parameters\"");
        refused("\"rope_parameters\"", &beside("{\"factor\": 2.0}"), "`rope_scaling` has a factor");
        refused("\"rope_parameters\"", &beside("4.0"), "`rope_scaling` is no JSON object");
        assert!(with("\"rope_parameters\"", &beside("null")).is_ok());
    }

    #[test]
    fn turned_values_are_read_where_the_base_stands() {
        let model = with("\"rope_type\": \"default\"", "\"partial_rotary_factor\": 0.5").unwrap();
        let turned = model.graph.nodes.iter().find_map(|n| match &n.op {
            Op::Rope(rope) => Some((rope.turned, rope.head_dim)),
            _ => None,
        });
        assert!(turned.is_some_and(|(turned, width)| 2 * turned == width), "{turned:?}");
    }
}
