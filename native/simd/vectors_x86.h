// The operations on vectors that need intrinsics: AVX2, and AVX-512 where SIMD_BITS is 512.
#pragma once

#include <immintrin.h>

#include "vector_types.h"

#include "begin_target.h"

namespace SIMD {

// Loads kLanes values in half precision.
INLINE Floats load_float16(const uint16_t* from) {
#if SIMD_BITS == 512
  return reinterpret_cast<Floats>(_mm512_cvtph_ps(load<__m256i>(from)));
#else
  return reinterpret_cast<Floats>(_mm256_cvtph_ps(load<__m128i>(from)));
#endif
}

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

}  // namespace SIMD

#include "end_target.h"
