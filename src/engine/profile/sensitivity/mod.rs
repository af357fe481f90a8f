//! How much each cut, precision and removed block changes the network's output on calibration data.
//!
//! Every variant is measured on its own against the untouched model, re-using the activations before the touched layer.
//! A pruned group is measured *after* a local least-squares re-fit of the layers that read it, because that is how it
//! will be used: what a re-fit can restore is no harm. The re-fit never sees the images that it is scored on. Results are cached per target by content, so that a scan that was
//! cancelled goes on where it stopped.
//!
//! Calibration images are mostly training images, on which a network is so sure of itself that the plain KL of its output
//! sees nothing until much is broken. So both outputs are softened by one temperature, as in distillation (Hinton et al.
//! 2015), chosen from the margins of the untouched model; a network that is not so sure keeps temperature 1.
//!
//! Invariants: calibration images only; the same model, images and options give the same curves, however busy the machine
//! (the number of images follows from the work, not from a stopwatch); a variant whose output is not finite counts as
//! [`BROKEN`] harm and never as an error.

mod formats;
mod refit;

use super::{ProfileError, Result, SensCurve, SensPoint, SensTarget, Sensitivity};
use crate::data::Dataset;
use crate::exec::{Cancel, Capabilities, CompileOptions, Kernels, Live, Plan, Support};
use crate::files::{Cache, rounded};
use crate::graph::NodeId;
use crate::graph::ggml::Block;
use crate::model::Model;
use crate::prune::{self, Action, Evidence, Group, Method, Target};
use crate::quant::Precision;
use crate::task::{Targets, Task, TaskError};
use candle_core::{DType, Device, Tensor};
use refit::Refit;
use std::path::Path;
use std::sync::Arc;

/// KL that stands for a broken output, nats.
pub const BROKEN: f64 = 50.0;

/// What to scan and how.
#[derive(Debug, Clone)]
pub struct SensOptions {
    /// Calibration images to score on, at most; fewer where `work` does not allow them. As many again serve the re-fits.
    pub images: usize,
    pub batch: usize,
    /// Parts of each group removed.
    pub ratios: Vec<f64>,
    pub precisions: Vec<Precision>,
    /// GGML's formats whose harm to each layer is concluded from that of one of them.
    pub formats: Vec<Block>,
    pub blocks: bool,
    /// Measure pruned groups after a local re-fit of their readers.
    pub refit: bool,
    /// How units are ranked, and what it needs of the calibration images.
    pub method: Method,
    pub evidence: Option<Arc<Evidence>>,
    pub threads: Option<usize>,
    pub device: Device,
    /// MACs that the scan may take about, all variants together: decides the number of images.
    pub work: f64,
}

impl Default for SensOptions {
    fn default() -> SensOptions {
        SensOptions {
            images: 512,
            batch: 64,
            ratios: vec![0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875],
            precisions: vec![Precision::Int8, Precision::W4, Precision::W4g32, Precision::Fp8],
            formats: Vec::new(),
            blocks: true,
            refit: true,
            method: Method::L2,
            evidence: None,
            threads: None,
            device: Device::Cpu,
            work: WORK,
        }
    }
}

/// What streams out during a scan.
#[derive(Debug, Clone, PartialEq)]
pub enum SensUpdate {
    Base {
        loss: f64,
        /// Mean score.
        score: f64,
        images: usize,
    },
    /// What did not go as asked, for people.
    Note(String),
    /// A target is done.
    Curve(SensCurve),
    Progress {
        label: String,
        done: usize,
        total: usize,
    },
}

/// Items below which the work aimed at may be exceeded, as a multiple of the fewest that a scan uses ([`Task::fewest`]).
const WANTED: usize = 4;
/// MACs of a scan: half a minute on two cores with AVX-512.
const WORK: f64 = 4e12;
/// Bytes of Gram matrices held at once.
const GRAM_BYTES: usize = 384 << 20;

