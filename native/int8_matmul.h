// y = x W in int8: rows of x become bytes as they come, W is bytes already.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "epilogue.h"

namespace row_int8 {

constexpr int64_t kGroup = 4;  // inputs side by side

// W as the kernel reads it: [panels][inputs / 4][16 outputs][4 inputs], padded with zeros.
//
// Sums of the products of inputs 2i and 2i + 1 with an unsigned byte each must fit 16 bits. So do
// those of two groups, where they are a pair: row_int8_pairs.cc puts such groups side by side.
struct Matrix {
  const int8_t* weights;
  // Of each panel: how many groups are in pairs, then at which byte each group's inputs begin.
  const uint16_t* order;
  const float* scales;     // of each output, also of padding
  const int32_t* offsets;  // of each output, also of padding: 128 * the sum of its weights
  int64_t num_inputs;
  int64_t num_outputs;

  int64_t num_groups() const { return (num_inputs + kGroup - 1) / kGroup; }
  int64_t num_panels() const { return (num_outputs + kPanel - 1) / kPanel; }
};

// Rows of x [..., num_inputs], times factors [num_inputs] if they are not null, to bytes around 128,
// bytes [rows.count, 4 * num_groups], and the largest abs of each.
using Quantize = void(const float* x, const float* factors, const Rows& rows, int64_t num_inputs,
                      uint8_t* bytes, float* largest);

// Panels first .. last - 1 of those rows of y. Their bytes and magnitudes begin with the first.
using Multiply = void(const uint8_t* bytes, const float* largest, const Rows& rows,
                      const Matrix& matrix, const Epilogue& epilogue, int64_t first, int64_t last,
                      float* y);

}  // namespace row_int8
