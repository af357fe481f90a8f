//! A scripted OpenAI-compatible server on a loopback port: raw HTTP/1.1 with chunked server-sent events, on its own
//! threads, so that tests of any kind can use it. It answers `/models` and, request by request, plays its script.
#![allow(dead_code)]

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One thing done while answering.
#[derive(Debug, Clone)]
pub enum Step {
    /// One `data:` event.
    Event(String),
    /// Bytes as they are, as one HTTP chunk.
    Raw(Vec<u8>),
    Sleep(Duration),
    /// These bytes again and again, with this pause, until the client goes away.
    Endless(Vec<u8>, Duration),
    /// Says nothing more until the client goes away.
    Hang,
    /// Closes the connection in the middle of the body.
    Drop,
}

/// The answer to one request.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub steps: Vec<Step>,
}

impl Answer {
    /// Streams these steps with status 200.
    pub fn stream(steps: Vec<Step>) -> Answer {
        Answer { status: 200, headers: vec![("content-type", "text/event-stream".into())], steps }
    }

    /// Calls these tools, in the usual way.
    pub fn calls(calls: &[(&str, Value)]) -> Answer {
        let call = |(i, (name, arguments)): (usize, &(&str, Value))| {
            let function = json!({"name": name, "arguments": arguments.to_string()});
            delta(
                json!({"tool_calls": [{"index": i, "id": format!("call_{i}"), "type": "function", "function": function}]}),
            )
        };
        let mut steps: Vec<Step> = calls.iter().enumerate().map(call).collect();
        steps.push(finish("tool_calls"));
        steps.push(Step::Event(json!({"choices": [], "usage": {"completion_tokens": 42}}).to_string()));
        steps.push(Step::Event("[DONE]".into()));
        Answer::stream(steps)
    }

    /// Another status with this body.
    pub fn status(status: u16, body: &str) -> Answer {
        let headers = vec![("content-type", "application/json".into())];
        Answer { status, headers, steps: vec![Step::Raw(body.as_bytes().to_vec())] }
    }

    /// Reasoning and text in small deltas, a stop, usage, `[DONE]`.
    pub fn says(reasoning: &str, text: &str) -> Answer {
        let mut steps = vec![delta(json!({"role": "assistant", "content": ""}))];
        steps.extend(pieces(reasoning).into_iter().map(|p| delta(json!({"reasoning_content": p}))));
        steps.extend(pieces(text).into_iter().map(|p| delta(json!({"content": p}))));
        steps.push(finish("stop"));
        steps.push(Step::Event(json!({"choices": [], "usage": {"completion_tokens": 42}}).to_string()));
        steps.push(Step::Event("[DONE]".into()));
        Answer::stream(steps)
    }
}

/// The answer to `/models` that lists these.
fn list_of(models: &[&str]) -> Answer {
    let models: Vec<Value> = models.iter().map(|m| json!({"id": m, "object": "model"})).collect();
    Answer::status(200, &json!({"object": "list", "data": models}).to_string())
}

/// A chunk with this delta.
pub fn delta(delta: Value) -> Step {
    Step::Event(
        json!({"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}).to_string(),
    )
}

/// A chunk with this finish reason.
pub fn finish(reason: &str) -> Step {
    Step::Event(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}).to_string())
}

/// Splits into pieces of about a token's size.
pub fn pieces(s: &str) -> Vec<String> {
    let chars: Vec<char> = s.chars().collect();
    chars.chunks(7).map(|c| c.iter().collect()).collect()
}

/// What is answered to a chat request, by its body.
pub type Brain = dyn Fn(&Value) -> Answer + Send + Sync;

