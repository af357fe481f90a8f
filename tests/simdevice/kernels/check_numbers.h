// Part of check.cpp: the narrow formats' conversions (shim/narrow.h) against slower ones that are plainly right: every number of
// a format is known, and the nearest is searched for.
#pragma once
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "shim/narrow.h"

static void wrong(const std::string& what);

#ifdef __SIZEOF_FLOAT128__
typedef __float128 Widest;
#else
typedef long double Widest;
#endif

// A number of `exponent` and `mantissa` bits.
static double of_bits(unsigned bits, int exponent, int mantissa) {
    int e = bits >> mantissa & ((1 << exponent) - 1), m = bits & ((1 << mantissa) - 1), bias = (1 << (exponent - 1)) - 1;
    double v = e ? std::ldexp((1 << mantissa) + m, e - bias - mantissa) : std::ldexp(m, 1 - bias - mantissa);
    return bits >> (exponent + mantissa) & 1 ? -v : v;
}
static double of_half(uint16_t h) { return of_bits(h, 5, 10); }
static double of_bf16(uint16_t h) { return of_bits(h, 8, 7); }

// The nearest of the numbers with bits 0 to `last`, ties to an even one; `last` + 1 for what is beyond half a step after it.
template <class T>
static unsigned nearest(T v, unsigned last, int exponent, int mantissa) {
    bool negative = v < 0;
    if (negative) v = -v;
    unsigned low = 0, high = last + 1;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if ((T)of_bits(middle, exponent, mantissa) <= v) low = middle;
        else high = middle;
    }
    T below = v - (T)of_bits(low, exponent, mantissa), above = (T)of_bits(low + 1, exponent, mantissa) - v;
    unsigned bits = above < below || (above == below && low % 2) ? low + 1 : low;
    return bits | (negative ? 1u << (exponent + mantissa) : 0);
}
static uint16_t half_of(double v) { return (uint16_t)nearest(v, 0x7bff, 5, 10); }
static uint16_t bf16_of(double v) { return (uint16_t)nearest(v, 0x7f7f, 8, 7); }

static void number(const char* what, double v, unsigned got, unsigned want) {
    char text[160];
    snprintf(text, sizeof text, "%s of %.17g is %#x, not %#x", what, v, got, want);
    if (got != want) wrong(text);
}

static void numbers() {
    for (unsigned h = 0; h < 0x10000; h++) {
        if ((h & 0x7c00) != 0x7c00) {
            number("the float of the half", h, sim::bits<uint32_t>(sim::float_of_half(h)), sim::bits<uint32_t>((float)of_half(h)));
            number("a half's half", h, sim::half_of_float(sim::float_of_half(h)), h);
        }
    }
    for (unsigned b = 0; b < 0x7f; b++) number("the float of the e4m3", b, sim::bits<uint32_t>(sim::float_of_e4m3(b)), sim::bits<uint32_t>((float)of_bits(b, 4, 3)));
    std::mt19937_64 generator(2);
    for (int i = 0; i < 200000; i++) {
        // Some lie on a tie or next to one.
        float f = sim::bits<float>((uint32_t)generator());
        if (i % 3 == 0) f = (float)of_half(generator() & 0x7bff) * (1 + std::ldexp((float)(int)(generator() % 5) - 2, -12));
        if (std::isfinite(f)) {
            number("the half", f, sim::half_of_float(f), half_of(f));
            number("the bf16", f, sim::bf16_of_float(f), bf16_of(f));
            unsigned fp8 = nearest((double)std::fabs(f), 0x7e, 4, 3);
            number("the e4m3", f, sim::e4m3_of_float(f), std::min(fp8, 0x7eu) | (std::signbit(f) ? 0x80 : 0));
        }
        double d = of_half(generator() & 0x7bff) * (1 + std::ldexp(1, -11)) * (1 + std::ldexp((double)(int)(generator() % 3) - 1, -40));
        number("the half of the double", d, sim::half_of_float(sim::odd_float(d)), half_of(d));
        number("the bf16 of the double", d, sim::bf16_of_float(sim::odd_float(d)), bf16_of(d));
        int64_t n = (int64_t)generator() >> generator() % 64;
        number("the bf16 of the integer", (double)n, sim::bf16_of_float(sim::odd_float_of(n)), nearest((Widest)n, 0x7f7f, 8, 7));
        float a = of_half(generator() & 0xbbff), b = of_half(generator() & 0xbbff), c = of_half(generator() & 0xbbff);
        Widest exact = (Widest)a * b + c;
        // The sign of a zero is not compared: the sum has it by other rules.
        if (exact != 0) number("the half of the fma", (double)exact, sim::half_of_float(sim::odd_fma(a, b, c)), nearest(exact, 0x7bff, 5, 10));
    }
    number("the half of infinity", INFINITY, sim::half_of_float(INFINITY), 0x7c00);
    number("the half of a NaN", NAN, sim::half_of_float(NAN), 0x7fff);
    number("the bf16 of a NaN", NAN, sim::bf16_of_float(NAN), 0x7fff);
    number("the bf16 of infinity", -INFINITY, sim::bf16_of_float(-INFINITY), 0xff80);
    number("the e4m3 of infinity", INFINITY, sim::e4m3_of_float(INFINITY), 0x7e);
}
