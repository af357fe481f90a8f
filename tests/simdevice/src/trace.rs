//! What the device carried out, by name: with `SIMDEVICE_TRACE` a table is written to that file when the process ends.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

#[derive(Default, Clone, Copy)]
struct Sum {
    calls: u64,
    /// Seconds here, and of the modelled clock.
    here: f64,
    modelled: f64,
}

static SUMS: Mutex<Option<HashMap<&'static str, Sum>>> = Mutex::new(None);

fn path() -> Option<&'static str> {
    static PATH: OnceLock<Option<String>> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = std::env::var("SIMDEVICE_TRACE").ok().filter(|p| !p.is_empty());
        if path.is_some() {
            extern "C" fn at_exit() {
                write();
            }
            // SAFETY: a function without arguments, called once at the process's end.
            unsafe { libc::atexit(at_exit) };
        }
        path
    })
    .as_deref()
}

/// Counts a piece of work.
pub fn count(who: &'static str, here: Duration, modelled: f64) {
    if path().is_none() {
        return;
    }
    let mut sums = SUMS.lock().unwrap_or_else(PoisonError::into_inner);
    let sum = sums.get_or_insert_default().entry(who).or_default();
    sum.calls += 1;
    sum.here += here.as_secs_f64();
    sum.modelled += modelled;
}

fn write() {
    let sums = SUMS.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    let mut rows: Vec<(&str, Sum)> = sums.into_iter().collect();
    rows.sort_by(|a, b| b.1.here.total_cmp(&a.1.here));
    let mut text = format!("{:<32} {:>10} {:>10} {:>12}\n", "work", "calls", "s here", "ms modelled");
    for (who, sum) in rows {
        let _ = writeln!(text, "{who:<32} {:>10} {:>10.2} {:>12.3}", sum.calls, sum.here, sum.modelled * 1e3);
    }
    let _ = std::fs::write(path().unwrap_or("/dev/null"), text);
}
