// The AVX2 micro-kernel of blocks: up to 3 rows times one panel. vpmaddubsw adds two products of an
// unsigned and a signed byte in each 16-bit lane. 4-bit weights leave room for a block's eight
// groups in those lanes; 8-bit weights give their sign to x, so that two products fit.
#pragma once

#include "block_panel.h"
#include "panel_epilogue.h"
#include "row_pointers.h"

#include "begin_target.h"

namespace block_matmul::SIMD {

constexpr int kMr = 3, kNrPanels = 1;

// 4-bit panels are expanded for more rows than these.
constexpr int64_t kMaxStoredRows = 32;

// Offsets of outputs half * 8 and on: minus the zero points, times the scales.
INLINE Floats offsets_of(const Int4Block& block, int half) {
  return __builtin_convertvector(zero_points_of(block, half), Floats) *
         (scales_of(block, half) * -kZeroPointUnit);
}
INLINE Floats offsets_of(const ExpandedBlock& block, int half) {
  return load(reinterpret_cast<const float*>(block.offsets) + half * kLanes);
}

// Writes `panel` to scratch as ExpandedBlock [num_blocks], from where it is then read: numbers from 0
// to 15, and the offsets as floats.
inline void expand(Panel& panel, int64_t num_blocks, uint8_t* scratch) {
  const auto* from = reinterpret_cast<const Int4Block*>(panel.blocks);
  auto* to = reinterpret_cast<ExpandedBlock*>(scratch);
  for (int64_t i = 0; i < num_blocks; i++, from++, to++) {
    for (int half = 0; half < 2; half++) {
      store(to->scales + half * kLanes, scales_of(*from, half));
      store(to->offsets + half * kLanes, offsets_of(*from, half));
    }
    expand_4_bits(numbers_of(*from), to->numbers, Ints(0));
  }
  panel = {scratch, num_blocks * kExpandedBytes};
}

// sums[r][half] += x[r] . the weights of eight outputs, for a group of 8-bit weights, stored + 128.
template <int R>
INLINE void multiply_group(const RowPointers<R>& rows, int64_t group, const uint8_t* numbers,
                           __m256i ones, __m256i (*sums)[2]) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const __m256i stored = load<__m256i>(numbers + group * kGroupBytes + half * sizeof(__m256i));
    const __m256i weights = _mm256_xor_si256(stored, _mm256_set1_epi8(-128));
    const __m256i magnitudes = _mm256_abs_epi8(weights);
#pragma unroll
    for (int r = 0; r < R; r++) {
      const __m256i x = _mm256_set1_epi32(rows.template at<int32_t>(r, group * kKr));
      const __m256i products = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(x, weights));
      sums[r][half] = _mm256_add_epi32(sums[r][half], _mm256_madd_epi16(products, ones));
    }
  }
}

// The same for a group of 4-bit weights, one a byte; sums are in 16-bit lanes.
template <int R>
INLINE void multiply_bytes(const RowPointers<R>& rows, int64_t group, const uint8_t* numbers,
                           __m256i (*sums)[2]) {
  const uint8_t* const from = numbers + group * kGroupBytes;
  const __m256i first = load<__m256i>(from), second = load<__m256i>(from + sizeof(__m256i));
#pragma unroll
  for (int r = 0; r < R; r++) {
    const __m256i x = _mm256_set1_epi32(rows.template at<int32_t>(r, group * kKr));
    sums[r][0] = _mm256_add_epi16(sums[r][0], _mm256_maddubs_epi16(first, x));
    sums[r][1] = _mm256_add_epi16(sums[r][1], _mm256_maddubs_epi16(second, x));
  }
}

// The same for two groups, two weights a byte.
template <int R>
INLINE void multiply_packed(const RowPointers<R>& rows, int64_t group, const uint8_t* numbers,
                            __m256i (*sums)[2]) {
  const __m256i mask = _mm256_set1_epi8(15);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const __m256i words = load<__m256i>(numbers + group / 2 * kGroupBytes + half * sizeof(__m256i));
    const __m256i low = _mm256_and_si256(words, mask);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi32(words, 4), mask);
#pragma unroll
    for (int r = 0; r < R; r++) {
      const __m256i x0 = _mm256_set1_epi32(rows.template at<int32_t>(r, group * kKr));
      const __m256i x1 = _mm256_set1_epi32(rows.template at<int32_t>(r, group * kKr + kKr));
      const __m256i products =
          _mm256_add_epi16(_mm256_maddubs_epi16(low, x0), _mm256_maddubs_epi16(high, x1));
      sums[r][half] = _mm256_add_epi16(sums[r][half], products);
    }
  }
}

// Adds one block's products as int32 to sums [R][2], which are zero.
template <int R, Source kSource, bool kHasOffsets>
INLINE void multiply_block(const RowPointers<R>& rows, const uint8_t* numbers,
                           __m256i (*sums)[2]) {
  __m256i ones = _mm256_set1_epi16(1);
  asm("" : "+x"(ones));  // keeps it in a register
  if constexpr (!kHasOffsets) {
#pragma unroll
    for (int64_t group = 0; group < kBlockGroups; group++) {
      multiply_group<R>(rows, group, numbers, ones, sums);
    }
    return;
  }
#pragma unroll
  for (int64_t group = 0; group < kBlockGroups; group += 2) {
    if constexpr (kSource == Source::kStored) {
      multiply_packed<R>(rows, group, numbers, sums);
    } else {
      multiply_bytes<R>(rows, group, numbers, sums);
      multiply_bytes<R>(rows, group + 1, numbers, sums);
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int half = 0; half < 2; half++) sums[r][half] = _mm256_madd_epi16(sums[r][half], ones);
  }
}

// The micro-kernel: R rows times one panel.
template <int R, int P, Source kSource, bool kHasOffsets, bool>
void multiply_micro_tile(const RowBlock* blocks, int64_t num_blocks, const Panel* panels,
                         const PanelEpilogue* epilogues, RangePrefetcher&) {
  static_assert(P == 1);
  using Block = typename BlockOf<kSource, kHasOffsets>::Type;
  Floats totals[R][2];
#pragma unroll
  for (int r = 0; r < R; r++) {
    totals[r][0] = totals[r][1] = 0.0f;
    epilogues->prefetch(r);
  }
  RowPointers<R> rows(blocks, num_blocks * sizeof(RowBlock));
  const auto* block = reinterpret_cast<const Block*>(panels->blocks);
  for (int64_t i = 0; i < num_blocks; i++, block++) {
    __m256i sums[R][2];
#pragma unroll
    for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    multiply_block<R, kSource, kHasOffsets>(rows, numbers_of(*block), sums);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const Floats scales = scales_of(*block, half);
#pragma unroll
      for (int r = 0; r < R; r++) {
        const Floats scale = rows.template at<float>(r, offsetof(RowBlock, scale));
        const Ints sum = reinterpret_cast<Ints>(sums[r][half]);
        const Floats product = __builtin_convertvector(sum, Floats) * scale;
        totals[r][half] = fma(product, scales, totals[r][half]);
      }
      if constexpr (kHasOffsets) {
        const Floats offsets = offsets_of(*block, half);
#pragma unroll
        for (int r = 0; r < R; r++) {
          const Floats row_sum = rows.template at<float>(r, offsetof(RowBlock, sums));
          totals[r][half] = fma(row_sum, offsets, totals[r][half]);
        }
      }
    }
    rows.advance(sizeof(RowBlock));
  }
  epilogues->apply<R>(totals[0], 2);
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
