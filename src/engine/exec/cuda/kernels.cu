// Kernels that the tensor library lacks or has as chains of launches only. NVRTC compiles this at run time, so nothing is
// included. All tensors are row-major and contiguous. Values are f32, f16 or bf16 and are computed in f32. What each
// kernel computes is defined, and tested on a CPU, by the Rust type of the same name in `exec::candle`; of int8, fp8 and packed
// weights by the file.
//
// Not here: matrix products that a library has (cuBLAS, cublasLt). Invariant: a kernel writes only its last pointer and needs no shared memory
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

// One of these for a kernel of one type.
#define EACH_TYPE(MAKE) MAKE(float, f32) MAKE(f16, f16) MAKE(bf16, bf16)

// `candle::geometry::Geometry`.
struct Geometry {
    int c, h, w, oh, ow, kh, kw, sy, sx, py, px;
};

// ---- Unfold: [n, c, h, w] to [n, c·kh·kw, oh·ow].

template <class T>
static __device__ __forceinline__ void unfold(const T* x, Geometry g, i64 n, T* out) {
    EACH(i, n) {
        int ox = (int)(i % g.ow);
        i64 r = i / g.ow;
        int oy = (int)(r % g.oh);
        r /= g.oh;
        int kx = (int)(r % g.kw);
        r /= g.kw;
        int ky = (int)(r % g.kh);
        r /= g.kh;  // image · c + channel
        int iy = oy * g.sy + ky - g.py, ix = ox * g.sx + kx - g.px;
        bool inside = iy >= 0 && iy < g.h && ix >= 0 && ix < g.w;
        put(out + i, inside ? get(x[(r * g.h + iy) * g.w + ix]) : 0.0f);
    }
}
#define MAKE(T, N) \
    extern "C" __global__ void unfold_##N(const T* x, Geometry g, i64 n, T* out) { unfold(x, g, n, out); }
EACH_TYPE(MAKE)
#undef MAKE

// ---- Grouped: a convolution with groups, one thread an output value. `w` is [oc, c/groups, kh, kw].

template <class T>
static __device__ __forceinline__ void grouped(const T* x, const T* w, Geometry g, int oc, int groups, i64 n, T* out) {
    int cg = g.c / groups, og = oc / groups;
    EACH(i, n) {
        int ox = (int)(i % g.ow);
        i64 r = i / g.ow;
        int oy = (int)(r % g.oh);
        r /= g.oh;
        int o = (int)(r % oc);
        i64 image = r / oc;
        const T* tap = w + (i64)o * cg * g.kh * g.kw;
        float sum = 0.0f;
        for (int c = 0; c < cg; c++) {
            const T* plane = x + (image * g.c + (o / og) * cg + c) * g.h * g.w;
            for (int ky = 0; ky < g.kh; ky++) {
                int iy = oy * g.sy + ky - g.py;
                for (int kx = 0; kx < g.kw; kx++, tap++) {
                    int ix = ox * g.sx + kx - g.px;
                    if (iy >= 0 && iy < g.h && ix >= 0 && ix < g.w) {
                        sum = fmaf(get(plane[(i64)iy * g.w + ix]), get(*tap), sum);
                    }
                }
            }
        }
        put(out + i, sum);
    }
}
#define MAKE(T, N)                                                                                                     \
    extern "C" __global__ void grouped_##N(const T* x, const T* w, Geometry g, int oc, int groups, i64 n, T* out) { \
        grouped(x, w, g, oc, groups, n, out);                                                                          \
    }
EACH_TYPE(MAKE)
#undef MAKE

// ---- Epilogue: act(y · scale[c] + bias[c] + residual) with c = i / inner mod channels; null stands for 1, 0 and 0.

template <class Y, class R, class O>
static __device__ __forceinline__ void epilogue(const Y* y, const float* scale, const float* bias, const R* residual,
                                                int channels, i64 inner, int act, i64 n, O* out) {
    EACH(i, n) {
        int c = (int)(i / inner % channels);
        float v = get(y[i]);
        if (scale) v *= scale[c];
        if (bias) v += bias[c];
        if (residual) v += get(residual[i]);
        put(out + i, activate(v, act));
    }
}
#define MAKE(Y, YN, R, RN, O, ON)                                                                                \
    extern "C" __global__ void epilogue_##YN##_##RN##_##ON(const Y* y, const float* scale, const float* bias,    \
                                                           const R* residual, int channels, i64 inner, int act, \
                                                           i64 n, O* out) {                                      \
        epilogue(y, scale, bias, residual, channels, inner, act, n, out);                                        \
    }
