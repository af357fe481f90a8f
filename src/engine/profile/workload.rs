//! What a profile measures: passes of whole batches, or tokens one after the other at a fixed context.
//!
//! Not here: how often and what is made of it (`measure`).

use super::Result;
use super::stats::ms;
use crate::exec::{Cancel, DecodeOptions, Decoder, ExecError, KvFormat, Launch, Observer, Plan, Session};
use crate::graph::{Binding, Graph, Macs, NodeId, Op, macs, macs_at, shapes, shapes_at};
use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Instant;

/// Which runs are measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Workload {
    /// A whole batch at once: images, or prompts.
    #[default]
    Pass,
    /// One token of one sequence, which follows `context` others whose keys and values are kept in `kv`.
    Decode { context: usize, kv: KvFormat },
}

impl Workload {
    pub(super) fn is_pass(&self) -> bool {
        *self == Workload::Pass
    }
}

/// One run at a time.
pub(super) trait Runs {
    fn plan(&self) -> &Plan;

    fn run(&mut self) -> Result<()>;

    /// A run, and what each of its steps took.
    fn observed(&mut self, observer: &mut dyn Observer) -> Result<()>;

    /// Milliseconds of a run, by the device's clock.
    fn timed(&mut self) -> Result<f64>;

    /// How timed runs will be launched.
    fn prepare(&mut self) -> Result<Launch>;

    /// Images, prompts or tokens of a run.
    fn items(&self) -> usize;
}

/// Passes of one batch.
pub(super) struct Passes<'a> {
    pub session: &'a mut Session,
    pub x: &'a Tensor,
}

impl Runs for Passes<'_> {
    fn plan(&self) -> &Plan {
        self.session.plan()
    }

    fn run(&mut self) -> Result<()> {
        self.session.run(self.x)?;
        Ok(())
    }

    fn observed(&mut self, observer: &mut dyn Observer) -> Result<()> {
        self.session.run_observed(self.x, observer)?;
        Ok(())
    }

    fn timed(&mut self) -> Result<f64> {
        Ok(ms(self.session.run_timed(self.x)?.1))
    }

    fn prepare(&mut self) -> Result<Launch> {
        Ok(self.session.prepare_timed(self.x)?)
    }

    fn items(&self) -> usize {
        self.x.dims().first().copied().unwrap_or(1)
    }
}

/// One token after so many, again and again.
pub(super) struct Decoding {
    decoder: Decoder,
    context: usize,
    id: u32,
}

impl Decoding {
    /// Feeds `plan` a context of tokens from all over the vocabulary.
    ///
    /// # Errors
    /// What is no language model, or has no room for as many tokens; cancellation.
    pub fn new(plan: &Plan, context: usize, kv: KvFormat, cancel: &Cancel) -> Result<Decoding> {
        let mut decoder = plan.decoder(&DecodeOptions { sequences: 1, context: context + 1, kv })?;
        let vocab = plan.graph().vocabulary().unwrap_or(1).max(1) as u32;
        let id = |i: usize| (i as u32).wrapping_add(1).wrapping_mul(2_654_435_761) % vocab;
        let ids: Vec<u32> = (0..context).map(id).collect();
        for part in ids.chunks(Decoder::AT_ONCE) {
            cancel.check()?;
            decoder.feed(0, part)?;
        }
        Ok(Decoding { decoder, context, id: id(context) })
    }

    /// The next token, after which the sequence is as long as before.
    fn once<T>(&mut self, f: impl FnOnce(&mut Decoder, &[u32]) -> Result<T, ExecError>) -> Result<T> {
        let done = f(&mut self.decoder, &[self.id])?;
        self.decoder.rewind(0, self.context);
        Ok(done)
    }
}

impl Runs for Decoding {
    fn plan(&self) -> &Plan {
        self.decoder.plan()
    }

    fn run(&mut self) -> Result<()> {
        self.once(|d, id| d.feed(0, id).map(drop))
    }

    fn observed(&mut self, observer: &mut dyn Observer) -> Result<()> {
        self.once(|d, id| d.feed_observed(0, id, observer).map(drop))
    }

    fn timed(&mut self) -> Result<f64> {
        let start = Instant::now();
        self.run()?;
        Ok(ms(start.elapsed()))
    }

    fn prepare(&mut self) -> Result<Launch> {
        Ok(Launch::Host)
    }

    fn items(&self) -> usize {
        1
    }
}

/// What one run counts, per node: MACs, shapes of outputs, and bytes of keys and values that are read.
pub(super) struct Counts {
    pub macs: Vec<Macs>,
    pub shapes: Vec<Vec<usize>>,
    pub cached: Vec<u64>,
}

impl Counts {
    /// # Errors
    /// A graph that does not take what the workload gives it.
    pub fn of(graph: &Graph, decided: &HashMap<NodeId, KvFormat>, workload: Workload) -> Result<Counts> {
        let Workload::Decode { context, kv } = workload else {
            return Ok(Counts { macs: macs(graph)?, shapes: shapes(graph)?, cached: vec![0; graph.nodes.len()] });
        };
        let one = Binding::tokens(1);
        let (mut macs, mut cached) = (macs_at(graph, one)?, vec![0; graph.nodes.len()]);
        let seen = context as u64 + 1;
        for (id, node) in graph.live() {
            let Op::Attention(core) = &node.op else { continue };
            // At one token it looks at itself; here at all before it too.
            macs[id.index()].attention = macs[id.index()].attention.saturating_mul(seen);
            let kv = decided.get(&id).copied().unwrap_or(kv);
            let token = core.kv_heads() * (kv.bytes(core.qk_dim) + kv.bytes(core.v_dim));
            cached[id.index()] = seen.saturating_mul(token as u64);
        }
        Ok(Counts { macs, shapes: shapes_at(graph, one)?, cached })
    }
}
