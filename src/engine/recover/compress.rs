//! Compression as a whole: decisions applied, then every layer that reads a pruned group re-fitted in network order,
//! then batch-norm statistics re-estimated; each repair stays only if the calibration loss falls.
//!
//! The walk keeps two sets of running activations for the calibration images, the original network's and the
//! compressed one's, at places where a single value is alive; a re-fit sees the compressed network's own inputs and
//! aims at the original's values minus the compressed shortcut, so that earlier errors are corrected, not repeated.
//! Invariant: a pure function of original weights, actions, calibration images and options.

use super::refit::{Layer, refit};
use super::runner::Runner;
use super::segment::{boundaries, fit_target, only_token, part};
use super::{RepairError, RepairStep, RepairUse, batchnorm, sample};
use crate::data::Dataset;
use crate::exec::Cancel;
use crate::graph::op;
use crate::graph::{Graph, NodeId, Op, shapes};
use crate::model::{Model, ParamStore};
use crate::prune::{self, Action, Group, Target};
use crate::quant::{self, Calibration};
use crate::task::Task;
use candle_core::{Device, Tensor};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Instant;

/// How repairs are made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RepairOptions {
    /// Chooses images and positions.
    pub seed: u64,
    /// Calibration images to fit on, at most (fewer when `memory` does not hold them).
    pub images: usize,
    /// Further calibration images, at most, that say whether a repair stays.
    pub check_images: usize,
    /// Output positions or tokens looked at per image.
    pub positions: usize,
    /// Ridge term as a part of the Gram matrix's mean diagonal.
    pub lambda: f64,
    /// Re-fit the layers that read pruned units.
    pub refit: bool,
    /// Also re-fit what computes the remaining units, so that it makes up for earlier errors in its input.
    pub producers: bool,
    /// Also re-fit the classifier.
    pub classifier: bool,
    /// Try re-estimated batch-norm statistics.
    pub batch_norm: bool,
    /// Bytes for running activations.
    pub memory: usize,
    /// How the input ranges of static int8 layers are chosen, and from how many calibration images.
    pub ranges: Calibration,
    pub range_images: usize,
}

impl Default for RepairOptions {
    fn default() -> Self {
        RepairOptions {
            seed: 0,
            images: 4000,
            check_images: 500,
            positions: 48,
            lambda: 1e-3,
            refit: true,
            producers: false,
            classifier: true,
            batch_norm: true,
            memory: 1 << 30,
            ranges: Calibration::Mse,
            range_images: 512,
        }
    }
}

/// What a running compression reports.
#[derive(Debug, Clone, PartialEq)]
pub enum RepairUpdate {
    /// `done` of `total` repairs; `what` is being worked on.
    Progress { done: usize, total: usize, what: String },
    /// A repair that has been judged.
    Step(RepairStep),
    /// What was looked at; once, when all is done.
    Used(RepairUse),
}

/// Calibration images at a boundary of the walk.
struct Chunk {
    original: Tensor,
    compressed: Tensor,
    /// Where the images are in the calibration set.
    picks: Vec<usize>,
    /// The original network's logits, for images that judge repairs instead of fitting them.
    answer: Option<Tensor>,
}

/// A stretch of both networks between two boundaries, with the layers to re-fit in it.
struct Stretch {
    from: NodeId,
    to: NodeId,
    layers: Vec<NodeId>,
}

