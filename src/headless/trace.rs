//! A profile as a trace that Perfetto and Chrome open: one pass of the network, put together of the medians of its rows.
//!
//! Not here: measuring. Invariants: it says of itself that it is no recording: rows stand one after the other, as long as they usually take; no
//! slice of a track begins before the one before it ends, since Perfetto leaves such ones out.

use crate::profile::Profile;
use serde_json::{Value, json};

/// Readers take a thread of the process's number to be its main thread, which neither track is.
const PROCESS: u32 = 1;
const BLOCKS: u32 = 2;
const ROWS: u32 = 3;

/// Trace Event Format, in microseconds: a slice a row, a slice a block around them, counters of bytes and of a row's part of its ceiling.
pub fn chrome(name: &str, profile: &Profile) -> Value {
    let slice = |tid: u32, name: &str, cat: &str, (from, to): (f64, f64), args: Value| json!({ "ph": "X", "pid": PROCESS, "tid": tid, "name": name, "cat": cat, "ts": from, "dur": to - from, "args": args });
    let named = |what: &str, tid: u32, name: &str| json!({ "ph": "M", "pid": PROCESS, "tid": tid, "name": what, "args": { "name": name } });
    let mut events = vec![
        named("process_name", PROCESS, &format!("{name} on {}", profile.device)),
        named("thread_name", BLOCKS, "blocks"),
        named("thread_name", ROWS, "rows"),
    ];
    // Of a run so far, microseconds; a time is put down in eighths of one: those are whole nanoseconds and exact as binary fractions, so that
    // where a slice ends is exactly where the next begins.
    let mut run = 0.0;
    let mut at = 0.0;
    let mut block: Option<(&str, f64)> = None;
    for row in &profile.rows {
        run += 1e3 * profile.ms(row);
        let end = (8.0 * run).round() / 8.0;
        if block.map(|(b, _)| b) != row.block.as_deref() {
            if let Some((open, from)) = block.take() {
                events.push(slice(BLOCKS, open, "block", (from, at), json!({})));
            }
            block = row.block.as_deref().map(|b| (b, at));
        }
        let args = json!({
            "kind": row.kind, "kernel": row.kernel, "precision": row.precision.label(),
            "observed_p50_ms": row.latency.p50, "observed_p95_ms": row.latency.p95, "ms_of_whole": profile.ms(row),
            "share": row.share,
            "macs": row.macs.conv_linear + row.macs.attention, "params": row.params, "weight_bytes": row.weight_bytes,
            "activation_bytes": row.activation_bytes, "flop_per_byte": row.intensity, "of_its_ceiling": row.efficiency,
            "fused": row.fused, "in_doubt": row.doubt.is_some(),
        });
        events.push(slice(ROWS, &row.name, "row", (at, end), args));
        // Named by both words.
        let counter = |name: &str, of: &str, value: f64| json!({ "ph": "C", "pid": PROCESS, "name": name, "ts": at, "args": { of: value } });
        events.push(counter("activations", "bytes", row.activation_bytes as f64));
        events.push(counter("part of the", "ceiling", row.efficiency));
        at = end;
    }
    if let Some((open, from)) = block {
        events.push(slice(BLOCKS, open, "block", (from, at), json!({})));
    }
    json!({
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "made_by": format!("paring {}", env!("CARGO_PKG_VERSION")),
            "what": "rows one after the other, each as long as its median scaled to the whole model's: no recording of one run",
            "device": profile.device, "batch": profile.batch, "threads": profile.threads, "runs": profile.runs,
            "whole_p50_ms": profile.whole.p50, "peak_activation_bytes": profile.peak_activation_bytes,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{LatencyStats, LayerRow};

    #[test]
    fn rows_stand_one_after_the_other_and_blocks_around_them() {
        let ms = |p50| LatencyStats { n: 9, p50, p95: p50, mean: p50, min: p50, ..LatencyStats::default() };
        let row = |name: &str, block: Option<&str>, p50: f64| LayerRow {
            name: name.into(),
            block: block.map(str::to_owned),
            latency: ms(p50),
            ..LayerRow::default()
        };
        let rows = vec![
            row("stem", None, 1.0),
            row("a", Some("b1"), 2.00013),
            row("b", Some("b1"), 2.99987),
            row("head", None, 1.0),
        ];
        let profile = Profile { rows, whole: ms(7.0), ..Profile::default() };
        let trace = chrome("net", &profile);
        let events = trace["traceEvents"].as_array().expect("events");
        let of = |cat: &str| events.iter().filter(|e| e["cat"] == cat).collect::<Vec<_>>();
        let rows = of("row");
        assert_eq!(rows.len(), 4);
        let end = |e: &Value| e["ts"].as_f64().expect("from") + e["dur"].as_f64().expect("long");
        for pair in rows.windows(2) {
            assert_eq!(end(pair[0]), pair[1]["ts"]);
        }
        // As long as the whole model takes: the rows' parts add up to it.
        assert!((end(rows[3]) - 7e3).abs() < 1.0, "{}", end(rows[3]));
        // A reader that cuts to whole nanoseconds loses nothing.
        let exact = |v: &Value| (v.as_f64().expect("a time") * 1e3).fract() == 0.0;
        assert!(rows.iter().all(|e| exact(&e["ts"]) && exact(&e["dur"])));
        let blocks = of("block");
        assert_eq!((blocks.len(), &blocks[0]["ts"], end(blocks[0])), (1, &rows[1]["ts"], end(rows[2])));
    }
}
