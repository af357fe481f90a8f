//! Decoder-only language models with rotary positions and a gated MLP (Touvron et al. 2023 and after): where their norms stand, what
//! their queries and keys are normalised by, which layers see how far. They differ in what [`DecoderSpec`] says and in nothing else.
//!
//! Not here: reading that off a checkpoint (`decoder_read`, `decoder_rope`), experts (`decoder_experts`), names (`decoder_names`).

use super::decoder_experts::{self, Experts};
use super::{Graph, GraphError, Names, decoder_names};
use crate::graph::rotary::Pairs;
use crate::graph::{Activation, Builder, NodeId, Op, ParamRole, ResidualAdd, op};
use crate::model::{Checkpoint, Param, RawTensor};

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
    /// What layers have instead of it.
    pub experts: Option<Experts>,
    pub act: Activation,
    /// Of every norm.
    pub eps: f64,
    pub norms: Norms,
    /// Rotary positions; those of layers with a sliding window where they have others.
    pub rope: op::Rope,
    pub local: Option<op::Rope>,
    /// Tokens that each layer sees at most (a sliding window); a layer that is not listed sees all.
    pub sliding: Vec<Option<usize>>,
    /// What scores are multiplied by, and what they are capped at.
    pub scale: f64,
    pub score_cap: Option<f64>,
    /// What logits are capped at.
    pub logit_cap: Option<f64>,
    /// What embeddings are multiplied by.
    pub embed_scale: Option<f64>,
    /// Biases of queries, keys and values; of the projection after attention.
    pub qkv_bias: bool,
    pub out_bias: bool,
    pub qk_norms: QkNorms,
    /// The embedding is the last layer's weight as well.
    pub tied: bool,
    pub stored: Stored,
    /// Where layers are not alike; else `heads`, `kv_heads` and `hidden` are those of all.
    pub shapes: Vec<LayerShape>,
}

/// A plain Llama's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LlamaDims {
    pub vocab: usize,
    pub dim: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub hidden: usize,
}

impl LlamaDims {
    pub const EPS: f64 = 1e-5;
    /// The base of rotary frequencies.
    pub const THETA: f64 = 1e4;
}

impl DecoderSpec {
    /// Llama as GGUF files have it, without biases; the embedding is the last layer's weight.
    pub fn llama(dims: LlamaDims) -> DecoderSpec {
        let LlamaDims { vocab, dim, layers, heads, kv_heads, head_dim, hidden } = dims;
        DecoderSpec {
            names: &decoder_names::LLAMA[2],
            vocab,
            dim,
            layers,
            heads,
            kv_heads,
            head_dim,
            hidden,
            experts: None,
            act: Activation::Silu,
            eps: LlamaDims::EPS,
            norms: Norms::Before,
            rope: op::Rope::plain(head_dim, head_dim, LlamaDims::THETA, Pairs::Neighbours),
            local: None,
            sliding: Vec::new(),
            scale: 1.0 / (head_dim as f64).sqrt(),
            score_cap: None,
            logit_cap: None,
            embed_scale: None,
            qkv_bias: false,
            out_bias: false,
            qk_norms: QkNorms::None,
            tied: true,
            stored: Stored::default(),
            shapes: Vec::new(),
        }
    }
}

/// A layer's own numbers; without heads it has no attention, without neurons no MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerShape {
    pub heads: usize,
    pub kv_heads: usize,
    pub hidden: usize,
}

impl DecoderSpec {
    fn shape(&self, layer: usize) -> LayerShape {
        let all = LayerShape { heads: self.heads, kv_heads: self.kv_heads, hidden: self.hidden };
        self.shapes.get(layer).copied().unwrap_or(all)
    }
}

/// Where RMS norms stand around attention and MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norms {
    Before,
    After,
    Around,
}

/// RMS norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorms {
    None,
    /// Of each head, one weight for all of them.
    Heads,
    /// Of all heads together.
    Whole,
}

