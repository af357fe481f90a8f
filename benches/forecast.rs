//! Forecast against measurement: how far the whole-model latency that a session forecasts for a plan is from what the
//! plan takes once it is applied.
//!
//! `cargo bench --bench forecast [-- FILTER] [--batch N] [--plans N] [--rows] [--cache DIR]`. Profiles and measures the
//! latency ladders of ResNet-50 and ViT-B/16 (random weights: dense kernels take the same time whatever the values) as a
//! session's host does, then draws seeded random plans (a random part of the groups at random allowed ratios; in every
//! other plan also random layers in int8), forecasts each, applies it and times it against the original in turns.
//! Errors are of the ratio to the original's latency. `--rows` times the steps of the worst plans and prints those that
//! are off the most; `--cache` keeps ladders between runs, as a session does.

use paring::exec::{Cancel, CompileOptions, ExecError, Observer, Plan};
use paring::graph::Op;
use paring::graph::op;
use paring::model::families::{ResnetSpec, VitDims, VitSpec};
use paring::model::{FamilySpec, Model, random};
use paring::plan::Forecaster;
use paring::profile::{self, LadderOptions, PairedOptions, ProfileOptions, Sensitivity};
use paring::prune::{self, Action, Group, Target};
use paring::quant::Precision;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::PathBuf;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;
type Actions = Vec<(Target, Action)>;

struct Args {
    filter: String,
    batch: usize,
    plans: usize,
    rows: bool,
    cache: Option<PathBuf>,
}

fn args() -> Args {
    let mut a = Args { filter: String::new(), batch: 1, plans: 50, rows: false, cache: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--batch" => a.batch = words.next().and_then(|n| n.parse().ok()).unwrap_or(a.batch),
            "--plans" => a.plans = words.next().and_then(|n| n.parse().ok()).unwrap_or(a.plans),
            "--cache" => a.cache = words.next().map(PathBuf::from),
            "--rows" => a.rows = true,
            // Cargo's own flag for benches.
            "--bench" => {}
            other => a.filter = other.to_owned(),
        }
    }
    a
}

fn models() -> Vec<(&'static str, FamilySpec)> {
    let vit = VitSpec::timm(VitDims::base16());
    let resnet = ResnetSpec::depth(50, 1000).map(|s| ("resnet50", FamilySpec::Resnet(s)));
    resnet.into_iter().chain([("vit_b16", FamilySpec::Vit(vit))]).collect()
}

/// A random plan: how many groups it touches and how far it cuts are drawn first, so that mild and harsh plans occur.
fn draw(model: &Model, groups: &[Group], int8: bool, rng: &mut ChaCha8Rng) -> Actions {
    let mut free: Vec<&Group> = groups.iter().filter(|g| g.protected.is_none() && g.size > g.granule).collect();
    free.shuffle(rng);
    let count = rng.random_range(1..=free.len());
    let most = rng.random_range(0.2..0.85);
    let mut actions: Actions = Vec::new();
    for g in free.into_iter().take(count) {
        let kept = g.kept_at(rng.random_range(0.0..most));
        if kept < g.size {
            // Which units stay does not change the time.
            let action = Action::Prune { ratio: g.ratio_of(kept), kept: (0..kept as u32).collect() };
            actions.push((Target::Group(g.id.clone()), action));
        }
    }
    if int8 {
        let part = rng.random_range(0.1..1.0);
        let dense = model.graph.nodes.iter().filter(|n| n.op.is_conv_or_linear());
        for n in dense {
            if rng.random_bool(part) {
                actions.push((Target::Layer(n.name.clone()), Action::Precision { precision: Precision::Int8 }));
            }
        }
    }
    actions
}

struct Trial {
    index: usize,
    int8: bool,
    actions: Actions,
    macs: f64,
    forecast: f64,
    range: (f64, f64),
    measured: f64,
    /// Of the fastest runs: what other programs on the machine disturb least.
    fastest: f64,
}

