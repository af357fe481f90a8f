//! Streams, events and the modelled clock.
//!
//! Work is queued by the host and carried out by one thread a process, the device's, which picks among the streams whose
//! head may run by the seed, and takes its time where nobody waits: a host that does not wait sees what was there before.
//! Within a stream order holds; between streams only what events and the legacy stream ask for.
//!
//! The clock is a model: a piece of work takes the longer of its bytes at the memory's bandwidth and its operations at its
//! unit's peak, begins after what is before it in its stream and what it waits for, and not before the host queued it; the
//! host takes `CALL` for every call. It does not depend on how long anything takes here, unless that is what is asked for
//! (`Config::real_clock`).
//!
//! Not here: what work does; what is captured instead of carried out (`stream/graph.rs`). Invariant: nothing is carried out
//! while the lock is held.

mod graph;

use crate::config::config;
use crate::{fault, misuse, trace};
use graph::{CAPTURE_ISOLATION, CAPTURE_UNSUPPORTED, Capture, Exec, Graph};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Host time of one call, in seconds: what a launch costs on common machines.
const CALL: f64 = 2.5e-6;
/// What any piece of work takes at least, in seconds.
const LEAST: f64 = 1.5e-6;
/// Fractions of the peaks that well-made kernels reach.
const BANDWIDTH_REACHED: f64 = 0.8;
const PEAK_REACHED: f64 = 0.6;
/// Pieces of work that may wait for a thread that takes its time.
const BACKLOG: usize = 256;

pub const SUCCESS: u32 = 0;
pub const INVALID_VALUE: u32 = 1;
pub const OUT_OF_MEMORY: u32 = 2;
pub const INVALID_CONTEXT: u32 = 201;
pub const INVALID_HANDLE: u32 = 400;
pub const NOT_READY: u32 = 600;

pub use graph::{
    CopyNode, Kind, Place, allocate_in_capture, begin_capture, capture_status, capturing, destroy_exec, destroy_graph,
    end_capture, free_in_capture, instantiate, launch_graph, memcpy_of, node_type, nodes, outlived, spoilt_by, upload,
};

/// The default streams' handles: legacy and one a thread.
pub const LEGACY: usize = 1;
pub const PER_THREAD: usize = 2;

/// What a piece of work would cost a real device, for its clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Bytes read and written.
    pub bytes: u64,
    /// Floating-point (or integer) operations, two a multiply-add.
    pub flops: u64,
    /// Operations a second that the device's unit for this type of number makes; zero stands for the device's own.
    pub peak: f64,
}

/// What a stream carries out. It may be carried out again, by a graph.
pub type Work = Box<dyn Fn() + Send + Sync>;

#[derive(Clone)]
enum Task {
    /// Without `seconds` it is a note of the driver's, which takes the device no time.
    Run {
        who: &'static str,
        seconds: Option<f64>,
        work: Arc<Work>,
    },
    Record {
        event: usize,
        version: u64,
    },
    Wait {
        event: usize,
        version: u64,
    },
}

struct Queued {
    task: Task,
    /// Of the host's clock when it was queued.
    queued: f64,
    /// Its place among all that was queued: the legacy stream waits for what is before.
    number: u64,
}

struct Stream {
    device: usize,
    /// Does not wait for the legacy stream, nor that for it.
    non_blocking: bool,
    queue: VecDeque<Queued>,
    running: Option<u64>,
    /// When what was carried out last ended, in seconds.
    time: f64,
    /// What it records while it is captured.
    capture: Option<Capture>,
}

struct Event {
    timing: bool,
    /// Times that it was recorded, and of those the last that was carried out, with its moment.
    recorded: u64,
    done: u64,
    time: f64,
    /// The stream and capture that it was recorded in last, if it was in one.
    captured: Option<(usize, u64)>,
}

#[derive(Default)]
struct State {
    streams: HashMap<usize, Stream>,
    events: HashMap<usize, Event>,
    graphs: HashMap<usize, Graph>,
    execs: HashMap<usize, Exec>,
    /// Memory that launches left allocated, with the graph that was launched and its bytes.
    outlived: BTreeMap<u64, (usize, usize)>,
    captures: u64,
    next: usize,
    number: u64,
    host: f64,
    waiters: usize,
    random: u64,
}

struct Scheduler {
    state: Mutex<State>,
    /// Something was queued, or somebody waits.
    asked: Condvar,
    /// Something was carried out.
    done: Condvar,
}

