//! A server of a small model, and raw HTTP/1.1 to ask it with.

use crate::talker::{TEMPLATE, talker};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// A server at work; it ends with this.
pub struct Served {
    child: Child,
    address: String,
    log: Arc<Mutex<String>>,
    _home: tempfile::TempDir,
}

impl Served {
    /// With such flags, on a port that is free, over the model `llama`.
    pub fn start(flags: &[&str]) -> Served {
        let home = tempfile::tempdir().unwrap();
        let dir = talker(home.path(), TEMPLATE);
        let mut command = Command::new(env!("CARGO_BIN_EXE_paring"));
        command.args(["serve", dir.to_str().unwrap(), "--port", "0", "--device", "cpu", "--threads", "1"]).args(flags);
        command.env("PARING_HOME", home.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (into, stderr) = (Arc::clone(&log), BufReader::new(child.stderr.take().unwrap()));
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                into.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").and_then(|l| l.strip_suffix("/v1"));
        let Some(address) = address.map(str::to_owned) else {
            drop(child.wait());
            panic!("`{line}`: {}", log.lock().unwrap());
        };
        Served { child, address, log, _home: home }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it said of its work.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// A request's bytes as they are.
    pub fn raw(&self, bytes: &[u8]) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        // A server that goes away in the middle is an answer too.
        drop(stream.write_all(bytes));
        BufReader::new(stream)
    }

    fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> BufReader<TcpStream> {
        let (host, n) = (&self.address, body.len());
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {n}\r\n{headers}\r\n{body}");
        self.raw(head.as_bytes())
    }

    pub fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        Answer::read(self.request(method, path, &format!("Connection: close\r\n{headers}"), body))
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", "")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, JSON, &body.to_string())
    }

    /// Asks, and leaves the answer to be read.
    pub fn begin(&self, path: &str, body: &Value) -> BufReader<TcpStream> {
        self.request("POST", path, JSON, &body.to_string())
    }

    /// Asks, and leaves the answer's events to be read as they come.
    pub fn stream(&self, path: &str, body: &Value) -> Stream {
        let mut from = self.begin(path, body);
        let head = head(&mut from);
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{head}");
        Stream { from }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a signal to a process of ours that has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// Waits for its end: its exit code.
    pub fn ended(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub const JSON: &str = "Content-Type: application/json\r\n";

fn head(from: &mut impl BufRead) -> String {
    let mut head = String::new();
    while from.read_line(&mut head).unwrap() > 2 {}
    head
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    body: Vec<u8>,
}

impl Answer {
    pub fn read(mut from: BufReader<TcpStream>) -> Answer {
        let head = head(&mut from);
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        let mut body = Vec::new();
        drop(from.read_to_end(&mut body));
        Answer { status, head, body }
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// Server-sent events in chunks.
pub struct Stream {
    from: BufReader<TcpStream>,
}

impl Stream {
    /// The next event's words.
    fn words(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.from.read_line(&mut line).ok()? == 0 {
                return None;
            }
            // Chunks' sizes and ends stand on lines of their own.
            if let Some(words) = line.strip_prefix("data: ") {
                return Some(words.trim_end().to_owned());
            }
            if line == "0\r\n" {
                return None;
            }
        }
    }

    /// The next event; `None` at the end, or where there will be none.
    pub fn next(&mut self) -> Option<Value> {
        let words = self.words()?;
        (words != "[DONE]").then(|| serde_json::from_str(&words).unwrap())
    }

    /// What is left, and whether it ends with `[DONE]`.
    pub fn all(mut self) -> (Vec<Value>, bool) {
        let mut all = Vec::new();
        while let Some(words) = self.words() {
            if words == "[DONE]" {
                return (all, self.words().is_none());
            }
            all.push(serde_json::from_str(&words).unwrap());
        }
        (all, false)
    }
}
