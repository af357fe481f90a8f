// Launches kernels of every source, by the table, against plain loops, in several orders; then the faults of planted.cu, each of
// which must be told. Prints what differs; the exit status counts it. `check <object> <plain|checked|sanitized>`.
//
// tests/kernels.rs runs it for every object. Not here: the device, whose tests are in Rust, and the rounding of every number
// (check_numbers.h).
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "check_numbers.h"
#include "sim.h"

using Floats = std::vector<float>;
using Sizes = std::vector<size_t>;

static int failures = 0;
static std::string variant;
static const SimKernel* kernels;
static size_t kernel_count;
static decltype(&sim_launch) launch_object;
static decltype(&sim_watch) watch_object;
static decltype(&sim_stop) stop_of_object;

static void wrong(const std::string& what) {
    printf("%s: %s\n", variant.c_str(), what.c_str());
    failures++;
}

static const SimKernel* find(const std::string& module, const std::string& name) {
    for (size_t i = 0; i < kernel_count; i++) {
        if (module == kernels[i].module && name == kernels[i].name) return kernels + i;
    }
    wrong("no kernel " + name + " in " + module);
    exit(1);
}

struct Shape {
    unsigned grid, threads, shared = 0, rows = 1;  // `rows` is the block's second dimension
};
static uint64_t seed = 0;

// What the launch says, if anything. The arguments' sizes must be the parameters'.
template <class... A>
static std::string told(const char* module, const char* name, Shape shape, A... a) {
    const SimKernel* kernel = find(module, name);
    void* args[] = {(void*)&a..., nullptr};
    size_t sizes[] = {sizeof(A)..., 0};
    if (kernel->count != sizeof...(A)) wrong(std::string(name) + " has another number of parameters");
    for (size_t i = 0; i < sizeof...(A); i++) {
        if (kernel->params[i].size != sizes[i]) wrong(std::string(name) + " has a parameter of another size");
    }
    SimLaunch launch = {{shape.grid, 1, 1}, {shape.threads, shape.rows, 1}, shape.shared, seed};
    const char* said = launch_object(kernel, &launch, args);
    return said ? said : "";
}
template <class... A>
static void run(const char* module, const char* name, Shape shape, A... a) {
    std::string said = told(module, name, shape, a...);
    if (!said.empty()) wrong(said);
}

template <class A, class B>
static void same(const char* what, const A& got, const B& want, double most = 0) {
    double worst = got.size() == want.size() ? 0 : 1e9;
    for (size_t i = 0; i < std::min(got.size(), want.size()); i++) {
        double off = std::fabs((double)got[i] - (double)want[i]) / (1 + std::fabs((double)want[i]));
        if (!(off <= worst)) worst = off;
    }
    if (!(worst <= most)) {
        char text[160];
        snprintf(text, sizeof text, "%s with seed %llu: off by %g, at most %g", what, (unsigned long long)seed, worst, most);
        wrong(text);
    }
}

static std::mt19937 generator(1);
static Floats noise(size_t n) {
    Floats v(n);
    for (auto& x : v) x = std::uniform_real_distribution<float>(-2, 3)(generator);
    return v;
}
template <class T> static std::vector<uint16_t> narrow(const T& v, uint16_t (*to)(double)) {
    std::vector<uint16_t> out;
    for (auto x : v) out.push_back(to(x));
    return out;
}
static Floats wide(const std::vector<uint16_t>& v, double (*from)(uint16_t)) {
    Floats out;
    for (auto x : v) out.push_back((float)from(x));
    return out;
}
static const size_t* no_sizes = nullptr;

