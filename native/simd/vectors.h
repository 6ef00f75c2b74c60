// Operations on vectors: arithmetic, reductions, conversions.
//
// Every micro-kernel in this folder is written over these; intrinsics appear where clang's vector
// extensions have no operator.
#pragma once

#include "vector_types.h"
#ifdef __aarch64__
#include "vectors_neon.h"
#else
#include "vectors_x86.h"
#endif

#include "begin_target.h"

namespace SIMD {

// Loads kLanes values in bfloat16.
INLINE Floats load_bfloat16(const uint16_t* from) {
  using Halves = uint16_t __attribute__((ext_vector_type(kLanes)));
  using Words = uint32_t __attribute__((ext_vector_type(kLanes)));
  return reinterpret_cast<Floats>(__builtin_convertvector(load<Halves>(from), Words) << 16);
}

// a * b + c, rounded once.
template <typename V>
INLINE V fma(V a, V b, V c) {
  return __builtin_elementwise_fma(a, b, c);
}

// If either operand is NaN, max and min return b.
template <typename V>
INLINE V max(V a, V b) {
  return a > b ? a : b;
}
template <typename V>
INLINE V min(V a, V b) {
  return a < b ? a : b;
}

template <typename V>
INLINE V abs(V x) {
  return __builtin_elementwise_abs(x);
}

// 0, 1, 2, ...
INLINE Ints iota() {
  Ints value;
  for (int64_t i = 0; i < kLanes; i++) value[i] = static_cast<int32_t>(i);
  return value;
}

// Reductions add or compare the upper half to the lower half until one lane is left.
INLINE float reduce_sum(FloatsOf<2> x) { return x[0] + x[1]; }
INLINE int32_t reduce_sum(IntsOf<2> x) { return x[0] + x[1]; }
template <typename V>
INLINE auto reduce_sum(V x) {
  return reduce_sum(x.lo + x.hi);
}

// May ignore a NaN or return it: callers that care test for NaN themselves.
INLINE float reduce_max(FloatsOf<2> x) { return x[0] > x[1] ? x[0] : x[1]; }
INLINE int32_t reduce_max(IntsOf<2> x) { return x[0] > x[1] ? x[0] : x[1]; }
template <typename V>
INLINE auto reduce_max(V x) {
  return reduce_max(max(x.lo, x.hi));
}

INLINE float float_of(int32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// The bits of |x|. As integers, they have the order of the magnitudes; those of NaN are larger.
template <typename V>
INLINE auto magnitude_bits(V x) {
  return reinterpret_cast<decltype(x < x)>(abs(x));
}

// y[c][r] = x[r][c] for num_rows and num_columns that are multiples of 8; strides in floats.
inline void transpose(const float* x, int64_t x_stride, int64_t num_rows, int64_t num_columns,
                      float* y, int64_t y_stride) {
  for (int64_t row = 0; row < num_rows; row += kLanes8) {
    for (int64_t column = 0; column < num_columns; column += kLanes8) {
      transpose_8x8(x + row * x_stride + column, x_stride, y + column * y_stride + row, y_stride);
    }
  }
}

// A count that is a template argument, so that loops over it unroll and arrays stay in registers.
template <int N>
struct StaticCount {
  static constexpr int kCount = N;
};

// Calls step(StaticCount<count>()), for a count of 1 to N.
template <int N, typename Step>
INLINE void with_static_count(int64_t count, const Step& step) {
  if constexpr (N > 1) {
    if (count < N) return with_static_count<N - 1>(count, step);
  }
  step(StaticCount<N>());
}

}  // namespace SIMD

#include "end_target.h"
