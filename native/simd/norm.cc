#include "../norm.h"

#include <math.h>

#include "vectors.h"

#include "begin_target.h"

namespace norm::SIMD {
namespace {

using namespace ::SIMD;

// Sums a row: vector(i) gives kLanes values, scalar(i) one value of the tail.
template <typename Vector, typename Scalar>
INLINE float row_sum(int64_t size, const Vector& vector, const Scalar& scalar) {
  Floats sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
#pragma unroll
    for (int k = 0; k < 4; k++) sums[k] += vector(i + k * kLanes);
  }
  for (; i + kLanes <= size; i += kLanes) sums[0] += vector(i);
  float sum = reduce_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < size; i++) sum += scalar(i);
  return sum;
}

void normalize_row(const Norm& norm, const float* x, float* y) {
  const int64_t size = norm.size;
  const float count = static_cast<float>(size);
  float mean = 0.0f;
  if (norm.is_centered) {
    mean = row_sum(size, [&](int64_t i) __attribute__((always_inline)) { return load(x + i); },
                   [&](int64_t i) __attribute__((always_inline)) { return x[i]; }) /
           count;
  }
  const auto squares = [&](int64_t i) __attribute__((always_inline)) {
    const Floats centered = load(x + i) - mean;
    return centered * centered;
  };
  const auto square = [&](int64_t i) __attribute__((always_inline)) {
    return (x[i] - mean) * (x[i] - mean);
  };
  const float factor = 1.0f / sqrtf(row_sum(size, squares, square) / count + norm.epsilon);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    Floats value = (load(x + i) - mean) * factor * load(norm.scale + i);
    if (norm.bias) value += load(norm.bias + i);
    store(y + i, value);
  }
  for (; i < size; i++) {
    y[i] = (x[i] - mean) * factor * norm.scale[i] + (norm.bias ? norm.bias[i] : 0.0f);
  }
}

}  // namespace

void normalize(const Norm& norm, const float* x, int64_t num_rows, float* y) {
  for (int64_t row = 0; row < num_rows; row++) {
    normalize_row(norm, x + row * norm.size, y + row * norm.size);
  }
}

}  // namespace norm::SIMD

#include "end_target.h"
