// Runs the GPU's kernels on a CPU: a block is a set of threads with a barrier, a grid is one block after another. Every kernel
// is compared with its definition, written once more in plain loops. Prints what differs; the exit status counts it.
//
// Compiled and run by tests/cuda_kernels.rs. Not here: products, which are libraries', and how fast anything is.

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

struct Three { int x, y, z; };
static thread_local Three threadIdx, blockIdx;
static Three blockDim, gridDim;
static std::barrier<>* together;

#define ON_THREADS
#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
static void __syncthreads() { together->arrive_and_wait(); }
static float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
static float __fadd_rn(float a, float b) { volatile float c = a + b; return c; }
static float __fmul_rn(float a, float b) { volatile float c = a * b; return c; }
static float __fdiv_rn(float a, float b) { volatile float c = a / b; return c; }
#define __launch_bounds__(threads)
// Of threads of a whole block that all ask: what a warp's do among themselves.
static float __shfl_xor_sync(unsigned, float v, int by) {
    static float lanes[1024];
    lanes[threadIdx.x] = v;
    __syncthreads();
    float other = lanes[threadIdx.x ^ by];
    __syncthreads();
    return other;
}
static float widened(unsigned short half) { _Float16 h; memcpy(&h, &half, 2); return (float)h; }
static unsigned short narrowed(float v) { _Float16 h = (_Float16)v; unsigned short half; memcpy(&half, &h, 2); return half; }

#include "kernels/base.cu"
#include "kernels/floats.cu"
#include "kernels/rows.cu"
#include "kernels/eight_bits.cu"
#include "kernels/packed.cu"

using Floats = std::vector<float>;

// A kernel with one block a row.
template <class F>
static void rows(int blocks, int threads, F kernel) {
    gridDim = {blocks, 1, 1};
    blockDim = {threads, 1, 1};
    for (int b = 0; b < blocks; b++) {
        std::barrier<> all(threads);
        together = &all;
        std::vector<std::thread> team;
        for (int i = 0; i < threads; i++) {
            team.emplace_back([&kernel, b, i] { threadIdx = {i, 0, 0}; blockIdx = {b, 0, 0}; kernel(); });
        }
        for (auto& t : team) t.join();
    }
}

// A kernel that goes over elements: no thread waits for another. Fewer threads than elements, so that each does several.
template <class F>
static void each(F kernel) {
    gridDim = {3, 1, 1};
    blockDim = {16, 1, 1};
    for (int b = 0; b < 3; b++) {
        for (int i = 0; i < 16; i++) { threadIdx = {i, 0, 0}; blockIdx = {b, 0, 0}; kernel(); }
    }
}

static std::mt19937 generator(1);
static Floats noise(size_t n) {
    Floats v(n);
    for (auto& x : v) x = std::uniform_real_distribution<float>(-2, 3)(generator);
    return v;
}

static int failures = 0;
template <class A, class B>
static void same(const char* what, const A& got, const B& want, double most) {
    double worst = got.size() == want.size() ? 0 : 1e9;
    for (size_t i = 0; i < std::min(got.size(), want.size()); i++) {
        double off = std::fabs((double)got[i] - (double)want[i]) / (1 + std::fabs((double)want[i]));
        if (!(off <= worst)) worst = off;
    }
    if (!(worst <= most)) {
        printf("%s: off by %g, at most %g\n", what, worst, most);
        failures++;
    }
}

// Two images with a window that is uneven in everything.
static const int N = 2, C = 6, H = 9, W = 7;
static const Geometry G = {C, H, W, (H + 2 - 3) / 2 + 1, W - 1, 3, 2, 2, 1, 1, 0};
static const int P = G.oh * G.ow, TAPS = G.kh * G.kw;

static int under(int p, int tap) {
    int iy = p / G.ow * G.sy + tap / G.kw - G.py, ix = p % G.ow * G.sx + tap % G.kw - G.px;
    return iy >= 0 && iy < H && ix >= 0 && ix < W ? iy * W + ix : -1;
}

