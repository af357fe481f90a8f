//! Captures and graphs: what is recorded instead of carried out, the memory that a graph owns, and launching it.
//!
//! By the driver API's pages on stream management, graph management and the stream-ordered allocator. A capture is of one
//! stream, so its nodes are a chain; what would make another stream part of it is not modelled and says so. Memory that is
//! allocated in a capture has its address from then on and is there from when the graph's node runs until it is freed: by a
//! node of the same graph, or from outside, or by the next launch where the graph was instantiated so. A call that cannot be
//! captured spoils the capture: from then on every call on the stream says so, and ending it gives no graph.
//!
//! Not here: when queued work is carried out (`stream.rs`), what memory is (`memory.rs`).

use super::{
    CALL, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, State, Stream, Task, Work, legacy, scheduler,
};
use crate::{fault, memory, misuse, trace};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

const ILLEGAL_STATE: u32 = 401;
pub const CAPTURE_UNSUPPORTED: u32 = 900;
pub const CAPTURE_INVALIDATED: u32 = 901;
pub const CAPTURE_ISOLATION: u32 = 905;
const CAPTURE_IMPLICIT: u32 = 906;
const CAPTURE_WRONG_THREAD: u32 = 908;

/// What a piece of work is to a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Kernel,
    Copy(CopyNode),
    Set,
    Allocate { at: u64 },
    Free { at: u64 },
}

/// A copy of `bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyNode {
    pub bytes: usize,
    pub from: Place,
    pub to: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Host(usize),
    Device(u64),
}

impl Kind {
    /// By the numbers of `CUgraphNodeType`.
    fn code(self) -> u32 {
        match self {
            Kind::Kernel => 0,
            Kind::Copy(_) => 1,
            Kind::Set => 2,
            Kind::Allocate { .. } => 10,
            Kind::Free { .. } => 11,
        }
    }
}

#[derive(Clone)]
struct Node {
    kind: Kind,
    task: Task,
}

/// Who else may call what during a capture, `CUstreamCaptureMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

/// What a stream records.
pub(super) struct Capture {
    mode: Mode,
    thread: ThreadId,
    /// Its running number.
    number: u64,
    spoilt: bool,
    nodes: Vec<Node>,
    memory: Owned,
    /// Of that, what was not freed in it.
    alive: Vec<u64>,
}

impl Capture {
    /// Whether it makes calls of this thread that may break what is captured forbidden.
    pub(super) fn forbids(&self) -> bool {
        match self.mode {
            Mode::Global => true,
            Mode::ThreadLocal => self.thread == std::thread::current().id(),
            Mode::Relaxed => false,
        }
    }
}

/// Addresses that are a graph's for as long as it, or what was made of it, is there.
#[derive(Default)]
struct Owned {
    blocks: Vec<(u64, usize)>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.blocks.iter().for_each(|(at, _)| memory::give_back(*at));
    }
}

/// What was recorded.
pub(super) struct Graph {
    nodes: Arc<Vec<Node>>,
    memory: Arc<Owned>,
    /// What it allocates and does not free, with its bytes.
    kept: Vec<(u64, usize)>,
    /// Bytes that are allocated at once at most.
    peak: u64,
    instances: usize,
}

/// A graph that can be launched.
pub(super) struct Exec {
    of: usize,
    nodes: Arc<Vec<Node>>,
    memory: Arc<Owned>,
    kept: Vec<(u64, usize)>,
    peak: u64,
    auto_free: bool,
    /// Where it was launched last.
    on: Option<usize>,
}

impl State {
    /// The stream's capture by its number, if it has one.
    pub(super) fn within(&self, key: usize) -> Option<(usize, u64)> {
        Some((key, self.streams.get(&key)?.capture.as_ref()?.number))
    }

    /// Success while the capture of `key` is sound.
    pub(super) fn still_captures(&self, key: usize) -> u32 {
        let spoilt = self.streams.get(&key).and_then(|s| s.capture.as_ref()).is_some_and(|c| c.spoilt);
        if spoilt { CAPTURE_INVALIDATED } else { SUCCESS }
    }

    /// Spoils the captures of the streams that are meant; what the call that did so answers.
    pub(super) fn spoil(&mut self, meant: impl Fn(usize, &Stream) -> bool) -> Option<u32> {
        let mut hit = None;
        for (key, stream) in &mut self.streams {
            if stream.capture.is_some()
                && meant(*key, stream)
                && let Some(capture) = &mut stream.capture
            {
                capture.spoilt = true;
                hit = Some(CAPTURE_UNSUPPORTED);
            }
        }
        hit
    }

