// A launch: which thread runs when, and who waits for whom. Blocks run one after another. In rounds, every thread that can go on
// runs until it waits or ends; then whoever waits for threads that have all come goes on in the next round.
//
// A thread that never waits costs a call: a fiber begins thread after thread and is kept only by one that waits. The seed
// chooses the order of blocks, which warps a round takes, and the order of their threads. Not here: shared memory.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <numeric>

#include "fiber.h"
#include "state.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace sim {

const SimKernel* kernel;
uint64_t seed;
unsigned current;
uint32_t barriers_met;
uint32_t warps_met[MOST_THREADS];

// What a thread waits with.
struct Waiting {
    Fiber* fiber;  // null unless it has begun and waits
    int line;
    Together what;
    uint32_t mask, from;
    uint64_t value;  // what it gives, then what it gets
};
static Waiting waiting[MOST_THREADS];
static uint3 place_of[MOST_THREADS];
// Bits of the threads of each warp: have not ended, may go on, wait for the block, wait for the warp.
static uint32_t live[MOST_WARPS], ready[MOST_WARPS], at_barrier[MOST_WARPS], at_warp[MOST_WARPS];
static unsigned threads, warps, ended;
static bool voted;  // at the barrier that the block is at

static uint16_t ascending[MOST_THREADS], chosen[MOST_THREADS];
static const uint16_t* round_order;
static unsigned round_at, round_count;

static void** arguments;
static bool failed;
static char message[512];
static uint64_t random_state;