thread_local! {
    /// The device whose context is current on this thread.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
    /// This thread's own default stream, a device.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

pub fn current() -> Option<usize> {
    CURRENT.get()
}

pub fn set_current(device: Option<usize>) {
    CURRENT.set(device);
}

fn scheduler() -> &'static Scheduler {
    static SCHEDULER: OnceLock<Scheduler> = OnceLock::new();
    SCHEDULER.get_or_init(|| {
        std::thread::Builder::new()
            .name("simdevice".into())
            .spawn(carry_out)
            .unwrap_or_else(|e| misuse!("no thread for the device: {e}"));
        let mut state = State { next: 0x51_0000, random: config().seed, ..State::default() };
        for device in 0..config().devices.len() {
            state.streams.insert(legacy(device), Stream::new(device, false));
        }
        Scheduler { state: Mutex::new(state), asked: Condvar::new(), done: Condvar::new() }
    })
}

/// The key of a device's legacy stream.
fn legacy(device: usize) -> usize {
    0x1000 + device
}

impl Stream {
    fn new(device: usize, non_blocking: bool) -> Stream {
        Stream { device, non_blocking, queue: VecDeque::new(), running: None, time: 0.0, capture: None }
    }
}

impl State {
    /// splitmix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn new_handle(&mut self) -> usize {
        self.next += 16;
        self.next
    }

    /// The stream that `handle` stands for on this thread, made if it is the thread's own and new.
    fn stream(&mut self, handle: usize) -> Result<usize, u32> {
        let device = CURRENT.get().ok_or(INVALID_CONTEXT)?;
        match handle {
            0 | LEGACY => Ok(legacy(device)),
            PER_THREAD => {
                let mut own = OWN.get();
                if own == 0 {
                    own = self.new_handle();
                    OWN.set(own);
                }
                self.streams.entry(own + device).or_insert_with(|| Stream::new(device, false));
                Ok(own + device)
            }
            other if self.streams.contains_key(&other) => {
                let of = self.streams[&other].device;
                if of == device { Ok(other) } else { Err(INVALID_HANDLE) }
            }
            other => misuse!("0x{other:x} is no stream (destroyed?)"),
        }
    }

    /// Whether the head of `key`'s queue may be carried out now.
    fn ready(&self, key: usize) -> bool {
        let stream = &self.streams[&key];
        let Some(head) = stream.queue.front() else { return false };
        if stream.running.is_some() {
            return false;
        }
        if let Task::Wait { event, version } = head.task
            && self.events.get(&event).is_some_and(|e| e.done < version)
        {
            return false;
        }
        if stream.non_blocking {
            return true;
        }
        // The legacy stream and blocking streams of its device wait for each other's earlier work.
        let is_legacy = key == legacy(stream.device);
        self.streams.iter().filter(|(k, s)| **k != key && s.device == stream.device && !s.non_blocking).all(|(k, s)| {
            let first = s.running.or(s.queue.front().map(|q| q.number));
            let concerns = is_legacy || *k == legacy(stream.device);
            !concerns || first.is_none_or(|n| n > head.number)
        })
    }

    /// One call that puts a task on a stream, or into what it records.
    fn push(&mut self, key: usize, kind: Kind, task: Task) -> u32 {
        self.host += CALL;
        if let Some(answer) = self.record_node(key, kind, &task) {
            return answer;
        }
        self.queue(key, task)
    }

    fn queue(&mut self, key: usize, task: Task) -> u32 {
        self.number += 1;
        let (number, queued) = (self.number, self.host);
        let Some(stream) = self.streams.get_mut(&key) else { return INVALID_HANDLE };
        stream.queue.push_back(Queued { task, queued, number });
        SUCCESS
    }

    fn backlog(&self) -> usize {
        self.streams.values().map(|s| s.queue.len()).sum()
    }
}

