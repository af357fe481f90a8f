//! `paring selftest`: does this device compute what it should, and does its clock tell the truth?
//!
//! Every kernel is checked against double precision on seeded random input, the bundled models against the interpreter
//! on the CPU, and timings against measured ceilings. Invariant: a check reports the kernel that ran, and nothing that
//! went wrong in one check keeps the others from running.

mod cases;
mod checks;
mod timing;
mod truth;

use super::out::{Unwritten, say};
use super::{Cancelled, Exit, bound, cancel_on_signals, print_json, progress_line, setup};
use crate::args::On;
use crate::config::text::clean;
use crate::exec::device::Opened;
use crate::profile::{Gauges, Reading};
use anyhow::Result;
use checks::{Check, Outcome};
use serde_json::json;
use timing::{Peaks, Timing};

/// Everything that was found.
struct Report {
    checks: Vec<Check>,
    timings: Vec<Timing>,
    peaks: Peaks,
}

impl Report {
    fn passed(&self) -> bool {
        self.checks.iter().all(|c| c.outcome != Outcome::Failed) && self.timings.iter().all(|t| t.passed)
    }
}

/// Runs the command: [`Exit::Failed`] when any check failed.
///
/// # Errors
/// The device cannot be opened or measured, or the user cancelled.
pub fn run(on: &On, as_json: bool) -> Result<Exit> {
    let opened = setup::device(on)?;
    let gauges = Gauges::of(&opened.device).map(|g| g.map(|g| g.read()));
    let report = match measure(&opened) {
        Err(e) if e.is::<crate::exec::Cancelled>() => return Err(Cancelled.into()),
        other => other?,
    };
    if as_json {
        print_json(&json!({
            "device": opened.words,
            "note": opened.note,
            "gauges": gauges.as_ref().and_then(|g| g.as_ref().ok()),
            "checks": report.checks,
            "timings": report.timings,
            "ceilings": report.peaks,
            "passed": report.passed(),
        }))?;
    } else {
        print_table(&opened, gauges.as_ref(), &report)?;
    }
    Ok(if report.passed() { Exit::Done } else { Exit::Failed })
}

fn measure(opened: &Opened) -> Result<Report> {
    let cancel = cancel_on_signals()?;
    let cases = cases::all(&checks::precisions(opened))?;
    let demos = checks::demos(opened);
    let total = cases.len() + demos.len();
    let mut line = progress_line("check");
    let mut checks = Vec::with_capacity(total);
    for case in &cases {
        cancel.check()?;
        line.show(checks.len() as u64, total as u64);
        checks.push(checks::case(case, opened));
    }
    for demo in demos {
        cancel.check()?;
        line.show(checks.len() as u64, total as u64);
        checks.push(checks::demo_model(demo, opened));
    }
    line.clear();
    let mut line = progress_line("time");
    line.show(0, 1);
    let mut peaks = Peaks::measure(opened)?;
    let timings = timing::all(opened, &mut peaks, &cancel, &mut |done, all| line.show(done as u64, all as u64));
    line.clear();
    Ok(Report { checks, timings: timings?, peaks })
}

/// The columns of the second of the tables.
const TIMINGS: &str = "layer                                       kernel                          p50 ms   GFLOP/s     GB/s  share of memory  bound";

fn print_table(opened: &Opened, gauges: Option<&Result<Reading, String>>, report: &Report) -> Result<(), Unwritten> {
    say!("selftest on {}", clean(&opened.words))?;
    match gauges {
        Some(Ok(reading)) => say!("{reading}")?,
        Some(Err(why)) => say!("{}", clean(why))?,
        None => {}
    }
    say!()?;
    say!("{:<36} {:<6} {:<28} {:>9} {:>9} {:>6}  result", "check", "", "kernel", "max error", "tolerance", "worst")?;
    for c in &report.checks {
        let result = match c.outcome {
            Outcome::Passed => "ok",
            Outcome::Failed => "FAILED",
            Outcome::Skipped => "skipped",
        };
        say!(
            "{:<36} {:<6} {:<28} {:>9.1e} {:>9.1e} {:>5.0}%  {result}",
            c.name,
            c.precision,
            c.kernel,
            c.error,
            c.tolerance,
            c.worst * 100.0
        )?;
        if let Some(note) = &c.note {
            say!("    {}", clean(note))?;
        }
    }
    say!()?;
    say!("{TIMINGS}")?;
    for t in &report.timings {
        say!(
            "{:<36} {:<6} {:<28} {:>9.4} {:>9} {:>8.1} {:>5.0}% {:>9}  {}",
            t.name,
            t.precision,
            t.kernel,
            t.ms,
            t.gflops.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}")),
            t.gbs,
            t.share * 100.0,
            t.of_memory.map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", share * 100.0)),
            bound(t.bound)
        )?;
        if let Some(note) = &t.note {
            say!("    FAILED: {}", clean(note))?;
        }
    }
    let p = &report.peaks;
    let int8 = if p.int8_gops > 0.0 { format!("{:.0} GOP/s int8, ", p.int8_gops) } else { String::new() };
    say!(
        "ceilings {:.0} GFLOP/s f32, {int8}{:.1} GB/s; shares of layers that fit a cache are of a copy of their size",
        p.f32_gflops,
        p.bandwidth_gbs
    )?;
    let count = |outcome| report.checks.iter().filter(|c| c.outcome == outcome).count();
    let lies = report.timings.iter().filter(|t| !t.passed).count();
    say!()?;
    say!(
        "{}: {} of {} checks passed, {} failed, {} skipped; {} of {} timings are plausible",
        if report.passed() { "passed" } else { "FAILED" },
        count(Outcome::Passed),
        report.checks.len(),
        count(Outcome::Failed),
        count(Outcome::Skipped),
        report.timings.len() - lies,
        report.timings.len(),
    )
}
