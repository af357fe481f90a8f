// Between the kernels' shared object and the device that launches them (src/kernels.rs has the same in Rust).
#pragma once
#include <stddef.h>
#include <stdint.h>

extern "C" {

// One parameter of a kernel, as the compiler sees it.
struct SimParam {
    uint32_t size, align;
    uint32_t pointer;   // 1: a pointer, of which `pointee` is the size of what it points to (0: void) and `constant` says const
    uint32_t constant;
    uint32_t pointee;
};

struct SimKernel {
    const char* module;  // the source's name without its ending: "affine", "paring"
    const char* name;
    uint32_t count;
    const SimParam* params;
    void (*call)(void** args);  // calls the kernel once, as the current thread of the current block
};

struct SimLaunch {
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;  // dynamic shared memory
    uint64_t seed;          // chooses the order of threads between barriers, and of blocks
};

// All kernels of this object.
const SimKernel* sim_kernels(size_t* count);
// Runs every thread of every block. Returns null, or a message (static storage) where threads diverge at a barrier.
const char* sim_launch(const SimKernel* kernel, const SimLaunch* launch, void** args);
// What instrumented loads and stores call ("checked" objects only); set before the first launch. Bytes at `at` are read or
// written by the kernel that runs; addresses outside the device's range are not passed on.
typedef void (*SimTouch)(uint64_t at, uint64_t bytes, int write);
void sim_watch(uint64_t from, uint64_t to, SimTouch touch);
// For a SimTouch that wants no more of the launch: ends it, which then returns a message with `why`. Does not return to its
// caller, whose frames are given up as they are. Does nothing where no kernel runs.
void sim_stop(const char* why);
}
