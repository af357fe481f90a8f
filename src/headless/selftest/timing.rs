//! Times representative layers and holds the figures against what the device can do at most. A slow layer is no
//! failure; one faster than possible is, for then the clock or the work lies.

use super::cases::{self, Case};
use super::checks::{precision_at, precisions, step_of, uniform};
use crate::exec::device::Opened;
use crate::exec::{Cancel, CompileOptions, ExecError, Observer, Plan};
use crate::graph::{Graph, MacConvention, Precision, Precisions, macs, shapes};
use crate::model::random_params;
use crate::profile::{self, Bound, LatencyStats};
use crate::quant;
use anyhow::Result;
use candle_core::Tensor;
use serde::Serialize;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How far above a measured ceiling a rate may lie: ceilings are measured too, and on a busy machine too low.
const PLAUSIBLE: f64 = 1.3;
/// How often layer and ceilings are measured again before a clock is called a liar.
const AGAIN: usize = 4;
const RUNS: usize = 60;
const SPAN: Duration = Duration::from_millis(400);
/// A device that is done with one image in less than this is timed on [`MANY`]: a layer this small would be mostly the launch.
const SOON: Duration = Duration::from_millis(10);
const MANY: usize = 32;

/// What one layer took.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Timing {
    pub name: &'static str,
    pub precision: &'static str,
    pub kernel: String,
    pub images: usize,
    /// Median of the layer's step.
    pub ms: f64,
    /// Multiplications and additions as counted from the graph, where any are counted.
    pub gflops: Option<f64>,
    /// Weights as stored, inputs and outputs, each once: what the bandwidth is counted in too. Lines that are fetched only
    /// to be written over count in neither.
    pub gbs: f64,
    /// `gbs` over the bandwidth of the memory, for layers without counted arithmetic. Above one where a cache holds them.
    pub of_memory: Option<f64>,
    /// The larger of the shares of the arithmetic and the memory ceiling.
    pub share: f64,
    pub bound: Bound,
    pub passed: bool,
    pub note: Option<String>,
}

impl Timing {
    /// Nothing measured yet.
    fn new(name: &'static str, precision: Precision, kernel: &str, images: usize) -> Timing {
        Timing { name, precision: precision.label(), kernel: kernel.to_owned(), images, ..Timing::default() }
    }
}

/// Ceilings of the opened device; they only ever rise.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Peaks {
    pub f32_gflops: f64,
    /// Zero where the device has no int8 kernels.
    pub int8_gops: f64,
    pub bandwidth_gbs: f64,
}

impl Peaks {
    /// Measures. Besides [`profile::ceilings`], wide layers count, by a clock around the whole plan: our own
    /// kernels may beat the library that the ceilings are measured with.
    pub fn measure(opened: &Opened) -> Result<Peaks> {
        let c = match opened.device.is_cpu() {
            true => profile::ceilings(crate::exec::threads())?,
            false => {
                let (ceilings, notes) = profile::device_ceilings(&opened.device)?;
                anyhow::ensure!(notes.is_empty(), "{}", notes.join("; "));
                ceilings
            }
        };
        let dense = |precision| anyhow::Ok(dense_rate(opened, precision)?.unwrap_or(0.0));
        Ok(Peaks {
            f32_gflops: c.f32_gflops.max(dense(Precision::F32)?),
            int8_gops: c.int8_gops.max(dense(Precision::Int8)?),
            bandwidth_gbs: c.bandwidth_gbs,
        })
    }

    fn raise(&mut self, other: Peaks) {
        self.f32_gflops = self.f32_gflops.max(other.f32_gflops);
        self.int8_gops = self.int8_gops.max(other.int8_gops);
        self.bandwidth_gbs = self.bandwidth_gbs.max(other.bandwidth_gbs);
    }
}

