// Products of rows with the factors of LoRA adapters: simd/adapters.cc.
#pragma once

#include "matmul.h"

namespace adapters {

// Where the 16 outputs of a panel are added to a row of y: side by side; or, for one half of the outputs
// of a gated matrix (epilogue.h), the first and the last eight in two of its panels, as gates or as
// the others.
enum class Placement : int32_t { kPanels = 0, kGates = 1, kGated = 2 };

// Rows of x and y, and the floats from one to the next.
struct Strided {
  const float* x;
  int64_t x_stride;
  float* y;
  int64_t y_stride;
};

// Adds panels first_panel .. last_panel - 1 of a product to the given rows of y, which begins with the
// first of them. The matrix is in fp32, fp16 or bf16. Rows need not be adjacent, and an output has
// the same bits for any number of rows.
using Multiply = void(const Strided& data, const Rows& rows, const matmul::PackedMatrix& matrix,
                      int64_t first_panel, int64_t last_panel, Placement placement);

}  // namespace adapters
