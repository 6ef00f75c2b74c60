// The AVX2 int8 micro-kernel: up to 4 rows times one panel, [mr][kr] bytes by [groups][16][kr]
// weights. vpmaddubsw adds two products in each 16-bit lane; paired groups share lanes before
// vpmaddwd widens them to 32 bits.
#pragma once

#include "int8_panel.h"
#include "prefetch.h"

#include "begin_target.h"

namespace int8_matmul::SIMD {

constexpr int kMr = 4, kNrPanels = 1, kUnroll = 2;

// Broadcasts four bytes of a row to all eight 32-bit lanes.
INLINE __m256i broadcast_group(const uint8_t* row, uint64_t offset) {
  int32_t bytes;
  memcpy(&bytes, row + offset, sizeof(bytes));
  return _mm256_set1_epi32(bytes);
}

// vpmaddubsw with a memory operand; with the intrinsic, clang would load a register first.
INLINE __m256i maddubs_from_memory(const __m256i* w, __m256i x) {
  __m256i products;
  asm("vpmaddubsw %2, %1, %0" : "=x"(products) : "x"(x), "m"(*w));
  return products;
}

// The micro-kernel: R rows times one panel. Tuned for few instructions, not for latency: a second
// hyperthread shares the execution ports.
template <int R, int P>
void multiply_micro_tile(const uint8_t* bytes, int64_t stride, const float* max_abs,
                         const Panel* panels, const PanelEpilogue* epilogues,
                         PanelPrefetcher prefetcher) {
  const Panel& panel = *panels;
  __m256i sums[R][2];
  const uint8_t* rows[R];
#pragma unroll
  for (int r = 0; r < R; r++) {
    sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    rows[r] = bytes + r * stride;
    epilogues->prefetch(r);
  }
  __m256i ones = _mm256_set1_epi16(1);
  asm("" : "+x"(ones));  // keeps it in a register
  const __m256i* w = reinterpret_cast<const __m256i*>(panel.weights);
  int64_t g = 0;
  // Two loops: steps of a prefetcher without lines take time, too. A tile that is alone, and would
  // prefetch all lines, is as fast as memory without prefetches.
  const auto multiply_pairs = [&](auto step) __attribute__((always_inline)) {
    for (; g < panel.num_paired; g += 2, w += 4) {
      step();
      const __m256i w00 = _mm256_loadu_si256(w), w01 = _mm256_loadu_si256(w + 1);
      const __m256i w10 = _mm256_loadu_si256(w + 2);
#pragma unroll
      for (int r = 0; r < R; r++) {
        const __m256i x0 = broadcast_group(rows[r], panel.group_begin[g]);
        const __m256i x1 = broadcast_group(rows[r], panel.group_begin[g + 1]);
        const __m256i low =
            _mm256_add_epi16(_mm256_maddubs_epi16(x0, w00), _mm256_maddubs_epi16(x1, w10));
        const __m256i high =
            _mm256_add_epi16(_mm256_maddubs_epi16(x0, w01), maddubs_from_memory(w + 3, x1));
        sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(low, ones));
        sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(high, ones));
      }
    }
  };
  const int64_t lines_per_step = prefetcher.lines_per_step();
  if (lines_per_step > 0 && lines_per_step < kUnroll) {
    multiply_pairs([&]() __attribute__((always_inline)) { prefetcher.step(); });
  } else {
    multiply_pairs([]() __attribute__((always_inline)) {});
  }
  for (; g < panel.num_groups; g++, w += 2) {
    const __m256i w0 = _mm256_loadu_si256(w), w1 = _mm256_loadu_si256(w + 1);
#pragma unroll
    for (int r = 0; r < R; r++) {
      const __m256i x = broadcast_group(rows[r], panel.group_begin[g]);
      const __m256i low = _mm256_maddubs_epi16(x, w0), high = _mm256_maddubs_epi16(x, w1);
      sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(low, ones));
      sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(high, ones));
    }
  }
  Ints totals[R][2];  // a register copy: avoids stores to memory
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int half = 0; half < 2; half++) totals[r][half] = reinterpret_cast<Ints>(sums[r][half]);
  }
  dequantize_and_apply<R>(totals[0], 2, max_abs, panel, *epilogues);
}

}  // namespace int8_matmul::SIMD

#include "end_target.h"
