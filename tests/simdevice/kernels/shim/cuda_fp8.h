// `__nv_fp8_e4m3`, which candle stores and converts but does not compute in. Its other format, e5m2, no source uses.
#pragma once
#include "cuda_bf16.h"

typedef unsigned char __nv_fp8_storage_t;
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };

struct __nv_fp8_e4m3 {
    __nv_fp8_storage_t __x;
    __nv_fp8_e4m3() = default;
    explicit __nv_fp8_e4m3(float v) : __x(sim::e4m3_of_float(v)) {}
    explicit __nv_fp8_e4m3(double v) : __x(sim::e4m3_of_float(sim::odd_float(v))) {}
    explicit __nv_fp8_e4m3(__half v) : __x(sim::e4m3_of_float(sim_wide(v))) {}
    explicit __nv_fp8_e4m3(__nv_bfloat16 v) : __x(sim::e4m3_of_float(sim_wide(v))) {}
    template <class I, class = std::enable_if_t<std::is_integral_v<I>>>
    explicit __nv_fp8_e4m3(I v) : __x(sim::e4m3_of_float(sim::odd_float_of(v))) {}
    explicit operator float() const { return sim::float_of_e4m3(__x); }
    explicit operator double() const { return sim::float_of_e4m3(__x); }
    explicit operator __half() const { return __half(sim::float_of_e4m3(__x)); }
    explicit operator __nv_bfloat16() const { return __nv_bfloat16(sim::float_of_e4m3(__x)); }
};

// Every number of e4m3 is a half.
static inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t v, __nv_fp8_interpretation_t) {
    return __half(sim::float_of_e4m3(v));
}
static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float v, __nv_saturation_t, __nv_fp8_interpretation_t) {
    return sim::e4m3_of_float(v);
}