/// Scans every unprotected group, every conv and linear at each precision, and every removable block, in network order.
///
/// # Errors
/// Empty data, whatever compiling or running reports, and cancellation; curves that were finished are cached by then.
pub fn sensitivity(
    model: &Model,
    groups: &[Group],
    calib: &Dataset,
    options: &SensOptions,
    cache: Option<&Path>,
    cancel: &Cancel,
    update: &mut dyn FnMut(SensUpdate),
) -> Result<Sensitivity> {
    let targets = targets(model, groups, options);
    let cache = Cache(cache);
    let bench = Bench::new(model, groups, calib, options, &targets, cancel)?;
    update(SensUpdate::Base { loss: bench.loss, score: bench.score, images: bench.images });
    if bench.shared {
        update(SensUpdate::Note(format!(
            "{} calibration images are too few to keep some apart: re-fits are scored on the images that they were fitted \
             on, so cuts look milder than they are",
            calib.len()
        )));
    }
    let mut out = Sensitivity { curves: Vec::new(), base_loss: bench.loss, base_score: bench.score };
    let total = targets.len();

    let mut lives: Option<(NodeId, Vec<Live>)> = None;
    let mut refits: Vec<(String, Refit)> = Vec::new();
    let mut thin: Vec<String> = Vec::new();
    for (done, t) in targets.iter().enumerate() {
        cancel.check()?;
        update(SensUpdate::Progress { label: label(&t.target), done, total });
        let key = bench.key(t);
        let curve = match cache.get::<SensCurve>("sense", &key).filter(|c| c.target == t.target) {
            Some(curve) => curve,
            None => {
                if lives.as_ref().is_none_or(|(at, _)| *at != t.first) {
                    // Freed first: both at once would double the peak.
                    drop(lives.take());
                    lives = Some((t.first, bench.lives(t.first)?));
                }
                let ready = if let (SensTarget::Group(id), true) = (&t.target, options.refit) {
                    if !refits.iter().any(|(g, _)| g == id) {
                        refits = bench.refits(&targets[done..], &cache)?;
                        thin.extend(refits.iter().filter(|(_, r)| r.is_thin()).map(|(g, _)| g.clone()));
                    }
                    refits.iter().find(|(g, _)| g == id).map(|(_, r)| r)
                } else {
                    None
                };
                let lives = lives.as_ref().map_or(&[][..], |(_, l)| l.as_slice());
                let curve = bench.curve(t, ready, lives)?;
                // Kept for other sessions under the model's hash: only what that model gave.
                model.params.unchanged()?;
                cache.put("sense", &key, &curve);
                curve
            }
        };
        let concluded = formats::concluded(&bench, &options.formats, &curve)?;
        for curve in std::iter::once(curve).chain(concluded) {
            update(SensUpdate::Curve(curve.clone()));
            out.curves.push(curve);
        }
    }
    update(SensUpdate::Progress { label: String::new(), done: total, total });
    if let [first, rest @ ..] = thin.as_slice() {
        update(SensUpdate::Note(format!(
            "re-fits of `{first}`{} had fewer samples than columns; hint: more calibration images",
            if rest.is_empty() { String::new() } else { format!(" and {} more groups", rest.len()) }
        )));
    }
    Ok(out)
}

/// One thing to vary.
#[derive(Debug, Clone)]
struct ToScan {
    target: SensTarget,
    /// Variants: ratios of a group, a single 0 otherwise.
    ratios: Vec<f64>,
    /// The earliest node that changes.
    first: NodeId,
}

