// Conversions between float, double, integers and the narrow formats, on bits: to nearest, ties to even, rounded once. Each
// yields what a GPU's cvt instruction does, hence a NaN becomes the format's canonical one. Types are not here.
#pragma once
#include <cmath>
#include <cstdint>

#include "numbers.h"

namespace sim {

static inline float float_of_half(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest > 0x7c00u) return bits<float>(0x7fffffffu);
    if (rest == 0x7c00u) return bits<float>(sign | 0x7f800000u);
    // The exponent is 112 too small, also where the half is subnormal, and the product is exact.
    return bits<float>(bits<uint32_t>(bits<float>(rest << 13) * 0x1p112f) | sign);
}

static inline uint16_t half_of_float(float v) {
    uint32_t u = bits<uint32_t>(v), sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return 0x7fff;
    if (u >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);  // from 65520 on
    if (u < 0x38800000u) {
        // Subnormal: beside 0.5 an ulp is the smallest half, so that the addition rounds.
        return (uint16_t)(sign | (bits<uint32_t>(bits<float>(u) + 0.5f) - 0x3f000000u));
    }
    u += 0xc8000fffu + (u >> 13 & 1u);
    return (uint16_t)(sign | u >> 13);
}

static inline float float_of_bf16(uint16_t h) { return bits<float>((uint32_t)h << 16); }

static inline uint16_t bf16_of_float(float v) {
    uint32_t u = bits<uint32_t>(v);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

// Four bits of exponent, three of mantissa, no infinities: what is too large becomes the largest, 448.
static inline uint8_t e4m3_of_float(float v) {
    uint32_t u = bits<uint32_t>(v), sign = u >> 24 & 0x80u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return 0x7f;
    if (u >= 0x43e00000u) return (uint8_t)(sign | 0x7eu);  // from 448 on
    if (u < 0x3c800000u) {
        // Subnormal: beside 2^14 an ulp of a float is 2^-9, the smallest number.
        return (uint8_t)(sign | (bits<uint32_t>(bits<float>(u) + 0x1p14f) - 0x46800000u));
    }
    u += 0xc4000000u + 0x7ffffu + (u >> 20 & 1u);
    return (uint8_t)(sign | u >> 20);
}

static inline float float_of_e4m3(uint8_t h) {
    uint32_t sign = (uint32_t)(h & 0x80u) << 24, rest = h & 0x7fu;
    if (rest == 0x7fu) return bits<float>(0x7fffffffu);
    return bits<float>(bits<uint32_t>(bits<float>(rest << 20) * 0x1p120f) | sign);
}

// To odd: what is not exact gets an odd last bit, so that rounding it again to a narrower format is as if rounded once.
static inline float odd_float(double v) {
    float f = (float)v;
    if ((double)f == v || f != f) return f;
    uint32_t u = bits<uint32_t>(f);
    if (std::fabs((double)f) > std::fabs(v)) u--;
    return bits<float>(u | 1u);
}
template <class I>
static inline float odd_float_of(I v) {
    if (sizeof(I) < 8) return odd_float((double)v);
    bool negative = v < 0;
    uint64_t u = negative ? 0 - (uint64_t)v : (uint64_t)v;
    double d = u >> 53 ? (double)(u >> 11 | ((u & 0x7ffu) != 0)) * 2048.0 : (double)u;
    return odd_float(negative ? -d : d);
}

// a · b + c to odd; the product of two narrow numbers is exact in double.
static inline float odd_fma(float a, float b, float c) {
    double p = (double)a * b, s = p + c;
    if (!std::isfinite(s)) return (float)s;
    double back = s - p, lost = (p - (s - back)) + (c - back);
    if (lost != 0) {
        uint64_t u = bits<uint64_t>(s);
        if (!(u & 1u)) s = bits<double>((s < 0) == (lost < 0) ? u + 1 : u - 1);
    }
    return odd_float(s);
}

}  // namespace sim