MAKE(float, f32, float, f32, float, f32)
#define MAKE_HALF(T, N)              \
    MAKE(T, N, T, N, T, N)           \
    MAKE(T, N, float, f32, T, N)     \
    MAKE(T, N, T, N, float, f32)     \
    MAKE(T, N, float, f32, float, f32)
MAKE_HALF(f16, f16)
MAKE_HALF(bf16, bf16)
#undef MAKE_HALF
#undef MAKE

// ---- Pool: the maximum (mode 0) or mean of every window, over the window's size (1) or what of it is no padding (2).

template <class T>
static __device__ __forceinline__ void pool(const T* x, Geometry g, int mode, i64 n, T* out) {
    EACH(i, n) {
        int ox = (int)(i % g.ow);
        i64 r = i / g.ow;
        int oy = (int)(r % g.oh);
        const T* plane = x + r / g.oh * g.h * g.w;
        float best = -3.402823466e38f, sum = 0.0f;
        int seen = 0;
        for (int ky = 0; ky < g.kh; ky++) {
            int iy = oy * g.sy + ky - g.py;
            for (int kx = 0; kx < g.kw; kx++) {
                int ix = ox * g.sx + kx - g.px;
                if (iy >= 0 && iy < g.h && ix >= 0 && ix < g.w) {
                    float v = get(plane[(i64)iy * g.w + ix]);
                    best = v > best ? v : best;
                    sum += v;
                    seen++;
                }
            }
        }
        put(out + i, mode == 0 ? best : sum / (float)(mode == 1 ? g.kh * g.kw : seen));
    }
}
#define MAKE(T, N) \
    extern "C" __global__ void pool_##N(const T* x, Geometry g, int mode, i64 n, T* out) { pool(x, g, mode, n, out); }
EACH_TYPE(MAKE)
#undef MAKE

// ---- Reductions over a block of at most 1024 threads; every thread gets the result. All threads must call them.

struct Add { static __device__ __forceinline__ float of(float a, float b) { return a + b; } };
struct Max { static __device__ __forceinline__ float of(float a, float b) { return b > a ? b : a; } };
struct Min { static __device__ __forceinline__ float of(float a, float b) { return b < a ? b : a; } };

template <class F>
static __device__ __forceinline__ float reduce(float v) {
    __shared__ float parts[1024];
    // Nobody may still read the parts of the reduction before.
    __syncthreads();
    parts[threadIdx.x] = v;
    __syncthreads();
    // The launch's threads are a power of two.
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if ((int)threadIdx.x < half) parts[threadIdx.x] = F::of(parts[threadIdx.x], parts[threadIdx.x + half]);
        __syncthreads();
    }
    return parts[0];
}

// ---- NormRows: layer norm (centred) or rms norm of every row; one block a row.

extern "C" __global__ void norm_rows(const float* x, const float* w, const float* b, int width, float eps, int centred,
                                float* out) {
    const float* row = x + (i64)blockIdx.x * width;
    float mean = 0.0f;
    if (centred) {
        float sum = 0.0f;
        for (int i = threadIdx.x; i < width; i += blockDim.x) sum += row[i];
        mean = reduce<Add>(sum) / (float)width;
    }
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) squares += (row[i] - mean) * (row[i] - mean);
    float factor = 1.0f / sqrtf(reduce<Add>(squares) / (float)width + eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float y = (row[i] - mean) * factor * w[i];
        out[(i64)blockIdx.x * width + i] = b ? y + b[i] : y;
    }
}

// ---- SoftmaxRows: of scale · x + bias over every row; one block a row. Row r adds row r mod bias_rows of `bias`, which may be
// null.

