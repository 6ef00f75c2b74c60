// Normalization of rows: LayerNormalization (Ba et al. 2016), and RMSNormalization, which divides
// by the root mean square only (Zhang and Sennrich 2019). simd/norm.cc has the kernel.
#pragma once

#include <stdint.h>

namespace norm {

struct Norm {
  const float* scale;  // [size]
  const float* bias;   // [size], or null
  int64_t size;
  float epsilon;
  bool is_centered;  // LayerNormalization: subtracts the mean
};

// y [num_rows, size] of x [num_rows, size]; y may be x. A row's sums are added in an order that does not depend
// on the other rows.
using Normalize = void(const Norm& norm, const float* x, int64_t num_rows, float* y);

}  // namespace norm
