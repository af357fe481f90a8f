// Layers in signed bytes and in 8-bit floats: what is around the products, which are cublasLt's.

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

static __device__ __forceinline__ Code code_of_range(float lo, float hi) {
    Code c = {1.0f, 1.0f, 0};
    float scale = __fdiv_rn(__fadd_rn(hi, -lo), 255.0f);
    if (!(scale < 1e-30f)) {
        c.scale = scale;
        c.inverse = __fdiv_rn(1.0f, scale);
        float zero = roundf(__fmul_rn(-lo, c.inverse));
        c.zero = (int)fminf(fmaxf(zero, 0.0f), 255.0f);
    }
    return c;
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
        out[row] = code_of_range(lo, hi);
    }
}

// Rows [rows, k] as codes less 128, [rows, padded]; what is beyond k is 0. Row r has code r / rows_per_code.
extern "C" __global__ void quantize_rows(const float* x, const Code* codes, int k, int padded, i64 rows_per_code, i64 n,
                                         signed char* out) {
    int each = padded % 4 == 0 && fourfold(out) ? 4 : 1;
    bool four = each == 4 && k % 4 == 0 && fourfold(x);
    EACH(part, n / each) {
        i64 row = part;
        int at = taken(row, padded / each) * each;
        Code code = codes[quotient(row, rows_per_code)];
        Four<float> in = {};
        const float* from = x + row * k + at;
        if (four && at < k) in = four_at(from);
        else
            for (int j = 0; j < each; j++) in.v[j] = at + j < k ? from[j] : 0.0f;
        Four<signed char> made;
#pragma unroll
        for (int j = 0; j < 4; j++) made.v[j] = at + j < k ? (signed char)(code_of(in.v[j], code) - 128) : (signed char)0;
        if (each == 4) *(Four<signed char>*)(out + 4 * part) = made;
        else out[part] = made.v[0];
    }
}

// The code of every row of [rows, k] and the row in it, as `ranges`, `codes` and `quantize_rows` make them; one block a row. `padded`
// is whole fours.
extern "C" __global__ void quantize_each(const float* x, int k, int padded, signed char* out, Code* codes) {
    const float* row = x + (i64)blockIdx.x * k;
    float lo = 0.0f, hi = 0.0f;
    for (int i = threadIdx.x; i < k; i += blockDim.x) {
        float v = row[i];
        lo = v < lo ? v : lo;
        hi = v > hi ? v : hi;
    }
    lo = reduce<Min>(lo);
    hi = reduce<Max>(hi);
    Code code = code_of_range(lo, hi);
    if (threadIdx.x == 0) codes[blockIdx.x] = code;
    for (int i = threadIdx.x; i < padded / 4; i += blockDim.x) {
        Four<signed char> made;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int at = 4 * i + j;
            made.v[j] = at < k ? (signed char)(code_of(row[at], code) - 128) : (signed char)0;
        }
        *(Four<signed char>*)(out + (i64)blockIdx.x * padded + 4 * i) = made;
    }
}

// Sixteen codes that lie together: what `padded` is whole multiples of.
struct alignas(16) Codes16 {
    unsigned char v[16];
};

// Calls `f` with the place in x of each of sixteen values from `first` on of row `row` of the windows of images [.., c, h, w], and
// -1 where there is none: -2 beyond the k values of a row.
template <class F>
static __device__ __forceinline__ void sixteen(Geometry g, i64 row, int first, F f) {
    int ox = taken(row, g.ow), oy = taken(row, g.oh);
    // row is the image now.
    int taps = g.kw * g.kh, c = first / taps, tap = first - c * taps, ky = tap / g.kw, kx = tap - ky * g.kw;
    int top = oy * g.sy - g.py, left = ox * g.sx - g.px;
#pragma unroll
    for (int j = 0; j < 16; j++) {
        int iy = top + ky, ix = left + kx;
        bool inside = iy >= 0 && iy < g.h && ix >= 0 && ix < g.w;
        f(j, c >= g.c ? -2 : inside ? ((row * g.c + c) * g.h + iy) * g.w + ix : -1);
        if (++kx == g.kw) {
            kx = 0;
            if (++ky == g.kh) ky = 0, c++;
        }
    }
}

