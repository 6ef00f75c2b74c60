// Vectors of one register's width: loads, stores, reductions, conversions. Floats and Ints hold
// kLanes values; Floats8 is always 256 bits wide, for head sizes that are multiples of 8 only.
//
// Every micro-kernel in this folder is written over these types; intrinsics appear where clang's
// vector extensions have no operator.
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

constexpr int64_t kLanes8 = 8;  // in a Floats8

// Number of floats in a V.
template <typename V>
constexpr int64_t kLanesOf = sizeof(V) / sizeof(float);

// Unaligned loads and stores.
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

// Loads or stores the first `count` lanes; load_n sets the other lanes to 0. Accesses no memory
// past them.
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

// Loads kLanes values of 16 bits as floats.
INLINE Floats load_float16(const uint16_t* from) {
#if SIMD_BITS == 512
  return reinterpret_cast<Floats>(_mm512_cvtph_ps(load<__m256i>(from)));
#else
  return reinterpret_cast<Floats>(_mm256_cvtph_ps(load<__m128i>(from)));
#endif
}
INLINE Floats load_bfloat16(const uint16_t* from) {
  using Halves = uint16_t __attribute__((ext_vector_type(kLanes)));
  using Words = uint32_t __attribute__((ext_vector_type(kLanes)));
  return reinterpret_cast<Floats>(__builtin_convertvector(load<Halves>(from), Words) << 16);
}

// a * b + c, rounded once.
template <typename V>
INLINE V fma(V a, V b, V c) {
  return __builtin_elementwise_fma(a, b, c);
}

// If either operand is NaN, max and min return b.
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

// Reductions add or compare the upper half to the lower half until one lane is left.
INLINE float reduce_sum(FloatsOf<2> x) { return x[0] + x[1]; }
INLINE int32_t reduce_sum(IntsOf<2> x) { return x[0] + x[1]; }
template <typename V>
INLINE auto reduce_sum(V x) {
  return reduce_sum(x.lo + x.hi);
}

// May ignore a NaN or return it: callers that care test for NaN themselves.
INLINE float reduce_max(FloatsOf<2> x) { return x[0] > x[1] ? x[0] : x[1]; }
INLINE int32_t reduce_max(IntsOf<2> x) { return x[0] > x[1] ? x[0] : x[1]; }
template <typename V>
INLINE auto reduce_max(V x) {
  return reduce_max(max(x.lo, x.hi));
}

INLINE float float_of(int32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// The bits of |x|. As integers, they have the order of the magnitudes; those of NaN are larger.
template <typename V>
INLINE auto magnitude_bits(V x) {
  return reinterpret_cast<decltype(x < x)>(abs(x));
}

// Adds the upper 256 bits of a vector to its lower 256 bits.
INLINE Floats8 fold_to_8(Floats8 x) { return x; }
INLINE Floats8 fold_to_8(FloatsOf<16> x) { return x.lo + x.hi; }

// {reduce_sum(a), .., reduce_sum(d)}, each with the same order of additions.
template <typename V>
INLINE FloatsOf<4> reduce_sum_4(V a, V b, V c, V d) {
  const auto add = [](Floats8 x, Floats8 y) {
    return reinterpret_cast<Floats8>(_mm256_hadd_ps(x, y));
  };
  const Floats8 pairs = add(add(fold_to_8(a), fold_to_8(b)), add(fold_to_8(c), fold_to_8(d)));
  return pairs.lo + pairs.hi;
}

// Whether any lane of a comparison is true.
INLINE bool any_true(IntsOf<8> mask) {
  return _mm256_movemask_ps(reinterpret_cast<__m256>(mask));
}

// Rounds to nearest, ties to even.
INLINE IntsOf<8> nearest_int(FloatsOf<8> x) {
  return reinterpret_cast<IntsOf<8>>(_mm256_cvtps_epi32(x));
}

// Stores the lowest byte of each lane, -128 .. 127.
INLINE void store_low_bytes(int8_t* to, IntsOf<8> x) {
  const __m256i words = _mm256_packs_epi32(reinterpret_cast<__m256i>(x), _mm256_setzero_si256());
  const __m256i bytes = _mm256_packs_epi16(words, words);
  store<int32_t>(to, _mm256_extract_epi32(bytes, 0));
  store<int32_t>(to + 4, _mm256_extract_epi32(bytes, 4));
}

// Stores with saturation to 0 .. 255.
INLINE void store_saturated_u8(uint8_t* to, IntsOf<8> x) {
  const __m256i words = _mm256_packus_epi32(reinterpret_cast<__m256i>(x), _mm256_setzero_si256());
  const __m256i bytes = _mm256_packus_epi16(words, words);
  store<int32_t>(to, _mm256_extract_epi32(bytes, 0));
  store<int32_t>(to + 4, _mm256_extract_epi32(bytes, 4));
}

// Stores four vectors + 128 as bytes, saturated.
INLINE void store_4_biased_bytes(uint8_t* to, const IntsOf<8>* x) {
  const auto vector = [&](int i) { return reinterpret_cast<__m256i>(x[i]); };
  const __m256i first = _mm256_packs_epi32(vector(0), vector(1));
  const __m256i second = _mm256_packs_epi32(vector(2), vector(3));
  const __m256i bytes = _mm256_permutevar8x32_epi32(
      _mm256_packs_epi16(first, second), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  store(to, _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)));
}

#if SIMD_BITS == 512
INLINE void store_4_biased_bytes(uint8_t* to, const IntsOf<16>* x) {
  const auto vector = [&](int i) { return reinterpret_cast<__m512i>(x[i]); };
  const __m512i first = _mm512_packs_epi32(vector(0), vector(1));
  const __m512i second = _mm512_packs_epi32(vector(2), vector(3));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first, second));
  store(to, _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)));
}
INLINE bool any_true(IntsOf<16> mask) {
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask)) != 0;
}
INLINE IntsOf<16> nearest_int(FloatsOf<16> x) {
  return reinterpret_cast<IntsOf<16>>(_mm512_cvtps_epi32(x));
}
INLINE void store_low_bytes(int8_t* to, IntsOf<16> x) {
  store(to, _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(x)));
}
INLINE void store_saturated_u8(uint8_t* to, IntsOf<16> x) {
  const __m512i positive = _mm512_max_epi32(reinterpret_cast<__m512i>(x), _mm512_setzero_si512());
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtusepi32_epi8(positive));
}
#endif

// y[c][r] = x[r][c] for 8 rows and 8 columns; strides in floats.
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

// y[c][r] = x[r][c] for num_rows and num_columns that are multiples of 8; strides in floats.
inline void transpose(const float* x, int64_t x_stride, int64_t num_rows, int64_t num_columns,
                      float* y, int64_t y_stride) {
  for (int64_t row = 0; row < num_rows; row += kLanes8) {
    for (int64_t column = 0; column < num_columns; column += kLanes8) {
      transpose_8x8(x + row * x_stride + column, x_stride, y + column * y_stride + row, y_stride);
    }
  }
}

// A count that is a template argument, so that loops over it unroll and arrays stay in registers.
template <int N>
struct StaticCount {
  static constexpr int kCount = N;
};

// Calls step(StaticCount<count>()), for a count of 1 to N.
template <int N, typename Step>
INLINE void with_static_count(int64_t count, const Step& step) {
  if constexpr (N > 1) {
    if (count < N) return with_static_count<N - 1>(count, step);
  }
  step(StaticCount<N>());
}

}  // namespace SIMD

#include "end_target.h"
