//! Healing: the compressed network is trained towards the original's answers, end to end, on calibration images.
//!
//! Every so often the averaged weights are judged on images that are held back, moved and laid over one another as in training: calibration images
//! are mostly images that the original was trained on, and a network may remember those and fail on new ones; the best so far are what comes out, so that a healing never
//! leaves the network worse there than it found it. Not here: what is done with the result (`host`), re-fits without gradients (`recover`).
//! Invariants: the result is a function of both networks, the images, the recipe and the kernels; a batch is cut into parts of [`PART`] images
//! whatever the threads, and their gradients are added in their order.

use super::checkpoint::{self, Told};
use super::error::TrainError;
use super::features::Features;
use super::healing::{Healing, Length, Objective};
use super::loss::{self, Aims};
use super::pulse::{LayerPulse, Pulse};
use super::pupil::{Pupil, is_convolutional};
use super::{augment, augment::Views};
use crate::data::Dataset;
use crate::exec::candle::Mode;
use crate::exec::tape::{Ready, Tape};
use crate::exec::{Cancel, CompileOptions, Plan, Session};
use crate::graph::{Node, ParamRole, WeightFormat};
use crate::model::Model;
use candle_core::{Device, Tensor};
use rand::seq::SliceRandom;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Images of a part of a batch: batch norms see so many together, and a thread works on them alone.
const PART: usize = 32;

/// Images that are held in memory once they are prepared, and answers, in bytes.
const HELD: usize = 1 << 30;

/// The loss of answers that are no numbers.
const WORST: f64 = 1e30;

/// Steps between two looks at the held-back images, as a part of all.
const LOOKS: u32 = 24;

/// Steps that are tried to know how long one takes.
const TRIED: usize = 5;

/// What is healed, by what, on what.
#[derive(Debug, Clone, Copy)]
pub struct Patient<'a> {
    pub student: &'a Model,
    pub teacher: &'a Model,
    /// Layers whose zero weights stay zero.
    pub masked: &'a BTreeSet<String>,
    /// What is trained on: these of the set.
    pub images: &'a Dataset,
    pub fit: &'a [usize],
    /// What judges: these of that set, which are none of the others, and on which the student was not fitted either.
    pub judges: &'a Dataset,
    pub held_back: &'a [usize],
}

/// How it goes.
#[derive(Debug, Clone, PartialEq)]
pub enum HealUpdate {
    /// So many steps of all; the loss of the last, before it, and images a second.
    Step { step: u32, steps: u32, loss: f64, rate: f64 },
    /// A look at the held-back images.
    Judged(Look),
    /// What the layers' weights and gradients do, a few times a second and after the last step.
    Layers { step: u32, layers: Arc<[LayerPulse]> },
    /// Going on from where a kill left it.
    Resumed { step: u32, looks: Vec<Look> },
    /// Something did not go as it should, in words.
    Warned(String),
}

/// What held-back images say of the averaged weights.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Look {
    pub step: u32,
    /// What the recipe makes small: divergence from the original's answers at its temperature, times its square, which repairs are judged by,
    /// too; of labels cross-entropy, and half of each of both.
    pub loss: f64,
    /// Share of images whose class is the original's.
    pub agreement: f64,
}

/// How a healing went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Course {
    /// As it was asked for, with where it was stopped.
    pub healing: Healing,
    /// Images that were trained on, and others that judged.
    pub images: u64,
    pub held_back: u64,
    /// Looks in their order, the first before any step.
    pub looks: Vec<Look>,
    /// The one whose weights came out.
    pub best: Look,
}

/// A healed network.
#[derive(Debug, Clone)]
pub struct Healed {
    pub model: Model,
    pub course: Course,
}

/// Whether a network can be healed, and if not why.
///
/// # Errors
/// Words.
pub fn can_heal(model: &Model) -> Result<(), String> {
    if model.graph.is_language_model() || !model.graph.input_shape().is_ok_and(|s| s.len() == 3) {
        return Err(
            "healing trains classifiers of images; of language models only repairs without training are here".into()
        );
    }
    Ok(())
}