extern "C" __global__ void softmax_rows(const float* x, const float* bias, int width, i64 bias_rows, float scale, float* out) {
    const float* row = x + (i64)blockIdx.x * width;
    const float* add = bias ? bias + (i64)blockIdx.x % bias_rows * width : 0;
    float* to = out + (i64)blockIdx.x * width;
    float top = -3.402823466e38f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float v = add ? row[i] * scale + add[i] : row[i] * scale;
        top = v > top ? v : top;
    }
    top = reduce<Max>(top);
    float sum = 0.0f;
    // A thread reads back only what it wrote itself.
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float v = add ? row[i] * scale + add[i] : row[i] * scale;
        float e = expf(v - top);
        to[i] = e;
        sum += e;
    }
    sum = reduce<Add>(sum);
    for (int i = threadIdx.x; i < width; i += blockDim.x) to[i] = to[i] / sum;
}

// ---- Int8: as the CPU's kernels have it. The _rn intrinsics keep products and sums from fusing, so that both round alike.

// `kernel::geometry::Code`, of codes 0..=255.
struct Code {
    float scale, inverse;
    int zero;
};

static __device__ __forceinline__ int code_of(float v, Code c) {
    // NaN becomes 0 by the first comparison, as on the CPU.
    float r = __fadd_rn(rintf(__fmul_rn(v, c.inverse)), (float)c.zero);
    r = r > 0.0f ? r : 0.0f;
    r = r < 255.0f ? r : 255.0f;
    return (int)r;
}

// Smallest and largest value, zero included, of `parts` parts of every row: pairs [rows, parts, 2]. One block a part.
extern "C" __global__ void ranges(const float* x, i64 width, int parts, float* out) {
    i64 row = blockIdx.x / parts;
    int part = blockIdx.x % parts;
    i64 each = (width + parts - 1) / parts;
    i64 from = part * each, to = from + each < width ? from + each : width;
    float lo = 0.0f, hi = 0.0f;
    for (i64 i = from + threadIdx.x; i < to; i += blockDim.x) {
        float v = x[row * width + i];
        lo = v < lo ? v : lo;
        hi = v > hi ? v : hi;
    }
    lo = reduce<Min>(lo);
    hi = reduce<Max>(hi);
    if (threadIdx.x == 0) {
        out[2 * (i64)blockIdx.x] = lo;
        out[2 * (i64)blockIdx.x + 1] = hi;
    }
}

// The code of every row from its parts' ranges.
extern "C" __global__ void codes(const float* ranges, int parts, i64 rows, Code* out) {
    EACH(row, rows) {
        float lo = 0.0f, hi = 0.0f;
        for (int p = 0; p < parts; p++) {
            float a = ranges[2 * (row * parts + p)], b = ranges[2 * (row * parts + p) + 1];
            lo = a < lo ? a : lo;
            hi = b > hi ? b : hi;
        }
        Code c = {1.0f, 1.0f, 0};
        float scale = __fdiv_rn(__fadd_rn(hi, -lo), 255.0f);
        if (!(scale < 1e-30f)) {
            c.scale = scale;
            c.inverse = __fdiv_rn(1.0f, scale);
            float zero = roundf(__fmul_rn(-lo, c.inverse));
            c.zero = (int)fminf(fmaxf(zero, 0.0f), 255.0f);
        }
        out[row] = c;
    }
}

// Rows [rows, k] as codes less 128, [rows, padded]; what is beyond k is 0. Row r has code r / rows_per_code.
extern "C" __global__ void quantize_rows(const float* x, const Code* codes, int k, int padded, i64 rows_per_code, i64 n,
                                         signed char* out) {
    EACH(i, n) {
        i64 row = i / padded;
        int at = (int)(i % padded);
        out[i] = at < k ? (signed char)(code_of(x[row * k + at], codes[row / rows_per_code]) - 128) : (signed char)0;
    }
}

// The windows of images [.., c, h, w] as rows [image · position, (c, ky, kx)] of codes less 128, padded as above; padding of
// the image has the code of zero. Row r has code r / rows_per_code. One thread makes four codes of one row, neighbours
// those of the next row, so that reads lie beside each other. `n` is rows · padded / 4.
extern "C" __global__ void quantize_windows(const float* x, const Code* codes, Geometry g, int padded, i64 rows,
                                            i64 rows_per_code, i64 n, signed char* out) {
    int k = g.c * g.kh * g.kw;
    EACH(i, n) {
        i64 row = i % rows;
        int first = (int)(i / rows) * 4;
        Code code = codes[row / rows_per_code];
        int ox = (int)(row % g.ow);
        i64 r = row / g.ow;
        int oy = (int)(r % g.oh);
        i64 image = r / g.oh;
        for (int at = first; at < first + 4; at++) {
            int q = 128;
            if (at < k) {
                int kx = at % g.kw, ky = at / g.kw % g.kh, c = at / (g.kw * g.kh);
                int iy = oy * g.sy + ky - g.py, ix = ox * g.sx + kx - g.px;
                bool inside = iy >= 0 && iy < g.h && ix >= 0 && ix < g.w;
                q = inside ? code_of(x[((image * g.c + c) * g.h + iy) * g.w + ix], code) : code.zero;
            }
            out[row * padded + at] = (signed char)(q - 128);
        }
    }
}

