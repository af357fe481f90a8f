//! Running lowered steps: the batch is cut into chunks of images that go through all steps while they are in cache, one
//! chunk a thread; a batch smaller than the threads is run by all threads together, step by step.

use super::arena::LINE;
use super::cache::Past;
use super::device::Workers;
use super::kernel::{Par, simple};
use super::lower::{Call, Lowered};
use super::sizes::Sizes;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where it goes what every step took, one a step of the whole plan; `None`: nobody asks.
pub(super) type Times<'a> = Option<&'a mut [Duration]>;

/// A value from outside for a whole batch.
#[derive(Clone, Copy)]
pub(crate) struct Feed<'a> {
    pub value: usize,
    pub data: &'a [f32],
    /// `[channels, positions]` when `data` is channels-first and must be turned.
    pub turn: Option<[usize; 2]>,
}

/// A part of the plan to run.
pub(crate) struct PartialRun<'a> {
    pub steps: Range<usize>,
    pub feeds: &'a [Feed<'a>],
    /// Values to hand back, for the whole batch; one may be asked for twice.
    pub fetch: &'a [usize],
    /// Those of the batch.
    pub sizes: &'a Sizes,
    pub images: usize,
    /// What went before, when tokens come one after the other.
    pub past: Option<Past<'a>>,
}

/// Holds every value of one chunk; see [`super::arena`].
type Arena = Vec<f32>;

/// Arenas kept between runs, as many as chunks ran at once.
#[derive(Debug, Default)]
pub(crate) struct Arenas(Mutex<Vec<Arena>>);

impl Arenas {
    fn take(&self) -> Arena {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn give(&self, arena: Arena) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(arena);
    }
}

/// Images a chunk should have: activations within cache, but enough images that weights are not fetched for each anew.
fn chunk(sizes: &Sizes, weight_bytes: u64, images: usize, threads: usize) -> usize {
    let per_image: usize = 4 * sizes.arena;
    let room = (1usize << 20).max(weight_bytes as usize / 8);
    let most = images.div_ceil(threads).max(1);
    let fit = (room / per_image.max(1)).clamp(1, most);
    // As many chunks for every thread, of equal size.
    let chunks = images.div_ceil(fit).next_multiple_of(threads);
    images.div_ceil(chunks.max(1)).max(1)
}

/// Runs `job` on the threads of `pool`. With `times` (one a step of the whole plan), adds the wall time of every step:
/// the mean over the threads that shared the batch.
pub(crate) fn run(
    low: &Lowered,
    weight_bytes: u64,
    arenas: &Arenas,
    job: &PartialRun<'_>,
    times: Times<'_>,
    pool: &Workers,
) -> Vec<Vec<f32>> {
    let mut outs: Vec<Vec<f32>> =
        job.fetch.iter().map(|&v| vec![0f32; job.sizes.places[v].numel * job.images]).collect();
    if job.images == 0 {
        return outs;
    }
    let threads = pool.rayon.current_num_threads();
    // Weights are fetched once for all sequences that go on.
    let par = threads > 1 && (job.images < threads || job.past.is_some());
    let size = if par || job.past.is_some() { job.images } else { chunk(job.sizes, weight_bytes, job.images, threads) };
    let mut parts: Vec<Vec<&mut [f32]>> = (0..job.images.div_ceil(size)).map(|_| Vec::new()).collect();
    for (out, &v) in outs.iter_mut().zip(job.fetch) {
        let len = job.sizes.places[v].numel * size;
        out.chunks_mut(len.max(1)).zip(&mut parts).for_each(|(c, p)| p.push(c));
    }
    let timed = times.is_some();
    let total = Mutex::new(vec![Duration::ZERO; if timed { low.steps.len() } else { 0 }]);
    let workers = if par { 1 } else { threads.min(parts.len()) };
    let one = |(i, mut fetch): (usize, Vec<&mut [f32]>), par: Par<'_>| {
        let mut arena = arenas.take();
        let from = i * size;
        let mut clock = timed.then(|| vec![Duration::ZERO; low.steps.len()]);
        chunk_run(low, job, from..job.images.min(from + size), par, &mut arena, &mut fetch, clock.as_deref_mut());
        arenas.give(arena);
        if let Some(clock) = clock {
            let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
            total.iter_mut().zip(clock).for_each(|(t, c)| *t += c);
        }
    };
    if parts.len() > 1 {
        // Chunk by chunk in order on every thread: no splitting heuristics, no stealing inside a step.
        let all = parts.into_par_iter().enumerate().with_max_len(1);
        pool.team.dismiss();
        pool.rayon.install(|| all.for_each(|part| one(part, Par::ALONE)));
    } else if par {
        pool.team.with(&pool.rayon, |team| parts.into_iter().enumerate().for_each(|part| one(part, team)));
    } else {
        parts.into_iter().enumerate().for_each(|part| one(part, Par::ALONE));
    }
    if let Some(times) = times {
        let total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
        times.iter_mut().zip(total).for_each(|(t, c)| *t += c / workers as u32);
    }
    outs
}

/// Runs the images `of` the job.
fn chunk_run(
    low: &Lowered,
    job: &PartialRun<'_>,
    of: Range<usize>,
    par: Par<'_>,
    arena: &mut Arena,
    fetch: &mut [&mut [f32]],
    mut clock: Times<'_>,
) {
    // A line more than needed: values begin on cache lines.
    let (sizes, images) = (job.sizes, of.len());
    let past = job.past.map(|p| p.of(of.clone()));
    let len = sizes.arena * images;
    if arena.len() < len + LINE {
        // Zeros of the system: what no expert computes takes no memory.
        *arena = vec![0.0; len + LINE];
    }
    let skip = arena.as_ptr().align_offset(4 * LINE).min(LINE);
    let arena = &mut arena[skip..skip + len];
    let place = |v: usize| {
        let p = sizes.places[v];
        p.at * images..(p.at + p.numel) * images
    };
    let mut fed: Vec<Option<&[f32]>> = vec![None; low.values.len()];
    for f in job.feeds {
        let numel = sizes.places[f.value].numel;
        let data = &f.data[of.start * numel..of.end * numel];
        match f.turn {
            Some([c, p]) => simple::to_channels_last(c, p, data, &mut arena[place(f.value)]),
            None => fed[f.value] = Some(data),
        }
    }
    let mut hand_over = |value: usize, data: &[f32]| {
        for (out, &v) in fetch.iter_mut().zip(job.fetch) {
            if v == value {
                out.copy_from_slice(data);
            }
        }
    };
    for f in job.feeds {
        hand_over(f.value, fed[f.value].unwrap_or(&arena[place(f.value)]));
    }
    for i in job.steps.clone() {
        let step = &low.steps[i];
        let start = clock.as_ref().map(|_| Instant::now());
        // What a step reads is alive while it runs, so it lies before or after the output, never across it.
        let out = place(step.out);
        let (before, rest) = arena.split_at_mut(out.start);
        let (dst, after) = rest.split_at_mut(out.len());
        let get = |v: usize| {
            let at = place(v);
            fed[v].unwrap_or_else(|| match at.start < out.start {
                true => &before[at],
                false => &after[at.start - out.end..at.end - out.end],
            })
        };
        (step.kernel)(&Call { step, get: &get, images, past, par }, dst);
        if let (Some(clock), Some(start)) = (clock.as_deref_mut(), start) {
            clock[i] += start.elapsed();
        }
        // Not a layer's time: copying what was asked for is the caller's.
        hand_over(step.out, dst);
    }
}
