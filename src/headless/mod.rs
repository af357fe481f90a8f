//! The same commands without a screen: tables or JSON on standard output, progress on standard error.

pub mod eval;
pub mod setup;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How a command ended when nothing went wrong; errors are [`Exit::Failed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done,
    Failed,
    /// The command line could not be understood.
    Usage,
    /// The work is done and written, but the budget was not met.
    BudgetNotMet,
    Cancelled,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::BudgetNotMet => 3,
            Exit::Cancelled => 4,
        })
    }
}

/// Prints one JSON value and a newline on standard output.
///
/// # Errors
/// Standard output is closed or full.
pub fn print_json(value: &serde_json::Value) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// A progress line on standard error; silent when that is not a terminal.
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

impl ProgressLine {
    /// Shows how far the work is, a few times a second.
    pub fn show(&mut self, done: u64, total: u64) {
        if !self.live || (self.shown.is_some_and(|t| t.elapsed() < Duration::from_millis(100)) && done < total) {
            return;
        }
        self.shown = Some(Instant::now());
        let rate = done as f64 / self.started.elapsed().as_secs_f64().max(1e-9);
        let left = if rate > 0.0 { total.saturating_sub(done) as f64 / rate } else { 0.0 };
        eprint!("\r\x1b[K{} {done}/{total}  {rate:.0}/s  {left:.0} s left", self.what);
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if self.live && self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
