//! The part that only a CUDA build has: opening a device, compiling and launching our kernels, events, graphs, memory
//! figures and products of 8-bit numbers.
//!
//! Everything runs on the one stream of the device that [`open`] made, so the order of calls is the order of work and no
//! tensor needs events of its own. Not here: what kernels compute (`exec::candle` defines it and is tested on a CPU).
//! Invariant: opening uses every library once, so one that is missing is told then (cudarc panics; the caller catches).

mod graph;
mod lt;

use super::candle::geometry::Geometry;
use candle_core::backend::BackendDevice;
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::{CudaDevice, CudaStorage, DType, Device, Layout, Result, Shape, Storage, Tensor};
use cudarc::driver::sys::{CUevent_flags, CUmemPool_attribute};
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchConfig};
use cudarc::driver::{PushKernelArg, result as driver};
use cudarc::nvrtc;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(super) use graph::{Captured, Recorded, copy, record};
pub(super) use lt::{fp8_product, int8_product};

const SOURCE: &str = concat!(
    include_str!("cuda/kernels/base.cu"),
    include_str!("cuda/kernels/floats.cu"),
    include_str!("cuda/kernels/rows.cu"),
    include_str!("cuda/kernels/eight_bits.cu"),
    include_str!("cuda/kernels/packed.cu")
);
/// Threads of a block of elementwise kernels.
const THREADS: u32 = 256;
/// Blocks that keep the largest devices busy: eight a multiprocessor.
const BUSY: usize = 1 << 10;

/// Opens GPU `ordinal` and compiles our kernels for it. Returns it with its name.
///
/// # Errors
/// In words: no such GPU, kernels that do not compile.
///
/// # Panics
/// cudarc does when it loads libraries at run time and one is missing.
pub(super) fn open(ordinal: usize) -> std::result::Result<(Device, String), String> {
    // A stream of its own: the other kind that candle offers is another stream on every thread.
    let device = Device::new_cuda_with_stream(ordinal).map_err(|e| e.to_string())?;
    let cuda = device.as_cuda_device().map_err(|e| e.to_string())?;
    // SAFETY: all work of this process is on this one stream.
    unsafe { cuda.disable_event_tracking() };
    let context = cuda.cuda_stream().context().clone();
    keep_pool(context.cu_device()).map_err(|e| format!("its memory pool cannot be set up: {e}"))?;
    ptx(cuda)?;
    lt::prepare(cuda).map_err(|e| e.to_string())?;
    let name = context.name().map_err(|e| e.to_string())?;
    Ok((device, format!("cuda:{ordinal} {name}")))
}

/// What has befallen the device that this thread works on, if anything: a library that fails says no more than that it did.
pub(super) fn befallen() -> Option<String> {
    cudarc::driver::result::ctx::synchronize().err().map(|e| format!("{e:?}"))
}

/// The device's compute capability, if it tells.
pub(super) fn compute_capability(device: &CudaDevice) -> Option<[i32; 2]> {
    device.cuda_stream().context().compute_capability().map(|(major, minor)| [major, minor]).ok()
}

/// Our kernels for `device`, compiled once a process and architecture.
fn ptx(device: &CudaDevice) -> std::result::Result<Arc<str>, String> {
    /// Compute capability, and the kernels for it.
    type Compiled = ((i32, i32), Arc<str>);
    static MADE: Mutex<Vec<Compiled>> = Mutex::new(Vec::new());
    let (major, minor) = device.cuda_stream().context().compute_capability().map_err(|e| e.to_string())?;
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, ptx)) = made.iter().find(|(of, _)| *of == (major, minor)) {
        return Ok(ptx.clone());
    }
    let options = nvrtc::CompileOptions {
        options: vec![format!("--gpu-architecture=compute_{major}{minor}")],
        name: Some("paring.cu".into()),
        ..Default::default()
    };
    let compiled = nvrtc::compile_ptx_with_opts(SOURCE, options).map_err(|e| match e {
        nvrtc::CompileError::CompileError { log, .. } => format!("kernels do not compile: {}", log.to_string_lossy()),
        other => format!("kernels do not compile: {other:?}"),
    })?;
    let ptx: Arc<str> = compiled.to_src().into();
    made.push(((major, minor), ptx.clone()));
    Ok(ptx)
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub(super) enum Arg {
    /// Zero stands for none.
    Ptr(u64),
    I32(i32),
    I64(i64),
    F32(f32),
    Geometry(Geometry),
}

// SAFETY: `repr(C)`, eleven `int`s as the kernels' `Geometry` has.
unsafe impl DeviceRepr for Geometry {}

/// A contiguous value on the GPU.
pub(super) struct Input<'a> {
    pub at: u64,
    pub dims: &'a [usize],
}