/// What a file stores otherwise than the graph has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stored {
    /// Queries, keys and values are one tensor, the MLP's gate and what it gates another.
    pub fused: bool,
    /// Weights of norms without the 1 that is added to them.
    pub less_one: bool,
}

pub(super) fn build(s: &DecoderSpec) -> Result<Graph, GraphError> {
    let b = &mut Builder::default();
    let ids = b.input_of(op::Input::ids(s.vocab));
    let mut x = b.embedding("embed", ids, s.vocab, s.dim);
    if let Some(mul) = s.embed_scale {
        x = b.node("embed_scale", Op::Scalar(op::Scalar { mul, add: 0.0 }), &[x]);
    }
    for i in 0..s.layers {
        x = layer(b, s, i, x);
    }
    x = norm(b, s, "norm", x);
    let head = b.linear("head", x, s.dim, s.vocab, false);
    if s.tied {
        b.rename_param(head, ParamRole::Weight, "embed.weight");
    }
    x = head;
    if let Some(cap) = s.logit_cap {
        x = b.node("logits_down", Op::Scalar(op::Scalar { mul: 1.0 / cap, add: 0.0 }), &[x]);
        x = b.act("logits_tanh", x, Activation::Tanh);
        x = b.node("logits_up", Op::Scalar(op::Scalar { mul: cap, add: 0.0 }), &[x]);
    }
    s.names.apply(std::mem::take(b).finish(x)?)
}

fn norm(b: &mut Builder, s: &DecoderSpec, name: &str, x: NodeId) -> NodeId {
    b.node(name, Op::RmsNorm(op::RmsNorm { dim: s.dim, eps: s.eps }), &[x])
}

/// `x` plus what `f` makes of it, with norms where they stand: the sum.
fn branch(
    b: &mut Builder,
    s: &DecoderSpec,
    name: &str,
    x: NodeId,
    f: impl FnOnce(&mut Builder, NodeId) -> NodeId,
) -> NodeId {
    let h = if s.norms == Norms::After { x } else { norm(b, s, &format!("{name}_norm"), x) };
    let y = f(b, h);
    let y = if s.norms == Norms::Before { y } else { norm(b, s, &format!("{name}_after"), y) };
    b.add(format!("{name}_add"), y, x)
}

fn layer(b: &mut Builder, s: &DecoderSpec, i: usize, x: NodeId) -> NodeId {
    let at = &format!("layers.{i}");
    let LayerShape { heads, hidden, .. } = s.shape(i);
    let experts = s.experts.as_ref().filter(|e| e.layers.get(i) == Some(&true));
    b.begin_block(at);
    let (mut now, mut adds) = (x, Vec::new());
    let mut add = |next: NodeId| {
        adds.push(ResidualAdd { add: next, skip: now });
        now = next;
        next
    };
    let mut x = x;
    if heads > 0 {
        x = add(branch(b, s, &format!("{at}.attn"), x, |b, h| attention(b, s, i, at, h)));
    }
    if experts.is_some() || hidden > 0 {
        x = add(branch(b, s, &format!("{at}.mlp"), x, |b, h| match experts {
            Some(experts) => decoder_experts::build(b, s, experts, at, h),
            None => mlp(b, s, at, h, hidden),
        }));
    }
    b.end_block(adds);
    x
}

