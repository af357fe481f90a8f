// `__half` and pairs of it, as the kernel sources use them: every operation is computed wide and rounded once, as the hardware
// rounds it (a float has more than twice a half's digits, which makes sums, products, quotients and roots right).
//
// The functions of both narrow types are made by one macro, SIM_NARROW, of which cuda_bf16.h is the other user. hexp and the
// like are the float's function rounded; a GPU's may differ by an ulp of the half.
#pragma once
#include "atomics.h"
#include "narrow.h"

struct __half_raw { unsigned short x; };
struct __half2_raw { unsigned short x, y; };

// A number of 16 bits with CUDA's conversions. `of_float` and `to_float` are functions of narrow.h.
#define SIM_NARROW(T, RAW, of_float, to_float)                                                                \
    struct T {                                                                                                \
        unsigned short __x;                                                                                   \
        T() = default;                                                                                        \
        T(RAW r) : __x(r.x) {}                                                                                \
        T(float v) : __x(sim::of_float(v)) {}                                                                 \
        T(double v) : __x(sim::of_float(sim::odd_float(v))) {}                                                \
        template <class I, class = std::enable_if_t<std::is_integral_v<I>>>                                   \
        T(I v) : __x(sim::of_float(sim::odd_float_of(v))) {}                                                  \
        operator RAW() const { return {__x}; }                                                                \
        operator float() const { return sim::to_float(__x); }                                                 \
        operator bool() const { return (__x & 0x7fff) != 0; }                                                 \
        operator signed char() const { return sim::saturated<signed char>(sim::to_float(__x)); }              \
        operator unsigned char() const { return sim::saturated<unsigned char>(sim::to_float(__x)); }          \
        operator short() const { return sim::saturated<short>(sim::to_float(__x)); }                          \
        operator unsigned short() const { return sim::saturated<unsigned short>(sim::to_float(__x)); }        \
        operator int() const { return sim::saturated<int>(sim::to_float(__x)); }                              \
        operator unsigned() const { return sim::saturated<unsigned>(sim::to_float(__x)); }                    \
        operator long() const { return sim::saturated<long>(sim::to_float(__x)); }                            \
        operator unsigned long() const { return sim::saturated<unsigned long>(sim::to_float(__x)); }          \
        operator long long() const { return sim::saturated<long long>(sim::to_float(__x)); }                  \
        operator unsigned long long() const { return sim::saturated<unsigned long long>(sim::to_float(__x)); } \
    };                                                                                                        \
    static inline float sim_wide(T a) { return sim::to_float(a.__x); }                                        \
    static inline T __hadd(T a, T b) { return T(sim_wide(a) + sim_wide(b)); }                                 \
    static inline T __hsub(T a, T b) { return T(sim_wide(a) - sim_wide(b)); }                                 \
    static inline T __hmul(T a, T b) { return T(sim_wide(a) * sim_wide(b)); }                                 \
    static inline T __hdiv(T a, T b) { return T(sim_wide(a) / sim_wide(b)); }                                 \
    static inline T __hadd_rn(T a, T b) { return __hadd(a, b); }                                              \
    static inline T __hsub_rn(T a, T b) { return __hsub(a, b); }                                              \
    static inline T __hmul_rn(T a, T b) { return __hmul(a, b); }                                              \
    static inline T __hfma(T a, T b, T c) { return T(sim::odd_fma(sim_wide(a), sim_wide(b), sim_wide(c))); }  \
    static inline T __hneg(T a) { return T(RAW{(unsigned short)(a.__x ^ 0x8000)}); }                          \
    static inline T __habs(T a) { return T(RAW{(unsigned short)(a.__x & 0x7fff)}); }                          \
    static inline bool __hisnan(T a) { float v = sim_wide(a); return v != v; }                                \
    static inline int __hisinf(T a) { float v = sim_wide(a); return v == INFINITY ? 1 : v == -INFINITY ? -1 : 0; } \
    static inline bool __heq(T a, T b) { return sim_wide(a) == sim_wide(b); }                                 \
    static inline bool __hne(T a, T b) { float x = sim_wide(a), y = sim_wide(b); return x < y || x > y; }     \
    static inline bool __hlt(T a, T b) { return sim_wide(a) < sim_wide(b); }                                  \
    static inline bool __hle(T a, T b) { return sim_wide(a) <= sim_wide(b); }                                 \
    static inline bool __hgt(T a, T b) { return sim_wide(a) > sim_wide(b); }                                  \
    static inline bool __hge(T a, T b) { return sim_wide(a) >= sim_wide(b); }                                 \
    /* Of a number and a NaN the number; -0 is less than +0. */                                               \
    static inline T __hmax(T a, T b) {                                                                        \
        float x = sim_wide(a), y = sim_wide(b);                                                               \
        if (x != x) return y != y ? T(RAW{0x7fff}) : b;                                                       \
        return y != y || x > y || (x == y && !signbit(x)) ? a : b;                                            \
    }                                                                                                         \
    static inline T __hmin(T a, T b) {                                                                        \
        float x = sim_wide(a), y = sim_wide(b);                                                               \
        if (x != x) return y != y ? T(RAW{0x7fff}) : b;                                                       \
        return y != y || x < y || (x == y && signbit(x)) ? a : b;                                             \
    }                                                                                                         \
    static inline T __hmax_nan(T a, T b) { return __hisnan(a) || __hisnan(b) ? T(RAW{0x7fff}) : __hmax(a, b); } \
    static inline T __hmin_nan(T a, T b) { return __hisnan(a) || __hisnan(b) ? T(RAW{0x7fff}) : __hmin(a, b); } \
    static inline T hsqrt(T a) { return T(sqrtf(sim_wide(a))); }                                              \
    static inline T hrsqrt(T a) { return T(1.0 / sqrt((double)sim_wide(a))); }                                \
    static inline T hrcp(T a) { return T(1.0f / sim_wide(a)); }                                               \
    static inline T hsin(T a) { return T(sinf(sim_wide(a))); }                                                \
    static inline T hcos(T a) { return T(cosf(sim_wide(a))); }                                                \
    static inline T hlog(T a) { return T(logf(sim_wide(a))); }                                                \
    static inline T hexp(T a) { return T(expf(sim_wide(a))); }                                                \
    static inline T hceil(T a) { return T(ceilf(sim_wide(a))); }                                              \
    static inline T hfloor(T a) { return T(floorf(sim_wide(a))); }                                            \
    static inline T hrint(T a) { return T(nearbyintf(sim_wide(a))); }                                         \
    static inline T htrunc(T a) { return T(truncf(sim_wide(a))); }                                            \
    static inline T operator+(T a, T b) { return __hadd(a, b); }                                              \
    static inline T operator-(T a, T b) { return __hsub(a, b); }                                              \
    static inline T operator*(T a, T b) { return __hmul(a, b); }                                              \
    static inline T operator/(T a, T b) { return __hdiv(a, b); }                                              \
    static inline T operator+(T a) { return a; }                                                              \
    static inline T operator-(T a) { return __hneg(a); }                                                      \
    static inline T& operator+=(T& a, const T& b) { return a = __hadd(a, b); }                                \
    static inline T& operator-=(T& a, const T& b) { return a = __hsub(a, b); }                                \
    static inline T& operator*=(T& a, const T& b) { return a = __hmul(a, b); }                                \
    static inline T& operator/=(T& a, const T& b) { return a = __hdiv(a, b); }                                \
    static inline T& operator++(T& a) { return a = __hadd(a, T(1.0f)); }                                      \
    static inline T& operator--(T& a) { return a = __hsub(a, T(1.0f)); }                                      \
    static inline bool operator==(T a, T b) { return __heq(a, b); }                                           \
    static inline bool operator!=(T a, T b) { return !__heq(a, b); }                                          \
    static inline bool operator<(T a, T b) { return __hlt(a, b); }                                            \
    static inline bool operator<=(T a, T b) { return __hle(a, b); }                                           \
    static inline bool operator>(T a, T b) { return __hgt(a, b); }                                            \
    static inline bool operator>=(T a, T b) { return __hge(a, b); }                                           \
    static inline T atomicAdd(T* at, T v) { return sim::atomic(at, [&](T old) { return __hadd(old, v); }); }  \
    static inline T atomicExch(T* at, T v) { return sim::atomic(at, [&](T) { return v; }); }