/// Everything that stays the same from step to step.
struct Clinic<'a> {
    of: Patient<'a>,
    how: &'a Healing,
    /// The original, compiled.
    teacher: Plan,
    tape: Tape,
    /// What is drawn to the original's beside the answers, where that can be.
    features: Option<Features>,
    classes: usize,
    image: [usize; 3],
    /// Prepared images that are trained on, where memory holds them, and their labels.
    held: Option<(Vec<f32>, Vec<u32>)>,
    judges: Vec<Judge>,
}

/// Views of held-back images, and what is wanted of them.
struct Judge {
    x: Tensor,
    /// The original's.
    answers: Vec<f32>,
    labels: Vec<u32>,
    /// Of what lies over each image, and the first one's share.
    over: Option<(Vec<u32>, f32)>,
}

/// Where a healing keeps how far it is, so that a kill costs little.
#[derive(Debug, Clone, Copy)]
pub struct Keep<'a> {
    pub path: &'a Path,
    pub every: Duration,
}

impl<'a> Keep<'a> {
    /// As often as a minute of work allows.
    pub fn at(path: &'a Path) -> Keep<'a> {
        Keep { path, every: Duration::from_secs(30) }
    }
}

/// Heals `of` as `how` says. `enough` ends it after the step that is under way, with the best so far; `cancel` leaves it, to be gone on with from
/// what `keep` kept. A loss that is no number ends it with the best so far, and where nothing can be kept it goes on without: both are said.
///
/// # Errors
/// What is no classifier of images; too few images; images that cannot be read; a loss that is no number before anything got better;
/// cancellation.
pub fn heal(
    of: Patient<'_>,
    how: &Healing,
    keep: Option<Keep<'_>>,
    enough: &Cancel,
    cancel: &Cancel,
    say: &mut dyn FnMut(HealUpdate),
) -> Result<Healed, TrainError> {
    let clinic = Clinic::open(of, how, cancel)?;
    let mut teacher = Original::of(&clinic);
    let pupil = Pupil::of(of.student, how, of.masked)?;
    let mut pulse = Pulse::of(of.student, &pupil);
    let looks = vec![clinic.look(&pupil)?];
    let mut so_far = SoFar { best: pupil.clone(), pupil, looks, found: 0 };
    say(HealUpdate::Judged(so_far.looks[0]));
    let key = clinic.key();
    if let Some(told) = keep.and_then(|k| checkpoint::load(k.path, &key, &mut so_far.pupil, &mut so_far.best)) {
        (so_far.looks, so_far.found) = (told.looks(), told.best);
        say(HealUpdate::Resumed { step: told.step, looks: so_far.looks.clone() });
    }
    let end = how.stopped.unwrap_or(how.steps).min(how.steps);
    let every = (how.steps / LOOKS).max(1);
    let (mut stopped, mut keep, mut saved) = (how.stopped, keep, Instant::now());
    while so_far.pupil.step < end {
        if enough.is_cancelled() {
            stopped = Some(so_far.pupil.step);
            break;
        }
        cancel.check()?;
        let began = Instant::now();
        let mut on = || {
            let loss = clinic.step(&mut so_far.pupil, &mut teacher, &mut pulse)?;
            let rate = how.batch as f64 / began.elapsed().as_secs_f64().max(1e-9);
            let step = so_far.pupil.step;
            say(HealUpdate::Step { step, steps: how.steps, loss, rate });
            pulse.due().into_iter().for_each(|layers| say(HealUpdate::Layers { step, layers }));
            let due = so_far.pupil.step.is_multiple_of(every) || so_far.pupil.step == end;
            if due { clinic.judge(&mut so_far, say) } else { Ok(()) }
        };
        match on() {
            // What was good before stays.
            Err(e @ TrainError::Diverged { .. }) if so_far.looks[so_far.found].step > 0 => {
                say(HealUpdate::Warned(format!("{e}; the best weights so far are kept")));
                let stopped = Some(so_far.looks[so_far.found].step);
                return clinic.ended(so_far, stopped);
            }
            step => step?,
        }
        if let Some(k) = keep.filter(|k| saved.elapsed() >= k.every) {
            if let Err(e) = so_far.save(k.path, &key) {
                say(HealUpdate::Warned(format!("{e}; it goes on, but a kill would cost all of it")));
                keep = None;
            }
            saved = Instant::now();
        }
    }
    if so_far.looks.last().is_some_and(|l| l.step < so_far.pupil.step) {
        clinic.judge(&mut so_far, say)?;
    }
    pulse.now().into_iter().for_each(|layers| say(HealUpdate::Layers { step: so_far.pupil.step, layers }));
    clinic.ended(so_far, stopped)
}

/// Seconds of `n` steps, whose result is forgotten.
///
/// # Errors
/// As [`heal`].
pub fn paced(of: Patient<'_>, how: &Healing, n: usize, cancel: &Cancel) -> Result<Vec<f64>, TrainError> {
    Ok(Clinic::open(of, how, cancel)?.tried(n, cancel)?.0.into_iter().map(|(step, _)| step).collect())
}

/// The steps that a healing of this length has; for a time, those that fit into it at the pace of a few steps that are tried and forgotten, the
/// looks at held-back images included.
///
/// # Errors
/// As [`heal`].
pub fn steps(of: Patient<'_>, how: &Healing, length: Length, cancel: &Cancel) -> Result<u32, TrainError> {
    let each = epoch(of.fit.len(), how.batch);
    let seconds = match length {
        Length::Steps(n) => return Ok(n),
        Length::Epochs(n) => return Ok((n * f64::from(each)).round().clamp(1.0, f64::from(u32::MAX)) as u32),
        Length::Seconds(s) => s,
    };
    let began = Instant::now();
    let clinic = Clinic::open(of, how, cancel)?;
    let (took, pupil) = clinic.tried(TRIED, cancel)?;
    let looked = Instant::now();
    clinic.look(&pupil)?;
    let look = looked.elapsed().as_secs_f64();
    // The first step finds cold caches.
    let mean = |of: fn(&(f64, f64)) -> f64| took[1..].iter().map(of).sum::<f64>() / (TRIED - 1) as f64;
    let (asked, own) = (mean(|(_, asked)| *asked), mean(|(step, asked)| step - asked).max(1e-6));
    // What this took is of the time that was given, and the healing opens the images again.
    let left = seconds - 2.0 * began.elapsed().as_secs_f64() - look * f64::from(LOOKS + 1);
    let takes = |steps: u32| f64::from(steps) * own + f64::from(views(steps, each, how.repeats)) * asked;
    let (mut fits, mut too_many) = (1, (left / own).clamp(2.0, f64::from(u32::MAX)) as u32);
    while too_many - fits > 1 {
        let middle = fits + (too_many - fits) / 2;
        *(if takes(middle) <= left { &mut fits } else { &mut too_many }) = middle;
    }
    Ok(fits)
}

/// Batches that differ among the first `steps`, of epochs of `each` that come `repeats` times in a row.
fn views(steps: u32, each: u32, repeats: u32) -> u32 {
    let (round, rest) = (each.saturating_mul(repeats.max(1)), each);
    steps / round * each + (steps % round).min(rest)
}

/// The network that is learnt from, with what it said of the views of the present round.
struct Original {
    session: Session,
    /// What is told beside the answers.
    features: Option<String>,
    /// By batch of the round.
    said: std::collections::HashMap<u32, Arc<Said>>,
    round: u32,
    /// Seconds that it took in all.
    took: f64,
}

/// What the original makes of a batch.
struct Said {
    /// `[n, classes]`.
    answers: Vec<f32>,
    /// `[n, …]`, channels last; nothing where they are not asked for.
    features: Vec<f32>,
}

impl Original {
    fn of(clinic: &Clinic) -> Original {
        let features = clinic.features.as_ref().map(|f| f.theirs.clone());
        Original { session: clinic.teacher.session(), features, said: Default::default(), round: 0, took: 0.0 }
    }