static void elements() {
    const size_t n = 1000;
    Floats a = noise(n), b = noise(n), got(n), want(n);
    for (size_t i = 0; i < n; i++) want[i] = a[i] + b[i];
    run("binary", "badd_f32", {3, 64}, n, (size_t)1, no_sizes, a.data(), b.data(), got.data());
    same("badd_f32", got, want);
    // The right side turned: [20, 50] of what lies as [50, 20].
    Sizes turned = {20, 50, 50, 1, 1, 20};
    for (size_t i = 0; i < n; i++) want[i] = a[i] * b[i % 50 * 20 + i / 50];
    run("binary", "bmul_f32", {4, 32}, n, (size_t)2, (const size_t*)turned.data(), a.data(), b.data(), got.data());
    same("bmul_f32 turned", got, want);

    for (bool half : {true, false}) {
        auto to = half ? half_of : bf16_of;
        auto from = half ? of_half : of_bf16;
        auto x = narrow(a, to), y = narrow(b, to);
        std::vector<uint16_t> z(n), sums(n), quotients(n);
        for (size_t i = 0; i < n; i++) sums[i] = to(from(x[i]) + from(y[i])), quotients[i] = to(from(x[i]) / from(y[i]));
        run("binary", half ? "badd_f16" : "badd_bf16", {2, 128}, n, (size_t)1, no_sizes, x.data(), y.data(), z.data());
        same("badd of 16 bits", z, sums);
        run("binary", half ? "bdiv_f16" : "bdiv_bf16", {2, 128}, n, (size_t)1, no_sizes, x.data(), y.data(), z.data());
        same("bdiv of 16 bits", z, quotients);
        run("cast", half ? "cast_f32_f16" : "cast_f32_bf16", {2, 128}, n, (size_t)1, no_sizes, a.data(), z.data());
        same("cast to 16 bits", z, x);
        run("cast", half ? "cast_f16_f32" : "cast_bf16_f32", {2, 128}, n, (size_t)1, no_sizes, x.data(), got.data());
        same("cast from 16 bits", got, wide(x, from));
    }

    run("affine", "affine_f32", {2, 128}, n, (size_t)1, no_sizes, a.data(), got.data(), 3.0f, 0.5f);
    for (size_t i = 0; i < n; i++) want[i] = a[i] * 3.0f + 0.5f;
    same("affine_f32", got, want);
    run("unary", "ugelu_erf_f32", {2, 128}, n, (size_t)1, no_sizes, a.data(), got.data());
    for (size_t i = 0; i < n; i++) want[i] = a[i] * 0.5 * (1 + std::erf(a[i] / std::sqrt(2.)));
    same("ugelu_erf_f32", got, want, 1e-6);
    run("fill", "fill_f32", {2, 128}, got.data(), 7.0f, n);
    same("fill_f32", got, Floats(n, 7));
    run("fill", "copy2d_f32", {8, 128}, a.data(), got.data(), 20u, 30u, 50u, 30u);
    for (size_t i = 0; i < 600; i++) want[i] = a[i / 30 * 50 + i % 30];
    same("copy2d_f32", Floats(got.begin(), got.begin() + 600), Floats(want.begin(), want.begin() + 600));
    std::vector<uint8_t> choice(n);
    for (auto& c : choice) c = generator() % 2;
    Sizes flat = {n, 1, 1, 1};
    run("ternary", "where_u8_f32", {2, 128}, n, (size_t)1, (const size_t*)flat.data(), choice.data(), a.data(), b.data(), got.data());
    for (size_t i = 0; i < n; i++) want[i] = choice[i] ? a[i] : b[i];
    same("where_u8_f32", got, want);
}

static void indices() {
    Floats table = noise(30 * 8), got(12 * 8), want;
    std::vector<uint32_t> ids;
    for (int i = 0; i < 12; i++) ids.push_back(generator() % 30);
    for (auto id : ids) want.insert(want.end(), table.begin() + id * 8, table.begin() + id * 8 + 8);
    Sizes dims = {30, 8, 8, 1};
    auto select = [&] {
        return told("indexing", "is_u32_f32", {2, 64}, got.size(), (size_t)2, (const size_t*)dims.data(), ids.data(), table.data(),
                    got.data(), (size_t)1, (size_t)30, (size_t)12, (size_t)8);
    };
    if (!select().empty()) wrong(select());
    same("is_u32_f32", got, want);
    ids[3] = 31;
    if (select().find("assertion `ids[id_i] < src_dim_size`") == std::string::npos) wrong("an index beyond the end is not told");

    std::vector<int64_t> at;
    for (int i = 0; i < 12 * 8; i++) at.push_back(generator() % 30), want[i] = table[at[i] * 8 + i % 8];
    run("indexing", "gather_i64_f32", {2, 64}, got.size(), at.data(), table.data(), got.data(), (size_t)1, (size_t)30, (size_t)12, (size_t)8);
    same("gather_i64_f32", got, want);

    const int columns = 100;
    Floats rows = noise(3 * columns);
    std::vector<uint32_t> order(3 * columns);
    run("sort", "asort_desc_f32", {3, 64, 128 * 4}, rows.data(), order.data(), columns, 128);
    for (int r = 0; r < 3; r++) {
        for (int i = 1; i < columns; i++) {
            if (!(rows[r * columns + order[r * columns + i - 1]] >= rows[r * columns + order[r * columns + i]])) return wrong("asort_desc_f32");
        }
    }
}

