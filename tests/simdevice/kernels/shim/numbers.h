// Arithmetic that CUDA has without a header: bit casts, the _rn intrinsics, mixed min and max, functions that C++ lacks, and
// the integer instructions that the quantized kernels use. Not here: half precision.
//
// Nothing is contracted to a fused product (the compiler is told so), hence `__fmul_rn` and `*` are the same. A GPU's expf and
// the like differ from these by an ulp or two.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace sim {
template <class To, class From>
static inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
}  // namespace sim

static inline float __uint_as_float(unsigned v) { return sim::bits<float>(v); }
static inline unsigned __float_as_uint(float v) { return sim::bits<unsigned>(v); }
static inline float __int_as_float(int v) { return sim::bits<float>(v); }
static inline int __float_as_int(float v) { return sim::bits<int>(v); }
static inline double __longlong_as_double(long long v) { return sim::bits<double>(v); }
static inline long long __double_as_longlong(double v) { return sim::bits<long long>(v); }

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
// glibc has functions of these names of its own.
#define __expf(a) expf(a)
#define __logf(a) logf(a)
#define __sinf(a) sinf(a)
#define __cosf(a) cosf(a)
#define __powf(a, b) powf(a, b)
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }

static inline float rsqrtf(float a) { return (float)(1.0 / sqrt((double)a)); }
static inline double rsqrt(double a) { return 1.0 / sqrt(a); }
static inline float normcdff(float a) { return (float)(0.5 * erfc((double)a * -0.70710678118654752440)); }
static inline double normcdf(double a) { return 0.5 * erfc(a * -0.70710678118654752440); }

// A GPU's conversions from floating point to integers saturate, and NaN becomes 0. Only the explicit intrinsics do so here.
namespace sim {
template <class I, class F>
static inline I saturated(F v) {
    if (v != v) return 0;
    if (v <= (F)std::numeric_limits<I>::min()) return std::numeric_limits<I>::min();
    if (v >= (F)std::numeric_limits<I>::max()) return std::numeric_limits<I>::max();
    return (I)v;
}
}  // namespace sim
static inline int __float2int_rz(float v) { return sim::saturated<int>(v); }
static inline int __float2int_rn(float v) { return sim::saturated<int>(nearbyintf(v)); }
static inline unsigned __float2uint_rz(float v) { return sim::saturated<unsigned>(v); }
static inline float __int2float_rn(int v) { return (float)v; }
static inline float __uint2float_rn(unsigned v) { return (float)v; }

// CUDA's min and max: of one type, or of two whose common one is what C++ would compute in. Of floats they drop a NaN.
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
static inline auto min(A a, B b) {
    using C = decltype(a + b);
    if constexpr (std::is_floating_point_v<C>) return (C)fmin((C)a, (C)b);
    else return (C)b < (C)a ? (C)b : (C)a;
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
static inline auto max(A a, B b) {
    using C = decltype(a + b);
    if constexpr (std::is_floating_point_v<C>) return (C)fmax((C)a, (C)b);
    else return (C)a < (C)b ? (C)b : (C)a;
}
using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;

template <class T> static inline T __ldg(const T* at) { return *at; }
template <class T> static inline T __ldcg(const T* at) { return *at; }
template <class T> static inline T __ldcs(const T* at) { return *at; }

static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline unsigned __brev(unsigned v) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (v >> i & 1u) << (31 - i);
    return r;
}

// Sums of products of the four bytes of two words; a sum that overflows wraps.
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c = (int)((unsigned)c + (unsigned)((int)(int8_t)(a >> i) * (int8_t)(b >> i)));
    return c;
}
// Four differences of signed bytes, each held within a byte.
static inline unsigned __vsubss4(unsigned a, unsigned b) {
    unsigned r = 0;
    for (int i = 0; i < 32; i += 8) {
        int d = (int8_t)(a >> i) - (int8_t)(b >> i);
        r |= (unsigned)(uint8_t)(d < -128 ? -128 : d > 127 ? 127 : d) << i;
    }
    return r;
}