impl<'a> Input<'a> {
    /// The values of `storage` that `layout`, which must be contiguous, shows.
    pub fn of(storage: &CudaStorage, layout: &'a Layout) -> Result<Input<'a>> {
        match layout.contiguous_offsets() {
            Some((from, _)) => Ok(Input { at: pointer(storage, from)?, dims: layout.dims() }),
            None => candle_core::bail!("a kernel needs a contiguous tensor"),
        }
    }
}

/// The address of element `from`.
fn pointer(storage: &CudaStorage, from: usize) -> Result<u64> {
    fn at<T>(v: &CudaSlice<T>, from: usize, stream: &CudaStream) -> u64 {
        // One stream and no event tracking: the guard has nothing to record.
        let (ptr, _guard) = v.device_ptr(stream);
        ptr + (from * size_of::<T>()) as u64
    }
    let stream = storage.device.cuda_stream();
    Ok(match &storage.slice {
        CudaStorageSlice::F32(v) => at(v, from, &stream),
        CudaStorageSlice::F16(v) => at(v, from, &stream),
        CudaStorageSlice::BF16(v) => at(v, from, &stream),
        CudaStorageSlice::U8(v) => at(v, from, &stream),
        CudaStorageSlice::I32(v) => at(v, from, &stream),
        _ => candle_core::bail!("a kernel takes floats, bytes and 32-bit integers"),
    })
}

/// A device on which kernels are launched.
pub(super) struct Gpu<'a> {
    device: &'a CudaDevice,
    ptx: Arc<str>,
}

