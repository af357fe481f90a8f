// The switch between stacks, by hand, since swapcontext makes two system calls each time; and the pool of stacks.
//
// A stack is 256 KiB of address space, of which a kernel touches one or two pages, with a page below that nothing may touch.
#include "fiber.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#ifdef SIM_SANITIZED
// As <sanitizer/*.h> have them, which not every compiler comes with.
extern "C" {
void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t size);
void __sanitizer_finish_switch_fiber(void* saved, const void** bottom_old, size_t* size_old);
void __asan_unpoison_memory_region(const volatile void* at, size_t size);
}
#endif

extern "C" {
// Stops at `*save` and goes on at `to`.
void sim_switch(void** save, void* to);
void sim_begin();
[[noreturn]] __attribute__((used, visibility("hidden"))) void sim_fiber_main() {
#ifdef SIM_SANITIZED
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    sim::fiber_main();
}
}

// Only what a function must leave as it found it is saved. `ret`, since fibers mostly stop at the same depth of the same calls, so
// that the processor's guess of where each returns holds in the other. `sim_begin` is where unwinding ends.
#if defined(__x86_64__)
asm(R"(
    .text
    .hidden sim_switch
    .globl sim_switch
    .type sim_switch, @function
sim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size sim_switch, . - sim_switch
    .hidden sim_begin
    .globl sim_begin
    .type sim_begin, @function
sim_begin:
    .cfi_startproc
    .cfi_undefined rip
    call sim_fiber_main
    ud2
    .cfi_endproc
    .size sim_begin, . - sim_begin
)");
static const size_t SAVED = 6, RETURN = 6;
#elif defined(__aarch64__)
asm(R"(
    .text
    .hidden sim_switch
    .globl sim_switch
    .type sim_switch, %function
sim_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size sim_switch, . - sim_switch
    .hidden sim_begin
    .globl sim_begin
    .type sim_begin, %function
sim_begin:
    .cfi_startproc
    .cfi_undefined x30
    bl sim_fiber_main
    brk #1
    .cfi_endproc
    .size sim_begin, . - sim_begin
)");
static const size_t SAVED = 19, RETURN = 11;
#else
#error "sim_switch is written for x86-64 and aarch64"
#endif

namespace sim {

static const size_t STACK = 256 << 10;
// One for each thread that a block may have.
static Fiber all[1024], *idle[1024];
static size_t count, idle_count;
static Fiber on_main;
static Fiber* now = &on_main;

static void begin_anew(Fiber* fiber, size_t nth) {
    // Stacks lie a multiple of a page apart, so that without this all of their tops would share one line of the cache.
    size_t colour = nth * 192 % 4096 / 64 * 64;
    void** top = (void**)(fiber->bottom + fiber->size - 64 - colour);
    // Both calling conventions want 16 bytes' alignment where `sim_begin` calls.
    void** sp = (void**)((uintptr_t)top & ~(uintptr_t)15) - (SAVED + 1);
    for (size_t i = 0; i <= SAVED; i++) sp[i] = nullptr;
    sp[RETURN] = (void*)sim_begin;
    fiber->sp = sp;
    fiber->fake = nullptr;
}

static Fiber* new_fiber() {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char* at = (char*)mmap(nullptr, STACK + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || mprotect(at, page, PROT_NONE) != 0) {
        perror("simdevice: a thread's stack");
        abort();
    }
    Fiber* fiber = &all[count];
    *fiber = {nullptr, at + page, STACK, nullptr};
    begin_anew(fiber, count++);
    return fiber;
}

Fiber* take_fiber() { return idle_count ? idle[--idle_count] : new_fiber(); }

void give_fiber(Fiber* fiber) { idle[idle_count++] = fiber; }

void forget_fibers() {
    idle_count = 0;
    for (size_t i = count; i-- > 0;) {
#ifdef SIM_SANITIZED
        __asan_unpoison_memory_region(all[i].bottom, all[i].size);
#endif
        begin_anew(&all[i], i);
        give_fiber(&all[i]);
    }
}

Fiber* running() { return now; }

void switch_to(Fiber* to) {
    Fiber* from = now;
    now = to;
#ifdef SIM_SANITIZED
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->size);
#endif
    sim_switch(&from->sp, to->sp);
#ifdef SIM_SANITIZED
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

Fiber* main_fiber() { return &on_main; }

void begin_on_main() {
#ifdef SIM_SANITIZED
    pthread_attr_t attr;
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        void* bottom;
        pthread_attr_getstack(&attr, &bottom, &on_main.size);
        on_main.bottom = (char*)bottom;
        pthread_attr_destroy(&attr);
    }
#endif
}

}  // namespace sim
