// The NEON int8 micro-kernel: up to 4 rows times one panel, [mr][kr] bytes by [groups][16][kr]
// weights. SDOT adds four products of signed bytes to a 32-bit lane and cannot saturate, so groups
// keep their order and need no pairs.
#pragma once

#include "int8_panel.h"
#include "prefetch.h"
#include "row_pointers.h"

#include "begin_target.h"

namespace int8_matmul::SIMD {

constexpr int kMr = 4, kNrPanels = 1;  // sums in 16 of 32 registers
constexpr int kUnroll = 4;  // groups in a register of inputs

// The micro-kernel: R rows times one panel.
template <int R, int P>
void multiply_micro_tile(const uint8_t* bytes, int64_t stride, const float* max_abs,
                         const Panel* panels, const PanelEpilogue* epilogues, PanelPrefetcher) {
  const Panel& panel = *panels;
  Ints sums[R][kPanelVectors];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int v = 0; v < kPanelVectors; v++) {
      // The products leave out the zero point, which dequantize_and_apply() subtracts.
      sums[r][v] = load<Ints>(panel.zero_point_sums + v * kLanes);
    }
    epilogues->prefetch(r);
  }
  RowPointers<R> rows(bytes, stride);
  const int8_t* w = panel.weights;
  const auto multiply_add = [&](int group, const auto& inputs_of) __attribute__((always_inline)) {
    const int8_t* const from = w + group * kKr * kPanelWidth;
    const Ints weights[] = {load<Ints>(from), load<Ints>(from + sizeof(Ints))};
#pragma unroll
    for (int r = 0; r < R; r++) {
      const Ints x = inputs_of(r);
#pragma unroll
      for (int v = 0; v < kPanelVectors; v++) {
        sums[r][v] = add_dot_products(sums[r][v], weights[v], x);
      }
    }
  };
  const auto advance = [&](int64_t num_groups) __attribute__((always_inline)) {
    rows.advance(num_groups * kKr);
    w += num_groups * kKr * kPanelWidth;
  };
  int64_t num_left = stride / kKr;
  for (; num_left >= kUnroll; num_left -= kUnroll) {
    IntsOf<kUnroll> x[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
      x[r] = without_zero_points(rows.template at<IntsOf<kUnroll>>(r, 0));
    }
#pragma unroll
    for (int group = 0; group < kUnroll; group++) {
      multiply_add(group, [&](int r) __attribute__((always_inline)) { return x[r][group]; });
    }
    advance(kUnroll);
  }
  for (; num_left; num_left--) {
    multiply_add(0, [&](int r) __attribute__((always_inline)) {
      return without_zero_points(rows.template at<int32_t>(r, 0));
    });
    advance(1);
  }
  dequantize_and_apply<R>(sums[0], kPanelVectors, max_abs, panel, *epilogues);
}

}  // namespace int8_matmul::SIMD

#include "end_target.h"
