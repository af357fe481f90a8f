//! `paring profile`: where a model's cost sits.

use super::out::{self, Unwritten, say, tell};
use super::{Cancelled, Exit, UsageError, bound, cancel_on_signals, print_json, progress_line, setup, tensorboard};
use crate::args::Profile as Args;
use crate::data::Counted;
use crate::graph::MacConvention;
use crate::host::compute::{bind, classifies_text, longest, takes_text, tell, usual_batch};
use crate::profile::{
    self as profiling, Doubt, LayerParameters, LayerRow, Profile, ProfileError, ProfileOptions, ProfileUpdate, Workload,
};
use crate::session::{Opening, WINDOW, doubts};
use crate::words::counted;
use anyhow::{Error, Result, bail};
use std::time::Duration;

/// Runs the command; `convention` says what MACs count, `patience` for how much of the usual time is measured.
pub fn run(args: &Args, convention: MacConvention, patience: f64) -> Result<Exit> {
    let cancel = cancel_on_signals()?;
    if let Some(dir) = &args.tensorboard {
        tensorboard::folder(dir).map_err(Error::msg)?;
    }
    let mut model = setup::model(&args.model, &args.on, args.precision.as_deref())?;
    let workload = match args.decode {
        None => Workload::Pass,
        Some(_) if !takes_text(&model) => bail!("`{}` is no language model: it has no --decode", args.model),
        Some(context) => {
            Workload::Decode { context, kv: args.kv.parse().map_err(|e: String| UsageError::of("--kv", e))? }
        }
    };
    if takes_text(&model) && workload == Workload::Pass {
        let how = Opening { window: args.window, targets: Counted::Next, ..Opening::default() };
        let windows = how.windows(model.info.context);
        bind(&mut model, &windows);
    }
    if classifies_text(&model) {
        let most = longest(args.window, model.info.context).map_err(Error::msg)?;
        tell(&mut model, args.window.unwrap_or(most.min(WINDOW)));
    }
    if args.precision.is_some() {
        setup::calibrate_on_noise(&mut model)?;
    }
    let device = setup::device(&args.on)?;
    let options = ProfileOptions {
        batch: args.on.batch.filter(|b| *b > 0).unwrap_or_else(|| usual_batch(&model)),
        runs: args.runs.max(1),
        threads: args.on.threads.filter(|t| *t > 0),
        device: device.device.clone(),
        device_words: device.words.clone(),
        time_limit: ProfileOptions::default().time_limit.mul_f64(patience),
        // Who asks for few runs wants it to be over soon.
        tail: if args.runs < ProfileOptions::default().runs {
            Duration::ZERO
        } else {
            ProfileOptions::TAIL.mul_f64(patience)
        },
        workload,
        // As `eval`, `generate` and `serve` run it.
        as_stored: takes_text(&model),
        ..ProfileOptions::default()
    };
    let mut line = progress_line("profile");
    let measure = if args.sample { profiling::sampled } else { profiling::profile };
    let result = measure(&model, &options, &cancel, &mut |update| match update {
        ProfileUpdate::Progress { done, total, .. } => line.show(done as u64, total as u64),
        ProfileUpdate::Ceilings(_) | ProfileUpdate::Rows { .. } => {}
    });
    line.clear();
    let mut profile = match result {
        Err(ProfileError::Cancelled(_)) => return Err(Cancelled.into()),
        other => other?,
    };
    if args.parameters {
        let mut line = progress_line("parameters");
        let found = profiling::parameters(&model, &cancel, &mut |_, done, all| line.show(done as u64, all as u64));
        line.clear();
        profile.parameters = match found {
            Err(ProfileError::Cancelled(_)) => return Err(Cancelled.into()),
            other => other?,
        };
    }
    model.params.unchanged()?;
    out::notes(&profile.notes);
    out::notes(cut_short(&profile, &options).as_slice());
    if let Some(path) = &args.trace {
        let text = super::trace::chrome(&model.info.name, &profile).to_string();
        crate::files::write(path, text)
            .map_err(|e| Error::msg(format!("trace `{}`: {e}; hint: another file", path.display())))?;
    }
    if let Some(dir) = &args.tensorboard {
        let mut line = progress_line("histograms");
        let mut update = |done, all| line.show(done as u64, all as u64);
        let written = tensorboard::write(dir, &model, &profile, convention, &cancel, &mut update);
        line.clear();
        tell!("written to {}", written?.display());
    }
    if args.json {
        print_json(&json(&profile)?)?;
    } else {
        print_table(&model.info.name, &profile, convention)?;
        if !profile.parameters.is_empty() {
            print_parameters(&profile.parameters)?;
        }
    }
    Ok(Exit::Done)
}

