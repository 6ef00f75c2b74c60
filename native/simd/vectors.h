// Mathematics on as many floats at once as a register holds.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define INLINE __attribute__((always_inline)) inline

#include "begin_target.h"

namespace SIMD {

constexpr int64_t kLanes = SIMD_BITS / 32;

template <int64_t N>
using FloatsOf = float __attribute__((ext_vector_type(N)));
template <int64_t N>
using IntsOf = int32_t __attribute__((ext_vector_type(N)));
using Floats = FloatsOf<kLanes>;
using Ints = IntsOf<kLanes>;
using Floats8 = FloatsOf<8>;

template <typename V = Floats, typename T>
INLINE V load(const T* from) {
  V value;
  memcpy(&value, from, sizeof value);
  return value;
}

template <typename V, typename T>
INLINE void store(T* to, V value) {
  memcpy(to, &value, sizeof value);
}

// The first `count` of a vector; the others are 0, and are not read or written.
template <typename V = Floats>
INLINE V load_n(const float* from, int64_t count) {
  V value = 0.0f;
  memcpy(&value, from, count * sizeof(float));
  return value;
}

template <typename V>
INLINE void store_n(float* to, V value, int64_t count) {
  memcpy(to, &value, count * sizeof(float));
}

template <typename V>
INLINE V fma(V a, V b, V c) {
  return __builtin_elementwise_fma(a, b, c);
}

// Of a NaN and another, b.
template <typename V>
INLINE V max(V a, V b) {
  return a > b ? a : b;
}
template <typename V>
INLINE V min(V a, V b) {
  return a < b ? a : b;
}

template <typename V>
INLINE V abs(V x) {
  return __builtin_elementwise_abs(x);
}

// 0, 1, 2, ...
INLINE Ints iota() {
  Ints value;
  for (int64_t i = 0; i < kLanes; i++) value[i] = static_cast<int32_t>(i);
  return value;
}

template <typename V>
INLINE V polynomial(V x, const float* coefficients, int degree) {
  V y = coefficients[degree];
  for (int i = degree - 1; i >= 0; i--) y = fma<V>(y, x, coefficients[i]);
  return y;
}

// e^x for x <= 88, to 0.9 units in the last place; 0 where that is below the normal numbers.
//
// x = n ln 2 + r with ln 2 in two parts, the first of few bits (Cody and Waite 1980), and
// e^r = 1 + r + r^2 p(r), where p is the best of its degree for |r| <= ln 2 / 2. A number that
// is max by kRound has n in its last bits, and the bias of an exponent besides.
template <typename V>
INLINE V exp(V x) {
  using Bits = decltype(x < x);
  constexpr float kHigh = 0.693359375f, kLow = -2.1219444e-4f, kLog2e = 1.442695041f;
  constexpr float kRound = 12582912.0f + 127.0f;
  constexpr float kLowest = -87.33654f;  // ln of the smallest normal number
  constexpr float p[] = {1.0f, 1.0f, 0.49999994f, 0.16666521f, 0.04166839f, 0.008368745f,
                         0.0013814539f};
  const V shifted = fma<V>(x, kLog2e, kRound);
  const V n = shifted - kRound;
  V r = fma<V>(n, -kHigh, x);
  r = fma<V>(n, -kLow, r);
  const Bits power = reinterpret_cast<Bits>(shifted) << 23;
  return x < kLowest ? V(0.0f) : polynomial(r, p, 6) * reinterpret_cast<V>(power);  // no NaN is
}

// 1 - 2 / (e^(2 |x|) + 1) with the sign of x; near 0, x + x^3 p(x^2). To 1.3
// units in the last place.
template <typename V>
INLINE V tanh(V x) {
  constexpr float kNear = 0.625f, kSaturated = 10.0f;
  constexpr float p[] = {-0.33333284f, 0.13331491f, -0.053743497f, 0.020650586f, -0.0057170447f};
  const V size = abs(x), square = x * x;
  const V near = fma(polynomial(square, p, 4) * square, x, x);
  const V bounded = min<V>(kSaturated, size);  // a NaN stays
  const V far = 1.0f - 2.0f / (exp(bounded + bounded) + 1.0f);
  return size < kNear ? near : __builtin_elementwise_copysign(far, x);
}

INLINE float exp_scalar(float x) { return exp(FloatsOf<4>(x))[0]; }

INLINE float sum(FloatsOf<2> x) { return x[0] + x[1]; }
template <typename V>
INLINE float sum(V x) {
  return sum(x.lo + x.hi);
}

// Of numbers: a NaN may be passed over.
INLINE float largest(FloatsOf<2> x) { return x[0] > x[1] ? x[0] : x[1]; }
template <typename V>
INLINE float largest(V x) {
  return largest(max(x.lo, x.hi));
}

INLINE Floats8 fold_to_8(Floats8 x) { return x; }
INLINE Floats8 fold_to_8(FloatsOf<16> x) { return x.lo + x.hi; }

INLINE bool any(IntsOf<8> mask) { return _mm256_movemask_ps(reinterpret_cast<__m256>(mask)); }

// To the nearest, of two as near the even one.
INLINE IntsOf<8> nearest_int(FloatsOf<8> x) {
  return reinterpret_cast<IntsOf<8>>(_mm256_cvtps_epi32(x));
}

// As unsigned bytes, the nearest that there are.
INLINE void store_saturated_u8(uint8_t* to, IntsOf<8> x) {
  const __m256i words = _mm256_packus_epi32(reinterpret_cast<__m256i>(x), _mm256_setzero_si256());
  const __m256i bytes = _mm256_packus_epi16(words, words);
  store<int32_t>(to, _mm256_extract_epi32(bytes, 0));
  store<int32_t>(to + 4, _mm256_extract_epi32(bytes, 4));
}

#if SIMD_BITS == 512
INLINE bool any(IntsOf<16> mask) {
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask)) != 0;
}
INLINE IntsOf<16> nearest_int(FloatsOf<16> x) {
  return reinterpret_cast<IntsOf<16>>(_mm512_cvtps_epi32(x));
}
INLINE void store_saturated_u8(uint8_t* to, IntsOf<16> x) {
  const __m512i positive = _mm512_max_epi32(reinterpret_cast<__m512i>(x), _mm512_setzero_si512());
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtusepi32_epi8(positive));
}
#endif

