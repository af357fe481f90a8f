//! The re-fit of a recipe: every layer that reads a pruned group or has a rank, in network order; each stays only if the calibration
//! loss falls.
//!
//! The walk keeps two sets of running activations for the calibration images, the original network's and the
//! compressed one's, at places where a single value is alive; a re-fit sees the compressed network's own inputs and
//! aims at the original's values minus the compressed shortcut, so that earlier errors are corrected, not repeated.

use super::factors;
use super::loss::Mean;
use super::refit::{Layer, refit};
use super::runner::Runner;
use super::segment::{boundaries, fit_target, only_token, part};
use super::state::{Images, State};
use super::{RepairError, sample};
use crate::graph::{Graph, NodeId, Op, op, shapes};
use candle_core::{Device, Tensor};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::time::Instant;

/// Calibration images at a boundary of the walk.
pub(super) struct Chunk {
    pub original: Tensor,
    pub compressed: Tensor,
    /// The original network's logits, for images that judge repairs instead of fitting them.
    pub answer: Option<Tensor>,
}

/// A stretch of both networks between two boundaries, with the layers to repair in it.
pub(super) struct Stretch {
    pub from: NodeId,
    pub to: NodeId,
    pub layers: Vec<NodeId>,
}

/// Re-fits that [`run`] will try.
pub(super) fn repairs(state: &State) -> usize {
    if state.changed { refitted(state).iter().map(|s| s.layers.len()).sum() } else { 0 }
}

/// Re-fits what reads pruned units, and what the options name besides.
///
/// # Errors
/// Unreadable calibration data, execution failures, cancellation (looked for before every batch).
pub(super) fn run(state: &mut State) -> Result<(), RepairError> {
    if !state.changed {
        return Ok(());
    }
    let images = state.images()?;
    let stretches = refitted(state);
    if stretches.is_empty() {
        return Ok(());
    }
    let mut walk = Walk::start(state, &images)?;
    stretches.iter().try_for_each(|stretch| walk.pass(stretch))
}

/// The stretches with layers to re-fit.
fn refitted(state: &State) -> Vec<Stretch> {
    let model = &state.model.graph;
    let State { kept, options, .. } = state;
    stretches(state, &|i| {
        let n = &model.nodes[i];
        let ranked = state.ranks.contains_key(&n.name);
        let touched = |axis| kept.contains_key(&(n.name.clone(), axis));
        let last = options.classifier && i == model.output.index();
        (touched(1) || last || ranked || (options.producers && touched(0)))
            && matches!(n.op, Op::Conv2d(op::Conv2d { groups: 1, .. }) | Op::Linear(_))
            // What else reads the weight was not asked.
            && model.sharing(n).is_none()
    })
}

/// The stretches to walk: those with layers to repair one by one, what lies between them joined. `wanted` is asked of indices of
/// the compressed network's nodes.
pub(super) fn stretches(state: &State, wanted: &dyn Fn(usize) -> bool) -> Vec<Stretch> {
    let (original, model) = (&state.original.graph, &state.model.graph);
    let theirs = boundaries(original);
    let common: Vec<NodeId> = boundaries(model).into_iter().filter(|b| theirs.contains(b)).collect();
    let reachable = model.reachable();
    let mut out: Vec<Stretch> = Vec::new();
    for pair in common.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let layers: Vec<NodeId> =
            (from.index() + 1..=to.index()).filter(|&i| reachable[i] && wanted(i)).map(|i| NodeId(i as u32)).collect();
        match out.last_mut() {
            Some(last) if last.layers.is_empty() && layers.is_empty() => last.to = to,
            _ => out.push(Stretch { from, to, layers }),
        }
    }
    while out.last().is_some_and(|s| s.layers.is_empty()) {
        out.pop();
    }
    out
}

pub(super) struct Walk<'w, 'a> {
    pub state: &'w mut State<'a>,
    pub chunks: Vec<Chunk>,
}

impl<'w, 'a> Walk<'w, 'a> {
    /// At the input, where both networks have the same values.
    pub fn start(state: &'w mut State<'a>, images: &Images) -> Result<Walk<'w, 'a>, RepairError> {
        let mut chunks = Vec::new();
        let fit = state.calib.parts(&images.fit, images.batch).into_iter().map(|picks| (picks, None));
        let check = images.check.iter().map(|(picks, answer)| (picks.clone(), Some(answer.clone())));
        for (picks, answer) in fit.chain(check) {
            state.cancel.check()?;
            let (x, _) = state.calib.batch(&picks, &state.original.info.preprocess)?;
            chunks.push(Chunk { original: x.clone(), compressed: x, answer });
        }
        Ok(Walk { state, chunks })
    }

