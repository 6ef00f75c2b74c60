// Attention of one query to the keys of one head, in fp32, and the kernels of attention.

#pragma once

#include <math.h>

#include "computations.h"
#include "elements.h"

namespace stand_in {

// Converts `count` rows of `size` elements, `stride` elements apart, to consecutive floats.
template <typename T>
std::vector<float> FloatsOf(const T* first, int64_t stride, int64_t count, int64_t size) {
  std::vector<float> floats;
  floats.reserve(static_cast<size_t>(count * size));
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t i = 0; i < size; ++i) {
      floats.push_back(static_cast<float>(first[row * stride + i]));
    }
  }
  return floats;
}

template <typename T>
void Store(const std::vector<float>& floats, T* to) {
  for (size_t i = 0; i < floats.size(); ++i) to[i] = static_cast<T>(floats[i]);
}

// Rotates pairs of elements of a head. `cosines` and `sines` [num_pairs] are those of its position.
template <typename T>
void Rotate(const T* cosines, const T* sines, int64_t num_pairs, bool is_interleaved,
            std::vector<float>* values) {
  for (int64_t i = 0; i < num_pairs; ++i) {
    const auto cosine = static_cast<float>(cosines[i]), sine = static_cast<float>(sines[i]);
    float& a = (*values)[static_cast<size_t>(is_interleaved ? 2 * i : i)];
    float& b = (*values)[static_cast<size_t>(is_interleaved ? 2 * i + 1 : i + num_pairs)];
    const float rotated = a * cosine - b * sine;
    b = b * cosine + a * sine;
    a = rotated;
  }
}

struct Head {
  int64_t key_size, value_size;
  std::vector<float> keys, values;  // [keys, size]
};

struct KeyRange {
  int64_t begin, end;  // empty if end <= begin
};

struct Attended {
  std::vector<float> values;  // the weighted mean, [value_size]; zeros if there are no keys
  float log_sum;              // log of the sum of the exponentials of all scores
};

// `scores`: those of the keys in `range`. `sink`: a score without a value; -infinity: none.
Attended MeanOf(std::vector<float> scores, const Head& head, KeyRange range, float sink);

// `score_of(product, key)`: the score of a key, from its dot product with the query.
template <typename ScoreOf>
Attended Attend(const std::vector<float>& query, const Head& head, KeyRange range, float sink,
                const ScoreOf& score_of) {
  std::vector<float> scores;
  for (int64_t key = range.begin; key < range.end; ++key) {
    const float* row = head.keys.data() + key * head.key_size;
    float product = 0;
    for (size_t i = 0; i < query.size(); ++i) product += query[i] * row[i];
    scores.push_back(score_of(product, key));
  }
  return MeanOf(std::move(scores), head, range, sink);
}

// The kernels of `kAttentionKernels`. Each definition names its kernel and the parameters.
Computation MakeFlash(const Launch& launch);
Computation MakeCombinedFlash(const Launch& launch);
Computation MakeSequenceLengths(const Launch& launch);
Computation MakeAppend(const Launch& launch);
Computation MakeSinks(const Launch& launch);
Computation MakeQuantized(const Launch& launch);
Computation MakeDequantized(const Launch& launch);
Computation MakeDequantizedPair(const Launch& launch);
Computation MakeUnfusedSoftmax(const Launch& launch);
Computation MakeMaskedSoftmax(const Launch& launch);
Computation MakeSoftmax(const Launch& launch);
Computation MakeHeads(const Launch& launch);
Computation MakeHeadsOfSize(const Launch& launch);
Computation MakeTokens(const Launch& launch);
Computation MakeRotary(const Launch& launch);

}  // namespace stand_in
