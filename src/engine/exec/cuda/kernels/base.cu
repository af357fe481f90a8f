// Kernels that the tensor library lacks or has as chains of launches only: what all of them use. NVRTC compiles these files at run time,
// one behind the other (base, floats, rows, eight_bits, packed), so nothing is included. All tensors are row-major and contiguous. Values are f32, f16 or bf16 and are computed in f32. What each
// kernel computes is defined, and tested on a CPU, by the Rust type of the same name in `exec::candle`; of int8, fp8 and packed
// weights by the file.
//
// Not here: matrix products that a library has (cuBLAS, cublasLt). Invariant: a kernel writes only its last pointer (`quantize_each` its last two) and needs no shared memory
// from its launch.

typedef long long i64;
struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };

#ifndef ON_THREADS  // tests/kernels runs all of this on a CPU's threads and has its own
static __device__ __forceinline__ float widened(unsigned short half) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(half));
    return f;
}
static __device__ __forceinline__ unsigned short narrowed(float v) {
    unsigned short half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(v));
    return half;
}
#endif

static __device__ __forceinline__ float get(float v) { return v; }
static __device__ __forceinline__ float get(f16 v) { return widened(v.bits); }
static __device__ __forceinline__ float get(bf16 v) { return __uint_as_float((unsigned)v.bits << 16); }

static __device__ __forceinline__ void put(float* at, float v) { *at = v; }
static __device__ __forceinline__ void put(f16* at, float v) { at->bits = narrowed(v); }
static __device__ __forceinline__ void put(bf16* at, float v) {
    unsigned bits = __float_as_uint(v);
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    // To nearest, ties to even; adding could turn a NaN into an infinity.
    at->bits = nan ? (unsigned short)0x7fc0 : (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// `Activation` in the order of `graph::Activation::ALL`, from 1; 0 is none.
static __device__ __forceinline__ float activate(float x, int act) {
    switch (act) {
        case 1: return fmaxf(x, 0.0f);
        case 2: return fminf(fmaxf(x, 0.0f), 6.0f);
        case 3: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
        case 4: return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
        case 5: return x / (1.0f + expf(-x));
        case 6: return 1.0f / (1.0f + expf(-x));
        case 7: return fminf(fmaxf(x + 3.0f, 0.0f), 6.0f) / 6.0f;
        case 8: return x * (fminf(fmaxf(x + 3.0f, 0.0f), 6.0f) / 6.0f);
        case 9: return tanhf(x);
        default: return x;
    }
}

// Every element of a grid of any size.
#define EACH(i, n) \
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (i64)gridDim.x * blockDim.x)

// What is left of `i` counted in steps of `of`; `i` becomes the whole steps. A division of 64 bits takes about a hundred instructions,
// one of 32 bits a fifth of that, and kernels that only move numbers have nothing to hide it behind.
static __device__ __forceinline__ int taken(i64& i, i64 of) {
    if (((i | of) >> 32) == 0) {
        unsigned whole = (unsigned)i / (unsigned)of;
        int rest = (int)((unsigned)i - whole * (unsigned)of);
        i = whole;
        return rest;
    }
    i64 whole = i / of;
    int rest = (int)(i - whole * of);
    i = whole;
    return rest;
}
static __device__ __forceinline__ i64 quotient(i64 i, i64 of) {
    taken(i, of);
    return i;
}

// Four values that lie together, loaded and stored at once.
template <class T>
struct alignas(4 * sizeof(T)) Four {
    T v[4];
};
template <class T>
static __device__ __forceinline__ bool fourfold(const T* at) {
    return ((unsigned long long)at & (4 * sizeof(T) - 1)) == 0;
}
template <class T>
static __device__ __forceinline__ Four<T> four_at(const T* at) {
    return *(const Four<T>*)at;
}

// One of these for a kernel of one type.
#define EACH_TYPE(MAKE) MAKE(float, f32) MAKE(f16, f16) MAKE(bf16, bf16)

// `candle::geometry::Geometry`.
struct Geometry {
    int c, h, w, oh, ow, kh, kw, sy, sx, py, px;
};

// Calls `f` with the place in images [.., c, h, w] and the number of the weight of every tap, but those in the padding, of a convolution
// with groups: those of output channel `o` at (oy, ox), in the weights' order.
template <class F>
static __device__ __forceinline__ void in_group(Geometry g, i64 image, int oc, int groups, int o, int oy, int ox, F f) {
    int cg = g.c / groups, first = o / (oc / groups) * cg, tap = 0;
    for (int c = first; c < first + cg; c++) {
        for (int ky = 0; ky < g.kh; ky++) {
            int iy = oy * g.sy + ky - g.py;
            for (int kx = 0; kx < g.kw; kx++, tap++) {
                int ix = ox * g.sx + kx - g.px;
                if (iy >= 0 && iy < g.h && ix >= 0 && ix < g.w) f(((image * g.c + c) * g.h + iy) * g.w + ix, tap);
            }
        }
    }
}
