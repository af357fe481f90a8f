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

mod bench;
mod formats;
mod refit;

use super::{Result, SensCurve, SensPoint, SensTarget, Sensitivity};
use crate::data::Dataset;
use crate::exec::{Cancel, Capabilities, Kernels, Live, Support};
use crate::files::{Cache, rounded};
use crate::graph::ggml::Block;
use crate::graph::{Graph, NodeId};
use crate::model::Model;
use crate::prune::{Evidence, Group, Method};
use crate::quant::Precision;
use crate::words::counted;
use bench::Bench;
use candle_core::Device;
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

/// MACs of a scan: half a minute on two cores with AVX-512.
const WORK: f64 = 4e12;
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
    if bench.shared && (!groups.is_empty() || options.blocks) {
        let items = if model.graph.is_language_model() { "window" } else { "image" };
        update(SensUpdate::Note(format!(
            "{} to calibrate on: too few to keep some apart, so that cuts are scored on what they were fitted on and look milder than they are",
            counted(calib.len(), items)
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
                    let before = lives.take().map(|(_, l)| l).unwrap_or_default();
                    lives = Some((t.first, bench.lives(t.first, before)?));
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
                out.push(ToScan { target, ratios: vec![0.0], first: first_of(graph, id) });
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

/// The first node that layer `id` in another precision changes: an embedding that is its weight as well is rounded with it.
fn first_of(graph: &Graph, id: NodeId) -> NodeId {
    let node = graph.node(id);
    graph.sharing(node).and_then(|other| graph.by_name(&other.name)).map_or(id, |other| other.min(id))
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

#[cfg(test)]
mod tests;
