//! Mixtures of experts in a decoder's layers instead of one gated MLP (Mixtral: Jiang et al. 2024; Qwen3-MoE: Qwen Team 2025): what a
//! checkpoint says of them, how they are built, and experts that GGUF files stack in one tensor.
//!
//! Not here: the layers around them (`decoder`), names (`decoder_names`).

use super::decoder::DecoderSpec;
use super::{Reader, Result};
use crate::graph::{Builder, NodeId, Op, op};
use crate::model::{Checkpoint, RawTensor};

/// A decoder's mixtures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Experts {
    pub count: usize,
    /// How many a token is sent to.
    pub used: usize,
    /// Neurons of each.
    pub hidden: usize,
    /// Their weights are divided by their sum.
    pub normalised: bool,
    /// Which layers have them; the others have one MLP.
    pub layers: Vec<bool>,
}

/// The matrices of an expert, as they are stacked too.
const PARTS: [&str; 3] = ["gate", "up", "down"];

/// Nodes that an expert becomes, and how many all experts may: a graph has room for no more than some more.
const NODES: usize = 6;
const MOST_NODES: usize = 90_000;

/// The mixtures of a network of `layers` layers; `None` where it has none.
pub(super) fn read(r: &Reader, kind: &str, layers: usize) -> Result<Option<Experts>> {
    let c = &r.sidecar.config;
    let told = ["num_local_experts", "num_experts"].into_iter().find(|key| c.mentions(key));
    let told = told.map_or(Ok(None), |key| c.count(key))?;
    let router = |i: usize| format!("layers.{i}.router.weight");
    let sparse: Vec<bool> = (0..layers).map(|i| r.has(&router(i))).collect();
    let Some(first) = sparse.iter().position(|s| *s) else {
        return match told {
            Some(n) if n > 1 => {
                let name = r.names.of(&router(0));
                Err(r.not(format!("its configuration tells of {n} experts, and tensor `{name}` is missing")))
            }
            _ => Ok(None),
        };
    };
    let (gguf, listed) = (r.names.source == super::Source::Gguf, kind == "qwen3_moe");
    if !(gguf && kind == "llama" || ["mixtral", "qwen3_moe", "qwen3moe"].contains(&kind)) {
        return Err(r.not(format!("a network of the kind `{kind}` with experts is not supported")));
    }
    let expected: Vec<bool> = if listed { by_list(r, layers)? } else { vec![true; layers] };
    if let Some(i) = (0..layers).find(|i| sparse[*i] != expected[*i]) {
        let name = r.names.of(&router(i));
        let found = if sparse[i] { "is not expected in a layer of one MLP" } else { "is missing" };
        return Err(r.not(format!("tensor `{name}` {found}")));
    }
    let [count, _] = r.shape(&router(first))?;
    // As their classes have where nothing is said.
    let (usual, usual_used) = if kind == "mixtral" { (8, 2) } else { (128, 8) };
    let told = told.or((!gguf).then_some(usual));
    let told = told.ok_or_else(|| r.not("its metadata does not tell how many experts it has"))?;
    if told != count {
        let name = r.names.of(&router(first));
        return Err(r.not(format!("its configuration tells of {told} experts, and `{name}` chooses among {count}")));
    }
    let mixtures = sparse.iter().filter(|s| **s).count();
    if count.saturating_mul(mixtures).saturating_mul(NODES) > MOST_NODES {
        return Err(r.not(format!("{count} experts in each of {mixtures} layers are more than fit a graph")));
    }
    let used = c.count("num_experts_per_tok")?.or((!gguf).then_some(usual_used));
    let used = used.ok_or_else(|| r.not("its configuration does not tell how many experts a token is sent to"))?;
    if used == 0 || used > count {
        return Err(r.not(format!("a token cannot be sent to {used} of {count} experts")));
    }
    let stacked = r.has(&stack(first, "gate"));
    for i in (0..layers).filter(|i| stacked && sparse[*i]) {
        for part in PARTS {
            let [n, ..] = r.shape::<3>(&stack(i, part))?;
            if n != count {
                let name = r.names.of(&stack(i, part));
                return Err(r.not(format!("tensor `{name}` stacks {n} experts, and there are {count}")));
            }
        }
    }
    let hidden = match stacked {
        true => r.shape::<3>(&stack(first, "gate"))?[1],
        false => r.out(&format!("layers.{first}.experts.0.gate.weight"))?,
    };
    let normalised = !listed || c.bool("norm_topk_prob")?.unwrap_or(false);
    Ok(Some(Experts { count, used, hidden, normalised, layers: sparse }))
}

/// Which layers have experts by `decoder_sparse_step` and `mlp_only_layers`.
fn by_list(r: &Reader, layers: usize) -> Result<Vec<bool>> {
    let c = &r.sidecar.config;
    let step = c.count("decoder_sparse_step")?.unwrap_or(1);
    let plain = c.counts("mlp_only_layers")?.unwrap_or_default();
    Ok((0..layers).map(|i| !plain.contains(&i) && (i + 1).is_multiple_of(step)).collect())
}

fn stack(layer: usize, part: &str) -> String {
    format!("layers.{layer}.stack.{part}.weight")
}

/// The mixture of the layer `at` on `h`: its weighted sum.
pub(super) fn build(b: &mut Builder, s: &DecoderSpec, e: &Experts, at: &str, h: NodeId) -> NodeId {
    let experts = e.count;
    let logits = b.linear(format!("{at}.router"), h, s.dim, experts, false);
    let route = op::Route { experts, top: e.used, normalised: e.normalised };
    let weights = b.node(format!("{at}.route"), Op::Route(route), &[logits]);
    let mut made = vec![weights];
    for expert in 0..experts {
        let inside = format!("{at}.experts.{expert}");
        let dispatch = Op::Dispatch(op::Dispatch { experts, expert });
        let sent = b.node(format!("{inside}.dispatch"), dispatch, &[h, weights]);
        made.push(super::decoder::mlp(b, s, &inside, sent, e.hidden));
    }
    b.node(format!("{at}.combine"), Op::Combine(op::Combine { experts }), &made)
}

/// Takes stacked experts apart. Where they are not all, they stay, and tensors will be missing.
pub(super) fn adapt(s: &DecoderSpec, e: &Experts, c: &mut Checkpoint) {
    for i in (0..s.layers).filter(|i| e.layers[*i]) {
        for part in PARTS {
            let whole = s.names.of(&stack(i, part));
            let Some(RawTensor::Float(all)) = c.tensors.get(&whole) else { continue };
            let one = |n: usize| {
                let rows = all.rows(n..n + 1)?;
                let shape = rows.shape()[1..].to_vec();
                let name = s.names.of(&format!("layers.{i}.experts.{n}.{part}.weight"));
                Some((name, RawTensor::Float(rows.reshaped(shape)?)))
            };
            if let Some(each) = (0..e.count).map(one).collect::<Option<Vec<_>>>() {
                c.tensors.shift_remove(&whole);
                c.tensors.extend(each);
            }
        }
    }
}
