//! What a headless run leaves: `report.json` and the summary on standard output.

use crate::config::Policy;
use crate::graph::{MacConvention, experts};
use crate::plan::{Basis, Outcome};
use crate::profile::{Profile, Workload};
use crate::session::{Evaluation, State, as_filed};
use serde_json::{Value, json};
use std::fmt::Write;

fn figures(e: &Evaluation, base: Option<&Evaluation>) -> Value {
    let macs = |e: &Evaluation| e.macs.get(MacConvention::default()) as f64;
    let over = |a: f64, b: f64| if b > 0.0 { Some(a / b) } else { None };
    json!({
        "n": e.metrics.n,
        // Where it was clear before all items had been looked at whether `drop` is kept: how many there are, and how sure that is.
        "part": e.part.map(|p| json!({ "of": p.of, "level": p.level })),
        "score": e.metrics.score, "loss": e.metrics.loss,
        "correct": e.metrics.correct(), "top1": e.metrics.correct().map(|_| e.metrics.score),
        "top5": e.metrics.other("top-5"), "per_class": e.metrics.per_class(),
        // Null where the device had no memory to measure it with.
        "latency_ms": e.ms().map(|p50| json!({
            "p50": p50, "p95": e.whole.p95, "p99": e.whole.p99(), "spread": e.whole.spread(),
            // One launch of a captured CUDA graph a run.
            "replayed": e.whole.replayed,
        })),
        "baseline_ms": e.ms().map(|_| e.baseline_ms),
        // The median ratio of pairs of runs, with its interval: what `factors.latency` is.
        "latency_factor": e.latency().map(|l| json!({
            "value": l.value, "low": l.low, "high": l.high, "coverage": l.coverage, "pairs": l.n, "doubt": e.doubt,
            "baseline_ms": e.baseline_ms,
        })),
        // Of a language model's rounds: the outputs beside the original's, in nats a token and as a share of tokens.
        "kl_divergence": e.divergence.map(|d| json!({
            "mean": d.kl.value, "low": d.kl.range.map(|r| r.0), "high": d.kl.range.map(|r| r.1),
            "median": d.median, "p99": d.p99, "max": d.max, "windows": d.items, "tokens": d.rows,
        })),
        "top_token_agreement": e.divergence.map(|d| json!({
            "value": d.same_top.value, "low": d.same_top.range.map(|r| r.0), "high": d.same_top.range.map(|r| r.1),
        })),
        "weight_bytes": e.weight_bytes, "params": e.params, "macs": macs(e),
        "factors": base.map(|b| json!({
            "latency": e.latency().map(|l| l.value), "macs": over(macs(e), macs(b)),
            "memory": over(e.weight_bytes as f64, b.weight_bytes as f64), "params": over(e.params as f64, b.params as f64),
        })),
    })
}

/// The whole run in one object.
pub fn report(state: &State, policy: &Policy, model: Option<&(String, String)>, seconds: f64) -> Value {
    let base = state.baseline();
    let rounds: Vec<Value> = state
        .rounds
        .iter()
        .skip(1)
        .filter(|r| r.evaluation.is_some())
        .map(|r| {
            let decisions: Vec<_> = r.ids.iter().filter_map(|id| state.decision(*id)).collect();
            json!({
                "token": r.decoding.as_ref().map(token),
                "round": r.number,
                "accepted": r.accepted,
                "decisions": decisions,
                "forecast": { "quality": r.forecast },
                "repairs": r.repairs,
                "healing": r.course,
                "measured": r.evaluation.as_ref().map(|e| figures(e, base)),
                "verdict": r.verdict,
                "model_hash": r.model_hash,
            })
        })
        .collect();
    let last = state.rounds.iter().skip(1).rev().find(|r| r.evaluation.is_some());
    let met = last.and_then(|r| r.verdict.as_ref()).is_some_and(|v| v.outcome == Outcome::Accept);
    let card = state.card.as_ref();
    let whole = json!({
        "met": met,
        "budget": state.budget,
        "model": card.map(|c| json!({ "name": c.model.name, "hash": c.model.hash, "family": c.model.family })),
        "data": card.map(|c| &c.data),
        "calib": card.map(|c| &c.calib),
        "calib_is_eval": card.map(|c| c.calib_is_eval),
        "device": card.map(|c| &c.device),
        "batch": card.map(|c| c.batch),
        // What latencies are of: less where memory ran out.
        "latency_batch": state.profile_of(0).map(|p| p.batch),
        "threads": card.map(|c| c.threads),
        "policy": if policy.file.is_empty() { "auto" } else { policy.file.as_str() },
        "constraints": state.constraints,
        "baseline": base.map(|e| figures(e, None)),
        // Of a language model: what one token takes.
        "token": state.decoding_of(0).map(token),
        "final": last.and_then(|r| r.evaluation.as_ref()).map(|e| figures(e, base)),
        "metric": state.metric(),
        "verdict": last.and_then(|r| r.verdict.as_ref()),
        "rounds": rounds,
        "file": model.map(|(path, _)| path),
        "file_hash": model.map(|(_, hash)| hash),
        "seconds": seconds,
        "version": env!("CARGO_PKG_VERSION"),
    });
    as_filed(&state.metric(), whole)
}

