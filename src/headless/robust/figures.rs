//! The figures of `paring robust`, one a row: of a model, and of another on the same images with the paired change between them.
//!
//! Not here: arithmetic (`eval::robust`, `task`). Invariant: a row is of the same images for both.

use crate::config::text::left;
use crate::data::Dataset;
use crate::eval::robust::{Answers, Figure, Found, Said, Separation};
use crate::eval::{Estimate, paired};
use serde_json::{Value, json};

/// Columns of a row's name.
pub const WIDTH: usize = 24;

/// Data sets with more classes are told by their worst class alone.
const MOST_CLASSES: usize = 20;

/// One figure, in `unit`.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    name: String,
    unit: &'static str,
    digits: usize,
    value: f64,
    /// Of the original, and how much more the model's is.
    beside: Option<(f64, Estimate)>,
}

impl Row {
    /// A share, shown in percent; so is its change, in points.
    fn share(name: impl Into<String>, value: f64, beside: Option<(f64, Estimate)>) -> Row {
        let beside = beside.map(|(base, change)| (100.0 * base, change.map(|v| 100.0 * v)));
        Row { name: name.into(), unit: "%", digits: 2, value: 100.0 * value, beside }
    }

    /// Shares of right answers.
    fn right(name: impl Into<String>, model: &[bool], original: Option<&[bool]>) -> Row {
        let beside = original.map(|base| {
            let p = paired(base, model);
            let range = Some((p.low / 100.0, p.high / 100.0));
            (share(base), Estimate { value: p.diff / 100.0, range })
        });
        Row::share(name, share(model), beside)
    }

    /// For `--json`.
    pub fn json(&self) -> Value {
        let mut out = json!({ "name": self.name, "unit": self.unit, "value": self.value });
        if let Some((original, change)) = &self.beside {
            let (low, high) = (change.range.map(|r| r.0), change.range.map(|r| r.1));
            out["original"] = json!(original);
            out["change"] = json!({ "value": change.value, "low": low, "high": high });
        }
        out
    }

    /// For a table.
    pub fn line(&self) -> String {
        let d = self.digits;
        let own = format!("{}  {:>9.d$}", left(&self.name, WIDTH), self.value);
        match &self.beside {
            None => format!("{own} {}", self.unit),
            Some((base, change)) => {
                let range = change.range.map_or(String::new(), |(l, h)| format!("  [{l:+.d$}, {h:+.d$}]"));
                format!("{own}  {base:>9.d$} {:<4}  {:+.d$}{range}", self.unit, change.value)
            }
        }
    }
}

fn share(right: &[bool]) -> f64 {
    right.iter().filter(|r| **r).count() as f64 / right.len().max(1) as f64
}

/// All that was found.
pub fn rows(found: &Found, original: Option<&Found>, data: &Dataset) -> Vec<Row> {
    let mut rows: Vec<Row> = Figure::ALL.iter().map(|f| figure(&found.clean, original.map(|o| &o.clean), *f)).collect();
    if data.classes() <= MOST_CLASSES {
        rows.extend(classes(found, original, data));
    }
    for (k, (kind, strength, right)) in found.corrupted.iter().enumerate() {
        let base = original.and_then(|o| o.corrupted.get(k)).map(|c| &c.2[..]);
        rows.push(Row::right(format!("{} {strength}", kind.label()), right, base));
    }
    if !found.corrupted.is_empty() {
        // By image, so that pairs of images are what is averaged.
        let each = |f: &Found| -> Vec<f64> {
            let n = f.corrupted.len() as f64;
            let of = |i: usize| f.corrupted.iter().filter(|c| c.2[i]).count() as f64 / n;
            (0..f.clean.len()).map(of).collect()
        };
        let (own, base) = (each(found), original.map(each));
        let beside = base.map(|base| (mean(&base), Estimate::of(&differences(&base, &own))));
        rows.push(Row::share("corruptions, mean", mean(&own), beside));
    }
    for (k, (attack, right)) in found.attacked.iter().enumerate() {
        let base = original.and_then(|o| o.attacked.get(k)).map(|a| &a.1[..]);
        rows.push(Row::right(attack.to_string(), right, base));
    }
    for (name, score) in SCORES {
        let of = |f: &Found| {
            let outside: Vec<f64> = f.outside.as_ref()?.iter().map(score).collect();
            Some(Separation::of(&f.clean.said().iter().map(score).collect::<Vec<f64>>(), &outside))
        };
        if let Some(own) = of(found) {
            let beside = original.and_then(of).map(|base| (base.auroc(), own.beyond(&base)));
            rows.push(Row::share(name, own.auroc(), beside));
        }
    }
    rows
}

/// Of one answer.
type Score = fn(&Said) -> f64;

/// What tells images of another set, larger for those of the own.
const SCORES: [(&str, Score); 2] = [("auroc, energy", |s| s.energy), ("auroc, max softmax", |s| s.confidence)];

fn figure(model: &Answers, original: Option<&Answers>, which: Figure) -> Row {
    let name = match which {
        Figure::Top1 => return Row::right("top-1", &model.right(), original.map(Answers::right).as_deref()),
        Figure::CrossEntropy => {
            let beside = original.map(|o| {
                let change = Estimate::of(&differences(o.losses(), model.losses()));
                (o.figure(which), change)
            });
            let (name, value) = ("cross-entropy".to_owned(), model.figure(which));
            return Row { name, unit: "nats", digits: 4, value, beside };
        }
        Figure::CalibrationError => "calibration error",
        Figure::MacroF1 => "macro F1",
        Figure::WorstClass => "worst class",
    };
    Row::share(name, model.figure(which), original.map(|o| (o.figure(which), model.beyond(o, which))))
}

/// Right answers of each class.
fn classes<'a>(found: &'a Found, original: Option<&'a Found>, data: &'a Dataset) -> impl Iterator<Item = Row> + 'a {
    let (right, base) = (found.clean.right(), original.map(|o| o.clean.right()));
    let labels: Vec<Option<u32>> = (0..data.len()).map(|i| data.label(i)).collect();
    let of = move |class: usize| {
        let part = |right: &[bool]| -> Vec<bool> {
            let own = right.iter().zip(&labels).filter(|(_, l)| **l == Some(class as u32));
            own.map(|(r, _)| *r).collect()
        };
        let name = data.class_names().get(class).cloned().unwrap_or_else(|| class.to_string());
        let own = part(&right);
        (!own.is_empty()).then(|| Row::right(format!("class {name}"), &own, base.as_deref().map(part).as_deref()))
    };
    (0..data.classes()).filter_map(of)
}

fn differences(base: &[f64], new: &[f64]) -> Vec<f64> {
    base.iter().zip(new).map(|(b, n)| n - b).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}
