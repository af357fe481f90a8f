//! Latency ladders: how long each layer takes at other widths and precisions on this device, measured, because MACs do
//! not predict it and misaligned widths cost.
//!
//! Layers of one shape share one measurement. A rung is one layer compiled and run as `exec` would run it in the model;
//! its time comes from the step that carries the layer's name. Results are cached by shape, device, threads and batch.

use super::cache::{Cache, rounded};
use super::stats::ms;
use super::{Ladder, LadderPoint, LatencyStats, ProfileError};
use crate::exec::{Cancel, CompileOptions, Observer, Plan};
use crate::graph::{Graph, Node, NodeId, Op, ParamRef, PrecisionPlan, param_shapes, shapes};
use crate::model::{Param, ParamStore};
use crate::prune::{Group, MemberRole};
use crate::quant::Precision;
use candle_core::Device;
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// How to measure ladders.
#[derive(Debug, Clone)]
pub struct LadderOptions {
    pub batch: usize,
    pub threads: Option<usize>,
    pub device: Device,
    pub device_words: String,
    /// Time for everything; what is left out when it runs short is told by fewer points.
    pub time_limit: Duration,
}

impl Default for LadderOptions {
    fn default() -> LadderOptions {
        LadderOptions {
            batch: 1,
            threads: None,
            device: Device::Cpu,
            device_words: crate::exec::device::cpu_words(),
            time_limit: Duration::from_secs(20),
        }
    }
}

/// Progress: the layer being timed, shapes done and in all.
#[derive(Debug, Clone, PartialEq)]
pub struct LadderProgress {
    pub layer: String,
    pub done: usize,
    pub total: usize,
    pub cached: bool,
}

/// Measures a ladder for every conv and linear of `graph`, over the widths that its `groups` can cut.
///
/// # Errors
/// Whatever compiling or running a layer reports, and cancellation; rungs measured before are in the cache by then.
pub fn ladders(
    graph: &Graph,
    groups: &[Group],
    options: &LadderOptions,
    cache: Option<&Path>,
    cancel: &Cancel,
    progress: &mut dyn FnMut(LadderProgress),
) -> Result<Vec<Ladder>, ProfileError> {
    let cache = Cache(cache);
    let shapes = shapes(graph)?;
    let reachable = graph.reachable();
    let mut of_shape: Vec<(Shape, Vec<String>)> = Vec::new();
    for (id, node) in graph.iter().filter(|(id, _)| reachable[id.index()]) {
        let input = node.inputs.first().and_then(|i| shapes.get(i.index())).cloned().unwrap_or_default();
        let Some(shape) = Shape::of(node, input, groups) else { continue };
        let _ = id;
        match of_shape.iter_mut().find(|(s, _)| *s == shape) {
            Some((_, names)) => names.push(node.name.clone()),
            None => of_shape.push((shape, vec![node.name.clone()])),
        }
    }
    let total = of_shape.len();
    let end = Instant::now() + options.time_limit;
    let mut out = Vec::new();
    for (done, (shape, names)) in of_shape.iter().enumerate() {
        cancel.check()?;
        let key = shape.key(options);
        let left = end.saturating_duration_since(Instant::now());
        let share = left / (total - done) as u32;
        let known: Option<Vec<LadderPoint>> = cache.get("ladder", &key);
        let cached = known.is_some();
        let label = names.first().cloned().unwrap_or_default();
        progress(LadderProgress { layer: label, done, total, cached });
        let points = match known {
            Some(points) => points,
            None => {
                let (points, complete) = shape.measure(options, share, cancel)?;
                if complete {
                    cache.put("ladder", &key, &points);
                }
                points
            }
        };
        out.extend(names.iter().map(|n| Ladder { layer: n.clone(), points: points.clone() }));
    }
    progress(LadderProgress { layer: String::new(), done: total, total, cached: false });
    let order: HashMap<&str, usize> = graph.nodes.iter().enumerate().map(|(i, n)| (n.name.as_str(), i)).collect();
    out.sort_by_key(|l| order.get(l.layer.as_str()).copied());
    Ok(out)
}

