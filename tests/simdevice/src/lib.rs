//! The libraries of a CUDA device, made of software: one shared object that stands in for the driver, NVRTC, cuBLAS,
//! cublasLt, cuRAND, cuDNN and NVML (README.md has the whole picture). The dynamic linker knows a file by its inode, so
//! names that are links to this one share its state.

// The calls have the names and contracts of the libraries that they stand in for.
#![allow(non_snake_case, non_camel_case_types, clippy::missing_safety_doc)]

mod blas;
mod blaslt;
mod config;
mod cudnn;
mod curand;
mod driver;
mod driver_graph;
mod driver_memory;
mod fault;
mod gemm;
mod handles;
mod kernels;
mod launch;
mod memory;
mod module;
mod numbers;
mod nvml;
mod nvrtc;
mod stream;
#[cfg(test)]
mod testing;
mod trace;