    /// Its answers to `x`, which is batch `batch` of round `round`.
    fn answers(&mut self, x: &Tensor, (round, batch): (u32, u32)) -> Result<Arc<Said>, TrainError> {
        if self.round != round {
            (self.round, self.said) = (round, Default::default());
        }
        if let Some(said) = self.said.get(&batch) {
            return Ok(Arc::clone(said));
        }
        let began = Instant::now();
        let said = Arc::new(said(&mut self.session, x, self.features.as_deref())?);
        self.took += began.elapsed().as_secs_f64();
        if (self.said.len() + 1) * (said.answers.len() + said.features.len()) * 4 <= HELD {
            self.said.insert(batch, Arc::clone(&said));
        }
        Ok(said)
    }
}

/// What a network answers to `x`, and the values of one of its nodes besides.
fn said(session: &mut Session, x: &Tensor, features: Option<&str>) -> Result<Said, TrainError> {
    let (answers, found) = session.capture(x, features.as_slice())?;
    let values = |t: &Tensor| match t.rank() {
        4 => t.permute((0, 2, 3, 1))?.flatten_all()?.to_vec1::<f32>(),
        _ => t.flatten_all()?.to_vec1::<f32>(),
    };
    let features = found.values().next().map(values).transpose()?.unwrap_or_default();
    Ok(Said { answers: answers.flatten_all()?.to_vec1::<f32>()?, features })
}

/// Layers that were masked, where nobody says which: those with at least a fifth of zeros among weights that are stored as they are.
pub fn masked(model: &Model) -> BTreeSet<String> {
    let zeros = |node: &&Node| {
        let param = node.param(ParamRole::Weight).and_then(|name| model.params.get(name).ok());
        let plain = param.filter(|p| p.is_in(WeightFormat::F32));
        plain.is_some_and(|p| p.values().iter().filter(|v| **v == 0.0).count() * 5 >= p.numel().max(1))
    };
    let layers = model.graph.live().map(|(_, n)| n).filter(|n| n.op.is_conv_or_linear());
    layers.filter(zeros).map(|n| n.name.clone()).collect()
}

/// The usual recipe for a network.
pub fn usual(model: &Model, steps: u32, seed: u64) -> Healing {
    Healing::usual(steps, is_convolutional(&model.graph), seed)
}

/// Steps that go through `images` images once.
fn epoch(images: usize, batch: usize) -> u32 {
    (images / batch.max(1)).max(1) as u32
}

impl<'a> Clinic<'a> {
    fn open(of: Patient<'a>, how: &'a Healing, cancel: &Cancel) -> Result<Clinic<'a>, TrainError> {
        can_heal(of.student).map_err(TrainError::Unfit)?;
        if !(how.features >= 0.0 && how.features.is_finite()) {
            return Err(TrainError::Unfit("features count something or nothing: a weight of 0 or more".into()));
        }
        if how.batch == 0 || how.steps == 0 || !(how.rate > 0.0 && how.rate.is_finite()) || how.temperature <= 0.0 {
            return Err(TrainError::Unfit(
                "a healing needs steps, a batch, a rate and a temperature above zero".into(),
            ));
        }
        if of.fit.len() < 2 || of.held_back.is_empty() {
            let why = format!(
                "{} images are too few to heal on; hint: a few hundred, not of the evaluation set",
                of.fit.len() + of.held_back.len()
            );
            return Err(TrainError::Unfit(why));
        }
        let shape = of.student.graph.input_shape()?;
        let &[c, h, w] = &shape[..] else { return Err(TrainError::Unfit("the network takes no images".into())) };
        let prep = &of.student.info.preprocess;
        let held = (of.fit.len() * c * h * w * 4 <= HELD).then(|| -> Result<_, TrainError> {
            let (x, t) = of.images.batch(of.fit, prep)?;
            Ok((x.flatten_all()?.to_vec1::<f32>()?, t.classes().to_vec()))
        });
        let held = held.transpose()?;
        let wanted = how.features * how.objective.shares().0 > 0.0;
        let mut features = if wanted { Features::of(&of.student.graph, &of.teacher.graph) } else { None };
        let keep = features.as_ref().map(|f| f.theirs.as_str());
        let teacher = Plan::of(of.teacher, &CompileOptions::default().keeping(keep))?;
        let mut original = teacher.session();
        let mut judges = Vec::new();
        for (k, picks) in of.held_back.chunks(how.batch.clamp(1, 128)).enumerate() {
            cancel.check()?;
            let (x, targets) = of.judges.batch(picks, prep)?;
            let (x, labels) = (x.flatten_all()?.to_vec1::<f32>()?, targets.classes().to_vec());
            // Of a round that there is none of.
            let views = Healing { mixup: true, ..how.clone() };
            let Views { images, mixed } = augment::views(x, [c, h, w], &views, (u32::MAX, k as u32), PART);
            let x = Tensor::from_vec(images, (picks.len(), c, h, w), &Device::Cpu)?;
            let Said { answers, features: values } =
                said(&mut original, &x, features.as_ref().map(|f| f.theirs.as_str()))?;
            if let Some(f) = features.as_mut().filter(|_| k == 0) {
                f.measure(&values);
            }
            let over = mixed.map(|(other, share)| (other.iter().map(|&i| labels[i]).collect(), share));
            judges.push(Judge { x, answers, labels, over });
        }
        let tape = Tape::of(&of.student.graph)?;
        let classes = judges.first().map_or(0, |j| j.answers.len() / j.labels.len().max(1));
        Ok(Clinic { of, how, teacher, tape, features, classes, image: [c, h, w], held, judges })
    }

