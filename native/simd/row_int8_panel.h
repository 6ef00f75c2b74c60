// A panel of a matrix of bytes, and what becomes of sums of its products.
#pragma once

#include "../row_int8.h"
#include "panel_output.h"

#include "begin.h"

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

// Sums of R rows and one panel, in place of whole numbers. Those are of unsigned bytes: the offsets
// are taken off.
INLINE void finish(int64_t num_rows, Ints* sums, int64_t stride, const float* largest,
                   const Panel& panel, const PanelOutput& output) {
  Floats* const values = reinterpret_cast<Floats*>(sums);
  for (int64_t r = 0; r < num_rows; r++) {
    for (int v = 0; v < kPanelVectors; v++) {
      const Ints sum = sums[r * stride + v] - load<Ints>(panel.offsets + v * kLanes);
      const Floats scaled =
          __builtin_convertvector(sum, Floats) * load(panel.scales + v * kLanes);
      values[r * stride + v] = scaled * largest[r];
    }
  }
  output.finish_all(num_rows, values, stride);
}

}  // namespace row_int8::SIMD

#include "end.h"
