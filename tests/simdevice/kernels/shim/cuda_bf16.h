// `__nv_bfloat16` and pairs of it: the functions that cuda_fp16.h makes for both narrow types, and the conversions by name.
#pragma once
#include "cuda_fp16.h"

struct __nv_bfloat16_raw { unsigned short x; };

SIM_NARROW(__nv_bfloat16, __nv_bfloat16_raw, bf16_of_float, float_of_bf16)
SIM_NARROW_PAIR(__nv_bfloat16, __nv_bfloat162)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline __nv_bfloat16 __float2bfloat16(float v) { return __nv_bfloat16(v); }
static inline __nv_bfloat16 __float2bfloat16_rn(float v) { return __nv_bfloat16(v); }
static inline __nv_bfloat16 __double2bfloat16(double v) { return __nv_bfloat16(v); }
static inline __nv_bfloat16 __int2bfloat16_rn(int v) { return __nv_bfloat16(v); }
static inline float __bfloat162float(__nv_bfloat16 v) { return sim_wide(v); }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.__x; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) { return __nv_bfloat16(__nv_bfloat16_raw{v}); }
static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 v) { return {v, v}; }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return sim_wide(v); }