/// A layer's shape, its input's, and which widths can change.
#[derive(Debug, Clone, PartialEq)]
struct Shape {
    op: Op,
    input: Vec<usize>,
    /// Steps in which the input and output width can be cut; 0: not at all.
    in_step: usize,
    out_step: usize,
}

impl Shape {
    fn of(node: &Node, input: Vec<usize>, groups: &[Group]) -> Option<Shape> {
        if !matches!(node.op, Op::Conv2d { .. } | Op::Linear { .. }) {
            return None;
        }
        let step = |axis: usize, role: fn(MemberRole) -> bool| {
            groups
                .iter()
                .filter(|g| g.protected.is_none())
                .find_map(|g| {
                    let m = g.members.iter().find(|m| m.node == node.name && m.axis == axis && role(m.role))?;
                    Some(g.granule.max(1) * m.width.max(1) * m.blocks.max(1))
                })
                .unwrap_or(0)
        };
        let produces = |r| matches!(r, MemberRole::Producer | MemberRole::Follower);
        let consumes = |r| matches!(r, MemberRole::Consumer | MemberRole::Follower);
        let grouped = matches!(node.op, Op::Conv2d { groups, .. } if groups > 1);
        let (in_step, out_step) = if grouped { (0, 0) } else { (step(1, consumes), step(0, produces)) };
        Some(Shape { op: node.op.clone(), input, in_step, out_step })
    }

    fn key(&self, o: &LadderOptions) -> String {
        let threads = o.threads.unwrap_or_else(crate::exec::device::threads);
        format!(
            "{:?} {:?} {} {} batch {} threads {threads} on {}",
            self.op, self.input, self.in_step, self.out_step, o.batch, o.device_words
        )
    }

    fn full(&self) -> (usize, usize) {
        match self.op {
            Op::Conv2d { in_ch, out_ch, .. } => (in_ch, out_ch),
            Op::Linear { in_features, out_features, .. } => (in_features, out_features),
            _ => (0, 0),
        }
    }

    /// The rungs, most wanted first: `(in, out, precision)`.
    fn rungs(&self, precisions: &[Precision]) -> Vec<(usize, usize, Precision)> {
        let (i, o) = self.full();
        let cut = |full: usize, step: usize, part: f64| {
            if step == 0 {
                return full;
            }
            let kept = ((full as f64 * part / step as f64).round() as usize).max(1) * step;
            kept.min(full)
        };
        let mut rungs = Vec::new();
        let mut push = |iw: usize, ow: usize, precision: Precision| {
            if iw > 0 && ow > 0 && !rungs.contains(&(iw, ow, precision)) {
                rungs.push((iw, ow, precision));
            }
        };
        for &p in precisions {
            push(i, o, p);
        }
        for part in [0.5, 0.25, 0.75, 0.125, 0.625, 0.875, 0.375] {
            for &p in precisions {
                push(cut(i, self.in_step, part), o, p);
                push(i, cut(o, self.out_step, part), p);
                if part == 0.5 || part == 0.25 {
                    push(cut(i, self.in_step, part), cut(o, self.out_step, part), p);
                }
            }
        }
        // One step past an even width: what misalignment costs.
        for part in [0.5, 0.75] {
            let odd = |full: usize, step: usize| (cut(full, step, part) + step).min(full);
            push(odd(i, self.in_step), o, Precision::F32);
            push(i, odd(o, self.out_step), Precision::F32);
        }
        rungs
    }

