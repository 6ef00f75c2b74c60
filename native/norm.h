// Rows brought to one size: layer normalisation (Ba et al. 2016), and that by the root of the mean
// square alone (Zhang and Sennrich 2019).
#pragma once

#include <stdint.h>

namespace norm {

struct Norm {
  const float* scale;  // [size]
  const float* bias;   // [size], or null
  int64_t size;
  float epsilon;
  bool is_centered;  // the mean is taken off
};

// y [num_rows, size] of x [num_rows, size]. A row's sums are added in an order of their own.
using Normalize = void(const Norm& norm, const float* x, int64_t num_rows, float* y);

}  // namespace norm