static __device__ __forceinline__ float dequantized(int sum, Code c, float factor, float bias, const float* residual,
                                                    i64 i, int act) {
    float v = __fadd_rn(__fmul_rn((float)sum, __fmul_rn(c.scale, factor)), bias);
    if (residual) v = __fadd_rn(v, residual[i]);
    return activate(v, act);
}

// Sums of products of codes less 128 to values [.., oc, inner]: output channel o of row r lies at o · o_step + r · r_step of
// `sums`, and the row of value i is its image's first row and its position.
extern "C" __global__ void dequantize(const int* sums, i64 o_step, i64 r_step, const Code* codes, const int* weight_sums,
                                      const float* factors, const float* bias, const float* residual, int oc, i64 inner,
                                      i64 rows_per_code, int act, i64 n, float* out) {
    EACH(i, n) {
        int o = (int)(i / inner % oc);
        i64 row = i / (inner * oc) * inner + i % inner;
        Code c = codes[row / rows_per_code];
        int sum = sums[o * o_step + row * r_step] - (c.zero - 128) * weight_sums[o];
        out[i] = dequantized(sum, c, factors[o], bias[o], residual, i, act);
    }
}

// A grouped convolution in int8, quantizing as it reads; `w` is [oc, c/groups, kh, kw]. Row r of the output's positions has
// code r / rows_per_code.
extern "C" __global__ void grouped_int8(const float* x, const signed char* w, const Code* codes, const float* factors,
                                        const float* bias, const float* residual, Geometry g, int oc, int groups,
                                        i64 rows_per_code, int act, i64 n, float* out) {
    int cg = g.c / groups, og = oc / groups;
    i64 inner = (i64)g.oh * g.ow;
    EACH(i, n) {
        int ox = (int)(i % g.ow), oy = (int)(i / g.ow % g.oh);
        int o = (int)(i / inner % oc);
        i64 image = i / (inner * oc);
        Code code = codes[(image * inner + i % inner) / rows_per_code];
        const signed char* tap = w + (i64)o * cg * g.kh * g.kw;
        int sum = 0;
        for (int c = 0; c < cg; c++) {
            const float* plane = x + (image * g.c + (o / og) * cg + c) * g.h * g.w;
            for (int ky = 0; ky < g.kh; ky++) {
                int iy = oy * g.sy + ky - g.py;
                for (int kx = 0; kx < g.kw; kx++, tap++) {
                    int ix = ox * g.sx + kx - g.px;
                    if (iy >= 0 && iy < g.h && ix >= 0 && ix < g.w) {
                        sum += (code_of(plane[(i64)iy * g.w + ix], code) - code.zero) * (int)*tap;
                    }
                }
            }
        }
        out[i] = dequantized(sum, code, factors[o], bias[o], residual, i, act);
    }
}

// ---- Fp8: activations and weights as 8-bit floats (E4M3), as the CPU rounds them. Products are cublasLt's.

struct Scale {
    float scale, inverse;
};

// To nearest, ties to even; beyond 448 it is 448, NaN stays NaN. In bits, which every device has, for the conversion that sm_89 brought.
static __device__ __forceinline__ unsigned fp8_code(float v) {
    unsigned sign = (__float_as_uint(v) >> 24) & 0x80u;
    float size = fabsf(v);
    if (!(size == size)) return sign | 0x7fu;
    size = fminf(size, 448.0f);
    // Below 2^-6 numbers lie 2^-9 apart.
    if (size < 0.015625f) return sign | (unsigned)rintf(__fmul_rn(size, 512.0f));
    unsigned bits = __float_as_uint(size);
    bits += 0x7ffffu + ((bits >> 20) & 1u);
    return sign | ((bits >> 20) - (120u << 3));
}