    /// What a checkpoint has to be of.
    fn key(&self) -> String {
        let how = Healing { stopped: None, ..self.how.clone() };
        let mut hash = blake3::Hasher::new();
        for part in [&self.of.student.info.hash, &self.of.teacher.info.hash, &self.of.student.params.hash()] {
            hash.update(part.as_bytes());
        }
        hash.update(
            format!(
                "{how:?} {:?} {:?} {:?} {}",
                self.of.held_back,
                self.of.fit,
                self.of.masked,
                self.of.images.card().name
            )
            .as_bytes(),
        );
        hash.update(&crate::exec::KERNELS.to_le_bytes());
        hash.finalize().to_hex().to_string()
    }

    /// Which batch of which round a step sees: a round is all batches, as often as views are repeated, each time in another order.
    fn place(&self, step: u32) -> (u32, u32) {
        let each = epoch(self.of.fit.len(), self.how.batch.min(self.of.fit.len()));
        let time = step / each;
        let mut order: Vec<u32> = (0..each).collect();
        order.shuffle(&mut augment::lots(self.how.seed, time, 1));
        (time / self.how.repeats.max(1), order[(step % each) as usize])
    }

    /// The images of a batch: every round all of them in another order.
    fn picks(&self, (round, batch): (u32, u32)) -> Vec<usize> {
        let n = self.how.batch.min(self.of.fit.len());
        let mut order: Vec<usize> = (0..self.of.fit.len()).collect();
        order.shuffle(&mut augment::lots(self.how.seed, round, 0));
        order[batch as usize * n..][..n].to_vec()
    }

