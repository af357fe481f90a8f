// Shared memory: one arena in which every `__shared__` variable of the running kernel has a place, apart from the others.
//
// A variable is placed by the first thread of a launch that comes by its declaration, and filled with garbage by the first of a
// block, unless the seed is 0: then it has what the block before left, as on a device that is idle otherwise.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "state.h"

#ifdef SIM_SANITIZED
extern "C" void __asan_poison_memory_region(const volatile void* at, size_t size);
extern "C" void __asan_unpoison_memory_region(const volatile void* at, size_t size);
#else
#define __asan_poison_memory_region(at, bytes) ((void)0)
#define __asan_unpoison_memory_region(at, bytes) ((void)0)
#endif

namespace sim {

uint64_t block_count = 0;
void* dynamic_shared;
char* arena;

// What a kernel may declare: nvcc refuses more.
static const size_t MOST_STATIC = 48 << 10;
// Kept free behind every variable, so that what runs over an end meets nothing else.
static const size_t GAP = 256;

struct Place {
    const char* name;
    size_t from, bytes;
};
static const size_t MOST_PLACES = 64;
static Place places[MOST_PLACES];
static size_t place_count, used, static_bytes;
static uint64_t launch_count;

static size_t place(const char* name, size_t bytes, size_t align) {
    size_t from = (used + align - 1) / align * align;
    if (place_count == MOST_PLACES || from + bytes + GAP > ARENA) fail("%s has too much shared memory", name_of(current));
    places[place_count++] = {name, from, bytes};
    used = from + bytes + GAP;
    __asan_unpoison_memory_region(arena + from, bytes);
    return from;
}

bool begin_shared(size_t dynamic_bytes) {
    if (!arena) {
        void* at = mmap(nullptr, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) {
            perror("simdevice: shared memory");
            abort();
        }
        arena = (char*)at;
    }
    launch_count++;
    place_count = used = static_bytes = 0;
    if (dynamic_bytes + GAP + MOST_STATIC + MOST_PLACES * GAP > ARENA) return false;
    __asan_poison_memory_region(arena, ARENA);
    dynamic_shared = arena + place("extern __shared__", dynamic_bytes, 128);
    return true;
}

static void fill(void* at, size_t bytes) {
    // A NaN, a small number, a large one: no single value shows in every sum and every maximum.
    static const unsigned char garbage[] = {0xff, 0xa5, 0x7f};
    if (!seed) return;
    // By hand, since clang's memset is watched as the kernel's. Variables are placed at multiples of 16, with a gap behind.
    uint64_t with = garbage[seed % 3] * 0x0101010101010101u;
    volatile uint64_t* to = (volatile uint64_t*)at;
    for (size_t i = 0; i < bytes / 8; i++) to[i] = with;
    for (size_t i = bytes / 8 * 8; i < bytes; i++) ((volatile unsigned char*)at)[i] = (unsigned char)with;
}

void fill_dynamic() {
    if (places[0].bytes) fill(dynamic_shared, places[0].bytes);
}

void* new_shared(Shared* of, size_t bytes, size_t align) {
    if (of->launch != launch_count) {
        static_bytes += bytes;
        if (static_bytes > MOST_STATIC) fail("%s has more than %zu bytes of static shared memory", name_of(current), MOST_STATIC);
        of->at = arena + place(of->name, bytes, align < 16 ? 16 : align);
        of->launch = launch_count;
    }
    of->block = block_count;
    fill(of->at, bytes);
    return of->at;
}

bool is_shared(size_t offset) {
    for (size_t i = place_count; i-- > 0;) {
        if (offset >= places[i].from) return offset - places[i].from < places[i].bytes;
    }
    return false;
}

const char* shared_name(size_t offset, size_t* from_begin) {
    size_t i = place_count;
    while (i > 1 && places[i - 1].from > offset) i--;
    *from_begin = offset - places[i - 1].from;
    return places[i - 1].name;
}

}  // namespace sim
