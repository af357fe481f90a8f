//! What the stages of a recipe hand on: the model as far as it has come, and the calibration images that were picked for it.
//! Not here: what a stage does with them.

use super::rounding::WIDEST;
use super::runner::Runner;
use super::segment::boundaries;
use super::stage::Stage;
use super::{RepairError, RepairOptions, RepairStep, RepairUpdate, RepairUse};
use crate::data::Dataset;
use crate::exec::{Cancel, ExecError};
use crate::graph::{Graph, Op, Precisions, shapes};
use crate::model::{Model, ParamStore};
use crate::prune::{self, Action, Group, Masks, Sparsity, Target};
use candle_core::Tensor;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Instant;

/// Between two stages.
pub(super) struct State<'a> {
    pub original: &'a Model,
    groups: &'a [Group],
    actions: &'a [(Target, Action)],
    pub calib: &'a Dataset,
    pub options: &'a RepairOptions,
    pub cancel: &'a Cancel,
    say: &'a mut dyn FnMut(RepairUpdate),
    /// The original until the actions are applied.
    pub model: Model,
    /// Indices that are left of every axis that was cut, by node name and axis (0 rows, 1 columns).
    pub kept: HashMap<(String, usize), Vec<u32>>,
    /// Nodes were cut or removed: there is something that a repair could make up for.
    pub changed: bool,
    /// Masks that are not laid over the model yet, by layer: the re-fit of a language model chooses what they are.
    pub masks: HashMap<String, Sparsity>,
    /// Ranks of layers whose weights are chosen by the re-fit.
    pub ranks: BTreeMap<String, u32>,
    /// Those of all layers, whose factors are in one piece until the end.
    whole: BTreeMap<String, u32>,
    images: Option<Rc<Images>>,
    /// A layer is rounded as soon as it is re-fitted, and by no other stage.
    pub rounds: bool,
    /// Repairs wrote weights that masks were not laid over yet.
    loose: bool,
    /// Weights are rounded, with masks in them: nothing is laid over them any more.
    rounded: bool,
    pub used: RepairUse,
    /// Images that were looked at, in that order.
    pub picked: Vec<usize>,
    /// Repairs that are judged, of those that are to be.
    done: usize,
    pub total: usize,
}

/// Calibration images of repairs, as positions in the set.
pub(super) struct Images {
    /// Those that repairs are fitted on.
    pub fit: Vec<usize>,
    /// Those that judge them, a batch at a time, with the original network's logits.
    pub check: Vec<(Vec<usize>, Tensor)>,
    /// Images at a time.
    pub batch: usize,
}

