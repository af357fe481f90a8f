//! `paring control`, `generate` and `serve` over a small model with levels.

use crate::files::written;
use crate::talker::{END, TEMPLATE, with_tokenizer};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn paring(args: &[&str]) -> (bool, String, String) {
    let home = tempfile::tempdir().unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_paring")).args(args).env("PARING_HOME", home.path()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (out.status.success(), text(out.stdout), text(out.stderr))
}

/// The small model with levels and a policy, beside its vocabulary; and the model as it was.
fn levelled(dir: &Path) -> (PathBuf, PathBuf) {
    let plain = with_tokenizer("llama", dir);
    let config = json!({ "chat_template": TEMPLATE, "eos_token": END });
    std::fs::write(plain.join("tokenizer_config.json"), config.to_string()).unwrap();
    let folder = dir.join("with");
    std::fs::create_dir(&folder).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(plain.join(file), folder.join(file)).unwrap();
    }
    let file = folder.join("model.safetensors");
    written(&file);
    (file, plain)
}

#[test]
fn generate_goes_by_the_policy_or_by_what_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let (file, plain) = levelled(dir.path());
    let say = |model: &Path, more: &[&str]| -> Value {
        let model = model.to_str().unwrap();
        let args = ["generate", model, "--prompt", "hello", "-n", "24", "--ignore-end", "--json", "--threads", "1"];
        let (ok, out, err) = paring(&[&args, more].concat());
        assert!(ok, "{err}");
        serde_json::from_str(&out).unwrap()
    };
    let (whole, dense) = (say(&plain, &[]), say(&file, &["--level", "dense"]));
    assert_eq!(whole["ids"], dense["ids"]);
    assert!(dense["tokens_per_level"].is_null());
    let auto = say(&file, &[]);
    assert_eq!(auto["ids"], say(&file, &["--level", "auto"])["ids"]);
    // What the policy says by hand: the last level after tokens below 48. The last token is not fed.
    let ids: Vec<u64> = auto["ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect();
    let low = ids[..ids.len() - 1].iter().filter(|id| **id < 48).count();
    assert_eq!(auto["tokens_per_level"], json!([ids.len() - 1 - low, 0, low]));
    let pinned = say(&file, &["--level", "2"]);
    assert_eq!(pinned["tokens_per_level"], json!([0, 0, 23]));
    assert!(pinned["bytes_per_token"].as_u64() < dense["bytes_per_token"].as_u64());
    for (model, more, words) in [
        (&file, ["--level", "3"], "there is no level 3; hint: 0 to 2"),
        (&file, ["--level", "fast"], "`fast` is not `auto`, `dense` or a level's number"),
        (&plain, ["--level", "auto"], "the file has no levels; hint: `paring control`"),
        (&file, ["--precision", "int8"], "the file's levels are of its own weights; hint: "),
    ] {
        let (ok, _, err) = paring(&[&["generate", model.to_str().unwrap(), "--prompt", "a"], &more[..]].concat());
        assert!(!ok && err.contains(words), "{err}");
    }
}

