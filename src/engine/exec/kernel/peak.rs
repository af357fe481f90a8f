//! The rates that the processor reaches when nothing has to be fetched: multiply-adds on registers (f32, VNNI) or on tiles
//! that lie in the first-level cache (AMX). No kernel can be faster.

use std::time::{Duration, Instant};

/// Multiply-adds a second, in units of 1e9, of one thread: f32 and int8.
#[derive(Debug, Clone, Copy, Default)]
pub struct Peak {
    pub f32_gmacs: f64,
    pub int8_gmacs: f64,
}

/// Best rate of `work` (operations or bytes a call) over about `span` and at least three calls, in units of 1e9 a second.
pub(crate) fn best(work: f64, span: Duration, mut call: impl FnMut()) -> f64 {
    call();
    let (start, mut rate) = (Instant::now(), 0.0f64);
    let mut runs = 0;
    while runs < 3 || start.elapsed() < span {
        let t = Instant::now();
        call();
        rate = rate.max(work / t.elapsed().as_secs_f64().max(1e-9) / 1e9);
        runs += 1;
    }
    rate
}

/// Measures `threads` threads at once and adds up their rates; `None` where this processor's best kernels are not our own,
/// so that a large product has to serve as the limit.
pub fn peak(threads: usize) -> Option<Peak> {
    #[cfg(target_arch = "x86_64")]
    if super::avx512::floats() && super::avx512::dots() {
        const N: usize = 20_000;
        let span = Duration::from_millis(120);
        let one = || {
            // SAFETY: the features were detected.
            let f32_gmacs = best((N * 24 * 16) as f64, span, || unsafe { super::avx512::burst_f32(N) });
            let int8_gmacs = if super::amx::available() {
                // SAFETY: as above.
                best((N * 4 * 16 * 16 * 64) as f64, span, || unsafe { super::amx::burst(N) })
            } else {
                // SAFETY: as above.
                best((N * 24 * 64) as f64, span, || unsafe { super::avx512::burst_u8(N) })
            };
            Peak { f32_gmacs, int8_gmacs }
        };
        let all: Vec<Peak> = std::thread::scope(|s| {
            let running: Vec<_> = (0..threads.max(1)).map(|_| s.spawn(one)).collect();
            running.into_iter().filter_map(|t| t.join().ok()).collect()
        });
        return Some(all.iter().fold(Peak::default(), |a, b| Peak {
            f32_gmacs: a.f32_gmacs + b.f32_gmacs,
            int8_gmacs: a.int8_gmacs + b.int8_gmacs,
        }));
    }
    let _ = threads;
    None
}

#[cfg(test)]
mod tests {
    #[test]
    fn int8_is_faster_than_f32() {
        if let Some(p) = super::peak(1) {
            assert!(p.f32_gmacs > 1.0 && p.int8_gmacs > 1.5 * p.f32_gmacs, "{p:?}");
        }
    }
}