/// Times every layer. `progress` is told how many are done.
pub(super) fn all(
    opened: &Opened,
    peaks: &mut Peaks,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Timing>> {
    let layers = cases::layers(&precisions(opened))?;
    let mut timings = Vec::new();
    for (i, layer) in layers.iter().enumerate() {
        cancel.check()?;
        progress(i, layers.len());
        match time(layer, opened, peaks) {
            Ok(timing) => timings.push(timing),
            // Checks have already said that the device refuses this precision.
            Err(e) if unsupported(&e) && !opened.device.is_cpu() && layer.precision != Precision::F32 => {}
            Err(e) => return Err(e.context(format!("timing `{}`", layer.name))),
        }
    }
    Ok(timings)
}

fn unsupported(e: &anyhow::Error) -> bool {
    matches!(e.downcast_ref(), Some(ExecError::Unsupported { .. }))
}

struct Samples {
    target: usize,
    ms: Vec<f64>,
}

impl Observer for Samples {
    fn step(&mut self, index: usize, elapsed: Duration, _: u64) {
        if index == self.target {
            self.ms.push(elapsed.as_secs_f64() * 1e3);
        }
    }
}

/// How many images `layer` is timed on.
fn images(layer: &Case, opened: &Opened) -> Result<usize> {
    // What reads its weights for one row is about that row.
    let one_row = matches!(layer.graph.input_shape()?[..], [1, _]);
    if opened.device.is_cpu() || one_row {
        return Ok(1);
    }
    let (plan, x) = prepare(&layer.graph, &precision_at(layer.precision), 1, opened)?;
    let mut session = plan.session();
    session.run(&x)?;
    let start = Instant::now();
    session.run(&x)?;
    Ok(if start.elapsed() < SOON { MANY } else { 1 })
}

fn time(layer: &Case, opened: &Opened, peaks: &mut Peaks) -> Result<Timing> {
    let images = images(layer, opened)?;
    let (plan, x) = prepare(&layer.graph, &precision_at(layer.precision), images, opened)?;
    let (target, step) = step_of(&plan)?;
    let node = &layer.graph.nodes[step.node.index()];
    let shapes = shapes(&layer.graph)?;
    let mut inputs = node.inputs.clone();
    inputs.dedup();
    let elements: usize = inputs.iter().map(|i| shapes[i.index()].iter().product::<usize>()).sum();
    let out: usize = step.out_shape.iter().product();
    let bytes = (step.held_bytes + 4 * (images * (elements + out)) as u64) as f64;
    let flops = 2.0 * (images as u64 * macs(&layer.graph)?[step.node.index()].get(MacConvention::Attention)) as f64;

    let mut timing = Timing::new(layer.name, layer.precision, &step.kernel, images);
    let mut cache = 0.0f64;
    for attempt in 0..=AGAIN {
        if attempt > 0 {
            // What else runs on this machine may have held the ceilings down and then let go; both anew, side by side.
            peaks.raise(Peaks::measure(opened)?);
        }
        let (ms, wall) = sample(&plan, &x, target)?;
        (timing.ms, timing.gbs) = (ms, bytes / ms / 1e6);
        timing.gflops = (flops > 0.0).then_some(flops / ms / 1e6);
        cache = cache.max(bandwidth_at(opened, bytes as usize, plan.threads())?);
        judge(&mut timing, peaks, cache, wall);
        if timing.passed {
            break;
        }
    }
    Ok(timing)
}

/// Medians of step `target` by the plan's clock, and of whole runs by the wall clock, in milliseconds.
fn sample(plan: &Plan, x: &Tensor, target: usize) -> Result<(f64, f64)> {
    let mut seen = Samples { target, ms: vec![] };
    let mut session = plan.session();
    for _ in 0..3 {
        session.run_observed(x, &mut seen)?;
    }
    seen.ms.clear();
    let mut wall = Vec::new();
    let start = Instant::now();
    while wall.len() < RUNS && (wall.len() < 5 || start.elapsed() < SPAN) {
        let t = Instant::now();
        black_box(session.run_observed(x, &mut seen)?);
        plan.device().synchronize()?;
        wall.push(t.elapsed().as_secs_f64() * 1e3);
    }
    Ok((LatencyStats::of(&seen.ms).p50, LatencyStats::of(&wall).p50))
}

/// Sets share, bound and verdict. `cache` is the bandwidth that a working set of this size can have, `wall` what whole
/// runs took, in milliseconds.
fn judge(t: &mut Timing, peaks: &Peaks, cache: f64, wall: f64) {
    // Tensor cores multiply as many 8-bit floats as bytes.
    let eight = [Precision::Int8, Precision::Fp8].iter().any(|p| t.precision == p.label());
    let peak = if eight { peaks.int8_gops } else { peaks.f32_gflops };
    // … or more: only a ceiling that was measured tells a lie.
    let inferred = t.precision == Precision::Fp8.label();
    let most = peaks.bandwidth_gbs.max(cache);
    let compute = t.gflops.map_or(0.0, |rate| rate / peak.max(1e-9));
    let memory = t.gbs / most.max(1e-9);
    t.of_memory = t.gflops.is_none().then(|| t.gbs / peaks.bandwidth_gbs.max(1e-9));
    (t.share, t.bound) = if compute > memory { (compute, Bound::Compute) } else { (memory, Bound::Memory) };
    t.note = if !t.ms.is_finite() || t.ms <= 0.0 {
        Some("the clock lies: the layer took no time".to_owned())
    } else if compute > PLAUSIBLE && !inferred {
        Some(format!("the clock lies: {compute:.1} times the {peak:.0} GFLOP/s that this device reaches"))
    } else if memory > PLAUSIBLE {
        Some(format!("the clock lies: {memory:.1} times the {most:.0} GB/s that {:.1} MB can move at", t.gbs * t.ms))
    } else if t.ms > wall * 1.1 {
        Some(format!("the clock lies: the layer took {:.3} ms of runs that took {wall:.3} ms", t.ms))
    } else {
        None
    };
    t.passed = t.note.is_none();
}

fn prepare(graph: &Graph, precision: &Precisions, images: usize, opened: &Opened) -> Result<(Plan, Tensor)> {
    let params = random_params(graph, 1);
    let plan = Plan::compile(graph, &params, precision, &CompileOptions::on(opened))?;
    let mut dims = vec![images];
    dims.extend(graph.input_shape()?);
    let x = Tensor::from_vec(uniform(dims.iter().product(), 2.0, 1), dims, &opened.device)?;
    Ok((plan, x))
}

/// Best rate of `work` a call, in units of 1e9 a second.
fn best(work: f64, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    call()?;
    let (start, mut rate, mut runs) = (Instant::now(), 0.0f64, 0);
    while runs < 3 || (start.elapsed() < SPAN / 2 && runs < 500) {
        let t = Instant::now();
        call()?;
        rate = rate.max(work / t.elapsed().as_secs_f64().max(1e-9) / 1e9);
        runs += 1;
    }
    Ok(rate)
}

/// GFLOP/s of linears and convolutions, whole runs by the wall clock; `None` where the device refuses the precision.
/// There are many in a run and they are wide, or turning, copying and quantizing would count for more than matrix units
/// do. On a busy CPU only short runs stay undisturbed, on a quiet one the long ones are faster: the best one counts.
fn dense_rate(opened: &Opened, precision: Precision) -> Result<Option<f64>> {
    let graphs = if opened.device.is_cpu() {
        let linears = [256, 512, 768].map(|inp| cases::linears(inp, 4 * inp, 256, 8));
        linears.into_iter().chain([cases::convolutions(8)]).collect()
    } else {
        let side = profile::busy_side(&opened.device)?;
        vec![cases::linears(side, side, side, 4)]
    };
    let mut most = 0.0f64;
    for graph in graphs {
        let graph = graph?;
        let (plan, x) = match prepare(&graph, &quant::everywhere(&graph, precision), 1, opened) {
            Err(e) if unsupported(&e) => return Ok(None),
            other => other?,
        };
        let counted: u64 = macs(&graph)?.iter().map(|m| m.get(MacConvention::ConvLinear)).sum();
        let mut session = plan.session();
        let rate = best(2.0 * counted as f64, || {
            black_box(session.run(&x)?);
            Ok(opened.device.synchronize()?)
        })?;
        most = most.max(rate);
    }
    Ok(Some(most))
}

/// GB/s of a working set of `bytes`, which a cache may hold.
fn bandwidth_at(opened: &Opened, bytes: usize, threads: usize) -> Result<f64> {
    if opened.device.is_cpu() {
        return Ok((0..3).map(|_| moved(bytes, threads)).fold(0.0, f64::max));
    }
    Ok(profile::device_bandwidth(&opened.device, bytes)?)
}

/// GB/s that `threads` reach together, each going over its own part of `bytes` again and again without waiting for the others:
/// copying one half of it to the other, or reading both, whichever is faster (a layer of one row does little but read). What
/// counts is each thread's best stretch, since a median of a layer's runs is of undisturbed ones too.
fn moved(bytes: usize, threads: usize) -> f64 {
    /// Times that a part is gone over between two looks at the clock.
    const STRETCH: usize = 8;
    let part = (bytes / 2 / threads.max(1)).max(4096);
    let (ready, done) = (Barrier::new(threads.max(1)), AtomicBool::new(false));
    let one = || {
        let (from, mut to) = (vec![1u8; part], vec![0u8; part]);
        ready.wait();
        let (start, mut most) = (Instant::now(), 0.0f64);
        while start.elapsed() < Duration::from_millis(25) {
            for copying in [true, false] {
                let stretch = Instant::now();
                for _ in 0..STRETCH {
                    if copying {
                        to.copy_from_slice(black_box(&from));
                    } else {
                        black_box(black_box(&from) == black_box(&to));
                    }
                    black_box(&mut to);
                }
                // Alone, a thread has the others' part of the memory; but one that the others left no time for counts all the same.
                if most == 0.0 || !done.load(Ordering::Relaxed) {
                    let rate = (STRETCH * 2 * part) as f64 / stretch.elapsed().as_secs_f64().max(1e-9) / 1e9;
                    most = most.max(rate);
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        most
    };
    std::thread::scope(|s| {
        let all: Vec<_> = (0..threads.max(1)).map(|_| s.spawn(one)).collect();
        all.into_iter().filter_map(|t| t.join().ok()).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(ms: f64, gflops: Option<f64>, gbs: f64) -> Timing {
        Timing { ms, gflops, gbs, ..Timing::new("x", Precision::F32, "k", 1) }
    }

    #[test]
    fn only_impossible_speed_fails() {
        let peaks = Peaks { f32_gflops: 100.0, int8_gops: 400.0, bandwidth_gbs: 10.0 };
        let verdict = |mut t: Timing, wall| {
            judge(&mut t, &peaks, 20.0, wall);
            (t.passed, t.bound, t.note)
        };
        let (slow, bound, _) = verdict(timing(5.0, Some(1.0), 0.1), 6.0);
        assert!(slow && bound == Bound::Compute, "a hundredth of the arithmetic, a two-hundredth of the memory");
        assert!(verdict(timing(1.0, Some(125.0), 1.0), 1.0).0, "ceilings are measured too");
        assert!(!verdict(timing(1.0, Some(140.0), 1.0), 1.0).0);
        assert!(verdict(timing(1.0, None, 25.0), 1.0).0, "a cache beats the memory");
        let mut cached = timing(1.0, None, 25.0);
        judge(&mut cached, &peaks, 20.0, 1.0);
        assert_eq!((cached.of_memory, cached.share), (Some(2.5), 1.25));
        let (passed, bound, note) = verdict(timing(1.0, None, 27.0), 1.0);
        assert!(!passed && bound == Bound::Memory && note.is_some_and(|n| n.contains("clock lies")));
        assert!(!verdict(timing(0.0, None, f64::INFINITY), 1.0).0);
        assert!(!verdict(timing(2.0, Some(1.0), 1.0), 1.0).0, "a part takes no longer than the whole");
    }

    #[test]
    fn int8_is_held_against_its_own_ceiling() {
        let peaks = Peaks { f32_gflops: 100.0, int8_gops: 400.0, bandwidth_gbs: 10.0 };
        let mut t = Timing { precision: "int8", ..timing(1.0, Some(300.0), 1.0) };
        judge(&mut t, &peaks, 10.0, 1.0);
        assert!(t.passed && t.bound == Bound::Compute && (t.share - 0.75).abs() < 1e-12);
    }

    #[test]
    fn moving_has_a_rate() {
        for threads in [1, 2] {
            let rate = moved(1 << 20, threads);
            assert!(rate.is_finite() && rate > 0.1, "{rate}");
        }
    }
}
