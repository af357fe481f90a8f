//! A profile of one model on one device: per-layer samples with observers on, whole-model latency with them off.
//!
//! Latency, here and everywhere: the median of whole runs of one batch without observers, warm, on the session's device
//! and threads. A row's latency is its part of that: the median of its time in runs with observers, which take turns with
//! the others, times [`Profile::scale`]. A factor is the median ratio of pairs of runs ([`super::paired_latency`]).
//!
//! On a GPU whole runs are replayed from a CUDA graph where a run can be captured (`exec::Launch`), and layers are launched one
//! by one with events between them: their times say how a run's latency divides, not what it is.
//!
//! Invariants: warm-up runs are never counted; a row's name is its step's leading node; what a row says of kernel,
//! precision and bytes is what the compiled plan reports. Rows stream out while samples come in.

use super::load::{Load, Watch};
use super::paired::{ORDER_SEED, Order, REPEAT_MS, REPEAT_WHOLE, pick};
use super::stats::{self, ms};
use super::turns::{Clock, LEAST, Turns};
use super::workload::{Counts, Decoding, Passes, Runs};
use super::{Bound, Ceilings, Doubt, Gauges, GpuFigures, LatencyStats, LayerRow, Profile, Result, Workload};
use crate::exec::{Cancel, Capabilities, CompileOptions, Kernels, Observer, PeakWatch, Plan, Support};
use crate::exec::{halving, smaller_batch};
use crate::graph::{Graph, Macs, Op, describe, experts};
use crate::model::Model;
use crate::quant::Precision;
use candle_core::{Device, Tensor};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How to profile.
#[derive(Debug, Clone)]
pub struct ProfileOptions {
    pub batch: usize,
    /// Observed runs that count, and as many without observers, unless `time_limit` ends them first (never fewer than five).
    pub runs: usize,
    pub threads: Option<usize>,
    pub device: Device,
    /// The device in words, for the record.
    pub device_words: String,
    pub time_limit: Duration,
    /// How long the whole model may go on being run, without observers, so that there are enough runs for a 99th percentile; they are not begun
    /// where they would take longer.
    pub tail: Duration,
    /// Known ceilings, or `None` to measure them first.
    pub ceilings: Option<Ceilings>,
    pub watch: Watch,
    pub workload: Workload,
    /// Passes too multiply weights as they are stored, as tokens always do. Where forecasts rest on them ladders are of such kernels too
    /// (`LadderOptions::stored`).
    pub as_stored: bool,
}

impl ProfileOptions {
    /// What `tail` is where a 99th percentile is wanted.
    pub const TAIL: Duration = Duration::from_secs(8);
}

impl Default for ProfileOptions {
    fn default() -> ProfileOptions {
        ProfileOptions {
            batch: 1,
            runs: 40,
            threads: None,
            device: Device::Cpu,
            device_words: crate::exec::device::cpu_words(),
            time_limit: Duration::from_secs(12),
            tail: Duration::ZERO,
            ceilings: None,
            watch: Watch::System,
            workload: Workload::Pass,
            as_stored: false,
        }
    }
}

/// What streams out while profiling.
#[derive(Debug, Clone, PartialEq)]
pub enum ProfileUpdate {
    Ceilings(Ceilings),
    /// After every observed run: statistics so far, per row in order.
    Rows {
        runs: usize,
        rows: Vec<(String, LatencyStats)>,
    },
    /// Runs that count so far.
    Progress {
        label: &'static str,
        done: usize,
        total: usize,
    },
}

/// Energy counters move several times a second only.
const ENERGY_WINDOW: Duration = Duration::from_secs(2);

/// How far two measurements of the same row lie off even on a quiet machine, as a part of it; see [`REPEAT_WHOLE`]. Two lay 15 %
/// apart.
const REPEAT_ROW: f64 = 0.08;
/// Scatter of less than this part of the whole model's latency decides nothing.
const MATTERS: f64 = 0.005;

