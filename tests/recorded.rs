//! A whole session with a real server and a real, very small model, as it was recorded (`agents/record.py`), played again at a
//! terminal: what the model gets wrong is refused, told once and replaced by the planner, where the engineer sees it.

#[path = "common/fake_llm.rs"]
mod fake_llm;
#[path = "common/pty.rs"]
mod pty;

use fake_llm::{Answer, FakeLlm, Step};
use pty::{Home, LONG, Term, review};
use serde_json::Value;
use std::io::Read;

/// The answers as their bytes came.
fn recording(name: &str) -> (Vec<String>, Vec<String>) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings").join(name);
    let file = std::fs::File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("packed text");
    let case: Value = serde_json::from_str(&text).expect("JSON");
    let words = |v: &Value| v.as_str().expect("text").to_owned();
    let models = case["models"].as_array().expect("models").iter().map(words).collect();
    let raw = case["answers"].as_array().expect("answers").iter().map(|a| {
        assert_eq!(a["status"], 200);
        words(&a["raw"])
    });
    (models, raw.collect())
}

/// What is said in a stream.
fn content(raw: &str) -> String {
    let events = raw.lines().filter_map(|l| serde_json::from_str::<Value>(l.strip_prefix("data: ")?).ok());
    events.filter_map(|e| e["choices"][0]["delta"]["content"].as_str().map(str::to_owned)).collect()
}

/// Behind llama.cpp's own server, and behind llama-cpp-python's with tools by its grammar.
#[test]
fn a_small_models_session_ends_in_the_planners_plan_on_screen() {
    for name in ["smollm2.json.gz", "smollm2_llama_cpp_python.json.gz"] {
        plays_again(name);
    }
}

fn plays_again(name: &str) {
    let (models, raw) = recording(name);
    assert_eq!(raw.len(), 5, "three roles, of which two were asked once more");
    let answers = raw.iter().map(|r| Answer::stream(vec![Step::Raw(r.clone().into_bytes())])).collect();
    let fake = FakeLlm::start(&[&models[0]], answers);
    let home = Home::new(&[("OPENAI_BASE_URL", &fake.url)]);
    let open = ["open", "demo:cnn", "--name", "recorded", "--limit", "200", "--calib-limit", "600"];
    let rest = ["--threads", "2", "--budget", "macs=0.7", "--seed=1"];
    let mut t = Term::start(&home, &[&open[..], &rest[..]].concat(), 120, 40);
    let screen = t.wait("I stand in for quantization");
    assert!(screen.contains("planner"), "{screen}");
    t.wait_for("proposals", LONG, |s| review(s).is_some_and(|(_, all)| all > 0));

    let said: Vec<(String, String, String)> = (home.events_of("recorded", "said").iter())
        .map(|e| {
            let of = |k: &str| e["utterance"][k].as_str().unwrap_or_default().to_owned();
            (of("role"), of("model"), of("text"))
        })
        .collect();
    let roles: Vec<&str> = said.iter().map(|(role, ..)| role.as_str()).collect();
    assert_eq!(
        roles,
        ["analysis", "pruning", "pruning", "planner", "quantization", "quantization", "planner"],
        "each role that proposes is told once"
    );
    // What it said is kept as it said it, as far as it did not go round in circles.
    let own: Vec<&String> = said.iter().filter(|(_, model, _)| *model == models[0]).map(|(.., text)| text).collect();
    for (kept, raw) in own.iter().zip(&raw) {
        let whole = content(raw);
        assert!(!kept.is_empty() && whole.trim().starts_with(kept.trim()), "{kept:.200}\n\n{whole:.200}");
    }
    let why: Vec<&String> = said.iter().filter(|(role, ..)| role == "planner").map(|(.., text)| text).collect();
    for (why, role) in why.iter().zip(["pruning", "quantization"]) {
        let words = format!(
            "I stand in for {role}: the proposal was still broken after one correction: the reply holds no JSON object"
        );
        assert!(why.contains(&words), "{why}");
    }
    // The corrections say what was wrong.
    for i in [2, 4] {
        assert!(fake.question(i).contains("the reply holds no JSON object with `decisions`"), "{}", fake.question(i));
    }
    let decided = home.events_of("recorded", "proposed");
    let authors = decided.iter().flat_map(|e| e["decisions"].as_array().cloned().unwrap_or_default());
    let authors: Vec<String> = authors.map(|d| d["author"]["by"].as_str().unwrap_or_default().to_owned()).collect();
    assert!(!authors.is_empty() && authors.iter().all(|a| a == "planner"), "{authors:?}");

    // The engineer approves the planner's plan, and it runs.
    t.wait_for("the end of the proposal", LONG, |s| {
        !s.contains("interrupts") && review(s).is_some_and(|(_, all)| all > 0)
    });
    t.press("Y");
    t.wait_for("all settled", LONG, |s| review(s).is_some_and(|(a, b)| a == b && b > 0));
    t.press("R");
    t.wait_for("the verdict", LONG, |s| s.contains("verdict") && s.contains("accepts"));
    t.stop();
}