    /// Prepared images at places of `fit`, and their labels.
    fn fetch(&self, picks: &[usize]) -> Result<(Vec<f32>, Vec<u32>), TrainError> {
        let one = self.image.iter().product::<usize>();
        if let Some((pixels, labels)) = &self.held {
            let images = picks.iter().flat_map(|&i| &pixels[i * one..][..one]).copied().collect();
            return Ok((images, picks.iter().map(|&i| labels[i]).collect()));
        }
        let picks: Vec<usize> = picks.iter().map(|&i| self.of.fit[i]).collect();
        let (x, t) = self.of.images.batch(&picks, &self.of.student.info.preprocess)?;
        Ok((x.flatten_all()?.to_vec1::<f32>()?, t.classes().to_vec()))
    }

    /// One step; the loss before it.
    fn step(&self, pupil: &mut Pupil, teacher: &mut Original, pulse: &mut Pulse) -> Result<f64, TrainError> {
        let place = self.place(pupil.step);
        let picks = self.picks(place);
        let n = picks.len();
        let (images, labels) = self.fetch(&picks)?;
        let Views { images, mixed } = augment::views(images, self.image, self.how, place, PART);
        let [c, h, w] = self.image;
        let x = Tensor::from_vec(images, (n, c, h, w), &Device::Cpu)?;
        let said = match self.how.objective {
            Objective::Labels => Arc::new(Said { answers: Vec::new(), features: Vec::new() }),
            _ => teacher.answers(&x, place)?,
        };
        let plain = |at: usize| mixed.is_none() || augment::stays_plain(at / PART, self.how);
        let over =
            mixed.as_ref().map(|(other, share)| (other.iter().map(|&i| labels[i]).collect::<Vec<u32>>(), *share));
        let weights = pupil.weights(false)?;
        let ready = self.tape.ready(&weights)?;
        let mode = if self.how.stored_norms { Mode::Eval } else { Mode::Batch };
        let part = |at: usize| {
            let m = PART.min(n - at);
            let trace = ready.forward(&x.narrow(0, at, m)?, mode)?;
            let k = self.classes;
            let aims = Aims {
                answers: said.answers.get(at * k..(at + m) * k).unwrap_or_default(),
                labels: &labels[at..at + m],
                mixed: over.as_ref().filter(|_| !plain(at)).map(|(o, share)| (&o[at..at + m], *share)),
            };
            // Told is the loss of answers, which held-back images are judged by too.
            let (loss, seed) = loss::of(trace.output(&self.tape), k, &aims, self.how, n);
            let mut seeds = vec![(self.of.student.graph.output, seed)];
            if let Some((f, own)) = self.features.as_ref().and_then(|f| Some((f, trace.value(&self.tape, f.own)?))) {
                let theirs = &said.features[at * f.size..(at + m) * f.size];
                let weight = self.how.features * self.how.objective.shares().0;
                seeds.push((f.own, f.pull(own, theirs, weight, n)));
            }
            // What images laid over one another look like is not what the network will see.
            let seen = if plain(at) { trace.statistics.clone() } else { Default::default() };
            let grads = ready.backward(trace, seeds, false)?.params;
            Ok((loss, seen, grads))
        };
        // A last part of one image has no statistics.
        let starts: Vec<usize> = (0..n).step_by(PART).filter(|at| n - at > 1).collect();
        let parts = starts.into_par_iter().map(part).collect::<Result<Vec<_>, TrainError>>()?;
        pulse.parts(pupil, &parts.iter().map(|(_, _, grads)| grads).collect::<Vec<_>>(), (PART, n));
        let (mut loss, mut sum, mut seen) = (0.0, std::collections::HashMap::<String, Vec<f32>>::new(), Vec::new());
        for (l, s, grads) in parts {
            loss += l;
            seen.push(s);
            for (name, g) in grads {
                match sum.get_mut(&name) {
                    Some(have) => have.iter_mut().zip(&g).for_each(|(a, b)| *a += b),
                    None => drop(sum.insert(name, g)),
                }
            }
        }
        if !loss.is_finite() || sum.values().any(|g| g.iter().any(|v| !v.is_finite())) {
            return Err(TrainError::Diverged { step: pupil.step as usize });
        }
        pulse.step(pupil, &sum, n);
        pupil.see(&seen, self.how);
        pupil.update(&sum, self.how);
        Ok(loss)
    }

