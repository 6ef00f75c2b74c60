// The micro-kernels of attention: scores of a few queries with a block of keys, and the weighted
// sum of a block of values. Keys and values are [keys][head_size], as in the cache; packed keys
// are [head_size][keys]. simd/attention.cc calls them for tiles of R queries.
//
// Each sum has its own register and runs over dimensions, or keys, in a fixed order, so that a
// query's result does not depend on the other queries of its tile.
#pragma once

#include "../integers.h"
#include "vectors.h"

#include "begin_target.h"

namespace attention::SIMD {

using namespace ::SIMD;

// Scores of R queries with 4 keys: scores [R][scores_stride]. N: head_size in vectors V, or 0 if
// only runtime_size (in floats) gives it.
template <int R, int N, typename V>
INLINE void score_4_keys(const float* queries, int64_t runtime_size, const float* const keys[4],
                         float* scores, int64_t scores_stride) {
  const int64_t size = N ? N * kLanesOf<V> : runtime_size;
  V sums[R][4];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int c = 0; c < 4; c++) sums[r][c] = 0.0f;
  }
  for (int64_t i = 0; i < size; i += kLanesOf<V>) {
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
          reduce_sum_4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]));
  }
}

// Scores of R queries with keys first .. last - 1 of a block: scores[r * scores_stride + key].
// Prefetches the values of these keys unless `values` is null.
//
// Writes scores in fours: those past `last` repeat the last key's score. Reads no other key.
template <int R, int N, typename V>
void score_keys(const float* queries, int64_t runtime_size, const float* keys, int64_t first,
                int64_t last, const float* values, float* scores, int64_t scores_stride) {
  const int64_t size = N ? N * kLanesOf<V> : runtime_size;
  for (int64_t key = first; key < last; key += 4) {
    const float* group[4];
    if (values) {
      const float* next = values + key * size;
      for (int64_t i = 0; i < 4 * size; i += kLineFloats) __builtin_prefetch(next + i);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) group[c] = keys + (key + c < last ? key + c : last - 1) * size;
    score_4_keys<R, N, V>(queries, size, group, scores + key, scores_stride);
  }
}

// Scores of R queries with K vectors of packed keys [head_size][stride].
template <int R, int K>
INLINE void score_packed_tile(const float* queries, int64_t size, const float* keys,
                              int64_t stride, float* scores, int64_t scores_stride) {
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
      const Floats key = load(keys + k * kLanes);
#pragma unroll
      for (int r = 0; r < R; r++) sums[r][k] = fma(query[r], key, sums[r][k]);
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int k = 0; k < K; k++) store(scores + r * scores_stride + k * kLanes, sums[r][k]);
  }
}

// Scores of R queries with packed keys first .. last - 1, both multiples of kLanes.
template <int R>
void score_packed_keys(const float* queries, int64_t size, const float* keys, int64_t first,
                       int64_t last, float* scores, int64_t stride) {
  int64_t key = first;
  const auto step = [&](auto count) __attribute__((always_inline)) {
    for (; key + count.kCount * kLanes <= last; key += count.kCount * kLanes) {
      score_packed_tile<R, count.kCount>(queries, size, keys + key, stride, scores + key, stride);
    }
  };
  step(StaticCount<4>());
  step(StaticCount<2>());
  step(StaticCount<1>());
}

// out = out * rescale + weights * values, for R queries and D vectors of dimensions: out [R][size],
// weights [R][weights_stride], values [num_keys][size], rescale [R].
template <int R, int D, typename V>
INLINE void accumulate_values_tile(const float* weights, int64_t weights_stride,
                                   const float* values, int64_t size, int64_t num_keys,
                                   const float* rescale, float* out) {
  V sums[R][D];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int d = 0; d < D; d++) {
      sums[r][d] = load<V>(out + r * size + d * kLanesOf<V>) * rescale[r];
    }
  }
  for (int64_t key = 0; key < num_keys; key++, values += size) {
    V weight[R];
#pragma unroll
    for (int r = 0; r < R; r++) weight[r] = weights[r * weights_stride + key];
#pragma unroll
    for (int d = 0; d < D; d++) {
      const V value = load<V>(values + d * kLanesOf<V>);
#pragma unroll
      for (int r = 0; r < R; r++) sums[r][d] = fma(weight[r], value, sums[r][d]);
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int d = 0; d < D; d++) store(out + r * size + d * kLanesOf<V>, sums[r][d]);
  }
}

// accumulate_values_tile() for all dimensions; `size` is a multiple of V's lanes.
template <int R, typename V>
void accumulate_values(const float* weights, int64_t weights_stride, const float* values,
                       int64_t size, int64_t num_keys, const float* rescale, float* out) {
  int64_t i = 0;
  const auto step = [&](auto count) __attribute__((always_inline)) {
    constexpr int64_t kDimensions = count.kCount * kLanesOf<V>;
    for (; i + kDimensions <= size; i += kDimensions) {
      accumulate_values_tile<R, count.kCount, V>(weights, weights_stride, values + i, size,
                                                 num_keys, rescale, out + i);
    }
  };
  if constexpr (R == 1) step(StaticCount<8>());
  step(StaticCount<4>());
  step(StaticCount<2>());
  step(StaticCount<1>());
}

}  // namespace attention::SIMD

#include "end_target.h"
