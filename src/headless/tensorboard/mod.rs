//! A profile as a run that TensorBoard opens: figures of layers by their order, histograms of weights, and the conditions in words.
//!
//! Not here: measuring, the file's format (`events`). Invariants: a figure that was not measured is not written; of weights a piece at a time is in
//! memory, however large the model.

mod events;

use crate::exec::Cancel;
use crate::graph::{MacConvention, ParamRole};
use crate::model::{Model, Param};
use crate::plain;
use crate::profile::{LayerRow, Profile, Workload};
use crate::words::counted;
use events::{Events, Histogram};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Values of a weight that are unpacked at once.
const PIECE: usize = 1 << 20;

/// A figure of every row: its tag's end, how it came about, and itself; `None` where it was not measured.
type Figure = (&'static str, &'static str, fn(&Profile, &LayerRow) -> Option<f64>);

const FIGURES: [Figure; 8] = [
    ("p50_ms", "median of runs with observers, scaled so that rows add up to the whole model's median", |p, r| {
        Some(p.ms(r))
    }),
    ("p95_ms", "95th percentile of the same runs, scaled as the median", |p, r| Some(r.latency.p95 * p.scale())),
    ("share", "part of the observed total, 0 to 1", |_, r| Some(r.share)),
    ("params", "parameters", |_, r| Some(r.params as f64)),
    ("weight_bytes", "bytes of weights as they are stored", |_, r| Some(r.weight_bytes as f64)),
    ("activation_bytes", "bytes of the output of a whole batch", |_, r| Some(r.activation_bytes as f64)),
    ("flop_per_byte", "two operations a MAC over the bytes of weights, inputs and outputs", |_, r| {
        (r.intensity > 0.0).then_some(r.intensity)
    }),
    ("of_its_ceiling", "achieved part of the measured ceiling that binds", |_, r| {
        (r.efficiency > 0.0).then_some(r.efficiency)
    }),
];

/// Makes the folder of a run.
///
/// # Errors
/// In words: it cannot be written, or holds a run already, which TensorBoard would mix with this one.
pub fn folder(dir: &Path) -> Result<(), String> {
    let at = |e: std::io::Error| format!("`{}`: {e}; hint: a folder that you can write to", dir.display());
    std::fs::create_dir_all(dir).map_err(at)?;
    for entry in std::fs::read_dir(dir).map_err(at)? {
        if entry.map_err(at)?.file_name().to_string_lossy().contains("tfevents") {
            return Err(format!(
                "`{0}` holds a run already, and TensorBoard would mix the two; hint: another folder, such as `{0}/second`",
                dir.display()
            ));
        }
    }
    Ok(())
}

/// Writes the run; `update` is told how many weights of how many are done.
///
/// # Errors
/// In words: a parameter that is missing, cancellation, or a folder that takes no file.
pub fn write(
    dir: &Path,
    model: &Model,
    profile: &Profile,
    convention: MacConvention,
    cancel: &Cancel,
    update: &mut dyn FnMut(usize, usize),
) -> anyhow::Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut events = Events::at(now.as_secs_f64());
    events.text("conditions", &conditions(&model.info.name, profile));
    events.text("figures", &meanings(convention));
    events.text("layers", &order(profile));
    figures(&mut events, profile, convention);
    let weights: Vec<(&str, &str)> =
        model.graph.live().filter_map(|(_, n)| Some((n.name.as_str(), n.param(ParamRole::Weight)?))).collect();
    let mut strangers: Vec<String> = Vec::new();
    for (i, (node, weight)) in weights.iter().enumerate() {
        if cancel.is_cancelled() {
            return Err(super::Cancelled.into());
        }
        update(i, weights.len());
        let param = model.params.get(weight)?;
        let (histogram, strange) = histogram(param);
        param.release();
        if strange > 0 {
            strangers.push(format!("{}: {strange} of {}", plain::line(node), counted(param.numel(), "value")));
        }
        if histogram.num > 0.0 {
            events.histogram(&format!("weights/{}", plain::line(node)), 0, histogram);
        }
    }
    if !strangers.is_empty() {
        events.text("weights that are no numbers", &cell(&strangers.join("; ")));
    }
    let path = dir.join(format!("events.out.tfevents.{}.paring.{}", now.as_secs(), std::process::id()));
    crate::files::write(&path, events.into_bytes())
        .map_err(|e| anyhow::anyhow!("`{}`: {e}; hint: a folder that you can write to", path.display()))?;
    Ok(path)
}

/// As that, of the whole model.
type Whole = (&'static str, &'static str, fn(&Profile, MacConvention) -> Option<f64>);

