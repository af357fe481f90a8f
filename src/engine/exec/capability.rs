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
    place: Place,
}

/// What runs plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A CPU with its own kernels.
    Cpu,
    /// A CPU with the plain definitions of a GPU's kernels, of which it has all.
    Definitions,
    /// A GPU of this compute capability; `None` where it does not tell.
    Gpu(Option<[i32; 2]>),
}

/// The first compute capability with tensor cores for 8-bit floats (Ada; CUDA C++ Programming Guide, table of tensor cores'
/// types).
const FP8_FROM: [i32; 2] = [8, 9];

impl Capabilities {
    pub fn of(device: &Device, kernels: Kernels) -> Capabilities {
        Capabilities::at(match (device, kernels) {
            (Device::Cpu, Kernels::Device) => Place::Cpu,
            (Device::Cpu, Kernels::Tensors) => Place::Definitions,
            #[cfg(feature = "cuda")]
            (Device::Cuda(device), _) => Place::Gpu(super::cuda::compute_capability(device)),
            _ => Place::Gpu(None),
        })
    }

    fn at(place: Place) -> Capabilities {
        let support = |p: Precision| match (place, p) {
            (Place::Cpu, _) if p.runs() == Runs::Simulated => Support::Simulated,
            (Place::Cpu | Place::Definitions, _) => Support::Real,
            (Place::Gpu(has), Precision::Fp8) if has.is_none_or(|has| has < FP8_FROM) => Support::Refused,
            (Place::Gpu(_), Precision::F32 | Precision::F16 | Precision::Bf16 | Precision::Fp8) => Support::Real,
            (Place::Gpu(_), Precision::Int8 | Precision::Int8Static | Precision::W8) => Support::Real,
            (Place::Gpu(_), Precision::Block(_)) => Support::Simulated,
            (Place::Gpu(_), Precision::Lut4 | Precision::Lut3 | Precision::Lut2) => Support::Simulated,
            (Place::Gpu(_), Precision::W4 | Precision::W4g128 | Precision::W4g64 | Precision::W4g32) => Support::Real,
        };
        Capabilities {
            precisions: Precision::ALL.into_iter().map(|p| (p, support(p))).collect(),
            timing: if matches!(place, Place::Gpu(_)) { Timing::DeviceEvents } else { Timing::HostClock },
            place,
        }
    }

    pub fn support(&self, precision: Precision) -> Support {
        let listed = self.precisions.iter().find(|(p, _)| *p == precision).map(|(_, s)| *s);
        // GGML's formats and shared values are unpacked everywhere.
        let unpacked = matches!(precision, Precision::Block(_)) || Precision::SHARED.contains(&precision);
        listed.unwrap_or(if unpacked { Support::Simulated } else { Support::Refused })
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
        let (label, have) = (precision.label(), have.join(", "));
        let why = match self.place {
            Place::Gpu(Some([major, minor])) if precision == Precision::Fp8 => {
                let [from, and] = FP8_FROM;
                format!("{label} needs compute capability {from}.{and}; this is {major}.{minor}")
            }
            Place::Gpu(None) if precision == Precision::Fp8 => {
                let [from, and] = FP8_FROM;
                format!("{label} needs compute capability {from}.{and}, which this GPU does not tell")
            }
            Place::Cpu | Place::Definitions | Place::Gpu(_) => format!("{label} has no kernel here"),
        };
        Some(format!("{why}; hint: {have} have a kernel, or use `--device cpu`"))
    }

    /// Every precision that cannot be had, with what [`Capabilities::refuses`] says of it.
    pub fn refused(&self) -> Vec<(Precision, String)> {
        self.precisions.iter().filter_map(|(p, _)| Some((*p, self.refuses(*p)?))).collect()
    }

    /// Whether `op` has a kernel; if not, its definition runs, through the tensor library.
    pub fn has_kernel(&self, op: &Op) -> bool {
        match self.place {
            Place::Cpu => true,
            Place::Definitions | Place::Gpu(_) => candle::has_kernel(op),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_has_what_its_compute_capability_has() {
        let refused = |has| Capabilities::at(Place::Gpu(has)).refused();
        for has in [[8, 9], [9, 0], [10, 0], [12, 0]] {
            assert!(refused(Some(has)).is_empty(), "{has:?}");
        }
        for has in [[7, 5], [8, 0], [8, 6]] {
            let [(precision, why)] = &refused(Some(has))[..] else { panic!("{:?}", refused(Some(has))) };
            let [major, minor] = has;
            let words = format!("fp8 needs compute capability 8.9; this is {major}.{minor}; hint: ");
            assert!(*precision == Precision::Fp8 && why.starts_with(&words) && why.contains("w4g32"), "{why}");
        }
        assert!(refused(None)[0].1.contains("does not tell"));
    }

    /// Nothing is called simulated that has a kernel, and what has one is timed on its own.
    #[test]
    fn what_is_real_is_timed_and_what_is_not_is_not() {
        let (cpu, old, new) = (Place::Cpu, Place::Gpu(Some([8, 0])), Place::Gpu(Some([9, 0])));
        for place in [cpu, Place::Definitions, old, new] {
            let capable = Capabilities::at(place);
            for (p, support) in capable.precisions.clone() {
                let real = support == Support::Real && p != Precision::Int8Static;
                assert_eq!(capable.timed().contains(&p), real, "{place:?} {p:?}");
                assert_eq!(
                    support == Support::Simulated,
                    place == cpu && p.runs() == Runs::Simulated,
                    "{place:?} {p:?}"
                );
                assert_eq!(support == Support::Refused, place == old && p == Precision::Fp8, "{place:?} {p:?}");
            }
        }
    }
}
