//! A GPU's memory: the most that its pool handed out, and smaller batches where it runs out.
//!
//! Not here: what a plan needs before it runs ([`super::Plan::memory`]).

use super::{ExecError, Result};
use candle_core::Device;

/// Bytes of a GPU's memory pool since [`PeakWatch::start`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeakMemory {
    /// The most in use at once: weights, values and what kernels need meanwhile.
    pub used: u64,
    /// `used` less what was in use at the start.
    pub above_start: u64,
    /// The most that the pool held of the device's memory, whatever it was used for.
    pub reserved: u64,
}

/// Watches a GPU's memory pool.
pub struct PeakWatch {
    #[cfg(feature = "cuda")]
    device: candle_core::CudaDevice,
    #[cfg(feature = "cuda")]
    before: u64,
    #[cfg(not(feature = "cuda"))]
    none: std::convert::Infallible,
}

impl PeakWatch {
    /// Forgets the high-water marks of `device`; `None` on a CPU, which has no pool.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn start(device: &Device) -> Result<Option<PeakWatch>> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(d) => {
                device.synchronize()?;
                super::cuda::reset_pool(d)?;
                let before = super::cuda::pool(d)?.used;
                Ok(Some(PeakWatch { device: d.clone(), before }))
            }
            _ => Ok(None),
        }
    }

    /// The marks now.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn peak(&self) -> Result<PeakMemory> {
        #[cfg(feature = "cuda")]
        {
            let pool = super::cuda::pool(&self.device)?;
            let above_start = pool.used_high.saturating_sub(self.before);
            Ok(PeakMemory { used: pool.used_high, above_start, reserved: pool.reserved_high })
        }
        #[cfg(not(feature = "cuda"))]
        match self.none {}
    }
}

/// Errors that may mean that a device has no memory left.
pub trait OutOfMemory {
    /// Would the same work on fewer images have a chance?
    fn is_out_of_memory(&self) -> bool;
}

impl OutOfMemory for candle_core::Error {
    fn is_out_of_memory(&self) -> bool {
        // The driver's and the libraries' errors arrive as boxed text.
        let text = self.to_string().to_ascii_lowercase();
        ["out_of_memory", "out of memory", "status_alloc_failed"].iter().any(|w| text.contains(w))
    }
}

impl OutOfMemory for ExecError {
    fn is_out_of_memory(&self) -> bool {
        matches!(self, ExecError::Candle { said, .. } | ExecError::Tensor(said) if said.inner().is_out_of_memory())
    }
}

/// Calls `f` with `batch`, and again with half of it as long as memory runs out. Returns what `f` did and the batch it did
/// it with.
///
/// # Errors
/// What `f` reports; running out of memory only where one image is too many.
pub fn halving<T, E: OutOfMemory>(batch: usize, mut f: impl FnMut(usize) -> Result<T, E>) -> Result<(T, usize), E> {
    let mut batch = batch.max(1);
    loop {
        match f(batch) {
            Err(e) if batch > 1 && e.is_out_of_memory() => batch /= 2,
            other => return Ok((other?, batch)),
        }
    }
}

/// What people are told when `asked` images were too many and `ran` were not.
pub fn smaller_batch(asked: usize, ran: usize) -> Option<String> {
    (ran < asked).then(|| format!("the device ran out of memory with {asked} images a batch; it went on with {ran}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> ExecError {
        let cuda = "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")".into();
        ExecError::Candle { node: "conv1".into(), op: "conv2d", said: candle_core::Error::Cuda(cuda).into() }
    }

    #[test]
    fn a_batch_is_halved_until_it_fits() {
        let mut tried = Vec::new();
        let mut fits_below = |most: usize| {
            let mut tries = Vec::new();
            let r = halving(48, |n| {
                tries.push(n);
                if n > most { Err(full()) } else { Ok(n * 10) }
            });
            tried.push(tries);
            r
        };
        assert_eq!(fits_below(13).unwrap(), (120, 12));
        assert_eq!(fits_below(100).unwrap(), (480, 48));
        assert!(fits_below(0).unwrap_err().is_out_of_memory());
        assert_eq!(tried, [vec![48, 24, 12], vec![48], vec![48, 24, 12, 6, 3, 1]]);
        assert_eq!(smaller_batch(48, 48), None);
        assert!(smaller_batch(48, 12).unwrap().contains("48 images"));
    }

    #[test]
    fn other_errors_are_not_tried_again() {
        let mut calls = 0;
        let r: Result<((), usize)> = halving(8, |_| {
            calls += 1;
            Err(ExecError::Device { spec: "cuda:0".into(), why: "gone".into() })
        });
        assert!(r.is_err() && calls == 1);
        assert!(PeakWatch::start(&Device::Cpu).unwrap().is_none());
    }
}
