// One packed panel of int8 weights, and the step from int32 sums to the epilogue, for all int8
// micro-kernels.
#pragma once

#include "../int8_matmul.h"
#include "panel_epilogue.h"

#include "begin_target.h"

namespace int8_matmul::SIMD {

using namespace ::SIMD;
using PanelEpilogue = ::SIMD::PanelEpilogue<Factors::kRounded>;

struct Panel {
  const int8_t* weights;        // [groups][16 outputs][4 inputs]
  const uint16_t* group_begin;  // [groups]: offset in bytes of each group's inputs in a row of x
  int64_t num_groups, num_paired;
  const float* scales;
  const int32_t* zero_point_sums;

  Panel(const PackedMatrix& matrix, int64_t index)
      : weights(matrix.weights + index * matrix.num_groups() * kKr * kPanelWidth),
        group_begin(matrix.group_order + index * (matrix.num_groups() + 1) + 1),
        num_groups(matrix.num_groups()),
        num_paired(group_begin[-1]),
        scales(matrix.scales + index * kPanelWidth),
        zero_point_sums(matrix.zero_point_sums + index * kPanelWidth) {}
};

// Dequantizes the sums [R][stride], in vectors, of R rows and one panel, and applies the epilogue.
// First subtracts the contribution of the zero point, since sums are of unsigned bytes.
template <int R>
INLINE void dequantize_and_apply(const Ints* sums, int64_t stride, const float* max_abs,
                                 const Panel& panel, const PanelEpilogue& epilogue) {
  Ints zero_point_sums[kPanelVectors];
  Floats scales[kPanelVectors], values[R][kPanelVectors];
#pragma unroll
  for (int v = 0; v < kPanelVectors; v++) {
    zero_point_sums[v] = load<Ints>(panel.zero_point_sums + v * kLanes);
    scales[v] = load(panel.scales + v * kLanes);
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int v = 0; v < kPanelVectors; v++) {
      const Ints sum = sums[r * stride + v] - zero_point_sums[v];
      values[r][v] = __builtin_convertvector(sum, Floats) * scales[v] * max_abs[r];
    }
  }
  epilogue.apply<R>(values[0], kPanelVectors);
}

}  // namespace int8_matmul::SIMD

#include "end_target.h"
