// What a kernel knows of the block that it runs in: where its thread is, its shared memory, its barriers and its warp.
//
// Here is only what the kernels see; run/ does the work. Every wait passes the line it stands in, so that a block whose threads
// meet at different barriers is told apart from one whose threads meet at the same.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "vectors.h"

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;

namespace sim {

// One `__shared__` variable. It has its place for one launch and is new in every block.
struct Shared {
    const char* name;
    uint64_t block, launch;
    void* at;
};
extern uint64_t block_count;   // of blocks begun since the process began, so never the same twice
extern void* dynamic_shared;   // `extern __shared__ T name[]`
void* new_shared(Shared* of, size_t bytes, size_t align);
static inline void* shared(Shared* of, size_t bytes, size_t align) {
    return of->block == block_count ? of->at : new_shared(of, bytes, align);
}

void barrier(int line);
enum class Vote { count, all, any };
int barrier_vote(int line, Vote vote, bool mine);

enum class Together { sync, shuffle, ballot };
// Waits for the threads of the warp that `mask` names. A shuffle gets what lane `from` gave; a ballot every lane's bit.
uint64_t warp(int line, Together what, unsigned mask, unsigned from, uint64_t value);
unsigned lane();
unsigned active();

[[noreturn]] void assertion(const char* what, const char* file, int line);

template <class T>
static inline T shuffled(int line, unsigned mask, T value, unsigned from) {
    static_assert(sizeof(T) <= 8, "CUDA shuffles no more than 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, (const void*)&value, sizeof value);
    bits = warp(line, Together::shuffle, mask, from, bits);
    memcpy((void*)&value, &bits, sizeof value);
    return value;
}
// As PTX's shfl has them: a lane outside the segment of `width` lanes means one's own value.
template <class T>
static inline T shuffle_xor(int line, unsigned mask, T value, int by, int width = 32) {
    unsigned me = lane(), last = me | (width - 1), from = me ^ by;
    return shuffled(line, mask, value, from <= last ? from : me);
}
template <class T>
static inline T shuffle_down(int line, unsigned mask, T value, unsigned by, int width = 32) {
    unsigned me = lane(), last = me | (width - 1), from = me + by;
    return shuffled(line, mask, value, from <= last ? from : me);
}
template <class T>
static inline T shuffle_up(int line, unsigned mask, T value, unsigned by, int width = 32) {
    unsigned me = lane(), first = me & ~(unsigned)(width - 1);
    return shuffled(line, mask, value, me >= first + by ? me - by : me);
}
template <class T>
static inline T shuffle(int line, unsigned mask, T value, int from, int width = 32) {
    unsigned first = lane() & ~(unsigned)(width - 1);
    return shuffled(line, mask, value, first | ((unsigned)from & (unsigned)(width - 1)));
}
static inline unsigned ballot(int line, unsigned mask, bool mine) {
    return (unsigned)warp(line, Together::ballot, mask, 0, mine);
}

}  // namespace sim

#define __syncthreads() sim::barrier(__LINE__)
#define __syncthreads_count(mine) sim::barrier_vote(__LINE__, sim::Vote::count, (mine) != 0)
#define __syncthreads_and(mine) sim::barrier_vote(__LINE__, sim::Vote::all, (mine) != 0)
#define __syncthreads_or(mine) sim::barrier_vote(__LINE__, sim::Vote::any, (mine) != 0)
#define SIM_MASK(first, ...) first
#define __syncwarp(...) ((void)sim::warp(__LINE__, sim::Together::sync, SIM_MASK(__VA_ARGS__ __VA_OPT__(,) 0xffffffffu), 0, 0))
#define __shfl_xor_sync(...) sim::shuffle_xor(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) sim::shuffle_down(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) sim::shuffle_up(__LINE__, __VA_ARGS__)
#define __shfl_sync(...) sim::shuffle(__LINE__, __VA_ARGS__)
#define __ballot_sync(mask, mine) sim::ballot(__LINE__, mask, (mine) != 0)
#define __any_sync(mask, mine) (sim::ballot(__LINE__, mask, (mine) != 0) != 0)
#define __all_sync(mask, mine) (sim::ballot(__LINE__, mask, (mine) == 0) == 0)
#define __activemask() sim::active()
#define __threadfence() ((void)0)
#define __threadfence_block() ((void)0)
#define __threadfence_system() ((void)0)
