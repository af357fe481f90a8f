//! Seeded mutations of vocabularies (`tokenizer.json`) and chat templates: each ends in tokens and text or in an error with words, soon,
//! and never in a panic. `tests/fuzz/` looks further.

use paring::model::{ChatMessage, ChatTemplate, Tokenizer};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// `PARING_MUTATIONS` asks for more of them, from other seeds.
const EACH: usize = 300;
/// What one case may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

const TEXTS: [&str; 4] = ["", "Once upon a time", "naïve \u{202e}日本 \n\t\u{0}", "<|im_start|>[MASK]</s> 1234567890"];

fn dice() -> (ChaCha8Rng, usize) {
    let more = std::env::var("PARING_MUTATIONS").ok().and_then(|n| n.parse::<usize>().ok());
    (ChaCha8Rng::seed_from_u64(more.map_or(5, |n| n as u64)), more.unwrap_or(EACH))
}

fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let parts = ["language/vocabulary", "language/pieces", "encoders/bert", "encoders/modernbert", "chat"];
    parts.into_iter().map(|part| root.join(part).join("tokenizer.json")).collect()
}

/// Every value below `v`, as pointers (RFC 6901), and no more than a few of the entries of a vocabulary.
fn pointers(v: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match v {
        Value::Object(all) => all.iter().take(40).for_each(|(k, v)| {
            pointers(v, &format!("{at}/{}", k.replace('~', "~0").replace('/', "~1")), out);
        }),
        Value::Array(all) => all.iter().take(40).enumerate().for_each(|(i, v)| pointers(v, &format!("{at}/{i}"), out)),
        _ => {}
    }
}

/// A value that is not what stood there: of its own kind most of the time, since what is of another is refused at once.
fn odd(rng: &mut ChaCha8Rng, was: &Value) -> Value {
    let any = [json!(null), json!(true), json!(-1), json!(""), json!([]), json!({}), json!([was, was])];
    let numbers = [json!(0), json!(7), json!(u32::MAX), json!(u64::MAX), json!(-1), json!(1e300)];
    let words = ["", "▁", "Ġ\u{0}", "<|x|>", "(a*)*b|(?<=x)\\p{L}{1000}[", "\u{202e}é"];
    if rng.random_range(0..8) == 0 {
        return any[rng.random_range(0..any.len())].clone();
    }
    match was {
        Value::Null => {
            json!({"type": "Sequence", "normalizers": [], "pretokenizers": [], "decoders": [], "processors": []})
        }
        Value::Bool(v) => json!(!v),
        Value::Number(_) => numbers[rng.random_range(0..numbers.len())].clone(),
        Value::String(_) => json!(words[rng.random_range(0..words.len())]),
        Value::Array(all) => {
            let mut all = all.clone();
            match all.is_empty() {
                true => all.push(json!("a")),
                false if rng.random() => drop(all.remove(rng.random_range(0..all.len()))),
                false => all.push(all[rng.random_range(0..all.len())].clone()),
            }
            Value::Array(all)
        }
        Value::Object(all) => {
            let mut all = all.clone();
            let names: Vec<String> = all.keys().cloned().collect();
            if !names.is_empty() {
                let one = all.remove(&names[rng.random_range(0..names.len())]);
                let other = &names[rng.random_range(0..names.len())];
                if let (Some(one), true) = (one, rng.random()) {
                    all.insert(other.clone(), one);
                }
            }
            Value::Object(all)
        }
    }
}

fn changed(json: &Value, paths: &[String], rng: &mut ChaCha8Rng) -> String {
    let mut json = json.clone();
    for _ in 0..rng.random_range(1..3) {
        // What stands further up decides more.
        let path = loop {
            let path = &paths[rng.random_range(0..paths.len())];
            if !path.is_empty() && (path.matches('/').count() < 4 || rng.random_range(0..4) == 0) {
                break path;
            }
        };
        let Some(value) = json.pointer_mut(path) else { continue };
        *value = odd(rng, value);
    }
    let mut text = json.to_string();
    if rng.random_range(0..5) == 0 {
        let at = rng.random_range(0..text.len());
        match (text.is_char_boundary(at), rng.random_range(0..3)) {
            (true, 0) => text.truncate(at),
            (true, 1) => text.insert(at, ['"', '}', '0', '\\', '\u{fffd}'][rng.random_range(0..5)]),
            _ => {}
        }
    }
    text
}

/// A `tokenizer.model` with bytes changed, cut off and doubled.
#[test]
fn mutated_sentence_pieces_cut_text_or_are_refused() {
    let (mut rng, each) = dice();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.model");
    let whole =
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/language/pieces/tokenizer.model"));
    let (whole, mut read) = (whole.unwrap(), 0);
    for round in 0..each {
        let mut bytes = whole.clone();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(0..bytes.len().max(1));
            match rng.random_range(0..4) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes.extend_from_within(at..),
                _ if at < bytes.len() => bytes[at] = rng.random(),
                _ => {}
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        let start = Instant::now();
        match Tokenizer::of(&path) {
            Ok(found) => {
                let found = found.expect("a file that was named");
                read += 1;
                for text in TEXTS {
                    let ids = found.encode(text).unwrap();
                    found.decode(&ids).unwrap();
                }
                found.decode(&[0, 7, u32::MAX]).unwrap();
            }
            Err(e) => {
                let e = e.to_string();
                assert!(e.contains("hint: ") && !e.chars().any(char::is_control), "round {round}: {e:?}");
            }
        }
        assert!(start.elapsed() < PATIENCE, "round {round}");
    }
    assert!((each / 10..each).contains(&read), "{read} of {each} were read");
}

