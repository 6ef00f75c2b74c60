// Some rows times some panels, where VNNI adds four products in one instruction.
#pragma once

#include "int8_panel.h"
#include "row_pointers.h"

#include "begin_target.h"

namespace row_int8::SIMD {

constexpr int kMostPanels = 2, kTile = 12;  // 24 of 32 registers are sums
// Groups in a step of its loop. Two panels have eight lines of a cache for them; eight tiles, all
// the rows that panels are read for, fetch one each of the next two.
constexpr int kUnrolled = 4;

// R rows times P panels, whose groups lie in order.
template <int R, int P>
void multiply_tile(const uint8_t* bytes, int64_t stride, const float* largest, const Panel* panels,
                   const PanelOutput* outputs, Ahead ahead) {
  __m512i sums[R][P];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int p = 0; p < P; p++) {
      sums[r][p] = _mm512_setzero_si512();
      outputs[p].fetch(r);
    }
  }
  RowsAhead<R> rows(bytes, stride);
  const __m512i* w[P];
#pragma unroll
  for (int p = 0; p < P; p++) w[p] = reinterpret_cast<const __m512i*>(panels[p].weights);
  const auto add = [&](int64_t group) __attribute__((always_inline)) {
    __m512i weights[P];
#pragma unroll
    for (int p = 0; p < P; p++) weights[p] = _mm512_loadu_si512(w[p] + group);
#pragma unroll
    for (int r = 0; r < R; r++) {
      const __m512i x = _mm512_set1_epi32(rows.template at<int32_t>(r, group * kGroup));
#pragma unroll
      for (int p = 0; p < P; p++) sums[r][p] = _mm512_dpbusd_epi32(sums[r][p], x, weights[p]);
    }
  };
  const auto skip = [&](int64_t num_groups) __attribute__((always_inline)) {
    rows.skip(num_groups * kGroup);
#pragma unroll
    for (int p = 0; p < P; p++) w[p] += num_groups;
  };
  int64_t left = stride / kGroup;
  for (; left >= kUnrolled; left -= kUnrolled) {
    if constexpr (P == 2) ahead.fetch();
#pragma unroll
    for (int group = 0; group < kUnrolled; group++) add(group);
    skip(kUnrolled);
  }
  for (; left; left--) {
    add(0);
    skip(1);
  }
  Ints found[R][P];  // sums stay in registers
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int p = 0; p < P; p++) found[r][p] = reinterpret_cast<Ints>(sums[r][p]);
  }
#pragma unroll
  for (int p = 0; p < P; p++) finish<R>(found[0] + p, P, largest, panels[p], outputs[p]);
}

}  // namespace row_int8::SIMD

#include "end_target.h"
