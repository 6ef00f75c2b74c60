// The two products of attention, for a few queries at a time.
//
// What is computed for one query never depends on the others: each sum has its own register and
// runs over its dimensions, or over its keys, in one order.
#pragma once

#include <stdint.h>

#include "vectors.h"

namespace attention {

constexpr int64_t kLanes = 8;
constexpr int64_t kLine = 16;  // floats of a cache's line

// Scores of R queries, num_vectors * 8 floats each, with 4 keys. N: num_vectors, or 0 for any.
template <int R, int N>
AVX2_FMA inline void score_four(const float* queries, int64_t num_vectors,
                                const float* const keys[4], float* scores,
                                int64_t scores_stride) {
  const int64_t count = N ? N : num_vectors, size = count * kLanes;
  __m256 sums[R][4];
  for (int r = 0; r < R; r++) {
    for (int c = 0; c < 4; c++) sums[r][c] = _mm256_setzero_ps();
  }
  for (int64_t i = 0; i < size; i += kLanes) {
    __m256 query[R];
    for (int r = 0; r < R; r++) query[r] = _mm256_loadu_ps(queries + r * size + i);
    for (int c = 0; c < 4; c++) {
      const __m256 key = _mm256_loadu_ps(keys[c] + i);
      for (int r = 0; r < R; r++) sums[r][c] = _mm256_fmadd_ps(query[r], key, sums[r][c]);
    }
  }
  for (int r = 0; r < R; r++) {
    _mm_storeu_ps(scores + r * scores_stride,
                  vectors::sums(sums[r][0], sums[r][1], sums[r][2], sums[r][3]));
  }
}

// Scores of R queries with keys first .. last - 1 of a block, at scores + first and on.
//
// While that goes on, the values of these keys are fetched, if they are given.
//
// Scores behind them, up to a multiple of 4, are written too: those of the last key. No other
// key is read.
template <int R, int N>
AVX2_FMA void score(const float* queries, int64_t num_vectors, const float* keys, int64_t first,
                    int64_t last, const float* values, float* scores, int64_t scores_stride) {
  const int64_t size = (N ? N : num_vectors) * kLanes;
  for (int64_t key = first; key < last; key += 4) {
    const float* four[4];
    if (values) {
      for (int64_t i = 0; i < 4 * size; i += kLine) __builtin_prefetch(values + key * size + i);
    }
    for (int c = 0; c < 4; c++) four[c] = keys + (key + c < last ? key + c : last - 1) * size;
    score_four<R, N>(queries, num_vectors, four, scores + key, scores_stride);
  }
}

// Scores of R queries with 8 * V keys, which lie side by side: keys[dimension * stride + key].
template <int R, int V>
AVX2_FMA inline void score_columns(const float* queries, int64_t size, const float* keys,
                                   int64_t stride, float* scores, int64_t scores_stride) {
  __m256 sums[R][V];
  for (int r = 0; r < R; r++) {
    for (int v = 0; v < V; v++) sums[r][v] = _mm256_setzero_ps();
  }
  for (int64_t i = 0; i < size; i++, keys += stride) {
    __m256 query[R];
    for (int r = 0; r < R; r++) query[r] = _mm256_set1_ps(queries[r * size + i]);
    for (int v = 0; v < V; v++) {
      const __m256 key = _mm256_loadu_ps(keys + v * kLanes);
      for (int r = 0; r < R; r++) sums[r][v] = _mm256_fmadd_ps(query[r], key, sums[r][v]);
    }
  }
  for (int r = 0; r < R; r++) {
    for (int v = 0; v < V; v++) {
      _mm256_storeu_ps(scores + r * scores_stride + v * kLanes, sums[r][v]);
    }
  }
}

// The same for keys first .. last - 1, both multiples of 8.
template <int R>
AVX2_FMA void score_all_columns(const float* queries, int64_t size, const float* keys,
                                int64_t first, int64_t last, float* scores, int64_t stride) {
  int64_t key = first;
  for (; key + 4 * kLanes <= last; key += 4 * kLanes) {
    score_columns<R, 4>(queries, size, keys + key, stride, scores + key, stride);
  }
  for (; key < last; key += kLanes) {
    score_columns<R, 1>(queries, size, keys + key, stride, scores + key, stride);
  }
}

// out = out * rescale + weights * values, for R queries and V vectors of 8 dimensions.
template <int R, int V>
AVX2_FMA inline void add_values(const float* weights, int64_t weights_stride, const float* values,
                                int64_t size, int64_t num_keys, const float* rescale, float* out) {
  __m256 sums[R][V];
  for (int r = 0; r < R; r++) {
    const __m256 factor = _mm256_set1_ps(rescale[r]);
    for (int v = 0; v < V; v++) {
      sums[r][v] = _mm256_mul_ps(_mm256_loadu_ps(out + r * size + v * kLanes), factor);
    }
  }
  for (int64_t key = 0; key < num_keys; key++, values += size) {
    __m256 weight[R];
    for (int r = 0; r < R; r++) weight[r] = _mm256_set1_ps(weights[r * weights_stride + key]);
    for (int v = 0; v < V; v++) {
      const __m256 value = _mm256_loadu_ps(values + v * kLanes);
      for (int r = 0; r < R; r++) sums[r][v] = _mm256_fmadd_ps(weight[r], value, sums[r][v]);
    }
  }
  for (int r = 0; r < R; r++) {
    for (int v = 0; v < V; v++) _mm256_storeu_ps(out + r * size + v * kLanes, sums[r][v]);
  }
}

// The same for all dimensions.
template <int R>
AVX2_FMA void add_all_values(const float* weights, int64_t weights_stride, const float* values,
                             int64_t size, int64_t num_keys, const float* rescale, float* out) {
  constexpr int kMost = R == 1 ? 8 : 4;
  int64_t i = 0;
  for (; i + kMost * kLanes <= size; i += kMost * kLanes) {
    add_values<R, kMost>(weights, weights_stride, values + i, size, num_keys, rescale, out + i);
  }
  if (R == 1 && i + 4 * kLanes <= size) {
    add_values<R, 4>(weights, weights_stride, values + i, size, num_keys, rescale, out + i);
    i += 4 * kLanes;
  }
  for (; i < size; i += kLanes) {
    add_values<R, 1>(weights, weights_stride, values + i, size, num_keys, rescale, out + i);
  }
}

}  // namespace attention