#[test]
fn mutated_vocabularies_cut_text_or_are_refused() {
    let (mut rng, each) = dice();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    for fixture in fixtures() {
        let json: Value = serde_json::from_slice(&std::fs::read(&fixture).unwrap()).unwrap();
        let mut paths = Vec::new();
        pointers(&json, "", &mut paths);
        let (mut read, mut cut) = (0, 0);
        for round in 0..each {
            std::fs::write(&path, changed(&json, &paths, &mut rng)).unwrap();
            let (start, words) = (Instant::now(), |e: String| {
                assert!(
                    e.contains("hint: ") && !e.chars().any(char::is_control),
                    "{} round {round}: {e:?}",
                    fixture.display()
                );
            });
            match Tokenizer::of(&path) {
                Ok(found) => {
                    let found = found.expect("a file that was named");
                    read += 1;
                    for text in TEXTS {
                        match found.encode(text).and_then(|ids| found.decode(&ids)) {
                            Ok(_) => cut += 1,
                            Err(e) => words(e.to_string()),
                        }
                    }
                    let _ = found.decode(&[0, 7, u32::MAX]);
                }
                Err(e) => words(e.to_string()),
            }
            let took = start.elapsed();
            assert!(took < PATIENCE, "{} round {round}: {took:?}", fixture.display());
        }
        println!("{}: {read} of {each} are read, {cut} texts cut", fixture.display());
        assert!(read > 0 && read < each, "{}: {read} of {each}", fixture.display());
    }
}

/// Pieces that templates are made of, and pieces that mean trouble.
const PIECES: [&str; 24] = [
    "{%",
    "%}",
    "{{",
    "}}",
    "{#",
    "endfor",
    "else",
    "endif",
    "loop.index0",
    "messages",
    "[0]",
    "[-1]",
    "|tojson",
    "|length",
    ".strip()",
    ".split('\\n')",
    "range(10**9)",
    "'a' * 10**9",
    "loop.previtem",
    "namespace(x=1)",
    "raise_exception('no')",
    "strftime_now('%Q%')",
    "((((((((",
    "\u{0}\u{202e}",
];

#[test]
fn mutated_chat_templates_write_a_prompt_or_say_why_not() {
    let (mut rng, each) = dice();
    let expected = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/chat/expected.json");
    let expected: Value = serde_json::from_slice(&std::fs::read(expected).unwrap()).unwrap();
    let mut templates = Vec::new();
    collect(&expected, &mut templates);
    assert!(templates.len() >= 3, "{}", templates.len());
    let say = |role: &str, content: &str| ChatMessage { role: role.into(), content: content.into() };
    let messages =
        [say("system", "Be brief."), say("user", "Hi {{ there }}\n"), say("assistant", ""), say("user", "?")];
    let tokens: BTreeMap<String, String> =
        [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let (mut written, mut refused) = (0, 0);
    for source in &templates {
        for round in 0..each / 3 {
            let mut text: Vec<char> = source.chars().collect();
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..=text.len());
                let end = (at + rng.random_range(0..12)).min(text.len());
                match rng.random_range(0..4) {
                    0 => drop(text.drain(at..end)),
                    1 => drop(text.splice(at..at, text[at..end].to_vec())),
                    _ => drop(text.splice(at..at, PIECES[rng.random_range(0..PIECES.len())].chars())),
                }
            }
            let (start, text) = (Instant::now(), text.into_iter().collect::<String>());
            match ChatTemplate::new(text.clone(), tokens.clone()).and_then(|t| t.render(&messages, true)) {
                Ok(_) => written += 1,
                Err(e) => {
                    refused += 1;
                    let words = e.to_string();
                    assert!(words.contains("template"), "{words}");
                    assert!(
                        !words.contains("panic") && !words.chars().any(char::is_control),
                        "round {round}: {words:?}: {text}"
                    );
                }
            }
            let took = start.elapsed();
            assert!(took < PATIENCE, "round {round}: {took:?}: {text}");
        }
    }
    println!("{written} are written, {refused} refused");
    assert!(written > 0 && refused > 0, "{written}, {refused}");
}

/// The templates of the fixture: its strings that hold a statement.
fn collect(v: &Value, out: &mut Vec<String>) {
    match v {
        Value::String(s) if s.contains("{%") && s.contains("messages") => out.push(s.clone()),
        Value::Array(all) => all.iter().for_each(|v| collect(v, out)),
        Value::Object(all) => all.values().for_each(|v| collect(v, out)),
        _ => {}
    }
}
