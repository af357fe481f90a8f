// All kernels of the object, in one table: each source adds its own before anything runs.
#include "../shim/table.h"

#include <vector>

static std::vector<SimKernel>& kernels() {
    static std::vector<SimKernel> all;
    return all;
}

void sim::add(const SimKernel* some, size_t count) { kernels().insert(kernels().end(), some, some + count); }

extern "C" __attribute__((visibility("default"))) const SimKernel* sim_kernels(size_t* count) {
    *count = kernels().size();
    return kernels().data();
}
