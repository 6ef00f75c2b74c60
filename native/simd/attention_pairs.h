// Pairs of bfloat16 for vdpbf16ps (AVX-512 BF16), which makes twice the products of an fp32
// multiply-add. A pair fills a 32-bit lane, its first number in the lower half.
#pragma once

#include "../attention.h"
#include "../integers.h"
#include "vector_math.h"

#include "begin_target.h"

namespace attention::SIMD {

using namespace ::SIMD;

constexpr float kLog2e = 1.442695041f;

// Whether products with a cache round their factors to bfloat16: attention_rounded.h.
inline bool rounds_decoder(const Params& params) {
  return SIMD_BITS == 512 && params.may_round_cache();
}

#if SIMD_BITS == 512

using Pairs = Ints;

INLINE Floats multiply_add(Floats sum, Floats x, Floats y) { return fma(x, y, sum); }
// sum + x[0] y[0] + x[1] y[1] in each lane.
INLINE Floats multiply_add(Floats sum, Pairs x, Pairs y) {
  return reinterpret_cast<Floats>(
      _mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(x),
                       reinterpret_cast<__m512bh>(y)));
}

// Rounds to one pair per lane.
INLINE Pairs round_to_pairs(Floats first, Floats second) {
  using Halves = uint16_t __attribute__((ext_vector_type(2 * kLanes)));
  const __m512 a = reinterpret_cast<__m512>(first), b = reinterpret_cast<__m512>(second);
  const Halves x = reinterpret_cast<Halves>(_mm512_cvtne2ps_pbh(b, a));
  return reinterpret_cast<Pairs>(__builtin_shufflevector(
      x, x, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27,
      12, 28, 13, 29, 14, 30, 15, 31));
}

// Rounds neighbours to pairs: x [size] to [size / 2], which may start at x. `size` is a multiple of
// 2 * kLanes.
INLINE void round_neighbours(const float* x, int64_t size, void* to) {
  for (int64_t i = 0; i < size; i += 2 * kLanes) {
    const __m512 low = _mm512_loadu_ps(x + i), high = _mm512_loadu_ps(x + i + kLanes);
    store(static_cast<int32_t*>(to) + i / 2, _mm512_cvtne2ps_pbh(high, low));
  }
}

// Rounds keys, `stride` floats apart, to pairs of dimensions: to [num_keys][size / 2].
inline void round_keys(const float* keys, int64_t stride, int64_t num_keys, int64_t size,
                       int32_t* to) {
  for (int64_t key = 0; key < num_keys; key++) {
    round_neighbours(keys + key * stride, size, to + key * size / 2);
  }
}

// Rounds values, `stride` floats apart, to pairs of keys: to [div_ceil(num_keys, 2)][size]. An odd
// last value is paired with 0.
inline void round_values(const float* values, int64_t stride, int64_t num_keys, int64_t size,
                         int32_t* to) {
  for (int64_t key = 0; key < num_keys; key += 2, values += 2 * stride) {
    const bool has_second = key + 1 < num_keys;
    for (int64_t i = 0; i < size; i += kLanes, to += kLanes) {
      const Floats second = has_second ? load(values + stride + i) : Floats(0.0f);
      store(to, round_to_pairs(load(values + i), second));
    }
  }
}

#endif

// The softmax's exponential: e^x, or 2^x for scores of pairs, which include the factor log2(e).
template <typename T>
INLINE Floats power(Floats x) {
#if SIMD_BITS == 512
  if constexpr (__is_same(T, int32_t)) return exp2_coarse(x);  // error: 1/24 of bfloat16's
#endif
  return exp(x);
}

}  // namespace attention::SIMD

#include "end_target.h"