    /// Records a node where `key` is captured; what the call answers then.
    pub(super) fn record_node(&mut self, key: usize, kind: Kind, task: &Task) -> Option<u32> {
        let device = self.streams.get(&key)?.device;
        if key == legacy(device) {
            // It would wait for a stream whose work is not there.
            let waits = self.spoil(|_, s| s.device == device && !s.non_blocking);
            return waits.map(|_| CAPTURE_IMPLICIT);
        }
        let capture = self.streams.get_mut(&key)?.capture.as_mut()?;
        if capture.spoilt {
            return Some(CAPTURE_INVALIDATED);
        }
        if fault::on_capture() {
            capture.spoilt = true;
            return Some(CAPTURE_UNSUPPORTED);
        }
        capture.nodes.push(Node { kind, task: task.clone() });
        Some(SUCCESS)
    }

    /// Memory that a graph left allocated when it was launched: freed by whoever asks, once.
    fn take_outlived(&mut self, at: u64) -> bool {
        self.outlived.remove(&at).is_some()
    }
}

/// A call that cannot be recorded and that a recorded one may depend on (allocating outside of a stream's order, loading
/// modules): spoils every capture that forbids it. What the call answers then.
pub fn spoilt_by() -> Option<u32> {
    scheduler().lock().spoil(|_, s| s.capture.as_ref().is_some_and(Capture::forbids))
}

/// Whether the stream records what is queued on it.
pub fn capturing(stream: usize) -> Result<bool, u32> {
    Ok(capture_status(stream)? != 0)
}

/// By the numbers of `CUstreamCaptureStatus`.
pub fn capture_status(stream: usize) -> Result<u32, u32> {
    let mut state = scheduler().lock();
    let key = state.stream(stream)?;
    Ok(state.streams[&key].capture.as_ref().map_or(0, |c| if c.spoilt { 2 } else { 1 }))
}

/// Records what is queued on the stream from now on instead of carrying it out. `mode`: `CUstreamCaptureMode`.
pub fn begin_capture(stream: usize, mode: u32) -> u32 {
    if let Some(error) = fault::sticky() {
        return error;
    }
    let mode = match mode {
        0 => Mode::Global,
        1 => Mode::ThreadLocal,
        2 => Mode::Relaxed,
        _ => return INVALID_VALUE,
    };
    let mut state = scheduler().lock();
    let key = match state.stream(stream) {
        // The legacy stream cannot be captured.
        Ok(key) if key < 0x2000 => return CAPTURE_UNSUPPORTED,
        Ok(key) => key,
        Err(error) => return error,
    };
    state.captures += 1;
    let number = state.captures;
    match state.streams.get_mut(&key) {
        Some(s) if s.capture.is_none() => {
            let (memory, thread) = (Owned::default(), std::thread::current().id());
            let (nodes, alive) = (Vec::new(), Vec::new());
            s.capture = Some(Capture { mode, thread, number, spoilt: false, nodes, memory, alive });
            SUCCESS
        }
        _ => ILLEGAL_STATE,
    }
}

/// Memory of the graph that is captured. It is there when the graph's node runs.
pub fn allocate_in_capture(stream: usize, len: usize) -> Result<u64, u32> {
    let mut state = scheduler().lock();
    let key = state.stream(stream)?;
    let device = state.streams[&key].device;
    let at = memory::set_aside(device, len);
    let work: Work = Box::new(move || memory::make(at));
    let answer =
        state.push(key, Kind::Allocate { at }, Task::Run { who: "alloc node", seconds: None, work: Arc::new(work) });
    let capture = state.streams.get_mut(&key).and_then(|s| s.capture.as_mut());
    match (answer, capture) {
        (SUCCESS, Some(capture)) => {
            capture.memory.blocks.push((at, len));
            capture.alive.push(at);
            Ok(at)
        }
        (error, _) => {
            memory::give_back(at);
            Err(error)
        }
    }
}

