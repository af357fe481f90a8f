// What instrumented loads and stores call: every access to the device's memory is passed to whoever watches, and every access to
// shared memory is looked up here: whether it lies in a variable, reads what was written, and meets no other thread's.
//
// Two accesses of two threads to one byte, of which one writes, must be apart by a barrier of the block, or of the warp where
// both threads are of one. Anything else is a race, whatever the order in which these threads ran.
#include <cstring>

#include "../shim/atomics.h"
#include "state.h"

namespace sim {

static uint64_t from = 0, bytes_watched = 0;
static SimTouch touch = nullptr;

}  // namespace sim

extern "C" __attribute__((visibility("default"))) void sim_watch(uint64_t from, uint64_t to, SimTouch touch) {
    sim::from = from;
    sim::bytes_watched = to - from;
    sim::touch = touch;
}

#ifdef SIM_CHECKED
namespace sim {

static const uint16_t NOBODY = 0xffff;

// When a thread touched a byte: after how many barriers of its block and of its warp.
struct Moment {
    uint16_t thread;
    uint32_t barriers, warps;
};
struct Byte {
    uint64_t block;
    Moment written, read, read_before;  // the latest two readers, different from each other
    bool atomic;                        // how it was written
};
static Byte shadow[ARENA];

static bool meets(const Moment& then, const Moment& now) {
    if (then.thread == NOBODY || then.thread == now.thread || then.barriers != now.barriers) return false;
    return then.thread / WARP != now.thread / WARP || then.warps >= now.warps;
}

static void outside(size_t offset, size_t bytes, bool write) {
    size_t at;
    const char* name = shared_name(offset, &at);
    fail("%s %s %zu bytes outside of shared memory: at byte %zu of %s", name_of(current), write ? "writes" : "reads", bytes, at, name);
}

static void race(const Moment& other, size_t offset, const char* does, const char* did) {
    size_t at;
    const char* name = shared_name(offset, &at);
    char him[160];
    strncpy(him, name_of(other.thread), sizeof him - 1);
    him[sizeof him - 1] = 0;
    fail("%s %s byte %zu of the shared %s, which %s %s without a barrier between", name_of(current), does, at, name, him, did);
}

void access_shared(size_t offset, size_t bytes, bool write, bool atomic) {
    Moment now = {(uint16_t)current, barriers_met, warps_met[current]};
    for (size_t i = offset; i < offset + bytes; i++) {
        if (i >= ARENA || !is_shared(i)) outside(offset, bytes, write);
        Byte& byte = shadow[i];
        if (byte.block != block_count) byte = {block_count, {NOBODY, 0, 0}, {NOBODY, 0, 0}, {NOBODY, 0, 0}, false};
        if (!write || atomic) {
            if (byte.written.thread == NOBODY) {
                size_t at;
                const char* name = shared_name(i, &at);
                fail("%s reads byte %zu of the shared %s, which no thread of the block has written", name_of(current), at, name);
            }
        }
        if (meets(byte.written, now) && !(atomic && byte.atomic)) race(byte.written, i, write ? "writes" : "reads", "writes");
        if (write) {
            if (meets(byte.read, now)) race(byte.read, i, "writes", "reads");
            if (meets(byte.read_before, now)) race(byte.read_before, i, "writes", "reads");
            byte.written = now;
            byte.atomic = atomic;
        } else {
            if (byte.read.thread != now.thread) byte.read_before = byte.read;
            byte.read = now;
        }
    }
}

static inline void touched(uintptr_t at, size_t bytes, bool write, size_t align) {
    if (at - from < bytes_watched) {
        // The compiler asks for an alignment only where the type has it; there a device would fault.
        if (__builtin_expect(at % align != 0 && on_fiber(), 0)) {
            fail("%s %s %zu bytes at the misaligned address %#zx", name_of(current), write ? "writes" : "reads", bytes, (size_t)at);
        }
        touch(at, bytes, write);
    } else if (at - (uintptr_t)arena < ARENA && on_fiber()) {
        access_shared(at - (uintptr_t)arena, bytes, write, false);
    }
}

void atomically(const void* at, size_t bytes) {
    uintptr_t address = (uintptr_t)at;
    if (address - (uintptr_t)arena < ARENA) {
        access_shared(address - (uintptr_t)arena, bytes, true, true);
    } else {
        touched(address, bytes, false, bytes);
        touched(address, bytes, true, bytes);
    }
}

}  // namespace sim

// The thread sanitizer's instrumentation calls these at every load and store. The address sanitizer's would do too, but calls
// only for the first access where a load and a store of one address follow each other, so that a write goes unheard.
extern "C" {
#define HOOKS(N)                                                                              \
    void __tsan_read##N(uintptr_t at) { sim::touched(at, N, false, N); }                      \
    void __tsan_write##N(uintptr_t at) { sim::touched(at, N, true, N); }                      \
    void __tsan_unaligned_read##N(uintptr_t at) { sim::touched(at, N, false, 1); }            \
    void __tsan_unaligned_write##N(uintptr_t at) { sim::touched(at, N, true, 1); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(uintptr_t at, size_t bytes) { sim::touched(at, bytes, false, 1); }
void __tsan_write_range(uintptr_t at, size_t bytes) { sim::touched(at, bytes, true, 1); }
void __tsan_init() {}
#ifdef __clang__
// Linked in place of the C library's.
void* __real_memcpy(void* to, const void* from, size_t bytes);
void* __real_memmove(void* to, const void* from, size_t bytes);
void* __real_memset(void* to, int with, size_t bytes);
void* __wrap_memcpy(void* to, const void* from, size_t bytes) {
    if (bytes) sim::touched((uintptr_t)from, bytes, false, 1), sim::touched((uintptr_t)to, bytes, true, 1);
    return __real_memcpy(to, from, bytes);
}
void* __wrap_memmove(void* to, const void* from, size_t bytes) {
    if (bytes) sim::touched((uintptr_t)from, bytes, false, 1), sim::touched((uintptr_t)to, bytes, true, 1);
    return __real_memmove(to, from, bytes);
}
void* __wrap_memset(void* to, int with, size_t bytes) {
    if (bytes) sim::touched((uintptr_t)to, bytes, true, 1);
    return __real_memset(to, with, bytes);
}
#endif
}
#else
namespace sim {
void atomically(const void*, size_t) {}
}  // namespace sim
#endif
