//! Figures and decisions by the names that files of ours have them under: manifests of written models, reports.
//!
//! Invariant: what is written of a classifier has the names that format 1 had before there were other tasks: who reads such
//! files reads all of them, and a stored session goes on writing the same bytes. Other tasks' figures stay as they are.

use crate::task::Metric;
use serde_json::{Map, Value, json};

/// `value` as files have it that are written of a session with this metric.
pub fn as_filed(metric: &Metric, value: Value) -> Value {
    if metric.name == Metric::default().name { of_classifier(value) } else { value }
}

/// `value` with a classifier's own names for metrics and changes of quality, at the same places.
fn of_classifier(value: Value) -> Value {
    match value {
        Value::Array(all) => all.into_iter().map(of_classifier).collect(),
        Value::Object(map) if map.contains_key("score") && map.contains_key("classes") => metrics(&map),
        Value::Object(map) => {
            let renamed = |key: String| match key.strip_prefix("d_quality") {
                Some(end @ ("" | "_low" | "_high")) => format!("d_top1{end}"),
                _ => key,
            };
            Value::Object(map.into_iter().map(|(k, v)| (renamed(k), of_classifier(v))).collect())
        }
        other => other,
    }
}

fn metrics(m: &Map<String, Value>) -> Value {
    let first = |name: &str| m.get("others").and_then(|o| o.as_array()?.iter().find(|r| r["name"] == name).cloned());
    json!({
        "n": m["n"],
        "correct": m["classes"]["correct"],
        "top1": m["score"],
        "top5": first("top-5").map(|r| r["score"].clone()),
        "loss": m.get("loss"),
        "per_class": m["classes"]["per_class"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Metrics;

    #[test]
    fn a_classifiers_figures_keep_their_first_names_and_places() {
        let m = Metrics::of_classes(4, 3, 1.0, 0.5, vec![(1, 2), (2, 2)]);
        let now =
            json!({ "measured": { "metrics": m }, "verdict": { "z": 1, "d_quality": -1.0, "d_quality_low": -2.0 } });
        let then = r#"{"measured":{"metrics":{"n":4,"correct":3,"top1":0.75,"top5":1.0,"loss":0.5,"per_class":[[1,2],[2,2]]}},"verdict":{"z":1,"d_top1":-1.0,"d_top1_low":-2.0}}"#;
        assert_eq!(of_classifier(now).to_string(), then);
    }
}