/// Profiles `model` as it stands, precision plan included. Where the device runs out of memory, half the batch is tried, and
/// so on; the profile's notes say so.
///
/// # Errors
/// Whatever compiling or running reports, and cancellation.
pub fn profile(
    model: &Model,
    options: &ProfileOptions,
    cancel: &Cancel,
    update: &mut dyn FnMut(ProfileUpdate),
) -> Result<Profile> {
    let threads = options.threads.unwrap_or_else(crate::exec::device::threads);
    let as_stored = options.as_stored || !options.workload.is_pass();
    let (device, threads_asked) = (options.device.clone(), options.threads);
    let compile = CompileOptions { device, threads: threads_asked, as_stored, ..CompileOptions::default() };
    // Before the ceilings: a model that does not fit is told at once, and they make do with the memory that it leaves.
    let plan = Plan::of(model, &compile)?;
    let (ceilings, unknown) = match options.ceilings {
        Some(c) => (c, Vec::new()),
        None if options.device.is_cpu() => (super::ceilings(threads)?, Vec::new()),
        None => super::device_ceilings(&options.device)?,
    };
    update(ProfileUpdate::Ceilings(ceilings));
    cancel.check()?;
    if let Workload::Decode { context, kv } = options.workload {
        let options = ProfileOptions { batch: 1, ..options.clone() };
        return measure(&mut Decoding::new(&plan, context, kv, cancel)?, &options, ceilings, cancel, update);
    }
    let mut session = plan.session();
    let (mut profile, batch) = halving(options.batch.max(1), |batch| {
        let (x, options) = (noise(&model.graph, batch, &options.device)?, ProfileOptions { batch, ..options.clone() });
        measure(&mut Passes { session: &mut session, x: &x }, &options, ceilings, cancel, update)
    })?;
    profile.notes.splice(0..0, unknown);
    profile.notes.extend(smaller_batch(options.batch, batch));
    Ok(profile)
}