/// A free node: only of memory that the same capture allocated (that of other graphs is not modelled), and once.
pub fn free_in_capture(stream: usize, at: u64) -> u32 {
    let mut state = scheduler().lock();
    let key = match state.stream(stream) {
        Ok(key) => key,
        Err(error) => return error,
    };
    let Some(capture) = state.streams.get_mut(&key).and_then(|s| s.capture.as_mut()) else { return INVALID_VALUE };
    if capture.spoilt {
        return CAPTURE_INVALIDATED;
    }
    let Some(i) = capture.alive.iter().position(|a| *a == at) else {
        capture.spoilt = true;
        return INVALID_VALUE;
    };
    capture.alive.swap_remove(i);
    let work: Work = Box::new(move || memory::unmake(at));
    state.push(key, Kind::Free { at }, Task::Run { who: "free node", seconds: None, work: Arc::new(work) })
}

/// The graph of what was recorded.
pub fn end_capture(stream: usize) -> Result<usize, u32> {
    let mut state = scheduler().lock();
    let key = state.stream(stream)?;
    let Some(s) = state.streams.get_mut(&key) else { return Err(INVALID_HANDLE) };
    match &s.capture {
        None => return Err(ILLEGAL_STATE),
        Some(c) if c.mode != Mode::Relaxed && c.thread != std::thread::current().id() => {
            return Err(CAPTURE_WRONG_THREAD);
        }
        Some(_) => {}
    }
    let Some(capture) = s.capture.take().filter(|c| !c.spoilt) else { return Err(CAPTURE_INVALIDATED) };
    let len = |at: u64| capture.memory.blocks.iter().find(|b| b.0 == at).map_or(0, |b| b.1);
    let (mut now, mut peak) = (0, 0);
    for node in &capture.nodes {
        match node.kind {
            Kind::Allocate { at } => now += len(at) as u64,
            Kind::Free { at } => now -= len(at) as u64,
            Kind::Kernel | Kind::Copy(_) | Kind::Set => {}
        }
        peak = now.max(peak);
    }
    let kept = capture.alive.iter().map(|at| (*at, len(*at))).collect();
    let handle = state.new_handle();
    let (nodes, memory) = (Arc::new(capture.nodes), Arc::new(capture.memory));
    state.graphs.insert(handle, Graph { nodes, memory, kept, peak, instances: 0 });
    Ok(handle)
}

/// A graph that can be launched. Of one with memory nodes there is one at a time.
pub fn instantiate(graph: usize, flags: u64) -> Result<usize, u32> {
    const AUTO_FREE: u64 = 1;
    const DEVICE_LAUNCH: u64 = 4;
    if flags > 15 || flags & (AUTO_FREE | DEVICE_LAUNCH) == AUTO_FREE | DEVICE_LAUNCH {
        return Err(INVALID_VALUE);
    }
    if flags & DEVICE_LAUNCH != 0 {
        misuse!("cuGraphInstantiate: launching from the device is not modelled");
    }
    if let Some(error) = fault::sticky() {
        return Err(error);
    }
    let mut state = scheduler().lock();
    let g = state.graphs.get_mut(&graph).ok_or(INVALID_HANDLE)?;
    if g.instances > 0 && !g.memory.blocks.is_empty() {
        return Err(INVALID_VALUE);
    }
    g.instances += 1;
    let (nodes, memory, kept, peak) = (g.nodes.clone(), g.memory.clone(), g.kept.clone(), g.peak);
    let exec = Exec { of: graph, nodes, memory, kept, peak, auto_free: flags & AUTO_FREE != 0, on: None };
    let handle = state.new_handle();
    state.execs.insert(handle, exec);
    Ok(handle)
}

pub fn destroy_graph(graph: usize) -> u32 {
    let gone = scheduler().lock().graphs.remove(&graph);
    if gone.is_some() { SUCCESS } else { INVALID_HANDLE }
}

/// What it left allocated stays until somebody frees it.
pub fn destroy_exec(exec: usize) -> u32 {
    let mut state = scheduler().lock();
    let Some(gone) = state.execs.remove(&exec) else { return INVALID_HANDLE };
    if let Some(graph) = state.graphs.get_mut(&gone.of) {
        graph.instances -= 1;
    }
    // What was queued may still use its addresses: they are given back in the stream's order.
    if let Some(on) = gone.on {
        let held = gone.memory.clone();
        let work: Work = Box::new(move || {
            let _held = &held;
        });
        state.queue(on, Task::Run { who: "graph end", seconds: None, work: Arc::new(work) });
        scheduler().asked.notify_all();
    }
    drop(state);
    drop(gone);
    SUCCESS
}

/// Makes a graph's memory ready, so that its first launch need not.
pub fn upload(exec: usize, stream: usize) -> u32 {
    let mut state = scheduler().lock();
    if let Err(error) = state.stream(stream) {
        return error;
    }
    state.host += CALL;
    state.ready_memory(exec)
}