/// The profile, with what every view shows of a row: its part of the whole model's latency.
fn json(profile: &Profile) -> Result<serde_json::Value> {
    let mut value = serde_json::to_value(profile)?;
    if let Some(rows) = value.get_mut("rows").and_then(|r| r.as_array_mut()) {
        for (row, r) in rows.iter_mut().zip(&profile.rows) {
            row["ms"] = profile.ms(r).into();
            row["spread_ms"] = (profile.ms(r) * r.latency.spread()).into();
        }
    }
    if profile.workload != Workload::Pass && profile.whole.p50 > 0.0 {
        value["tokens_per_s"] = (1e3 / profile.whole.p50).into();
    }
    Ok(value)
}

/// The columns of [`print_table`] after the first two, which are as wide as what stands in them.
const HEAD: &str = "      ms      ± ms  share     MACs M  params k       MB bound   kernel";

fn print_table(name: &str, p: &Profile, convention: MacConvention) -> Result<(), Unwritten> {
    // A token's attention is as large as what it looks at.
    let convention = match (p.workload, convention) {
        (Workload::Decode { .. }, MacConvention::ConvLinear) => MacConvention::Attention,
        _ => convention,
    };
    match p.workload {
        Workload::Pass => say!("{name} on {}, batch {}, {}", p.device, p.batch, counted(p.runs, "run"))?,
        Workload::Decode { context, kv } => {
            let kept = format!("one token after {context}, keys and values in {}", kv.label());
            say!("{name} on {}, {kept}, {}", p.device, counted(p.runs, "run"))?;
        }
    }
    let width = |least: usize, of: fn(&LayerRow) -> &str| {
        p.rows.iter().map(|r| of(r).chars().count()).max().unwrap_or(0).max(least)
    };
    let (names, kinds) = (width(34, |r| &r.name), width(16, |r| &r.kind));
    say!("{:<names$} {:<kinds$} {HEAD}", "layer", "kind")?;
    for r in &p.rows {
        say!(
            "{:<names$} {:<kinds$} {:>8.4}{:1} {:>9.4} {:>5.1}% {:>10.3} {:>9.1} {:>8.3} {:<7} {}",
            r.name,
            r.kind,
            p.ms(r),
            if r.doubt.is_some() { "?" } else { "" },
            p.ms(r) * r.latency.spread(),
            r.share * 100.0,
            r.macs.get(convention) as f64 / 1e6,
            r.params as f64 / 1e3,
            r.weight_bytes as f64 / 1e6,
            bound(r.bound),
            r.kernel
        )?;
    }
    let tail = p.whole.p99().map_or_else(String::new, |t| format!(", {t:.3} p99"));
    say!(
        "whole model {:.3}{} ms ±{:.3} at the median, {:.3} p95{tail} a batch, observers off{}; {}",
        p.whole.p50,
        if p.doubt.is_some() { "?" } else { "" },
        p.whole.p50 * p.whole.spread(),
        p.whole.p95,
        match p.sampled {
            Some(s) => format!(", a sum: {} of {} blocks were measured", s.measured, s.blocks),
            None => p.whole.origin().to_owned(),
        },
        match p.rows.iter().any(|r| matches!(r.doubt, Some(Doubt::Outlier { .. }))) {
            true => "rows add up to it, those unlike their twins taken for as fast as these",
            false => "rows add up to it",
        }
    )?;
    if p.workload != Workload::Pass && p.whole.p50 > 0.0 {
        let cache = p.cache_bytes as f64 / 1e6;
        say!(
            "{:.1} tokens/s; a token looks at {cache:.3} MB of keys and values besides the weights",
            1e3 / p.whole.p50
        )?;
    }
    for line in doubts(p) {
        say!("? {line}")?;
    }
    say!(
        "{:.3} M MACs, {:.3} M params, {:.3} MB of weights, {:.3} MB of activations at the peak",
        p.macs.get(convention) as f64 / 1e6,
        p.params as f64 / 1e6,
        p.weight_bytes as f64 / 1e6,
        p.peak_activation_bytes as f64 / 1e6
    )?;
    if let Some(gpu) = &p.gpu {
        let energy = gpu.energy_mj_per_image.map_or_else(String::new, |mj| format!(", {mj:.2} mJ an image"));
        let gauges = gpu.gauges.map_or_else(String::new, |g| format!("; {g}"));
        say!(
            "GPU: {:.3} MB of memory in use at the peak, {:.3} MB held{energy}{gauges}",
            gpu.peak_used_bytes as f64 / 1e6,
            gpu.peak_reserved_bytes as f64 / 1e6
        )?;
    }
    let known = |v: f64, digits: usize| if v > 0.0 { format!("{v:.digits$}") } else { "unknown".to_owned() };
    say!(
        "ceilings {} GFLOP/s f32, {} GOP/s int8, {} GB/s",
        known(p.ceilings.f32_gflops, 0),
        known(p.ceilings.int8_gops, 0),
        known(p.ceilings.bandwidth_gbs, 1)
    )
}

