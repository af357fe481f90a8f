// Kernels with faults on purpose, and what no other source uses: check.cpp sees that each fault is told. Nothing else launches
// them.

// A sum over the block that lacks the barrier between two of its steps.
extern "C" __global__ void missing_barrier(const float* x, float* out) {
    __shared__ float parts[256];
    parts[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    __syncthreads();
    if (threadIdx.x == 0) *out = parts[0];
}

// Half a warp waits for the other half, which waits for the block.
extern "C" __global__ void diverges(int* out) {
    int v = threadIdx.x;
    if (threadIdx.x % 32 < 16) {
        v = __shfl_xor_sync(0xffffffff, v, 1);
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = v;
}

// Even and odd threads wait for the block at different places.
extern "C" __global__ void two_barriers(int* out) {
    if (threadIdx.x % 2) {
        __syncthreads();
        out[threadIdx.x] = 1;
    } else {
        __syncthreads();
        out[threadIdx.x] = 2;
    }
}

// Whoever has nothing to do leaves before the barrier, which a device does not mind.
extern "C" __global__ void early_leave(int n, int* out) {
    if (threadIdx.x >= n) return;
    __shared__ int last;
    if (threadIdx.x == n - 1) last = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = last;
}

extern "C" __global__ void unwritten_shared(float* out) {
    __shared__ float some[64];
    if (threadIdx.x < 32) some[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = some[threadIdx.x];
}

extern "C" __global__ void beyond_shared(int at, float* out) {
    __shared__ float some[64];
    some[threadIdx.x] = 1.0f;
    __syncthreads();
    volatile float* all = some;
    out[threadIdx.x] = all[at];
}

extern "C" __global__ void dynamic_shared(int n, int* out) {
    extern __shared__ int all[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) all[i] = i * i;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = all[n - 1 - i];
}

extern "C" __global__ void stores_at(int* out, long long at) { out[at] = 1; }

extern "C" __global__ void copies_four(const float4* x, float4* out) { *out = *x; }

extern "C" __global__ void asserts(int n) { assert(n == 0 || threadIdx.x != 5); }

// Every intrinsic of a warp, as numbers that check.cpp knows.
extern "C" __global__ void warps(int* out) {
    int t = threadIdx.x, *mine = out + 8 * t;
    mine[0] = __shfl_down_sync(0xffffffff, t, 3, 8);
    mine[1] = __shfl_up_sync(0xffffffff, t, 3, 8);
    mine[2] = __shfl_sync(0xffffffff, t, 5, 16);
    mine[3] = __shfl_xor_sync(0xffffffff, t, 9);
    mine[4] = (int)__ballot_sync(0xffffffff, t % 3 == 0);
    mine[5] = __all_sync(0xffffffff, t >= 0) + 2 * __any_sync(0xffffffff, t == 40);
    mine[6] = __syncthreads_count(t % 5 == 0);
    if (t % 2) mine[7] = __shfl_xor_sync(0xaaaaaaaa, t, 2);
    else mine[7] = __shfl_xor_sync(0x55555555, t, 4);
    __syncwarp();
}

extern "C" __global__ void counts(unsigned* out) {
    __shared__ unsigned here;
    if (threadIdx.x == 0) here = 0;
    __syncthreads();
    atomicAdd(&here, 1);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(out, here);
}

extern "C" __global__ void touches_each(float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] += 1.0f;
}

extern "C" __global__ void waits_often(float* out, int times) {
    for (int i = 0; i < times; i++) __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = 1.0f;
}
