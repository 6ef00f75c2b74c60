// The AVX-512 micro-kernel of blocks of 8 bits: up to 6 rows times two panels. vpdpbusd adds four
// products of an unsigned weight and a signed number of x to each 32-bit lane.
#pragma once

#include "block_panel.h"
#include "panel_epilogue.h"
#include "row_pointers.h"

#include "begin_target.h"

namespace block_matmul::SIMD {

struct Int8Kernel {
  static constexpr int kMr = 6, kNrPanels = 2;  // exact sums and totals in 24 of 32 registers
  static constexpr bool kExpands = false;

  // R rows times P panels. Prefetches a part of the next panels with each block.
  template <int R, int P, Source>
  static void multiply(const uint8_t* quantized, const PackedMatrix& matrix,
                       const uint8_t* const* panels, const PanelEpilogue* epilogues,
                       RangePrefetcher& next_panels);
};

template <int R, int P, Source>
void Int8Kernel::multiply(const uint8_t* quantized, const PackedMatrix& matrix,
                          const uint8_t* const* panels, const PanelEpilogue* epilogues,
                          RangePrefetcher& next_panels) {
  Floats totals[R][P];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int p = 0; p < P; p++) {
      totals[r][p] = 0.0f;
      epilogues[p].prefetch(r);
    }
  }
  RowPointers<R> rows(quantized, matrix.row_bytes());
  const Int8Block* blocks[P];
#pragma unroll
  for (int p = 0; p < P; p++) blocks[p] = reinterpret_cast<const Int8Block*>(panels[p]);
  const int64_t num_blocks = matrix.num_blocks();
#pragma nounroll
  for (int64_t i = 0; i < num_blocks; i++) {
    __m512i sums[R][P];
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
      for (int p = 0; p < P; p++) {
        sums[r][p] = _mm512_set1_epi32(rows.template at<int32_t>(r, offsetof(RowBlock, start)));
      }
    }
    next_panels.step();
#pragma unroll
    for (int64_t group = 0; group < kBlockGroups; group++) {
      __m512i weights[P];
#pragma unroll
      for (int p = 0; p < P; p++) {
        weights[p] = load<__m512i>(blocks[p]->words + group * kPanelWidth);
      }
#pragma unroll
      for (int r = 0; r < R; r++) {
        const __m512i x = _mm512_set1_epi32(rows.template at<int32_t>(r, group * kKr));
#pragma unroll
        for (int p = 0; p < P; p++) sums[r][p] = _mm512_dpbusd_epi32(sums[r][p], weights[p], x);
      }
    }
    Floats scales[P];
#pragma unroll
    for (int p = 0; p < P; p++) scales[p] = load_float16(blocks[p]->halves);
#pragma unroll
    for (int r = 0; r < R; r++) {
      const Floats scale = rows.template at<float>(r, offsetof(RowBlock, scale));
      const Floats shift = rows.template at<float>(r, offsetof(RowBlock, shift));
#pragma unroll
      for (int p = 0; p < P; p++) {
        const Floats sum = fma(reinterpret_cast<Floats>(sums[r][p]), scale, shift);
        totals[r][p] = fma(sum, scales[p], totals[r][p]);
      }
    }
    rows.advance(sizeof(RowBlock));
#pragma unroll
    for (int p = 0; p < P; p++) blocks[p]++;
  }
  PanelEpilogue::apply_all<R, P>(epilogues, totals[0]);
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
