// y = x W in fp32, W packed. An output's products are added in an order of their own, whatever
// rows are beside it.
#pragma once

#include <stdint.h>

#include "epilogue.h"
#include "weight_format.h"

namespace matmul {

// W as the kernel reads it: [panels][inputs][16 outputs], padded with zeros, in a form.
struct Matrix {
  const uint8_t* data;
  weights::Form form;
  int64_t num_inputs;
  int64_t num_outputs;

  const uint8_t* panel(int64_t index) const {
    return data + index * weights::bytes_of(form, num_inputs);
  }
};

// Inputs whose products are summed before they join the rest. Blocks of weights fit into it.
constexpr int64_t kBlock = 384;
constexpr int64_t kFewRows = 6;  // for which a panel in another form is expanded block by block

// Panels that are expanded at once, for all of more rows.
int64_t panels_at_once(const Matrix& matrix);

// Floats of scratch to multiply so many rows with so many panels.
int64_t scratch_size(const Matrix& matrix, int64_t num_rows, int64_t num_panels);

// Panels first .. last - 1 of those rows of y, of x [..., num_inputs].
using Multiply = void(const float* x, const Rows& rows, const Matrix& matrix,
                      const Epilogue& epilogue, int64_t first, int64_t last, float* scratch,
                      float* y);

}  // namespace matmul