/// `original` after `actions`, repaired without training on `calib`, the inputs of static int8 layers calibrated on it.
///
/// # Errors
/// Refused actions, unreadable calibration data, execution failures, cancellation (looked for before every batch).
pub fn compress(
    original: &Model,
    groups: &[Group],
    actions: &[(Target, Action)],
    calib: &Dataset,
    options: &RepairOptions,
    cancel: &Cancel,
    say: &mut dyn FnMut(RepairUpdate),
) -> Result<Model, RepairError> {
    let (mut model, mut used, mut picked) = repaired(original, groups, actions, calib, options, cancel, say)?;
    if !quant::static_layers(&model.graph, &model.precision).is_empty() {
        if calib.is_empty() {
            return Err(RepairError::NoImages(calib.card().name));
        }
        let picks: Vec<usize> = shuffled(calib, options).into_iter().take(options.range_images.max(1)).collect();
        let batches: Vec<&[usize]> = picks.chunks(RANGE_BATCH).collect();
        used.ranged = picks.len() as u64;
        picked.extend_from_slice(&picks);
        let what = format!("int8 ranges, {}", options.ranges.label());
        super::ranges::calibrate(&mut model, options.ranges, &mut |i| -> Result<_, RepairError> {
            cancel.check()?;
            say(RepairUpdate::Progress { done: i.min(batches.len()), total: batches.len(), what: what.clone() });
            let Some(picks) = batches.get(i) else { return Ok(None) };
            Ok(Some(calib.batch(*picks, &original.info.preprocess)?.0))
        })?;
    }
    used.hash = if picked.is_empty() { None } else { calib.seen(picked) };
    say(RepairUpdate::Used(used));
    Ok(model)
}

/// Images at a time whose activations are looked at for ranges.
const RANGE_BATCH: usize = 32;

/// Calibration images in the order that the seed gives them.
fn shuffled(calib: &Dataset, options: &RepairOptions) -> Vec<usize> {
    let mut order: Vec<usize> = (0..calib.len()).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(options.seed));
    order
}

/// `original` after `actions`, repaired; with what was looked at, and which images those were.
fn repaired(
    original: &Model,
    groups: &[Group],
    actions: &[(Target, Action)],
    calib: &Dataset,
    options: &RepairOptions,
    cancel: &Cancel,
    say: &mut dyn FnMut(RepairUpdate),
) -> Result<(Model, RepairUse, Vec<usize>), RepairError> {
    let model = prune::apply(original, groups, actions)?;
    let kept = prune::kept_indices(&original.graph, groups, actions)?;
    let changed = !kept.is_empty() || model.graph.output != original.graph.output || {
        let (a, b) = (original.graph.reachable(), model.graph.reachable());
        a != b
    };
    if !changed || !(options.refit || options.batch_norm) {
        return Ok((model, RepairUse::default(), Vec::new()));
    }
    if calib.is_empty() {
        return Err(RepairError::NoImages(calib.card().name));
    }
    let stretches = if options.refit { stretches(&original.graph, &model.graph, &kept, options) } else { Vec::new() };
    let batch_norms = options.batch_norm && model.graph.nodes.iter().any(|n| matches!(n.op, Op::BatchNorm2d(_)));
    let total = stretches.iter().map(|s| s.layers.len()).sum::<usize>() + usize::from(batch_norms);
    let mut walk = Walk::start(original, model, calib, options, cancel)?;
    walk.total = total;
    for stretch in &stretches {
        walk.pass(stretch, &kept, say)?;
    }
    if batch_norms {
        walk.batch_norms(calib, say)?;
    }
    let checked: Vec<usize> =
        walk.chunks.iter().filter(|c| c.answer.is_some()).flat_map(|c| c.picks.iter().copied()).collect();
    let used = RepairUse {
        fitted: walk.fit.len() as u64,
        checked: checked.len() as u64,
        checked_on_fitted: checked == walk.fit,
        ..RepairUse::default()
    };
    let picked = [walk.fit, checked].concat();
    let mut model = walk.model;
    model.info.hash = model.params.hash();
    // A re-fit knows nothing of masks.
    prune::sparsify(&mut model, groups, actions)?;
    Ok((model, used, picked))
}

