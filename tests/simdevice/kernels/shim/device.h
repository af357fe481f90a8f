// The CUDA language as C++ for a CPU: the one header that stands before every kernel source. The keywords `__global__` and
// `__shared__` are not here: build.rs rewrites them in the preprocessed text (see README.md), since it must find them there.
//
// Everything is included before the kernel source is, because the source is compiled inside an unnamed namespace, where no
// header of the system may begin.
#pragma once
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <type_traits>
#include <math.h>
#include <stdint.h>

#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)

// An H100: every branch of the sources that the device of the tests would take.
#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 8
#define CUDA_VERSION 12080

#include "vectors.h"
#include "block.h"
#include "numbers.h"
#include "atomics.h"
#include "cuda_fp16.h"
#include "cuda_bf16.h"
#include "cuda_fp8.h"
#include "cuda/std/limits"
#include "table.h"

// nvcc compiles candle's sources without NDEBUG, so their assertions are part of what a launch does.
#undef assert
#define assert(what) ((what) ? (void)0 : sim::assertion(#what, __FILE__, __LINE__))
#define __trap() sim::assertion("__trap", __FILE__, __LINE__)

// The program's kernels bring their own conversions in assembly for a GPU and leave them to whoever defines this.
#define ON_THREADS
static inline float widened(unsigned short half) { return sim::float_of_half(half); }
static inline unsigned short narrowed(float v) { return sim::half_of_float(v); }
