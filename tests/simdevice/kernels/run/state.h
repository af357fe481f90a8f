// What the parts of a run know of each other: the launch that runs, where shared memory lies, and how a launch is given up.
#pragma once
#include <cstddef>
#include <cstdint>

#include "../shim/block.h"
#include "../sim.h"

namespace sim {

static const unsigned MOST_THREADS = 1024, WARP = 32, MOST_WARPS = MOST_THREADS / WARP;

// launch.cpp
extern const SimKernel* kernel;
extern uint64_t seed;
extern unsigned current;         // the thread that runs
extern uint32_t barriers_met;    // by the block
extern uint32_t warps_met[MOST_THREADS];  // how often a thread and others of its warp have waited for each other
uint64_t random_number();
// "thread 3 of block 7 of softmax_f32"; static storage, two at a time.
const char* name_of(unsigned thread);
// The launch returns this message. Ends the current thread, and every other where it waits, for good.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);
// Whether a thread of a kernel runs at all.
bool on_fiber();

// shared.cpp
static const size_t ARENA = 512 << 10;
extern char* arena;
// Places the dynamic shared memory, forgets the static. False where there is too much of it.
bool begin_shared(size_t dynamic_bytes);
// A block begins.
void fill_dynamic();
// The variable whose place is nearest before or at `offset` in the arena, and how far from its begin that is.
const char* shared_name(size_t offset, size_t* from_begin);
bool is_shared(size_t offset);

// watch.cpp
void access_shared(size_t offset, size_t bytes, bool write, bool atomic);

}  // namespace sim