    /// Calibration loss of the network compressed up to `to` and original from there on: what the compression so far
    /// costs, whatever awaits repair further on. `part` leads from where the activations stand to `to`.
    pub fn loss_through(&self, part: &Graph, to: NodeId, judge: &mut Judge) -> Result<f64, RepairError> {
        let mut runner = self.state.runner(part, (&self.state.model.params, &self.state.model.precision), &[])?;
        self.loss_after(to, judge, &mut |chunk| Ok(runner.run(&chunk.compressed)?.0))
    }

    /// The same of what `value` says arrives at `to`.
    pub fn loss_after(
        &self,
        to: NodeId,
        judge: &mut Judge,
        value: &mut dyn FnMut(&Chunk) -> Result<Tensor, RepairError>,
    ) -> Result<f64, RepairError> {
        let mut mean = Mean::default();
        for (chunk, answer) in self.chunks.iter().filter_map(|c| Some((c, c.answer.as_ref()?))) {
            self.state.cancel.check()?;
            let mut value = value(chunk)?;
            if let Some(gather) = &judge.gather {
                let zero = value.narrow(1.min(value.rank() - 1), 0, 1)?.zeros_like()?;
                value = Tensor::cat(&[&value, &zero], 1)?.index_select(gather, 1)?;
            }
            let logits = match &mut judge.rest {
                Some(rest) => rest.run(&value)?.0,
                None if to == self.state.model.graph.output => value,
                None => return Ok(f64::INFINITY),
            };
            mean.add(self.state.calib.task(), &logits, answer);
        }
        Ok(mean.get())
    }

    /// What comes after `to` when a repair is judged.
    pub fn judge(&self, to: NodeId) -> Result<Judge, RepairError> {
        let kept = &self.state.kept;
        let graph = &self.state.model.graph;
        if to == graph.output {
            return Ok(Judge { rest: None, gather: None });
        }
        let (theirs, ours) = (shapes(&self.state.original.graph)?, shapes(graph)?);
        let (wide, narrow) = (&theirs[to.index()], &ours[to.index()]);
        let mut gather = None;
        let mut model = self.state.original;
        if wide != narrow {
            // Pruned channels of a residual stream: zero for the original that follows.
            let rows = carried(graph, to).and_then(|n| kept.get(&(graph.node(n).name.clone(), 0)));
            match rows {
                Some(rows) if wide.len() == 3 && rows.len() == narrow[0] && wide[1..] == narrow[1..] => {
                    let mut index = vec![narrow[0] as u32; wide[0]];
                    for (i, &r) in rows.iter().enumerate() {
                        if let Some(slot) = index.get_mut(r as usize) {
                            *slot = i as u32;
                        }
                    }
                    gather = Some(Tensor::new(index, &Device::Cpu)?);
                }
                _ => model = &self.state.model,
            }
        }
        let shape = if gather.is_some() { wide } else { &shapes(&model.graph)?[to.index()] };
        let rest = part(&model.graph, to, shape, model.graph.output);
        Ok(Judge { rest: Some(self.state.runner(&rest, (&model.params, &model.precision), &[])?), gather })
    }

    /// Re-fits the stretch's layers and moves both sets of activations to its end.
    fn pass(&mut self, stretch: &Stretch) -> Result<(), RepairError> {
        let (from, to) = (stretch.from, stretch.to);
        let graph = self.state.model.graph.clone();
        let original_part =
            part(&self.state.original.graph, from, &shapes(&self.state.original.graph)?[from.index()], to);
        let compressed_part = part(&graph, from, &shapes(&graph)?[from.index()], to);
        let same = original_part == compressed_part
            && self.state.original.precision == self.state.model.precision
            && self.same()
            && stretch.layers.is_empty();
        let consumers = graph.consumers();
        let out_shapes = shapes(&graph)?;
        let layers: Vec<Layer> = stretch
            .layers
            .iter()
            .map(|&id| Layer {
                id,
                target: fit_target(&graph, &consumers, id),
                rows: self.state.kept.get(&(graph.node(id).name.clone(), 0)).cloned(),
                places: sample::Places {
                    per_image: self.state.options.positions.max(1),
                    token: only_token(&graph, &consumers, id),
                },
                out_width: sample::places_of(&out_shapes[id.index()]).1,
            })
            .collect();
        // The original goes first: its values at the sampled places are all that the re-fits need of it.
        let targets: Vec<&str> = layers.iter().map(|l| graph.node(l.target.node).name.as_str()).collect();
        let mut runner = self.state.runner(
            &original_part,
            (&self.state.original.params, &self.state.original.precision),
            &targets,
        )?;
        let mut samples: Vec<Vec<sample::Target>> = layers.iter().map(|_| Vec::new()).collect();
        for (c, chunk) in self.chunks.iter_mut().enumerate() {
            self.state.cancel.check()?;
            let (out, mut values) = runner.run(&chunk.original)?;
            if chunk.answer.is_none() {
                for (layer, (samples, name)) in layers.iter().zip(samples.iter_mut().zip(&targets)) {
                    let value = values.get(*name).unwrap_or(&out);
                    let mut rng = ChaCha8Rng::seed_from_u64(self.state.options.seed ^ ((layer.id.0 as u64) << 32));
                    rng.set_stream(c as u64 + 1);
                    samples.push(sample::Target::of(value, layer.places, layer.rows.as_deref(), &mut rng)?);
                }
            }
            values.clear();
            if same {
                chunk.compressed = out.clone();
            }
            chunk.original = out;
        }
        if same {
            return Ok(());
        }
        if !layers.is_empty() {
            let mut judge = self.judge(to)?;
            let mut loss = self.loss_through(&compressed_part, to, &mut judge)?;
            for (layer, samples) in layers.iter().zip(samples) {
                loss = self.repair((&compressed_part, from, to), layer, &samples, (&mut judge, loss))?;
            }
        }
        self.advance(&compressed_part)
    }

