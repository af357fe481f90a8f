// Kernels on floats that go over rows: norms, softmax, heads apart and together, rotation.

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

// ---- NormChannels: layer or rms norm over the channels of every position of [n, c, inner]; a block makes 32 positions beside each
// other of one image, eight threads to a position. `blocks` is those of an image.

extern "C" __global__ void norm_channels(const float* x, const float* w, const float* b, int c, i64 inner, int blocks, float eps,
                                         int centred, float* out) {
    __shared__ float parts[8][32];
    int column = threadIdx.x % 32, part = threadIdx.x / 32;
    i64 at = (i64)(blockIdx.x % blocks) * 32 + column;
    bool there = at < inner;
    i64 first = (i64)(blockIdx.x / blocks) * c * inner + at;
    float mean = 0.0f, squares = 0.0f;
    for (int pass = centred ? 0 : 1; pass < 2; pass++) {
        float sum = 0.0f;
        for (int i = part; there && i < c; i += 8) {
            float v = x[first + i * inner] - mean;
            sum += pass ? v * v : v;
        }
        __syncthreads();
        parts[part][column] = sum;
        __syncthreads();
        sum = 0.0f;
        for (int i = 0; i < 8; i++) sum += parts[i][column];
        if (pass) squares = sum / (float)c;
        else mean = sum / (float)c;
    }
    float factor = 1.0f / sqrtf(squares + eps);
    for (int i = part; there && i < c; i += 8) {
        float y = (x[first + i * inner] - mean) * factor * w[i];
        out[first + i * inner] = b ? y + b[i] : y;
    }
}

// ---- SoftmaxRows: of scale · x + bias over every row; one block a row. Row r adds row r mod bias_rows of `bias`, which may be
// null, and is of token r mod tokens, which stands at place `width - tokens + token` and sees from `before` before it to `after`
// behind it; what it does not see weighs nothing. Where `cap` is above 0, scores are capped at it: cap · tanh(s / cap).

#define WARP_ROWS 8
#define WARP_WIDTH 512
template <class F>
static __device__ __forceinline__ float warp_reduce(float v) {
#pragma unroll
    for (int by = 16; by > 0; by /= 2) v = F::of(v, __shfl_xor_sync(0xffffffffu, v, by));
    return v;
}

// Rows of at most WARP_WIDTH values: a warp makes one, which stays in its registers; a block makes WARP_ROWS.
template <class T>
static __device__ __forceinline__ void softmax_warp(const T* x, const float* bias, int width, i64 bias_rows, float scale, float cap,
                                                    int tokens, int before, int after, i64 rows, T* out) {
    i64 row = (i64)blockIdx.x * WARP_ROWS + threadIdx.x / 32;
    // Beyond the last row its warp does it once more: all of a block have to be there.
    row = row < rows ? row : rows - 1;
    int lane = threadIdx.x % 32;
    i64 of = row;
    int place = width - tokens + taken(of, tokens);
    int from = place > before ? place - before : 0;
    int end = width - 1 - place > after ? place + after + 1 : width;
    const float* add = 0;
    if (bias) {
        of = row;
        add = bias + (i64)taken(of, bias_rows) * width;
    }
    float v[WARP_WIDTH / 32];
    float top = -3.402823466e38f;
#pragma unroll
    for (int j = 0; j < WARP_WIDTH / 32; j++) {
        int i = lane + 32 * j;
        if (i < from || i >= end) continue;
        v[j] = get(x[row * width + i]) * scale;
        if (cap > 0.0f) v[j] = cap * tanhf(v[j] / cap);
        if (add) v[j] += add[i];
        top = v[j] > top ? v[j] : top;
    }
    top = warp_reduce<Max>(top);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < WARP_WIDTH / 32; j++) {
        int i = lane + 32 * j;
        if (i < from || i >= end) continue;
        v[j] = expf(v[j] - top);
        sum += v[j];
    }
    float whole = 1.0f / warp_reduce<Add>(sum);
#pragma unroll
    for (int j = 0; j < WARP_WIDTH / 32; j++) {
        int i = lane + 32 * j;
        if (i < width) put(out + row * width + i, i >= from && i < end ? v[j] * whole : 0.0f);
    }
}

