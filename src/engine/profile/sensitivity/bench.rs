//! The untouched model with its calibration batches, and variants of it run from the first node that they change.
//!
//! A language model's rows are asked one in several ([`Task::every`]): a large vocabulary's logits and their comparison take longer than
//! the layers before them.

use super::refit::{self, Refit};
use super::{BROKEN, SensOptions, ToScan};
use crate::data::Dataset;
use crate::exec::{Cancel, CompileOptions, Every, Live, Plan, Session, goes_alone, rows};
use crate::files::{Cache, rounded};
use crate::graph::{Graph, NodeId, op::Dim};
use crate::model::Model;
use crate::profile::{ProfileError, Result, SensCurve, SensPoint, SensTarget};
use crate::prune::{self, Action, Group, Target};
use crate::task::{Targets, Task, TaskError};
use candle_core::{DType, Device, Tensor};
use std::sync::Arc;

/// Items below which the work aimed at may be exceeded, as a multiple of the fewest that a scan uses ([`Task::fewest`]).
const WANTED: usize = 4;
/// Bytes of Gram matrices held at once.
const GRAM_BYTES: usize = 384 << 20;
/// Rows that must be left of an item to ask only one in several.
const WORTH: usize = 16;

/// Items that run at once.
pub(super) struct Batch {
    pub x: Tensor,
    pub logits: Tensor,
    y: Targets,
}

/// The untouched model with its calibration batches, ready to compare variants with.
pub(super) struct Bench<'a> {
    pub model: &'a Model,
    groups: &'a [Group],
    options: &'a SensOptions,
    cancel: &'a Cancel,
    compile: CompileOptions,
    plan: Plan,
    /// Inputs, what the untouched model says of them (of one row in `every`), and what is right.
    pub batches: Vec<Batch>,
    /// Of an item's rows, one in so many is computed and compared.
    every: usize,
    /// What re-fits are fitted on.
    pub fit: Vec<(Tensor, Targets)>,
    /// There were too few images to keep `fit` apart from `batches`.
    pub shared: bool,
    task: &'a dyn Task,
    temperature: f64,
    pub images: usize,
    pub loss: f64,
    pub score: f64,
    /// Hash over the evidence.
    seen: String,
    /// Hash over the images used.
    data: String,
}

