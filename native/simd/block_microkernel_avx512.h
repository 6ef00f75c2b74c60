// The AVX-512 micro-kernel of blocks: up to 6 rows times two panels. vpdpbusd adds four products of
// an unsigned weight and a signed number of x to each 32-bit lane.
#pragma once

#include "block_panel.h"
#include "panel_epilogue.h"
#include "row_pointers.h"

#include "begin_target.h"

namespace block_matmul::SIMD {

constexpr int kMr = 6, kNrPanels = 2;  // exact sums and totals in 24 of 32 registers

// 4-bit panels are expanded for more rows than these.
constexpr int64_t kMaxStoredRows = kMinExpandedRows - 1;

// Writes the numbers of `panel` to scratch [num_blocks][kBlockBytes], from where they are read.
inline void expand(Panel& panel, int64_t num_blocks, uint8_t* scratch) {
  for (int64_t block = 0; block < num_blocks; block++) {
    expand_4_bits(panel.numbers + block * panel.numbers_stride, scratch + block * kBlockBytes);
  }
  panel.numbers = scratch;
  panel.numbers_stride = kBlockBytes;
}

// Adds one block's products: sums[r][p] += x[r] . weights[p]. Packed: two 4-bit numbers in a byte.
template <int R, int P, bool kIsPacked>
INLINE void multiply_block(const RowPointers<R>& rows, const uint8_t* const* numbers,
                           __m512i (*sums)[P]) {
  const auto multiply_add = [&](int64_t group, const __m512i* weights) __attribute__((always_inline)) {
#pragma unroll
    for (int r = 0; r < R; r++) {
      const __m512i x = _mm512_set1_epi32(rows.template at<int32_t>(r, group * kKr));
#pragma unroll
      for (int p = 0; p < P; p++) sums[r][p] = _mm512_dpbusd_epi32(sums[r][p], weights[p], x);
    }
  };
  if constexpr (!kIsPacked) {
#pragma unroll
    for (int64_t group = 0; group < kBlockGroups; group++) {
      __m512i weights[P];
#pragma unroll
      for (int p = 0; p < P; p++) weights[p] = load<__m512i>(numbers[p] + group * kGroupBytes);
      multiply_add(group, weights);
    }
  } else {
    const __m512i mask = _mm512_set1_epi8(15);
#pragma unroll
    for (int64_t group = 0; group < kBlockGroups; group += 2) {
      __m512i words[P], weights[P];
#pragma unroll
      for (int p = 0; p < P; p++) {
        words[p] = load<__m512i>(numbers[p] + group / 2 * kGroupBytes);
        weights[p] = _mm512_and_si512(words[p], mask);
      }
      multiply_add(group, weights);
#pragma unroll
      for (int p = 0; p < P; p++) {
        weights[p] = _mm512_and_si512(_mm512_srli_epi32(words[p], 4), mask);
      }
      multiply_add(group + 1, weights);
    }
  }
}

// The micro-kernel: R rows times P panels. Prefetches a part of the next panels with each block.
template <int R, int P, Source kSource, bool kHasOffsets>
void multiply_micro_tile(const RowBlock* blocks, int64_t num_blocks, const Panel* panels,
                         const PanelEpilogue* epilogues, RangePrefetcher& next_panels) {
  Floats totals[R][P];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int p = 0; p < P; p++) {
      totals[r][p] = 0.0f;
      epilogues[p].prefetch(r);
    }
  }
  RowPointers<R> rows(blocks, num_blocks * sizeof(RowBlock));
  const uint8_t* numbers[P];
  const uint8_t* halves[P];
#pragma unroll
  for (int p = 0; p < P; p++) {
    numbers[p] = panels[p].numbers;
    halves[p] = panels[p].halves;
  }
  for (int64_t block = 0; block < num_blocks; block++) {
    __m512i sums[R][P];
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
      for (int p = 0; p < P; p++) {
        sums[r][p] = _mm512_set1_epi32(rows.template at<int32_t>(r, offsetof(RowBlock, start)));
      }
    }
    next_panels.step();
    multiply_block<R, P, kHasOffsets && kSource == Source::kStored>(rows, numbers, sums);
    Floats scales[P], offsets[P];
#pragma unroll
    for (int p = 0; p < P; p++) {
      const auto* scale_halves = reinterpret_cast<const uint16_t*>(halves[p]);
      scales[p] = load_halves(scale_halves, 0);
      if constexpr (kHasOffsets) offsets[p] = load_halves(scale_halves + kPanelWidth, 0);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
      const Floats scale = rows.template at<float>(r, offsetof(RowBlock, scale));
      const Floats shift = rows.template at<float>(r, offsetof(RowBlock, shift));
#pragma unroll
      for (int p = 0; p < P; p++) {
        const Floats sum = fma(reinterpret_cast<Floats>(sums[r][p]), scale, shift);
        totals[r][p] = fma(sum, scales[p], totals[r][p]);
      }
      if constexpr (kHasOffsets) {
        const Floats row_sum = rows.template at<float>(r, offsetof(RowBlock, sum));
#pragma unroll
        for (int p = 0; p < P; p++) totals[r][p] = fma(row_sum, offsets[p], totals[r][p]);
      }
    }
    rows.advance(sizeof(RowBlock));
#pragma unroll
    for (int p = 0; p < P; p++) {
      numbers[p] += panels[p].numbers_stride;
      halves[p] += panels[p].halves_stride;
    }
  }
  PanelEpilogue::apply_all<R, P>(epilogues, totals[0]);
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
