//! What steps take: CUDA events on the device's stream with one wait at the end, or the host's clock where work is done when
//! a call returns.

use crate::exec::Result;
use crate::exec::replay::queueing;
use candle_core::Device;
use std::time::{Duration, Instant};

/// Moments between steps.
pub(super) enum Clock {
    Host(Vec<Instant>),
    #[cfg(feature = "cuda")]
    Events(crate::exec::cuda::Events),
}

impl Clock {
    /// A clock of `device` that starts now.
    pub fn start(device: &Device) -> Result<Clock> {
        let mut clock = match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(d) => Clock::Events(crate::exec::cuda::Events::of(d)),
            _ => Clock::Host(Vec::new()),
        };
        clock.mark()?;
        Ok(clock)
    }

    /// A step has been given to the device.
    pub fn mark(&mut self) -> Result<()> {
        match self {
            Clock::Host(marks) => marks.push(Instant::now()),
            #[cfg(feature = "cuda")]
            Clock::Events(events) => events.mark()?,
        }
        Ok(())
    }

    /// What every step took, from the mark before it to its own; waits for the device.
    pub fn stop(self) -> Result<Vec<Duration>> {
        match self {
            Clock::Host(marks) => Ok(marks.windows(2).map(|w| w[1] - w[0]).collect()),
            #[cfg(feature = "cuda")]
            Clock::Events(events) => Ok(events.between()?),
        }
    }
}

/// What `work` takes on `device` by the clock that steps are timed with; waits for it. `work` gives the device tensors' operations
/// and runs no plan, which would wait for its own turn in the queue.
///
/// # Errors
/// What `work` and the device report.
pub(crate) fn timed_on(device: &Device, work: impl FnOnce() -> candle_core::Result<()>) -> Result<Duration> {
    let _queueing = queueing();
    let mut clock = Clock::start(device)?;
    work()?;
    clock.mark()?;
    Ok(clock.stop()?.into_iter().sum())
}