impl<'a> Bench<'a> {
    pub fn new(
        model: &'a Model,
        groups: &'a [Group],
        calib: &'a Dataset,
        options: &'a SensOptions,
        to_scan: &[ToScan],
        cancel: &'a Cancel,
    ) -> Result<Bench<'a>> {
        if calib.is_empty() {
            return Err(ProfileError::NoImages);
        }
        let (device, as_stored) = (options.device.clone(), model.graph.is_language_model());
        let compile = CompileOptions { device, threads: options.threads, as_stored, ..CompileOptions::default() };
        let every = every(model, calib.task());
        let plan = Plan::of(&free(model, every), &compile)?;
        let prep = &model.info.preprocess;
        let fewest = calib.task().fewest();
        let images = images_for((model, every), to_scan, options, fewest)?;
        // Scored and fitted ones in turns, so that both are spread over the set alike.
        let set = calib.take(2 * images);
        let shared = set.len() < 2 * fewest.min(images);
        let part = |odd: usize| -> Vec<usize> {
            let all = (0..set.len()).filter(|i| shared || i % 2 == odd);
            all.take(images).collect()
        };
        let (scored, fitted) = (part(0), part(1));
        let images = scored.len();
        let mut hash = blake3::Hasher::new();
        let read = |picks: &[usize], hash: &mut blake3::Hasher| -> Result<(Tensor, Targets)> {
            cancel.check()?;
            let (x, y) = set.batch(picks, prep)?;
            // Token ids are whole numbers that `f32` has.
            for v in x.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()? {
                hash.update(&v.to_le_bytes());
            }
            Ok((x, y))
        };
        let mut batches = Vec::new();
        let task = calib.task();
        let mut scorer = task.scorer(0);
        let mut session = plan.session();
        for picks in set.parts(&scored, options.batch) {
            let (x, y) = read(&picks, &mut hash)?;
            for i in 0..y.len() {
                hash.update(&y.bytes(i)?);
            }
            let logits = session.run(&x)?.to_device(&Device::Cpu)?;
            let (logits, y) = match y {
                Targets::Values(next) if every > 1 => (rows(&logits, every)?, Targets::Values(rows(&next, every)?)),
                y => (logits, y),
            };
            scorer.add(&logits, &y)?;
            batches.push(Batch { x, logits, y });
        }
        let fitted = set.parts(if options.refit { &fitted } else { &[] }, options.batch);
        let fit = fitted.iter().map(|picks| read(picks, &mut hash)).collect::<Result<_, _>>()?;
        let m = scorer.scored().metrics;
        let temperature = temperature(task, &batches.iter().map(|b| &b.logits).collect::<Vec<_>>())?;
        Ok(Bench {
            model,
            groups,
            options,
            cancel,
            compile,
            plan,
            batches,
            every,
            fit,
            shared,
            task,
            temperature,
            images,
            loss: m.loss,
            score: m.score,
            seen: options.evidence.as_ref().map(|e| e.hash()).unwrap_or_default(),
            data: hash.finalize().to_hex().to_string(),
        })
    }

    pub fn key(&self, t: &ToScan) -> String {
        let precision = serde_json::to_string(&self.model.precision).unwrap_or_default();
        let rows = if self.every > 1 { format!(" rows {}", self.every) } else { String::new() };
        format!(
            "{} {precision} {} {:?} from {} {:?} by {} {} refit {} on {:?}{rows}",
            self.model.info.hash,
            self.data,
            t.target,
            t.first.index(),
            t.ratios,
            self.options.method.label(),
            self.seen,
            self.options.refit,
            self.options.device.location()
        )
    }

    /// The values before `first`, by batch: from `before`, those of an earlier place, where there are any. Each takes its place, so that
    /// there are not two of all at once.
    pub fn lives(&self, first: NodeId, before: Vec<Live>) -> Result<Vec<Live>> {
        let name = &self.model.graph.node(first).name;
        let Some(cut) = self.plan.cut_before(name) else { return Ok(Vec::new()) };
        let mut session = self.plan.session();
        let mut before = before.into_iter();
        self.batches
            .iter()
            .map(|b| {
                self.cancel.check()?;
                Ok(match before.next() {
                    Some(live) => session.run_on(&live, &cut)?,
                    None => session.run_to(&b.x, &cut)?,
                })
            })
            .collect()
    }

    /// Re-fits for as many of the coming groups as memory allows, the first one always.
    pub fn refits(&self, coming: &[ToScan], cache: &Cache) -> Result<Vec<(String, Refit)>> {
        let mut wanted: Vec<&Group> = Vec::new();
        let mut bytes = 0;
        for t in coming {
            let SensTarget::Group(id) = &t.target else { continue };
            let Some(g) = self.groups.iter().find(|g| &g.id == id) else { continue };
            let need = refit::bytes(&self.model.graph, g);
            let known = cache.get::<SensCurve>("sense", &self.key(t)).is_some();
            if known && !wanted.is_empty() {
                continue;
            }
            if !wanted.is_empty() && bytes + need > GRAM_BYTES {
                break;
            }
            bytes += need;
            wanted.push(g);
        }
        refit::gather(self.model, &wanted, &self.fit, &self.compile, self.cancel)
    }

    pub fn curve(&self, t: &ToScan, refit: Option<&Refit>, lives: &[Live]) -> Result<SensCurve> {
        let mut points = Vec::new();
        for &ratio in &t.ratios {
            self.cancel.check()?;
            let variant = self.variant(&t.target, ratio, refit)?;
            let session = Plan::of(&free(&variant, self.every), &self.compile)?.session();
            // A layer in few bits gets the inputs that it is rounded for.
            let after = match &t.target {
                SensTarget::Layer(name, _) => self.model.graph.by_name(name),
                _ => None,
            };
            points.push(self.compare(ratio, session, lives, after)?);
        }
        Ok(SensCurve { target: t.target.clone(), points, images: self.images })
    }

    fn variant(&self, target: &SensTarget, ratio: f64, refit: Option<&Refit>) -> Result<Model> {
        let action = match target {
            SensTarget::Layer(l, p) => {
                let mut changed = self.model.clone();
                changed.precision.set(l.clone(), *p);
                return Ok(changed);
            }
            SensTarget::Block(b) => (Target::Block(b.clone()), Action::RemoveBlock),
            SensTarget::Group(id) => {
                let Some(g) = self.groups.iter().find(|g| &g.id == id) else { return Ok(self.model.clone()) };
                let (method, evidence) = (self.options.method, self.options.evidence.as_deref());
                let kept = prune::resolve(g, &prune::importance(self.model, g, method, evidence)?, ratio);
                (Target::Group(id.clone()), Action::Prune { ratio, kept })
            }
        };
        let mut changed = prune::apply(self.model, self.groups, std::slice::from_ref(&action))?;
        if let (Some(refit), Action::Prune { kept, .. }) = (refit, &action.1) {
            refit.mend(self.model, &mut changed, kept)?;
        }
        Ok(changed)
    }

    /// What `session` finishes from `lives`, against the untouched model's.
    fn compare(&self, ratio: f64, mut session: Session, lives: &[Live], after: Option<NodeId>) -> Result<SensPoint> {
        let some = Every { every: self.every, after };
        let scale = self.task.scale();
        let lost = f64::from(self.task.broken()) - self.score;
        let broken = SensPoint { ratio, d_loss: BROKEN, kl: BROKEN, d_quality: rounded(scale * lost) };
        let mut scorer = self.task.scorer(0);
        let mut kl = 0.0;
        for (live, batch) in lives.iter().zip(&self.batches) {
            self.cancel.check()?;
            let logits = session.run_from_every(live, some)?.to_device(&Device::Cpu)?;
            match scorer.add(&logits, &batch.y) {
                Ok(()) => {}
                Err(TaskError::NonFinite { .. }) => return Ok(broken),
                Err(e) => return Err(e.into()),
            }
            let items = batch.y.len() as f64 / self.images.max(1) as f64;
            kl += items * self.task.divergence(&batch.logits, &logits, self.temperature)?;
        }
        let m = scorer.scored().metrics;
        Ok(SensPoint {
            ratio,
            d_loss: rounded(m.loss - self.loss),
            kl: rounded(kl.min(BROKEN)),
            d_quality: rounded(scale * (m.score - self.score)),
        })
    }
}