impl Trial {
    fn error(&self) -> f64 {
        self.forecast / self.measured - 1.0
    }
}

fn compare(name: &str, spec: &FamilySpec, a: &Args) -> Outcome<()> {
    let model = random(spec, 1);
    let groups = prune::groups(&model.graph);
    let cancel = Cancel::default();
    let options = ProfileOptions { batch: a.batch, ..ProfileOptions::default() };
    let base = profile::profile(&model, &options, &cancel, &mut |_| {})?;
    let options = LadderOptions { batch: a.batch, ..LadderOptions::default() };
    let start = Instant::now();
    let ladders = profile::ladders(&model.graph, &groups, &options, a.cache.as_deref(), &cancel, &mut |_| {})?;
    let sum: f64 = base.rows.iter().map(|r| r.latency.p50).sum();
    println!(
        "\n{name}, batch {}: {:.2} ms (rows add up to {sum:.2}); {} rungs of {} layers in {:.0} s",
        a.batch,
        base.whole.p50,
        ladders.iter().map(|l| l.points.len()).sum::<usize>(),
        ladders.len(),
        start.elapsed().as_secs_f64()
    );
    let forecaster = Forecaster::new(&model.graph, &groups, &base, &ladders, &Sensitivity::default());
    let original = Plan::of(&model, &CompileOptions::default())?;
    let x = profile::noise(&model.graph, a.batch, &paring::exec::CompileOptions::default().device)?;
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut trials = Vec::new();
    for index in 0..a.plans {
        let int8 = index % 2 == 1;
        let actions = draw(&model, &groups, int8, &mut rng);
        let f = forecaster.actions(&actions);
        if !f.skipped.is_empty() {
            return Err(format!("plan {index} does not combine: {}", f.skipped.join("; ")).into());
        }
        let small = Plan::of(&prune::apply(&model, &groups, &actions)?, &CompileOptions::default())?;
        let paired = PairedOptions { runs: 15, time_limit: Duration::from_secs(3), ..PairedOptions::default() };
        let (paired, _) = profile::paired_latency(&original, &small, &x, &paired, &cancel, &mut |_, _| {})?;
        trials.push(Trial {
            index,
            int8,
            actions,
            macs: f.macs.value,
            forecast: f.latency.value,
            range: (f.latency.low, f.latency.high),
            measured: paired.ratio.value,
            fastest: paired.new.min / paired.base.min,
        });
    }
    table(&trials);
    trials.sort_by(|a, b| b.error().abs().total_cmp(&a.error().abs()));
    println!("  worst plans: number, precision, MACs, forecast [range], measured (fastest), error");
    for t in trials.iter().take(6) {
        let precision = if t.int8 { "int8" } else { "f32" };
        println!(
            "  {:>3} {precision:<5} {:.3}x  {:.3}x [{:.3}, {:.3}]  {:.3}x ({:.3}x)  {:+.1} %",
            t.index,
            t.macs,
            t.forecast,
            t.range.0,
            t.range.1,
            t.measured,
            t.fastest,
            100.0 * t.error()
        );
        if a.rows {
            blame(&model, &groups, &forecaster, &original, &x, t)?;
        }
    }
    Ok(())
}