#[test]
fn serve_tells_what_levels_made() {
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = levelled(dir.path());
    let mut child = Command::new(env!("CARGO_BIN_EXE_paring"))
        .args(["serve", file.to_str().unwrap(), "--port", "0", "--threads", "1", "--parallel", "2"])
        .env("PARING_HOME", dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("http://").and_then(|l| l.strip_suffix("/v1")).unwrap().to_owned();
    let ask = |head: &str, body: &str| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        let length = body.len();
        write!(stream, "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n")
            .unwrap();
        write!(stream, "content-length: {length}\r\n\r\n{body}").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let asked = json!({ "prompt": "hello", "max_tokens": 12, "temperature": 0 }).to_string();
    let answers: Vec<String> = std::thread::scope(|s| {
        let both: Vec<_> = (0..2).map(|_| s.spawn(|| ask("POST /v1/completions", &asked))).collect();
        both.into_iter().map(|h| h.join().unwrap()).collect()
    });
    let usage = |text: &str| -> Value {
        let body = text.split_once("\r\n\r\n").unwrap().1;
        serde_json::from_str::<Value>(body).unwrap_or_else(|e| panic!("{e}: {text}"))["usage"].clone()
    };
    let written: u64 = answers.iter().map(|a| usage(a)["completion_tokens"].as_u64().unwrap()).sum();
    let metrics = ask("GET /metrics", "");
    let of = |level: usize| -> u64 {
        let name = format!("paring_completion_tokens_by_level_total{{level=\"{level}\"}} ");
        metrics.lines().find_map(|l| l.strip_prefix(&name)).map_or(0, |n| n.trim().parse().unwrap())
    };
    let made: Vec<u64> = (0..3).map(of).collect();
    // The first of each comes from its prompt.
    assert_eq!(made.iter().sum::<u64>(), written - 2, "{metrics}");
    assert_eq!(made[1], 0);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn control_makes_a_file_that_runs_and_refuses_what_it_cannot_judge() {
    let dir = tempfile::tempdir().unwrap();
    let plain = with_tokenizer("llama", dir.path());
    let text = |name: &str, from: u32| {
        let path = dir.path().join(name);
        let letter = |i: u32| char::from(b'a' + ((i * i + from * i) % 23) as u8);
        std::fs::write(&path, (0..900).map(|i| if i % 6 == 5 { ' ' } else { letter(i) }).collect::<String>()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (calib, data) = (text("calib.txt", 3), text("data.txt", 5));
    let out = dir.path().join("out.safetensors");
    let (model, out) = (plain.to_str().unwrap(), out.to_str().unwrap());
    let small = ["--window", "24", "--prompt", "4", "--limit", "3", "--seeds", "2", "--threads", "1"];
    let made = |calib: &str, more: &[&str]| {
        let files = ["control", model, "--calib", calib, "--data", &data, "--out", out];
        paring(&[&files, &small[..], more].concat())
    };
    let (ok, told, err) = made(&calib, &["--levels", "3", "--json"]);
    assert!(ok, "{err}");
    let told: Value = serde_json::from_str(&told).unwrap();
    let levels = told["levels"].as_array().unwrap();
    assert_eq!((levels.len(), &levels[0]["mlps"]["gone"]), (3, &json!(0)));
    assert!(levels[2]["bytes_per_token"].as_u64() < levels[1]["bytes_per_token"].as_u64());
    let arms = told["arms"].as_array().unwrap();
    let named = |name: &str| arms.iter().find(|a| a["arm"] == name).unwrap_or_else(|| panic!("no {name}: {arms:?}"));
    // The whole network is itself but for rounding; each arm made every token once.
    assert!(named("dense")["kl_divergence"].as_f64().unwrap() < 1e-6);
    for arm in ["dense", "level 2", "bandit 1", "bandit 2", "gradient 2", "whole 1"] {
        let shares: f64 = named(arm)["shares"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).sum();
        assert!((shares - 1.0).abs() < 1e-9, "{arm}");
    }
    assert_eq!(told["verdicts"].as_array().unwrap().len(), 3);
    assert_eq!(told["tokens"], json!(3 * (24 - 5)));
    // In words, with the levels that are there.
    let again = dir.path().join("ladder.safetensors");
    std::fs::copy(out, &again).unwrap();
    let (ok, words, err) = made(&calib, &["--ladder", again.to_str().unwrap()]);
    assert!(ok && words.contains("beside the best fixed in as much time"), "{words} {err}");
    let tokenizer = format!("{model}/tokenizer.json");
    let said = paring(&["generate", out, "--tokenizer", &tokenizer, "--prompt", "ab", "-n", "6", "--json"]);
    assert!(said.0 && said.1.contains("tokens_per_level"), "{said:?}");
    for (calib, more, words) in [
        (&data, &[][..], "a controller is not judged on what it was made with"),
        (&calib, &["--target", "1.5"][..], "no share of the whole network's time"),
        (&calib, &["--learner", "whole"][..], "is what both begin with"),
        (&calib, &["--calib-limit", "9"][..], "windows of text are too few: 9, and 13 are needed"),
        (&calib, &["--least", "2"][..], "a share above 0 and below 1"),
        // A ladder has its levels.
        (&calib, &["--ladder", again.to_str().unwrap(), "--levels", "3"][..], "cannot be used with"),
    ] {
        let (ok, _, err) = made(calib, more);
        assert!(!ok && err.contains(words), "{err}");
    }
}
