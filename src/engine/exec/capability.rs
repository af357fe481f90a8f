//! What a device can do, as plain data: told before anything is compiled for it, so that a decision which it could not
//! carry out is refused when it is made.
//!
//! Every op runs on every device: by a kernel where there is one, else by its definition (`candle::definition`).
//! Invariant: compiling refuses a precision exactly where this does.

use super::device::Kernels;
use crate::graph::Precision;
use candle_core::Device;

/// What plans on one device, made of one kind of kernels, can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    kernels: Kernels,
}

impl Capabilities {
    pub fn of(device: &Device, kernels: Kernels) -> Capabilities {
        Capabilities { kernels: if device.is_cpu() { kernels } else { Kernels::Tensors } }
    }

    /// Whether convolutions and linears of a precision compile: a kernel multiplies the stored numbers, or the CPU's f32 kernels
    /// what they are rounded to ([`Precision::runs`]).
    fn supports(&self, precision: Precision) -> bool {
        match (self.kernels, precision) {
            (Kernels::Device, _) => true,
            (_, Precision::F32 | Precision::F16 | Precision::Bf16 | Precision::Int8 | Precision::Int8Static) => true,
            (_, Precision::W8 | Precision::W4 | Precision::W4g128 | Precision::W4g64 | Precision::W4g32) => false,
        }
    }

    /// Why `precision` cannot be had, with what can; `None` where it can.
    pub fn refuses(&self, precision: Precision) -> Option<String> {
        if self.supports(precision) {
            return None;
        }
        let have: Vec<_> = Precision::ALL.into_iter().filter(|p| self.supports(*p)).map(Precision::label).collect();
        Some(format!("{} has no GPU kernel; hint: {} have, or use `--device cpu`", precision.label(), have.join(", ")))
    }

    /// Every precision that cannot be had, with what [`Capabilities::refuses`] says of it.
    pub fn refused(&self) -> Vec<(Precision, String)> {
        Precision::ALL.into_iter().filter_map(|p| Some((p, self.refuses(p)?))).collect()
    }
}