/// The stretches to walk: those with layers to re-fit one by one, what lies between them joined.
fn stretches(
    original: &Graph,
    model: &Graph,
    kept: &HashMap<(String, usize), Vec<u32>>,
    options: &RepairOptions,
) -> Vec<Stretch> {
    let theirs = boundaries(original);
    let common: Vec<NodeId> = boundaries(model).into_iter().filter(|b| theirs.contains(b)).collect();
    let reachable = model.reachable();
    let wanted = |i: usize| {
        let n = &model.nodes[i];
        let touched = |axis| kept.contains_key(&(n.name.clone(), axis));
        let last = options.classifier && i == model.output.index();
        reachable[i]
            && (touched(1) || last || (options.producers && touched(0)))
            && matches!(n.op, Op::Conv2d(op::Conv2d { groups: 1, .. }) | Op::Linear(_))
    };
    let mut out: Vec<Stretch> = Vec::new();
    for pair in common.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let layers: Vec<NodeId> =
            (from.index() + 1..=to.index()).filter(|&i| wanted(i)).map(|i| NodeId(i as u32)).collect();
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

struct Walk<'a> {
    original: &'a Model,
    model: Model,
    task: &'a dyn Task,
    options: &'a RepairOptions,
    cancel: &'a Cancel,
    chunks: Vec<Chunk>,
    done: usize,
    total: usize,
    /// Images to fit on, for batch-norm statistics.
    fit: Vec<usize>,
}

