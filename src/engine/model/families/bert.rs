//! BERT (Devlin et al. 2019) and DistilBERT (Sanh et al. 2019) with a classifier of whole texts: learned positions, attention over all
//! tokens, norms after each addition, the first token as the text's vector.
//!
//! From transformers' directories. Every text is of the first kind where BERT knows two (pairs of sentences): that kind's vector is
//! added to the positions'. Not here: what is common to classifiers of text (`text_classifier`).

use super::blocks::{Norms, encoder_layer};
use super::names::Rules;
use super::{FamilySpec, Graph, GraphError, Names, Reader, Result, Source, text_classifier};
use crate::graph::{Activation, Builder, NodeId, Op, ParamRole, op};
use crate::model::{Checkpoint, Param, RawTensor};

/// A network of the family.
#[derive(Debug, Clone, PartialEq)]
pub struct BertSpec {
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
    /// After the layer that the first token goes through before the classifier.
    pub pool: Activation,
    pub classes: usize,
}

const BERT: Rules = &[
    ("embed", "{p}embeddings.word_embeddings"),
    ("positions", "{p}embeddings.position_embeddings"),
    ("types", "{p}embeddings.token_type_embeddings"),
    ("embed_norm", "{p}embeddings.LayerNorm"),
    ("layers.#.attn.q", "{p}encoder.layer.{0}.attention.self.query"),
    ("layers.#.attn.k", "{p}encoder.layer.{0}.attention.self.key"),
    ("layers.#.attn.v", "{p}encoder.layer.{0}.attention.self.value"),
    ("layers.#.attn.core", "{p}encoder.layer.{0}.attention.self.core"),
    ("layers.#.attn.o", "{p}encoder.layer.{0}.attention.output.dense"),
    ("layers.#.add1", "{p}encoder.layer.{0}.attention.output.add"),
    ("layers.#.norm1", "{p}encoder.layer.{0}.attention.output.LayerNorm"),
    ("layers.#.fc", "{p}encoder.layer.{0}.intermediate.dense"),
    ("layers.#.act", "{p}encoder.layer.{0}.intermediate.act"),
    ("layers.#.down", "{p}encoder.layer.{0}.output.dense"),
    ("layers.#.add2", "{p}encoder.layer.{0}.output.add"),
    ("layers.#.norm2", "{p}encoder.layer.{0}.output.LayerNorm"),
    ("layers.#", "{p}encoder.layer.{0}"),
    ("first", "{p}pooler.first"),
    ("pooler", "{p}pooler.dense"),
    ("pool_act", "{p}pooler.activation"),
    ("head", "classifier"),
];
const DISTIL: Rules = &[
    ("embed", "{p}embeddings.word_embeddings"),
    ("positions", "{p}embeddings.position_embeddings"),
    ("embed_norm", "{p}embeddings.LayerNorm"),
    ("layers.#.attn.q", "{p}transformer.layer.{0}.attention.q_lin"),
    ("layers.#.attn.k", "{p}transformer.layer.{0}.attention.k_lin"),
    ("layers.#.attn.v", "{p}transformer.layer.{0}.attention.v_lin"),
    ("layers.#.attn.core", "{p}transformer.layer.{0}.attention.core"),
    ("layers.#.attn.o", "{p}transformer.layer.{0}.attention.out_lin"),
    ("layers.#.add1", "{p}transformer.layer.{0}.attention.add"),
    ("layers.#.norm1", "{p}transformer.layer.{0}.sa_layer_norm"),
    ("layers.#.fc", "{p}transformer.layer.{0}.ffn.lin1"),
    ("layers.#.act", "{p}transformer.layer.{0}.ffn.activation"),
    ("layers.#.down", "{p}transformer.layer.{0}.ffn.lin2"),
    ("layers.#.add2", "{p}transformer.layer.{0}.ffn.add"),
    ("layers.#.norm2", "{p}transformer.layer.{0}.output_layer_norm"),
    ("layers.#", "{p}transformer.layer.{0}"),
    ("first", "{p}first"),
    ("pooler", "pre_classifier"),
    ("pool_act", "pre_classifier_act"),
    ("head", "classifier"),
];

/// Networks without a prefix have no classifier, and say so.
pub(super) static NAMES: [Names; 4] = [
    Names::new(Source::HuggingFace, "bert.", &[BERT]),
    Names::new(Source::HuggingFace, "distilbert.", &[DISTIL]),
    Names::new(Source::HuggingFace, "", &[BERT]),
    Names::new(Source::HuggingFace, "", &[DISTIL]),
];
pub(super) const MARKS: &[&str] =
    &["embed.weight", "positions.weight", "layers.0.attn.q.weight", "layers.0.fc.weight", "layers.0.down.weight"];

