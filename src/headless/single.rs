//! Subcommands that need no session: profile, eval, training the demo models.

use super::{Cancelled, Meter, cancel_on_signals};
use crate::data::{self, demo};
use crate::eval::EvalError;
use crate::exec::{self, CompileOptions, Plan};
use crate::graph::{MacConvention, Op};
use crate::host::OpenSpec;
use crate::host::compute::{counts, load_model, measure::run_eval, usual_batch};
use crate::model::{LoadOptions, Model, export};
use crate::profile::{self as profiling, Profile, ProfileOptions, ProfileUpdate};
use crate::quant::Precision;
use anyhow::{Context, anyhow, bail};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

fn opened(spec: &OpenSpec) -> anyhow::Result<(Model, exec::device::Opened)> {
    if spec.threads > 0 {
        exec::set_threads(spec.threads);
    }
    let options = LoadOptions { arch: spec.arch, image: spec.image, ..LoadOptions::default() };
    let model = load_model(&spec.model, &options).map_err(|e| anyhow!(e))?;
    for note in &model.info.notes {
        eprintln!("note: {}", crate::config::text::clean(note));
    }
    let device = exec::device::open(&spec.device)?;
    if let Some(note) = &device.note {
        eprintln!("note: {note}");
    }
    Ok((model, device))
}

/// Sets every convolution and linear layer to `precision`.
pub fn set_precision(model: &mut Model, precision: Precision) {
    let graph = model.graph.clone();
    for node in graph.nodes.iter().filter(|n| matches!(n.op, Op::Conv2d { .. } | Op::Linear { .. })) {
        model.precision.set(&node.name, precision);
    }
}

/// `paring eval`: one pass over a data set; one object on standard output.
pub fn eval(
    spec: &OpenSpec,
    data: &str,
    limit: usize,
    precision: Option<Precision>,
    as_json: bool,
) -> anyhow::Result<()> {
    let cancel = cancel_on_signals()?;
    let (mut model, device) = opened(spec)?;
    if let Some(p) = precision {
        set_precision(&mut model, p);
    }
    let data = data::open(data, limit)?;
    data.check_classes(&model.info.name, model.info.classes)?;
    let threads = (spec.threads > 0).then_some(spec.threads);
    let plan = Plan::of(&model, &CompileOptions { threads, ..CompileOptions::on(&device) })?;
    let mut meter = Meter::new();
    let began = Instant::now();
    let run = run_eval(&plan, &data, &model, &cancel, &mut |done, total| {
        meter.show("evaluate", "", done as u64, total as u64, None);
    });
    meter.clear();
    let run = match run {
        Err(EvalError::Cancelled(_)) => return Err(Cancelled.into()),
        other => other?,
    };
    let seconds = began.elapsed().as_secs_f64();
    let m = &run.metrics;
    let (macs, params) = counts(&model).map_err(|e| anyhow!(e))?;
    let int8 = plan.steps().iter().filter(|s| s.precision == Precision::Int8).count();
    if as_json {
        let out = json!({
            "n": m.n, "correct": m.correct, "top1": m.top1, "top5": m.top5, "loss": m.loss,
            "per_class": m.per_class,
            "model": model.info.name, "model_hash": model.info.hash, "data": data.card().name,
            "params": params, "macs": macs.get(MacConvention::default()), "weight_bytes": plan.weight_bytes(),
            "int8_layers": int8, "device": device.words, "seconds": seconds,
        });
        println!("{out}");
    } else {
        println!("{:<14} {}", "model", model.info.name);
        println!("{:<14} {} ({} images)", "data", data.card().name, m.n);
        println!("{:<14} {:.2} % ({} of {})", "top-1", m.top1 * 100.0, m.correct, m.n);
        println!("{:<14} {:.2} %", "top-5", m.top5 * 100.0);
        println!("{:<14} {:.5}", "loss", m.loss);
        println!("{:<14} {:.3} MB, {int8} layers in int8", "weights", plan.weight_bytes() as f64 / 1e6);
        println!("{:<14} {:.1} s, {:.0} images a second on {}", "time", seconds, m.n as f64 / seconds, device.words);
    }
    Ok(())
}