/// One profile of what `runs`.
fn measure(
    runs: &mut dyn Runs,
    options: &ProfileOptions,
    ceilings: Ceilings,
    cancel: &Cancel,
    update: &mut dyn FnMut(ProfileUpdate),
) -> Result<Profile> {
    let threads = options.threads.unwrap_or_else(crate::exec::device::threads);
    let plan = runs.plan().clone();
    let and_time = |what: String| what + "; their latency is of what they were sent here";
    let mut notes: Vec<String> = experts::counted(plan.graph()).map(and_time).into_iter().collect();
    let mut seen = Samples::new(plan.steps().len());
    for _ in 0..2 {
        cancel.check()?;
        runs.run()?;
    }
    runs.observed(&mut seen)?;
    seen.clear();
    // After the warm-up, when libraries have what they keep.
    let watch = PeakWatch::start(&options.device)?;
    runs.run()?;
    let memory = watch.map(|w| w.peak()).transpose()?;
    let launch = runs.prepare()?;
    notes.extend(launch.complaint());
    let names: Vec<String> = plan.steps().iter().map(|s| s.name.clone()).collect();
    let busy = if options.device.is_cpu() { threads } else { 1 };
    let &ProfileOptions { runs: wanted, time_limit, ref watch, .. } = options;
    let clock = Clock::of(&options.device);
    let turns = Turns { wanted, least: LEAST, time_limit, threads: busy, watch, cancel, clock };
    let mut whole_ms = Vec::new();
    let mut order = Order::new(ORDER_SEED);
    let began = Gauges::moment();
    let counted = turns.take(|round| {
        for observed in order.pair() {
            if observed {
                runs.observed(&mut seen)?;
            } else {
                whole_ms.push(runs.timed()?);
            }
        }
        let rows = names.iter().zip(&seen.ms).map(|(n, s)| (n.clone(), LatencyStats::of(s))).collect();
        update(ProfileUpdate::Rows { runs: round + 1, rows });
        update(ProfileUpdate::Progress { label: "layers", done: (round + 1).min(options.runs), total: options.runs });
        Ok(())
    })?;
    let load = Load { gpu_others: Gauges::others_on(&options.device, watch, began), ..counted.load };
    let mut taken = pick(&whole_ms, &counted.rounds);
    taken.extend(tail(runs, &turns, options.tail, &taken, update)?);
    let whole = LatencyStats { replayed: launch.is_replayed(), ..LatencyStats::of(&taken) };
    let doubt = whole.doubt(&load);
    let whole = whole.at_least(REPEAT_WHOLE, REPEAT_MS);
    for samples in &mut seen.ms {
        *samples = pick(samples, &counted.rounds);
    }
    notes.extend(load.words());
    if let Some(why) = doubt {
        notes.push(format!("the whole model's latency is in doubt: {why}; measure again when the machine is quiet"));
    }

    let mut gpu = memory.map(|m| GpuFigures {
        peak_used_bytes: m.used,
        peak_reserved_bytes: m.reserved,
        ..GpuFigures::default()
    });
    match (Gauges::of(&options.device), &mut gpu) {
        (Some(Ok(gauges)), Some(gpu)) => energy(runs, &gauges, cancel, gpu)?,
        (Some(Err(why)), _) => notes.push(why),
        _ => {}
    }

    let facts = Facts::of(&plan, options.workload)?;
    let mut rows = rows(&plan, &facts, &seen, options.batch, ceilings, &load);
    for r in rows.iter_mut().filter(|r| matches!(r.doubt, Some(Doubt::Scatter { .. }))) {
        if r.latency.spread() * r.latency.p50 < MATTERS * whole.p50 {
            r.doubt = None;
        }
    }
    stats::outliers(&mut rows);
    Ok(Profile {
        device: options.device_words.clone(),
        threads,
        batch: options.batch,
        workload: options.workload,
        runs: counted.rounds.len(),
        ceilings,
        whole,
        doubt,
        load: Some(load),
        weight_bytes: plan.weight_bytes(),
        cache_bytes: facts.counts.cached.iter().sum(),
        params: facts.params,
        macs: facts.counts.macs.iter().copied().sum(),
        peak_activation_bytes: memory.map_or_else(|| peak(&plan, &facts, options.batch), |m| m.above_start),
        sampled: None,
        gpu,
        // Nothing is run for those: who wants them looks at the weights.
        parameters: Vec::new(),
        notes,
        rows,
    })
}

/// What further runs of the whole model take, milliseconds each: as many as a 99th percentile needs beyond those that were `taken`, where they end
/// within `limit`; none where they would not.
fn tail(
    runs: &mut dyn Runs,
    turns: &Turns<'_>,
    limit: Duration,
    taken: &[f64],
    update: &mut dyn FnMut(ProfileUpdate),
) -> Result<Vec<f64>> {
    let wanted = LatencyStats::TAIL.saturating_sub(taken.len());
    let one = LatencyStats::of(taken).mean / 1e3;
    if wanted == 0 || one * wanted as f64 > limit.as_secs_f64() {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    let turns = Turns { wanted, least: 0, time_limit: limit, ..*turns };
    let counted = turns.take(|round| {
        all.push(runs.timed()?);
        update(ProfileUpdate::Progress { label: "whole runs", done: (round + 1).min(wanted), total: wanted });
        Ok(())
    })?;
    Ok(pick(&all, &counted.rounds))
}

/// Runs on for as long as the board's counters need to tell anything, and fills in what they told.
fn energy(runs: &mut dyn Runs, gauges: &Gauges, cancel: &Cancel, gpu: &mut GpuFigures) -> Result<()> {
    let (before, start) = (gauges.read(), Instant::now());
    let mut images = 0;
    while start.elapsed() < ENERGY_WINDOW {
        cancel.check()?;
        runs.run()?;
        images += runs.items();
    }
    let after = gauges.read();
    gpu.gauges = Some(after);
    let spent = before.energy_mj.zip(after.energy_mj).map(|(a, b)| b.saturating_sub(a));
    gpu.energy_mj_per_image = spent.map(|mj| mj as f64 / images.max(1) as f64);
    Ok(())
}

/// A batch of what `graph` takes, seeded: normal noise `[batch, c, h, w]`, since dense kernels take the same time whatever
/// the values, or token ids `[batch, t]` from all over the vocabulary.
///
/// # Errors
/// A graph that leaves its number of tokens free; no room on the device.
pub fn noise(graph: &Graph, batch: usize, device: &Device) -> Result<Tensor> {
    use rand::{Rng, SeedableRng};
    let mut dims = vec![batch.max(1)];
    dims.extend(graph.input_shape()?);
    let n = dims.iter().product();
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0x9a71);
    if let Some(vocab) = graph.vocabulary() {
        let ids: Vec<u32> = (0..n).map(|_| rng.random_range(0..vocab.max(1) as u32)).collect();
        return Ok(Tensor::from_vec(ids, dims, device)?);
    }
    // A sum of three uniforms is near enough to normal here.
    let values: Vec<f32> = (0..n).map(|_| (0..3).map(|_| rng.random_range(-1.0f32..1.0)).sum()).collect();
    Ok(Tensor::from_vec(values, dims, device)?)
}