impl State {
    /// Takes the memory that a launch needs from the device.
    fn ready_memory(&self, exec: usize) -> u32 {
        let Some(e) = self.execs.get(&exec) else { return INVALID_HANDLE };
        let Some((at, _)) = e.memory.blocks.first() else { return SUCCESS };
        let outlived: u64 = self.outlived.values().map(|(_, len)| *len as u64).sum();
        let own: u64 = e.kept.iter().map(|(_, len)| *len as u64).sum();
        if memory::reserve_for_graphs(*at, outlived.saturating_sub(own) + e.peak) { SUCCESS } else { OUT_OF_MEMORY }
    }
}

/// Queues all that a graph recorded, as one call.
pub fn launch_graph(exec: usize, stream: usize) -> u32 {
    if let Some(error) = fault::on_call("cuGraphLaunch") {
        return error;
    }
    let scheduler = scheduler();
    let mut state = scheduler.lock();
    let key = match state.stream(stream) {
        Ok(key) => key,
        Err(error) => return error,
    };
    if state.streams[&key].capture.is_some() {
        // It would be a child of what is captured, which graphs with memory nodes cannot be.
        state.spoil(|k, _| k == key);
        return CAPTURE_UNSUPPORTED;
    }
    let Some(e) = state.execs.get(&exec) else { return INVALID_HANDLE };
    if let Some(on) = e.on.filter(|on| *on != key)
        && state.streams.get(&on).is_some_and(|s| s.running.is_some() || !s.queue.is_empty())
    {
        misuse!("cuGraphLaunch: one graph on two streams at once is not modelled");
    }
    let (nodes, kept, auto_free) = (e.nodes.clone(), e.kept.clone(), e.auto_free);
    let left: Vec<u64> = kept.iter().map(|k| k.0).filter(|at| state.outlived.contains_key(at)).collect();
    if !left.is_empty() && !auto_free {
        return INVALID_VALUE;
    }
    let ready = state.ready_memory(exec);
    if ready != SUCCESS {
        return ready;
    }
    state.host += CALL;
    for at in left {
        state.take_outlived(at);
        let work: Work = Box::new(move || memory::unmake(at));
        state.queue(key, Task::Run { who: "free on launch", seconds: None, work: Arc::new(work) });
    }
    for node in nodes.iter() {
        state.queue(key, node.task.clone());
    }
    for (at, len) in kept {
        state.outlived.insert(at, (exec, len));
    }
    if let Some(e) = state.execs.get_mut(&exec) {
        e.on = Some(key);
    }
    trace::count("cuGraphLaunch", Duration::ZERO, 0.0);
    scheduler.asked.notify_all();
    SUCCESS
}

/// Whether `at` is memory that a launch left allocated and that nobody has freed: from now on it is.
pub fn outlived(at: u64) -> bool {
    scheduler().lock().take_outlived(at)
}

/// A node's handle: its graph's, and its place from 1.
fn handle_of(graph: usize, i: usize) -> usize {
    (graph << 24) | (i + 1)
}

/// The nodes of a graph, in no order that anybody may rely on.
pub fn nodes(graph: usize) -> Result<Vec<usize>, u32> {
    let state = scheduler().lock();
    let n = state.graphs.get(&graph).ok_or(INVALID_HANDLE)?.nodes.len();
    let handles = (0..n).map(|i| handle_of(graph, i));
    Ok(if crate::config::config().seed == 0 { handles.collect() } else { handles.rev().collect() })
}

fn kind_of(node: usize) -> Kind {
    let state = scheduler().lock();
    let graph = state.graphs.get(&(node >> 24));
    match graph.and_then(|g| g.nodes.get((node & 0xff_ffff).checked_sub(1)?)) {
        Some(node) => node.kind,
        None => misuse!("0x{node:x} is no node (is its graph destroyed?)"),
    }
}

/// By the numbers of `CUgraphNodeType`.
pub fn node_type(node: usize) -> u32 {
    kind_of(node).code()
}

/// What a copy's node copies.
pub fn memcpy_of(node: usize) -> Result<CopyNode, u32> {
    match kind_of(node) {
        Kind::Copy(copy) => Ok(copy),
        Kind::Kernel | Kind::Set | Kind::Allocate { .. } | Kind::Free { .. } => Err(INVALID_VALUE),
    }
}