static void windows(const Floats& x) {
    Floats want, got(N * C * TAPS * P);
    for (int plane = 0; plane < N * C; plane++)
        for (int t = 0; t < TAPS; t++)
            for (int p = 0; p < P; p++) want.push_back(under(p, t) < 0 ? 0 : x[plane * H * W + under(p, t)]);
    each([&] { unfold_f32(x.data(), G, got.size(), got.data()); });
    same("unfold", got, want, 0);
    // Rows of whole fours, which are written at once; a stride along them.
    for (int sx : {1, 2}) {
        const Geometry g = {2, 5, 8 * sx, 5, 8, 3, 3, 1, sx, 1, 1};
        Floats in = noise(g.c * g.h * g.w), out(g.c * 9 * g.oh * g.ow), right;
        for (int c = 0; c < g.c; c++)
            for (int t = 0; t < 9; t++)
                for (int p = 0; p < g.oh * g.ow; p++) {
                    int iy = p / g.ow + t / 3 - 1, ix = p % g.ow * sx + t % 3 - 1;
                    right.push_back(iy < 0 || iy >= g.h || ix < 0 || ix >= g.w ? 0 : in[(c * g.h + iy) * g.w + ix]);
                }
        each([&] { unfold_f32(in.data(), g, out.size(), out.data()); });
        same("unfold in fours", out, right, 0);
    }

    // Every channel on its own, rows of whole fours.
    for (int kw : {3, 5, 7})
        for (int sx : {1, 2}) {
            if (kw == 7 && sx == 2) continue;
            const Geometry g = {3, 7, 8 * sx, (7 + 2 - 3) / sx + 1, 8, 3, kw, sx, sx, 1, kw / 2};
            Floats in = noise(2 * g.c * g.h * g.w), w = noise(g.c * 3 * kw), out(2 * g.c * g.oh * g.ow), right;
            for (int plane = 0; plane < 2 * g.c; plane++)
                for (int p = 0; p < g.oh * g.ow; p++) {
                    double sum = 0;
                    for (int t = 0; t < 3 * kw; t++) {
                        int iy = p / g.ow * sx + t / kw - 1, ix = p % g.ow * sx + t % kw - kw / 2;
                        if (iy >= 0 && iy < g.h && ix >= 0 && ix < g.w)
                            sum += (double)in[(plane * g.h + iy) * g.w + ix] * w[plane % g.c * 3 * kw + t];
                    }
                    right.push_back(sum);
                }
            auto kernel = kw == 3 ? sx == 1 ? depthwise3_1_f32 : depthwise3_2_f32
                          : kw == 5 ? sx == 1 ? depthwise5_1_f32 : depthwise5_2_f32 : depthwise7_1_f32;
            each([&] { kernel(in.data(), w.data(), g, out.size(), out.data()); });
            same("depthwise", out, right, 1e-5);
        }

    for (int mode = 0; mode < 3; mode++) {
        Floats want, got(N * C * P);
        for (int plane = 0; plane < N * C; plane++)
            for (int p = 0; p < P; p++) {
                double sum = 0, most = -1e30;
                int seen = 0;
                for (int t = 0; t < TAPS; t++)
                    if (under(p, t) >= 0) {
                        double v = x[plane * H * W + under(p, t)];
                        sum += v, most = std::max(most, v), seen++;
                    }
                want.push_back(mode == 0 ? most : sum / (mode == 1 ? TAPS : seen));
            }
        each([&] { pool_f32(x.data(), G, mode, got.size(), got.data()); });
        same("pool", got, want, 1e-6);
    }

    const int oc = 4, groups = 2, cg = C / groups;
    Floats w = noise(oc * cg * TAPS), sums, out(N * oc * P);
    for (int n = 0; n < N; n++)
        for (int o = 0; o < oc; o++)
            for (int p = 0; p < P; p++) {
                double sum = 0;
                for (int c = 0; c < cg; c++)
                    for (int t = 0; t < TAPS; t++)
                        if (under(p, t) >= 0)
                            sum += (double)x[(n * C + o / (oc / groups) * cg + c) * H * W + under(p, t)] * w[(o * cg + c) * TAPS + t];
                sums.push_back(sum);
            }
    each([&] { grouped_f32(x.data(), w.data(), G, oc, groups, out.size(), out.data()); });
    same("grouped", out, sums, 1e-5);
}

static double activated(double x, int act) {
    double six = std::min(std::max(x + 3, 0.), 6.) / 6;
    switch (act) {
        case 1: return std::max(x, 0.);
        case 2: return std::min(std::max(x, 0.), 6.);
        case 3: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.)));
        case 4: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        case 5: return x / (1 + std::exp(-x));
        case 6: return 1 / (1 + std::exp(-x));
        case 7: return six;
        case 8: return x * six;
        case 9: return std::tanh(x);
        default: return x;
    }
}