    /// What held-back images say of the averaged weights.
    fn look(&self, pupil: &Pupil) -> Result<Look, TrainError> {
        let weights = pupil.weights(true)?;
        let ready = self.tape.ready(&weights)?;
        let total = self.of.held_back.len();
        let mut sums = (0f64, 0usize);
        for judge in &self.judges {
            let (loss, same) = self.judged(&ready, judge, total)?;
            sums = (sums.0 + loss, sums.1 + same);
        }
        // What is no number is worse than anything, and can be written down.
        let loss = if sums.0.is_finite() { sums.0 } else { WORST };
        Ok(Look { step: pupil.step, loss, agreement: sums.1 as f64 / total.max(1) as f64 })
    }

    /// The part that some views have in the loss of `total`, and how many have the original's class.
    fn judged(&self, ready: &Ready<'_>, judge: &Judge, total: usize) -> Result<(f64, usize), TrainError> {
        let (n, k) = (judge.labels.len(), self.classes);
        let top = |row: &[f32]| (0..row.len()).fold(0, |m, i| if row[i] > row[m] { i } else { m });
        let starts: Vec<usize> = (0..n).step_by(PART).collect();
        let part = |at: usize| {
            let m = PART.min(n - at);
            let trace = ready.forward(&judge.x.narrow(0, at, m)?, Mode::Eval)?;
            let (y, answers) = (trace.output(&self.tape), &judge.answers[at * k..(at + m) * k]);
            let over = judge.over.as_ref().filter(|_| !augment::stays_plain(at / PART, self.how));
            let mixed = over.map(|(of, share)| (&of[at..at + m], *share));
            let aims = Aims { answers, labels: &judge.labels[at..at + m], mixed };
            let (loss, _) = loss::of(y, k, &aims, self.how, total);
            let same = y.chunks_exact(k).zip(answers.chunks_exact(k)).filter(|(y, a)| top(y) == top(a)).count();
            Ok((loss, same))
        };
        let parts = starts.into_par_iter().map(part).collect::<Result<Vec<_>, TrainError>>()?;
        Ok(parts.into_iter().fold((0.0, 0), |a, b| (a.0 + b.0, a.1 + b.1)))
    }