// Two of them side by side, and the operations on both at once.
#define SIM_NARROW_PAIR(T, T2)                                                                    \
    struct alignas(4) T2 {                                                                        \
        T x, y;                                                                                   \
        T2() = default;                                                                           \
        T2(const T& x, const T& y) : x(x), y(y) {}                                                \
    };                                                                                            \
    static inline T2 __hadd2(T2 a, T2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }         \
    static inline T2 __hsub2(T2 a, T2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }         \
    static inline T2 __hmul2(T2 a, T2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }         \
    static inline T2 __h2div(T2 a, T2 b) { return {__hdiv(a.x, b.x), __hdiv(a.y, b.y)}; }         \
    static inline T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
    static inline T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }         \
    static inline T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }         \
    static inline T2 operator+(T2 a, T2 b) { return __hadd2(a, b); }                              \
    static inline T2 operator-(T2 a, T2 b) { return __hsub2(a, b); }                              \
    static inline T2 operator*(T2 a, T2 b) { return __hmul2(a, b); }                              \
    static inline T2 operator/(T2 a, T2 b) { return __h2div(a, b); }                              \
    static inline T2& operator+=(T2& a, const T2& b) { return a = __hadd2(a, b); }                \
    static inline T2& operator-=(T2& a, const T2& b) { return a = __hsub2(a, b); }                \
    static inline T2& operator*=(T2& a, const T2& b) { return a = __hmul2(a, b); }                \
    static inline float2 sim_wide(T2 a) { return {sim_wide(a.x), sim_wide(a.y)}; }                \
    static inline float __low2float(T2 a) { return sim_wide(a.x); }                               \
    static inline float __high2float(T2 a) { return sim_wide(a.y); }

SIM_NARROW(__half, __half_raw, half_of_float, float_of_half)
SIM_NARROW_PAIR(__half, __half2)
typedef __half half;
typedef __half2 half2;

static inline __half __float2half(float v) { return __half(v); }
static inline __half __float2half_rn(float v) { return __half(v); }
static inline __half __double2half(double v) { return __half(v); }
static inline __half __int2half_rn(int v) { return __half(v); }
static inline __half __uint2half_rn(unsigned v) { return __half(v); }
static inline float __half2float(__half v) { return sim_wide(v); }
static inline int __half2int_rz(__half v) { return (int)v; }
static inline unsigned short __half_as_ushort(__half v) { return v.__x; }
static inline short __half_as_short(__half v) { return (short)v.__x; }
static inline __half __ushort_as_half(unsigned short v) { return __half(__half_raw{v}); }
static inline __half __short_as_half(short v) { return __half(__half_raw{(unsigned short)v}); }
static inline __half __low2half(__half2 v) { return v.x; }
static inline __half __high2half(__half2 v) { return v.y; }
static inline __half2 __half2half2(__half v) { return {v, v}; }
static inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
static inline __half2 make_half2(__half x, __half y) { return {x, y}; }
static inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
static inline __half2 __float2half2_rn(float v) { return {__half(v), __half(v)}; }
static inline __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
static inline float2 __half22float2(__half2 v) { return sim_wide(v); }