// Channels of 10 positions, of 8 (whole fours), and beside each other.
static void epilogues(int c, int inner) {
    const size_t n = 3 * c * inner;
    Floats y = noise(n), r = noise(n), s = noise(c), b = noise(c), got(n), want(n);
    for (int act = 0; act < 10; act++) {
        for (size_t i = 0; i < n; i++) want[i] = activated(y[i] * s[i / inner % c] + b[i / inner % c] + r[i], act);
        each([&] { epilogue_f32_f32_f32(y.data(), s.data(), b.data(), r.data(), c, inner, act, n, got.data()); });
        same("epilogue", got, want, 1e-5);
    }
    each([&] { epilogue_f32_f32_f32(y.data(), nullptr, nullptr, (float*)nullptr, c, inner, 0, n, got.data()); });
    same("epilogue of nothing", got, y, 0);

    std::vector<bf16> in(n), out(n);
    for (size_t i = 0; i < n; i++) put(&in[i], y[i]);
    each([&] { epilogue_bf16_f32_bf16(in.data(), s.data(), b.data(), r.data(), c, inner, 1, n, out.data()); });
    for (size_t i = 0; i < n; i++) {
        want[i] = std::max(get(in[i]) * s[i / inner % c] + b[i / inner % c] + r[i], 0.f);
        got[i] = get(out[i]);
    }
    same("epilogue in bf16", got, want, 1. / 256);
    std::vector<f16> half(n);
    for (size_t i = 0; i < n; i++) put(&half[i], y[i]);
    each([&] { epilogue_f16_f16_f32(half.data(), nullptr, b.data(), half.data(), c, inner, 0, n, got.data()); });
    for (size_t i = 0; i < n; i++) want[i] = 2 * get(half[i]) + b[i / inner % c];
    same("epilogue from f16", got, want, 1e-6);
}

static void reductions() {
    for (int width : {5, 45, 300}) {
        const int n = 3;
        int threads = 32;
        while (threads < (width + 3) / 4) threads *= 2;
        Floats x = noise(n * width), w = noise(width), b = noise(width), got(n * width);
        for (int centred = 0; centred < 2; centred++) {
            Floats want;
            for (int r = 0; r < n; r++) {
                double mean = 0, squares = 0;
                for (int i = 0; i < width; i++) mean += centred * x[r * width + i] / width;
                for (int i = 0; i < width; i++) squares += std::pow(x[r * width + i] - mean, 2);
                for (int i = 0; i < width; i++)
                    want.push_back((x[r * width + i] - mean) / std::sqrt(squares / width + 1e-5) * w[i] + centred * b[i]);
            }
            rows(n, threads, [&] { norm_rows(x.data(), w.data(), centred ? b.data() : nullptr, width, 1e-5f, centred, got.data()); });
            same("norm", got, want, 1e-5);
        }
        for (int kinds = 0; kinds < 3; kinds++) {
            Floats bias = noise(std::max(kinds, 1) * width), want;
            for (int r = 0; r < n; r++) {
                std::vector<double> e;
                double sum = 0;
                for (int i = 0; i < width; i++) {
                    e.push_back(std::exp(x[r * width + i] * 1.7 + (kinds ? bias[r % kinds * width + i] : 0)));
                    sum += e.back();
                }
                for (double v : e) want.push_back(v / sum);
            }
            const int all = 1 << 30;
            rows(n, threads, [&] {
                softmax_rows_f32(x.data(), kinds ? bias.data() : nullptr, width, std::max(kinds, 1), 1.7f, 0, n, all, all, got.data());
            });
            same("softmax", got, want, 1e-5);
            std::fill(got.begin(), got.end(), NAN);
            rows(1, 32 * WARP_ROWS, [&] {
                softmax_warps_f32(x.data(), kinds ? bias.data() : nullptr, width, std::max(kinds, 1), 1.7f, 0, n, all, all, n, got.data());
            });
            same("softmax by warps", got, want, 1e-5);
        }
        // Two heads of three tokens, the last of `width`: causal, with a past of its own, between neighbours, capped.
        struct Sees { int before, after; float cap; };
        for (Sees s : {Sees{1 << 30, 0, 0}, Sees{2, 0, 0}, Sees{1, 1, 3}, Sees{1 << 30, 1 << 30, 2}}) {
            const int tokens = 3;
            Floats in = noise(2 * tokens * width), out(in.size()), want;
            std::vector<f16> half(in.size()), made(in.size());
            for (size_t i = 0; i < in.size(); i++) put(&half[i], in[i]), in[i] = get(half[i]);
            for (int r = 0; r < 2 * tokens; r++) {
                int place = width - tokens + r % tokens;
                std::vector<double> e;
                double sum = 0;
                for (int i = 0; i < width; i++) {
                    double v = in[r * width + i] * 1.3;
                    if (s.cap > 0) v = s.cap * std::tanh(v / s.cap);
                    bool seen = place - i <= s.before && i - place <= s.after;
                    e.push_back(seen ? std::exp(v) : 0);
                    sum += e.back();
                }
                for (double v : e) want.push_back(v / sum);
            }
            rows(2 * tokens, threads, [&] { softmax_rows_f32(in.data(), nullptr, width, 1, 1.3f, s.cap, tokens, s.before, s.after, out.data()); });
            same("softmax of what is seen", out, want, 1e-5);
            std::fill(out.begin(), out.end(), NAN);
            rows(1, 32 * WARP_ROWS, [&] {
                softmax_warps_f32(in.data(), nullptr, width, 1, 1.3f, s.cap, tokens, s.before, s.after, 2 * tokens, out.data());
            });
            same("softmax by warps of what is seen", out, want, 1e-5);
            rows(2 * tokens, threads, [&] { softmax_rows_f16(half.data(), nullptr, width, 1, 1.3f, s.cap, tokens, s.before, s.after, made.data()); });
            for (size_t i = 0; i < made.size(); i++) out[i] = get(made[i]);
            same("softmax in f16", out, want, 1. / 2048);
        }
    }
    // Channels of images; the last positions are no whole block.
    const int n = 2, c = 21, inner = 40;
    Floats x = noise(n * c * inner), w = noise(c), b = noise(c), got(x.size());
    for (int centred = 0; centred < 2; centred++) {
        Floats want(x.size());
        for (int image = 0; image < n; image++)
            for (int p = 0; p < inner; p++) {
                double mean = 0, squares = 0;
                auto at = [&](int i) { return (image * c + i) * inner + p; };
                for (int i = 0; i < c; i++) mean += centred * x[at(i)] / c;
                for (int i = 0; i < c; i++) squares += std::pow(x[at(i)] - mean, 2);
                for (int i = 0; i < c; i++)
                    want[at(i)] = (x[at(i)] - mean) / std::sqrt(squares / c + 1e-5) * w[i] + centred * b[i];
            }
        rows(n * 2, 256, [&] { norm_channels(x.data(), w.data(), centred ? b.data() : nullptr, c, inner, 2, 1e-5f, centred, got.data()); });
        same("norm of channels", got, want, 1e-5);
    }
}