const WHOLE: [Whole; 7] = [
    ("p50_ms", "median of whole runs without observers", |p, _| Some(p.whole.p50)),
    ("p95_ms", "95th percentile of whole runs without observers", |p, _| Some(p.whole.p95)),
    ("p99_ms", "99th percentile of whole runs without observers", |p, _| p.whole.p99()),
    (MACS.0, MACS.1, |p, convention| Some(p.macs.get(convention) as f64)),
    ("params", "parameters", |p, _| Some(p.params as f64)),
    ("weight_bytes", "bytes of weights as they are stored", |p, _| Some(p.weight_bytes as f64)),
    ("peak_activation_bytes", "the largest set of live activations of a whole batch", |p, _| {
        Some(p.peak_activation_bytes as f64)
    }),
];

const MACS: (&str, &str) = ("macs", "multiply-accumulates of one image or token");

fn figures(events: &mut Events, p: &Profile, convention: MacConvention) {
    for (tag, _, of) in WHOLE {
        if let Some(v) = of(p, convention).filter(|v| v.is_finite()) {
            events.scalar(&format!("whole/{tag}"), 0, v);
        }
    }
    for (step, row) in (0..).zip(&p.rows) {
        events.scalar("layers/macs", step, row.macs.get(convention) as f64);
        for (tag, _, of) in FIGURES {
            if let Some(v) = of(p, row).filter(|v| v.is_finite()) {
                events.scalar(&format!("layers/{tag}"), step, v);
            }
        }
    }
}

/// How every figure came about.
fn meanings(convention: MacConvention) -> String {
    let macs = match convention {
        MacConvention::ConvLinear => "of convolutions and linear layers",
        MacConvention::Attention => "of convolutions, linear layers and attention's two products",
        MacConvention::Norms => "of convolutions, linear layers, attention's two products and norms",
    };
    let whole = WHOLE.iter().map(|(tag, how, _)| (format!("whole/{tag}"), *how));
    let layers = [MACS].into_iter().chain(FIGURES.iter().map(|(tag, how, _)| (*tag, *how)));
    let layers = layers.map(|(tag, how)| (format!("layers/{tag}"), how));
    let weights = [("weights/…".to_owned(), "every value of the weight as it is stored")];
    let mut o = "| tag | what it is |\n|---|---|\n".to_owned();
    for (tag, how) in whole.chain(layers).chain(weights) {
        let more = if tag.ends_with("/macs") { format!(" {macs}") } else { String::new() };
        let _ = writeln!(o, "| {tag} | {how}{more} |");
    }
    o + "\nOf layers a step is a layer, as the text `layers` tells.\n"
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    plain::line(text).replace('|', "\\|").replace('<', "\\<")
}

/// What was measured, on what and how.
fn conditions(name: &str, p: &Profile) -> String {
    let run = match p.workload {
        Workload::Pass => format!("a batch of {}", p.batch),
        Workload::Decode { context, kv } => format!("one token after {context}, keys and values in {}", kv.label()),
    };
    let mut rows = vec![
        ("model", name.to_owned()),
        ("device", p.device.clone()),
        ("threads", p.threads.to_string()),
        ("a run", run),
        ("runs", format!("{} with observers, {} without{}", p.runs, p.whole.n, p.whole.origin())),
        ("whole model", format!("{:.4} ms ±{:.1} % at the median", p.whole.p50, 100.0 * p.whole.spread())),
        ("written by", format!("paring {}", env!("CARGO_PKG_VERSION"))),
    ];
    rows.extend(
        p.sampled
            .map(|s| ("measured", format!("{} of {} blocks; the others as those like them", s.measured, s.blocks))),
    );
    rows.extend(p.doubt.map(|d| ("in doubt", d.to_string())));
    rows.extend(p.notes.iter().map(|n| ("note", n.clone())));
    let mut o = "| | |\n|---|---|\n".to_owned();
    for (what, text) in rows {
        let _ = writeln!(o, "| {what} | {} |", cell(&text));
    }
    o
}

/// Which layer each step is.
fn order(p: &Profile) -> String {
    let mut o = "| step | layer | kind | kernel | precision | in doubt |\n|---|---|---|---|---|---|\n".to_owned();
    for (step, r) in p.rows.iter().enumerate() {
        let doubt = p.doubt_of(r).map(|d| d.to_string()).unwrap_or_default();
        let _ = writeln!(
            o,
            "| {step} | {} | {} | {} | {} | {doubt} |",
            cell(&r.name),
            cell(&r.kind),
            cell(&r.kernel),
            r.precision.label()
        );
    }
    o
}

