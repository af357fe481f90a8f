//! What a GPU says of itself through NVML: power, energy, clock, utilisation, memory.
//!
//! `libnvidia-ml` comes with the driver and is opened at run time, so this needs no CUDA build. A figure that the board does
//! not have is `None`, never zero.

use candle_core::{Device, DeviceLocation};
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;

/// One GPU's gauges.
pub struct Gauges {
    nvml: Nvml,
    at: At,
}

/// How NVML is told which GPU is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
enum At {
    Index(u32),
    Uuid(String),
}

/// Gauges at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Watts.
    pub power_w: Option<f64>,
    /// Millijoules since the driver was loaded.
    pub energy_mj: Option<u64>,
    /// Of the multiprocessors, MHz.
    pub sm_mhz: Option<u32>,
    pub celsius: Option<u32>,
    /// Part of the last second with a kernel running, per cent.
    pub busy_percent: Option<u32>,
    /// Bytes, of all processes.
    pub memory_used: Option<u64>,
    pub memory_total: Option<u64>,
}

impl Gauges {
    /// The gauges of CUDA's device `ordinal`.
    ///
    /// # Errors
    /// In words for people: no driver, or no such GPU.
    pub fn open(ordinal: usize) -> Result<Gauges, String> {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let at = place(ordinal, visible.as_deref())?;
        // The plain name is there with the development files only.
        let nvml = Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init().or_else(|_| Nvml::init());
        let nvml =
            nvml.map_err(|e| format!("no GPU gauges: NVML does not open ({e}); hint: it comes with the driver"))?;
        let gauges = Gauges { nvml, at };
        gauges.with(|_| ()).map_err(|e| format!("no GPU gauges: NVML does not know GPU {ordinal} ({e})"))?;
        Ok(gauges)
    }

    /// The gauges of `device`; `None` for a CPU.
    pub fn of(device: &Device) -> Option<Result<Gauges, String>> {
        match device.location() {
            DeviceLocation::Cuda { gpu_id } => Some(Gauges::open(gpu_id)),
            DeviceLocation::Cpu | DeviceLocation::Metal { .. } => None,
        }
    }

    fn with<R>(&self, f: impl FnOnce(&nvml_wrapper::Device<'_>) -> R) -> Result<R, nvml_wrapper::error::NvmlError> {
        let device = match &self.at {
            At::Index(i) => self.nvml.device_by_index(*i),
            At::Uuid(id) => self.nvml.device_by_uuid(id.as_str()),
        };
        Ok(f(&device?))
    }

    /// All gauges now.
    pub fn read(&self) -> Reading {
        let read = |d: &nvml_wrapper::Device<'_>| {
            let memory = d.memory_info().ok();
            Reading {
                power_w: d.power_usage().ok().map(|mw| f64::from(mw) / 1e3),
                energy_mj: d.total_energy_consumption().ok(),
                sm_mhz: d.clock_info(Clock::SM).ok(),
                celsius: d.temperature(TemperatureSensor::Gpu).ok(),
                busy_percent: d.utilization_rates().ok().map(|u| u.gpu),
                memory_used: memory.as_ref().map(|m| m.used),
                memory_total: memory.as_ref().map(|m| m.total),
            }
        };
        self.with(read).unwrap_or_default()
    }
}

/// Where NVML, which counts all GPUs, has CUDA's device `ordinal`, which counts those that `visible`
/// (`CUDA_VISIBLE_DEVICES`) leaves.
fn place(ordinal: usize, visible: Option<&str>) -> Result<At, String> {
    let index = |i: usize| u32::try_from(i).map(At::Index).map_err(|_| format!("no GPU gauges: no GPU {i}"));
    let Some(visible) = visible.map(str::trim).filter(|v| !v.is_empty()) else { return index(ordinal) };
    match visible.split(',').map(str::trim).nth(ordinal) {
        Some(id) if id.starts_with("GPU-") => Ok(At::Uuid(id.to_owned())),
        Some(id) => match id.parse() {
            Ok(i) => index(i),
            Err(_) => {
                Err(format!("no GPU gauges: `{id}` in CUDA_VISIBLE_DEVICES is neither a number nor a GPU's UUID"))
            }
        },
        None => Err(format!("no GPU gauges: CUDA_VISIBLE_DEVICES has no GPU {ordinal}")),
    }
}

impl std::fmt::Display for Reading {
    /// `312 W, 1980 MHz, 61 °C, busy 97 %, 3.1 of 80.0 GiB`; what is unknown is left out.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const GIB: f64 = (1u64 << 30) as f64;
        let memory = self.memory_used.zip(self.memory_total);
        let parts = [
            self.power_w.map(|w| format!("{w:.0} W")),
            self.sm_mhz.map(|mhz| format!("{mhz} MHz")),
            self.celsius.map(|t| format!("{t} °C")),
            self.busy_percent.map(|b| format!("busy {b} %")),
            memory.map(|(used, total)| format!("{:.1} of {:.1} GiB", used as f64 / GIB, total as f64 / GIB)),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "no gauge answers" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_open_or_say_why_and_a_cpu_has_none() {
        assert!(Gauges::of(&Device::Cpu).is_none());
        // No machine has that many.
        let Err(why) = Gauges::open(4000) else { panic!("GPU 4000 opened") };
        assert!(why.starts_with("no GPU gauges: "), "{why}");
    }

    #[test]
    fn hidden_gpus_are_counted() {
        let at = |n, v| place(n, v);
        assert_eq!(at(2, None), Ok(At::Index(2)));
        assert_eq!(at(2, Some(" ")), Ok(At::Index(2)));
        assert_eq!(at(1, Some("3, 5")), Ok(At::Index(5)));
        assert_eq!(at(0, Some("GPU-8f6")), Ok(At::Uuid("GPU-8f6".into())));
        assert!(at(2, Some("3,5")).unwrap_err().contains("has no GPU 2"));
        assert!(at(0, Some("MIG-1")).unwrap_err().contains("`MIG-1`"));
    }

    #[test]
    fn unknown_gauges_are_left_out() {
        let r = Reading { power_w: Some(311.6), sm_mhz: Some(1980), ..Reading::default() };
        assert_eq!(r.to_string(), "312 W, 1980 MHz");
        let full = Reading { busy_percent: Some(97), memory_used: Some(3 << 30), memory_total: Some(80 << 30), ..r };
        assert_eq!(full.to_string(), "312 W, 1980 MHz, busy 97 %, 3.0 of 80.0 GiB");
        assert_eq!(Reading::default().to_string(), "no gauge answers");
    }
}