// Every head's first six of eight values by their token's angles.
static void rotations() {
    const int n = 2, tokens = 3, heads = 2, dim = 8, turned = 6, half = turned / 2;
    Floats x = noise(n * tokens * heads * dim), cosines(tokens * half), sines(tokens * half), got(x.size());
    for (int i = 0; i < tokens * half; i++) cosines[i] = std::cos(0.3 * i + 0.1), sines[i] = std::sin(0.3 * i + 0.1);
    for (int neighbours = 0; neighbours < 2; neighbours++) {
        Floats want = x;
        for (int r = 0; r < n * tokens * heads; r++)
            for (int p = 0; p < half; p++) {
                int a = r * dim + (neighbours ? 2 * p : p), b = a + (neighbours ? 1 : half), at = r / heads % tokens * half + p;
                want[a] = x[a] * cosines[at] - x[b] * sines[at];
                want[b] = x[b] * cosines[at] + x[a] * sines[at];
            }
        each([&] { rotate(x.data(), cosines.data(), sines.data(), heads * dim, dim, turned, neighbours, tokens, x.size(), got.data()); });
        same("rotate", got, want, 1e-6);
    }
}

// Heads apart and together again, in fours and one by one.
static void heads() {
    const int n = 2, tokens = 3, heads = 2;
    for (int dim : {4, 5}) {
        int at = 2 * dim, width = 5 * dim, each_of = dim % 4 == 0 ? 4 : 1;
        Floats x = noise(n * tokens * width), want, back, apart(n * tokens * heads * dim), got(apart.size());
        for (int i = 0; i < n; i++)
            for (int h = 0; h < heads; h++)
                for (int t = 0; t < tokens; t++)
                    for (int d = 0; d < dim; d++) want.push_back(x[(i * tokens + t) * width + at + h * dim + d] * 0.5f);
        for (int i = 0; i < n * tokens; i++)
            for (int d = 0; d < heads * dim; d++) back.push_back(x[i * width + at + d] * 0.5f);
        each([&] { heads_apart_f32(x.data(), tokens, width, at, heads, dim, each_of, 0.5f, apart.size(), apart.data()); });
        same("heads apart", apart, want, 0);
        each([&] { heads_together_f32(apart.data(), tokens, heads, dim, each_of, got.size(), got.data()); });
        same("heads together", got, back, 0);
    }
}