impl<'a> Walk<'a> {
    fn start(
        original: &'a Model,
        model: Model,
        calib: &'a Dataset,
        options: &'a RepairOptions,
        cancel: &'a Cancel,
    ) -> Result<Walk<'a>, RepairError> {
        let widest = |g: &Graph| -> Result<usize, RepairError> {
            let shapes = shapes(g)?;
            Ok(boundaries(g).iter().map(|b| shapes[b.index()].iter().product::<usize>() * 4).max().unwrap_or(1))
        };
        let each = (widest(&original.graph)? + widest(&model.graph)?).max(1);
        let room = (options.memory / each).max(8);
        let order = shuffled(calib, options);
        let check = options.check_images.min(order.len() / 5).min(room / 5);
        let fit = options.images.min(order.len() - check).min(room - check).max(1);
        let (check, fit) = (order[order.len() - check..].to_vec(), order[..fit].to_vec());
        // A handful of images must serve both ends.
        let check = if check.is_empty() { fit.clone() } else { check };
        let size = ((64 << 20) / each).clamp(4, 128);
        let whole = Runner::new(&original.graph, &original.params, &original.precision, &[])?;
        let mut chunks = Vec::new();
        for (part, is_check) in [(&fit, false), (&check, true)] {
            for picks in part.chunks(size) {
                cancel.check()?;
                let (x, _) = calib.batch(picks, &original.info.preprocess)?;
                let answer = if is_check { Some(whole.run(&x)?.0) } else { None };
                chunks.push(Chunk { original: x.clone(), compressed: x, picks: picks.to_vec(), answer });
            }
        }
        Ok(Walk { original, model, task: calib.task(), options, cancel, chunks, done: 0, total: 0, fit })
    }

    /// Calibration loss of the network compressed up to `to` and original from there on: what the compression so far
    /// costs, whatever awaits repair further on. `part` leads from where the activations stand to `to`.
    fn loss_through(&self, part: &Graph, to: NodeId, judge: &Judge) -> Result<f64, RepairError> {
        let runner = Runner::new(part, &self.model.params, &self.model.precision, &[])?;
        let mut mean = Mean::default();
        for (chunk, answer) in self.chunks.iter().filter_map(|c| Some((c, c.answer.as_ref()?))) {
            self.cancel.check()?;
            let (mut value, _) = runner.run(&chunk.compressed)?;
            if let Some(gather) = &judge.gather {
                let zero = value.narrow(1.min(value.rank() - 1), 0, 1)?.zeros_like()?;
                value = Tensor::cat(&[&value, &zero], 1)?.index_select(gather, 1)?;
            }
            let logits = match &judge.rest {
                Some(rest) => rest.run(&value)?.0,
                None if to == self.model.graph.output => value,
                None => return Ok(f64::INFINITY),
            };
            mean.add(self.task, &logits, answer);
        }
        Ok(mean.get())
    }

    /// What comes after `to` when a repair is judged.
    fn judge(&self, to: NodeId, kept: &HashMap<(String, usize), Vec<u32>>) -> Result<Judge, RepairError> {
        let graph = &self.model.graph;
        if to == graph.output {
            return Ok(Judge { rest: None, gather: None });
        }
        let (theirs, ours) = (shapes(&self.original.graph)?, shapes(graph)?);
        let (wide, narrow) = (&theirs[to.index()], &ours[to.index()]);
        let mut gather = None;
        let mut model = self.original;
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
                _ => model = &self.model,
            }
        }
        let shape = if gather.is_some() { wide } else { &shapes(&model.graph)?[to.index()] };
        let rest = part(&model.graph, to, shape, model.graph.output);
        Ok(Judge { rest: Some(Runner::new(&rest, &model.params, &model.precision, &[])?), gather })
    }

    /// Re-fits the stretch's layers and moves both sets of activations to its end.
    fn pass(
        &mut self,
        stretch: &Stretch,
        kept: &HashMap<(String, usize), Vec<u32>>,
        say: &mut dyn FnMut(RepairUpdate),
    ) -> Result<(), RepairError> {
        let (from, to) = (stretch.from, stretch.to);
        let graph = self.model.graph.clone();
        let original_part = part(&self.original.graph, from, &shapes(&self.original.graph)?[from.index()], to);
        let compressed_part = part(&graph, from, &shapes(&graph)?[from.index()], to);
        let same = original_part == compressed_part
            && self.original.precision == self.model.precision
            && self.chunks.iter().all(|c| c.original.id() == c.compressed.id())
            && stretch.layers.is_empty();
        let consumers = graph.consumers();
        let out_shapes = shapes(&graph)?;
        let layers: Vec<Layer> = stretch
            .layers
            .iter()
            .map(|&id| Layer {
                id,
                target: fit_target(&graph, &consumers, id),
                rows: kept.get(&(graph.node(id).name.clone(), 0)).cloned(),
                places: sample::Places {
                    per_image: self.options.positions.max(1),
                    token: only_token(&graph, &consumers, id),
                },
                out_width: out_shapes[id.index()].get(2).copied().unwrap_or(1),
            })
            .collect();
        // The original goes first: its values at the sampled places are all that the re-fits need of it.
        let targets: Vec<&str> = layers.iter().map(|l| graph.node(l.target.node).name.as_str()).collect();
        let runner = Runner::new(&original_part, &self.original.params, &self.original.precision, &targets)?;
        let mut samples: Vec<Vec<sample::Target>> = layers.iter().map(|_| Vec::new()).collect();
        for (c, chunk) in self.chunks.iter_mut().enumerate() {
            self.cancel.check()?;
            let (out, mut values) = runner.run(&chunk.original)?;
            if chunk.answer.is_none() {
                for (layer, (samples, name)) in layers.iter().zip(samples.iter_mut().zip(&targets)) {
                    let value = match values.get(*name) {
                        Some(v) => v.clone(),
                        None => out.clone(),
                    };
                    let mut rng = ChaCha8Rng::seed_from_u64(self.options.seed ^ ((layer.id.0 as u64) << 32));
                    rng.set_stream(c as u64 + 1);
                    samples.push(sample::Target::of(&value, layer.places, layer.rows.as_deref(), &mut rng)?);
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
            let judge = self.judge(to, kept)?;
            let mut loss = self.loss_through(&compressed_part, to, &judge)?;
            for (layer, samples) in layers.iter().zip(samples) {
                loss = self.repair(&compressed_part, to, layer, &samples, (&judge, loss), say)?;
            }
        }
        let runner = Runner::new(&compressed_part, &self.model.params, &self.model.precision, &[])?;
        for chunk in &mut self.chunks {
            self.cancel.check()?;
            chunk.compressed = runner.run(&chunk.compressed)?.0;
        }
        Ok(())
    }

    /// Re-fits one layer and keeps it if the calibration loss falls; returns that loss as it then is.
    fn repair(
        &mut self,
        part: &Graph,
        to: NodeId,
        layer: &Layer,
        targets: &[sample::Target],
        (judge, before): (&Judge, f64),
        say: &mut dyn FnMut(RepairUpdate),
    ) -> Result<f64, RepairError> {
        let started = Instant::now();
        let name = format!("refit {}", self.model.graph.node(layer.id).name);
        say(RepairUpdate::Progress { done: self.done, total: self.total, what: name.clone() });
        let samples = targets.iter().map(|t| t.values.dims().first().copied().unwrap_or(0) as u64).sum();
        let fit_chunks: Vec<&Tensor> =
            self.chunks.iter().filter(|c| c.answer.is_none()).map(|c| &c.compressed).collect();
        let new = refit(&self.model, part, layer, &fit_chunks, targets, self.options.lambda, self.cancel)?;
        self.done += 1;
        let Some(new) = new else { return Ok(before) };
        let old = std::mem::replace(&mut self.model.params, new);
        let after = self.loss_through(part, to, judge)?;
        let kept = after < before;
        if !kept {
            self.model.params = old;
        }
        let seconds = started.elapsed().as_secs_f64();
        say(RepairUpdate::Step(RepairStep { name, loss_before: before, loss_after: after, samples, kept, seconds }));
        Ok(if kept { after } else { before })
    }

    /// Tries batch-norm statistics of the compressed network's own activations.
    fn batch_norms(&mut self, calib: &Dataset, say: &mut dyn FnMut(RepairUpdate)) -> Result<(), RepairError> {
        let started = Instant::now();
        let name = "re-estimate batch norm".to_owned();
        say(RepairUpdate::Progress { done: self.done, total: self.total, what: name.clone() });
        let images = &self.fit[..self.fit.len().min(BATCH_NORM_IMAGES)];
        let new = batchnorm::reestimated(&self.model, calib, images, self.cancel)?;
        self.done += 1;
        let before = self.whole_loss(&self.model.params, calib)?;
        let after = self.whole_loss(&new, calib)?;
        let kept = after < before;
        if kept {
            self.model.params = new;
        }
        let seconds = started.elapsed().as_secs_f64();
        let samples = images.len() as u64;
        say(RepairUpdate::Step(RepairStep { name, loss_before: before, loss_after: after, samples, kept, seconds }));
        Ok(())
    }

    /// Calibration loss of the whole compressed network with these parameters.
    fn whole_loss(&self, params: &ParamStore, calib: &Dataset) -> Result<f64, RepairError> {
        let runner = Runner::new(&self.model.graph, params, &self.model.precision, &[])?;
        let mut mean = Mean::default();
        for (chunk, answer) in self.chunks.iter().filter_map(|c| Some((c, c.answer.as_ref()?))) {
            self.cancel.check()?;
            let (x, _) = calib.batch(&chunk.picks, &self.model.info.preprocess)?;
            mean.add(self.task, &runner.run(&x)?.0, answer);
        }
        Ok(mean.get())
    }
}

/// What follows the repaired stretch when a repair is judged.
struct Judge {
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
        if !node.op.facts().traits().per_channel {
            return None;
        }
        at = *node.inputs.first()?;
    }
}

/// Images for batch-norm statistics: every one brings all its positions, so a few hundred settle a mean and variance.
const BATCH_NORM_IMAGES: usize = 512;

/// Softening of the calibration loss. Calibration images are usually training images, of which the network is so sure
/// that plain cross-entropy barely sees damage that costs points elsewhere; at this temperature it does.
const TEMPERATURE: f64 = 4.0;

/// The calibration loss: the task's mean divergence from the original's outputs at temperature [`TEMPERATURE`], times its
/// square (of classifiers the distillation loss, Hinton et al. 2015); zero for the original itself, infinite for logits that are no numbers.
#[derive(Default)]
struct Mean {
    sum: f64,
    n: usize,
}

impl Mean {
    fn add(&mut self, task: &dyn Task, logits: &Tensor, answer: &Tensor) {
        let kl = task.divergence(answer, logits, TEMPERATURE).unwrap_or(f64::INFINITY);
        let n = answer.dims().first().copied().unwrap_or(0);
        self.sum += kl * TEMPERATURE * TEMPERATURE * n as f64;
        self.n += n;
    }

    fn get(&self) -> f64 {
        let loss = self.sum / self.n.max(1) as f64;
        if loss.is_finite() { loss } else { f64::INFINITY }
    }
}