/// `paring profile`: where a model's cost sits, as a table or JSON.
pub fn profile(spec: &OpenSpec, as_json: bool) -> anyhow::Result<()> {
    let cancel = cancel_on_signals()?;
    let (model, device) = opened(spec)?;
    let options = ProfileOptions {
        batch: if spec.batch == 0 { usual_batch(&model) } else { spec.batch },
        threads: (spec.threads > 0).then_some(spec.threads),
        device: device.device.clone(),
        device_words: device.words.clone(),
        ..ProfileOptions::default()
    };
    let mut meter = Meter::new();
    let result = profiling::profile(&model, &options, &cancel, &mut |update| match update {
        ProfileUpdate::Progress { label, done, total } => meter.show("profile", label, done as u64, total as u64, None),
        ProfileUpdate::Ceilings(_) | ProfileUpdate::Rows { .. } => {}
    });
    meter.clear();
    let profile = match result {
        Err(e) if e.is_cancelled() => return Err(Cancelled.into()),
        other => other?,
    };
    if as_json {
        println!("{}", serde_json::to_string(&profile)?);
    } else {
        print_profile(&model.info.name, &profile);
    }
    Ok(())
}

fn print_profile(name: &str, p: &Profile) {
    let convention = MacConvention::default();
    println!("{name} on {}, batch {}, {} runs", p.device, p.batch, p.runs);
    println!(
        "{:<34} {:<16} {:>9} {:>6} {:>9} {:>10} {:>9} {:>8} {:<8}",
        "layer", "kind", "p50 ms", "share", "p95 ms", "MACs M", "params k", "MB", "bound"
    );
    for r in &p.rows {
        println!(
            "{:<34} {:<16} {:>9.4} {:>5.1}% {:>9.4} {:>10.3} {:>9.1} {:>8.3} {:<8}",
            r.name,
            r.kind,
            r.latency.p50,
            r.share * 100.0,
            r.latency.p95,
            r.macs.get(convention) as f64 / 1e6,
            r.params as f64 / 1e3,
            r.weight_bytes as f64 / 1e6,
            match r.bound {
                profiling::Bound::Memory => "memory",
                profiling::Bound::Compute => "compute",
            }
        );
    }
    println!(
        "whole model {:.3} ms p50, {:.3} p95, {:.3} p99 a batch (observers off); {:.3} M MACs, {:.3} M params, {:.3} MB",
        p.whole.p50,
        p.whole.p95,
        p.whole.p99,
        p.macs.get(convention) as f64 / 1e6,
        p.params as f64 / 1e6,
        p.weight_bytes as f64 / 1e6
    );
}

/// `paring demo train`: the bundled weights from scratch.
pub fn demo_train(which: Option<&str>, out: &Path, seed: Option<u64>) -> anyhow::Result<()> {
    let kinds = match which {
        None => vec![demo::Kind::Vit, demo::Kind::Cnn],
        Some("vit") => vec![demo::Kind::Vit],
        Some("cnn") => vec![demo::Kind::Cnn],
        Some(other) => bail!("no demo model `{other}`; hint: vit or cnn"),
    };
    let cancel = cancel_on_signals()?;
    std::fs::create_dir_all(out).with_context(|| format!("cannot make `{}`", out.display()))?;
    for kind in kinds {
        let mut meter = Meter::new();
        let trained = demo::train(kind, seed.unwrap_or(demo::SEED), &cancel, &mut |p| {
            meter.show(&format!("train {}", kind.name()), &format!("loss {:.4}", p.loss), p.step as u64, p.steps as u64, None);
        });
        meter.clear();
        if cancel.is_cancelled() {
            return Err(Cancelled.into());
        }
        let path = out.join(format!("{}.safetensors", kind.name()));
        export::safetensors(&path, &trained?, &export::Manifest::default())?;
        println!("{}", path.display());
    }
    Ok(())
}