static Code code_for(const float* x, size_t n) {
    float lo = 0, hi = 0;
    for (size_t i = 0; i < n; i++) lo = std::min(lo, x[i]), hi = std::max(hi, x[i]);
    Code c = {1, 1, 0};
    float scale = (hi - lo) / 255;
    if (scale >= 1e-30f) {
        c.scale = scale, c.inverse = 1 / scale;
        c.zero = (int)std::min(std::max(std::round(-lo * c.inverse), 0.f), 255.f);
    }
    return c;
}

static int quantized(float v, Code c) {
    return (int)std::min(std::max(std::nearbyint(v * c.inverse) + c.zero, 0.f), 255.f);
}

static void codes_and_rows(const Floats& x) {
    for (int parts : {1, 3}) {
        const int n = 4, width = x.size() / n;
        Floats ends(n * parts * 2), got, want;
        std::vector<Code> made(n);
        rows(n * parts, 32, [&] { ranges(x.data(), width, parts, ends.data()); });
        each([&] { codes(ends.data(), parts, n, made.data()); });
        for (int r = 0; r < n; r++) {
            Code c = code_for(&x[r * width], width);
            want.insert(want.end(), {c.scale, c.inverse, (float)c.zero});
            got.insert(got.end(), {made[r].scale, made[r].inverse, (float)made[r].zero});
        }
        same("codes", got, want, 0);
    }
    Floats zeros(8), ends(2);
    Code none;
    rows(1, 32, [&] { ranges(zeros.data(), 8, 1, ends.data()); });
    each([&] { codes(ends.data(), 1, 1, &none); });
    same("code of zeros", Floats{none.scale, none.inverse, (float)none.zero}, Floats{1, 1, 0}, 0);

    const int n = 5, k = 21, padded = 32;
    for (int shared : {1, n}) {
        std::vector<Code> of;
        for (int r = 0; r < n; r += shared) of.push_back(code_for(&x[r * k], shared * k));
        std::vector<signed char> got(n * padded, 77), want;
        for (int i = 0; i < n * padded; i++) {
            int r = i / padded, at = i % padded;
            want.push_back(at < k ? quantized(x[r * k + at], of[r / shared]) - 128 : 0);
        }
        each([&] { quantize_rows(x.data(), of.data(), k, padded, shared, got.size(), got.data()); });
        same("quantize_rows", got, want, 0);
        if (shared > 1) continue;
        std::fill(got.begin(), got.end(), 77);
        std::vector<Code> made(n);
        rows(n, 32, [&] { quantize_each(x.data(), k, padded, got.data(), made.data()); });
        same("quantize_each", got, want, 0);
        Floats codes_got, codes_want;
        for (int r = 0; r < n; r++) {
            codes_got.insert(codes_got.end(), {made[r].scale, made[r].inverse, (float)made[r].zero});
            codes_want.insert(codes_want.end(), {of[r].scale, of[r].inverse, (float)of[r].zero});
        }
        same("codes of quantize_each", codes_got, codes_want, 0);
    }
}

