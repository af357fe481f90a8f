// Atomic operations. Threads take turns on one thread of the CPU, so that an ordinary load and store is one. Each says so to the
// run (`atomically`), which checks accesses to shared memory, since these may meet without being a race.
#pragma once
#include "block.h"

namespace sim {
// Told instead of the load and the store, where these are watched at all.
void atomically(const void* at, size_t bytes);

#define SIM_UNWATCHED __attribute__((no_sanitize("thread")))
template <class T, class F>
SIM_UNWATCHED static T atomic(T* at, F next) {
    atomically(at, sizeof(T));
    T old = *at;
    *at = next(old);
    return old;
}
template <class T> struct Same { using type = T; };
template <class T> using same = typename Same<T>::type;
}  // namespace sim

template <class T> static inline T atomicAdd(T* at, sim::same<T> v) { return sim::atomic(at, [&](T old) { return (T)(old + v); }); }
template <class T> static inline T atomicSub(T* at, sim::same<T> v) { return sim::atomic(at, [&](T old) { return (T)(old - v); }); }
template <class T> static inline T atomicExch(T* at, sim::same<T> v) { return sim::atomic(at, [&](T) { return v; }); }
template <class T> static inline T atomicMax(T* at, sim::same<T> v) { return sim::atomic(at, [&](T old) { return old < v ? v : old; }); }
template <class T> static inline T atomicMin(T* at, sim::same<T> v) { return sim::atomic(at, [&](T old) { return v < old ? v : old; }); }
template <class T> static inline T atomicAnd(T* at, sim::same<T> v) { return sim::atomic(at, [&](T old) { return (T)(old & v); }); }
template <class T> static inline T atomicOr(T* at, sim::same<T> v) { return sim::atomic(at, [&](T old) { return (T)(old | v); }); }
template <class T> static inline T atomicXor(T* at, sim::same<T> v) { return sim::atomic(at, [&](T old) { return (T)(old ^ v); }); }
template <class T> static inline T atomicCAS(T* at, sim::same<T> was, sim::same<T> v) {
    return sim::atomic(at, [&](T old) { return old == was ? v : old; });
}
