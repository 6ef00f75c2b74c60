// y = x W in fp32, W packed. An output's products are added in an order of their own, whatever
// rows are beside it.
#pragma once

#include <stdint.h>

#include "output.h"

namespace matmul {

// W as the kernel reads it: [panels][inputs][16 outputs], padded with zeros.
struct Matrix {
  const float* weights;
  int64_t num_inputs;
  int64_t num_outputs;

  int64_t num_panels() const { return (num_outputs + kPanel - 1) / kPanel; }
};

// Panels first .. last - 1 of those rows of y, of x [..., num_inputs].
void multiply(const float* x, const Rows& rows, const Matrix& matrix, const Epilogue& epilogue,
              int64_t first, int64_t last, float* y);

}  // namespace matmul