    fn judge(&self, so_far: &mut SoFar, say: &mut dyn FnMut(HealUpdate)) -> Result<(), TrainError> {
        let look = self.look(&so_far.pupil)?;
        say(HealUpdate::Judged(look));
        so_far.looks.push(look);
        if look.loss < so_far.looks[so_far.found].loss {
            so_far.found = so_far.looks.len() - 1;
            so_far.best.clone_from(&so_far.pupil);
        }
        Ok(())
    }

    /// The seconds of `n` steps, with those that the original took of them, and where they led.
    fn tried(&self, n: usize, cancel: &Cancel) -> Result<(Vec<(f64, f64)>, Pupil), TrainError> {
        let mut teacher = Original::of(self);
        let mut pupil = Pupil::of(self.of.student, self.how, self.of.masked)?;
        let mut pulse = Pulse::of(self.of.student, &pupil);
        let mut took = Vec::new();
        for _ in 0..n {
            cancel.check()?;
            let (began, before) = (Instant::now(), teacher.took);
            self.step(&mut pupil, &mut teacher, &mut pulse)?;
            took.push((began.elapsed().as_secs_f64(), teacher.took - before));
        }
        Ok((took, pupil))
    }

    /// The best network that there was.
    fn ended(&self, so_far: SoFar, stopped: Option<u32>) -> Result<Healed, TrainError> {
        let best = so_far.looks[so_far.found];
        let mut model = self.of.student.clone();
        if best.step > 0 {
            model.params = so_far.best.kept(&self.of.student.params)?;
            model.info.hash = model.params.hash();
        }
        let (images, held_back) = (self.of.fit.len() as u64, self.of.held_back.len() as u64);
        let healing = Healing { stopped, ..self.how.clone() };
        Ok(Healed { model, course: Course { healing, images, held_back, looks: so_far.looks, best } })
    }
}

/// Where a healing stands.
struct SoFar {
    pupil: Pupil,
    best: Pupil,
    looks: Vec<Look>,
    /// The look at `best`.
    found: usize,
}

impl SoFar {
    fn save(&mut self, path: &Path, key: &str) -> Result<(), TrainError> {
        let told = Told::of(key, self.pupil.step, &self.looks, self.found);
        checkpoint::save(path, &told, &mut self.pupil, &mut self.best)
    }
}

#[cfg(test)]
mod tests;
