//! Documents and questions with choices, as `paring eval` scores them: against the same text in one piece, and against likelihoods that are
//! summed by hand.

use super::*;
use candle_core::{Device, Tensor};
use paring::exec::{CompileOptions, Plan};
use paring::model::{LoadOptions, load};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use std::sync::Arc;

/// A small network whose tokens are characters.
fn of_characters(to: &Path) -> String {
    let to = to.join("model");
    std::fs::create_dir(&to).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(language().join("llama").join(file), to.join(file)).unwrap();
    }
    std::fs::write(to.join("tokenizer.json"), characters(0).to_string()).unwrap();
    to.to_str().unwrap().to_owned()
}

/// What that vocabulary makes of a text.
fn tokens(text: &str) -> Vec<u32> {
    let id = |c: char| match c {
        ' ' => 94,
        '\n' => 95,
        c => u32::from(c) - u32::from('!'),
    };
    text.chars().map(id).collect()
}

fn written(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) -> String {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Rows with a number and perhaps a text, two a row group.
fn table(texts: &[Option<&str>], column: &str) -> Vec<u8> {
    let schema = format!("message hub {{ required int64 id; optional binary {column} (UTF8); }}");
    let schema = Arc::new(parquet::schema::parser::parse_message_type(&schema).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    for rows in texts.chunks(2) {
        let mut out = writer.next_row_group().unwrap();
        let mut ids = out.next_column().unwrap().unwrap();
        ids.typed::<Int64Type>().write_batch(&vec![7; rows.len()], None, None).unwrap();
        ids.close().unwrap();
        let levels: Vec<i16> = rows.iter().map(|t| i16::from(t.is_some())).collect();
        let values: Vec<ByteArray> = rows.iter().flatten().map(|t| ByteArray::from(*t)).collect();
        let mut texts = out.next_column().unwrap().unwrap();
        texts.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        texts.close().unwrap();
        out.close().unwrap();
    }
    writer.into_inner().unwrap()
}

#[test]
fn documents_are_the_text_that_they_make() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, model) = (dir.path(), of_characters(dir.path()));
    let texts = ["the first\ndocument", "", "another one, which is longer", "the last"];
    let plain = written(dir, "plain.txt", texts.join("\n\n"));
    let lines: String = texts.iter().map(|t| format!("{}\n", serde_json::json!({ "id": 1, "text": t }))).collect();
    let lines = written(dir, "lines.jsonl", lines);
    let rows = [Some(texts[0]), Some(texts[1]), None, Some(texts[2]), Some(texts[3])];
    let rows = written(dir, "rows.parquet", table(&rows, "text"));
    let score = |data: &str, more: &[&str]| json(&[&["eval", &model, "--data", data, "--window", "9"], more].concat());
    let want = score(&plain, &[]);
    for data in [&lines, &rows] {
        let found = score(data, &[]);
        assert_eq!(found["nats_per_token"], want["nats_per_token"], "{data}");
        assert_eq!(found["windows"], want["windows"]);
        let told = found["convention"].as_str().unwrap();
        assert!(told.contains("documents joined by two newlines, no token added"), "{told}");
        assert_eq!(
            score(data, &["--limit", "2"])["nats_per_token"],
            score(&plain, &["--limit", "2"])["nats_per_token"]
        );
    }
    let other = written(dir, "other.parquet", table(&[Some("a")], "content"));
    refused(&["eval", &model, "--data", &other], &["no column `text`", "`content`", "hint: "]);
    let mut torn = std::fs::read(&rows).unwrap();
    let middle = torn.len() / 3;
    torn[4..middle].fill(0xff);
    let torn = written(dir, "torn.parquet", torn);
    refused(&["eval", &model, "--data", &torn], &["torn.parquet", "Parquet", "hint: "]);
    let cut = written(dir, "cut.parquet", &std::fs::read(&rows).unwrap()[..40]);
    refused(&["eval", &model, "--data", &cut], &["cut.parquet", "hint: "]);
    let odd = written(dir, "odd.jsonl", "{\"messages\": []}");
    refused(&["eval", &model, "--data", &odd], &["line 1 has no field `text`", "`messages`", "hint: "]);
    refused(&["eval", &model, "--data", &lines, "--items"], &["--items", "hint: "]);
    // A vocabulary that has a token to begin with: that of llama2.c does.
    let stories = dir.join("stories");
    std::fs::create_dir(&stories).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(language().join("llama").join(file), stories.join(file)).unwrap();
    }
    let mut bytes = 8i32.to_le_bytes().to_vec();
    let letters = (b' '..=b'~').take(93).map(|c| char::from(c).to_string());
    for token in ["<unk>", "\n<s>\n", "\n</s>\n"].map(str::to_owned).into_iter().chain(letters) {
        bytes.extend(0f32.to_le_bytes());
        bytes.extend((token.len() as i32).to_le_bytes());
        bytes.extend(token.as_bytes());
    }
    std::fs::write(stories.join("tok96.bin"), bytes).unwrap();
    let found = json(&["eval", stories.to_str().unwrap(), "--data", &rows, "--window", "9"]);
    assert!(found["convention"].as_str().unwrap().contains("documents begin with token 1"));
}