static void windows() {
    const size_t n = 2, c = 3, h = 7, w = 6, k = 3, oh = (h + 2 - k) / 2 + 1, ow = (w + 2 - k) / 2 + 1;
    Floats x = noise(n * c * h * w), got(n * oh * ow * c * k * k), want;
    Sizes info = {n, c, h, w, c * h * w, h * w, w, 1};
    auto at = [&](size_t i, size_t ch, size_t y, size_t z) { return y < h && z < w ? x[((i * c + ch) * h + y) * w + z] : 0; };
    for (size_t i = 0; i < n; i++)
        for (size_t p = 0; p < oh * ow; p++)
            for (size_t t = 0; t < c * k * k; t++) want.push_back(at(i, t / 9, p / ow * 2 + t / 3 % 3 - 1, p % ow * 2 + t % 3 - 1));
    run("conv", "im2col_f32", {7, 128}, got.size(), oh, ow, k, k, (size_t)2, (size_t)1, (size_t)1, (const size_t*)info.data(), x.data(), got.data());
    same("im2col_f32", got, want);

    const size_t ph = (h - 2) / 2 + 1, pw = (w - 3) / 1 + 1;
    Floats means, tops, pooled(n * c * ph * pw);
    for (size_t i = 0; i < n * c; i++)
        for (size_t p = 0; p < ph * pw; p++) {
            double sum = 0, top = -1e9;
            for (size_t t = 0; t < 6; t++) {
                double v = at(i / c, i % c, p / pw * 2 + t / 3, p % pw + t % 3);
                sum += v, top = std::max(top, v);
            }
            means.push_back(sum / 6), tops.push_back(top);
        }
    const size_t numel = x.size();
    run("conv", "avg_pool2d_f32", {4, 64}, numel, (size_t)2, (size_t)3, (size_t)2, (size_t)1, (const size_t*)info.data(), x.data(), pooled.data());
    same("avg_pool2d_f32", pooled, means, 1e-6);
    run("conv", "max_pool2d_f32", {4, 64}, numel, (size_t)2, (size_t)3, (size_t)2, (size_t)1, (const size_t*)info.data(), x.data(), pooled.data());
    same("max_pool2d_f32", pooled, tops);
}

static void reductions() {
    const int rows = 3, width = 1300;
    Floats x = noise(rows * width), scale = noise(width), shift = noise(width), got(rows * width), sums(rows), want, sum_want;
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (int i = 0; i < width; i++) sum += x[r * width + i];
        sum_want.push_back(sum);
    }
    Sizes flat = {(size_t)rows, (size_t)width, (size_t)width, 1};
    run("reduce", "fast_sum_f32", {rows, 1024}, x.size(), (size_t)width, (size_t)2, (const size_t*)flat.data(), x.data(), sums.data());
    same("fast_sum_f32", sums, sum_want, 1e-5);
    std::vector<double> wide_x(x.begin(), x.end()), wide_sums(rows);
    run("reduce", "fast_sum_f64", {rows, 256}, x.size(), (size_t)width, (size_t)2, (const size_t*)flat.data(), wide_x.data(), wide_sums.data());
    same("fast_sum_f64", wide_sums, sum_want, 1e-6);
    auto halves = narrow(x, bf16_of);
    std::vector<uint16_t> half_sums(rows);
    run("reduce", "fast_sum_bf16", {rows, 1024}, x.size(), (size_t)width, (size_t)2, (const size_t*)flat.data(), halves.data(), half_sums.data());
    same("fast_sum_bf16", wide(half_sums, of_bf16), sum_want, 0.01);
    std::vector<uint32_t> where(rows), where_want;
    for (int r = 0; r < rows; r++) where_want.push_back(std::max_element(&x[r * width], &x[r * width] + width) - &x[r * width]);
    run("reduce", "fast_argmax_f32", {rows, 256}, x.size(), (size_t)width, (size_t)2, (const size_t*)flat.data(), x.data(), where.data());
    same("fast_argmax_f32", where, where_want);

    auto norm = [&](bool centred, double eps) {
        want.clear();
        for (int r = 0; r < rows; r++) {
            double mean = centred ? sum_want[r] / width : 0, squares = 0;
            for (int i = 0; i < width; i++) squares += std::pow(x[r * width + i] - mean, 2);
            for (int i = 0; i < width; i++)
                want.push_back((x[r * width + i] - mean) / std::sqrt(squares / width + eps) * scale[i] + (centred ? shift[i] : 0));
        }
    };
    norm(true, 1e-5);
    run("reduce", "layernorm_f32", {rows, 1024}, x.data(), got.data(), scale.data(), shift.data(), width, 1024, 1e-5f);
    same("layernorm_f32", got, want, 1e-5);
    run("paring", "norm_rows", {rows, 256}, x.data(), scale.data(), shift.data(), width, 1e-5f, 1, got.data());
    same("norm_rows", got, want, 1e-5);
    norm(false, 1e-5);
    run("reduce", "rmsnorm_f32", {rows, 32}, x.data(), got.data(), scale.data(), width, 32, 1e-5f);
    same("rmsnorm_f32", got, want, 1e-5);

    want.clear();
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (int i = 0; i < width; i++) sum += std::exp(x[r * width + i]);
        for (int i = 0; i < width; i++) want.push_back(std::exp(x[r * width + i]) / sum);
    }
    run("reduce", "softmax_f32", {rows, 1, 0, 32}, x.data(), got.data(), width);
    same("softmax_f32", got, want, 1e-6);
    run("paring", "softmax_rows_f32", {rows, 128}, x.data(), (const float*)nullptr, width, (int64_t)1, 1.0f, 0.0f, 1, 1 << 30, 1 << 30, got.data());
    same("softmax_rows", got, want, 1e-6);
}