pub(super) fn read(r: &Reader) -> Result<FamilySpec> {
    let c = &r.sidecar.config;
    let distil = r.names.rules[0] == DISTIL;
    let classes = text_classifier::classes(r, &[if distil { "distilbert" } else { "bert" }], "head.weight")?;
    if let Some(kind) = c.string("position_embedding_type")?.filter(|k| *k != "absolute") {
        return Err(r.not(format!("its positions are `{}`", crate::model::printable(kind))));
    }
    if c.bool("is_decoder")? == Some(true) || c.bool("add_cross_attention")? == Some(true) {
        return Err(r.not("it is used as a decoder"));
    }
    let told = |ours: &str, theirs: &str| c.count(if distil { theirs } else { ours });
    let [vocab, dim] = r.shape("embed.weight")?;
    let hidden = r.out("layers.0.fc.weight")?;
    let [width, neurons] = if distil { ["dim", "hidden_dim"] } else { ["hidden_size", "intermediate_size"] };
    r.agrees(&["vocab_size"], vocab, "embed.weight")?;
    r.agrees(&[width], dim, "embed.weight")?;
    r.agrees(&[neurons], hidden, "layers.0.fc.weight")?;
    let heads = r.options.heads.map_or_else(|| told("num_attention_heads", "n_heads"), |h| Ok(Some(h)))?;
    let heads = heads.ok_or_else(|| r.not("its configuration does not tell the number of heads"))?;
    if heads == 0 || !dim.is_multiple_of(heads) {
        return Err(r.not(format!("{heads} heads do not divide its width of {dim}")));
    }
    let layers = text_classifier::layers(r, told("num_hidden_layers", "n_layers")?, "attn.q.weight")?;
    if !r.has("pooler.weight") {
        return Err(r.not(format!("tensor `{}` is missing", r.names.of("pooler.weight"))));
    }
    let act = r.sidecar.activation_at(if distil { "activation" } else { "hidden_act" })?;
    Ok(FamilySpec::Bert(BertSpec {
        names: r.names,
        vocab,
        dim,
        layers,
        heads,
        hidden,
        act: act.unwrap_or(Activation::GeluErf),
        positions: r.out("positions.weight")?,
        eps: if distil { 1e-12 } else { r.sidecar.eps()?.unwrap_or(1e-12) },
        pool: if distil { Activation::Relu } else { Activation::Tanh },
        classes,
    }))
}

pub(super) fn build(s: &BertSpec) -> Result<Graph, GraphError> {
    let b = &mut Builder::default();
    let ids = b.input_of(op::Input::ids(s.vocab));
    let x = b.embedding("embed", ids, s.vocab, s.dim);
    let positions = op::AddPositions { shorter: true, ..op::AddPositions::of(s.positions, s.dim) };
    let x = b.node("positions", Op::AddPositions(positions), &[x]);
    b.rename_param(x, ParamRole::Embedding, "positions.weight");
    let mut x = b.layer_norm("embed_norm", x, s.dim, s.eps);
    for i in 0..s.layers {
        let at = &format!("layers.{i}");
        x = encoder_layer(b, at, x, Norms::AfterAdditions, (s.dim, s.eps), |b, branch, x| match branch {
            1 => attention(b, s, at, x),
            _ => {
                let y = b.linear(format!("{at}.fc"), x, s.dim, s.hidden, true);
                let y = b.act(format!("{at}.act"), y, s.act);
                b.linear(format!("{at}.down"), y, s.hidden, s.dim, true)
            }
        });
    }
    let x = b.node("first", Op::SelectToken(op::SelectToken { index: 0 }), &[x]);
    let x = b.linear("pooler", x, s.dim, s.dim, true);
    let x = b.act("pool_act", x, s.pool);
    let x = b.linear("head", x, s.dim, s.classes, true);
    s.names.apply(std::mem::take(b).finish(x)?)
}

fn attention(b: &mut Builder, s: &BertSpec, at: &str, x: NodeId) -> NodeId {
    let head = s.dim / s.heads.max(1);
    let qkv = ["q", "k", "v"].map(|n| b.linear(format!("{at}.attn.{n}"), x, s.dim, s.dim, true));
    let core = Op::attention(s.heads, head, head, false, 1.0 / (head as f64).sqrt());
    let y = b.node(format!("{at}.attn.core"), core, &qkv);
    b.linear(format!("{at}.attn.o"), y, s.dim, s.dim, true)
}

/// Adds the vector of the first kind of tokens to every position's, and gives norms of the first files their later names.
pub(super) fn adapt(s: &BertSpec, c: &mut Checkpoint) {
    text_classifier::rename_norms(c);
    let (kinds, positions) = (s.names.of("types.weight"), s.names.of("positions.weight"));
    let (Some(RawTensor::Float(types)), Some(RawTensor::Float(all))) =
        (c.tensors.get(&kinds), c.tensors.get(&positions))
    else {
        return;
    };
    // What does not fit stays, and is refused as tensors that are left over.
    let (types, shape) = (types.rows(0..1).filter(|t| t.shape() == [1, s.dim]), all.shape().to_vec());
    let Some(first) = types.filter(|_| shape == [s.positions, s.dim]) else { return };
    let first = first.values().into_owned();
    let sums =
        all.values().chunks_exact(s.dim.max(1)).flat_map(|row| row.iter().zip(&first).map(|(p, t)| p + t)).collect();
    if let Some(sums) = Param::owned(shape, sums) {
        c.tensors.insert(positions, RawTensor::Float(sums));
        c.tensors.shift_remove(&kinds);
    }
}