static void int8_windows(const Floats& x) {
    const int k = C * TAPS, padded = 48, n = N * P, oc = 5, m = 16;
    std::vector<Code> of;
    for (int i = 0; i < N; i++) of.push_back(code_for(&x[i * C * H * W], C * H * W));
    auto code_at = [&](int image, int c, int p, int t) {
        int at = under(p, t);
        return at < 0 ? of[image].zero : quantized(x[(image * C + c) * H * W + at], of[image]);
    };
    std::vector<signed char> q(n * padded, 77), want;
    for (int r = 0; r < n; r++)
        for (int i = 0; i < padded; i++) want.push_back(i < k ? code_at(r / P, i / TAPS, r % P, i % TAPS) - 128 : 0);
    // Three rows more, for a product that takes whole sixteens.
    const int all = n + 3;
    want.resize(all * padded, 0), q.resize(all * padded, 77);
    each([&] { quantize_windows(x.data(), of.data(), G, padded, n, all, P, all * padded / 16, q.data()); });
    same("quantize_windows", q, want, 0);

    // The product that cublasLt makes, then what is made of it; against sums of the codes themselves.
    std::vector<signed char> w(m * padded, 0);
    std::vector<int> sums(oc, 0), products(m * all, 0);
    for (int o = 0; o < oc; o++)
        for (int i = 0; i < k; i++) sums[o] += w[o * padded + i] = (int)(generator() % 255) - 127;
    for (int r = 0; r < n; r++)
        for (int o = 0; o < m; o++)
            for (int i = 0; i < padded; i++) products[o * all + r] += w[o * padded + i] * q[r * padded + i];
    Floats factors = noise(oc), bias = noise(oc), residual = noise(n * oc), got(n * oc), values;
    for (int image = 0; image < N; image++)
        for (int o = 0; o < oc; o++)
            for (int p = 0; p < P; p++) {
                int sum = 0;
                for (int i = 0; i < k; i++)
                    sum += (code_at(image, i / TAPS, p, i % TAPS) - of[image].zero) * w[o * padded + i];
                float v = (float)sum * (of[image].scale * factors[o]) + bias[o] + residual[(image * oc + o) * P + p];
                values.push_back(std::max(v, 0.f));
            }
    each([&] {
        dequantize(products.data(), all, 1, of.data(), sums.data(), factors.data(), bias.data(), residual.data(), oc, P, P, 1,
                   got.size(), got.data());
    });
    same("dequantize", got, values, 1e-6);

    // A linear: channels beside each other, four at once.
    const int lo = 12, lm = 16, ln = 5;
    std::vector<int> acc(ln * lm), wsums(lo);
    for (auto& v : acc) v = (int)(generator() % 20000) - 10000;
    for (auto& v : wsums) v = (int)(generator() % 200) - 100;
    std::vector<Code> per(ln, of[0]);
    for (int r = 0; r < ln; r++) per[r].zero = 10 * r, per[r].scale *= r + 1;
    Floats lf = noise(lo), lb = noise(lo), lr = noise(ln * lo), lg(ln * lo), lw;
    for (int r = 0; r < ln; r++)
        for (int o = 0; o < lo; o++)
            lw.push_back((float)(acc[r * lm + o] - (per[r].zero - 128) * wsums[o]) * (per[r].scale * lf[o]) + lb[o] + lr[r * lo + o]);
    each([&] {
        dequantize(acc.data(), 1, lm, per.data(), wsums.data(), lf.data(), lb.data(), lr.data(), lo, 1, 1, 0, lg.size(), lg.data());
    });
    same("dequantize a linear", lg, lw, 1e-6);

    const int groups = 2, cg = C / groups, go = 4;
    std::vector<signed char> few(go * cg * TAPS);
    for (auto& v : few) v = (int)(generator() % 255) - 127;
    Floats out(N * go * P), direct;
    for (int image = 0; image < N; image++)
        for (int o = 0; o < go; o++)
            for (int p = 0; p < P; p++) {
                int sum = 0;
                for (int c = 0; c < cg; c++)
                    for (int t = 0; t < TAPS; t++)
                        sum += (code_at(image, o / (go / groups) * cg + c, p, t) - of[image].zero) * few[(o * cg + c) * TAPS + t];
                direct.push_back((float)sum * (of[image].scale * factors[o]) + bias[o]);
            }
    each([&] {
        grouped_int8(x.data(), few.data(), of.data(), factors.data(), bias.data(), nullptr, G, go, groups, P, 0, out.size(),
                     out.data());
    });
    same("grouped_int8", out, direct, 1e-6);
}

// Rows of codes of `bits` bits, a scale for each `group` of a row, and what they stand for.
struct Codes {
    int bits, k, words, group, oc;
    std::vector<unsigned> packed;
    Floats scales, values;

    Codes(int bits, int k, int group, int oc) : bits(bits), k(k), group(group), oc(oc) {
        int each = 32 / bits, shift = bits == 4 ? 8 : 0, top = bits == 4 ? 7 : 127;
        words = (k + each - 1) / each;
        scales = noise(oc * ((k + group - 1) / group));
        for (int o = 0; o < oc; o++)
            for (int w = 0; w < words; w++) {
                unsigned word = 0;
                for (int j = 0; j < each; j++) {
                    int at = w * each + j, code = at < k ? (int)(generator() % (2 * top + 1)) - top : 0;
                    word |= ((unsigned)(code + shift) & ((1u << bits) - 1)) << (j * bits);
                    if (at < k) values.push_back((float)code * scales[o * ((k + group - 1) / group) + at / group]);
                }
                packed.push_back(word);
            }
    }
};

