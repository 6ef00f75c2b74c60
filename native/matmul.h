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

// Whether this processor and its system have what the kernel needs: AVX2 and FMA.
bool runs_here();

// Panels first .. last - 1 of those rows of y, of x [..., num_inputs].
void multiply(const float* x, const Rows& rows, const Matrix& matrix, const Epilogue& epilogue,
              int64_t first, int64_t last, float* y);

}  // namespace matmul