impl<'a> Gpu<'a> {
    pub fn of(device: &'a CudaDevice) -> Result<Gpu<'a>> {
        Ok(Gpu { device, ptx: ptx(device).map_err(candle_core::Error::msg)? })
    }

    pub fn device(&self) -> Device {
        Device::Cuda(self.device.clone())
    }

    /// Room for a kernel's output, and its address.
    pub fn output(&self, shape: &Shape, dtype: DType) -> Result<(CudaStorage, u64)> {
        // SAFETY: the kernel that is launched next writes every element before anything reads one.
        let out = unsafe { self.device.alloc_uninit(shape, dtype)? };
        let at = pointer(&out, 0)?;
        Ok((out, at))
    }

    /// Bytes for a kernel to write and the next to read; freed in the stream's order.
    pub fn scratch(&self, bytes: usize) -> Result<(CudaSlice<u8>, u64)> {
        // SAFETY: as above.
        let room = unsafe { self.device.alloc::<u8>(bytes.max(1))? };
        let stream = self.device.cuda_stream();
        let (at, guard) = room.device_ptr(&stream);
        drop(guard);
        Ok((room, at))
    }

    /// Calls `f` with where `t`, which must be contiguous, lies.
    pub fn with<R>(&self, t: &Tensor, f: impl FnOnce(Input<'_>) -> Result<R>) -> Result<R> {
        let (storage, layout) = t.storage_and_layout();
        match &*storage {
            Storage::Cuda(s) => f(Input::of(s, layout)?),
            _ => candle_core::bail!("a kernel's parameter is not on the GPU"),
        }
    }

    /// As [`Gpu::with`] for the addresses of several tensors; that of none is zero.
    pub fn with_some<R, const N: usize>(
        &self,
        tensors: [Option<&Tensor>; N],
        f: impl FnOnce([Arg; N]) -> Result<R>,
    ) -> Result<R> {
        let mut at = [Arg::Ptr(0); N];
        for (at, t) in at.iter_mut().zip(tensors) {
            if let Some(t) = t {
                *at = self.with(t, |t| Ok(Arg::Ptr(t.at)))?;
            }
        }
        f(at)
    }

    /// Queues a kernel that makes the `n` elements of `out`: they are its last two arguments.
    pub fn each(&self, name: &str, n: usize, args: &[Arg], out: u64) -> Result<()> {
        // A thread does four elements, which many kernels load at once, where that keeps every multiprocessor busy.
        let of = |each: usize| n.div_ceil(each * THREADS as usize);
        let blocks = of(4).max(of(1).min(BUSY)).clamp(1, 1 << 20) as u32;
        self.launch(name, blocks, THREADS, &[args, &[Arg::I64(n as i64), Arg::Ptr(out)]].concat())
    }

    /// Queues a kernel with one block a row of `width` values; `out` is its last argument.
    pub fn rows(&self, name: &str, rows: usize, width: usize, args: &[Arg], out: u64) -> Result<()> {
        self.rows_to(name, rows, width, &[args, &[Arg::Ptr(out)]].concat())
    }

    /// As [`Gpu::rows`], with all of its arguments.
    pub fn rows_to(&self, name: &str, rows: usize, width: usize, args: &[Arg]) -> Result<()> {
        // A power of two, for the reductions.
        let threads = (width.div_ceil(4).next_power_of_two() as u32).clamp(32, 512);
        self.blocks_to(name, rows, threads, args)
    }

    /// Queues a kernel of so many blocks of so many threads; `out` is its last argument.
    pub fn blocks(&self, name: &str, blocks: usize, threads: u32, args: &[Arg], out: u64) -> Result<()> {
        self.blocks_to(name, blocks, threads, &[args, &[Arg::Ptr(out)]].concat())
    }

    fn blocks_to(&self, name: &str, blocks: usize, threads: u32, args: &[Arg]) -> Result<()> {
        match i32::try_from(blocks) {
            Ok(blocks) if blocks > 0 => self.launch(name, blocks.unsigned_abs(), threads, args),
            Ok(_) => candle_core::bail!("`{name}` was given nothing to do"),
            Err(_) => candle_core::bail!("{blocks} blocks are too many for `{name}`: a smaller batch has fewer"),
        }
    }

    fn launch(&self, name: &str, blocks: u32, threads: u32, args: &[Arg]) -> Result<()> {
        let function = self.device.get_or_load_custom_func(name, "paring", &self.ptx)?;
        let mut launch = function.builder();
        for arg in args {
            match arg {
                Arg::Ptr(v) => launch.arg(v),
                Arg::I32(v) => launch.arg(v),
                Arg::I64(v) => launch.arg(v),
                Arg::F32(v) => launch.arg(v),
                Arg::Geometry(v) => launch.arg(v),
            };
        }
        let shape = LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: callers give the arguments of the kernel's signature, and lengths within what its pointers have.
        unsafe { launch.launch(shape) }.map_err(candle_core::Error::wrap)?;
        Ok(())
    }
}

/// Moments of a device's stream.
pub(super) struct Events {
    stream: Arc<CudaStream>,
    marks: Vec<CudaEvent>,
}

impl Events {
    pub fn of(device: &CudaDevice) -> Events {
        Events { stream: device.cuda_stream(), marks: Vec::new() }
    }

    /// Marks the moment when all that was queued so far is done.
    pub fn mark(&mut self) -> Result<()> {
        let event = self.stream.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let event = event.map_err(candle_core::Error::wrap)?;
        event.record(&self.stream).map_err(candle_core::Error::wrap)?;
        self.marks.push(event);
        Ok(())
    }

    /// The times between marks; waits for the last one.
    pub fn between(self) -> Result<Vec<Duration>> {
        self.stream.synchronize().map_err(candle_core::Error::wrap)?;
        let pairs = self.marks.iter().zip(self.marks.iter().skip(1));
        let ms = pairs.map(|(a, b)| a.elapsed_ms(b).map_err(candle_core::Error::wrap));
        ms.map(|ms| Ok(Duration::from_secs_f64(f64::from(ms?.max(0.0)) / 1e3))).collect()
    }
}

/// What the device's memory pool hands out, and at most has handed out, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryPool {
    pub used: u64,
    pub used_high: u64,
    pub reserved_high: u64,
}

/// The pool's figures now.
pub(super) fn pool(device: &CudaDevice) -> Result<MemoryPool> {
    use CUmemPool_attribute::*;
    let get = |attribute| {
        let mut value = 0u64;
        // SAFETY: the default pool of a device that is open; these attributes are 64-bit numbers.
        unsafe {
            let pool = driver::device::get_default_mem_pool(device.cuda_stream().context().cu_device());
            let pool = pool.map_err(candle_core::Error::wrap)?;
            let at = (&raw mut value).cast::<c_void>();
            driver::mem_pool::get_attribute(pool, attribute, at).map_err(candle_core::Error::wrap)?;
        }
        Result::Ok(value)
    };
    Ok(MemoryPool {
        used: get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
        used_high: get(CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
        reserved_high: get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
    })
}

/// Forgets the pool's high-water marks: they begin again at what is in use.
pub(super) fn reset_pool(device: &CudaDevice) -> Result<()> {
    use CUmemPool_attribute::{CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, CU_MEMPOOL_ATTR_USED_MEM_HIGH};
    for attribute in [CU_MEMPOOL_ATTR_USED_MEM_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH] {
        set(device.cuda_stream().context().cu_device(), attribute, 0).map_err(candle_core::Error::wrap)?;
    }
    Ok(())
}

/// Freed memory stays in the pool; otherwise every synchronise would hand it back to the system.
fn keep_pool(device: cudarc::driver::sys::CUdevice) -> std::result::Result<(), cudarc::driver::DriverError> {
    set(device, CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)
}

fn set(
    device: cudarc::driver::sys::CUdevice,
    attribute: CUmemPool_attribute,
    mut value: u64,
) -> std::result::Result<(), cudarc::driver::DriverError> {
    // SAFETY: as in `pool`.
    unsafe {
        let pool = driver::device::get_default_mem_pool(device)?;
        driver::mem_pool::set_attribute(pool, attribute, (&raw mut value).cast::<c_void>())
    }
}