// Linears and images, few rows and many, whole tiles and parts of one, with what follows a sum and without.
static void packed_weights() {
    struct Size { int bits, k, group, oc, images, inner; };
    for (Size s : {Size{8, 45, 45, 10, 3, 1}, Size{4, 45, 45, 70, 1, 1}, Size{4, 200, 32, 70, 9, 1}, Size{8, 2100, 2100, 3, 8, 1},
                   Size{4, 1100, 128, 17, 2, 3}, Size{4, 72, 64, 66, 2, 35}, Size{8, 24, 24, 5, 3, 30}}) {
        Codes c(s.bits, s.k, s.group, s.oc);
        int rows_of = s.images * s.inner;
        Floats x = noise(rows_of * s.k), factors = noise(s.oc), bias = noise(s.oc), residual = noise(rows_of * s.oc);
        Floats weights(s.oc * s.k);
        auto unpack = s.bits == 4 ? packed4_unpacked : packed8_unpacked;
        each([&] { unpack(c.scales.data(), c.packed.data(), s.k, c.words, s.group, weights.size(), weights.data()); });
        same("unpacked weights", weights, c.values, 0);
        for (bool plain : {true, false}) {
            Floats want, got(rows_of * s.oc);
            for (int n = 0; n < s.images; n++)
                for (int o = 0; o < s.oc; o++)
                    for (int p = 0; p < s.inner; p++) {
                        double sum = 0;
                        for (int i = 0; i < s.k; i++) sum += (double)x[(n * s.k + i) * s.inner + p] * c.values[o * s.k + i];
                        if (!plain) sum = std::max(sum * factors[o] + bias[o] + residual[(n * s.oc + o) * s.inner + p], 0.);
                        want.push_back(sum);
                    }
            auto run = [&](auto kernel) {
                kernel(x.data(), c.packed.data(), c.scales.data(), plain ? nullptr : factors.data(), plain ? nullptr : bias.data(),
                       plain ? nullptr : residual.data(), s.k, c.words, s.group, s.oc, s.inner, plain ? 0 : 1, rows_of, got.data());
            };
            // A sum of k products may lose what cancels: it is measured against k.
            double most = 1e-6 * s.k;
            if (rows_of > FEW) continue;
            std::fill(got.begin(), got.end(), NAN);
            int blocks = (s.oc + FEW_WARPS * CHANNELS - 1) / (FEW_WARPS * CHANNELS);
            rows(blocks, 32 * FEW_WARPS, [&] { s.bits == 4 ? run(packed4_few) : run(packed8_few); });
            same("packed product of few rows", got, want, most);
        }
    }

    const int oc = 4, groups = 2, cg = C / groups, k = cg * TAPS;
    Floats x = noise(N * C * H * W), bias = noise(oc);
    for (int bits : {4, 8}) {
        Codes c(bits, k, bits == 4 ? 8 : k, oc);
        Floats want, got(N * oc * P);
        for (int n = 0; n < N; n++)
            for (int o = 0; o < oc; o++)
                for (int p = 0; p < P; p++) {
                    double sum = bias[o];
                    for (int i = 0; i < k; i++)
                        if (under(p, i % TAPS) >= 0)
                            sum += (double)x[(n * C + o / (oc / groups) * cg + i / TAPS) * H * W + under(p, i % TAPS)] * c.values[o * k + i];
                    want.push_back(sum);
                }
        auto kernel = bits == 4 ? packed4_grouped : packed8_grouped;
        each([&] {
            kernel(x.data(), (const unsigned char*)c.packed.data(), c.scales.data(), nullptr, bias.data(), nullptr, G, oc, groups,
                   4 * c.words, c.group, 0, got.size(), got.data());
        });
        same("packed grouped", got, want, 1e-5);
    }
}

// A number as E4M3 stores it, by the format's definition: the nearest of all, the even one of two.
static float e4m3(int code) {
    int e = code >> 3 & 15, m = code & 7;
    float size = e == 0 ? std::ldexp((float)m, -9) : std::ldexp(8.f + m, e - 10);
    return code & 128 ? -size : size;
}
static float nearest_e4m3(float v) {
    int best = 0;
    for (int c = 1; c < 0x7f; c++) {
        float off = std::fabs(e4m3(c) - std::fabs(v)), least = std::fabs(e4m3(best) - std::fabs(v));
        if (off < least || (off == least && c % 2 == 0)) best = c;
    }
    return std::copysign(e4m3(best), v);
}

