// The two products of attention, for a few queries at a time.
//
// What is computed for one query never depends on the others: each sum has its own register and
// runs over its dimensions, or over its keys, in one order.
#pragma once

#include "../integers.h"
#include "vectors.h"

#include "begin_target.h"

namespace attention::SIMD {

using namespace ::SIMD;

template <typename V>
constexpr int64_t kSizeOf = sizeof(V) / sizeof(float);

// Scores of R queries, of `size` floats each, with 4 keys. N: how many vectors that is, or 0 for
// any number.
template <int R, int N, typename V>
INLINE void score_four(const float* queries, int64_t any_size, const float* const keys[4],
                       float* scores, int64_t scores_stride) {
  const int64_t size = N ? N * kSizeOf<V> : any_size;
  V sums[R][4];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int c = 0; c < 4; c++) sums[r][c] = 0.0f;
  }
  for (int64_t i = 0; i < size; i += kSizeOf<V>) {
    V query[R];
#pragma unroll
    for (int r = 0; r < R; r++) query[r] = load<V>(queries + r * size + i);
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const V key = load<V>(keys[c] + i);
#pragma unroll
      for (int r = 0; r < R; r++) sums[r][c] = fma(query[r], key, sums[r][c]);
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
    store(scores + r * scores_stride,
          ::SIMD::sums(sums[r][0], sums[r][1], sums[r][2], sums[r][3]));
  }
}

// Scores of R queries with keys first .. last - 1 of a block, at scores + first and on.
//
// While that goes on, the values of these keys are fetched, if they are given.
//
// Scores behind them, up to a multiple of 4, are written too: those of the last key. No other
// key is read.
template <int R, int N, typename V>
void score(const float* queries, int64_t any_size, const float* keys, int64_t first, int64_t last,
           const float* values, float* scores, int64_t scores_stride) {
  const int64_t size = N ? N * kSizeOf<V> : any_size;
  for (int64_t key = first; key < last; key += 4) {
    const float* four[4];
    if (values) {
      for (int64_t i = 0; i < 4 * size; i += kLine) __builtin_prefetch(values + key * size + i);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) four[c] = keys + (key + c < last ? key + c : last - 1) * size;
    score_four<R, N, V>(queries, size, four, scores + key, scores_stride);
  }
}

// Scores of R queries with K vectors of keys, which lie side by side: keys[dimension][stride].
template <int R, int K>
INLINE void score_columns(const float* queries, int64_t size, const float* keys, int64_t stride,
                          float* scores, int64_t scores_stride) {
  Floats sums[R][K];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int k = 0; k < K; k++) sums[r][k] = 0.0f;
  }
  for (int64_t i = 0; i < size; i++, keys += stride) {
    Floats query[R];
#pragma unroll
    for (int r = 0; r < R; r++) query[r] = queries[r * size + i];
#pragma unroll
    for (int k = 0; k < K; k++) {
      const Floats some = load(keys + k * kLanes);
#pragma unroll
      for (int r = 0; r < R; r++) sums[r][k] = fma(query[r], some, sums[r][k]);
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int k = 0; k < K; k++) store(scores + r * scores_stride + k * kLanes, sums[r][k]);
  }
}

// The same for keys first .. last - 1, both multiples of kLanes.
template <int R>
void score_all_columns(const float* queries, int64_t size, const float* keys, int64_t first,
                       int64_t last, float* scores, int64_t stride) {
  int64_t key = first;
  const auto step = [&](auto count) __attribute__((always_inline)) {
    for (; key + count.kCount * kLanes <= last; key += count.kCount * kLanes) {
      score_columns<R, count.kCount>(queries, size, keys + key, stride, scores + key, stride);
    }
  };
  step(Count<4>());
  step(Count<2>());
  step(Count<1>());
}

// out = out * rescale + weights * values, for R queries and D vectors of dimensions.
template <int R, int D, typename V>
INLINE void add_values(const float* weights, int64_t weights_stride, const float* values,
                       int64_t size, int64_t num_keys, const float* rescale, float* out) {
  V sums[R][D];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int d = 0; d < D; d++) {
      sums[r][d] = load<V>(out + r * size + d * kSizeOf<V>) * rescale[r];
    }
  }
  for (int64_t key = 0; key < num_keys; key++, values += size) {
    V weight[R];
#pragma unroll
    for (int r = 0; r < R; r++) weight[r] = weights[r * weights_stride + key];
#pragma unroll
    for (int d = 0; d < D; d++) {
      const V value = load<V>(values + d * kSizeOf<V>);
#pragma unroll
      for (int r = 0; r < R; r++) sums[r][d] = fma(weight[r], value, sums[r][d]);
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int d = 0; d < D; d++) store(out + r * size + d * kSizeOf<V>, sums[r][d]);
  }
}

// The same for all dimensions, a multiple of V's.
template <int R, typename V>
void add_all_values(const float* weights, int64_t weights_stride, const float* values, int64_t size,
                    int64_t num_keys, const float* rescale, float* out) {
  int64_t i = 0;
  const auto step = [&](auto count) __attribute__((always_inline)) {
    constexpr int64_t kDimensions = count.kCount * kSizeOf<V>;
    for (; i + kDimensions <= size; i += kDimensions) {
      add_values<R, count.kCount, V>(weights, weights_stride, values + i, size, num_keys, rescale,
                                     out + i);
    }
  };
  if constexpr (R == 1) step(Count<8>());
  step(Count<4>());
  step(Count<2>());
  step(Count<1>());
}

}  // namespace attention::SIMD

#include "end_target.h"
