//! CUDA graphs: recording what is queued on the device's stream, and launching all of it at once.
//!
//! The rules are those of the driver API's pages on stream management, graph management and the stream-ordered allocator: what
//! is queued on a stream that is captured becomes nodes of a graph and does not run; `cuMemAllocAsync` and `cuMemFreeAsync`
//! become nodes too, with addresses that stay, and only such memory may be freed meanwhile; calls that wait, or that
//! allocate outside of a stream's order, spoil the capture. A graph that keeps memory which it allocated cannot be launched
//! twice, so all must be freed within.
//!
//! Not here: what is recorded (`candle/replay`). Invariants: however recording ends, the stream captures nothing
//! afterwards; a graph is launched by one thread at a time.

use crate::exec::error::{ExecError, Result};
use crate::words::unwound;
use candle_core::{CudaDevice, DType, Error, Storage, Tensor};
use cudarc::driver::sys::{self, CUgraphNodeType, CUmemorytype, CUstreamCaptureMode, CUstreamCaptureStatus};
use cudarc::driver::{CudaGraph, CudaStream, DriverError, result as driver};
use std::sync::Arc;

fn told(e: DriverError) -> ExecError {
    Error::wrap(e).into()
}

/// A graph that was recorded and not launched yet.
pub(in crate::exec) struct Recorded {
    graph: Raw,
    /// Why it must not be launched.
    refused: Option<String>,
}

/// A graph with the memory that it reads its input from and writes its result to.
pub(in crate::exec) struct Captured {
    // Before the tensors: nothing may refer to them when they go.
    graph: Raw,
    pub input: Tensor,
    pub output: Tensor,
}

impl std::fmt::Debug for Captured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Captured").field("input", &self.input.dims()).finish_non_exhaustive()
    }
}

struct Raw {
    /// `None` only while it is dropped.
    graph: Option<CudaGraph>,
    stream: Arc<CudaStream>,
}

// SAFETY: the driver's graphs belong to no thread; they must not be used by two at once ("Graph objects thread safety"), and
// all that uses one takes it by `&mut`, or owns it.
unsafe impl Send for Raw {}
// SAFETY: as above: a shared reference does nothing.
unsafe impl Sync for Raw {}

impl Drop for Raw {
    fn drop(&mut self) {
        let context = self.stream.context();
        if context.bind_to_thread().is_ok() {
            drop(self.graph.take());
            // What graphs have allocated stays theirs until it is asked for.
            // SAFETY: a device that is open. A failure means that the memory stays where it is.
            let _ = unsafe { sys::cuDeviceGraphMemTrim(context.cu_device()) };
        }
    }
}

impl Recorded {
    /// Why it must not be launched, as what the step or the pass does: `copies 48 bytes from the host's memory`.
    pub fn refusal(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// To be launched from now on.
    pub fn with(self, input: Tensor, output: Tensor) -> Captured {
        Captured { graph: self.graph, input, output }
    }
}

impl Captured {
    /// Queues all of the graph on the stream that it was captured from.
    pub fn launch(&mut self) -> Result<()> {
        match &self.graph.graph {
            Some(graph) => graph.launch().map_err(told),
            None => Ok(()),
        }
    }
}

/// Ends a capture when it is dropped, whatever happened meanwhile.
struct Open<'a>(&'a Arc<CudaStream>);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let status = self.0.capture_status();
        if !matches!(status, Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)) {
            // SAFETY: the device's stream; the graph, where there is one, is nobody's but ours.
            unsafe {
                if let Ok(graph) = driver::stream::end_capture(self.0.cu_stream())
                    && !graph.is_null()
                {
                    let _ = driver::graph::destroy(graph);
                }
            }
        }
        // What could not be freed during a capture that was spoilt was never allocated; the error is kept for the next call,
        // which is not to blame.
        let _ = self.0.context().check_err();
    }
}