/// The log-probabilities of `tail` after `head`, summed by hand from the network's logits.
fn summed(model: &str, head: &[u32], tail: &[u32]) -> f64 {
    let plan = Plan::of(&load(Path::new(model), &LoadOptions::default()).unwrap(), &CompileOptions::default()).unwrap();
    let all = [head, tail].concat();
    // As many as the model was made for.
    let from = (all.len() - 1).saturating_sub(64);
    let inputs = all[from..all.len() - 1].to_vec();
    let n = inputs.len();
    let logits = plan.run(&Tensor::from_vec(inputs, (1, n), &Device::Cpu).unwrap()).unwrap();
    let rows: Vec<Vec<f32>> = logits.squeeze(0).unwrap().to_vec2().unwrap();
    let of = |(row, id): (&Vec<f32>, &u32)| logs(&row.iter().map(|v| f64::from(*v)).collect::<Vec<_>>())[*id as usize];
    rows[n - tail.len()..].iter().zip(tail).map(of).sum()
}

#[test]
fn choices_are_as_likely_as_their_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, model) = (dir.path(), of_characters(dir.path()));
    // The second is longer than the model was made for.
    let long = "which of these is the one that nobody would have thought of?";
    let asked = [("why?", ["so", "because", "not"], "B"), (long, ["this", "that", "it"], "C")];
    let line = |(question, choices, key): &(&str, [&str; 3], &str)| {
        let choices = serde_json::json!({ "text": choices, "label": ["A", "B", "C"] });
        format!("{}\n", serde_json::json!({ "id": "q", "question": question, "choices": choices, "answerKey": key }))
    };
    let data = written(dir, "arc.jsonl", asked.iter().map(line).collect::<String>());
    let found = json(&["eval", &model, "--data", &data, "--items"]);
    assert_eq!(
        (found["form"].as_str(), found["questions"].as_u64(), found["cut"].as_u64()),
        (Some("arc"), Some(2), Some(1))
    );
    let (mut right, mut by_length) = (0, 0);
    for ((question, choices, key), item) in asked.iter().zip(found["items"].as_array().unwrap()) {
        let head = tokens(&format!("Question: {question}\nAnswer:"));
        let want: Vec<f64> = choices.iter().map(|c| summed(&model, &head, &tokens(&format!(" {c}")))).collect();
        for (found, want) in item["log_probabilities"].as_array().unwrap().iter().zip(&want) {
            close(found, *want, 1e-3);
        }
        let normed: Vec<f64> = want.iter().zip(choices).map(|(w, c)| w / c.len() as f64).collect();
        let key = u64::from(key.as_bytes()[0] - b'A');
        assert_eq!((item["right"].as_u64(), item["answer"].as_u64()), (Some(key), Some(top(&want) as u64)));
        assert_eq!(item["answer_norm"].as_u64(), Some(top(&normed) as u64));
        right += usize::from(top(&want) as u64 == key);
        by_length += usize::from(top(&normed) as u64 == key);
    }
    close(&found["accuracy"]["value"], right as f64 / 2.0, 1e-12);
    close(&found["accuracy_norm"]["value"], by_length as f64 / 2.0, 1e-12);
    close(&found["chance"], 1.0 / 3.0, 1e-12);
    // Wilson's interval, by the formula: at one of two it is ½ ± 1.96 / (2 √(2 + 1.96²)).
    let half = 1.959_964 / (2.0 * (2.0f64 + 1.959_964 * 1.959_964).sqrt());
    if right == 1 {
        close(&found["accuracy"]["low"], 0.5 - half, 1e-5);
    }
    assert!(json(&["eval", &model, "--data", &data, "--limit", "1"])["items"].is_null());
    refused(&["eval", &model, "--data", &data, "--window", "8"], &["--window", "hint: "]);
    let bare = language().join("llama");
    refused(&["eval", bare.to_str().unwrap(), "--data", &data], &["without a vocabulary", "hint: "]);
}