/// Median, p90 and largest error of all plans and of either half; how often the range held the measurement.
fn table(trials: &[Trial]) {
    println!("  plans             n   median      p90      max     bias  within range");
    let median: fn(&Trial) -> f64 = |t| t.measured;
    let rows = [
        ("all", None, median),
        ("f32 only", Some(false), median),
        ("with int8", Some(true), median),
        ("fastest runs", None, |t: &Trial| t.fastest),
    ];
    for (name, wanted, measured) in rows {
        let of: Vec<&Trial> = trials.iter().filter(|t| wanted.is_none_or(|w| w == t.int8)).collect();
        let error = |t: &Trial| 100.0 * (t.forecast / measured(t) - 1.0);
        let mut errors: Vec<f64> = of.iter().map(|t| error(t).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let Some(last) = errors.len().checked_sub(1) else { continue };
        let at = |part: f64| errors[(part * last as f64).round() as usize];
        let bias = of.iter().map(|t| error(t)).sum::<f64>() / of.len() as f64;
        let held = of.iter().filter(|t| t.range.0 <= measured(t) && measured(t) <= t.range.1).count();
        println!(
            "  {name:<15} {:>3} {:>6.1} % {:>6.1} % {:>6.1} % {bias:>+6.1} %  {held}/{}",
            of.len(),
            at(0.5),
            at(0.9),
            at(1.0),
            of.len()
        );
    }
}

struct Steps(Vec<Vec<f64>>);

impl Observer for Steps {
    fn step(&mut self, index: usize, elapsed: Duration, _: u64) {
        self.0[index].push(elapsed.as_secs_f64() * 1e3);
    }
}

impl Steps {
    fn fast(&mut self, index: usize) -> f64 {
        self.0[index].sort_by(f64::total_cmp);
        // Nine samples on a machine that others may use: the fastest quarter says what the step takes when left alone.
        self.0[index].get(self.0[index].len() / 4).copied().unwrap_or(f64::NAN)
    }
}

/// Observed step times of the plan against what the forecast gives each row, the furthest off first.
fn blame(
    model: &Model,
    groups: &[Group],
    forecaster: &Forecaster,
    original: &Plan,
    x: &candle_core::Tensor,
    t: &Trial,
) -> Outcome<()> {
    let small = prune::apply(model, groups, &t.actions)?;
    let plan = Plan::of(&small, &CompileOptions::default())?;
    let (mut before, mut after) = (original.session(), plan.session());
    let (mut old, mut new) = (Steps(vec![vec![]; original.steps().len()]), Steps(vec![vec![]; plan.steps().len()]));
    let mut both = |old: &mut Steps, new: &mut Steps| -> Result<(), ExecError> {
        before.run_observed(x, old)?;
        after.run_observed(x, new)?;
        Ok(())
    };
    both(&mut old, &mut new)?;
    old.0.iter_mut().chain(&mut new.0).for_each(Vec::clear);
    for _ in 0..9 {
        both(&mut old, &mut new)?;
    }
    let rows = forecaster.costs.rows(&t.actions)?;
    let mut lines = Vec::new();
    let (mut base, mut expected, mut seen) = (0.0, 0.0, 0.0);
    for (i, step) in original.steps().iter().enumerate() {
        let Some(j) = plan.steps().iter().position(|s| s.name == step.name) else { continue };
        let Some(row) = rows.iter().find(|r| r.name == step.name) else { continue };
        let (was, is) = (old.fast(i), new.fast(j));
        // The row's factor on what the original took in this very minute.
        let want = was * row.ms / row.base_ms.max(1e-9);
        (base, expected, seen) = (base + was, expected + want, seen + is);
        lines.push((want - is, format!("{:<28} {:<14} {was:>7.3} {want:>7.3} {is:>7.3}", step.name, step.kind), j));
    }
    println!("      rows: original {base:.2}, forecast {expected:.2}, measured {seen:.2} ms; the furthest off:");
    lines.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()));
    for (off, line, j) in lines.iter().take(8) {
        let step = &plan.steps()[*j];
        let widths = small.graph.by_name(&step.name).map(|id| match small.graph.node(id).op {
            Op::Conv2d(op::Conv2d { in_ch, out_ch, .. }) => format!("{in_ch}->{out_ch}"),
            Op::Linear(op::Linear { in_features, out_features, .. }) => format!("{in_features}->{out_features}"),
            _ => String::new(),
        });
        println!("      {line}  {off:>+7.3}  {} {}", step.kernel, widths.unwrap_or_default());
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let a = args();
    for (name, spec) in models().iter().filter(|(n, _)| n.contains(&a.filter)) {
        compare(name, spec, &a)?;
    }
    Ok(())
}