/// Samples per step, in milliseconds.
struct Samples {
    ms: Vec<Vec<f64>>,
    out_bytes: Vec<u64>,
}

impl Samples {
    fn new(steps: usize) -> Samples {
        Samples { ms: vec![Vec::new(); steps], out_bytes: vec![0; steps] }
    }

    fn clear(&mut self) {
        self.ms.iter_mut().for_each(Vec::clear);
    }
}

impl Observer for Samples {
    fn step(&mut self, index: usize, elapsed: Duration, out_bytes: u64) {
        if let (Some(s), Some(b)) = (self.ms.get_mut(index), self.out_bytes.get_mut(index)) {
            s.push(ms(elapsed));
            *b = out_bytes;
        }
    }
}

/// Counts per node.
struct Facts {
    counts: Counts,
    params: u64,
    index: HashMap<String, usize>,
}

impl Facts {
    fn of(plan: &Plan, workload: Workload) -> Result<Facts> {
        let graph = plan.graph();
        Ok(Facts {
            counts: Counts::of(graph, plan.kv(), workload)?,
            params: graph.live().map(|(_, n)| graph.params_of(n)).sum(),
            index: graph.iter().map(|(i, n)| (n.name.clone(), i.index())).collect(),
        })
    }

    /// The nodes of a step: the leading one first.
    fn nodes(&self, name: &str, fused: &[String]) -> Vec<usize> {
        let mut nodes: Vec<usize> = Vec::new();
        for n in std::iter::once(name).chain(fused.iter().map(String::as_str)) {
            nodes.extend(self.index.get(n).copied().filter(|i| !nodes.contains(i)));
        }
        nodes
    }

    fn elements(&self, node: usize) -> u64 {
        self.counts.shapes.get(node).map_or(0, |s| s.iter().product::<usize>() as u64)
    }

    /// Values that the step reads from other steps.
    fn inputs(&self, graph: &Graph, nodes: &[usize]) -> Vec<usize> {
        let mut inputs: Vec<usize> = nodes
            .iter()
            .filter_map(|&n| graph.nodes.get(n))
            .flat_map(|n| n.inputs.iter().map(|i| i.index()))
            .filter(|i| !nodes.contains(i))
            .collect();
        inputs.sort_unstable();
        inputs.dedup();
        inputs
    }
}

/// What the arithmetic of a precision can reach, in GFLOP/s. Tensor cores do half as many products of 16 bits as of 8, and as many
/// of 8-bit floats as of int8 (NVIDIA's data sheets of A100, L40S, H100), where they are what multiplies.
fn arithmetic(precision: Precision, support: Support, ceilings: Ceilings) -> f64 {
    match (precision, support) {
        (Precision::Int8 | Precision::Int8Static, _) | (Precision::Fp8, Support::Real) => ceilings.int8_gops,
        (Precision::F16 | Precision::Bf16, Support::Real) if ceilings.int8_gops <= 0.0 => 0.0,
        (Precision::F16 | Precision::Bf16, Support::Real) => (ceilings.int8_gops / 2.0).max(ceilings.f32_gflops),
        _ => ceilings.f32_gflops,
    }
}