static __device__ __forceinline__ float fp8_value(unsigned code) {
    // The mantissa's and exponent's bits mean 2^120 times as much, below 2^-6 too; but for NaN.
    float size = __fmul_rn(__uint_as_float((code & 0x7fu) << 20), 1.329227995784916e36f);
    if ((code & 0x7fu) == 0x7fu) size = __uint_as_float(0x7fc00000u);
    return (code & 0x80u) ? -size : size;
}

// The scale of every row from its parts' ranges.
extern "C" __global__ void fp8_scales(const float* ranges, int parts, i64 rows, Scale* out) {
    EACH(row, rows) {
        float most = 0.0f;
        for (int p = 0; p < parts; p++) {
            float a = -ranges[2 * (row * parts + p)], b = ranges[2 * (row * parts + p) + 1];
            most = a > most ? a : most;
            most = b > most ? b : most;
        }
        Scale s = {__fdiv_rn(most, 448.0f), 1.0f};
        if (s.scale < 1e-30f) {
            s.scale = 1.0f;
        } else {
            s.inverse = __fdiv_rn(1.0f, s.scale);
        }
        out[row] = s;
    }
}

// As `quantize_rows` and `quantize_windows`: rows [rows, padded] of codes, zeros beyond k; row r has scale r / rows_per_scale.
extern "C" __global__ void fp8_rows(const float* x, const Scale* scales, int k, int padded, i64 rows_per_scale, i64 n,
                                    unsigned char* out) {
    EACH(i, n) {
        i64 row = i / padded;
        int at = (int)(i % padded);
        float inverse = scales[row / rows_per_scale].inverse;
        out[i] = at < k ? (unsigned char)fp8_code(__fmul_rn(x[row * k + at], inverse)) : (unsigned char)0;
    }
}

extern "C" __global__ void fp8_windows(const float* x, const Scale* scales, Geometry g, int padded, i64 rows,
                                       i64 rows_per_scale, i64 n, unsigned char* out) {
    int k = g.c * g.kh * g.kw;
    EACH(i, n) {
        i64 row = i % rows;
        int first = (int)(i / rows) * 4;
        float inverse = scales[row / rows_per_scale].inverse;
        int ox = (int)(row % g.ow);
        i64 r = row / g.ow;
        int oy = (int)(r % g.oh);
        i64 image = r / g.oh;
        for (int at = first; at < first + 4; at++) {
            unsigned code = 0;
            if (at < k) {
                int kx = at % g.kw, ky = at / g.kw % g.kh, c = at / (g.kw * g.kh);
                int iy = oy * g.sy + ky - g.py, ix = ox * g.sx + kx - g.px;
                bool inside = iy >= 0 && iy < g.h && ix >= 0 && ix < g.w;
                code = inside ? fp8_code(__fmul_rn(x[((image * g.c + c) * g.h + iy) * g.w + ix], inverse)) : 0u;
            }
            out[row * padded + at] = (unsigned char)code;
        }
    }
}

static __device__ __forceinline__ float fp8_scaled(float sum, float scale, float factor, float bias, const float* residual,
                                                   i64 i, int act) {
    float v = __fadd_rn(__fmul_rn(sum, __fmul_rn(scale, factor)), bias);
    if (residual) v = __fadd_rn(v, residual[i]);
    return activate(v, act);
}

// As `dequantize`, of sums in f32.
extern "C" __global__ void fp8_layer(const float* sums, i64 o_step, i64 r_step, const Scale* scales, const float* factors,
                                     const float* bias, const float* residual, int oc, i64 inner, i64 rows_per_scale,
                                     int act, i64 n, float* out) {
    EACH(i, n) {
        int o = (int)(i / inner % oc);
        i64 row = i / (inner * oc) * inner + i % inner;
        float scale = scales[row / rows_per_scale].scale;
        out[i] = fp8_scaled(sums[o * o_step + row * r_step], scale, factors[o], bias[o], residual, i, act);
    }
}

