// Kernels on floats that go over elements: unfolding, grouped and depthwise convolutions, epilogues and pooling.

// ---- Unfold: [n, c, h, w] to [n, c·kh·kw, oh·ow].

template <class T>
static __device__ __forceinline__ void unfold(const T* x, Geometry g, i64 n, T* out) {
    // Four neighbours of a row at once, where rows are whole fours.
    int each = g.ow % 4 == 0 && fourfold(out) ? 4 : 1;
    EACH(part, n / each) {
        i64 r = part;
        int ox = taken(r, g.ow / each) * each, oy = taken(r, g.oh), kx = taken(r, g.kw), ky = taken(r, g.kh);
        // r is image · c + channel.
        int iy = oy * g.sy + ky - g.py;
        bool row = iy >= 0 && iy < g.h;
        const T* from = x + (r * g.h + iy) * g.w;
        Four<T> made;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int ix = (ox + j) * g.sx + kx - g.px;
            bool inside = row && ix >= 0 && ix < g.w && j < each;
            if (inside) made.v[j] = from[ix];
            else put(&made.v[j], 0.0f);
        }
        if (each == 4) *(Four<T>*)(out + 4 * part) = made;
        else out[part] = made.v[0];
    }
}
#define MAKE(T, N) \
    extern "C" __global__ void unfold_##N(const T* x, Geometry g, i64 n, T* out) { unfold(x, g, n, out); }
EACH_TYPE(MAKE)
#undef MAKE

// ---- Grouped: a convolution with groups, one thread an output value. `w` is [oc, c/groups, kh, kw].

template <class T>
static __device__ __forceinline__ void grouped(const T* x, const T* w, Geometry g, int oc, int groups, i64 n, T* out) {
    i64 each = (i64)(g.c / groups) * g.kh * g.kw;
    EACH(i, n) {
        i64 image = i;
        int ox = taken(image, g.ow), oy = taken(image, g.oh), o = taken(image, oc);
        const T* taps = w + o * each;
        float sum = 0.0f;
        in_group(g, image, oc, groups, o, oy, ox, [&](i64 at, int tap) { sum = fmaf(get(x[at]), get(taps[tap]), sum); });
        put(out + i, sum);
    }
}
#define MAKE(T, N)                                                                                                     \
    extern "C" __global__ void grouped_##N(const T* x, const T* w, Geometry g, int oc, int groups, i64 n, T* out) { \
        grouped(x, w, g, oc, groups, n, out);                                                                          \
    }
EACH_TYPE(MAKE)
#undef MAKE

// A convolution of every channel on its own; a thread makes four neighbours of a row, which read each value of the input's row
// once. KW and SX, the kernel's width and the step along rows, are known when this is compiled: all of it stays in registers.
// `ow` is whole fours.
template <class T, int KW, int SX>
static __device__ __forceinline__ void depthwise(const T* x, const T* w, Geometry g, i64 n, T* out) {
    EACH(part, n / 4) {
        i64 plane = part;
        int ox = taken(plane, g.ow / 4) * 4, oy = taken(plane, g.oh);
        i64 image = plane;
        const T* tap = w + (i64)taken(image, g.c) * g.kh * KW;
        int left = ox * SX - g.px;
        float sums[4] = {};
        for (int ky = 0; ky < g.kh; ky++, tap += KW) {
            int iy = oy * g.sy + ky - g.py;
            if (iy < 0 || iy >= g.h) continue;
            const T* row = x + (plane * g.h + iy) * g.w;
            float under[3 * SX + KW];
#pragma unroll
            for (int j = 0; j < 3 * SX + KW; j++) {
                int ix = left + j;
                under[j] = ix >= 0 && ix < g.w ? get(row[ix]) : 0.0f;
            }
#pragma unroll
            for (int kx = 0; kx < KW; kx++) {
                float v = get(tap[kx]);
#pragma unroll
                for (int j = 0; j < 4; j++) sums[j] = fmaf(under[j * SX + kx], v, sums[j]);
            }
        }
        Four<T> made;
#pragma unroll
        for (int j = 0; j < 4; j++) put(&made.v[j], sums[j]);
        *(Four<T>*)(out + 4 * part) = made;
    }
}
#define MAKE_WINDOW(T, N, KW, SX)                                                                                       \
    extern "C" __global__ void depthwise##KW##_##SX##_##N(const T* x, const T* w, Geometry g, i64 n, T* out) {          \
        depthwise<T, KW, SX>(x, w, g, n, out);                                                                          \
    }
#define MAKE(T, N) \
    MAKE_WINDOW(T, N, 3, 1) MAKE_WINDOW(T, N, 3, 2) MAKE_WINDOW(T, N, 5, 1) MAKE_WINDOW(T, N, 5, 2) MAKE_WINDOW(T, N, 7, 1)
EACH_TYPE(MAKE)
#undef MAKE
#undef MAKE_WINDOW

// ---- Epilogue: act(y · scale[c] + bias[c] + residual) with c = i / inner mod channels; null stands for 1, 0 and 0.

template <class Y, class R, class O>
static __device__ __forceinline__ void epilogue(const Y* y, const float* scale, const float* bias, const R* residual,
                                                int channels, i64 inner, int act, i64 n, O* out) {
    auto one = [=](float v, int c, float more) {
        if (scale) v *= scale[c];
        if (bias) v += bias[c];
        return activate(residual ? v + more : v, act);
    };
    // Four of one channel, or of four beside each other.
    bool beside = inner == 1 && channels % 4 == 0;
    if ((beside || inner % 4 == 0) && n % 4 == 0 && fourfold(y) && fourfold(out) && fourfold(residual)) {
        EACH(part, n / 4) {
            i64 row = 4 * part;
            if (inner > 1) row = quotient(row, inner);
            int c = taken(row, channels);
            Four<Y> in = four_at(y + 4 * part);
            Four<R> more;
            if (residual) more = four_at(residual + 4 * part);
            Four<O> made;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float add = residual ? get(more.v[j]) : 0.0f;
                put(&made.v[j], one(get(in.v[j]), beside ? c + j : c, add));
            }
            *(Four<O>*)(out + 4 * part) = made;
        }
        return;
    }
    EACH(i, n) {
        i64 row = quotient(i, inner);
        int c = taken(row, channels);
        put(out + i, one(get(y[i]), c, residual ? get(residual[i]) : 0.0f));
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
        i64 r = i;
        int ox = taken(r, g.ow), oy = taken(r, g.oh);
        const T* plane = x + r * g.h * g.w;
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
