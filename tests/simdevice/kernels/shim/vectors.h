// The vector types that CUDA has built in, with CUDA's sizes and alignments. Not here: vectors of half precision.
#pragma once

#define SIM_VECTORS(T, N, A2, A4)                                                            \
    struct N##1 { T x; };                                                                    \
    struct alignas(A2) N##2 { T x, y; };                                                     \
    struct N##3 { T x, y, z; };                                                              \
    struct alignas(A4) N##4 { T x, y, z, w; };                                               \
    static inline N##1 make_##N##1(T x) { return {x}; }                                      \
    static inline N##2 make_##N##2(T x, T y) { return {x, y}; }                              \
    static inline N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; }                      \
    static inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }

SIM_VECTORS(signed char, char, 2, 4)
SIM_VECTORS(unsigned char, uchar, 2, 4)
SIM_VECTORS(short, short, 4, 8)
SIM_VECTORS(unsigned short, ushort, 4, 8)
SIM_VECTORS(int, int, 8, 16)
SIM_VECTORS(unsigned int, uint, 8, 16)
SIM_VECTORS(long long, longlong, 16, 16)
SIM_VECTORS(unsigned long long, ulonglong, 16, 16)
SIM_VECTORS(float, float, 8, 16)
SIM_VECTORS(double, double, 16, 16)
#undef SIM_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