// The windows of images [.., c, h, w] as rows [image · position, (c, ky, kx)] of codes less 128, padded as above; padding of
// the image has the code of zero. Row r has code r / rows_per_code. One thread makes sixteen codes of one row, neighbours
// those of the next row, so that reads lie beside each other. `n` is padded / 16 times the rows of `out`, of which those from
// `rows` on are zeros.
extern "C" __global__ void quantize_windows(const float* x, const Code* codes, Geometry g, int padded, i64 rows, i64 all,
                                            i64 rows_per_code, i64 n, signed char* out) {
    EACH(i, n) {
        i64 block = i, row;
        row = taken(block, all);
        Codes16 made = {};
        if (row < rows) {
            Code code = codes[quotient(row, rows_per_code)];
            sixteen(g, row, (int)block * 16, [&](int j, i64 at) {
                int q = at >= 0 ? code_of(x[at], code) : at == -1 ? code.zero : 128;
                made.v[j] = (unsigned char)(q - 128);
            });
        }
        *(Codes16*)(out + row * padded + block * 16) = made;
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
    // Of a linear: four channels of a row at once.
    if (inner == 1 && o_step == 1 && oc % 4 == 0 && r_step % 4 == 0 && fourfold(sums) && fourfold(out) && fourfold(residual)) {
        EACH(part, n / 4) {
            i64 row = part;
            int o = taken(row, oc / 4) * 4;
            Code c = codes[quotient(row, rows_per_code)];
            Four<int> in = four_at(sums + row * r_step + o);
            Four<float> made;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int sum = in.v[j] - (c.zero - 128) * weight_sums[o + j];
                made.v[j] = dequantized(sum, c, factors[o + j], bias[o + j], residual, 4 * part + j, act);
            }
            *(Four<float>*)(out + 4 * part) = made;
        }
        return;
    }
    EACH(i, n) {
        i64 image = i, at = taken(image, inner);
        int o = taken(image, oc);
        i64 row = image * inner + at;
        Code c = codes[quotient(row, rows_per_code)];
        int sum = sums[o * o_step + row * r_step] - (c.zero - 128) * weight_sums[o];
        out[i] = dequantized(sum, c, factors[o], bias[o], residual, i, act);
    }
}

// A grouped convolution in int8, quantizing as it reads; `w` is [oc, c/groups, kh, kw]. Row r of the output's positions has
// code r / rows_per_code.
extern "C" __global__ void grouped_int8(const float* x, const signed char* w, const Code* codes, const float* factors,
                                        const float* bias, const float* residual, Geometry g, int oc, int groups,
                                        i64 rows_per_code, int act, i64 n, float* out) {
    i64 inner = (i64)g.oh * g.ow, each = (i64)(g.c / groups) * g.kh * g.kw;
    EACH(i, n) {
        i64 image = i;
        int ox = taken(image, g.ow), oy = taken(image, g.oh), o = taken(image, oc);
        Code code = codes[quotient(image * inner + oy * g.ow + ox, rows_per_code)];
        const signed char* taps = w + o * each;
        int sum = 0;
        in_group(g, image, oc, groups, o, oy, ox, [&](i64 at, int tap) { sum += (code_of(x[at], code) - code.zero) * (int)taps[tap]; });
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
    int each = padded % 4 == 0 && fourfold(out) ? 4 : 1;
    EACH(part, n / each) {
        i64 row = part;
        int at = taken(row, padded / each) * each;
        float inverse = scales[quotient(row, rows_per_scale)].inverse;
        Four<unsigned char> made = {};
        for (int j = 0; j < each; j++) {
            if (at + j < k) made.v[j] = (unsigned char)fp8_code(__fmul_rn(x[row * k + at + j], inverse));
        }
        if (each == 4) *(Four<unsigned char>*)(out + 4 * part) = made;
        else out[part] = made.v[0];
    }
}

extern "C" __global__ void fp8_windows(const float* x, const Scale* scales, Geometry g, int padded, i64 rows, i64 all,
                                       i64 rows_per_scale, i64 n, unsigned char* out) {
    EACH(i, n) {
        i64 block = i, row;
        row = taken(block, all);
        Codes16 made = {};
        if (row < rows) {
            float inverse = scales[quotient(row, rows_per_scale)].inverse;
            sixteen(g, row, (int)block * 16, [&](int j, i64 at) {
                made.v[j] = at >= 0 ? (unsigned char)fp8_code(__fmul_rn(x[at], inverse)) : (unsigned char)0;
            });
        }
        *(Codes16*)(out + row * padded + block * 16) = made;
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
        i64 image = i, at = taken(image, inner);
        int o = taken(image, oc);
        i64 row = image * inner + at;
        float scale = scales[quotient(row, rows_per_scale)].scale;
        out[i] = fp8_scaled(sums[o * o_step + row * r_step], scale, factors[o], bias[o], residual, i, act);
    }
}

// A grouped convolution, rounding as it reads; `w` is [oc, c/groups, kh, kw] in codes.
extern "C" __global__ void fp8_grouped(const float* x, const unsigned char* w, const Scale* scales, const float* factors,
                                       const float* bias, const float* residual, Geometry g, int oc, int groups,
                                       i64 rows_per_scale, int act, i64 n, float* out) {
    i64 inner = (i64)g.oh * g.ow, each = (i64)(g.c / groups) * g.kh * g.kw;
    EACH(i, n) {
        i64 image = i;
        int ox = taken(image, g.ow), oy = taken(image, g.oh), o = taken(image, oc);
        Scale s = scales[quotient(image * inner + oy * g.ow + ox, rows_per_scale)];
        const unsigned char* taps = w + o * each;
        float sum = 0.0f;
        in_group(g, image, oc, groups, o, oy, ox, [&](i64 at, int tap) {
            sum = fmaf(fp8_value(fp8_code(__fmul_rn(x[at], s.inverse))), fp8_value(taps[tap]), sum);
        });
        out[i] = fp8_scaled(sum, s.scale, factors[o], bias[o], residual, i, act);
    }
}
