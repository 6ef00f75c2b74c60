// The AVX-512 int8 micro-kernel: up to 12 rows times two panels, [mr][kr] bytes by [groups][16][kr]
// weights. VNNI's vpdpbusd adds four products to a 32-bit lane and cannot saturate, so groups keep
// their order and need no pairs.
#pragma once

#include "int8_panel.h"
#include "prefetch.h"
#include "row_pointers.h"

#include "begin_target.h"

namespace int8_matmul::SIMD {

constexpr int kMr = 12, kNrPanels = 2;  // sums in 24 of 32 registers
// Groups per iteration of the inner loop, in which panels hold kUnroll * kNrPanels cache lines.
constexpr int kUnroll = 4;

// The micro-kernel: R rows times P panels.
template <int R, int P>
void multiply_micro_tile(const uint8_t* bytes, int64_t stride, const float* max_abs,
                         const Panel* panels, const PanelEpilogue* epilogues,
                         PanelPrefetcher prefetcher) {
  __m512i sums[R][P];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int p = 0; p < P; p++) {
      sums[r][p] = _mm512_setzero_si512();
      epilogues[p].prefetch(r);
    }
  }
  RowPointers<R> rows(bytes, stride);
  const __m512i* w[P];
#pragma unroll
  for (int p = 0; p < P; p++) w[p] = reinterpret_cast<const __m512i*>(panels[p].weights);
  const auto multiply_add = [&](int64_t group) __attribute__((always_inline)) {
    __m512i weights[P];
#pragma unroll
    for (int p = 0; p < P; p++) weights[p] = _mm512_loadu_si512(w[p] + group);
#pragma unroll
    for (int r = 0; r < R; r++) {
      const __m512i x = _mm512_set1_epi32(rows.template at<int32_t>(r, group * kKr));
#pragma unroll
      for (int p = 0; p < P; p++) sums[r][p] = _mm512_dpbusd_epi32(sums[r][p], x, weights[p]);
    }
  };
  const auto advance = [&](int64_t num_groups) __attribute__((always_inline)) {
    rows.advance(num_groups * kKr);
#pragma unroll
    for (int p = 0; p < P; p++) w[p] += num_groups;
  };
  int64_t num_left = stride / kKr;
  for (; num_left >= kUnroll; num_left -= kUnroll) {
    if constexpr (P == 2) prefetcher.step();
#pragma unroll
    for (int group = 0; group < kUnroll; group++) multiply_add(group);
    advance(kUnroll);
  }
  for (; num_left; num_left--) {
    multiply_add(0);
    advance(1);
  }
  Ints totals[R][P];  // a register copy: avoids stores to memory
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int p = 0; p < P; p++) totals[r][p] = reinterpret_cast<Ints>(sums[r][p]);
  }
#pragma unroll
  for (int p = 0; p < P; p++) {
    dequantize_and_apply<R>(totals[0] + p, P, max_abs, panels[p], epilogues[p]);
  }
}

}  // namespace int8_matmul::SIMD

#include "end_target.h"
