//! How good a language model is, as `paring eval` tells it: divergences and agreement beside an original against what transformers' logits
//! give by hand, and what may not be compared; documents and questions (`data`).

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "quality/data.rs"]
mod data;

/// Small language models with a vocabulary of 96.
fn language() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/language")
}

/// Further kinds, with one of 32.
fn decoders() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/decoders")
}

/// What the command line says: data where it did its work, else its words.
fn paring(args: &[&str]) -> (bool, String) {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_paring"));
    let out = command.args(args).args(["--device", "cpu"]).env("PARING_HOME", home.path()).output().unwrap();
    let text = if out.status.success() { out.stdout } else { out.stderr };
    (out.status.success(), String::from_utf8(text).unwrap())
}

fn json(args: &[&str]) -> Value {
    let (done, said) = paring(&[args, &["--json"]].concat());
    assert!(done, "{args:?}: {said}");
    serde_json::from_str(&said).unwrap()
}

fn refused(args: &[&str], words: &[&str]) {
    let (done, said) = paring(args);
    assert!(!done && words.iter().all(|w| said.contains(w)), "{args:?}: {said}");
}

fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| panic!("{v} is no number"))
}

fn close(found: &Value, want: f64, most: f64) {
    assert!((number(found) - want).abs() <= most, "{found}, not {want}");
}

/// The ids that the fixtures' logits were computed for: two windows of thirteen.
fn ids() -> Vec<u16> {
    let id = |i: u32| (i + 1).wrapping_mul(2_654_435_761) >> 8;
    (0..26).map(|i| (id(i) % 96) as u16).collect()
}

