#include "../token_sum.h"

#include "vectors.h"

#include "begin_target.h"

namespace token_sum::SIMD {
namespace {

using namespace ::SIMD;

// Sums kVectors * kLanes columns.
template <int kVectors>
INLINE void sum_columns(const float* x, int64_t num_rows, int64_t size, float* y) {
  Floats sums[kVectors] = {};
  for (int64_t row = 0; row < num_rows; row++, x += size) {
#pragma unroll
    for (int k = 0; k < kVectors; k++) sums[k] += load(x + k * kLanes);
  }
#pragma unroll
  for (int k = 0; k < kVectors; k++) store(y + k * kLanes, sums[k]);
}

}  // namespace

void sum(const float* x, int64_t num_rows, int64_t size, float* y) {
  int64_t column = 0;
  for (; column + 8 * kLanes <= size; column += 8 * kLanes) {
    sum_columns<8>(x + column, num_rows, size, y + column);
  }
  for (; column + kLanes <= size; column += kLanes) {
    sum_columns<1>(x + column, num_rows, size, y + column);
  }
  if (column == size) return;
  Floats tail = 0.0f;
  for (int64_t row = 0; row < num_rows; row++) {
    tail += load_n(x + row * size + column, size - column);
  }
  store_n(y + column, tail, size - column);
}

}  // namespace token_sum::SIMD

#include "end_target.h"