/// Records what `pass` queues instead of running it. All that `pass` allocates it must let go.
///
/// # Errors
/// What `pass` reports; what the driver does, where something was called that cannot be captured. The stream captures nothing
/// any more.
pub(in crate::exec) fn record(device: &CudaDevice, pass: impl FnOnce() -> Result<()>) -> Result<Recorded> {
    let stream = device.cuda_stream();
    // Other threads may go on with what they do elsewhere; this one may not do what cannot be captured.
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(told)?;
    let open = Open(&stream);
    unwound(pass).unwrap_or_else(|panicked| Err(Error::Cuda(panicked.into()).into()))?;
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).map_err(told)?;
    drop(open);
    let graph = graph.ok_or_else(|| Error::msg("the capture gave no graph"))?;
    let refused = refusal(&graph).map_err(told)?;
    Ok(Recorded { graph: Raw { graph: Some(graph), stream }, refused })
}

/// What a graph holds that must not be launched again.
fn refusal(graph: &CudaGraph) -> std::result::Result<Option<String>, DriverError> {
    const COPY: u32 = CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY as u32;
    const HOST: u32 = CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST as u32;
    const ALLOCATION: u32 = CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC as u32;
    const FREE: u32 = CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE as u32;
    let mut nodes = Vec::new();
    // SAFETY: a graph that is alive; asked twice, for the number of nodes and for as many.
    unsafe {
        let mut n = 0;
        sys::cuGraphGetNodes(graph.cu_graph(), std::ptr::null_mut(), &raw mut n).result()?;
        nodes.resize(n, std::ptr::null_mut());
        sys::cuGraphGetNodes(graph.cu_graph(), nodes.as_mut_ptr(), &raw mut n).result()?;
        nodes.truncate(n);
    }
    let (mut allocated, mut freed) = (0usize, 0usize);
    for node in nodes {
        // As a number: a driver may know kinds that its bindings do not.
        let mut kind = u32::MAX;
        // SAFETY: a node of that graph; the kinds are of this size.
        unsafe { sys::cuGraphNodeGetType(node, (&raw mut kind).cast()).result()? };
        match kind {
            COPY => {
                // SAFETY: plain numbers and addresses, for which zeros are values but for the kinds of memory, written next.
                let copy = unsafe {
                    let mut copy = std::mem::MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
                    sys::cuGraphMemcpyNodeGetParams(node, copy.as_mut_ptr()).result()?;
                    copy.assume_init()
                };
                let bytes = copy.WidthInBytes * copy.Height.max(1) * copy.Depth.max(1);
                if copy.srcMemoryType == CUmemorytype::CU_MEMORYTYPE_HOST {
                    return Ok(Some(format!(
                        "copies {bytes} bytes from the host's memory, which is another's by then"
                    )));
                }
                if copy.dstMemoryType == CUmemorytype::CU_MEMORYTYPE_HOST {
                    return Ok(Some(format!("copies {bytes} bytes to the host's memory, which is another's by then")));
                }
            }
            HOST => {
                return Ok(Some("calls a function of the host, whose arguments are gone by then".to_owned()));
            }
            ALLOCATION => allocated += 1,
            FREE => freed += 1,
            _ => {}
        }
    }
    Ok((allocated != freed)
        .then(|| format!("keeps {} of the buffers that it allocates", allocated.saturating_sub(freed))))
}

/// Copies `from` to `to`, both f32, contiguous, of one size and on the stream's device: queued, or recorded.
pub(in crate::exec) fn copy(from: &Tensor, to: &Tensor) -> candle_core::Result<()> {
    if from.elem_count() != to.elem_count() {
        candle_core::bail!("{:?} does not go where {:?} lies", from.dims(), to.dims());
    }
    let ((source, at), (place, to_at)) = (from.storage_and_layout(), to.storage_and_layout());
    match (&*source, &*place) {
        (Storage::Cuda(s), Storage::Cuda(p)) if [from.dtype(), to.dtype()] == [DType::F32; 2] => {
            let (s_at, p_at) = (super::Input::of(s, at)?.at, super::Input::of(p, to_at)?.at);
            let stream = p.device.cuda_stream();
            // SAFETY: both have this many values, as just seen; work on one stream goes in order.
            unsafe { driver::memcpy_dtod_async(p_at, s_at, 4 * from.elem_count(), stream.cu_stream()) }
                .map_err(Error::wrap)
        }
        _ => candle_core::bail!("a graph's input and result are f32 and on the GPU"),
    }
}