fn targets(model: &Model, groups: &[Group], options: &SensOptions) -> Vec<ToScan> {
    let graph = &model.graph;
    let mut out = Vec::new();
    for g in groups.iter().filter(|g| g.protected.is_none()) {
        let first = g.members.iter().filter_map(|m| graph.by_name(&m.node)).min();
        let mut ratios: Vec<f64> =
            options.ratios.iter().map(|&r| g.ratio_of(g.kept_at(r))).filter(|r| *r > 0.0).map(rounded).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.dedup_by(|a, b| (*a - *b).abs() < 1e-9);
        if let (Some(first), false) = (first, ratios.is_empty()) {
            out.push(ToScan { target: SensTarget::Group(g.id.clone()), ratios, first });
        }
    }
    let capable = Capabilities::of(&options.device, Kernels::Device);
    let precisions = options.precisions.iter().filter(|p| worth_a_scan(**p, capable.support(**p)));
    for &precision in precisions {
        for (id, n) in graph.live() {
            // Rows that are no whole blocks are never in it.
            // Keys and values as well, where they can be kept so.
            let kept = precision == Precision::Int8 && n.op.caches() && options.device.is_cpu();
            let takes = (n.op.is_conv_or_linear() || kept) && precision.unfit(&n.op).is_none();
            if takes && model.precision.get(&n.name) != precision {
                let target = SensTarget::Layer(n.name.clone(), precision);
                out.push(ToScan { target, ratios: vec![0.0], first: id });
            }
        }
    }
    for (id, n) in graph.live().filter(|(_, n)| !options.formats.is_empty() && n.op.is_conv_or_linear()) {
        if let Some(probe) = formats::probe(n, model.precision.get(&n.name)) {
            out.push(ToScan { target: SensTarget::Layer(n.name.clone(), probe), ratios: vec![0.0], first: id });
        }
    }
    if options.blocks {
        for b in graph.blocks.iter().filter(|b| !b.residual.is_empty()) {
            if let Some(&first) = b.nodes.iter().min() {
                let target = SensTarget::Block(b.name.clone());
                out.push(ToScan { target, ratios: vec![0.0], first });
            }
        }
    }
    out.sort_by_key(|t| t.first);
    out
}

/// What a device refuses it is not sensitive to; and 8-bit floats are only of use where they are multiplied: what a CPU simulates
/// saves nothing that int8 does not.
fn worth_a_scan(precision: Precision, support: Support) -> bool {
    match support {
        Support::Real => true,
        Support::Simulated => precision != Precision::Fp8,
        Support::Refused => false,
    }
}

fn label(target: &SensTarget) -> String {
    match target {
        SensTarget::Group(g) => g.clone(),
        SensTarget::Layer(l, p) => format!("{l} {}", p.label()),
        SensTarget::Block(b) => format!("{b} removed"),
    }
}

/// The untouched model with its calibration batches, ready to compare variants with.
struct Bench<'a> {
    model: &'a Model,
    groups: &'a [Group],
    options: &'a SensOptions,
    cancel: &'a Cancel,
    compile: CompileOptions,
    plan: Plan,
    batches: Vec<(Tensor, Targets)>,
    /// What re-fits are fitted on.
    fit: Vec<(Tensor, Targets)>,
    /// There were too few images to keep `fit` apart from `batches`.
    shared: bool,
    task: &'a dyn Task,
    logits: Tensor,
    temperature: f64,
    targets: Targets,
    images: usize,
    loss: f64,
    score: f64,
    /// Hash over the evidence.
    seen: String,
    /// Hash over the images used.
    data: String,
}