fn attention(b: &mut Builder, s: &DecoderSpec, i: usize, at: &str, h: NodeId) -> NodeId {
    let LayerShape { heads, kv_heads, .. } = s.shape(i);
    let (q_width, kv_width) = (heads * s.head_dim, kv_heads * s.head_dim);
    let most = s.sliding.get(i).copied().flatten();
    let rope = s.local.as_ref().filter(|_| most.is_some()).unwrap_or(&s.rope);
    let [q, k, v] = [("q", q_width), ("k", kv_width), ("v", kv_width)]
        .map(|(n, width)| b.linear(format!("{at}.{n}"), h, s.dim, width, s.qkv_bias));
    let [q, k] = [("q", q, q_width), ("k", k, kv_width)].map(|(n, x, width)| {
        let normed = match s.qk_norms {
            QkNorms::None => None,
            QkNorms::Heads => Some(Op::HeadNorm(op::HeadNorm { head_dim: s.head_dim, eps: s.eps })),
            QkNorms::Whole => Some(Op::RmsNorm(op::RmsNorm { dim: width, eps: s.eps })),
        };
        let x = normed.map_or(x, |op| b.node(format!("{at}.{n}_norm"), op, &[x]));
        b.node(format!("{at}.{n}_rope"), Op::Rope(rope.clone()), &[x])
    });
    let group = heads / kv_heads.max(1);
    let (scale, cap) = (s.scale, s.score_cap);
    let core = op::Attention { scale, most, cap, ..op::Attention::decoder(heads, group, s.head_dim) };
    let y = b.node(format!("{at}.core"), Op::Attention(core), &[q, k, v]);
    b.linear(format!("{at}.o"), y, q_width, s.dim, s.out_bias)
}

/// A gated MLP of `hidden` neurons.
pub(super) fn mlp(b: &mut Builder, s: &DecoderSpec, at: &str, h: NodeId, hidden: usize) -> NodeId {
    let gate = b.linear(format!("{at}.gate"), h, s.dim, hidden, false);
    let gate = b.act(format!("{at}.act"), gate, s.act);
    let up = b.linear(format!("{at}.up"), h, s.dim, hidden, false);
    let y = b.node(format!("{at}.mul"), Op::Mul, &[gate, up]);
    b.linear(format!("{at}.down"), y, hidden, s.dim, false)
}

/// Makes the tensors that the graph names of those that the file has.
pub(super) fn adapt(s: &DecoderSpec, c: &mut Checkpoint) {
    // Their values went into the graph.
    let read = super::decoder_rope::TENSORS.iter().filter_map(|name| c.tensors.shift_remove_entry(*name));
    c.read.extend(read);
    let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
    for i in 0..if s.stored.fused { s.layers } else { 0 } {
        let name = |part: &str| s.names.of(&format!("layers.{i}.{part}.weight"));
        split(c, &name("qkv"), &[(name("q"), q), (name("k"), kv), (name("v"), kv)]);
        split(c, &name("gate_up"), &[(name("gate"), s.hidden), (name("up"), s.hidden)]);
    }
    if let Some(experts) = &s.experts {
        decoder_experts::adapt(s, experts, c);
    }
    if s.stored.less_one {
        let parts = ["attn_norm", "attn_after", "mlp_norm", "mlp_after", "q_norm", "k_norm"];
        let layers = (0..s.layers).flat_map(|i| parts.map(|p| format!("layers.{i}.{p}.weight")));
        for own in layers.chain(["norm.weight".to_owned()]) {
            let Some(RawTensor::Float(p)) = c.tensors.get_mut(&s.names.of(&own)) else { continue };
            let values = p.values().iter().map(|v| v + 1.0).collect();
            if let Some(more) = Param::owned(p.shape().to_vec(), values) {
                *p = more;
            }
        }
    }
}

/// Takes the tensor `from` apart into rows under other names, as many as each is given with. Where they are not all, it stays, and
/// the tensors will be missing.
pub(super) fn split(c: &mut Checkpoint, from: &str, to: &[(String, usize)]) {
    let Some(RawTensor::Float(whole)) = c.tensors.get(from) else { return };
    let mut next = 0usize;
    let parts = to.iter().map(|(_, rows)| {
        let first = next;
        next = next.saturating_add(*rows);
        whole.rows(first..next)
    });
    let Some(parts) = parts.collect::<Option<Vec<Param>>>() else { return };
    if whole.shape().first() == Some(&next) {
        c.tensors.shift_remove(from);
        let named = to.iter().zip(parts).map(|((name, _), part)| (name.clone(), RawTensor::Float(part)));
        c.tensors.extend(named);
    }
}