// A grouped convolution, rounding as it reads; `w` is [oc, c/groups, kh, kw] in codes.
extern "C" __global__ void fp8_grouped(const float* x, const unsigned char* w, const Scale* scales, const float* factors,
                                       const float* bias, const float* residual, Geometry g, int oc, int groups,
                                       i64 rows_per_scale, int act, i64 n, float* out) {
    int cg = g.c / groups, og = oc / groups;
    i64 inner = (i64)g.oh * g.ow;
    EACH(i, n) {
        int ox = (int)(i % g.ow), oy = (int)(i / g.ow % g.oh);
        int o = (int)(i / inner % oc);
        i64 image = i / (inner * oc);
        Scale s = scales[(image * inner + i % inner) / rows_per_scale];
        const unsigned char* tap = w + (i64)o * cg * g.kh * g.kw;
        float sum = 0.0f;
        for (int c = 0; c < cg; c++) {
            const float* plane = x + (image * g.c + (o / og) * cg + c) * g.h * g.w;
            for (int ky = 0; ky < g.kh; ky++) {
                int iy = oy * g.sy + ky - g.py;
                for (int kx = 0; kx < g.kw; kx++, tap++) {
                    int ix = ox * g.sx + kx - g.px;
                    if (iy >= 0 && iy < g.h && ix >= 0 && ix < g.w) {
                        float v = fp8_value(fp8_code(__fmul_rn(plane[(i64)iy * g.w + ix], s.inverse)));
                        sum = fmaf(v, fp8_value(*tap), sum);
                    }
                }
            }
        }
        out[i] = fp8_scaled(sum, s.scale, factors[o], bias[o], residual, i, act);
    }
}

// ---- Packed: layers whose weights are held in 8 or 4 bits and multiplied in f32.
//
// A row of weights (an output channel) is `words` words of 32 bits: four signed codes of 8 bits, or eight of 4 bits, each plus 8,
// low bits first; codes beyond k are zero. Weight i is its code times scale i / group of its row, rounded to f32: what the CPU
// unpacks, bit for bit. A group ends where a word does. Row r of x lies at r / inner, r % inner of [.., k, inner], and so does
// the row of the result in [.., oc, inner]: a linear has an inner of 1, images their positions.

template <int BITS>
static __device__ __forceinline__ float weight_code(unsigned word, int i) {
    // Exact: the code becomes the low bits of 2^23, which is taken off again with what codes are shifted by.
    unsigned code = BITS == 4 ? (word >> (4 * i)) & 15u : ((word >> (8 * i)) & 255u) ^ 128u;
    return __uint_as_float(0x4b000000u | code) - (BITS == 4 ? 8388616.0f : 8388736.0f);
}

static __device__ __forceinline__ float layer_value(float v, const float* factors, const float* bias, const float* residual,
                                                    int o, i64 at, int act) {
    if (factors) v *= factors[o];
    if (bias) v += bias[o];
    if (residual) v += residual[at];
    return activate(v, act);
}

