//! What the tokens of running sequences left in each attention core: keys and values, and how many tokens that are.
//!
//! Not here: how they lie and are looked at (`kernel::cached`), who feeds tokens (`decode`). Invariant: what lies beyond a sequence's
//! length is never read before it is written anew, so a run that fails, or a sequence that is cut short, leaves nothing behind.

use super::error::{ExecError, Result};
use super::kernel::cached::{KvFormat, Store};
use crate::graph::op::Attention;
use crate::graph::{Graph, Node, NodeId, Op};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The caches of some sequences of one graph.
#[derive(Debug)]
pub(crate) struct Cache {
    /// Per node: which of `stores` is its.
    layer: Vec<Option<usize>>,
    /// Per attention core and sequence. One run at a time writes to each; the lock tells the compiler so.
    stores: Vec<Vec<Mutex<Store>>>,
    /// Tokens so far.
    lengths: Vec<usize>,
    /// Tokens that there is room for.
    context: usize,
    /// Of each attention core.
    formats: Vec<KvFormat>,
    /// Bytes of one token in all cores.
    token_bytes: u64,
}

/// The most tokens that `graph` goes through one by one, where that has an end: beyond it every token is computed otherwise (LongRoPE, dynamic
/// scaling), so that nothing kept would hold.
pub fn most_in_turn(graph: &Graph) -> Option<usize> {
    graph.live().filter_map(|(_, n)| n.op.facts().most_in_turn()).min()
}

impl Cache {
    /// Room for `sequences` sequences of `context` tokens; what nothing was decided of is kept in `format`. Memory is taken as it is written.
    ///
    /// # Errors
    /// An op of the graph that sees later tokens, or has no idea of tokens; more than can be addressed.
    pub fn new(
        (graph, decided): (&Graph, &HashMap<NodeId, KvFormat>),
        sequences: usize,
        context: usize,
        format: KvFormat,
    ) -> Result<Cache> {
        let (mut layer, mut stores, mut token_bytes) = (vec![None; graph.nodes.len()], Vec::new(), 0u64);
        let mut formats = Vec::new();
        for (id, node) in graph.live() {
            if !matches!(node.op, Op::Input(_)) && !node.op.facts().causal() {
                return Err(ExecError::unsupported(
                    node,
                    "does not go token by token: it sees tokens that are to come",
                ));
            }
            if let Some(most) = node.op.facts().most_in_turn().filter(|most| context > *most) {
                let why = format!("goes token by token for {most} tokens at most, not {context}; hint: ask for fewer");
                return Err(ExecError::unsupported(node, why));
            }
            let Op::Attention(core) = &node.op else { continue };
            let format = decided.get(&id).copied().unwrap_or(format);
            formats.push(format);
            let (heads, widths) = (core.kv_heads(), [core.qk_dim, core.v_dim]);
            let bytes = widths.iter().map(|w| heads * format.bytes(*w)).sum::<usize>();
            check(node, core, bytes, context)?;
            token_bytes += bytes as u64;
            layer[id.index()] = Some(stores.len());
            let store = || Mutex::new(Store::new(format, context, heads, widths));
            stores.push((0..sequences).map(|_| store()).collect());
        }
        Ok(Cache { layer, stores, lengths: vec![0; sequences], context, formats, token_bytes })
    }

    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    pub fn context(&self) -> usize {
        self.context
    }

    /// What it is kept in, in words.
    pub fn label(&self) -> String {
        let used = KvFormat::ALL.into_iter().filter(|f| self.formats.contains(f));
        let used = used.map(KvFormat::label).collect::<Vec<_>>();
        if used.is_empty() { "nothing".to_owned() } else { used.join(" and ") }
    }

    /// The format of all, where there is one.
    pub fn format(&self) -> Option<KvFormat> {
        self.formats.first().copied().filter(|first| self.formats.iter().all(|f| f == first))
    }

    pub fn token_bytes(&self) -> u64 {
        self.token_bytes
    }

    /// Sequence `i` has so many tokens now: those that a run has written, or fewer than before.
    pub fn set_length(&mut self, i: usize, tokens: usize) {
        self.lengths[i] = tokens;
    }
}

/// A cache that no machine has room for is refused here and not by the allocator.
fn check(node: &Node, core: &Attention, bytes: usize, context: usize) -> Result<()> {
    const MOST: usize = 1 << 40;
    if core.fused {
        return Err(ExecError::unsupported(node, "does not go token by token: its queries, keys and values are one"));
    }
    match bytes.checked_mul(context.saturating_add(64)) {
        Some(n) if n <= MOST => Ok(()),
        _ => Err(ExecError::unsupported(node, format!("has no cache for {context} tokens; hint: ask for fewer"))),
    }
}

/// Why the caches of `graph` are not those of `other`, if so: every attention core must be in the same place in both, and leave keys and
/// values of the same shape.
pub(crate) fn unlike(graph: &Graph, other: &Graph) -> Option<ExecError> {
    fn cores(g: &Graph) -> Vec<(NodeId, &Node)> {
        g.live().filter(|(_, n)| matches!(n.op, Op::Attention(_))).collect()
    }
    fn shape(n: &Node) -> Option<[usize; 3]> {
        let Op::Attention(core) = &n.op else { return None };
        Some([core.kv_heads(), core.qk_dim, core.v_dim])
    }
    let (own, others) = (cores(graph), cores(other));
    let why = "its keys and values are not those of the other level; hint: levels differ in their MLPs alone";
    let differ = |(a, b): &(&(NodeId, &Node), &(NodeId, &Node))| a.0 != b.0 || shape(a.1) != shape(b.1);
    if let Some((_, (_, node))) = own.iter().zip(&others).find(differ) {
        return Some(ExecError::unsupported(node, why));
    }
    let (longer, shorter) = if own.len() > others.len() { (&own, &others) } else { (&others, &own) };
    longer.get(shorter.len()).map(|(_, node)| ExecError::unsupported(node, why))
}

/// The caches of the sequences of one batch.
#[derive(Clone, Copy)]
pub(crate) struct Past<'a> {
    pub cache: &'a Cache,
    /// One an image of the batch; no two are the same.
    pub sequences: &'a [usize],
}

impl<'a> Past<'a> {
    /// Those of some images of the batch.
    pub fn of(self, images: std::ops::Range<usize>) -> Past<'a> {
        Past { sequences: &self.sequences[images], ..self }
    }

    /// Tokens before those of image `i`.
    pub fn tokens(self, i: usize) -> usize {
        self.cache.lengths[self.sequences[i]]
    }

    /// What attention core `node` has of image `i`; `None` for what is no core of this graph.
    pub fn store(self, node: NodeId, i: usize) -> Option<MutexGuard<'a, Store>> {
        let layer = self.cache.layer.get(node.index()).copied().flatten()?;
        Some(self.cache.stores[layer][self.sequences[i]].lock().unwrap_or_else(PoisonError::into_inner))
    }
}
