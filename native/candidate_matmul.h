// y = x W in int8, for a few columns of W per row: the row's candidates, such as the words of a
// lexical shortlist. x is quantized as in int8_matmul.h.
//
// Sums of products are exact and scaled in the same way, so that each value equals that of the full
// product bit for bit, whichever rows share the run.
#pragma once

#include <stdint.h>

namespace candidate_matmul {

constexpr int64_t kBlock = 64;  // inputs per step of the micro-kernel

// The columns of W [num_inputs, num_outputs] as rows: [num_outputs][stride], padded with zeros.
struct Matrix {
  const int8_t* columns;
  const float* scales;             // [num_outputs]
  const int32_t* zero_point_sums;  // [num_outputs]: zero point 128 times the sum of the weights
  const float* bias;               // [num_outputs], or null
  int64_t stride;                  // a multiple of kBlock
};

// The rows of one task, and their candidates.
struct Rows {
  const uint8_t* bytes;   // [count][row_bytes]; kBlock bytes after the last row can be read
  const float* max_abs;   // [count]
  const int32_t* ids;     // [count][width], ascending; then -1
  int64_t count, row_bytes, width;
};

// Writes y [count][width]: the outputs of the candidates, and -inf after the last of them.
using Multiply = void(const Rows& rows, const Matrix& matrix, float* y);

}  // namespace candidate_matmul