/// How many of an item's rows are asked: one in so many. Inputs of floats have no length that could be another; and where the untouched model
/// has layers that round their inputs by the rows that come along, fewer rows would be another model.
fn every(model: &Model, task: &dyn Task) -> usize {
    if model.precision.nodes.values().any(|p| p.int8_products()) {
        return 1;
    }
    let tokens = model.graph.input().and_then(|(_, input)| input.dims.first()).copied();
    match (model.graph.is_language_model(), tokens) {
        (true, Some(Dim::Fixed(n))) if n >= WORTH * task.every() => task.every(),
        _ => 1,
    }
}

/// `model` as it runs where one row in `every` is asked: of any number of tokens.
fn free(model: &Model, every: usize) -> Model {
    let mut free = model.clone();
    if every > 1 {
        free.graph = Arc::new(Graph::clone(&model.graph).freed());
    }
    free
}

/// The power of two times the fewest whose variants take about [`SensOptions::work`]; up to [`WANTED`] images may take four
/// times that, because with fewer the order of the groups is mostly chance. A variant re-runs the network from its first
/// changed node on.
pub(super) fn images_for(
    (model, every): (&Model, usize),
    targets: &[ToScan],
    options: &SensOptions,
    fewest: usize,
) -> Result<usize> {
    let graph = &model.graph;
    let alone = graph.live().filter(|(_, n)| !goes_alone(&n.op)).map(|(id, _)| id.index() + 1).max().unwrap_or(0);
    let part = |i: usize| if i < alone { 1.0 } else { 1.0 / every as f64 };
    let macs = crate::graph::macs(graph)?;
    let macs: Vec<f64> = macs.iter().enumerate().map(|(i, m)| (m.conv_linear + m.attention) as f64 * part(i)).collect();
    let after = |first: NodeId| macs.iter().skip(first.index()).sum::<f64>();
    let each: f64 = targets.iter().map(|t| t.ratios.len() as f64 * after(t.first)).sum();
    Ok(fitting(options.work / each.max(1.0), fewest).min(options.images).max(1))
}

pub(super) fn fitting(fit: f64, fewest: usize) -> usize {
    let mut n = fewest.max(1);
    while (2 * n) as f64 <= if 2 * n <= WANTED * fewest { 4.0 * fit } else { fit } {
        n *= 2;
    }
    n
}

/// The temperature that outputs, in parts, are compared at.
pub(super) fn temperature(task: &dyn Task, parts: &[&Tensor]) -> Result<f64> {
    Ok(rounded(task.temperature(&Tensor::cat(parts, 0)?)?))
}