/// The running server; stops accepting when dropped.
pub struct FakeLlm {
    /// Base URL, with `/v1`.
    pub url: String,
    /// Bodies of chat requests so far, in order.
    pub requests: Arc<Mutex<Vec<Value>>>,
    /// `authorization` headers of all requests.
    pub keys: Arc<Mutex<Vec<String>>>,
    /// First lines and headers of all requests.
    pub heads: Arc<Mutex<Vec<String>>>,
    /// Bytes of each answer that the client cut off during [`Step::Endless`].
    pub cut_off: Arc<Mutex<Vec<u64>>>,
    /// Connections that the client closed during [`Step::Hang`].
    pub hung_up: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl FakeLlm {
    /// Serves `script`, one answer a chat request; the last repeats. `/models` lists `models`.
    pub fn start(models: &[&str], script: Vec<Answer>) -> FakeLlm {
        FakeLlm::with_list(list_of(models), script)
    }

    /// Answers every chat request as `brain` says.
    pub fn thinking(models: &[&str], brain: impl Fn(&Value) -> Answer + Send + Sync + 'static) -> FakeLlm {
        FakeLlm::serving(list_of(models), Vec::new(), Some(Arc::new(brain)))
    }

    /// As [`FakeLlm::start`], with this answer to `/models`.
    pub fn with_list(list: Answer, script: Vec<Answer>) -> FakeLlm {
        FakeLlm::serving(list, script, None)
    }

    fn serving(list: Answer, script: Vec<Answer>, brain: Option<Arc<Brain>>) -> FakeLlm {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let url = format!("http://{}/v1", listener.local_addr().expect("address"));
        let fake = FakeLlm {
            url,
            requests: Arc::default(),
            keys: Arc::default(),
            heads: Arc::default(),
            cut_off: Arc::default(),
            hung_up: Arc::default(),
            stop: Arc::default(),
        };
        let seen = Arc::new(Seen {
            requests: fake.requests.clone(),
            keys: fake.keys.clone(),
            heads: fake.heads.clone(),
            cut_off: fake.cut_off.clone(),
            hung_up: fake.hung_up.clone(),
        });
        let stop = fake.stop.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let (script, brain, list, seen) = (script.clone(), brain.clone(), list.clone(), seen.clone());
                std::thread::spawn(move || {
                    // A client that goes away ends its thread: nothing to report.
                    let _ = serve(stream, (&script, brain.as_deref()), list, &seen);
                });
            }
        });
        fake
    }

    /// Bytes that were written of the first answer that never ends, once the client has cut it off.
    pub fn bytes_until_cut_off(&self) -> u64 {
        for _ in 0..1_000 {
            if let Some(bytes) = self.cut_off.lock().expect("cut off").first() {
                return *bytes;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the client still reads");
    }

    pub fn asked(&self) -> usize {
        self.requests.lock().expect("requests").len()
    }

    /// The last message of request `i`.
    pub fn question(&self, i: usize) -> String {
        let all = self.requests.lock().expect("requests");
        let messages = all[i]["messages"].as_array().expect("messages");
        messages.last().expect("one")["content"].as_str().expect("text").to_owned()
    }
}

impl Drop for FakeLlm {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let address = self.url.trim_start_matches("http://").trim_end_matches("/v1");
        let _ = TcpStream::connect(address);
    }
}

/// What the threads report.
struct Seen {
    requests: Arc<Mutex<Vec<Value>>>,
    keys: Arc<Mutex<Vec<String>>>,
    heads: Arc<Mutex<Vec<String>>>,
    cut_off: Arc<Mutex<Vec<u64>>>,
    hung_up: Arc<AtomicUsize>,
}

fn serve(
    stream: TcpStream,
    (script, brain): (&[Answer], Option<&Brain>),
    list: Answer,
    seen: &Seen,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut out = stream;
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let (mut length, mut key, mut head) = (0usize, String::new(), first.clone());
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        head.push_str(&line);
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "authorization" => key = value.trim().to_owned(),
            _ => {}
        }
    }
    if first.is_empty() {
        return Ok(());
    }
    seen.keys.lock().expect("keys").push(key);
    seen.heads.lock().expect("heads").push(head);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let answer = if first.contains("/models") {
        list
    } else if first.contains("/chat/completions") {
        let mut all = seen.requests.lock().expect("requests");
        let n = all.len();
        let asked = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let answer = match brain {
            Some(brain) => brain(&asked),
            None => script.get(n).or(script.last()).cloned().unwrap_or(Answer::status(500, "no script")),
        };
        all.push(asked);
        answer
    } else {
        Answer::status(404, r#"{"error":{"message":"no such path"}}"#)
    };
    write!(out, "HTTP/1.1 {} X\r\nconnection: close\r\ntransfer-encoding: chunked\r\n", answer.status)?;
    for (name, value) in &answer.headers {
        write!(out, "{name}: {value}\r\n")?;
    }
    out.write_all(b"\r\n")?;
    out.flush()?;
    for step in &answer.steps {
        match step {
            Step::Event(data) => {
                let lines: String = data.split('\n').map(|l| format!("data: {l}\n")).collect();
                chunk(&mut out, format!("{lines}\n").as_bytes())?;
            }
            Step::Raw(bytes) => chunk(&mut out, bytes)?,
            Step::Sleep(time) => std::thread::sleep(*time),
            Step::Endless(bytes, pause) => {
                let mut written = 0;
                while chunk(&mut out, bytes).is_ok() {
                    written += bytes.len() as u64;
                    std::thread::sleep(*pause);
                }
                seen.cut_off.lock().expect("cut off").push(written);
                return Ok(());
            }
            Step::Hang => {
                out.set_read_timeout(Some(Duration::from_secs(60)))?;
                let mut byte = [0];
                if !matches!(reader.read(&mut byte), Ok(n) if n > 0) {
                    seen.hung_up.fetch_add(1, Ordering::Relaxed);
                }
                return Ok(());
            }
            Step::Drop => return Ok(()),
        }
    }
    out.write_all(b"0\r\n\r\n")?;
    out.flush()
}

fn chunk(out: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    write!(out, "{:x}\r\n", bytes.len())?;
    out.write_all(bytes)?;
    out.write_all(b"\r\n")?;
    out.flush()
}

/// The role that asks, by its system message.
pub fn role(request: &Value) -> String {
    let system = request["messages"][0]["content"].as_str().unwrap_or_default();
    system.split_whitespace().nth(3).unwrap_or_default().to_owned()
}
