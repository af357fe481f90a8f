//! What the environment asks of the device, read once.
//!
//! `SIMDEVICE` names the devices (`h100`, `h100,a100`), `SIMDEVICE_MEMORY` the bytes that each has, `SIMDEVICE_SEED` the
//! order in which work is carried out, `SIMDEVICE_CLOCK` what events tell (`model`, `real`), `SIMDEVICE_KERNELS` which objects run (`plain`, `checked`, `sanitized`),
//! `SIMDEVICE_FAULT` what goes wrong (see `fault.rs`). Not here: what any of it does.

use crate::misuse;
use std::sync::OnceLock;

/// A device that is imitated: its figures are the manufacturer's, of the SXM models.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    pub name: &'static str,
    /// Compute capability.
    pub capability: (i32, i32),
    pub multiprocessors: i32,
    /// Bytes a second.
    pub bandwidth: f64,
    /// f32 operations a second outside tensor cores, what kernels are taken to run at.
    pub flops: f64,
}

const H100: Model =
    Model { name: "Simulated H100", capability: (9, 0), multiprocessors: 132, bandwidth: 3.35e12, flops: 67e12 };
const A100: Model =
    Model { name: "Simulated A100", capability: (8, 0), multiprocessors: 108, bandwidth: 2.04e12, flops: 19.5e12 };

/// Which objects run the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// As fast as this goes; only the ends of allocations are watched, by guard pages.
    Plain,
    /// Every load and store is looked up in the shadow.
    Checked,
    /// Built with the address and undefined-behaviour sanitizers, whose library must be preloaded.
    Sanitized,
}

#[derive(Debug)]
pub struct Config {
    pub devices: Vec<Model>,
    /// Bytes of each device.
    pub memory: u64,
    pub seed: u64,
    pub kernels: Kernels,
    /// Events tell what work took here instead of what it would take a real device: a slow device, whose clock agrees with the
    /// host's.
    pub real_clock: bool,
}

pub fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let var = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let number = |name: &str, usual: u64| match var(name) {
            None => usual,
            Some(v) => v.parse().unwrap_or_else(|_| misuse!("{name} is no number: `{v}`")),
        };
        let devices = var("SIMDEVICE").unwrap_or_else(|| "h100".into());
        let model = |name: &str| match name {
            "h100" => H100,
            "a100" => A100,
            other => misuse!("SIMDEVICE: `{other}` is none of h100, a100"),
        };
        let kernels = match var("SIMDEVICE_KERNELS").as_deref() {
            None | Some("checked") => Kernels::Checked,
            Some("plain") => Kernels::Plain,
            Some("sanitized") => Kernels::Sanitized,
            Some(other) => misuse!("SIMDEVICE_KERNELS: `{other}` is none of plain, checked, sanitized"),
        };
        Config {
            devices: devices.split(',').map(|d| model(d.trim())).collect(),
            memory: number("SIMDEVICE_MEMORY", 8 << 30),
            seed: number("SIMDEVICE_SEED", 0),
            kernels,
            real_clock: match var("SIMDEVICE_CLOCK").as_deref() {
                None | Some("model") => false,
                Some("real") => true,
                Some(other) => misuse!("SIMDEVICE_CLOCK: `{other}` is none of model, real"),
            },
        }
    })
}