impl<'a> Bench<'a> {
    fn new(
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
        let plan = Plan::of(model, &compile)?;
        let prep = &model.info.preprocess;
        let fewest = calib.task().fewest();
        let images = images_for(model, to_scan, options, fewest)?;
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
        let (mut batches, mut parts, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        let task = calib.task();
        let mut scorer = task.scorer(0);
        let mut session = plan.session();
        for picks in set.parts(&scored, options.batch) {
            let (x, y) = read(&picks, &mut hash)?;
            for i in 0..y.len() {
                hash.update(&y.bytes(i)?);
            }
            let logits = session.run(&x)?.to_device(&Device::Cpu)?;
            scorer.add(&logits, &y)?;
            parts.push(logits);
            targets.push(y.clone());
            batches.push((x, y));
        }
        let fitted = set.parts(if options.refit { &fitted } else { &[] }, options.batch);
        let fit = fitted.iter().map(|picks| read(picks, &mut hash)).collect::<Result<_, _>>()?;
        let m = scorer.scored().metrics;
        let logits = Tensor::cat(&parts, 0)?;
        let temperature = temperature(task, &logits)?;
        Ok(Bench {
            model,
            groups,
            options,
            cancel,
            compile,
            plan,
            batches,
            fit,
            shared,
            task,
            logits,
            temperature,
            targets: Targets::join(&targets)?,
            images,
            loss: m.loss,
            score: m.score,
            seen: options.evidence.as_ref().map(|e| e.hash()).unwrap_or_default(),
            data: hash.finalize().to_hex().to_string(),
        })
    }

    fn key(&self, t: &ToScan) -> String {
        let precision = serde_json::to_string(&self.model.precision).unwrap_or_default();
        format!(
            "{} {precision} {} {:?} {:?} by {} {} refit {} on {:?}",
            self.model.info.hash,
            self.data,
            t.target,
            t.ratios,
            self.options.method.label(),
            self.seen,
            self.options.refit,
            self.options.device.location()
        )
    }

    fn lives(&self, first: NodeId) -> Result<Vec<Live>> {
        let name = &self.model.graph.node(first).name;
        let Some(cut) = self.plan.cut_before(name) else { return Ok(Vec::new()) };
        let mut session = self.plan.session();
        self.batches
            .iter()
            .map(|(x, _)| {
                self.cancel.check()?;
                Ok(session.run_to(x, &cut)?)
            })
            .collect()
    }

    /// Re-fits for as many of the coming groups as memory allows, the first one always.
    fn refits(&self, coming: &[ToScan], cache: &Cache) -> Result<Vec<(String, Refit)>> {
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

    fn curve(&self, t: &ToScan, refit: Option<&Refit>, lives: &[Live]) -> Result<SensCurve> {
        let mut points = Vec::new();
        for &ratio in &t.ratios {
            self.cancel.check()?;
            let variant = self.variant(&t.target, ratio, refit)?;
            let mut session = Plan::of(&variant, &self.compile)?.session();
            let mut parts = Vec::with_capacity(lives.len());
            for live in lives {
                self.cancel.check()?;
                parts.push(session.run_from(live)?.to_device(&Device::Cpu)?);
            }
            points.push(self.compare(ratio, &Tensor::cat(&parts, 0)?)?);
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

    fn compare(&self, ratio: f64, logits: &Tensor) -> Result<SensPoint> {
        let scale = self.task.scale();
        let lost = f64::from(self.task.broken()) - self.score;
        let broken = SensPoint { ratio, d_loss: BROKEN, kl: BROKEN, d_quality: rounded(scale * lost) };
        let mut scorer = self.task.scorer(0);
        match scorer.add(logits, &self.targets) {
            Ok(()) => {}
            Err(TaskError::NonFinite { .. }) => return Ok(broken),
            Err(e) => return Err(e.into()),
        }
        let m = scorer.scored().metrics;
        let kl = self.task.divergence(&self.logits, logits, self.temperature)?;
        Ok(SensPoint {
            ratio,
            d_loss: rounded(m.loss - self.loss),
            kl: rounded(kl.min(BROKEN)),
            d_quality: rounded(scale * (m.score - self.score)),
        })
    }
}

/// The power of two times the fewest whose variants take about [`SensOptions::work`]; up to [`WANTED`] images may take four
/// times that, because with fewer the order of the groups is mostly chance. A variant re-runs the network from its first
/// changed node on.
fn images_for(model: &Model, targets: &[ToScan], options: &SensOptions, fewest: usize) -> Result<usize> {
    let macs: Vec<f64> =
        crate::graph::macs(&model.graph)?.iter().map(|m| (m.conv_linear + m.attention) as f64).collect();
    let after = |first: NodeId| macs.iter().skip(first.index()).sum::<f64>();
    let each: f64 = targets.iter().map(|t| t.ratios.len() as f64 * after(t.first)).sum();
    Ok(fitting(options.work / each.max(1.0), fewest).min(options.images).max(1))
}

fn fitting(fit: f64, fewest: usize) -> usize {
    let mut n = fewest.max(1);
    while (2 * n) as f64 <= if 2 * n <= WANTED * fewest { 4.0 * fit } else { fit } {
        n *= 2;
    }
    n
}

/// The temperature that outputs are compared at.
fn temperature(task: &dyn Task, outputs: &Tensor) -> Result<f64> {
    Ok(rounded(task.temperature(outputs)?))
}

#[cfg(test)]
mod tests;
