// Reductions of 16 vectors at once, with a third of the shuffles of one after another. AVX-512
// only.
#pragma once

#if SIMD_BITS == 512

#include "vectors.h"

#include "begin_target.h"

namespace SIMD {

// {the lanes of a[0] combined, .., the lanes of a[15] combined}. `combine` is associative.
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

// Lanes 2 i and 2 i + 1 of the result: the lower and the upper eight lanes of partial[i] combined,
// for N vectors, eight or one; further lanes are 0.
template <int N, typename Combine>
INLINE Ints reduce_halves(const Ints* partial, const Combine& combine) {
  static_assert(N == 1 || N == 8);
  if constexpr (N == 1) {
    const auto reduce = [&](IntsOf<8> x) __attribute__((always_inline)) {
      const IntsOf<4> fours = combine(x.lo, x.hi);
      const IntsOf<2> twos = combine(fours.lo, fours.hi);
      return combine(IntsOf<2>(twos[0]), IntsOf<2>(twos[1]))[0];
    };
    Ints result = 0;
    result[0] = reduce(partial[0].lo), result[1] = reduce(partial[0].hi);
    return result;
  } else {
    const auto vector = [&](int i) { return reinterpret_cast<__m512i>(partial[i]); };
    const auto combined = [&](__m512i x, __m512i y) __attribute__((always_inline)) {
      return reinterpret_cast<__m512i>(
          combine(reinterpret_cast<Ints>(x), reinterpret_cast<Ints>(y)));
    };
    __m512i fours[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      __m512i pairs[2];
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const __m512i even = vector(4 * i + 2 * k), odd = vector(4 * i + 2 * k + 1);
        pairs[k] = combined(_mm512_unpacklo_epi32(even, odd), _mm512_unpackhi_epi32(even, odd));
      }
      fours[i] = combined(_mm512_unpacklo_epi64(pairs[0], pairs[1]),
                          _mm512_unpackhi_epi64(pairs[0], pairs[1]));
    }
    const __m512i halves = combined(_mm512_shuffle_i32x4(fours[0], fours[1], 0x88),
                                    _mm512_shuffle_i32x4(fours[0], fours[1], 0xdd));
    const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    return reinterpret_cast<Ints>(_mm512_permutexvar_epi32(order, halves));
  }
}

INLINE Ints sum_16(const __m512i* a) {
  const auto add = [](__m512i x, __m512i y) __attribute__((always_inline)) {
    return _mm512_add_epi32(x, y);
  };
  return reinterpret_cast<Ints>(reduce_16(a, add));
}

}  // namespace SIMD

#include "end_target.h"

#endif
