//! What a device can do, as plain data: told before anything is compiled for it, so that a decision which it could not
//! carry out is refused when it is made.
//!
//! Every op runs on every device: by a kernel where there is one, else by its definition (`candle::definition`).
//! Invariant: compiling refuses a precision exactly where this does.

use super::candle;
use super::device::Kernels;
use crate::graph::{Op, Precision, Runs};
use candle_core::Device;

/// What a device does with the convolutions and linears of a precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// A kernel multiplies the stored numbers.
    Real,
    /// Rounded as they are stored, multiplied by the f32 kernels.
    Simulated,
    /// Does not compile.
    Refused,
}

/// What tells how long a step took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    /// The host's clock around work that is done when a call returns.
    HostClock,
    /// Events on the device's stream.
    DeviceEvents,
}

/// What plans on one device, made of one kind of kernels, can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Every precision, in the order of [`Precision::ALL`].
    pub precisions: Vec<(Precision, Support)>,
    pub timing: Timing,
    kernels: Kernels,
}

impl Capabilities {
    pub fn of(device: &Device, kernels: Kernels) -> Capabilities {
        let kernels = if device.is_cpu() { kernels } else { Kernels::Tensors };
        let support = |p: Precision| match (kernels, p) {
            (Kernels::Device, _) if p.runs() == Runs::Simulated => Support::Simulated,
            (Kernels::Device, _) => Support::Real,
            (_, Precision::F32 | Precision::F16 | Precision::Bf16) => Support::Real,
            (_, Precision::Int8 | Precision::Int8Static) => Support::Real,
            (_, Precision::W8 | Precision::W4 | Precision::W4g128 | Precision::W4g64 | Precision::W4g32) => {
                Support::Real
            }
        };
        Capabilities {
            precisions: Precision::ALL.into_iter().map(|p| (p, support(p))).collect(),
            timing: if device.is_cuda() { Timing::DeviceEvents } else { Timing::HostClock },
            kernels,
        }
    }

    pub fn support(&self, precision: Precision) -> Support {
        self.precisions.iter().find(|(p, _)| *p == precision).map_or(Support::Refused, |(_, s)| *s)
    }

    /// Precisions with a kernel of their own, whose times are worth measuring apart. What is simulated takes as long as f32;
    /// static int8 as long as int8, but for the ranges that it does not look for.
    pub fn timed(&self) -> Vec<Precision> {
        let real = |p: &Precision| *p != Precision::Int8Static && self.support(*p) == Support::Real;
        Precision::ALL.into_iter().filter(real).collect()
    }

    /// Why `precision` cannot be had, with what can; `None` where it can.
    pub fn refuses(&self, precision: Precision) -> Option<String> {
        if self.support(precision) != Support::Refused {
            return None;
        }
        let have: Vec<_> = self.precisions.iter().filter(|p| p.1 != Support::Refused).map(|p| p.0.label()).collect();
        Some(format!("{} has no GPU kernel; hint: {} have, or use `--device cpu`", precision.label(), have.join(", ")))
    }

    /// Every precision that cannot be had, with what [`Capabilities::refuses`] says of it.
    pub fn refused(&self) -> Vec<(Precision, String)> {
        self.precisions.iter().filter_map(|(p, _)| Some((*p, self.refuses(*p)?))).collect()
    }

    /// Whether `op` has a kernel; if not, its definition runs, through the tensor library.
    pub fn has_kernel(&self, op: &Op) -> bool {
        match self.kernels {
            Kernels::Device => true,
            Kernels::Tensors => candle::has_kernel(op),
        }
    }
}
