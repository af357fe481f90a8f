//! `paring ledger`: what authors expected, and what came of it, over all sessions.
//!
//! Not here: what a record is (`session::ledger`), where it is kept (`host::ledger`).

use super::out::{self, tell};
use super::{Exit, print_json};
use crate::host::ledger;
use crate::words::counted;
use anyhow::{Result, anyhow};
use serde_json::json;

/// Prints the records, a line each.
///
/// # Errors
/// No ledger is kept, or it cannot be read.
pub fn run(as_json: bool) -> Result<Exit> {
    let (path, all) = ledger::all().map_err(|e| anyhow!(e))?;
    if as_json {
        let mean = |sum: f64, n: usize| (n > 0).then(|| sum / n as f64);
        let told: Vec<_> = (all.iter())
            .map(|s| json!({ "record": s, "off_mean": mean(s.off, s.told), "gained_mean": mean(s.gained, s.against) }))
            .collect();
        print_json(&json!({ "file": path, "records": told }))?;
        return Ok(Exit::Done);
    }
    if all.is_empty() {
        tell!("nothing was judged yet in sessions of yours (`{}`)", path.display());
    }
    for s in &all {
        let change = |v: f64, n: usize| if n > 0 { format!("{:+.2}", v / n as f64) } else { "–".to_owned() };
        out::data(format_args!(
            "{}  on {}: {}, {} built as proposed, of which {} met the budget{}, {} rolled back; expected within the measured interval {} of {}, measured minus expected {} ({}); \
             against the planner's plans {} ({} tried)\n",
            s.who,
            s.family,
            counted(s.rounds, "round"),
            s.whole,
            s.met,
            if s.unbounded > 0 { format!(" ({} had none)", s.unbounded) } else { String::new() },
            s.rolled_back,
            s.held,
            s.told,
            change(s.off, s.told),
            s.metric,
            change(s.gained, s.against),
            s.against,
        ))?;
    }
    Ok(Exit::Done)
}
