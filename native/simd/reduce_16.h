// Reductions of 16 vectors at once, with a third of the shuffles of separate reductions. AVX-512
// only.
#pragma once

#if SIMD_BITS == 512

#include "vectors.h"

#include "begin_target.h"

namespace SIMD {

// Transposes and combines within each quarter of the lanes: quarter q of the result has the
// combined quarters q of a[0], .., a[3]. `combine` is associative and commutative.
template <typename Combine>
INLINE __m512i reduce_to_quarters(const Ints* a, const Combine& combine) {
  Ints pairs[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const auto even = reinterpret_cast<__m512i>(a[2 * i]);
    const auto odd = reinterpret_cast<__m512i>(a[2 * i + 1]);
    pairs[i] = combine(reinterpret_cast<Ints>(_mm512_unpacklo_epi32(even, odd)),
                       reinterpret_cast<Ints>(_mm512_unpackhi_epi32(even, odd)));
  }
  const auto first = reinterpret_cast<__m512i>(pairs[0]);
  const auto second = reinterpret_cast<__m512i>(pairs[1]);
  return reinterpret_cast<__m512i>(
      combine(reinterpret_cast<Ints>(_mm512_unpacklo_epi64(first, second)),
              reinterpret_cast<Ints>(_mm512_unpackhi_epi64(first, second))));
}

// {low's two halves, high's two halves}, where each half's two quarters are combined.
template <typename Combine>
INLINE __m512i fold_quarters(__m512i low, __m512i high, const Combine& combine) {
  return reinterpret_cast<__m512i>(
      combine(reinterpret_cast<Ints>(_mm512_shuffle_i32x4(low, high, 0x88)),
              reinterpret_cast<Ints>(_mm512_shuffle_i32x4(low, high, 0xdd))));
}

// Lane i: the sum of a[i], for i < 16.
INLINE Ints sum_16(const Ints* a) {
  const auto add = [](Ints x, Ints y) __attribute__((always_inline)) { return x + y; };
  __m512i fours[4];
#pragma unroll
  for (int i = 0; i < 4; i++) fours[i] = reduce_to_quarters(a + 4 * i, add);
  return reinterpret_cast<Ints>(fold_quarters(fold_quarters(fours[0], fours[1], add),
                                              fold_quarters(fours[2], fours[3], add), add));
}

// Lanes 2 i and 2 i + 1 of the result: the lower and the upper eight lanes of a[i] combined, for N
// vectors (1 or 8); other lanes are 0.
template <int N, typename Combine>
INLINE Ints reduce_halves(const Ints* a, const Combine& combine) {
  static_assert(N == 1 || N == 8);
  if constexpr (N == 1) {
    const auto reduce = [&](IntsOf<8> x) __attribute__((always_inline)) {
      const IntsOf<4> fours = combine(x.lo, x.hi);
      const IntsOf<2> twos = combine(fours.lo, fours.hi);
      return combine(IntsOf<2>(twos[0]), IntsOf<2>(twos[1]))[0];
    };
    Ints result = 0;
    result[0] = reduce(a[0].lo), result[1] = reduce(a[0].hi);
    return result;
  } else {
    const __m512i halves = fold_quarters(reduce_to_quarters(a, combine),
                                         reduce_to_quarters(a + 4, combine), combine);
    const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    return reinterpret_cast<Ints>(_mm512_permutexvar_epi32(order, halves));
  }
}

// Lanes 2 i and 2 i + 1 of the result: the sums of lanes 0, 4, .. and of lanes 2, 6, .. of a[i],
// for N vectors (1 or 8) whose odd lanes are 0; other lanes are 0.
template <int N>
INLINE Ints sum_alternate(const Ints* a) {
  static_assert(N == 1 || N == 8);
  if constexpr (N == 1) {
    const IntsOf<8> eights = a[0].lo + a[0].hi;
    const IntsOf<4> fours = eights.lo + eights.hi;
    Ints result = 0;
    result[0] = fours[0], result[1] = fours[2];
    return result;
  } else {
    const auto add = [](Ints x, Ints y) __attribute__((always_inline)) { return x + y; };
    __m512i pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const auto even = reinterpret_cast<__m512i>(a[2 * i]);
      const auto odd = reinterpret_cast<__m512i>(a[2 * i + 1]);
      pairs[i] = _mm512_or_si512(even, _mm512_slli_epi64(odd, 32));
    }
    const __m512i sums = fold_quarters(fold_quarters(pairs[0], pairs[1], add),
                                       fold_quarters(pairs[2], pairs[3], add), add);
    return reinterpret_cast<Ints>(_mm512_shuffle_epi32(sums, _MM_PERM_DBCA));
  }
}

}  // namespace SIMD

#include "end_target.h"

#endif
