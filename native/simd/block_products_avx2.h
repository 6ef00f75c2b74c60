// Products of a block of inputs for AVX2. vpmaddubsw adds two products of an unsigned and a signed
// byte in each 16-bit lane. 4-bit weights leave room for a block's eight groups in those lanes;
// 8-bit weights give their sign to x, so that two products fit.
#pragma once

#include "block_panel.h"
#include "row_pointers.h"

#include "begin_target.h"

namespace block_matmul::SIMD {

constexpr int64_t kMaxStoredRows = kMinExpandedRows - 1;

// Of R rows times one panel.
template <int R>
using Sums = Ints[R][2];

INLINE __m256i ones() {
  __m256i value = _mm256_set1_epi16(1);
  asm("" : "+x"(value));  // keeps it in a register
  return value;
}

// The inputs of a group, for each output.
template <int R>
INLINE __m256i inputs_of(const RowPointers<R>& rows, int row, int64_t group) {
  return _mm256_set1_epi32(rows.template at<int32_t>(row, group * kKr));
}

// sums += the products of a block of 8-bit weights.
template <int R, typename Pair>
INLINE void multiply_8_bits(const RowPointers<R>& rows, const Pair& pair, int block,
                            Sums<R>& sums) {
  const __m256i one = ones();
#pragma unroll
  for (int64_t group = 0; group < kBlockGroups; group++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const auto weights =
          reinterpret_cast<__m256i>(words_of<Ints>(pair, block, group, half * kLanes));
      const __m256i magnitudes = _mm256_abs_epi8(weights);
#pragma unroll
      for (int r = 0; r < R; r++) {
        const __m256i signed_inputs = _mm256_sign_epi8(inputs_of<R>(rows, r, group), weights);
        const __m256i products = _mm256_maddubs_epi16(magnitudes, signed_inputs);
        sums[r][half] += reinterpret_cast<Ints>(_mm256_madd_epi16(products, one));
      }
    }
  }
}

// Sums in 16-bit lanes.
template <int R>
using NarrowSums = __m256i[R][2];

template <int R>
INLINE void widen(const NarrowSums<R>& narrow, Sums<R>& sums) {
  const __m256i one = ones();
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      sums[r][half] = reinterpret_cast<Ints>(_mm256_madd_epi16(narrow[r][half], one));
    }
  }
}

// sums = the products of a block of 4-bit weights, two per byte.
template <int R>
INLINE void multiply_4_bits(const RowPointers<R>& rows, const uint32_t (*words)[kPanelWidth],
                            Sums<R>& sums) {
  const __m256i mask = _mm256_set1_epi8(15);
  NarrowSums<R> narrow = {};
#pragma unroll
  for (int64_t group = 0; group < kBlockGroups; group += 2) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const __m256i both = load<__m256i>(words[group / 2] + half * kLanes);
      const __m256i low = _mm256_and_si256(both, mask);
      const __m256i high = _mm256_and_si256(_mm256_srli_epi32(both, 4), mask);
#pragma unroll
      for (int r = 0; r < R; r++) {
        const __m256i x0 = inputs_of<R>(rows, r, group), x1 = inputs_of<R>(rows, r, group + 1);
        const __m256i products =
            _mm256_add_epi16(_mm256_maddubs_epi16(low, x0), _mm256_maddubs_epi16(high, x1));
        narrow[r][half] = _mm256_add_epi16(narrow[r][half], products);
      }
    }
  }
  widen<R>(narrow, sums);
}

// sums = the products of a block of 4-bit weights, one per byte.
template <int R>
INLINE void multiply_expanded(const RowPointers<R>& rows, const uint8_t (*numbers)[kGroupBytes],
                              Sums<R>& sums) {
  NarrowSums<R> narrow = {};
#pragma unroll
  for (int64_t group = 0; group < kBlockGroups; group++) {
    const uint8_t* const from = numbers[group];
    const __m256i first = load<__m256i>(from), second = load<__m256i>(from + sizeof(__m256i));
#pragma unroll
    for (int r = 0; r < R; r++) {
      const __m256i x = inputs_of<R>(rows, r, group);
      narrow[r][0] = _mm256_add_epi16(narrow[r][0], _mm256_maddubs_epi16(first, x));
      narrow[r][1] = _mm256_add_epi16(narrow[r][1], _mm256_maddubs_epi16(second, x));
    }
  }
  widen<R>(narrow, sums);
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