/// Which ceiling a layer is under that does `flops` operations and moves so many bytes in `ms`, and what part of it that
/// reaches: above 1 where a cache holds what memory would have to bring, or where the ceiling of arithmetic was measured too low. It
/// is left so, since a plain 1 would say that there is nothing to gain. `peak` in GFLOP/s, `bandwidth` in GB/s; where the one that would
/// tell is not known (0), neither is what binds.
fn under(flops: f64, moved: f64, ms: f64, peak: f64, bandwidth: f64) -> (Bound, f64) {
    let rate = |done: f64| done / (ms.max(1e-9) * 1e-3) / 1e9;
    match (peak > 0.0, bandwidth > 0.0) {
        (true, true) if flops * bandwidth < peak * moved => (Bound::Memory, rate(moved) / bandwidth),
        (true, true) => (Bound::Compute, rate(flops) / peak),
        // Nothing to compute: memory it is, however fast.
        (_, true) if flops <= 0.0 => (Bound::Memory, rate(moved) / bandwidth),
        (_, false) if flops <= 0.0 => (Bound::Memory, 0.0),
        _ => (Bound::Unknown, 0.0),
    }
}

fn rows(plan: &Plan, facts: &Facts, seen: &Samples, batch: usize, ceilings: Ceilings, load: &Load) -> Vec<LayerRow> {
    let graph = plan.graph();
    let stats: Vec<LatencyStats> = seen.ms.iter().map(|s| LatencyStats::of(s)).collect();
    let total: f64 = stats.iter().map(|s| s.p50).sum();
    let capable = Capabilities::of(plan.device(), Kernels::Device);
    let sent = experts::places(graph);
    let mut rows = Vec::new();
    for (i, step) in plan.steps().iter().enumerate() {
        let nodes = facts.nodes(&step.name, &step.fused);
        let (Some(&lead), Some(latency)) = (nodes.first(), stats.get(i).copied()) else { continue };
        let Some(node) = graph.nodes.get(lead) else { continue };
        let macs: Macs = nodes.iter().filter_map(|&n| facts.counts.macs.get(n)).copied().sum();
        let out_bytes = seen.out_bytes.get(i).copied().unwrap_or(0);
        let in_bytes: u64 = facts.inputs(graph, &nodes).iter().map(|&n| facts.elements(n) * 4 * batch as u64).sum();
        let cached: u64 = nodes.iter().filter_map(|&n| facts.counts.cached.get(n)).sum();
        // Of a table only the rows that were asked for are read.
        let table = matches!(node.op, Op::Embedding(_));
        let weights = if table { step.held_bytes.min(out_bytes) } else { step.held_bytes };
        let moved = (weights + in_bytes + out_bytes + cached).max(1) as f64;
        let flops = 2.0 * ((macs.conv_linear + macs.attention) * batch as u64) as f64;
        let peak = arithmetic(step.precision, capable.support(step.precision), ceilings);
        // How many tokens an expert was sent in these runs is not counted.
        let (bound, efficiency) = match sent[lead] {
            Some(_) => (Bound::Unknown, 0.0),
            None => under(flops, moved, latency.p50, peak, ceilings.bandwidth_gbs),
        };
        rows.push(LayerRow {
            name: step.name.clone(),
            kind: describe(&node.op),
            block: graph.block_of(crate::graph::NodeId(lead as u32)).map(|b| b.name.clone()),
            fused: step.fused.iter().filter(|f| **f != step.name).cloned().collect(),
            kernel: step.kernel.clone(),
            precision: step.precision,
            doubt: latency.doubt(load),
            latency: latency.at_least(REPEAT_ROW, REPEAT_MS),
            share: if total > 0.0 { latency.p50 / total } else { 0.0 },
            weight_bytes: step.weight_bytes,
            activation_bytes: out_bytes,
            params: nodes.iter().filter_map(|&n| graph.nodes.get(n)).map(|n| graph.params_of(n)).sum(),
            macs,
            intensity: flops / moved,
            bound,
            efficiency,
            out_shape: nodes.last().and_then(|&n| facts.counts.shapes.get(n)).cloned().unwrap_or_default(),
        });
    }
    rows
}