// `Code` of the kernels.
struct Code { float scale, inverse; int zero; };

static void integers() {
    const int n = 4, width = 300, parts = 3;
    Floats x = noise(n * width), ends(n * parts * 2), got, want;
    std::vector<Code> made(n);
    run("paring", "ranges", {n * parts, 64}, x.data(), (int64_t)width, parts, ends.data());
    run("paring", "codes", {1, 32}, ends.data(), parts, (int64_t)n, made.data());
    for (int r = 0; r < n; r++) {
        auto [lo, hi] = std::minmax_element(&x[r * width], &x[r * width] + width);
        float scale = (*hi - *lo) / 255;
        want.insert(want.end(), {scale, 1 / scale, std::min(std::max(std::round(-*lo * (1 / scale)), 0.f), 255.f)});
        got.insert(got.end(), {made[r].scale, made[r].inverse, (float)made[r].zero});
    }
    same("codes", got, want);

    const int oc = 4, inner = 5;
    std::vector<int> sums(n * inner * oc), weight_sums(oc, 3);
    for (auto& s : sums) s = (int)(generator() % 2000) - 1000;
    Floats factors = noise(oc), bias = noise(oc), out(n * oc * inner), values;
    for (int i = 0; i < n * oc * inner; i++) {
        int o = i / inner % oc, row = i / (inner * oc) * inner + i % inner;
        Code c = made[row / inner];
        values.push_back(std::max(0.f, (float)(sums[row * oc + o] - (c.zero - 128) * 3) * (c.scale * factors[o]) + bias[o]));
    }
    run("paring", "dequantize", {1, 64}, sums.data(), (int64_t)1, (int64_t)oc, made.data(), weight_sums.data(), factors.data(), bias.data(),
        (const float*)nullptr, oc, (int64_t)inner, (int64_t)inner, 1, (int64_t)out.size(), out.data());
    same("dequantize", out, values);

    // Blocks of 32: q8_1 is a half's scale and sum, then bytes; the product of a row with itself is its length.
    const int length = 256;
    std::vector<uint8_t> q8(length / 32 * 36), q8_0;
    run("quantized", "quantize_q8_1", {1, length}, x.data(), q8.data(), length, length);
    double squares = 0;
    Floats back, near(x.begin(), x.begin() + length);
    for (int b = 0; b < length / 32; b++) {
        uint16_t d;
        memcpy(&d, &q8[b * 36], 2);
        for (int i = 0; i < 32; i++) back.push_back(of_half(d) * (int8_t)q8[b * 36 + 4 + i]), squares += back.back() * back.back();
        q8_0.insert(q8_0.end(), &q8[b * 36], &q8[b * 36] + 2);
        q8_0.insert(q8_0.end(), &q8[b * 36] + 4, &q8[b * 36] + 36);
    }
    same("quantize_q8_1", back, near, 0.02);
    Floats product(1);
    run("quantized", "mul_mat_vec_q8_0_q8_1_cuda1", {1, 32, 0, 4}, (const void*)q8_0.data(), (const void*)q8.data(), product.data(), length, 1, length, 1);
    same("mul_mat_vec_q8_0_q8_1_cuda1", product, std::vector<double>{squares}, 1e-5);
}

#include "check_faults.h"

int main(int count, char** words) {
    if (count != 3) return printf("check <object> <plain|checked|sanitized>\n"), 2;
    variant = words[2];
    void* object = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
    if (!object) return printf("%s\n", dlerror()), 2;
    auto list = (decltype(&sim_kernels))dlsym(object, "sim_kernels");
    launch_object = (decltype(&sim_launch))dlsym(object, "sim_launch");
    watch_object = (decltype(&sim_watch))dlsym(object, "sim_watch");
    stop_of_object = (decltype(&sim_stop))dlsym(object, "sim_stop");
    kernels = list(&kernel_count);
    numbers();
    table();
    for (seed = 0; seed < 6; seed++) {
        elements();
        indices();
        windows();
        reductions();
        integers();
        faults();
    }
    seed = 0;
    times();
    return failures != 0;
}
