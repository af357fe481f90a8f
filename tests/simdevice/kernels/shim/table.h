// Makes the table's entry of a kernel from its signature, and calls it with packed arguments. build.rs lists the kernels.
#pragma once
#include <cstring>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#include "../sim.h"

namespace sim {

void add(const SimKernel* kernels, size_t count);

template <class T>
constexpr uint32_t pointee_of() {
    if constexpr (std::is_void_v<T>) return 0;
    else return (uint32_t)sizeof(T);
}
template <class A>
constexpr SimParam param_of() {
    using To = std::remove_pointer_t<A>;
    if constexpr (std::is_pointer_v<A>) return {sizeof(A), alignof(A), 1, std::is_const_v<To>, pointee_of<std::remove_cv_t<To>>()};
    else return {sizeof(A), alignof(A), 0, 0, 0};
}

// An argument may lie anywhere, hence it is copied before it is used as what it is.
template <class A>
static inline A argument(const void* at) {
    alignas(A) unsigned char bytes[sizeof(A)];
    memcpy(bytes, at, sizeof bytes);
    return *std::launder(reinterpret_cast<A*>(bytes));
}

template <auto kernel, class = decltype(kernel)>
struct Entry;
template <auto kernel, class... A>
struct Entry<kernel, void (*)(A...)> {
    static constexpr SimParam params[sizeof...(A) + 1] = {param_of<A>()..., SimParam{}};
    template <size_t... I>
    static void unpacked(void** args, std::index_sequence<I...>) {
        kernel(argument<A>(args[I])...);
    }
    static void call(void** args) { unpacked(args, std::index_sequence_for<A...>{}); }
    static constexpr SimKernel of(const char* module, const char* name) {
        return {module, name, (uint32_t)sizeof...(A), params, call};
    }
};

struct Added {
    Added(const SimKernel* kernels, size_t count) { add(kernels, count); }
};

}  // namespace sim