    /// Are both networks' activations the same still?
    pub fn same(&self) -> bool {
        self.chunks.iter().all(|c| c.original.id() == c.compressed.id())
    }

    /// Moves the original network's activations to the end of `part`.
    pub fn advance_original(&mut self, part: &Graph) -> Result<(), RepairError> {
        let mut runner = self.state.runner(part, (&self.state.original.params, &self.state.original.precision), &[])?;
        for chunk in &mut self.chunks {
            self.state.cancel.check()?;
            chunk.original = runner.run(&chunk.original)?.0;
        }
        Ok(())
    }

    /// Puts the compressed network where the original is.
    pub fn follow(&mut self) {
        self.chunks.iter_mut().for_each(|c| c.compressed = c.original.clone());
    }

    /// Moves the compressed network's activations to the end of `part`.
    pub fn advance(&mut self, part: &Graph) -> Result<(), RepairError> {
        let mut runner = self.state.runner(part, (&self.state.model.params, &self.state.model.precision), &[])?;
        for chunk in &mut self.chunks {
            self.state.cancel.check()?;
            chunk.compressed = runner.run(&chunk.compressed)?.0;
        }
        Ok(())
    }

    /// Re-fits one layer and keeps it if the calibration loss falls; returns that loss as it then is.
    fn repair(
        &mut self,
        (part, from, to): (&Graph, NodeId, NodeId),
        layer: &Layer,
        targets: &[sample::Target],
        (judge, before): (&mut Judge, f64),
    ) -> Result<f64, RepairError> {
        if self.state.ranks.contains_key(&self.state.model.graph.node(layer.id).name) {
            return factors::choose(self, (part, from, to), layer, targets, judge);
        }
        let started = Instant::now();
        let name = format!("refit {}", self.state.model.graph.node(layer.id).name);
        self.state.trying(&name);
        let samples = targets.iter().map(|t| t.values.dims().first().copied().unwrap_or(0) as u64).sum();
        let fit_chunks: Vec<&Tensor> =
            self.chunks.iter().filter(|c| c.answer.is_none()).map(|c| &c.compressed).collect();
        let new =
            refit(&self.state.model, part, layer, &fit_chunks, targets, self.state.options.lambda, self.state.cancel)?;
        self.state.tried();
        let Some(new) = new else { return Ok(before) };
        let old = std::mem::replace(&mut self.state.model.params, new);
        let after = self.loss_through(part, to, judge)?;
        let kept = self.state.judged(name, (before, after), samples, started);
        if !kept {
            self.state.model.params = old;
        }
        Ok(if kept { after } else { before })
    }
}

/// What follows the repaired stretch when a repair is judged.
pub(super) struct Judge {
    /// `None`: the stretch ends at the logits.
    rest: Option<Runner>,
    /// Puts the channels of a pruned stream where the original has them; the index past the end is a zero channel.
    gather: Option<Tensor>,
}

/// The layer whose rows a boundary's channels are, seen through what passes channels on.
fn carried(graph: &Graph, from: NodeId) -> Option<NodeId> {
    let mut at = from;
    loop {
        let node = graph.node(at);
        if node.op.is_conv_or_linear() || matches!(node.op, Op::ChannelPad(_)) {
            return Some(at);
        }
        if !node.op.traits().per_channel {
            return None;
        }
        at = *node.inputs.first()?;
    }
}
