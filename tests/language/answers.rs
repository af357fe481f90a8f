//! Questions with free answers: what is written is what `generate` writes, and it is counted as SQuAD's script and its like count.

use crate::paring;
use crate::talker::with_tokenizer;
use serde_json::{Value, json};

fn said(args: &[&str]) -> Value {
    let (done, said) = paring(args);
    assert!(done, "{said}");
    serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"))
}

#[test]
fn answers_are_what_is_generated_and_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let model = with_tokenizer("llama", dir.path());
    let model = model.to_str().unwrap();
    let prompts = ["ab abba", "a question", "1984"];
    let written: Vec<String> = prompts
        .iter()
        .map(|p| {
            let told = said(&["generate", model, "--prompt", p, "--tokens", "12", "--json", "--device", "cpu"]);
            told["text"].as_str().unwrap().lines().next().unwrap_or("").trim().to_owned()
        })
        .collect();
    assert!(written.iter().any(|w| !w.is_empty()));
    let file = dir.path().join("q.jsonl");
    // The first is right, the second has another right one besides, the third is wrong.
    let lines = [
        json!({ "prompt": prompts[0], "answer": written[0] }),
        json!({ "prompt": prompts[1], "answers": ["nothing of it", written[1]] }),
        json!({ "prompt": prompts[2], "answer": "qqqqq" }),
    ];
    std::fs::write(&file, lines.map(|l| l.to_string()).join("\n")).unwrap();
    let args = [
        "eval",
        model,
        "--data",
        file.to_str().unwrap(),
        "--answer-tokens",
        "12",
        "--json",
        "--items",
        "--device",
        "cpu",
    ];
    let told = said(&args);
    let items = told["items"].as_array().unwrap();
    for (item, written) in items.iter().zip(&written) {
        assert_eq!(item["said"].as_str(), Some(written.as_str()));
    }
    let exact: Vec<f64> = items.iter().map(|i| i["exact_match"].as_f64().unwrap()).collect();
    assert_eq!(exact, [1.0, 1.0, 0.0]);
    assert_eq!((told["questions"].as_u64(), told["exact_match"]["questions"].as_u64()), (Some(3), Some(2)));
    let mean = |name: &str| items.iter().map(|i| i[name].as_f64().unwrap()).sum::<f64>() / 3.0;
    for name in ["f1", "rouge1", "rouge2", "rougeL"] {
        assert!((told[name]["value"].as_f64().unwrap() - mean(name)).abs() < 1e-12, "{name}");
    }
    // Beside itself nothing changes.
    let told = said(&[&args[..], &["--against", model]].concat());
    assert_eq!(told["against"]["same_answers"]["value"], 1.0);
    assert_eq!((&told["against"]["f1_change"]["value"], &told["against"]["bleu"]), (&json!(0.0), &told["bleu"]));
    // As people read it.
    let (done, words) = paring(&args[..6]);
    assert!(done && ["exact  ", "ROUGE-L", "BLEU", "66.67 %"].iter().all(|w| words.contains(w)), "{words}");
    let text = dir.path().join("t.txt");
    std::fs::write(&text, "ab ab ab ab ab ab ab").unwrap();
    let (done, words) = paring(&["eval", model, "--data", text.to_str().unwrap(), "--lines", "--device", "cpu"]);
    assert!(!done && words.contains("free answers"), "{words}");
}
