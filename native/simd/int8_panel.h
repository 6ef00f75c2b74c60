// A panel of a matrix of bytes, and what becomes of sums of its products.
#pragma once

#include "../int8_matmul.h"
#include "panel_epilogue.h"

#include "begin_target.h"

namespace row_int8::SIMD {

using namespace ::SIMD;

// One panel of a matrix.
struct Panel {
  const int8_t* weights;
  const uint16_t* inputs;  // where those of each group are, in bytes
  int64_t num_groups, num_paired;
  const float* scales;
  const int32_t* offsets;

  Panel(const Matrix& matrix, int64_t index)
      : weights(matrix.weights + index * matrix.num_groups() * kGroup * kPanel),
        inputs(matrix.order + index * (matrix.num_groups() + 1) + 1),
        num_groups(matrix.num_groups()),
        num_paired(inputs[-1]),
        scales(matrix.scales + index * kPanel),
        offsets(matrix.offsets + index * kPanel) {}
};

// Sums [R][stride], in vectors, of R rows and one panel. They are of unsigned bytes: the offsets
// are taken off.
template <int R>
INLINE void finish(const Ints* sums, int64_t stride, const float* largest, const Panel& panel,
                   const PanelOutput& output) {
  Ints offsets[kPanelVectors];
  Floats scales[kPanelVectors], values[R][kPanelVectors];
#pragma unroll
  for (int v = 0; v < kPanelVectors; v++) {
    offsets[v] = load<Ints>(panel.offsets + v * kLanes);
    scales[v] = load(panel.scales + v * kLanes);
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int v = 0; v < kPanelVectors; v++) {
      const Ints sum = sums[r * stride + v] - offsets[v];
      values[r][v] = __builtin_convertvector(sum, Floats) * scales[v] * largest[r];
    }
  }
  output.finish<R>(values[0], kPanelVectors);
}

}  // namespace row_int8::SIMD

#include "end_target.h"