template <class T>
static __device__ __forceinline__ void softmax_row(const T* x, const float* bias, int width, i64 bias_rows, float scale, float cap,
                                                   int tokens, int before, int after, T* out) {
    const T* row = x + (i64)blockIdx.x * width;
    const float* add = bias ? bias + (i64)blockIdx.x % bias_rows * width : 0;
    T* to = out + (i64)blockIdx.x * width;
    int place = width - tokens + (int)((unsigned)blockIdx.x % (unsigned)tokens);
    int from = place > before ? place - before : 0;
    int end = width - 1 - place > after ? place + after + 1 : width;
    auto score = [=](int i) {
        float v = get(row[i]) * scale;
        if (cap > 0.0f) v = cap * tanhf(v / cap);
        return add ? v + add[i] : v;
    };
    float top = -3.402823466e38f;
    for (int i = from + threadIdx.x; i < end; i += blockDim.x) {
        float v = score(i);
        top = v > top ? v : top;
    }
    top = reduce<Max>(top);
    float sum = 0.0f;
    for (int i = from + threadIdx.x; i < end; i += blockDim.x) sum += expf(score(i) - top);
    float whole = 1.0f / reduce<Add>(sum);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        put(to + i, i >= from && i < end ? expf(score(i) - top) * whole : 0.0f);
    }
}
#define MAKE(T, N)                                                                                                            \
    extern "C" __global__ void softmax_rows_##N(const T* x, const float* bias, int width, i64 bias_rows, float scale,         \
                                                float cap, int tokens, int before, int after, T* out) {                       \
        softmax_row(x, bias, width, bias_rows, scale, cap, tokens, before, after, out);                                       \
    }                                                                                                                         \
    extern "C" __global__ void softmax_warps_##N(const T* x, const float* bias, int width, i64 bias_rows, float scale,        \
                                                 float cap, int tokens, int before, int after, i64 rows, T* out) {            \
        softmax_warp(x, bias, width, bias_rows, scale, cap, tokens, before, after, rows, out);                                \
    }
MAKE(float, f32)
MAKE(f16, f16)
#undef MAKE

// ---- Heads: values `at` to `at + heads · dim` of every token of [n, tokens, width], times `scale`, as [n, heads, tokens, dim]; and
// back, where `width` is heads · dim, `at` 0 and the scale 1. `dim`, `at` and `width` are whole multiples of `each`, 1 or 4, and so
// are the addresses.

template <class T>
static __device__ __forceinline__ void heads_apart(const T* x, int tokens, int width, int at, int heads, int dim, int each,
                                                   float scale, i64 n, T* out) {
    EACH(part, n / each) {
        i64 image = part;
        int d = taken(image, dim / each) * each, token = taken(image, tokens), head = taken(image, heads);
        const T* from = x + (image * tokens + token) * width + at + head * dim + d;
        if (each == 4) {
            Four<T> v = four_at(from);
            if (scale != 1.0f) {
                for (int j = 0; j < 4; j++) put(&v.v[j], get(v.v[j]) * scale);
            }
            *(Four<T>*)(out + 4 * part) = v;
        } else {
            put(out + part, scale == 1.0f ? get(*from) : get(*from) * scale);
        }
    }
}

template <class T>
static __device__ __forceinline__ void heads_together(const T* x, int tokens, int heads, int dim, int each, i64 n, T* out) {
    EACH(part, n / each) {
        i64 image = part;
        int d = taken(image, dim / each) * each, head = taken(image, heads), token = taken(image, tokens);
        const T* from = x + ((image * heads + head) * tokens + token) * dim + d;
        if (each == 4) *(Four<T>*)(out + 4 * part) = four_at(from);
        else out[part] = *from;
    }
}
#define MAKE(T, N)                                                                                                          \
    extern "C" __global__ void heads_apart_##N(const T* x, int tokens, int width, int at, int heads, int dim, int each,     \
                                               float scale, i64 n, T* out) {                                                \
        heads_apart(x, tokens, width, at, heads, dim, each, scale, n, out);                                                 \
    }                                                                                                                       \
    extern "C" __global__ void heads_together_##N(const T* x, int tokens, int heads, int dim, int each, i64 n, T* out) {    \
        heads_together(x, tokens, heads, dim, each, n, out);                                                                \
    }
MAKE(float, f32)
MAKE(f16, f16)
#undef MAKE

// ---- Rotate: the first `turned` values of every head of [n, tokens, heads · dim] by the angles of their token, whose cosines and
// sines are [tokens, turned / 2]. Pairs are half of the turned values apart, or neighbours.

extern "C" __global__ void rotate(const float* x, const float* cosines, const float* sines, int width, int dim, int turned,
                                  int neighbours, int tokens, i64 n, float* out) {
    int half = turned / 2;
    EACH(i, n) {
        i64 token = i;
        int at = taken(token, width) % dim;
        token = taken(token, tokens);
        if (at >= turned) {
            out[i] = x[i];
            continue;
        }
        bool second = neighbours ? at % 2 : at >= half;
        int pair = neighbours ? at / 2 : second ? at - half : at;
        int apart = neighbours ? 1 : half;
        float c = cosines[token * half + pair], s = sines[token * half + pair];
        out[i] = second ? x[i] * c + x[i - apart] * s : x[i] * c - x[i + apart] * s;
    }
}