/// Largest sum of step outputs alive at once, image included, in bytes for the whole batch.
fn peak(plan: &Plan, facts: &Facts, batch: usize) -> u64 {
    let graph = plan.graph();
    let steps: Vec<Vec<usize>> = plan.steps().iter().map(|s| facts.nodes(&s.name, &s.fused)).collect();
    // Which step makes each value, and the last that reads it.
    let mut last_use: HashMap<usize, usize> = HashMap::new();
    for (at, nodes) in steps.iter().enumerate() {
        for i in facts.inputs(graph, nodes) {
            last_use.insert(i, at);
        }
    }
    let bytes = |n: usize| facts.elements(n) * 4 * batch as u64;
    let input = (0..graph.nodes.len()).find(|&n| graph.nodes[n].inputs.is_empty());
    let mut alive: Vec<usize> = input.into_iter().collect();
    let mut most = 0;
    for (at, nodes) in steps.iter().enumerate() {
        let out = nodes.iter().max().copied();
        alive.extend(out.filter(|o| !alive.contains(o)));
        most = most.max(alive.iter().map(|&n| bytes(n)).sum());
        alive.retain(|n| last_use.get(n).is_some_and(|&u| u > at));
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::families::{CifarResnetSpec, FamilySpec};
    use crate::model::random;

    fn model() -> Model {
        random(&FamilySpec::CifarResnet(CifarResnetSpec { blocks: 1, widths: [4, 8, 8], classes: 10, image: 16 }), 1)
    }

    fn options() -> ProfileOptions {
        let ceilings = Some(Ceilings { f32_gflops: 100.0, int8_gops: 300.0, bandwidth_gbs: 10.0 });
        ProfileOptions {
            batch: 2,
            runs: 6,
            threads: Some(1),
            ceilings,
            watch: Watch::Quiet,
            ..ProfileOptions::default()
        }
    }

    #[test]
    fn rows_account_for_the_whole_model() {
        let model = model();
        let mut streamed = 0;
        let p = profile(&model, &options(), &Cancel::default(), &mut |u| {
            streamed += usize::from(matches!(u, ProfileUpdate::Rows { .. }));
        })
        .expect("profile");
        assert_eq!((streamed, p.runs, p.batch, p.whole.n), (6, 6, 2, 6));
        assert_eq!(p.rows.iter().map(|r| r.macs).sum::<Macs>(), p.macs);
        assert_eq!(p.rows.iter().map(|r| r.params).sum::<u64>(), p.params);
        assert_eq!(p.rows.iter().map(|r| r.weight_bytes).sum::<u64>(), p.weight_bytes);
        assert!((p.rows.iter().map(|r| r.share).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(p.whole.p50 > 0.0 && p.rows.iter().all(|r| r.latency.n == 6));
        let conv = p.rows.iter().find(|r| r.name == "conv1").expect("stem row");
        assert_eq!(conv.out_shape, vec![4, 16, 16]);
        assert_eq!(conv.activation_bytes, 2 * 4 * 16 * 16 * 4);
        assert!(conv.intensity > 0.0 && conv.efficiency >= 0.0);
        // At least the stem's input and output, at most everything ever made.
        let all: u64 = p.rows.iter().map(|r| r.activation_bytes).sum::<u64>() + 2 * 3 * 16 * 16 * 4;
        assert!(p.peak_activation_bytes >= conv.activation_bytes + 2 * 3 * 16 * 16 * 4);
        assert!(p.peak_activation_bytes < all);
    }

    #[test]
    fn a_rows_ceiling_is_that_of_what_multiplies_it() {
        let c = Ceilings { f32_gflops: 100.0, int8_gops: 300.0, bandwidth_gbs: 10.0 };
        assert_eq!([Support::Real, Support::Simulated].map(|s| arithmetic(Precision::F16, s, c)), [150.0, 100.0]);
        assert_eq!([Support::Real, Support::Simulated].map(|s| arithmetic(Precision::Fp8, s, c)), [300.0, 100.0]);
        assert_eq!([Precision::Int8, Precision::W4].map(|p| arithmetic(p, Support::Real, c)), [300.0, 100.0]);
    }

    #[test]
    fn a_row_above_its_ceiling_says_so_and_one_without_says_nothing() {
        // A millisecond: 100 GFLOP/s are 1e8 operations, 10 GB/s 1e7 bytes.
        let close = |(bound, part): (Bound, f64), wanted: (Bound, f64)| {
            assert!(bound == wanted.0 && (part - wanted.1).abs() < 1e-9, "{bound:?} {part}, not {wanted:?}");
        };
        close(under(2e8, 1e6, 1.0, 100.0, 10.0), (Bound::Compute, 2.0));
        close(under(1e6, 3e7, 1.0, 100.0, 10.0), (Bound::Memory, 3.0));
        close(under(1e6, 5e6, 1.0, 100.0, 10.0), (Bound::Memory, 0.5));
        close(under(1e8, 1e6, 1.0, 100.0, 0.0), (Bound::Unknown, 0.0));
        close(under(1e8, 1e6, 1.0, 0.0, 10.0), (Bound::Unknown, 0.0));
        close(under(0.0, 5e6, 1.0, 0.0, 10.0), (Bound::Memory, 0.5));
        close(under(0.0, 5e6, 1.0, 100.0, 0.0), (Bound::Memory, 0.0));
    }

    #[test]
    fn int8_rows_say_so_and_hold_fewer_bytes() {
        let mut quantized = model();
        for n in quantized.graph.clone().nodes.iter().filter(|n| matches!(n.op, crate::graph::Op::Conv2d(_))) {
            quantized.precision.set(n.name.clone(), Precision::Int8);
        }
        let run = |m: &Model| profile(m, &options(), &Cancel::default(), &mut |_| {}).expect("profile");
        let (a, b) = (run(&model()), run(&quantized));
        assert!(b.rows.iter().any(|r| r.precision == Precision::Int8));
        assert!(b.weight_bytes < a.weight_bytes / 2);
    }

    #[test]
    fn a_tail_is_known_where_there_is_time_for_it() {
        let spec = CifarResnetSpec { blocks: 1, widths: [4, 8, 8], classes: 10, image: 16 };
        let model = random(&FamilySpec::CifarResnet(spec), 1);
        let of = |tail| {
            let options = ProfileOptions { tail, ..options() };
            profile(&model, &options, &Cancel::default(), &mut |_| {}).unwrap()
        };
        let p = of(Duration::from_secs(60));
        assert_eq!((p.runs, p.whole.n), (6, LatencyStats::TAIL));
        assert!(p.whole.p99().is_some_and(|p99| p99 >= p.whole.p95), "{:?}", p.whole);
        // Rows have the samples that they had.
        assert!(p.rows.iter().all(|r| r.latency.n <= 6));
        let short = of(Duration::from_nanos(1));
        assert_eq!((short.whole.n, short.whole.p99()), (6, None));
    }

    #[test]
    fn cancellation_ends_it() {
        let cancel = Cancel::default();
        let r = profile(&model(), &options(), &cancel, &mut |u| {
            if matches!(u, ProfileUpdate::Rows { runs: 2, .. }) {
                cancel.cancel();
            }
        });
        assert!(r.is_err_and(|e| matches!(e, crate::profile::ProfileError::Cancelled(_))));
    }
}
