// Part of check.cpp: the table, the kernels of planted.cu, and how long threads and their switches take.
#pragma once

static void has(const char* what, const std::string& said, const char* words) {
    if (said.find(words) == std::string::npos) wrong(std::string(what) + ": `" + said + "` lacks `" + words + "`");
}

static void table() {
    for (const char* module : {"affine", "binary", "cast", "conv", "fill", "indexing", "quantized", "reduce", "sort", "ternary", "unary", "paring"}) {
        size_t n = 0;
        for (size_t i = 0; i < kernel_count; i++) n += !strcmp(kernels[i].module, module);
        if (n < 7) wrong(std::string("few kernels of ") + module);
    }
    const SimParam* p = find("affine", "affine_f64")->params;
    bool right = p[0].size == 8 && !p[0].pointer && p[3].pointer && p[3].constant && p[3].pointee == 8 && p[4].pointer && !p[4].constant;
    if (!right || find("affine", "affine_f64")->count != 7) wrong("the parameters of affine_f64");
    if (find("quantized", "quantize_q8_1")->params[1].pointee != 0) wrong("what a void pointer points to has a size");
    if (find("paring", "unfold_f32")->params[1].size != 44) wrong("the size of Geometry");
}

static uint64_t touched_at, touched_bytes, touched_write, touches;
static decltype(&sim_stop) stop_object;  // null: on_touch lets the launch go on
static void on_touch(uint64_t at, uint64_t bytes, int write) {
    touched_at = at, touched_bytes = bytes, touched_write = write, touches++;
    if (stop_object) stop_object("no more of this");
}

static void faults() {
    const bool checked = variant == "checked";
    Floats x = noise(256), out(1024);
    double sum = 0;
    for (float v : x) sum += v;

    // An order that does right by chance is told where accesses are looked up, and shows in the sum otherwise.
    std::string said = told("planted", "missing_barrier", {1, 256}, x.data(), out.data());
    bool shows = std::fabs(out[0] - sum) > 1e-3;
    static int shown = 0;
    shown += shows;
    if (checked) has("a missing barrier", said, "without a barrier between");
    else if (seed == 5 && shown < 2) wrong("a missing barrier does not show");

    std::vector<int> ints(2048, -1);
    has("divergence", told("planted", "diverges", {3, 64}, ints.data()), "waits at the shuffle of line ");
    has("divergence", told("planted", "diverges", {3, 64}, ints.data()), "which waits at the block's barrier of line ");
    has("two barriers", told("planted", "two_barriers", {1, 64}, ints.data()), "of two_barriers waits at the barrier of line ");
    run("planted", "early_leave", {1, 100}, 40, ints.data());
    for (int i = 0; i < 40; i++) if (ints[i] != 39) wrong("early_leave");
    has("an assertion", told("planted", "asserts", {2, 32}, 1), "of asserts: assertion `n == 0 || threadIdx.x != 5` failed");
    has("the thread of an assertion", told("planted", "asserts", {2, 32}, 1), "thread 5 of block ");
    run("planted", "asserts", {2, 32}, 0);

    run("planted", "dynamic_shared", {2, 33, 100 * 4}, 100, ints.data());
    for (int i = 0; i < 100; i++) if (ints[i] != (99 - i) * (99 - i)) wrong("dynamic shared memory");

    run("planted", "warps", {1, 64}, ints.data());
    for (int t = 0; t < 64; t++) {
        const int* got = &ints[8 * t];
        int lane = t % 32, vote = 0, want[8];
        for (int l = 0; l < 32; l++) vote |= (int)((unsigned)((t - lane + l) % 3 == 0) << l);
        want[0] = lane % 8 + 3 < 8 ? t + 3 : t;
        want[1] = lane % 8 >= 3 ? t - 3 : t;
        want[2] = t - t % 16 + 5;
        want[3] = t - lane + (lane ^ 9);
        want[4] = vote;
        want[5] = 1 + 2 * (t >= 32);
        want[6] = 13;
        want[7] = t - lane + (t % 2 ? lane ^ 2 : lane ^ 4);
        for (int i = 0; i < 8; i++) if (got[i] != want[i]) wrong("intrinsic " + std::to_string(i) + " of a warp");
    }
    unsigned count = 0;
    run("planted", "counts", {3, 70}, &count);
    if (count != 210) wrong("atomics");

    if (!checked) return;
    has("shared memory that nobody wrote", told("planted", "unwritten_shared", {1, 64}, out.data()), "which no thread of the block has written");
    has("beyond shared memory", told("planted", "beyond_shared", {1, 64}, 64, out.data()), "reads 4 bytes outside of shared memory: at byte 256 of some");
    has("beyond shared memory", told("planted", "dynamic_shared", {1, 32, 99 * 4}, 100, ints.data()), "outside of shared memory: at byte 396 of extern");

    // Four bytes beyond what is watched as the device's memory: the hook hears of it.
    std::vector<int> memory(64, 0);
    uint64_t from = (uint64_t)memory.data();
    watch_object(from, from + 256, on_touch);
    touches = 0;
    run("planted", "stores_at", {1, 1}, memory.data(), (long long)7);
    if (touches != 1 || touched_at != from + 28 || touched_bytes != 4 || touched_write != 1 || memory[7] != 1) wrong("a store is not heard of");
    touches = 0;
    run("planted", "stores_at", {1, 1}, memory.data() - 1, (long long)0 + 1);
    run("planted", "stores_at", {1, 1}, ints.data(), (long long)3);
    if (touches != 1) wrong("a store outside of what is watched is heard of");
    stop_object = stop_of_object;
    has("a stopped launch", told("planted", "stores_at", {5, 9}, memory.data(), (long long)9), "of stores_at: no more of this");
    if (memory[9]) wrong("a stopped launch went on");
    stop_object = nullptr;
#ifndef __clang__
    alignas(16) char four[16];
    has("a misaligned load", told("planted", "copies_four", {1, 1}, (char*)memory.data() + 20 - from % 16, four), "misaligned");
#endif
    watch_object(0, 0, nullptr);
}

// Of the best of a few runs, since others use the machine too.
template <class F>
static double seconds(F f) {
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        auto from = std::chrono::steady_clock::now();
        f();
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count());
    }
    return best;
}

// Printed, not judged: a machine that is busy would fail what is right.
static void times() {
    const int n = 1 << 20, waits = 100;
    Floats x(n), ends(16);
    const size_t numel = n;
    double each = seconds([&] { run("planted", "touches_each", {n / 1024, 1024}, x.data(), n); });
    double add = seconds([&] { run("binary", "badd_f64", {n / 2048, 1024}, numel / 2, (size_t)1, no_sizes, x.data(), x.data(), x.data()); });
    double wait = seconds([&] { run("planted", "waits_often", {8, 1024}, ends.data(), waits); });
    double few = seconds([&] { run("planted", "waits_often", {16, 64}, ends.data(), waits); });
    printf("%s: %zu kernels; a thread %.1f ns, one of badd_f64 %.1f ns, a wait of 1024 %.1f ns, of 64 %.1f ns\n", variant.c_str(), kernel_count, each / n * 1e9,
           add / (n / 2) * 1e9, wait / (8 * 1024 * waits) * 1e9,
           few / (16 * 64 * waits) * 1e9);
}