/// A line a weight; `~` before what was worked out from a part of a large one, with the most of how far any of that may be off.
fn print_parameters(all: &[LayerParameters]) -> Result<(), Unwritten> {
    let names = all.iter().map(|p| p.name.chars().count()).max().unwrap_or(0).max(34);
    say!(
        "{:<names$} {:>10}  {:>10} {:>10} {:>7} {:>10} {:>10} {:>14}  units that do nothing",
        "weight",
        "values",
        "norm",
        "rms",
        "zeros %",
        "least",
        "largest",
        "effective rank"
    )?;
    for p in all {
        let rank = p.rank.map_or_else(String::new, |r| format!("{:.1} of {}", r.effective, r.full));
        say!(
            "{:<names$} {:>10} {:1}{:>10.4} {:>10.6} {:>7.2} {:>10.4} {:>10.4} {rank:>14}  {} of {}",
            p.name,
            p.values,
            if p.sampled.is_some() { "~" } else { "" },
            p.l2,
            p.rms(),
            100.0 * p.zeros,
            p.min,
            p.max,
            p.dead,
            p.units
        )?;
    }
    let drawn: Vec<_> = all.iter().filter_map(|p| p.sampled).collect();
    if !drawn.is_empty() {
        let most = |of: fn(&crate::profile::Drawn) -> f32| 100.0 * drawn.iter().map(of).fold(0.0, f32::max);
        say!(
            "~ {} looked at by rows: norms may be off by {:.2} %, zeros by {:.2} points (95 %); least, largest and units are of those rows",
            counted(drawn.len(), "weight"),
            most(|d| d.l2),
            most(|d| d.zeros)
        )?;
    }
    Ok(())
}

/// Why fewer runs count than were asked for, if so.
fn cut_short(p: &Profile, options: &ProfileOptions) -> Option<String> {
    let aside = p.load.map_or(0.0, |l| l.set_aside);
    let others = || format!(", and {:.0} % of those were set aside: threads waited for a processor", aside * 100.0);
    (p.runs < options.runs).then(|| {
        format!(
            "{} of {} count: there were {:.0} s for them{}; hint: a larger PARING_PATIENCE gives more",
            p.runs,
            counted(options.runs, "run"),
            options.time_limit.as_secs_f64(),
            if aside > 0.0 { others() } else { String::new() }
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Load;
    use std::time::Duration;

    #[test]
    fn runs_that_are_missing_are_told_with_the_reason() {
        let options = ProfileOptions { runs: 10, time_limit: Duration::from_secs(12), ..ProfileOptions::default() };
        let of = |runs, set_aside| {
            let load = Some(Load { set_aside, ..Load::default() });
            cut_short(&Profile { runs, load, ..Profile::default() }, &options)
        };
        assert_eq!(of(10, 0.3), None);
        let limit = of(6, 0.0).expect("told");
        assert!(limit.starts_with("6 of 10 runs count: there were 12 s for them; hint: "), "{limit}");
        assert!(of(7, 0.25).expect("told").contains("25 % of those were set aside"));
    }
}
