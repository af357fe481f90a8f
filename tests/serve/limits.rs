//! What is refused, by name and status, and what ends: bodies, queues, clients, addresses.

use crate::client::{Answer, JSON, Served};
use crate::{hi, with};
use serde_json::{Value, json};
use std::io::Read;
use std::process::Command;
use std::time::Duration;

/// Status, parameter and code of an error, and its words.
fn error(a: &Answer) -> (u16, Value, Value, String) {
    let e = &a.json()["error"];
    (a.status, e["param"].clone(), e["code"].clone(), e["message"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn bad_requests_are_told_in_openais_shape() {
    let s = Served::start(&["--context", "40"]);
    let chat = "/v1/chat/completions";
    for (asked, status, param, code, words) in [
        (with(hi(), json!({ "temperature": -1 })), 400, "temperature", "invalid_value", "no number from 0 to 2"),
        (with(hi(), json!({ "n": 3 })), 400, "n", "unsupported_parameter", "not supported here, as 3"),
        (with(hi(), json!({ "model": "gpt\u{1b}" })), 404, "model", "model_not_found", "`gpt\\u{1b}`; hint: `llama`"),
        (
            with(hi(), json!({ "messages": [{ "role": "user", "content": "bad" }] })),
            400,
            "messages",
            "invalid_value",
            "refuses this conversation: no user may say so",
        ),
        (
            with(hi(), json!({ "max_tokens": 34 })),
            400,
            "messages",
            "context_length_exceeded",
            "maximum context length is 40 tokens, and 41 are asked for: 7 of the prompt and 34",
        ),
        (
            with(hi(), json!({ "max_tokens": null, "messages": [{ "role": "user", "content": "x".repeat(60) }] })),
            400,
            "messages",
            "context_length_exceeded",
            "40 tokens, and 66 are asked for: 65 of the prompt and 1",
        ),
    ] {
        let found = error(&s.post(chat, &asked));
        assert_eq!((found.0, &found.1, &found.2), (status, &json!(param), &json!(code)), "{asked}: {found:?}");
        assert!(found.3.contains(words), "{asked}: {}", found.3);
    }
    // As much as there is room for.
    assert_eq!(s.post(chat, &with(hi(), json!({ "max_tokens": null }))).json()["usage"]["total_tokens"], 40);
    let prompt = |p: Value| error(&s.post("/v1/completions", &json!({ "prompt": p })));
    assert_eq!(prompt(json!("")).1, "prompt");
    assert!(prompt(json!([96])).3.contains("beyond the 96 of the vocabulary"));
    assert_eq!((s.get("/v2").status, s.get(chat).status, s.get("/v1/models/gpt").status), (404, 405, 404));
    assert_eq!(error(&s.ask("POST", chat, JSON, "{")).2, "invalid_json");
    assert_eq!(s.ask("POST", chat, "Content-Type: text/plain\r\n", &hi().to_string()).status, 415);
    let large = format!("{{\"prompt\": \"{}\"}}", "x".repeat(5 << 20));
    assert_eq!(error(&s.ask("POST", "/v1/completions", JSON, &large)).2, "body_too_large");
    // A name that a page in somebody's browser gave to this machine.
    let from = |host: &str| {
        Answer::read(s.raw(format!("GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes()))
    };
    assert_eq!([from("evil.example").status, from("localhost:1").status, from("[::1]").status], [403, 200, 200]);
    // What is no HTTP ends, and the server goes on.
    let mut nonsense = s.raw(b"\x16\x03\x01nonsense\r\n\r\n");
    drop(nonsense.read_to_end(&mut Vec::new()));
    assert!(s.log().contains("404 model_not_found model") && !s.log().contains("xxxxxxxx"), "{}", s.log());
    assert_eq!(s.post(chat, &hi()).status, 200);
}

#[test]
fn a_key_is_asked_for() {
    let s = Served::start(&["--api-key", "sesame"]);
    let with_key = |key: &str| s.ask("GET", "/v1/models", &format!("Authorization: {key}\r\n"), "").status;
    assert_eq!(
        [with_key("Bearer sesame"), with_key("Bearer open"), with_key("sesame"), with_key("Bearer ")],
        [200, 401, 401, 401]
    );
    assert_eq!([s.get("/v1/models").status, s.get("/metrics").status, s.get("/health").status], [401, 401, 200]);
    assert!(!s.log().contains("sesame"), "{}", s.log());
}

/// A full queue says so; a client that goes away leaves its place to the next.
#[test]
fn places_are_few_and_given_back() {
    let s = Served::start(&["--context", "1000000", "--parallel", "1", "--queue", "0"]);
    let endless = with(hi(), json!({ "max_tokens": 900_000, "stream": true }));
    for whole in [false, true] {
        // Who waits for a whole answer goes away as well as who reads a stream.
        let asked = with(endless.clone(), json!({ "stream": !whole }));
        let client = s.begin("/v1/chat/completions", &asked);
        until(|| s.get("/metrics").text().contains("paring_sequences_running 1"));
        let full = s.post("/v1/chat/completions", &hi());
        assert_eq!((error(&full).2, full.status), (json!("queue_full"), 503));
        assert!(full.head.to_lowercase().contains("retry-after: "), "{}", full.head);
        drop(client);
        until(|| s.post("/v1/chat/completions", &hi()).status == 200);
    }
    let metrics = s.get("/metrics").text();
    assert!(metrics.contains("paring_requests_cancelled_total 2"), "{metrics}");
    // Who has its answer may ask again at once: the place is free before the answer is out.
    for turn in 0..200 {
        assert_eq!(s.post("/v1/chat/completions", &hi()).status, 200, "turn {turn}");
    }
}

/// Waits for what is to come; a test that waits in vain ends by its own.
fn until(is: impl Fn() -> bool) {
    for _ in 0..600 {
        if is() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("it did not come");
}

#[test]
fn what_cannot_be_served_is_told() {
    let home = tempfile::tempdir().unwrap();
    let dir = crate::talker::talker(home.path(), "{{ x ");
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paring"));
        let out = command.arg("serve").args(args).env("PARING_HOME", home.path()).output().unwrap();
        assert!(!out.status.success() && out.stdout.is_empty());
        String::from_utf8(out.stderr).unwrap()
    };
    let dir = dir.to_str().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (args, words) in [
        (&[dir, "--host", "0.0.0.0"][..], "--expose"),
        (&[dir, "--host", "example.org"], "is no address"),
        (&[dir, "--port", &port], "cannot listen on 127.0.0.1"),
        (&[dir, "--port", "0"], "the model's chat template fails: syntax error"),
        (&[dir, "--port", "0", "--parallel", "0"], "hint: 1 to 64"),
        (&[dir, "--port", "0", "--context", "0"], "0 tokens"),
        (&[dir, "--port", "0", "--kv", "q4"], "hint: f32, f16 or int8"),
        (&["demo:vit", "--port", "0"], "no language model"),
    ] {
        let said = run(args);
        assert!(said.contains(words), "{args:?}: {said}");
    }
}