// At most FEW rows: one warp sums CHANNELS output channels for all of them, so that every weight is read once.
//
// The limit is the memory: oc · k · BITS / 8 bytes of weights and 4 a scale, a quarter (8 bits) or an eighth (4 bits) of what f32
// reads; x and the result are k and oc numbers a row. With one row and 4 bits a weight costs five instructions (two to take it
// out, two to make it the weight, one fma): at 128 a clock and multiprocessor an H100 does 5.9e12 weights a second, 2.9e12 bytes, of
// the 3.35e12 that its memory gives; with 8 bits half as many instructions a byte. x is read once a block, from L2: k numbers for
// 16 · k weights. So 0.6 to 0.85 of the bandwidth is expected for large layers, less where oc / 16 blocks do not fill the device,
// and arithmetic in place of memory from about three rows on. Not measured on hardware.
#define FEW 8
#define FEW_WARPS 8
#define CHANNELS 2
#define CHUNK 128
template <int BITS>
static __device__ __forceinline__ void packed_few(const float* x, const unsigned* w, const float* scales, const float* factors,
                                                  const float* bias, const float* residual, int k, int words, int group,
                                                  int oc, i64 inner, int act, i64 rows, float* out) {
    const int codes = 32 / BITS;
    // Four columns more, so that neighbours in x go to different banks.
    __shared__ float xs[FEW][32 / BITS][CHUNK + 4];
    int lane = threadIdx.x % 32, groups = (k + group - 1) / group;
    int first_o = (int)(blockIdx.x * FEW_WARPS + threadIdx.x / 32) * CHANNELS;
    float sums[CHANNELS][FEW] = {};
    for (int first = 0; first < words; first += CHUNK) {
        __syncthreads();
        for (int i = threadIdx.x; i < (int)rows * CHUNK * codes; i += blockDim.x) {
            int r = i / (CHUNK * codes), at = i % (CHUNK * codes), c = first * codes + at;
            xs[r][at % codes][at / codes] = c < k ? x[(r / inner * k + c) * inner + r % inner] : 0.0f;
        }
        __syncthreads();
        for (int i = lane; i < CHUNK && first + i < words; i += 32) {
            unsigned word[CHANNELS];
            float scale[CHANNELS];
#pragma unroll
            for (int n = 0; n < CHANNELS; n++) {
                i64 o = first_o + n;
                bool there = o < oc;
                word[n] = there ? w[o * words + first + i] : 0u;
                scale[n] = there ? scales[o * groups + (first + i) * codes / group] : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < codes; j++) {
                float v[CHANNELS];
#pragma unroll
                for (int n = 0; n < CHANNELS; n++) v[n] = __fmul_rn(weight_code<BITS>(word[n], j), scale[n]);
#pragma unroll
                for (int r = 0; r < FEW; r++) {
                    if (r >= rows) continue;
                    float at = xs[r][j][i];
#pragma unroll
                    for (int n = 0; n < CHANNELS; n++) sums[n][r] = fmaf(v[n], at, sums[n][r]);
                }
            }
        }
    }
#pragma unroll
    for (int n = 0; n < CHANNELS; n++) {
        int o = first_o + n;
#pragma unroll
        for (int r = 0; r < FEW; r++) {
            float sum = sums[n][r];
            for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
            if (lane == 0 && o < oc && r < rows) {
                i64 at = (r / inner * oc + o) * inner + r % inner;
                out[at] = layer_value(sum, factors, bias, residual, o, at, act);
            }
        }
    }
}