fn ids_file(dir: &Path) -> String {
    let path = dir.join("ids.u16");
    std::fs::write(&path, ids().into_iter().flat_map(u16::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// `ln softmax` of a row.
fn logs(row: &[f64]) -> Vec<f64> {
    let sum: f64 = row.iter().map(|v| v.exp()).sum();
    row.iter().map(|v| v - sum.ln()).collect()
}

fn kl(original: &[f64], model: &[f64]) -> f64 {
    let (p, q) = (logs(original), logs(model));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}

fn top(row: &[f64]) -> usize {
    row.iter().enumerate().fold(0, |best, (i, v)| if *v > row[best] { i } else { best })
}

/// Of `quantile` by numpy's rule.
fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = q * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

#[test]
fn a_language_model_is_as_far_from_another_as_transformers_logits_say() {
    let dir = tempfile::tempdir().unwrap();
    let data = ids_file(dir.path());
    let expected: Value =
        serde_json::from_str(&std::fs::read_to_string(language().join("expected.json")).unwrap()).unwrap();
    let rows = |name: &str| -> Vec<Vec<f64>> {
        let tokens = expected["logits"][name].as_array().unwrap().iter().flat_map(|w| w.as_array().unwrap());
        tokens.map(|row| row.as_array().unwrap().iter().map(number).collect()).collect()
    };
    let (p, q) = (rows("llama"), rows("qwen3"));
    // The last token of a window has nothing after it to count.
    let counted: Vec<usize> = (0..26).filter(|t| t % 13 < 12).collect();
    let apart: Vec<f64> = counted.iter().map(|&t| kl(&p[t], &q[t])).collect();
    let same = counted.iter().filter(|&&t| top(&p[t]) == top(&q[t])).count();
    let lost = |rows: &[Vec<f64>]| -> Vec<f64> {
        let each = |t: &usize| -logs(&rows[*t])[usize::from(ids()[t + 1])];
        counted.chunks(12).map(|w| w.iter().map(each).sum::<f64>() / 12.0).collect()
    };
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let (a, b) = (lost(&p), lost(&q));
    let (model, original) = (language().join("qwen3"), language().join("llama.gguf"));
    let (model, original) = (model.to_str().unwrap(), original.to_str().unwrap());
    let found = json(&["eval", model, "--data", &data, "--window", "13", "--against", original]);
    let at = &found["against"];
    close(&found["nats_per_token"], mean(&b), 1e-5);
    close(&at["nats_per_token"], mean(&a), 1e-5);
    assert_eq!((at["windows"].as_u64(), at["tokens"].as_u64()), (Some(2), Some(24)));
    let far = &at["kl_divergence"];
    close(&far["mean"], mean(&apart), 2e-5);
    close(&far["median"], quantile(&apart, 0.5), 2e-5);
    close(&far["p99"], quantile(&apart, 0.99), 2e-5);
    close(&far["max"], quantile(&apart, 1.0), 2e-5);
    close(&at["top_token_agreement"]["value"], same as f64 / 24.0, 1e-12);
    close(&at["nats_difference"]["value"], mean(&b) - mean(&a), 1e-5);
    close(&at["perplexity_ratio"]["value"], (mean(&b) - mean(&a)).exp(), 2e-5);
    // Of two windows Student's t with one degree of freedom: 12.706 times half their distance.
    let ends = |each: &[f64]| {
        let half = 12.706 * (each[0] - each[1]).abs() / 2.0;
        (mean(each) - half, mean(each) + half)
    };
    let (low, high) = ends(&[mean(&apart[..12]), mean(&apart[12..])]);
    close(&far["low"], low.max(0.0), 2e-4);
    close(&far["high"], high, 2e-4);
    let (low, high) = ends(&[b[0] - a[0], b[1] - a[1]]);
    close(&at["nats_difference"]["low"], low, 1e-4);
    close(&at["perplexity_ratio"]["high"], high.exp(), 2e-4 * high.exp().max(1.0));
    // Again, and the other way round, which is another number.
    assert_eq!(json(&["eval", model, "--data", &data, "--window", "13", "--against", original]), found);
    let back = json(&["eval", original, "--data", &data, "--window", "13", "--against", model]);
    let way: Vec<f64> = counted.iter().map(|&t| kl(&q[t], &p[t])).collect();
    close(&back["against"]["kl_divergence"]["mean"], mean(&way), 2e-5);
    close(&back["against"]["nats_difference"]["value"], mean(&a) - mean(&b), 1e-5);
}

#[test]
fn a_model_is_nowhere_from_itself_and_a_rounded_one_is_somewhere() {
    let dir = tempfile::tempdir().unwrap();
    let data = ids_file(dir.path());
    let model = language().join("llama.gguf");
    let model = model.to_str().unwrap();
    let args = ["eval", model, "--data", &data, "--window", "13", "--against", model];
    let same = json(&args);
    let at = &same["against"];
    assert_eq!((at["kl_divergence"]["max"].as_f64(), at["nats_difference"]["value"].as_f64()), (Some(0.0), Some(0.0)));
    assert_eq!(
        (at["perplexity_ratio"]["high"].as_f64(), at["top_token_agreement"]["low"].as_f64()),
        (Some(1.0), Some(1.0))
    );
    // The original is not rounded with it.
    let rounded = json(&[&args[..], &["--precision", "w4"]].concat());
    let of = &rounded["against"];
    assert_eq!(of["nats_per_token"], same["nats_per_token"]);
    assert!(number(&of["kl_divergence"]["mean"]) > 1e-6 && rounded["nats_per_token"] != same["nats_per_token"]);
    assert!(number(&rounded["weight_bytes"]) < number(&of["weight_bytes"]));
    // One window tells nothing of others.
    let one = json(&[&args[..], &["--limit", "1"]].concat());
    assert!(one["against"]["kl_divergence"]["low"].is_null() && one["against"]["nats_difference"]["high"].is_null());
    let (done, said) = paring(&[&args[..], &["--precision", "w4"]].concat());
    assert!(done && said.contains("KL  ") && said.contains("same top") && said.contains("2 windows"), "{said}");
}

#[test]
fn classifiers_are_compared_by_their_answers() {
    let args = ["eval", "demo:cnn", "--against", "demo:cnn", "--limit", "48", "--logits", "48"];
    let original = json(&args);
    let found = json(&[&args[..], &["--precision", "w4"]].concat());
    let rows = |v: &Value| -> Vec<Vec<f64>> {
        let all = v["logits"].as_array().unwrap().iter();
        all.map(|r| r.as_array().unwrap().iter().map(number).collect()).collect()
    };
    let (p, q) = (rows(&original), rows(&found));
    let apart: Vec<f64> = p.iter().zip(&q).map(|(p, q)| kl(p, q)).collect();
    let same = p.iter().zip(&q).filter(|(p, q)| top(p) == top(q)).count();
    let at = &found["against"];
    assert_eq!(apart.len(), 48);
    close(&at["kl_divergence"]["mean"], apart.iter().sum::<f64>() / 48.0, 1e-5);
    close(&at["kl_divergence"]["max"], quantile(&apart, 1.0), 1e-5);
    close(&at["prediction_agreement"]["value"], same as f64 / 48.0, 1e-9);
    let change = 100.0 * (number(&found["top1"]) - number(&original["top1"]));
    close(&at["top1_change_points"]["value"], change, 1e-9);
    close(&at["gained"], number(&at["lost"]) + change * 0.48, 1e-9);
    assert_eq!(original["against"]["mcnemar_p"].as_f64(), Some(1.0));
}

#[test]
fn unlike_models_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let data = ids_file(dir.path());
    let (model, other) = (language().join("llama.gguf"), decoders().join("phi3"));
    let (model, other) = (model.to_str().unwrap(), other.to_str().unwrap());
    let eval = ["eval", model, "--data", &data, "--window", "13", "--against"];
    refused(&[&eval[..], &[other]].concat(), &["llama.gguf", "phi3", "vocabulary of 96", "of 32"]);
    refused(&[&eval[..], &["demo:cnn"]].concat(), &["a language model", "demo:cnn", "a classifier", "hint: "]);
    refused(&[&eval[..], &["/nowhere"]].concat(), &["/nowhere"]);
    // As many tokens, but the text is cut otherwise.
    let made = |name: &str, first: u8| {
        let to = dir.path().join(name);
        std::fs::create_dir(&to).unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(language().join("llama").join(file), to.join(file)).unwrap();
        }
        std::fs::write(to.join("tokenizer.json"), characters(first).to_string()).unwrap();
        to.to_str().unwrap().to_owned()
    };
    let (a, b, c) = (made("a", 0), made("b", 1), made("c", 0));
    let text = dir.path().join("text.txt");
    std::fs::write(&text, "whereas_some_words_are_longer_than_others".repeat(3)).unwrap();
    let text = text.to_str().unwrap();
    refused(&["eval", &a, "--data", text, "--window", "13", "--against", &b], &["other tokens", "hint: "]);
    let same = json(&["eval", &a, "--data", text, "--window", "13", "--against", &c]);
    assert_eq!(same["against"]["kl_divergence"]["max"].as_f64(), Some(0.0));
    // A model without a vocabulary is given its original's.
    std::fs::remove_file(Path::new(&a).join("tokenizer.json")).unwrap();
    let lent = json(&["eval", &a, "--data", text, "--window", "13", "--against", &c]);
    assert_eq!(lent["nats_per_token"], same["nats_per_token"]);
}

/// A vocabulary of 96 with one token for each character, in an order that begins with number `first` of them.
fn characters(first: u8) -> Value {
    let all: serde_json::Map<String, Value> = (0..94u8)
        .map(|i| (char::from(b'!' + (i + first) % 94).to_string(), Value::from(i)))
        .chain([("\u{120}".to_owned(), Value::from(94)), ("\u{10a}".to_owned(), Value::from(95))])
        .collect();
    let bytes =
        serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true });
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "pre_tokenizer": bytes, "decoder": bytes, "added_tokens": [],
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": all, "merges": [] },
    })
}