/// The values of a weight by how large they are, and how many are no numbers. A piece at a time where its rows can be had alone.
fn histogram(param: &Param) -> (Histogram, usize) {
    let rows = param.shape().first().copied().unwrap_or(0);
    let columns = param.numel().checked_div(rows).unwrap_or(0);
    let mut tally = Tally::new();
    let step = (PIECE / columns.max(1)).max(1);
    match param.rows(0..step.min(rows)) {
        Some(_) => {
            for from in (0..rows).step_by(step) {
                if let Some(piece) = param.rows(from..(from + step).min(rows)) {
                    tally.add(&piece.values());
                }
            }
        }
        None => tally.add(&param.values()),
    }
    tally.told()
}

/// Counts in buckets that grow by a tenth from 1e-12 on, to both sides of zero: those of tensorflow/core/lib/histogram/histogram.cc.
struct Tally {
    /// Upper ends of the buckets above zero, the first 1e-12.
    ends: Vec<f64>,
    below: Vec<u64>,
    above: Vec<u64>,
    told: Histogram,
    strange: usize,
}

impl Tally {
    fn new() -> Tally {
        let ends: Vec<f64> =
            std::iter::successors(Some(1e-12), |v| Some(v * 1.1)).take_while(|v| *v < 1e20).chain([f64::MAX]).collect();
        let none = vec![0; ends.len()];
        let told = Histogram { min: f64::INFINITY, max: f64::NEG_INFINITY, ..Histogram::default() };
        Tally { below: none.clone(), above: none, ends, told, strange: 0 }
    }

    fn add(&mut self, values: &[f32]) {
        for v in values.iter().map(|v| f64::from(*v)) {
            if !v.is_finite() {
                self.strange += 1;
                continue;
            }
            let t = &mut self.told;
            (t.min, t.max, t.num) = (t.min.min(v), t.max.max(v), t.num + 1.0);
            (t.sum, t.sum_squares) = (t.sum + v, t.sum_squares + v * v);
            // A value lies below the end of its bucket: to the left of zero that is the end nearer to it.
            let at = match v < 0.0 {
                true => self.ends.partition_point(|e| *e < -v),
                false => self.ends.partition_point(|e| *e <= v),
            };
            if v < 0.0 { self.below[at] += 1 } else { self.above[at] += 1 }
        }
    }

    fn told(mut self) -> (Histogram, usize) {
        // Bucket `i` below zero lies between minus its end and minus the end before.
        let below = (0..self.ends.len()).rev().map(|i| (if i == 0 { 0.0 } else { -self.ends[i - 1] }, self.below[i]));
        let all: Vec<(f64, u64)> = below.chain(self.ends.iter().copied().zip(self.above.iter().copied())).collect();
        let full = |i: usize| all.get(i).is_some_and(|(_, n)| *n > 0);
        for (i, (end, n)) in all.iter().enumerate() {
            // One of no values is kept before one of some: that one begins where it ends.
            if *n > 0 || full(i + 1) {
                self.told.bucket_limit.push(*end);
                self.told.bucket.push(*n as f64);
            }
        }
        (self.told, self.strange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f32]) -> (Histogram, usize) {
        let mut t = Tally::new();
        values.chunks(3).for_each(|piece| t.add(piece));
        t.told()
    }

    #[test]
    fn every_value_is_counted_in_the_bucket_that_it_lies_in() {
        let values = [-2.0, -0.5, -1e-13, 0.0, 0.0, 1e-13, 0.5, 0.5, 3.0, f32::NAN, f32::INFINITY];
        let (h, strange) = of(&values);
        assert_eq!((strange, h.num, h.min, h.max), (2, 9.0, -2.0, 3.0));
        assert!((h.sum - 1.5).abs() < 1e-6 && (h.sum_squares - 13.75).abs() < 1e-6);
        assert!(h.bucket_limit.windows(2).all(|w| w[0] < w[1]), "ascending");
        assert_eq!(h.bucket.iter().sum::<f64>(), 9.0);
        let mut from = f64::NEG_INFINITY;
        for (end, n) in h.bucket_limit.iter().zip(&h.bucket) {
            let inside = values.iter().map(|v| f64::from(*v)).filter(|v| v.is_finite() && *v >= from && *v < *end);
            assert_eq!(inside.count() as f64, *n, "from {from} to {end}");
            from = *end;
        }
    }

    #[test]
    fn nothing_is_a_histogram_of_nothing() {
        assert_eq!(of(&[]).0.bucket, Vec::<f64>::new());
        assert_eq!(of(&[f32::NAN]).1, 1);
    }

    #[test]
    fn a_run_is_not_mixed_with_another() {
        let dir = tempfile::tempdir().expect("a folder");
        let run = dir.path().join("run");
        assert_eq!((folder(&run), folder(&run)), (Ok(()), Ok(())));
        std::fs::write(run.join("events.out.tfevents.1.x"), b"").expect("written");
        assert!(folder(&run).is_err_and(|e| e.contains("hint: another folder")));
    }
}
