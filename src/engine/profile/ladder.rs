//! Latency ladders: how long each layer takes at other widths and precisions on this device, measured, because MACs do
//! not predict it and misaligned widths cost.
//!
//! Layers of one shape share one measurement. A rung is one layer compiled and run as `exec` would run it in the model,
//! with the residual add and the activation that fuse into it; its time comes from the step that carries the layer's
//! name. All rungs of a shape run in turns: what disturbs the machine weighs on all alike, and each finds its weights
//! outside the nearest cache, as it does in a model.
//!
//! A rung is timed twice at least, some time apart. Where the two differ, or where a narrower layer seems slower than a
//! wider one, it is timed again; what no two times agree on is marked as noisy, and no forecast uses it. Results without
//! such rungs are cached by shape, processor, kernels, threads and batch.

mod alone;
mod rung;

use super::load::Watch;
use super::turns::{Clock, Turns};
use super::{Ladder, LadderPoint, ProfileError, Result};
use crate::exec::{Cancel, Capabilities, CompileOptions, ExecError, Kernels, Plan, fusions, halving};
use crate::files::{Cache, rounded};
use crate::graph::ggml::Block;
use crate::graph::{Graph, Node, NodeId, Op, Precisions, op, shapes};
use crate::prune::{Group, MemberRole};
use crate::quant::{Precision, WeightFormat};
use alone::{Epilogue, LAYER, alone};
use candle_core::Device;
use rung::{Rung, Timer, estimate, spikes};
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
    /// Linears are multiplied as they are stored, as `CompileOptions::as_stored` has it, in each layer's format as these say; times in GGML's formats
    /// are of interest then.
    pub stored: Option<Precisions>,
    /// Time for everything; what is left out when it runs short is told by fewer points.
    pub time_limit: Duration,
    pub watch: Watch,
}

