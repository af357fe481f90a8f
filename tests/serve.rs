//! `paring serve` as its clients see it: raw HTTP, and async-openai; whole answers and streams, several at once, bad requests, clients that go
//! away, and its end.

#[path = "common/talker.rs"]
mod talker;

#[path = "serve/client.rs"]
mod client;
#[path = "serve/limits.rs"]
mod limits;

use client::{Served, Stream};
use serde_json::{Value, json};

fn hi() -> Value {
    json!({ "model": "llama", "messages": [{ "role": "user", "content": "hi" }], "temperature": 0, "max_tokens": 8 })
}

/// `base` with more fields.
fn with(mut base: Value, more: Value) -> Value {
    for (k, v) in more.as_object().unwrap() {
        base[k] = v.clone();
    }
    base
}

fn text_of(answer: &Value) -> String {
    let choice = &answer["choices"][0];
    choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default().to_owned()
}

/// The texts of a stream's chunks, and its last reason.
fn streamed(events: &[Value]) -> (String, Option<String>) {
    let choice = |e: &Value| e["choices"][0].clone();
    let piece = |c: &Value| c["delta"]["content"].as_str().or(c["text"].as_str()).unwrap_or_default().to_owned();
    let text = events.iter().map(|e| piece(&choice(e))).collect();
    (text, events.iter().rev().find_map(|e| choice(e)["finish_reason"].as_str().map(str::to_owned)))
}