uint64_t random_number() {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static unsigned below(unsigned n) { return (unsigned)((random_number() >> 32) * n >> 32); }

static const char* index_of(char* text, size_t room, uint3 at, dim3 of) {
    if (of.y == 1 && of.z == 1) snprintf(text, room, "%u", at.x);
    else snprintf(text, room, "(%u, %u, %u)", at.x, at.y, at.z);
    return text;
}

const char* name_of(unsigned thread) {
    static char names[2][160];
    static int nth;
    char a[48], b[48];
    char* name = names[nth ^= 1];
    snprintf(name, sizeof names[0], "thread %s of block %s of %s", index_of(a, sizeof a, place_of[thread], blockDim),
             index_of(b, sizeof b, blockIdx, gridDim), kernel->name);
    return name;
}

bool on_fiber() { return running() != main_fiber(); }

static void tell(const char* format, va_list list) {
    if (!failed) vsnprintf(message, sizeof message, format, list);
    failed = true;
}

void fail(const char* format, ...) {
    va_list list;
    va_start(list, format);
    tell(format, list);
    va_end(list);
    switch_to(main_fiber());
    __builtin_unreachable();
}

__attribute__((format(printf, 1, 2))) static void tell(const char* format, ...) {
    va_list list;
    va_start(list, format);
    tell(format, list);
    va_end(list);
}

void assertion(const char* what, const char* file, int line) {
    const char* name = strrchr(file, '/');
    fail("%s: assertion `%s` failed, line %d of %s", name_of(current), what, line, name ? name + 1 : file);
}

// ---- Threads, on fibers.

static void run_as(unsigned thread) {
    current = thread;
    threadIdx = place_of[thread];
}

// Whoever comes next in the round; the launch's own stack where nobody does.
static Fiber* next_fiber() {
    if (round_at == round_count) return main_fiber();
    run_as(round_order[round_at++]);
    Fiber* fiber = waiting[current].fiber;
    waiting[current].fiber = nullptr;
    return fiber ? fiber : take_fiber();
}

void fiber_main() {
    Fiber* me = running();
    for (;;) {
        kernel->call(arguments);
        live[current / WARP] &= ~(1u << current % WARP);
        ended++;
        // The commonest case by far: nobody waits, and the next thread begins where this one did.
        if (round_at < round_count && !waiting[round_order[round_at]].fiber) {
            run_as(round_order[round_at++]);
            continue;
        }
        Fiber* next = next_fiber();
        give_fiber(me);
        switch_to(next);
    }
}

static void wait() {
    unsigned me = current;
    waiting[me].fiber = running();
    switch_to(next_fiber());
}

static uint64_t wait_for_block(int line, uint64_t value) {
    Waiting& mine = waiting[current];
    mine.line = line;
    mine.value = value;
    at_barrier[current / WARP] |= 1u << current % WARP;
    wait();
    return mine.value;
}

void barrier(int line) { wait_for_block(line, 0); }

int barrier_vote(int line, Vote vote, bool mine) {
    voted = true;
    uint64_t got = wait_for_block(line, mine);
    unsigned yes = (unsigned)got, of = (unsigned)(got >> 32);
    return vote == Vote::count ? (int)yes : vote == Vote::all ? yes == of : yes != 0;
}

unsigned lane() { return current % WARP; }
unsigned active() { return live[current / WARP]; }

uint64_t warp(int line, Together what, unsigned mask, unsigned from, uint64_t value) {
    if (!(mask >> lane() & 1u)) fail("%s: the mask %#x of line %d does not name the thread itself", name_of(current), mask, line);
    Waiting& mine = waiting[current];
    mine.line = line;
    mine.what = what;
    mine.mask = mask;
    mine.from = from;
    mine.value = value;
    at_warp[current / WARP] |= 1u << lane();
    wait();
    return mine.value;
}

// ---- After a round: who goes on.

#define LANES(lane, bits) for (uint32_t lane##s = (bits), lane; lane##s && (lane = __builtin_ctz(lane##s), true); lane##s &= lane##s - 1)

static void release_warp(unsigned w, uint32_t lanes) {
    Waiting* of = waiting + w * WARP;
    uint64_t given[WARP];
    uint32_t ballot = 0;
    LANES(l, lanes) {
        given[l] = of[l].value;
        ballot |= (uint32_t)(given[l] & 1) << l;
    }
    LANES(l, lanes) {
        // What a lane holds that takes no part is not defined: a NaN, or a number that is no index.
        if (of[l].what == Together::shuffle) of[l].value = lanes >> of[l].from & 1u ? given[of[l].from] : ~(uint64_t)0;
        else of[l].value = ballot;
        warps_met[w * WARP + l]++;
    }
    at_warp[w] &= ~lanes;
    ready[w] |= lanes;
}

static bool together(const Waiting& a, const Waiting& b) { return a.line == b.line && a.what == b.what && a.mask == b.mask; }

static void settle_warp(unsigned w) {
    for (uint32_t left = at_warp[w]; left;) {
        unsigned l = (unsigned)__builtin_ctz(left);
        const Waiting& one = waiting[w * WARP + l];
        uint32_t need = one.mask & live[w];
        bool come = !(need & ~at_warp[w]);
        if (come) LANES(o, need) come &= together(one, waiting[w * WARP + o]);
        if (come) release_warp(w, need);
        left &= come ? ~need : ~(1u << l);
    }
}

static void settle_block() {
    for (unsigned w = 0; w < warps; w++) {
        if (at_barrier[w] != live[w]) return;
    }
    const Waiting* first = nullptr;
    unsigned first_thread = 0, yes = 0;
    for (unsigned w = 0; w < warps; w++) {
        LANES(l, live[w]) {
            const Waiting& one = waiting[w * WARP + l];
            yes += (unsigned)one.value;
            if (!first) first = &one, first_thread = w * WARP + l;
            if (one.line != first->line) {
                char other[160];
                snprintf(other, sizeof other, "%s", name_of(first_thread));
                return tell("%s waits at the barrier of line %d, %s at that of line %d", name_of(w * WARP + l), one.line, other, first->line);
            }
        }
    }
    for (unsigned w = 0; w < warps; w++) {
        if (voted) LANES(l, live[w]) waiting[w * WARP + l].value = (uint64_t)(threads - ended) << 32 | yes;
        ready[w] = at_barrier[w];
        at_barrier[w] = 0;
    }
    voted = false;
    barriers_met++;
}

// Nobody can go on: a thread waits in its warp for one that waits elsewhere.
static void tell_divergence() {
    for (unsigned w = 0; w < warps; w++) {
        LANES(l, at_warp[w]) {
            const Waiting& one = waiting[w * WARP + l];
            LANES(o, one.mask & live[w]) {
                const Waiting& other = waiting[w * WARP + o];
                bool in_warp = at_warp[w] >> o & 1u;
                if (in_warp && together(one, other)) continue;
                char late[160];
                snprintf(late, sizeof late, "%s", name_of(w * WARP + o));
                return tell("%s waits at the %s of line %d for %s, which waits at the %s of line %d", name_of(w * WARP + l),
                            one.what == Together::shuffle ? "shuffle" : "warp's barrier", one.line, late,
                            !in_warp ? "block's barrier" : other.what == Together::shuffle ? "shuffle" : "warp's barrier", other.line);
            }
        }
    }
    tell("%s does not end, and nobody knows what it waits for", name_of(0));
}

// ---- Rounds, blocks, launches.

static void choose_at_random() {
    uint8_t order[MOST_WARPS];
    unsigned count = 0;
    bool some = below(4) == 0;
    for (unsigned w = 0; w < warps; w++) {
        if (ready[w] && !(some && below(2))) order[count++] = (uint8_t)w;
    }
    for (unsigned w = 0; !count && w < warps; w++) {
        if (ready[w]) order[count++] = (uint8_t)w;
    }
    unsigned how = below(4);
    if (how >= 2) {
        for (unsigned i = count; i > 1; i--) std::swap(order[i - 1], order[below(i)]);
    }
    round_count = 0;
    for (unsigned i = 0; i < count; i++) {
        LANES(l, ready[order[i]]) chosen[round_count++] = (uint16_t)(order[i] * WARP + l);
        ready[order[i]] = 0;
    }
    if (how == 1) std::reverse(chosen, chosen + round_count);
    if (how == 3) {
        for (unsigned i = round_count; i > 1; i--) std::swap(chosen[i - 1], chosen[below(i)]);
    }
    round_order = chosen;
}

static void choose_round(bool first) {
    round_at = 0;
    if (seed) return choose_at_random();
    if (first) {
        round_order = ascending;
        round_count = threads;
        memset(ready, 0, sizeof ready);
        return;
    }
    round_count = 0;
    for (unsigned w = 0; w < warps; w++) {
        LANES(l, ready[w]) chosen[round_count++] = (uint16_t)(w * WARP + l);
        ready[w] = 0;
    }
    round_order = chosen;
}

static void run_block() {
    block_count++;
    ended = barriers_met = 0;
    voted = false;
    fill_dynamic();
    for (unsigned w = 0; w < warps; w++) {
        unsigned left = threads - w * WARP;
        live[w] = ready[w] = left >= WARP ? ~0u : (1u << left) - 1;
        at_barrier[w] = at_warp[w] = 0;
    }
    for (bool first = true; ended < threads && !failed; first = false) {
        choose_round(first);
        if (round_count == 0) return tell_divergence();
        switch_to(next_fiber());
        if (ended == threads || failed) return;
        for (unsigned w = 0; w < warps; w++) settle_warp(w);
        settle_block();
    }
}

static void run_blocks() {
    uint64_t x = gridDim.x, y = gridDim.y, count = x * y * gridDim.z;
    // Every block once, in an order that a seed turns about: nth · step + start, where step and count have no common divisor.
    uint64_t step = 1, start = 0;
    if (seed && count > 1) {
        do step = 1 + random_number() % (count - 1);
        while (std::gcd(step, count) != 1);
        start = random_number() % count;
    }
    for (uint64_t nth = 0; nth < count && !failed; nth++) {
        uint64_t at = (uint64_t)(((unsigned __int128)nth * step + start) % count);
        blockIdx = {(unsigned)(at % x), (unsigned)(at / x % y), (unsigned)(at / x / y)};
        run_block();
    }
}

static const char* launch(const SimKernel* of, const SimLaunch* as, void** args) {
    uint64_t size = (uint64_t)as->block[0] * as->block[1] * as->block[2];
    kernel = of;
    arguments = args;
    seed = random_state = as->seed;
    failed = false;
    begin_on_main();
    blockDim = {as->block[0], as->block[1], as->block[2]};
    gridDim = {as->grid[0], as->grid[1], as->grid[2]};
    if (size == 0 || size > MOST_THREADS) {
        tell("%s: a block of %llu threads", of->name, (unsigned long long)size);
        return message;
    }
    threads = (unsigned)size;
    warps = (threads + WARP - 1) / WARP;
    for (unsigned t = 0; t < threads; t++) {
        ascending[t] = (uint16_t)t;
        place_of[t] = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
        waiting[t].fiber = nullptr;
        warps_met[t] = 0;
    }
    if (begin_shared(as->shared_bytes)) run_blocks();
    else tell("%s: %u bytes of dynamic shared memory", of->name, as->shared_bytes);
    if (failed) forget_fibers();
    return failed ? message : nullptr;
}

}  // namespace sim

extern "C" {
__attribute__((visibility("default"))) const char* sim_launch(const SimKernel* kernel, const SimLaunch* launch, void** args) {
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    return sim::launch(kernel, launch, args);
}

__attribute__((visibility("default"))) void sim_stop(const char* why) {
    if (sim::on_fiber()) sim::fail("%s: %s", sim::name_of(sim::current), why);
}
}
