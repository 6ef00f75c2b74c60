// Reductions of 16 vectors at once, with a third of the shuffles of one after another. AVX-512 only.
#pragma once

#if SIMD_BITS == 512

#include "vectors.h"

#include "begin_target.h"

namespace SIMD {

// {the lanes of a[0] combined, .., the lanes of a[15] combined}. `combine`: any order gives the same.
template <typename Combine>
INLINE __m512i reduce_16(const __m512i* a, const Combine& combine) {
  __m512i fours[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    __m512i pairs[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const __m512i even = a[4 * i + 2 * k], odd = a[4 * i + 2 * k + 1];
      pairs[k] = combine(_mm512_unpacklo_epi32(even, odd), _mm512_unpackhi_epi32(even, odd));
    }
    fours[i] = combine(_mm512_unpacklo_epi64(pairs[0], pairs[1]),
                       _mm512_unpackhi_epi64(pairs[0], pairs[1]));
  }
  const auto fold = [&](__m512i low, __m512i high) __attribute__((always_inline)) {
    return combine(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xdd));
  };
  return fold(fold(fours[0], fours[1]), fold(fours[2], fours[3]));
}

INLINE Ints sum_16(const __m512i* a) {
  return reinterpret_cast<Ints>(reduce_16(a, [](__m512i x, __m512i y) __attribute__((
                                                 always_inline)) { return _mm512_add_epi32(x, y); }));
}

// Of unsigned numbers.
INLINE Ints max_16(const __m512i* a) {
  return reinterpret_cast<Ints>(reduce_16(a, [](__m512i x, __m512i y) __attribute__((
                                                 always_inline)) { return _mm512_max_epu32(x, y); }));
}

}  // namespace SIMD

#include "end_target.h"

#endif
