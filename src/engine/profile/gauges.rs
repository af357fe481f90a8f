//! What a GPU says of itself through NVML: power, energy, clock, utilisation, memory.
//!
//! `libnvidia-ml` comes with the driver and is opened at run time, so this needs no CUDA build. A figure that the board does
//! not have is `None`, never zero.

use super::load::Watch;
use candle_core::{Device, DeviceLocation};
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
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

    /// Now, as the driver counts: microseconds since 1970.
    pub(super) fn moment() -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    /// The part of the time since `began` in which `device` ran what other processes gave it; `None` for a CPU, and where the driver
    /// does not tell.
    pub(super) fn others_on(device: &Device, watch: &Watch, began: u64) -> Option<f64> {
        if !matches!(watch, Watch::System) {
            return None;
        }
        Gauges::of(device)?.ok()?.others(began)
    }

    fn others(&self, began: u64) -> Option<f64> {
        let samples = self.with(|d| d.process_utilization_stats(began)).ok()?.ok()?;
        let samples: Vec<(u32, u64, u32)> = samples.iter().map(|s| (s.pid, s.timestamp, s.sm_util)).collect();
        others(&samples, std::process::id(), began)
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

/// What processes other than `own` had of a GPU, of `(process, microseconds, per cent)` since `began`. Seen from a container processes
/// have other numbers: unless `own` is among them there is no telling which are others'.
fn others(samples: &[(u32, u64, u32)], own: u32, began: u64) -> Option<f64> {
    let since: Vec<_> = samples.iter().filter(|s| s.1 >= began).collect();
    since.iter().find(|s| s.0 == own)?;
    let mut most: HashMap<u32, (f64, f64)> = HashMap::new();
    for &&(pid, _, percent) in since.iter().filter(|s| s.0 != own) {
        let sum = most.entry(pid).or_default();
        *sum = (sum.0 + f64::from(percent) / 100.0, sum.1 + 1.0);
    }
    Some(most.values().map(|(sum, n)| sum / n).sum::<f64>().min(1.0))
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
    fn others_are_told_from_ourselves() {
        assert_eq!(others(&[(7, 10, 90)], 7, 5), Some(0.0));
        assert_eq!(others(&[(7, 10, 50), (8, 10, 25), (8, 11, 75)], 7, 5), Some(0.5));
        // Before it began, or with numbers that are not ours.
        assert_eq!(others(&[(7, 10, 50), (8, 3, 80)], 7, 5), Some(0.0));
        assert_eq!(others(&[(8, 10, 20)], 7, 5), None);
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