impl<'a> State<'a> {
    pub fn new(
        original: &'a Model,
        (groups, actions): (&'a [Group], &'a [(Target, Action)]),
        calib: &'a Dataset,
        options: &'a RepairOptions,
        cancel: &'a Cancel,
        say: &'a mut dyn FnMut(RepairUpdate),
    ) -> State<'a> {
        State {
            original,
            groups,
            actions,
            calib,
            options,
            cancel,
            say,
            model: original.clone(),
            kept: HashMap::new(),
            changed: false,
            masks: HashMap::new(),
            ranks: BTreeMap::new(),
            whole: BTreeMap::new(),
            images: None,
            rounds: false,
            loose: false,
            rounded: false,
            used: RepairUse::default(),
            picked: Vec::new(),
            done: 0,
            total: 0,
        }
    }

    /// Puts the actions into effect.
    ///
    /// # Errors
    /// Refused actions.
    pub fn apply(&mut self) -> Result<(), RepairError> {
        let graph = &self.original.graph;
        let learnt = self.options.masks != Masks::Magnitude && self.options.stages.has(Stage::Refit);
        for (target, action) in self.actions.iter().filter(|_| learnt && graph.is_language_model()) {
            let node = graph.by_name(target.name()).map(|id| graph.node(id));
            let Some(node) = node.filter(|n| matches!(n.op, Op::Linear(_)) && graph.sharing(n).is_none()) else {
                continue;
            };
            match (target, action) {
                (Target::Weights(name), Action::Sparsify { sparsity }) if narrow(&node.op) => {
                    self.masks.insert(name.clone(), *sparsity);
                }
                (Target::Weights(name), _) => {
                    self.masks.remove(name);
                }
                _ => {}
            }
        }
        let refitted = |name: &str| {
            let id = graph.by_name(name).filter(|id| !graph.is_language_model() || *id != graph.output);
            let columns = id.and_then(|id| crate::graph::param_shapes(&graph.node(id).op).into_iter().next());
            self.options.stages.has(Stage::Refit)
                && columns.is_some_and(|(_, shape)| shape[1..].iter().product::<usize>() <= WIDEST)
        };
        let later = |(t, a): &(Target, Action)| match (t, a) {
            (Target::Weights(name), Action::Factorise { .. }) => refitted(name),
            (Target::Weights(name), _) => self.masks.contains_key(name),
            _ => false,
        };
        let now: Vec<_> = self.actions.iter().filter(|a| !later(a)).cloned().collect();
        self.loose |= now.len() < self.actions.len();
        self.model = prune::apply(self.original, self.groups, &now)?;
        prune::hold_zeros(&mut self.model, self.actions);
        self.kept = prune::kept_indices(&self.original.graph, self.groups, self.actions)?;
        let (before, after) = (&self.original.graph, &self.model.graph);
        self.whole = prune::ranks(after, self.actions);
        self.ranks = self.whole.iter().filter(|(name, _)| refitted(name)).map(|(n, r)| (n.clone(), *r)).collect();
        self.changed = !(self.kept.is_empty() && self.whole.is_empty())
            || after.output != before.output
            || before.reachable() != after.reachable();
        Ok(())
    }

    /// The images of repairs, picked by the first stage that asks. From then on weights count as repaired.
    ///
    /// # Errors
    /// There are none, they cannot be read, the original cannot be run, cancellation.
    pub fn images(&mut self) -> Result<Rc<Images>, RepairError> {
        if let Some(images) = &self.images {
            return Ok(images.clone());
        }
        if self.calib.is_empty() {
            return Err(RepairError::NoImages(self.calib.card().name));
        }
        let images = Rc::new(Images::pick(self)?);
        let checked: Vec<usize> = images.check.iter().flat_map(|(picks, _)| picks.iter().copied()).collect();
        self.used.fitted = images.fit.len() as u64;
        self.used.checked = checked.len() as u64;
        self.used.checked_on_fitted = checked == images.fit;
        self.picked.extend_from_slice(&images.fit);
        self.picked.extend(checked);
        self.loose = true;
        self.images = Some(images.clone());
        Ok(images)
    }

    /// What runs a part of either network.
    ///
    /// # Errors
    /// What cannot be compiled.
    pub fn runner(&self, part: &Graph, of: (&ParamStore, &Precisions), keep: &[&str]) -> Result<Runner, ExecError> {
        Runner::new(part, of, keep, self.original.graph.is_language_model())
    }

    /// Calibration images in the order that the seed gives them.
    pub fn shuffled(&self) -> Vec<usize> {
        shuffled(self.calib.len(), self.options.seed)
    }

    /// Lays masks over repaired weights: a repair knows nothing of them. Once after the last repair, so that each is judged
    /// by what it can give.
    ///
    /// # Errors
    /// Refused actions.
    pub fn settle(&mut self) -> Result<(), RepairError> {
        if std::mem::take(&mut self.loose) {
            self.model.info.hash = self.model.params.hash();
            if !self.rounded {
                prune::sparsify(&mut self.model, self.groups, self.actions)?;
            }
        }
        Ok(())
    }

    /// Makes two layers of every one that has factors. From then on nodes are not the original's.
    ///
    /// # Errors
    /// Names that are taken.
    pub fn split(&mut self) -> Result<(), RepairError> {
        let ranks = std::mem::take(&mut self.whole);
        if !ranks.is_empty() {
            self.model = prune::split(&self.model, &ranks)?;
        }
        Ok(())
    }

    /// Ranks of layers that are two in the end.
    pub fn in_one_piece(&self) -> impl Iterator<Item = &String> {
        self.whole.keys()
    }

    /// The model as it is, with all masks by magnitude and all factors by the weights alone.
    ///
    /// # Errors
    /// Refused actions.
    pub fn plainly_masked(&self) -> Result<Model, RepairError> {
        let mut model = self.model.clone();
        prune::sparsify(&mut model, self.groups, self.actions)?;
        prune::flatten(&mut model, &self.ranks)?;
        Ok(model)
    }

    /// Weights are rounded from here on, masks included; what is written after that is no weight.
    pub fn rounded(&mut self) {
        (self.rounded, self.loose) = (true, true);
    }

    /// Says that a repair is being tried.
    pub fn trying(&mut self, what: &str) {
        let (done, total) = (self.done, self.total);
        self.progress(done, total, what);
    }

    /// A repair is done with, kept or not, or there was nothing to fit.
    pub fn tried(&mut self) {
        self.done += 1;
    }

    /// Says what a repair gained, by the calibration loss without it and with it; whether it stays.
    pub fn judged(&mut self, name: String, (before, after): (f64, f64), samples: u64, started: Instant) -> bool {
        let (kept, seconds) = (after < before, started.elapsed().as_secs_f64());
        let step = RepairStep { name, loss_before: before, loss_after: after, samples, kept, seconds };
        (self.say)(RepairUpdate::Step(step));
        kept
    }

    /// `done` of `total` of something that is no repair.
    pub fn progress(&mut self, done: usize, total: usize, what: &str) {
        (self.say)(RepairUpdate::Progress { done, total, what: what.to_owned() });
    }

    /// The model, and what was looked at for it.
    ///
    /// # Errors
    /// As [`State::settle`].
    pub fn finish(mut self) -> Result<Model, RepairError> {
        self.settle()?;
        self.split()?;
        self.used.hash = if self.picked.is_empty() { None } else { self.calib.seen(self.picked) };
        (self.say)(RepairUpdate::Used(self.used));
        Ok(self.model)
    }
}

