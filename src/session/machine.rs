//! What the machine of a session does at one moment: plain data for screens.
//!
//! Not here: who reads it (`host/machine`), how it is shown (`tui/draw/machine`). Invariant: it is never journalled and
//! nothing is decided by it; that a measurement was disturbed is told by the measurement (`profile/load`).

use crate::profile::Reading;
use serde::{Deserialize, Serialize};

/// One moment. What is not known is `None`, never zero.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// How busy each processor was since the moment before, per cent.
    pub processors: Vec<u8>,
    /// What other programs took of all processors together, per cent.
    pub others: Option<u8>,
    /// Bytes in use and in all: of the container, where one is bounded more tightly than its machine.
    pub memory: Option<(u64, u64)>,
    /// The fastest processor's clock, MHz.
    pub mhz: Option<u32>,
    /// What the GPU that the session computes on says of itself.
    pub gpu: Option<Reading>,
}

impl Machine {
    /// How busy all processors were together, per cent.
    pub fn busy(&self) -> Option<u8> {
        let sum: usize = self.processors.iter().map(|p| usize::from(*p)).sum();
        sum.checked_div(self.processors.len()).and_then(|mean| u8::try_from(mean).ok())
    }
}
