// Layers whose weights are held in 4 or 8 bits.

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
// and arithmetic in place of memory from about three rows on. Measured on an H100 (2026-11-26): one row of a layer of 4096 by 11008 in
// w4g32 takes 55 µs, 28 MB at 0.5 TB/s, as long as cuBLAS's f16 product of 90 MB (51 µs): a fifth of what is expected.
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
    // Where each row begins.
    __shared__ i64 begins[FEW];
    if (threadIdx.x < rows) {
        i64 image = threadIdx.x;
        int place = taken(image, inner);
        begins[threadIdx.x] = image * k * inner + place;
    }
    int lane = threadIdx.x % 32, groups = (k + group - 1) / group;
    // Words of a group, as a shift where that is one.
    int each = group / codes, shift = 0;
    while ((1 << shift) < each) shift++;
    bool shifts = (1 << shift) == each && group % codes == 0;
    int first_o = (int)(blockIdx.x * FEW_WARPS + threadIdx.x / 32) * CHANNELS;
    float sums[CHANNELS][FEW] = {};
    for (int first = 0; first < words; first += CHUNK) {
        __syncthreads();
        for (int i = threadIdx.x; i < (int)rows * CHUNK * codes; i += blockDim.x) {
            int r = i / (CHUNK * codes), at = i % (CHUNK * codes), c = first * codes + at;
            xs[r][at % codes][at / codes] = c < k ? x[begins[r] + c * inner] : 0.0f;
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
                int of = shifts ? (first + i) >> shift : (first + i) * codes / group;
                scale[n] = there ? scales[o * groups + of] : 0.0f;
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

// The weights themselves, [oc, k]: what a library's product of more rows than FEW reads. It costs a write and a read of them in f32
// beside the product's own arithmetic, which is more from some tens of rows on.
template <int BITS>
static __device__ __forceinline__ void unpacked(const float* scales, const unsigned* w, int k, int words, int group, i64 n,
                                                float* out) {
    const int codes = 32 / BITS;
    int groups = (k + group - 1) / group;
    // A word at once, where rows are whole words and lie as their stores want them.
    if (k % codes == 0 && group % codes == 0 && fourfold(out)) {
        EACH(part, n / codes) {
            i64 o = part;
            int word = taken(o, words);
            unsigned held = w[o * words + word];
            float scale = scales[o * groups + word * codes / group];
#pragma unroll
            for (int j = 0; j < codes; j += 4) {
                Four<float> made;
#pragma unroll
                for (int i = 0; i < 4; i++) made.v[i] = __fmul_rn(weight_code<BITS>(held, j + i), scale);
                *(Four<float>*)(out + part * codes + j) = made;
            }
        }
        return;
    }
    EACH(i, n) {
        i64 o = i;
        int at = taken(o, k);
        out[i] = __fmul_rn(weight_code<BITS>(w[o * words + at / codes], at % codes), scales[o * groups + at / group]);
    }
}

// A convolution with groups, one thread an output value; a row of weights takes `stride` bytes.
template <int BITS>
static __device__ __forceinline__ void packed_grouped(const float* x, const unsigned char* w, const float* scales,
                                                      const float* factors, const float* bias, const float* residual,
                                                      Geometry g, int oc, int groups, int stride, int group, int act, i64 n,
                                                      float* out) {
    int k = g.c / groups * g.kh * g.kw, each = (k + group - 1) / group;
    EACH(i, n) {
        i64 image = i;
        int ox = taken(image, g.ow), oy = taken(image, g.oh), o = taken(image, oc);
        const unsigned char* row = w + (i64)o * stride;
        float sum = 0.0f;
        in_group(g, image, oc, groups, o, oy, ox, [&](i64 at, int tap) {
            unsigned byte = BITS == 4 ? row[tap / 2] >> (4 * (tap % 2)) : row[tap];
            float v = __fmul_rn(weight_code<BITS>(byte, 0), scales[(i64)o * each + tap / group]);
            sum = fmaf(x[at], v, sum);
        });
        out[i] = layer_value(sum, factors, bias, residual, o, i, act);
    }
}

#define MAKE(BITS)                                                                                                          \
    extern "C" __global__ void packed##BITS##_few(const float* x, const unsigned* w, const float* scales,                   \
                                                  const float* factors, const float* bias, const float* residual, int k,    \
                                                  int words, int group, int oc, i64 inner, int act, i64 rows, float* out) { \
        packed_few<BITS>(x, w, scales, factors, bias, residual, k, words, group, oc, inner, act, rows, out);                \
    }                                                                                                                       \
    extern "C" __global__ void packed##BITS##_unpacked(const float* scales, const unsigned* w, int k, int words, int group, i64 n,\
                                                       float* out) {                                                         \
        unpacked<BITS>(scales, w, k, words, group, n, out);                                                                  \
    }                                                                                                                        \
    extern "C" __global__ void packed##BITS##_grouped(const float* x, const unsigned char* w, const float* scales,          \
                                                      const float* factors, const float* bias, const float* residual,       \
                                                      Geometry g, int oc, int groups, int stride, int group, int act,       \
                                                      i64 n, float* out) {                                                  \
        packed_grouped<BITS>(x, w, scales, factors, bias, residual, g, oc, groups, stride, group, act, n, out);             \
    }
MAKE(8)
MAKE(4)
#undef MAKE