/// The calibration images, of `len`, that say whether repairs stay and are not fitted on; of few or large images fewer of them are looked at.
pub fn judging(len: usize, options: &RepairOptions) -> Vec<usize> {
    let order = shuffled(len, options.seed);
    order[len - options.check_images.min(len / 5)..].to_vec()
}

fn shuffled(len: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    order
}

/// Few enough inputs that sums over them are held in memory.
fn narrow(op: &Op) -> bool {
    matches!(op, Op::Linear(l) if l.in_features <= WIDEST && l.out_features <= 4 * WIDEST)
}

impl Images {
    fn pick(state: &State) -> Result<Images, RepairError> {
        let State { original, model, calib, options, cancel, .. } = state;
        // Logits of a language model are fifty times as wide as all else, and only those that judge have any.
        let text = original.graph.is_language_model();
        let bytes = |shape: &[usize]| shape.iter().product::<usize>() * 4;
        let logits = bytes(&shapes(&original.graph)?[original.graph.output.index()]);
        let widest = |g: &Graph| -> Result<usize, RepairError> {
            let shapes = shapes(g)?;
            let held = boundaries(g).into_iter().filter(|b| !text || *b != g.output);
            Ok(held.map(|b| bytes(&shapes[b.index()])).max().unwrap_or(1))
        };
        let each = (widest(&original.graph)? + widest(&model.graph)?).max(1);
        let room = (options.memory / each).max(8);
        let mut order = state.shuffled();
        let judging = if text { (options.memory / logits.max(1)).max(2) } else { room / 5 };
        let check = options.check_images.min(order.len() / 5).min(room / 5).min(judging);
        if text {
            // Windows beside one another are of one document: those that judge are the text's last, and none of theirs is fitted on.
            let last = order.len() - check;
            order.sort_by_key(|i| *i >= last);
        }
        let fit = options.images.min(order.len() - check).min(room - check).max(1);
        let (check, fit) = (&order[order.len() - check..], order[..fit].to_vec());
        // A handful of images must serve both ends.
        let check = if check.is_empty() { &fit } else { check };
        let batch = if text { ((64 << 20) / each.max(logits)).max(1) } else { ((64 << 20) / each).clamp(4, 128) };
        let (check, fit) = (calib.parts(check, batch), calib.parts(&fit, batch).concat());
        let mut whole = state.runner(&original.graph, (&original.params, &original.precision), &[])?;
        let answer = |picks: Vec<usize>| -> Result<(Vec<usize>, Tensor), RepairError> {
            cancel.check()?;
            let (x, _) = calib.batch(&picks, &original.info.preprocess)?;
            let answer = whole.run(&x)?.0;
            Ok((picks, answer))
        };
        let check = check.into_iter().map(answer).collect::<Result<_, _>>()?;
        Ok(Images { fit, check, batch })
    }
}