// Any number of rows: a block of 64 threads makes TILE rows of TILE channels, DEPTH weights at a time, which it unpacks into
// shared memory; a thread sums 8 by 8 of them.
//
// The limit is the arithmetic, of f32 units: 2 · rows · oc · k operations. For 64 products a thread reads 16 numbers of shared
// memory, at a quarter of the products' rate, so that half of the device's f32 peak is the most, and cuBLAS's f32 product is
// faster where memory does not count. Weights are read once in 64 rows. Not measured on hardware.
#define TILE 64
#define DEPTH 16
#define SIDE 8
template <int BITS>
static __device__ __forceinline__ void packed_product(const float* x, const unsigned* w, const float* scales,
                                                      const float* factors, const float* bias, const float* residual, int k,
                                                      int words, int group, int oc, i64 inner, int act, i64 rows, float* out) {
    const int codes = 32 / BITS, parts = DEPTH / codes;
    __shared__ float xs[DEPTH][TILE + 1];
    __shared__ float ws[DEPTH][TILE + 1];
    int tiles = (oc + TILE - 1) / TILE, groups = (k + group - 1) / group, t = threadIdx.x;
    int first_o = (int)(blockIdx.x % tiles) * TILE;
    i64 first_row = (i64)(blockIdx.x / tiles) * TILE;
    // Neighbours read and write beside each other: along k and the channels of a linear, along the positions of images.
    bool linear = inner == 1;
    int r0 = linear ? t / SIDE : t % SIDE, o0 = linear ? t % SIDE : t / SIDE;
    i64 own = first_row + t, base = own / inner * k * inner + own % inner;
    float sums[SIDE][SIDE] = {};
    for (int from = 0; from < k; from += DEPTH) {
        for (int i = 0; i < TILE * DEPTH / 64; i++) {
            int r = linear ? 4 * i + t / DEPTH : t, d = linear ? t % DEPTH : i;
            bool there = first_row + r < rows && from + d < k;
            i64 at = linear ? (first_row + r) * k + from + d : base + (from + d) * inner;
            xs[d][r] = there ? x[at] : 0.0f;
        }
        for (int i = t; i < TILE * parts; i += 64) {
            int o = i / parts, d = i % parts * codes;
            bool there = first_o + o < oc && from + d < k;
            unsigned word = there ? w[(i64)(first_o + o) * words + (from + d) / codes] : 0u;
            float scale = there ? scales[(i64)(first_o + o) * groups + (from + d) / group] : 0.0f;
            for (int j = 0; j < codes; j++) ws[d + j][o] = __fmul_rn(weight_code<BITS>(word, j), scale);
        }
        __syncthreads();
        for (int d = 0; d < DEPTH; d++) {
            float a[SIDE], b[SIDE];
#pragma unroll
            for (int i = 0; i < SIDE; i++) {
                a[i] = xs[d][r0 + SIDE * i];
                b[i] = ws[d][o0 + SIDE * i];
            }
#pragma unroll
            for (int i = 0; i < SIDE; i++) {
#pragma unroll
                for (int j = 0; j < SIDE; j++) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        i64 row = first_row + r0 + SIDE * i;
        if (row >= rows) continue;
        i64 image = row / inner, place = row % inner;
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            int o = first_o + o0 + SIDE * j;
            if (o >= oc) continue;
            i64 at = (image * oc + o) * inner + place;
            out[at] = layer_value(sums[i][j], factors, bias, residual, o, at, act);
        }
    }
}

// A convolution with groups, one thread an output value; a row of weights takes `stride` bytes.
template <int BITS>
static __device__ __forceinline__ void packed_grouped(const float* x, const unsigned char* w, const float* scales,
                                                      const float* factors, const float* bias, const float* residual,
                                                      Geometry g, int oc, int groups, int stride, int group, int act, i64 n,
                                                      float* out) {
    int cg = g.c / groups, og = oc / groups, k = cg * g.kh * g.kw, each = (k + group - 1) / group;
    EACH(i, n) {
        int ox = (int)(i % g.ow);
        i64 r = i / g.ow;
        int oy = (int)(r % g.oh);
        r /= g.oh;
        int o = (int)(r % oc);
        i64 image = r / oc;
        const unsigned char* row = w + (i64)o * stride;
        float sum = 0.0f;
        int tap = 0;
        for (int c = 0; c < cg; c++) {
            const float* plane = x + (image * g.c + (o / og) * cg + c) * g.h * g.w;
            for (int ky = 0; ky < g.kh; ky++) {
                int iy = oy * g.sy + ky - g.py;
                for (int kx = 0; kx < g.kw; kx++, tap++) {
                    int ix = ox * g.sx + kx - g.px;
                    if (iy >= 0 && iy < g.h && ix >= 0 && ix < g.w) {
                        unsigned byte = BITS == 4 ? row[tap / 2] >> (4 * (tap % 2)) : row[tap];
                        float v = __fmul_rn(weight_code<BITS>(byte, 0), scales[(i64)o * each + tap / group]);
                        sum = fmaf(plane[(i64)iy * g.w + ix], v, sum);
                    }
                }
            }
        }
        out[i] = layer_value(sum, factors, bias, residual, o, i, act);
    }
}

#define MAKE(BITS)                                                                                                          \
    extern "C" __global__ void packed##BITS##_few(const float* x, const unsigned* w, const float* scales,                   \
                                                  const float* factors, const float* bias, const float* residual, int k,    \
                                                  int words, int group, int oc, i64 inner, int act, i64 rows, float* out) { \
        packed_few<BITS>(x, w, scales, factors, bias, residual, k, words, group, oc, inner, act, rows, out);                \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(64)                                                                        \
        packed##BITS##_product(const float* x, const unsigned* w, const float* scales, const float* factors,                \
                               const float* bias, const float* residual, int k, int words, int group, int oc, i64 inner,    \
                               int act, i64 rows, float* out) {                                                             \
        packed_product<BITS>(x, w, scales, factors, bias, residual, k, words, group, oc, inner, act, rows, out);            \
    }                                                                                                                       \
    extern "C" __global__ void packed##BITS##_grouped(const float* x, const unsigned char* w, const float* scales,          \
                                                      const float* factors, const float* bias, const float* residual,       \
                                                      Geometry g, int oc, int groups, int stride, int group, int act,       \
                                                      i64 n, float* out) {                                                  \
        packed_grouped<BITS>(x, w, scales, factors, bias, residual, g, oc, groups, stride, group, act, n, out);             \
    }
MAKE(8)
MAKE(4)
#undef MAKE