#[test]
fn letters_and_endings_are_weighed_and_compared_with_an_original() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, model) = (dir.path(), of_characters(dir.path()));
    let mmlu = serde_json::json!({ "question": "1 + 1?", "choices": ["2", "3", "4"], "answer": 0 }).to_string();
    let data = written(dir, "mmlu.jsonl", mmlu);
    let found = json(&["eval", &model, "--data", &data, "--items"]);
    let head = tokens("1 + 1?\nA. 2\nB. 3\nC. 4\nAnswer:");
    for (found, letter) in found["items"][0]["log_probabilities"].as_array().unwrap().iter().zip(["A", "B", "C"]) {
        close(found, summed(&model, &head, &tokens(&format!(" {letter}"))), 1e-3);
    }
    // Enough questions for a rounded model to answer some of them otherwise.
    let line = |i: usize| {
        let word = |k: usize| format!("{:x} {:x}", i * 7919 + k * 104_729, (i + k) * 31);
        let line = serde_json::json!({ "ctx": format!("go {}", word(9)), "endings": [word(1), word(2), word(3), word(4)],
            "label": (i % 4).to_string(), "activity_label": "Doing" });
        format!("{line}\n")
    };
    let data = written(dir, "hellaswag.jsonl", (0..40).map(line).collect::<String>());
    let alone = json(&["eval", &model, "--data", &data, "--items"]);
    let both = json(&["eval", &model, "--data", &data, "--items", "--against", &model, "--precision", "w4"]);
    let answers = |v: &Value| -> Vec<u64> {
        v["items"].as_array().unwrap().iter().map(|i| i["answer"].as_u64().unwrap()).collect()
    };
    let (a, b) = (answers(&alone), answers(&both));
    let right = |all: &[u64]| all.iter().enumerate().filter(|(i, a)| *i as u64 % 4 == **a).count() as f64;
    let at = &both["against"];
    assert_eq!(at["accuracy"], alone["accuracy"]);
    close(&at["accuracy_change_points"]["value"], 100.0 * (right(&b) - right(&a)) / 40.0, 1e-9);
    let same = a.iter().zip(&b).filter(|(a, b)| a == b).count() as f64;
    assert!(same > 10.0 && same < 40.0, "{same}");
    close(&at["same_answers"]["value"], same / 40.0, 1e-12);
    let (done, said) = paring(&["eval", &model, "--data", &data, "--against", &model]);
    assert!(done && said.contains("40 questions  (hellaswag)") && said.contains("100.00 %"), "{said}");
}