/// What one token after a context takes.
fn token(p: &Profile) -> Value {
    let Workload::Decode { context, kv } = p.workload else { return Value::Null };
    json!({
        "context": context,
        "kv": kv.label(),
        "ms": p.whole.p50,
        "p95_ms": p.whole.p95,
        "tokens_per_s": (p.whole.p50 > 0.0).then(|| 1e3 / p.whole.p50),
        "doubt": p.doubt.map(|d| d.to_string()),
        "weight_bytes": p.weight_bytes,
    })
}

/// A table: baseline beside every round.
pub fn summary(state: &State) -> String {
    let mut out = String::new();
    let metric = state.metric();
    let evaluations: Vec<&Evaluation> = state.rounds.iter().filter_map(|r| r.evaluation.as_ref()).collect();
    let mut row = |name: &str, cell: &dyn Fn(&Evaluation) -> String| {
        let _ = write!(out, "{name:<14}");
        for e in &evaluations {
            let _ = write!(out, "{:>16}", cell(e));
        }
        out.push('\n');
    };
    row("", &|e| if e.round == 0 { "original".to_owned() } else { format!("round {}", e.round) });
    row(&metric.title(), &|e| format!("{:.*}", metric.digits, metric.value(e.metrics.score)));
    if evaluations.iter().any(|e| e.metrics.correct().is_some()) {
        row("correct", &|e| format!("{}/{}", e.metrics.correct().unwrap_or_default(), e.metrics.n));
    }
    if evaluations.iter().any(|e| e.part.is_some()) {
        row("clear after", &|e| e.part.map_or("-".to_owned(), |p| format!("{} of {}", e.metrics.n, p.of)));
    }
    if evaluations.iter().any(|e| e.divergence.is_some()) {
        row("KL nats", &|e| e.divergence.map_or("-".to_owned(), |d| format!("{:.5}", d.kl.value)));
        row("same top %", &|e| e.divergence.map_or("-".to_owned(), |d| format!("{:.2}", 100.0 * d.same_top.value)));
    }
    row("loss", &|e| format!("{:.4}", e.metrics.loss));
    let mark = |e: &Evaluation| if e.doubt.is_some() { "?" } else { "" };
    row("latency ms", &|e| e.ms().map_or("-".to_owned(), |ms| format!("{ms:.3}{}", mark(e))));
    row("  original's", &|e| e.ms().map_or("-".to_owned(), |_| format!("{:.3}", e.baseline_ms)));
    row("  of original", &|e| e.latency().map_or("-".to_owned(), |l| format!("{:.3}x{}", l.value, mark(e))));
    if state.decoding_of(0).is_some() {
        row("tokens/s", &|e| match state.decoding_of(e.round) {
            Some(p) => format!("{:.1}{}", 1e3 / p.whole.p50.max(1e-9), if p.doubt.is_some() { "?" } else { "" }),
            None => "-".to_owned(),
        });
    }
    row("MACs M", &|e| format!("{:.3}", e.macs.get(MacConvention::default()) as f64 / 1e6));
    row("params k", &|e| format!("{:.1}", e.params as f64 / 1e3));
    row("weights MB", &|e| format!("{:.3}", e.weight_bytes as f64 / 1e6));
    if let Some(what) = state.card.as_ref().and_then(|card| experts::counted(&card.graph)) {
        let _ = writeln!(out, "{what}");
    }
    let verdict = state.rounds.iter().rev().find_map(|r| r.verdict.as_ref());
    for (e, why) in evaluations.iter().filter(|e| e.round > 0).filter_map(|e| Some((e, e.doubt?))) {
        let _ = writeln!(out, "round {}: its latency is in doubt: {why}", e.round);
    }
    for l in verdict.map(|v| v.lines.as_slice()).unwrap_or_default() {
        let word = match l.outcome {
            Outcome::Accept => "met",
            Outcome::Reject => "not met",
            Outcome::Undecided => "undecided",
        };
        let measured = if l.measured.is_nan() { "-".to_owned() } else { format!("{:.3}", l.measured) };
        let _ = writeln!(out, "{:<14}{measured:>16}   budget {:.3}, {word}", l.name, l.target);
    }
    let (digits, unit) = (metric.digits, metric.change_unit.as_str());
    let forecast = state.rounds.iter().rev().find(|r| r.verdict.is_some()).and_then(|r| r.forecast);
    if let Some(q) = forecast.filter(|q| q.basis != Basis::Unmeasured) {
        let (low, high) = metric.shown_range(q.low, q.high);
        let _ = writeln!(
            out,
            "{:<14}{:>+16.digits$}   {unit} were forecast ({}), {:.0} % range {low:+.digits$} to {high:+.digits$}",
            "",
            metric.shown(q.value),
            q.basis.label(),
            100.0 * q.coverage,
        );
    }
    if let Some(v) = verdict {
        let (low, high) = metric.shown_range(v.d_quality_low, v.d_quality_high);
        let _ = writeln!(
            out,
            "{:<14}{:>+16.digits$}   {unit}, 95 % interval {low:+.digits$} to {high:+.digits$}",
            format!("{} change", metric.name),
            metric.shown(v.d_quality)
        );
    }
    out
}