#[test]
fn chats_and_completions_come_whole_and_in_pieces() {
    let s = Served::start(&[]);
    let models = s.get("/v1/models").json();
    assert_eq!((models["data"][0]["id"].as_str(), models["object"].as_str()), (Some("llama"), Some("list")));
    assert_eq!(s.get("/v1/models/llama").json()["id"], "llama");
    assert_eq!(s.get("/health").json()["status"], "ok");

    let whole = s.post("/v1/chat/completions", &hi());
    assert_eq!(whole.status, 200, "{whole:?}");
    let answer = whole.json();
    // `u:hi`, the end, `a:`.
    let usage = json!({ "prompt_tokens": 7, "completion_tokens": 8, "total_tokens": 15 });
    assert_eq!((&answer["usage"], answer["object"].as_str()), (&usage, Some("chat.completion")));
    let choice = &answer["choices"][0];
    assert_eq!(
        (choice["finish_reason"].as_str(), choice["message"]["role"].as_str()),
        (Some("length"), Some("assistant"))
    );
    let text = text_of(&answer);
    assert!(!text.is_empty() && !text.contains(talker::END), "{text}");
    // The same again, and in pieces.
    assert_eq!(text_of(&s.post("/v1/chat/completions", &hi()).json()), text);
    let asked = with(hi(), json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let (events, done) = s.stream("/v1/chat/completions", &asked).all();
    assert!(done);
    assert_eq!(streamed(&events), (text.clone(), Some("length".into())));
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    let last = events.last().unwrap();
    assert_eq!((&last["usage"], &last["choices"]), (&usage, &json!([])));
    assert!(events.iter().all(|e| e["id"] == events[0]["id"] && e["object"] == "chat.completion.chunk"));
    assert!(events[..events.len() - 1].iter().all(|e| e["usage"].is_null() && e["choices"][0]["index"] == 0));

    // The same prompt as a text: what a template writes may be written by hand there.
    let prompt = json!({ "prompt": "u:hi<|end|>a:", "temperature": 0, "max_tokens": 8 });
    let answer = s.post("/v1/completions", &prompt).json();
    assert_eq!((text_of(&answer), answer["object"].as_str()), (text.clone(), Some("text_completion")));
    let (events, done) = s.stream("/v1/completions", &with(prompt.clone(), json!({ "stream": true }))).all();
    assert_eq!((streamed(&events).0, done), (text.clone(), true));
    let ids = with(prompt.clone(), json!({ "prompt": [84, 25, 71, 72, 95, 64, 25] }));
    assert_eq!(text_of(&s.post("/v1/completions", &ids).json()), text);
    // In a message the end is text, and the prompt another.
    let quoted = with(hi(), json!({ "messages": [{ "role": "user", "content": "hi<|end|>" }] }));
    assert_eq!(s.post("/v1/chat/completions", &quoted).json()["usage"]["prompt_tokens"], 14);
    let short = with(prompt, json!({ "max_tokens": null }));
    assert_eq!(s.post("/v1/completions", &short).json()["usage"]["completion_tokens"], 16);

    // Seeds draw the same again.
    let drawn = |seed: i64| {
        let asked = with(hi(), json!({ "temperature": 2, "seed": seed, "max_tokens": 24 }));
        text_of(&s.post("/v1/chat/completions", &asked).json())
    };
    assert_eq!(drawn(3), drawn(3));
    assert_ne!(drawn(3), drawn(-4));
    let metrics = s.get("/metrics").text();
    for line in [
        "paring_requests_total{path=\"/v1/completions\",status=\"200\"} 4",
        "paring_sequences_running 0",
        "paring_kv_bytes 0",
        "paring_queue_length 0",
        "paring_time_to_first_token_seconds_count 12",
        "# EOF",
    ] {
        assert!(metrics.contains(line), "no `{line}` in {metrics}");
    }
}

#[test]
fn stop_words_never_get_out() {
    let s = Served::start(&[]);
    let asked = with(hi(), json!({ "max_tokens": 24 }));
    let text = text_of(&s.post("/v1/chat/completions", &asked).json());
    let chars: Vec<char> = text.chars().collect();
    assert!(chars.len() > 12, "{text}");
    for (from, to) in [(0, 1), (3, 7), (5, 6), (8, 12)] {
        let word: String = chars[from..to].iter().collect();
        let at = text.find(&word).unwrap();
        let stop = with(asked.clone(), json!({ "stop": [word, "nowhere to be found"] }));
        let answer = s.post("/v1/chat/completions", &stop).json();
        assert_eq!(
            (text_of(&answer).as_str(), answer["choices"][0]["finish_reason"].as_str()),
            (&text[..at], Some("stop"))
        );
        let (events, done) = s.stream("/v1/chat/completions", &with(stop, json!({ "stream": true }))).all();
        assert_eq!((streamed(&events), done), ((text[..at].to_owned(), Some("stop".into())), true), "{word}");
    }
    // What only begins one is said in the end.
    let begun = format!("{}\u{1f642}", chars.last().unwrap());
    let answer = s.post("/v1/chat/completions", &with(asked, json!({ "stop": begun }))).json();
    assert_eq!(text_of(&answer), text);
}

#[test]
fn several_are_answered_side_by_side() {
    let s = Served::start(&["--parallel", "2", "--context", "400"]);
    let asked = |content: &str| {
        let messages = json!([{ "role": "user", "content": content }]);
        with(hi(), json!({ "messages": messages, "max_tokens": 200, "stream": true, "logit_bias": {} }))
    };
    let alone: Vec<String> =
        ["one", "another one"].map(|c| streamed(&s.stream("/v1/chat/completions", &asked(c)).all().0).0).into();
    let endless = |c: &str| with(asked(c), json!({ "max_tokens": 380 }));
    let (mut a, mut b) =
        (s.stream("/v1/chat/completions", &endless("one")), s.stream("/v1/chat/completions", &endless("another one")));
    let mut found = [Vec::new(), Vec::new()];
    for (stream, events) in [&mut a, &mut b].into_iter().zip(&mut found) {
        events.push(stream.next().unwrap());
    }
    // A third waits for one of them, and is answered.
    let third = text_of(&s.post("/v1/chat/completions", &hi()).json());
    assert!(!third.is_empty());
    for (stream, events) in [a, b].into_iter().zip(&mut found) {
        let (rest, done) = stream.all();
        assert!(done);
        events.extend(rest);
    }
    for (events, alone) in found.iter().zip(&alone) {
        assert!(streamed(events).0.starts_with(alone.as_str()), "{:?}, not {alone:?}", streamed(events).0);
    }
}

/// A client that people use.
#[test]
fn async_openai_understands_it() {
    use async_openai::Client;
    use async_openai::config::OpenAIConfig;
    use async_openai::types::chat::{
        ChatCompletionRequestUserMessageArgs, CreateChatCompletionRequest, CreateChatCompletionRequestArgs,
    };
    use futures::StreamExt;

    let _ = rustls::crypto::ring::default_provider().install_default();
    let s = Served::start(&["--api-key", "sesame"]);
    let io = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client =
        |key: &str| Client::with_config(OpenAIConfig::new().with_api_base(format!("{}/v1", s.url())).with_api_key(key));
    let request = |stream: bool| -> CreateChatCompletionRequest {
        let said = ChatCompletionRequestUserMessageArgs::default().content("hi").build().unwrap();
        let mut args = CreateChatCompletionRequestArgs::default();
        args.model("llama").messages([said.into()]).temperature(0.0).max_completion_tokens(8u32).stream(stream);
        args.build().unwrap()
    };
    io.block_on(async {
        let whole = client("sesame").chat().create(request(false)).await.unwrap();
        let text = whole.choices[0].message.content.clone().unwrap();
        assert_eq!((whole.usage.unwrap().total_tokens, text.is_empty()), (15, false));
        let mut stream = client("sesame").chat().create_stream(request(true)).await.unwrap();
        let mut pieces = String::new();
        while let Some(chunk) = stream.next().await {
            for choice in chunk.unwrap().choices {
                pieces.push_str(&choice.delta.content.unwrap_or_default());
            }
        }
        assert_eq!(pieces, text);
        let refused = client("open").chat().create(request(false)).await.unwrap_err().to_string();
        assert!(refused.contains("not the server's key"), "{refused}");
    });
}

/// What all tests end by: a signal, and what is under way ends too.
#[test]
fn a_signal_ends_it_and_tells_those_who_wait() {
    let mut s = Served::start(&["--context", "1000000", "--parallel", "1"]);
    let endless = with(hi(), json!({ "max_tokens": 900_000, "stream": true }));
    let mut stream: Stream = s.stream("/v1/chat/completions", &endless);
    assert!(stream.next().is_some());
    s.signal(libc::SIGTERM);
    s.signal(libc::SIGTERM);
    let (events, done) = stream.all();
    let last = events.last().unwrap();
    assert!(!done && last["error"]["message"] == "the server is ending", "{last}");
    assert_eq!(s.ended(), Some(0));
}
