//! The same commands without a screen: tables or JSON on standard output, progress on standard error.
//!
//! Invariants: standard output carries data only, once, at the end (a text that a model writes as it comes); a headless run looks at the evaluation data for
//! verdicts alone, and drives a host through the same frames as a screen.

pub mod against;
mod answers;
pub mod bench_agents;
pub mod choices;
pub mod control;
pub mod convert;
pub mod demo;
pub mod doctor;
mod early;
pub mod eval;
pub mod generate;
pub mod heal;
pub mod imatrix;
mod learnt;
pub mod ledger;
pub mod out;
pub mod profile;
mod questions;
pub mod report;
pub mod robust;
mod rounding;
pub mod run;
pub mod selftest;
pub mod setup;
pub mod template;
mod tensorboard;
mod trace;

use crate::exec::Cancel;
use crate::profile::Bound;
use out::tell;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How a command ended when nothing went wrong, by its exit code; errors are [`Exit::Failed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    /// The command line could not be understood.
    Usage = 2,
    /// The work is done and written, but the budget was not met.
    BudgetNotMet = 3,
    Cancelled = 4,
    /// Of the hidden `host` command alone: another host has the session.
    InUse = crate::host::lifecycle::IN_USE,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// The command line or a settings file says something that cannot be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

impl UsageError {
    /// What is wrong with `flag`.
    pub fn of(flag: &str, why: impl std::fmt::Display) -> UsageError {
        UsageError(format!("{flag}: {why}"))
    }
}

/// The user pressed Ctrl-C, or the terminal went away.
#[derive(Debug, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;

/// Cancels on SIGINT, SIGTERM and SIGHUP; a second signal ends the process at once.
pub(crate) fn cancel_on_signals() -> std::io::Result<Cancel> {
    let cancel = Cancel::default();
    let mut signals = signal_hook::iterator::Signals::new([libc::SIGINT, libc::SIGTERM, libc::SIGHUP])?;
    let flag = cancel.clone();
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            if flag.is_cancelled() {
                std::process::exit(4);
            }
            flag.cancel();
        }
    })?;
    Ok(cancel)
}

/// What waits for the host's messages, with so many threads; compute has its own.
pub(crate) fn runtime(threads: usize) -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads).thread_name("io").enable_all().build()
}

/// What binds a layer, in a word.
fn bound(bound: Bound) -> &'static str {
    match bound {
        Bound::Memory => "memory",
        Bound::Compute => "compute",
        Bound::Unknown => "unknown",
    }
}

/// Prints one JSON value and a newline on standard output.
///
/// # Errors
/// Standard output is full or broken; the value is none that JSON can hold.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    Ok(out::data(format_args!("{}\n", crate::plain::json(&text)))?)
}

/// A progress line on standard error; where that is no terminal, a line of its own now and then.
#[derive(Debug)]
pub struct ProgressLine {
    what: String,
    started: Instant,
    shown: Option<Instant>,
    live: bool,
}

/// A progress line for `what`.
pub fn progress_line(what: &str) -> ProgressLine {
    let live = std::io::stderr().is_terminal();
    ProgressLine { what: what.to_owned(), started: Instant::now(), shown: None, live }
}

/// Between two lines in a log.
const IN_A_LOG: Duration = Duration::from_secs(60);

impl ProgressLine {
    /// Shows `text` where it is time: a few times a second, and when all is done; in a log, where it goes on for long.
    fn show_due(&mut self, done: bool, text: impl FnOnce(&Self) -> String) {
        let since = |t: Option<Instant>, long| t.is_some_and(|t| t.elapsed() >= long);
        if self.live && (done || self.shown.is_none() || since(self.shown, Duration::from_millis(100))) {
            out::status(&text(self));
        } else if !self.live && !done && since(self.shown.or(Some(self.started)), IN_A_LOG) {
            tell!("{}", text(self));
        } else {
            return;
        }
        self.shown = Some(Instant::now());
    }

    /// Shows how far the work is.
    pub fn show(&mut self, done: u64, total: u64) {
        self.show_due(done >= total, |line| {
            let each = line.started.elapsed().as_secs_f64() / done.max(1) as f64;
            let left = if done > 0 { total.saturating_sub(done) as f64 * each } else { 0.0 };
            let pace = match each {
                _ if done == 0 => String::new(),
                each if each > 0.2 => format!("  {each:.1} s each  {left:.0} s left"),
                each => format!("  {:.0}/s  {left:.0} s left", 1.0 / each.max(1e-9)),
            };
            format!("{} {done}/{total}{pace}", line.what)
        });
    }

    /// Shows progress that the host has worked out.
    pub fn feed(&mut self, p: &crate::session::Progress) {
        self.show_due(false, |_| {
            let left = p.eta_s.map(|s| format!("  {s:.0} s left")).unwrap_or_default();
            let text = format!("{} {}/{}{left}  {}", p.job, p.done, p.total, p.label);
            crate::config::text::fit(&crate::config::text::clean(&text), 78).into_owned()
        });
    }

    /// A line that stays.
    pub fn say(&mut self, text: &str) {
        self.clear();
        tell!("{}", crate::config::text::clean(text));
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if self.live && self.shown.is_some() {
            out::status("");
            self.shown = None;
        }
    }
}
