// The AVX-512 micro-kernels of attention with one query per SIMD lane; factors are fp32, or pairs
// of bfloat16.
//
// T is float, or int32_t for a pair; arrays of float hold either. Sums are in fp32.
#pragma once

#include "../integers.h"
#include "attention_pairs.h"

#include "begin_target.h"

namespace attention::SIMD {

using namespace ::SIMD;

constexpr int kMaxVectors = 3;  // vectors of queries per micro-tile
constexpr int kDimensions = 8;  // per micro-tile of accumulators

template <typename T>
using VectorOf = T __attribute__((ext_vector_type(kLanes)));

// The sums of a micro-tile of scores: Q vectors of queries times K keys.
template <int Q, int K>
struct Sums {
  Floats at[Q][K];

  INLINE Sums operator+(const Sums& other) const {
    Sums total;
#pragma unroll
    for (int q = 0; q < Q; q++) {
#pragma unroll
      for (int k = 0; k < K; k++) total.at[q][k] = at[q][k] + other.at[q][k];
    }
    return total;
  }

  // Stores to scores [Q][stride], kLanes per key.
  INLINE void store_to(float* scores, int64_t stride) const {
#pragma unroll
    for (int q = 0; q < Q; q++) {
#pragma unroll
      for (int k = 0; k < K; k++) store(scores + q * stride + k * kLanes, at[q][k]);
    }
  }
};

// Dot products over factors first, first + step, .. of queries [Q][size][kLanes] and keys
// [K][size].
template <int Q, int K, typename T>
INLINE Sums<Q, K> multiply(const float* queries, const T* keys, int64_t size, int64_t first,
                           int64_t step) {
  Sums<Q, K> sums;
#pragma unroll
  for (int q = 0; q < Q; q++) {
#pragma unroll
    for (int k = 0; k < K; k++) sums.at[q][k] = 0.0f;
  }
  for (int64_t i = first; i < size; i += step) {
    VectorOf<T> query[Q];
#pragma unroll
    for (int q = 0; q < Q; q++) query[q] = load<VectorOf<T>>(queries + (q * size + i) * kLanes);
#pragma unroll
    for (int k = 0; k < K; k++) {
      const VectorOf<T> key = keys[k * size + i];
#pragma unroll
      for (int q = 0; q < Q; q++) sums.at[q][k] = multiply_add(sums.at[q][k], query[q], key);
    }
  }
  return sums;
}

// out = out * rescale + weights * values, for kDimensions dimensions of Q vectors: out
// [Q][size][kLanes], rescale [Q][kLanes], weights [Q][weights_stride], kLanes per key or pair of
// keys, values [count][size].
template <int Q, typename T>
INLINE void accumulate_tile(const float* weights, int64_t weights_stride, const T* values,
                            int64_t size, int64_t count, const float* rescale, float* out) {
  Floats sums[Q][kDimensions];
#pragma unroll
  for (int q = 0; q < Q; q++) {
    const Floats factor = load(rescale + q * kLanes);
#pragma unroll
    for (int d = 0; d < kDimensions; d++) {
      sums[q][d] = load(out + (q * size + d) * kLanes) * factor;
    }
  }
  for (int64_t i = 0; i < count; i++, values += size) {
    VectorOf<T> weight[Q];
#pragma unroll
    for (int q = 0; q < Q; q++) {
      weight[q] = load<VectorOf<T>>(weights + q * weights_stride + i * kLanes);
    }
#pragma unroll
    for (int d = 0; d < kDimensions; d++) {
      const VectorOf<T> value = values[d];
#pragma unroll
      for (int q = 0; q < Q; q++) sums[q][d] = multiply_add(sums[q][d], weight[q], value);
    }
  }
#pragma unroll
  for (int q = 0; q < Q; q++) {
#pragma unroll
    for (int d = 0; d < kDimensions; d++) store(out + (q * size + d) * kLanes, sums[q][d]);
  }
}

// Calls step(vector, StaticCount) for micro-tiles of vectors of queries.
template <typename Step>
INLINE void for_each_vector_tile(int64_t num_queries, const Step& step) {
  const int64_t count = div_ceil(num_queries, kLanes);
  for (int64_t vector = 0; vector < count; vector += kMaxVectors) {
    with_static_count<kMaxVectors>(min(count - vector, kMaxVectors),
                                   [&](auto q) { step(vector, q); });
  }
}

}  // namespace attention::SIMD

#include "end_target.h"