// The sums of four vectors, each in the same order.
template <typename V>
INLINE FloatsOf<4> sums(V a, V b, V c, V d) {
  const auto add = [](Floats8 x, Floats8 y) { return reinterpret_cast<Floats8>(_mm256_hadd_ps(x, y)); };
  const Floats8 pairs = add(add(fold_to_8(a), fold_to_8(b)), add(fold_to_8(c), fold_to_8(d)));
  return pairs.lo + pairs.hi;
}

constexpr int64_t kLanes8 = 8;

// Floats8 rows become eight columns.
inline void transpose_8x8(const float* x, int64_t x_stride, float* y, int64_t y_stride) {
  __m256 pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    const __m256 a = _mm256_loadu_ps(x + i * x_stride), b = _mm256_loadu_ps(x + (i + 1) * x_stride);
    pairs[i] = _mm256_unpacklo_ps(a, b);
    pairs[i + 1] = _mm256_unpackhi_ps(a, b);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; j++) {
      const __m256 a = pairs[i + j], b = pairs[i + j + 2];
      fours[i + 2 * j] = _mm256_shuffle_ps(a, b, 0x44);
      fours[i + 2 * j + 1] = _mm256_shuffle_ps(a, b, 0xee);
    }
  }
  for (int i = 0; i < 4; i++) {
    _mm256_storeu_ps(y + i * y_stride, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20));
    _mm256_storeu_ps(y + (i + 4) * y_stride, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31));
  }
}

template <int N>
struct Count {
  static constexpr int kCount = N;
};

// Calls step(Count<count>()), for a count of 1 to N.
template <int N, typename Step>
INLINE void with_static_count(int64_t count, const Step& step) {
  if constexpr (N > 1) {
    if (count < N) return with_static_count<N - 1>(count, step);
  }
  step(Count<N>());
}

}  // namespace SIMD

#include "end_target.h"
