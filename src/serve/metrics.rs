//! What `/metrics` tells: requests, tokens, times, the queue, the cache, in the text format that Prometheus reads.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The type of what [`Metrics::text`] gives.
pub const CONTENT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A request's path and its answer's status.
type Answered = Vec<(&'static str, String)>;

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    /// Tokens that were read and written.
    pub prompt: Counter,
    pub written: Counter,
    /// Those that a level made.
    by_level: Family<Vec<(&'static str, String)>, Counter>,
    /// Requests whose client went away.
    pub left: Counter,
    /// Seconds from a request to its first token, and from token to token.
    pub first: Histogram,
    pub token: Histogram,
    /// Requests that wait, sequences that run.
    pub waiting: Gauge,
    pub running: Gauge,
    /// Bytes of keys and values of all sequences.
    pub kv_bytes: Gauge,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let first = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];
        let token = [0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 1.0, 3.0];
        let mut m = Metrics {
            registry: Registry::with_prefix("paring"),
            requests: Family::default(),
            prompt: Counter::default(),
            written: Counter::default(),
            by_level: Family::default(),
            left: Counter::default(),
            first: Histogram::new(first),
            token: Histogram::new(token),
            waiting: Gauge::default(),
            running: Gauge::default(),
            kv_bytes: Gauge::default(),
        };
        let r = &mut m.registry;
        r.register("requests", "Requests by path and status", m.requests.clone());
        r.register("prompt_tokens", "Tokens of prompts that were read", m.prompt.clone());
        r.register("completion_tokens", "Tokens that were written", m.written.clone());
        r.register(
            "completion_tokens_by_level",
            "Tokens that were written after an answer's first, by the level that made them",
            m.by_level.clone(),
        );
        r.register("requests_cancelled", "Requests whose client went away", m.left.clone());
        r.register("time_to_first_token_seconds", "From a request to its first token", m.first.clone());
        r.register("time_per_token_seconds", "From a token to the next", m.token.clone());
        r.register("queue_length", "Requests that wait for a sequence", m.waiting.clone());
        r.register("sequences_running", "Sequences that are read or written", m.running.clone());
        r.register("kv_bytes", "Bytes of keys and values in use", m.kv_bytes.clone());
        m
    }
}

impl Metrics {
    /// Counts an answer; `path` is one of ours.
    pub fn answered(&self, path: &str, status: u16) {
        let labels = vec![("path", path.to_owned()), ("status", status.to_string())];
        self.requests.get_or_create(&labels).inc();
    }

    /// Says that there are so many levels, none of which has made a token yet.
    pub fn levels(&self, levels: usize) {
        (0..levels).for_each(|level| self.made(level, 0));
    }

    /// Counts tokens that `level` made.
    pub fn made(&self, level: usize, tokens: u64) {
        self.by_level.get_or_create(&vec![("level", level.to_string())]).inc_by(tokens);
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        // A `String` takes whatever is written.
        let _ = encode(&mut out, &self.registry);
        out
    }
}