impl Default for LadderOptions {
    fn default() -> LadderOptions {
        LadderOptions {
            batch: 1,
            threads: None,
            device: Device::Cpu,
            device_words: crate::exec::device::cpu_words(),
            stored: None,
            time_limit: Duration::from_secs(20),
            watch: Watch::System,
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
    /// What people should know of the layer before: that some of its rungs found no room.
    pub note: Option<String>,
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
) -> Result<Vec<Ladder>> {
    let cache = Cache(cache);
    let shapes = shapes(graph)?;
    // On a GPU half precision and packed weights have kernels of their own.
    let precisions = Capabilities::of(&options.device, Kernels::Device).timed();
    let epilogues: HashMap<NodeId, Epilogue> =
        fusions(graph).into_iter().map(|f| (f.lead, Epilogue { residual: f.residual, act: f.act })).collect();
    let mut of_shape: Vec<(Shape, Vec<String>)> = Vec::new();
    for (id, node) in graph.live() {
        let input = node.inputs.first().and_then(|i| shapes.get(i.index())).cloned().unwrap_or_default();
        let epilogue = epilogues.get(&id).copied().unwrap_or_default();
        let Some(mut shape) = Shape::of(node, input, epilogue, groups) else { continue };
        if let Some(stored) = &options.stored {
            shape.stored = Some(stored.get(&node.name)).filter(|p| !precisions.contains(p));
        }
        match of_shape.iter_mut().find(|(s, _)| *s == shape) {
            Some((_, names)) => names.push(node.name.clone()),
            None => of_shape.push((shape, vec![node.name.clone()])),
        }
    }
    let total = of_shape.len();
    let end = Instant::now() + options.time_limit;
    let (mut out, mut note) = (Vec::new(), None);
    for (done, (shape, names)) in of_shape.iter().enumerate() {
        cancel.check()?;
        let precisions = &shape.timed(&precisions, options);
        let key = shape.key(options);
        let left = end.saturating_duration_since(Instant::now());
        let share = left / (total - done) as u32;
        let known: Option<Vec<LadderPoint>> = cache.get("ladder", &key);
        let cached = known.is_some();
        let label = names.first().cloned().unwrap_or_default();
        progress(LadderProgress { layer: label.clone(), done, total, cached, note: note.take() });
        let points = match known {
            Some(points) => points,
            None => {
                let rungs = shape.rungs(precisions);
                // They are all held at once: where a GPU has no room for that, the most wanted ones are.
                let ((points, complete), held) = halving(rungs.len(), |most| {
                    let wanted = rungs.get(..most).unwrap_or(&rungs);
                    let measured = shape.measure(options, share, wanted, precisions, cancel);
                    let (points, all) = measured.map_err(|e| of_layer(e, &label))?;
                    Ok::<_, ProfileError>((points, all && most == rungs.len()))
                })?;
                if held < rungs.len() {
                    let all = rungs.len();
                    note = Some(format!(
                        "`{label}`: the device has memory for {held} of {all} widths and precisions at a time; the rest is not timed"
                    ));
                }
                if complete && !points.iter().any(|p| p.noisy) {
                    cache.put("ladder", &key, &points);
                }
                points
            }
        };
        out.extend(names.iter().map(|n| Ladder { layer: n.clone(), points: points.clone(), own: precisions.clone() }));
    }
    progress(LadderProgress { layer: String::new(), done: total, total, cached: false, note });
    let order: HashMap<&str, usize> = graph.nodes.iter().enumerate().map(|(i, n)| (n.name.as_str(), i)).collect();
    out.sort_by_key(|l| order.get(l.layer.as_str()).copied());
    Ok(out)
}

/// What failed in a layer that was timed on its own, by the name that it has in the model.
fn of_layer(error: ProfileError, layer: &str) -> ProfileError {
    match error {
        ProfileError::Exec(ExecError::Candle { op, said, .. }) => {
            ExecError::Candle { node: layer.to_owned(), op, said }.into()
        }
        other => other,
    }
}

/// A layer's shape, its input's, and which widths can change.
#[derive(Debug, Clone, PartialEq)]
struct Shape {
    op: Op,
    input: Vec<usize>,
    epilogue: Epilogue,
    /// Steps in which the input and output width can be cut; 0: not at all.
    in_step: usize,
    out_step: usize,
    /// What its weights are stored in, where they are multiplied so and that has no kernel otherwise.
    stored: Option<Precision>,
}

impl Shape {
    fn of(node: &Node, input: Vec<usize>, epilogue: Epilogue, groups: &[Group]) -> Option<Shape> {
        if !node.op.is_conv_or_linear() {
            return None;
        }
        let step = |axis: usize, role: fn(MemberRole) -> bool| {
            groups
                .iter()
                .filter(|g| g.protected.is_none())
                .find_map(|g| {
                    let m = g.members.iter().find(|m| m.node == node.name && m.axis == axis && role(m.role))?;
                    Some(g.granule.max(1) * m.span.width.max(1) * m.span.blocks.max(1))
                })
                .unwrap_or(0)
        };
        let produces = |r| matches!(r, MemberRole::Producer | MemberRole::Follower);
        let consumes = |r| matches!(r, MemberRole::Consumer | MemberRole::Follower);
        let (in_step, out_step) = match node.op {
            // Inputs go with outputs.
            Op::Conv2d(op::Conv2d { in_ch, out_ch, groups, .. }) if groups > 1 => {
                let out = step(0, produces);
                (out * in_ch / out_ch.max(1), out)
            }
            _ => (step(1, consumes), step(0, produces)),
        };
        Some(Shape { op: node.op.clone(), input, epilogue, in_step, out_step, stored: None })
    }

    /// What is timed of it: what has a kernel anyway, what it is stored in, and what it could be multiplied in as stored.
    fn timed(&self, usual: &[Precision], options: &LadderOptions) -> Vec<Precision> {
        let mut out: Vec<Precision> = usual.iter().copied().chain(self.stored).collect();
        if options.stored.is_some() && options.device.is_cpu() && matches!(self.op, Op::Linear(_)) {
            let blocks = Block::ALL.into_iter().map(Precision::Block);
            let fitting = blocks.filter(|p| p.unfit(&self.op).is_none() && Some(*p) != self.stored);
            out.extend(fitting);
        }
        out
    }

    fn key(&self, o: &LadderOptions) -> String {
        let threads = o.threads.unwrap_or_else(crate::exec::device::threads);
        let processor = if o.device.is_cpu() { crate::exec::device::processor() } else { String::new() };
        format!(
            "in turns, twice, fed by steps, in one arena {:?} {:?} {:?} {} {} batch {} threads {threads} on {} {processor} \
             kernels {:x}{}",
            self.op,
            self.input,
            self.epilogue,
            self.in_step,
            self.out_step,
            o.batch,
            o.device_words,
            crate::exec::KERNELS,
            if o.stored.is_some() { format!(" stored {:?}", self.stored) } else { String::new() }
        )
    }

    fn full(&self) -> (usize, usize) {
        match self.op {
            Op::Conv2d(op::Conv2d { in_ch, out_ch, .. }) => (in_ch, out_ch),
            Op::Linear(op::Linear { in_features, out_features, .. }) => (in_features, out_features),
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
        let grouped = matches!(self.op, Op::Conv2d(op::Conv2d { groups, .. }) if groups > 1);
        let mut push = |iw: usize, ow: usize, precision: Precision| {
            let whole = match precision {
                Precision::Block(block) => iw.is_multiple_of(block.values()),
                _ => true,
            };
            let fits = whole && (!grouped || iw * o == ow * i);
            if fits && iw > 0 && ow > 0 && !rungs.contains(&(iw, ow, precision)) {
                rungs.push((iw, ow, precision));
            }
        };
        for &p in precisions {
            push(i, o, p);
        }
        // 4 bits in groups run the kernel of 4 bits, which shows how it takes widths; of GGML's formats that of the layer's own does.
        let one_of_many = |p: &Precision| match p.weights() {
            WeightFormat::Int4 { group } => group.is_some(),
            WeightFormat::Block(_) => Some(*p) != self.stored,
            _ => false,
        };
        for part in [0.5, 0.25, 0.75, 0.125, 0.625, 0.875, 0.375] {
            for &p in precisions.iter().filter(|p| !one_of_many(p)) {
                push(cut(i, self.in_step, part), o, p);
                push(i, cut(o, self.out_step, part), p);
                if grouped || part == 0.5 || part == 0.25 {
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

    /// Times the rungs `wanted` in turns until `limit` is over, and says whether all of them were. The first of each
    /// precision, which has full width, is always among them; a rung that there is no time to compile is left out.
    fn measure(
        &self,
        options: &LadderOptions,
        limit: Duration,
        wanted: &[(usize, usize, Precision)],
        precisions: &[Precision],
        cancel: &Cancel,
    ) -> Result<(Vec<LadderPoint>, bool)> {
        let start = Instant::now();
        let mut rungs: Vec<(usize, usize, Precision, Rung)> = Vec::new();
        for &(i, o, precision) in wanted {
            cancel.check()?;
            if rungs.len() >= precisions.len() && start.elapsed() > limit / 2 {
                break;
            }
            let mut rung = self.compile(i, o, precision, options)?;
            // In a model a layer's output goes where another layer's values lay a moment ago, not to memory of its own.
            if let Some((.., first)) = rungs.first() {
                rung.session.share_arenas(&first.session);
            }
            rungs.push((i, o, precision, rung));
        }
        // One precision after the other in every round: units that only int8 uses take a while to wake.
        rungs.sort_by_key(|(_, _, precision, _)| precisions.iter().position(|p| p == precision));
        // A cap a rung: small layers need no longer.
        let limit = (limit / 2).min(MOST_A_RUNG * rungs.len() as u32);
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); rungs.len()];
        let mut retried = Vec::new();
        for pass in 0..PASSES {
            let which: Vec<usize> = if pass < 2 { (0..rungs.len()).collect() } else { retried };
            if which.is_empty() {
                break;
            }
            for (&at, ms) in which.iter().zip(sweep(&mut rungs, &which, limit / 2, options, cancel)?) {
                times[at].extend(ms);
            }
            let widths: Vec<(usize, usize, Precision)> = rungs.iter().map(|(i, o, p, _)| (*i, *o, *p)).collect();
            let now: Vec<(f64, f64, bool)> = times.iter().map(|t| estimate(t)).collect();
            let spikes = spikes(&widths, &now);
            retried = (0..rungs.len()).filter(|&i| now[i].2 || (spikes[i] && times[i].len() < PASSES - 1)).collect();
        }
        let point = |((in_width, out_width, precision, _), times): (&(usize, usize, Precision, Rung), &Vec<f64>)| {
            let (ms, spread, noisy) = estimate(times);
            LadderPoint {
                in_width: *in_width,
                out_width: *out_width,
                precision: *precision,
                ms: rounded(ms),
                spread: rounded(spread),
                noisy,
            }
        };
        Ok((rungs.iter().zip(&times).map(point).collect(), rungs.len() == wanted.len()))
    }

    fn compile(&self, i: usize, o: usize, precision: Precision, options: &LadderOptions) -> Result<Rung> {
        let (graph, params) = alone(&self.op, &self.input, self.epilogue, (i, o), precision)?;
        let plan = Precisions::from_iter([(LAYER, precision)]);
        let (device, as_stored) = (options.device.clone(), options.stored.is_some());
        let compile = CompileOptions { device, threads: options.threads, as_stored, ..CompileOptions::default() };
        let plan = Plan::compile(&graph, &params, &plan, &compile)?;
        let x = super::noise(&graph, options.batch, &options.device)?;
        let step = plan.steps().iter().position(|s| s.name == LAYER);
        Ok(Rung { session: plan.session(), x, timer: Timer { step, ms: 0.0 } })
    }
}

/// Runs of each rung at least and at most in one pass over them.
const LEAST_SWEEPS: usize = 3;
const MOST_SWEEPS: usize = 30;
const MOST_A_RUNG: Duration = Duration::from_millis(60);
/// Two passes over all rungs, and further ones over those that are in doubt.
const PASSES: usize = 4;

/// What each rung of `which` takes by one pass, there and back again so that no rung always follows the same one; `None`
/// where the machine was never quiet enough.
fn sweep(
    rungs: &mut [(usize, usize, Precision, Rung)],
    which: &[usize],
    time_limit: Duration,
    options: &LadderOptions,
    cancel: &Cancel,
) -> Result<Vec<Option<f64>>> {
    let n = which.len();
    for &at in which {
        cancel.check()?;
        // To warm up.
        rungs[at].3.time()?;
    }
    let busy = options.threads.unwrap_or_else(crate::exec::device::threads);
    let threads = if options.device.is_cpu() { busy } else { 1 };
    let turns = Turns {
        wanted: MOST_SWEEPS * n,
        least: LEAST_SWEEPS * n,
        time_limit,
        threads,
        watch: &options.watch,
        cancel,
        clock: Clock::of(&options.device),
    };
    let mut taken: Vec<(usize, f64)> = Vec::with_capacity(MOST_SWEEPS * n);
    let counted = turns.take(|run| {
        let (there, step) = ((run / n).is_multiple_of(2), run % n);
        let slot = if there { step } else { n - 1 - step };
        taken.push((slot, rungs[which[slot]].3.time()?));
        Ok(())
    })?;
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); n];
    for &run in &counted.rounds {
        let (slot, ms) = taken[run];
        samples[slot].push(ms);
    }
    Ok(samples.iter().map(|s| rung::lower_quartile(s)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_in_a_rung_is_told_of_the_models_layer() {
        use crate::exec::OutOfMemory;
        let said = candle_core::Error::Cuda("DriverError(CUDA_ERROR_OUT_OF_MEMORY)".into()).into();
        let rung = ExecError::Candle { node: LAYER.into(), op: "linear", said };
        let told = of_layer(rung.into(), "blocks.0.mlp.fc1");
        assert!(told.to_string().starts_with("node `blocks.0.mlp.fc1` (linear)") && told.is_out_of_memory());
    }
    use crate::model::families::{CifarResnetSpec, FamilySpec, VitDims, VitSpec};
    use crate::prune::groups;

    fn options() -> LadderOptions {
        let time_limit = Duration::from_millis(300);
        LadderOptions { threads: Some(1), time_limit, watch: Watch::Quiet, ..LadderOptions::default() }
    }

    fn specs() -> [FamilySpec; 2] {
        let dims = VitDims { image: 16, patch: 8, dim: 16, depth: 1, heads: 4, mlp: 32, classes: 10 };
        [
            FamilySpec::CifarResnet(CifarResnetSpec { blocks: 2, widths: [4, 8, 8], classes: 10, image: 16 }),
            FamilySpec::Vit(VitSpec::timm(dims)),
        ]
    }

    #[test]
    fn every_layer_gets_its_full_width_in_every_precision() {
        for spec in specs() {
            let graph = spec.build().expect("graph");
            let groups = groups(&graph);
            let out = ladders(&graph, &groups, &options(), None, &Cancel::default(), &mut |_| {}).expect("ladders");
            let layers = graph.nodes.iter().filter(|n| n.op.is_conv_or_linear());
            for n in layers {
                let l = out.iter().find(|l| l.layer == n.name).unwrap_or_else(|| panic!("no ladder for {}", n.name));
                let (i, o) = match n.op {
                    Op::Conv2d(op::Conv2d { in_ch, out_ch, .. }) => (in_ch, out_ch),
                    Op::Linear(op::Linear { in_features, out_features, .. }) => (in_features, out_features),
                    _ => unreachable!(),
                };
                for p in [Precision::F32, Precision::Int8] {
                    let full = l.points.iter().find(|x| (x.in_width, x.out_width, x.precision) == (i, o, p));
                    assert!(full.is_some_and(|f| f.ms > 0.0 && f.ms.is_finite()), "{} {p:?}", n.name);
                }
            }
        }
    }

    #[test]
    fn what_is_stored_is_timed_over_widths_and_what_could_be_at_full_width() {
        let dims = VitDims { image: 16, patch: 8, dim: 64, depth: 1, heads: 2, mlp: 256, classes: 10 };
        let graph = FamilySpec::Vit(VitSpec::timm(dims)).build().expect("graph");
        let fc1 = "blocks.0.mlp.fc1";
        let own = Precision::Block(Block::Q4_1);
        let stored = Some(Precisions::from_iter([(fc1, own)]));
        let o = LadderOptions { stored, time_limit: Duration::from_secs(8), ..options() };
        let out = ladders(&graph, &groups(&graph), &o, None, &Cancel::default(), &mut |_| {}).expect("ladders");
        let of = |layer: &str| out.iter().find(|l| l.layer == layer).expect("a ladder");
        let points = |layer: &str, p: Precision| of(layer).points.iter().filter(|x| x.precision == p).count();
        assert!(points(fc1, own) > 2, "{:?}", of(fc1));
        for block in Block::ALL {
            // Rows of 64 are no blocks of 256.
            let fits = block.values() == 32;
            let p = Precision::Block(block);
            assert_eq!(of(fc1).own.contains(&p), fits, "{block:?}");
            assert!(p == own || points(fc1, p) == usize::from(fits), "{block:?}");
        }
        assert_eq!(points("blocks.0.mlp.fc2", Precision::Block(Block::Q6_K)), 1);
        // An image's patches are read by a convolution, which is never multiplied as stored.
        let conv = graph.nodes.iter().find(|n| matches!(n.op, Op::Conv2d(_))).expect("a convolution");
        assert!(of(&conv.name).own.iter().all(|p| !matches!(p, Precision::Block(_))));
    }

    #[test]
    fn a_rung_is_the_step_that_the_model_runs() {
        for spec in specs() {
            let model = crate::model::random(&spec, 2);
            let plan = Plan::of(&model, &CompileOptions::default()).expect("plan");
            let all = shapes(&model.graph).expect("shapes");
            let fused = fusions(&model.graph);
            let mut residuals = 0;
            for step in plan.steps().iter().filter(|s| s.kind.starts_with("conv") || s.kind == "linear") {
                let node = model.graph.node(step.node);
                let input = all[node.inputs[0].index()].clone();
                let f = fused.iter().find(|f| f.lead == step.node).expect("a chain");
                let epilogue = Epilogue { residual: f.residual, act: f.act };
                let shape = Shape::of(node, input, epilogue, &[]).expect("a layer");
                let (i, o) = shape.full();
                let rung = shape.compile(i, o, Precision::F32, &options()).expect("compiles");
                let lone = rung.session.plan().steps().iter().find(|s| s.name == LAYER).expect("the layer's step");
                // Batch norms fold away in one and are not there in the other.
                let norms = |n: &&String| {
                    let op = model.graph.by_name(n).map(|id| &model.graph.node(id).op);
                    !matches!(op, Some(Op::BatchNorm2d(_) | Op::ToTokens))
                };
                let apart = step.fused.iter().filter(norms).count();
                assert_eq!(lone.fused.len(), apart, "{}: {:?}", step.name, step.fused);
                assert_eq!((&lone.kernel, &lone.out_shape), (&step.kernel, &step.out_shape), "{}", step.name);
                residuals += usize::from(f.residual);
            }
            assert!(residuals > 0, "no step of {:?} had a residual", spec.family());
        }
    }

    /// As on a GPU, where every format has a kernel: each is timed at full width, and widths by those that tell them apart.
    #[test]
    fn every_kernel_of_its_own_has_a_rung() {
        let graph = specs()[0].build().expect("graph");
        let groups = groups(&graph);
        let node = graph.nodes.iter().find(|n| n.name.ends_with("1.conv2")).expect("second conv of a block");
        let shape = Shape::of(node, vec![4, 16, 16], Epilogue::default(), &groups).expect("a layer");
        let gpu = Capabilities::of(&Device::Cpu, Kernels::Tensors).timed();
        assert!(gpu.len() > 4);
        let (rungs, full) = (shape.rungs(&gpu), shape.full());
        for &p in &gpu {
            assert!(rungs.contains(&(full.0, full.1, p)), "{p:?}");
            let narrower = rungs.iter().any(|(i, o, q)| *q == p && (*i, *o) != full);
            assert_eq!(narrower, !matches!(p, Precision::W4g128 | Precision::W4g64 | Precision::W4g32), "{p:?}");
        }
        let out = ladders(&graph, &groups, &options(), None, &Cancel::default(), &mut |_| {}).expect("ladders");
        assert!(out.iter().all(|l| l.own == [Precision::F32, Precision::Int8]), "the CPU's");
    }

    #[test]
    fn rungs_follow_the_groups_steps() {
        let spec = &specs()[0];
        let graph = spec.build().expect("graph");
        let groups = groups(&graph);
        let node = graph.nodes.iter().find(|n| n.name.ends_with("1.conv2")).expect("second conv of a block");
        let shape = Shape::of(node, vec![4, 16, 16], Epilogue::default(), &groups).expect("a layer");
        let rungs = shape.rungs(&[Precision::F32, Precision::Int8]);
        assert!(shape.in_step > 0);
        assert!(rungs.iter().all(|(i, _, _)| i % shape.in_step == 0 && *i > 0));
        assert!(rungs.iter().any(|(i, _, _)| *i == 2));
    }

    /// Another processor or other kernels take other times.
    #[test]
    fn the_key_names_the_kernels_and_the_processor() {
        let graph = specs()[0].build().expect("graph");
        let node = graph.nodes.iter().find(|n| n.op.is_conv_or_linear()).expect("a layer");
        let shape = Shape::of(node, vec![3, 16, 16], Epilogue::default(), &[]).expect("a layer");
        let key = shape.key(&options());
        assert!(key.contains(&format!("kernels {:x}", crate::exec::KERNELS)), "{key}");
        assert!(key.contains(&crate::exec::device::processor()) && key.contains("threads 1"), "{key}");
    }

    #[test]
    fn a_second_run_comes_from_the_cache() {
        let graph = specs()[0].build().expect("graph");
        let groups = groups(&graph);
        let dir = tempfile::tempdir().expect("folder");
        let o = LadderOptions { time_limit: Duration::from_secs(20), ..options() };
        let run = |cached: &mut Vec<String>| {
            let note = &mut |p: LadderProgress| {
                if p.cached {
                    cached.push(p.layer);
                }
            };
            ladders(&graph, &groups, &o, Some(dir.path()), &Cancel::default(), note).expect("ladders")
        };
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let a = run(&mut first);
        let b = run(&mut second);
        assert!(first.is_empty() && !second.is_empty(), "{first:?} {second:?}");
        for (a, b) in a.iter().zip(&b) {
            // What was noisy is measured again; what was not is what it was.
            assert!(a == b || a.points.iter().any(|p| p.noisy), "the cache changed {}", a.layer);
            assert!(!second.contains(&a.layer) || !a.points.iter().any(|p| p.noisy), "{} was kept", a.layer);
        }
        let cancel = Cancel::default();
        cancel.cancel();
        let stopped = ladders(&graph, &groups, &o, None, &cancel, &mut |_| {});
        assert!(matches!(stopped, Err(crate::profile::ProfileError::Cancelled(_))));
    }
}
