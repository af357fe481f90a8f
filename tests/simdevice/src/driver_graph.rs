//! The driver's calls about graphs: ending a capture, looking at a graph's nodes, instantiating and launching. What each does
//! is in `stream/graph.rs`.

use crate::driver::{answer, put};
use crate::stream::{self, CopyNode, INVALID_VALUE, Place, SUCCESS};
use std::ffi::{c_uint, c_void};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(of: usize, graph: *mut usize) -> u32 {
    let ended = stream::end_capture(of);
    if ended.is_err() && !graph.is_null() {
        // SAFETY: the caller's.
        unsafe { put(graph, 0) };
    }
    // SAFETY: the caller's.
    unsafe { answer(graph, ended) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(to: *mut usize, graph: usize, flags: u64) -> u32 {
    // SAFETY: the caller's.
    unsafe { answer(to, stream::instantiate(graph, flags)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphUpload(exec: usize, on: usize) -> u32 {
    stream::upload(exec, on)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(exec: usize, on: usize) -> u32 {
    stream::launch_graph(exec, on)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(exec: usize) -> u32 {
    stream::destroy_exec(exec)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: usize) -> u32 {
    stream::destroy_graph(graph)
}

/// Without a place for them their number; with one, as many as `n` says and there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetNodes(graph: usize, to: *mut usize, n: *mut usize) -> u32 {
    let nodes = match stream::nodes(graph) {
        Ok(nodes) => nodes,
        Err(error) => return error,
    };
    if n.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's: a number, and room for as many.
    unsafe {
        if !to.is_null() {
            let room = n.read();
            for i in 0..room {
                to.add(i).write(nodes.get(i).copied().unwrap_or(0));
            }
        }
        n.write(nodes.len());
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphNodeGetType(node: usize, to: *mut c_uint) -> u32 {
    // SAFETY: the caller's.
    unsafe { put(to, stream::node_type(node)) }
}

/// `CUDA_MEMCPY3D`: one side of it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Side {
    x: usize,
    y: usize,
    z: usize,
    lod: usize,
    memory_type: c_uint,
    host: usize,
    device: u64,
    array: *const c_void,
    reserved: *const c_void,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
pub struct Memcpy3d {
    from: Side,
    to: Side,
    width: usize,
    height: usize,
    depth: usize,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphMemcpyNodeGetParams(node: usize, to: *mut Memcpy3d) -> u32 {
    let CopyNode { bytes, from, to: place } = match stream::memcpy_of(node) {
        Ok(copy) => copy,
        Err(error) => return error,
    };
    let side = |place: Place| {
        let (memory_type, host, device) = match place {
            Place::Host(at) => (1, at, 0),
            Place::Device(at) => (2, 0, at),
        };
        let (array, reserved) = (std::ptr::null(), std::ptr::null());
        Side { x: 0, y: 0, z: 0, lod: 0, memory_type, host, device, array, reserved, pitch: bytes, height: 1 }
    };
    // SAFETY: the caller's.
    unsafe { put(to, Memcpy3d { from: side(from), to: side(place), width: bytes, height: 1, depth: 1 }) }
}
