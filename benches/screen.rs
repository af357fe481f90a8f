//! Key press to finished frame while 500 tokens a second and live profile rows, or a healing's layers, stream in, and bytes when idle.
//!
//! Everything but the terminal itself is timed: update, settling, drawing, diffing and encoding into a counting sink.
//! `cargo bench --bench screen` prints medians; nothing here asserts a time.

#[path = "../tests/common/screen.rs"]
mod fixture;

use paring::config::Settings;
use paring::session::{Channel, Feed, HostMsg, LiveRow, State};
use paring::train::{LayerPulse, Spread};
use paring::tui::{App, UserInput, paint};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use std::cell::Cell;
use std::io::{self, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Counts what a terminal would receive.
#[derive(Clone, Default)]
struct Sink(Rc<Cell<u64>>);

impl Write for Sink {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.set(self.0.get() + buf.len() as u64);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Bench {
    app: App,
    screen: Terminal<CrosstermBackend<Sink>>,
    sink: Sink,
}

impl Bench {
    fn new(state: State, size: (u16, u16)) -> Bench {
        let sink = Sink::default();
        let options = TerminalOptions { viewport: Viewport::Fixed(Rect::new(0, 0, size.0, size.1)) };
        let screen = Terminal::with_options(CrosstermBackend::new(sink.clone()), options).expect("a sink");
        let mut b = Bench { app: fixture::app(state, Settings::default(), size), screen, sink };
        b.app.dirty = true;
        b.paint();
        b
    }

    fn paint(&mut self) -> bool {
        paint(&mut self.app, &mut self.screen).expect("a sink")
    }

    fn feed(&mut self, feed: Feed) {
        self.app.host(HostMsg::Feed { feed });
    }
}

fn median(mut v: Vec<Duration>) -> (f64, f64) {
    v.sort();
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    (ms(v[v.len() / 2]), ms(v[v.len() * 99 / 100]))
}

/// A busy second at 60 frames: per frame eight or nine tokens, and every layer's live row; one key a frame.
fn busy(size: (u16, u16)) {
    let mut b = Bench::new(fixture::review().state, size);
    let names: Vec<String> = b.app.table.layers.iter().map(|l| l.name.clone()).collect();
    b.feed(Feed::Turn { role: "pruning".into(), model: "qwen3-32b".into() });
    let keys = ['j', 'j', ']', ']', 'k', '[', 'j', '3', '1', 's'];
    let (mut times, frames) = (Vec::new(), 600usize);
    let before = b.sink.0.get();
    for f in 0..frames {
        b.app.now_ms += 16;
        for t in 0..(8 + f % 2) {
            let channel = if f % 120 < 60 { Channel::Reasoning } else { Channel::Text };
            let text = if t == 7 { "latency.\n" } else { " sensitivity" };
            b.feed(Feed::Token { role: "pruning".into(), channel, text: text.into() });
        }
        let wobble = 1.0 + (f % 7) as f64 / 100.0;
        let rows = names.iter().enumerate();
        let rows =
            rows.map(|(i, n)| LiveRow { name: n.clone(), p50_ms: 0.01 * i as f64 * wobble, p95_ms: 0.0, n: f as u64 });
        b.feed(Feed::Live { runs: f as u64, rows: rows.collect() });
        let key = KeyEvent::new(KeyCode::Char(keys[f % keys.len()]), KeyModifiers::NONE);
        let start = Instant::now();
        b.app.input(UserInput::Key(key));
        b.paint();
        times.push(start.elapsed());
    }
    let bytes = (b.sink.0.get() - before) / frames as u64;
    let (p50, p99) = median(times);
    println!("key to frame, {}x{}, busy: median {p50:.2} ms, p99 {p99:.2} ms, {bytes} bytes a frame", size.0, size.1);
}

/// A healing at sixty steps a second: every frame all layers' weights and gradients, in their columns, and one key.
fn healing(size: (u16, u16)) {
    let mut b = Bench::new(fixture::review().state, size);
    let names: Vec<String> = b.app.table.layers.iter().map(|l| l.name.clone()).collect();
    let press =
        |b: &mut Bench, key: char| b.app.input(UserInput::Key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE)));
    press(&mut b, 'w');
    let keys = ['j', 'j', ']', ']', 'k', '[', 'j', '3', '1', 's'];
    let mut times = Vec::new();
    for step in 0..600u32 {
        b.app.now_ms += 16;
        let wobble = 1.0 + (step % 7) as f32 / 100.0;
        let layer = |(i, n): (usize, &String)| LayerPulse {
            name: n.clone(),
            values: 589_824,
            weight: 20.0 * wobble,
            moved: 0.01,
            gradient: 1e-3 * i as f32 * wobble,
            importance: 1e-2 * i as f32 * wobble,
            spread: Some(Spread { signal: 1e-6 * wobble, variance: 1e-4 }),
        };
        let start = Instant::now();
        b.feed(Feed::Pulse { step, layers: names.iter().enumerate().map(layer).collect() });
        press(&mut b, keys[step as usize % keys.len()]);
        b.paint();
        times.push(start.elapsed());
    }
    let (p50, p99) = median(times);
    println!("key to frame, {}x{}, healing: median {p50:.2} ms, p99 {p99:.2} ms", size.0, size.1);
}

fn idle(size: (u16, u16)) {
    let mut b = Bench::new(fixture::review().state, size);
    let before = b.sink.0.get();
    let drawn = (0..1000).filter(|_| b.paint()).count();
    println!("idle, {}x{}: {} bytes, {drawn} frames in 1000 turns", size.0, size.1, b.sink.0.get() - before);
}

fn main() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        busy(size);
        healing(size);
        idle(size);
    }
}