    /// Times rungs until `limit` is over (full width in every precision always), and says whether all were.
    fn measure(
        &self,
        options: &LadderOptions,
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<(Vec<LadderPoint>, bool), ProfileError> {
        let start = Instant::now();
        // There is no int8 kernel on a GPU yet.
        let precisions = if options.device.is_cpu() { &Precision::ALL[..] } else { &[Precision::F32] };
        let rungs = self.rungs(precisions);
        let each = limit / (rungs.len().max(1) as u32);
        let mut points = Vec::new();
        for &(i, o, precision) in &rungs {
            cancel.check()?;
            if points.len() >= precisions.len() && start.elapsed() > limit {
                return Ok((points, false));
            }
            let ms = self.time(i, o, precision, options, each, cancel)?;
            points.push(LadderPoint { in_width: i, out_width: o, precision, ms });
        }
        Ok((points, true))
    }

    fn time(
        &self,
        i: usize,
        o: usize,
        precision: Precision,
        options: &LadderOptions,
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<f64, ProfileError> {
        let (graph, params) = self.alone(i, o);
        let mut plan = PrecisionPlan::default();
        plan.set(LAYER, precision);
        let compile =
            CompileOptions { device: options.device.clone(), threads: options.threads, ..CompileOptions::default() };
        let plan = Plan::compile(&graph, &params, &plan, &compile)?;
        let x = super::noise(graph.input_shape(), options.batch, &options.device)?;
        let mut timer = Timer { step: plan.steps().iter().position(|s| s.name == LAYER), ms: Vec::new() };
        plan.run(&x)?;
        plan.run_observed(&x, &mut timer)?;
        timer.ms.clear();
        let start = Instant::now();
        let limit = limit.min(Duration::from_millis(60));
        while timer.ms.len() < 4 || (start.elapsed() < limit && timer.ms.len() < 100) {
            cancel.check()?;
            plan.run_observed(&x, &mut timer)?;
        }
        let stats = LatencyStats::of(&timer.ms);
        // Few samples on a shared machine: the lower half says more than the median.
        Ok(rounded(0.5 * (stats.min + stats.p50)))
    }

    /// A graph of this layer alone at the given widths, with deterministic weights.
    fn alone(&self, i: usize, o: usize) -> (Graph, ParamStore) {
        let (mut op, mut input) = (self.op.clone(), self.input.clone());
        let mut nodes = Vec::new();
        match &mut op {
            Op::Conv2d { in_ch, out_ch, .. } => {
                (*in_ch, *out_ch) = (i, o);
                if let Some(c) = input.first_mut() {
                    *c = i;
                }
                nodes.push(Node { name: "x".into(), op: Op::Input { shape: input }, inputs: vec![], params: vec![] });
            }
            Op::Linear { in_features, out_features, .. } => {
                (*in_features, *out_features) = (i, o);
                // Tokens come from an image of one column; a pooled vector from an image of one pixel.
                let tokens = if input.len() > 1 { input.first().copied().unwrap_or(1) } else { 1 };
                let shape = vec![i, tokens, 1];
                nodes.push(Node { name: "x".into(), op: Op::Input { shape }, inputs: vec![], params: vec![] });
                let op = if input.len() > 1 { Op::ToTokens } else { Op::GlobalAvgPool };
                nodes.push(Node { name: "tokens".into(), op, inputs: vec![NodeId(0)], params: vec![] });
            }
            _ => {}
        }
        let mut params = ParamStore::default();
        let mut refs = Vec::new();
        for (role, shape) in param_shapes(&op) {
            let n: usize = shape.iter().product();
            let name = format!("{LAYER}.{role:?}");
            let values = (0..n).map(|k| ((k * 2_654_435_761) % 1009) as f32 / 504.5 - 1.0).collect();
            if let Some(p) = Param::owned(shape, values) {
                params.insert(name.clone(), p);
            }
            refs.push(ParamRef { role, name });
        }
        let last = NodeId(nodes.len().saturating_sub(1) as u32);
        nodes.push(Node { name: LAYER.into(), op, inputs: vec![last], params: refs });
        let output = NodeId(nodes.len() as u32 - 1);
        (Graph { nodes, output, blocks: Vec::new() }, params)
    }
}

const LAYER: &str = "layer";

struct Timer {
    step: Option<usize>,
    ms: Vec<f64>,
}

impl Observer for Timer {
    fn step(&mut self, index: usize, elapsed: Duration, _out_bytes: u64) {
        if Some(index) == self.step {
            self.ms.push(ms(elapsed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::families::{CifarResnetSpec, FamilySpec, TimmVitSpec, VitDims};
    use crate::prune::groups;

    fn options() -> LadderOptions {
        LadderOptions { threads: Some(1), time_limit: Duration::from_millis(300), ..LadderOptions::default() }
    }

    fn specs() -> [FamilySpec; 2] {
        let dims = VitDims { image: 16, patch: 8, dim: 16, depth: 1, heads: 4, mlp: 32, classes: 10 };
        [
            FamilySpec::CifarResnet(CifarResnetSpec { blocks: 2, widths: [4, 8, 8], classes: 10, image: 16 }),
            FamilySpec::TimmVit(TimmVitSpec { dims, qkv_bias: true, class_token: true, mean_pool: false }),
        ]
    }

    #[test]
    fn every_layer_gets_its_full_width_in_every_precision() {
        for spec in specs() {
            let graph = spec.build().expect("graph");
            let groups = groups(&graph);
            let out = ladders(&graph, &groups, &options(), None, &Cancel::default(), &mut |_| {}).expect("ladders");
            let layers = graph.nodes.iter().filter(|n| matches!(n.op, Op::Conv2d { .. } | Op::Linear { .. }));
            for n in layers {
                let l = out.iter().find(|l| l.layer == n.name).unwrap_or_else(|| panic!("no ladder for {}", n.name));
                let (i, o) = match n.op {
                    Op::Conv2d { in_ch, out_ch, .. } => (in_ch, out_ch),
                    Op::Linear { in_features, out_features, .. } => (in_features, out_features),
                    _ => unreachable!(),
                };
                for p in Precision::ALL {
                    let full = l.points.iter().find(|x| (x.in_width, x.out_width, x.precision) == (i, o, p));
                    assert!(full.is_some_and(|f| f.ms > 0.0 && f.ms.is_finite()), "{} {p:?}", n.name);
                }
            }
        }
    }

    #[test]
    fn rungs_follow_the_groups_steps() {
        let spec = &specs()[0];
        let graph = spec.build().expect("graph");
        let groups = groups(&graph);
        let node = graph.nodes.iter().find(|n| n.name.ends_with("1.conv2")).expect("second conv of a block");
        let shape = Shape::of(node, vec![4, 16, 16], &groups).expect("a layer");
        let rungs = shape.rungs(&Precision::ALL);
        assert!(shape.in_step > 0);
        assert!(rungs.iter().all(|(i, _, _)| i % shape.in_step == 0 && *i > 0));
        assert!(rungs.iter().any(|(i, _, _)| *i == 2));
    }

    #[test]
    fn a_second_run_comes_from_the_cache() {
        let graph = specs()[0].build().expect("graph");
        let groups = groups(&graph);
        let dir = tempfile::tempdir().expect("folder");
        let o = LadderOptions { time_limit: Duration::from_secs(20), ..options() };
        let run = |cached: &mut usize| {
            let note = &mut |p: LadderProgress| *cached += usize::from(p.cached);
            ladders(&graph, &groups, &o, Some(dir.path()), &Cancel::default(), note).expect("ladders")
        };
        let (mut first, mut second) = (0, 0);
        let a = run(&mut first);
        let b = run(&mut second);
        assert!(a == b, "the cache changed something");
        assert!(first == 0 && second > 3, "{first} {second}");
        let cancel = Cancel::default();
        cancel.cancel();
        assert!(ladders(&graph, &groups, &o, None, &cancel, &mut |_| {}).is_err_and(|e| e.is_cancelled()));
    }
}
