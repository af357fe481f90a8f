// Stacks that take turns on one thread of the CPU. Not here: whose turn it is (launch.cpp).
#pragma once
#include <cstddef>

namespace sim {

struct Fiber {
    void* sp;      // where it stopped
    char* bottom;  // lowest address of its stack, above a guard page
    size_t size;
    void* fake;    // the address sanitizer's
};

// A fiber that nobody uses, which begins in `fiber_main` or goes on after its last `switch_to`.
Fiber* take_fiber();
// The fiber is at a place from where it can begin another thread.
void give_fiber(Fiber* fiber);
// Every fiber begins anew: what was on their stacks is given up.
void forget_fibers();

Fiber* running();
void switch_to(Fiber* to);
// The stack that the launch was called on.
Fiber* main_fiber();
// A launch begins: the sanitizer must know the bounds of this thread's stack.
void begin_on_main();

// What a fiber runs; never returns.
[[noreturn]] void fiber_main();

}  // namespace sim