static void eight_bit_floats(const Floats& given) {
    Floats codes, values, numbers = {0, 1e-9f, 464, 465, 1e30f, INFINITY, 0x1p-10f, 0x3p-10f, 0x1.fp-7f};
    for (int c = 0; c < 0x7e; c++) {
        float half = (e4m3(c) + e4m3(c + 1)) / 2;
        for (float v : {e4m3(c), half, std::nextafter(half, 0.f), std::nextafter(half, 1e9f)}) numbers.insert(numbers.end(), {v, -v});
    }
    for (float v : numbers) {
        codes.push_back(fp8_value(fp8_code(v)));
        values.push_back(nearest_e4m3(v));
    }
    same("fp8 codes", codes, values, 0);
    if (!std::isnan(fp8_value(fp8_code(NAN))) || !std::isnan(fp8_value(0xff))) printf("NaN is lost\n"), failures++;

    const int k = C * TAPS, padded = 48, n = N * P, oc = 5, m = 16;
    Floats x = given;
    // Another size in another image: each has its own scale.
    for (int i = 0; i < C * H * W; i++) x[i] *= 1000;
    Floats ends(2 * N * 2);
    std::vector<Scale> scales(N);
    rows(N * 2, 32, [&] { ranges(x.data(), C * H * W, 2, ends.data()); });
    each([&] { fp8_scales(ends.data(), 2, N, scales.data()); });
    auto stored = [&](int image, int c, int p, int t) {
        float most = 0;
        for (int i = 0; i < C * H * W; i++) most = std::max(most, std::fabs(x[image * C * H * W + i]));
        int at = under(p, t);
        return at < 0 ? 0.f : nearest_e4m3(x[(image * C + c) * H * W + at] * (1 / (most / 448)));
    };
    std::vector<unsigned char> q(n * padded, 77), w(oc * k);
    Floats got, want;
    each([&] { fp8_windows(x.data(), scales.data(), G, padded, n, n, P, n * padded / 16, q.data()); });
    for (int r = 0; r < n; r++)
        for (int i = 0; i < padded; i++) {
            got.push_back(e4m3(q[r * padded + i]));
            want.push_back(i < k ? stored(r / P, i / TAPS, r % P, i % TAPS) : 0);
        }
    same("fp8_windows", got, want, 0);
    std::vector<unsigned char> flat(N * 4 * 32, 77);
    each([&] { fp8_rows(x.data(), scales.data(), 21, 32, 4, flat.size(), flat.data()); });
    got.clear(), want.clear();
    for (int i = 0; i < N * 4 * 32; i++) {
        got.push_back(e4m3(flat[i]));
        want.push_back(i % 32 < 21 ? nearest_e4m3(x[i / 32 * 21 + i % 32] * scales[i / 32 / 4].inverse) : 0);
    }
    same("fp8_rows", got, want, 0);

    Floats sums(n * m), factors = noise(oc), bias = noise(oc), residual = noise(n * oc), out(n * oc), layer;
    for (auto& c : w) c = generator() % 0x7e | (generator() % 2 ? 0x80 : 0);
    for (int r = 0; r < n; r++)
        for (int o = 0; o < oc; o++)
            for (int i = 0; i < k; i++) sums[r * m + o] += e4m3(w[o * k + i]) * stored(r / P, i / TAPS, r % P, i % TAPS);
    for (int image = 0; image < N; image++)
        for (int o = 0; o < oc; o++)
            for (int p = 0; p < P; p++)
                layer.push_back(std::max(sums[(image * P + p) * m + o] * (scales[image].scale * factors[o]) + bias[o] +
                                             residual[(image * oc + o) * P + p], 0.f));
    each([&] {
        fp8_layer(sums.data(), 1, m, scales.data(), factors.data(), bias.data(), residual.data(), oc, P, P, 1, out.size(), out.data());
    });
    same("fp8_layer", out, layer, 1e-6);

    const int groups = 2, cg = C / groups, go = 4;
    Floats direct, grouped_out(N * go * P);
    for (int image = 0; image < N; image++)
        for (int o = 0; o < go; o++)
            for (int p = 0; p < P; p++) {
                double sum = 0;
                for (int c = 0; c < cg; c++)
                    for (int t = 0; t < TAPS; t++)
                        sum += (double)e4m3(w[(o * cg + c) * TAPS + t]) * stored(image, o / (go / groups) * cg + c, p, t);
                direct.push_back(sum * (scales[image].scale * factors[o]) + bias[o]);
            }
    each([&] {
        fp8_grouped(x.data(), w.data(), scales.data(), factors.data(), bias.data(), nullptr, G, go, groups, P, 0, grouped_out.size(),
                    grouped_out.data());
    });
    same("fp8_grouped", grouped_out, direct, 1e-5);
}

int main() {
    Floats x = noise(N * C * H * W);
    windows(x);
    epilogues(4, 10);
    epilogues(4, 8);
    epilogues(8, 1);
    reductions();
    rotations();
    heads();
    codes_and_rows(x);
    int8_windows(x);
    packed_weights();
    eight_bit_floats(x);
    return failures;
}