impl Scheduler {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ended` says so.
    fn wait(&self, ended: impl Fn(&State) -> bool) {
        let mut state = self.lock();
        state.waiters += 1;
        self.asked.notify_all();
        while !ended(&state) {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiters -= 1;
    }
}

/// When the device was first used.
fn began() -> Instant {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    *BEGAN.get_or_init(Instant::now)
}

/// The device's thread.
fn carry_out() {
    let scheduler = scheduler();
    let lazy = config().seed != 0;
    let mut state = scheduler.lock();
    loop {
        let mut ready: Vec<usize> = state.streams.keys().copied().filter(|k| state.ready(*k)).collect();
        ready.sort_unstable();
        if ready.is_empty() {
            state = scheduler.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        if lazy && state.waiters == 0 && state.backlog() < BACKLOG {
            let pause = Duration::from_micros(state.random() % 400);
            let (again, waited) = scheduler.asked.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner);
            state = again;
            if !waited.timed_out() && state.waiters == 0 {
                continue;
            }
        }
        ready.retain(|k| state.streams.contains_key(k) && state.ready(*k));
        if ready.is_empty() {
            continue;
        }
        let pick = if lazy { state.random() as usize % ready.len() } else { 0 };
        let key = ready[pick];
        let Some(Queued { task, queued, number }) = state.streams.get_mut(&key).and_then(|s| s.queue.pop_front())
        else {
            continue;
        };
        let mut time = state.streams[&key].time.max(queued);
        match task {
            Task::Run { who, seconds, work } => {
                if let Some(stream) = state.streams.get_mut(&key) {
                    stream.running = Some(number);
                }
                drop(state);
                fault::running(who);
                let start = Instant::now();
                work();
                let here = start.elapsed();
                let seconds = seconds.map_or(0.0, |s| s.max(LEAST));
                trace::count(who, here, seconds);
                state = scheduler.lock();
                time += seconds;
            }
            Task::Record { event, version } => {
                let now = if config().real_clock { began().elapsed().as_secs_f64() } else { time };
                if let Some(event) = state.events.get_mut(&event) {
                    (event.done, event.time) = (version, now);
                }
            }
            Task::Wait { event, .. } => time = time.max(state.events.get(&event).map_or(0.0, |e| e.time)),
        }
        if let Some(stream) = state.streams.get_mut(&key) {
            stream.running = None;
            stream.time = time;
        }
        scheduler.done.notify_all();
    }
}

/// Queues `work` on the stream whose handle is `stream` (null: the default stream). Returns a `CUresult`: 0, or what the
/// driver would answer (no current context on this thread, a sticky error).
pub fn enqueue(stream: usize, who: &'static str, cost: Cost, work: Work) -> u32 {
    enqueue_as(stream, Kind::Kernel, who, Some(cost), work)
}

/// As [`enqueue`] for work that is of this kind in a graph; without a cost it takes the device no time.
pub fn enqueue_as(stream: usize, kind: Kind, who: &'static str, cost: Option<Cost>, work: Work) -> u32 {
    if let Some(error) = fault::on_call(who) {
        return error;
    }
    let scheduler = scheduler();
    let mut state = scheduler.lock();
    let key = match state.stream(stream) {
        Ok(key) => key,
        Err(error) => return error,
    };
    let model = config().devices[state.streams[&key].device];
    let seconds = cost.map(|cost| {
        let peak = if cost.peak > 0.0 { cost.peak } else { model.flops };
        let bytes = cost.bytes as f64 / (model.bandwidth * BANDWIDTH_REACHED);
        bytes.max(cost.flops as f64 / (peak * PEAK_REACHED))
    });
    let result = state.push(key, kind, Task::Run { who, seconds, work: Arc::new(work) });
    scheduler.asked.notify_all();
    result
}

/// A new stream of the current device.
pub fn create(non_blocking: bool) -> Result<usize, u32> {
    let device = CURRENT.get().ok_or(INVALID_CONTEXT)?;
    let mut state = scheduler().lock();
    let handle = state.new_handle();
    state.streams.insert(handle, Stream::new(device, non_blocking));
    Ok(handle)
}

/// Forgets a stream when its work is done, as the driver does.
pub fn destroy(handle: usize) -> u32 {
    let result = synchronize(handle);
    scheduler().lock().streams.remove(&handle);
    result
}

/// Waits until everything that was queued on the stream is done.
pub fn synchronize(handle: usize) -> u32 {
    let scheduler = scheduler();
    let key = match scheduler.lock().stream(handle) {
        Ok(key) => key,
        Err(error) => return error,
    };
    // Waiting for what is only recorded spoils the capture.
    if let Some(error) = scheduler.lock().spoil(|k, _| k == key) {
        return error;
    }
    scheduler.wait(|s| s.streams.get(&key).is_none_or(|s| s.queue.is_empty() && s.running.is_none()));
    let mut state = scheduler.lock();
    let time = state.streams.get(&key).map_or(0.0, |s| s.time);
    state.host = state.host.max(time) + CALL;
    fault::sticky().unwrap_or(SUCCESS)
}

/// Waits for every stream of the current device.
pub fn synchronize_device() -> u32 {
    let Some(device) = CURRENT.get() else { return INVALID_CONTEXT };
    let scheduler = scheduler();
    if let Some(error) = scheduler.lock().spoil(|_, s| s.device == device) {
        return error;
    }
    scheduler
        .wait(|s| s.streams.values().filter(|s| s.device == device).all(|s| s.queue.is_empty() && s.running.is_none()));
    let mut state = scheduler.lock();
    let time = state.streams.values().filter(|s| s.device == device).map(|s| s.time).fold(0.0, f64::max);
    state.host = state.host.max(time) + CALL;
    fault::sticky().unwrap_or(SUCCESS)
}

/// A new event of the current device.
pub fn create_event(timing: bool) -> Result<usize, u32> {
    CURRENT.get().ok_or(INVALID_CONTEXT)?;
    let mut state = scheduler().lock();
    let handle = state.new_handle();
    state.events.insert(handle, Event { timing, recorded: 0, done: 0, time: 0.0, captured: None });
    Ok(handle)
}

pub fn destroy_event(event: usize) -> u32 {
    match scheduler().lock().events.remove(&event) {
        Some(_) => SUCCESS,
        None => misuse!("0x{event:x} is no event (destroyed twice?)"),
    }
}

pub fn record(event: usize, stream: usize) -> u32 {
    let scheduler = scheduler();
    let mut state = scheduler.lock();
    let key = match state.stream(stream) {
        Ok(key) => key,
        Err(error) => return error,
    };
    let within = state.within(key);
    let Some(e) = state.events.get_mut(&event) else { misuse!("0x{event:x} is no event (destroyed?)") };
    e.captured = within;
    if within.is_some() {
        // It stands for a place in the capture, and is not recorded when the graph runs.
        return state.still_captures(key);
    }
    e.recorded += 1;
    let version = e.recorded;
    state.host += CALL;
    let result = state.queue(key, Task::Record { event, version });
    scheduler.asked.notify_all();
    result
}

/// Makes what is queued on the stream from now on wait for the event as it was recorded last.
pub fn wait_event(stream: usize, event: usize) -> u32 {
    let scheduler = scheduler();
    let mut state = scheduler.lock();
    let key = match state.stream(stream) {
        Ok(key) => key,
        Err(error) => return error,
    };
    let within = state.within(key);
    let Some(e) = state.events.get(&event) else { misuse!("0x{event:x} is no event (destroyed?)") };
    match (within, e.captured) {
        // In its order anyway.
        (Some(this), Some(that)) if this == that => return state.still_captures(key),
        (_, Some(_)) => misuse!("cuStreamWaitEvent: another stream waits for what is captured: not modelled"),
        (Some(_), None) if e.recorded > 0 => {
            state.spoil(|k, _| k == key);
            return CAPTURE_ISOLATION;
        }
        (Some(_), None) => return state.still_captures(key),
        (None, None) => {}
    }
    let version = e.recorded;
    state.host += CALL;
    let result = state.queue(key, Task::Wait { event, version });
    scheduler.asked.notify_all();
    result
}

pub fn query_event(event: usize) -> u32 {
    if let Some(error) = event_in_capture(event) {
        return error;
    }
    let state = scheduler().lock();
    let Some(e) = state.events.get(&event) else { misuse!("0x{event:x} is no event (destroyed?)") };
    if e.done == e.recorded { SUCCESS } else { NOT_READY }
}

/// What is answered who asks or waits for an event while something is captured: that spoils the capture.
fn event_in_capture(event: usize) -> Option<u32> {
    let mut state = scheduler().lock();
    let of = state.events.get(&event).and_then(|e| e.captured);
    match of {
        Some((key, _)) => Some(state.spoil(|k, _| k == key).unwrap_or(CAPTURE_UNSUPPORTED)),
        None => state.spoil(|_, s| s.capture.as_ref().is_some_and(Capture::forbids)),
    }
}

pub fn synchronize_event(event: usize) -> u32 {
    if let Some(error) = event_in_capture(event) {
        return error;
    }
    let scheduler = scheduler();
    let recorded = match scheduler.lock().events.get(&event) {
        Some(e) => e.recorded,
        None => misuse!("0x{event:x} is no event (destroyed?)"),
    };
    scheduler.wait(|s| s.events.get(&event).is_none_or(|e| e.done >= recorded));
    let mut state = scheduler.lock();
    let time = state.events.get(&event).map_or(0.0, |e| e.time);
    state.host = state.host.max(time) + CALL;
    fault::sticky().unwrap_or(SUCCESS)
}

/// Milliseconds of the modelled clock between two events that are done.
pub fn elapsed_ms(from: usize, to: usize) -> Result<f32, u32> {
    let state = scheduler().lock();
    let of = |event: usize| match state.events.get(&event) {
        None => misuse!("0x{event:x} is no event (destroyed?)"),
        Some(e) if !e.timing || e.recorded == 0 => Err(INVALID_HANDLE),
        Some(e) if e.done < e.recorded => Err(NOT_READY),
        Some(e) => Ok(e.time),
    };
    Ok(((of(to)? - of(from)?) * 1e3) as f32)
}
