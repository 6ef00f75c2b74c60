#if SIMD_BITS == 512

#include "attention_lanes.h"

#include <float.h>
#include <math.h>

#include "attention_lane_tiles.h"
#include "attention_softmax.h"

#include "begin_target.h"

namespace attention::SIMD {
namespace {

template <typename T>
constexpr int kDimensionsOf = __is_same(T, float) ? 1 : 2;  // dimensions per factor

// Keys per micro-tile of scores.
constexpr int kKeys = 4;

// The parts of a QueryState that belong to some vectors of queries.
struct QueryVectors {
  const float* queries;                // [vectors][head_size or pairs of it][kLanes]
  float* accumulators;                 // the same
  float* scores;                       // [kMaxVectors][keys_per_block][kLanes], reused
  float* denominators;                 // [vectors][kLanes of keys][kLanes]
  float *max_scores, *rescale;         // [vectors][kLanes]
  const int32_t *key_begin, *key_end;  // the same

  QueryVectors(const Params& params, const QueryState& state, int64_t vector) {
    const int64_t first = vector * kLanes;
    queries = state.queries + first * params.head_size / (rounds_decoder(params) ? 2 : 1);
    accumulators = state.accumulators + first * params.head_size;
    scores = state.scores + vector % kMaxVectors * kLanes * params.keys_per_block();
    denominators = state.denominators + first * kLanes;
    max_scores = state.max_scores + first;
    rescale = state.rescale + first;
    key_begin = state.key_begin + first;
    key_end = state.key_end + first;
  }
};

// Adds kCount lanes' partial sums of score_4_keys in the order of its reduce_sum_4, so that results
// have the same bits. kWidth: number of lanes of score_4_keys' V.
template <int K, int kWidth, int kLane = 0, int kCount = 8, typename T>
INLINE Sums<1, K> multiply_by_lane(const float* queries, const T* keys, int64_t size) {
  if constexpr (kCount > 1) {
    constexpr int kHalf = kCount / 2;
    return multiply_by_lane<K, kWidth, kLane, kHalf>(queries, keys, size) +
           multiply_by_lane<K, kWidth, kLane + kHalf, kHalf>(queries, keys, size);
  } else if constexpr (kWidth == kLanes8) {
    return multiply<1, K>(queries, keys, size, kLane, kWidth);
  } else {
    return multiply<1, K>(queries, keys, size, kLane, kWidth) +
           multiply<1, K>(queries, keys, size, kLane + kWidth / 2, kWidth);
  }
}

// Scores of keys first .. last - 1 for a vector of queries, K keys at a time. N: factors per key,
// or 0 if that is not constant.
template <int K, int N, int kWidth, typename T>
INLINE int64_t score_tiles(const Params& params, const QueryVectors& vector, const T* keys,
                           int64_t first, int64_t last) {
  const int64_t size = N ? N : params.head_size / kDimensionsOf<T>;
  for (; first + K <= last; first += K) {
    multiply_by_lane<K, kWidth>(vector.queries, keys + first * size, size)
        .store_to(vector.scores + first * kLanes, 0);
  }
  return first;
}

template <int N, int kWidth, typename T>
void score_keys(const Params& params, const QueryVectors& vector, const T* keys, int64_t first,
                int64_t last) {
  first = score_tiles<kKeys, N, kWidth>(params, vector, keys, first, last);
  score_tiles<1, N, kWidth>(params, vector, keys, first, last);
}

// Scores of keys first .. last - 1. The cases are those of attend_cached in attention.cc.
template <typename T>
void score_keys(const Params& params, const QueryVectors& vector, const T* keys, int64_t first,
                int64_t last) {
  constexpr int kWidth = __is_same(T, float) ? kLanes8 : kLanes;
  switch (params.head_size) {
    case 32: return score_keys<32 / kDimensionsOf<T>, kLanes>(params, vector, keys, first, last);
    case 64: return score_keys<64 / kDimensionsOf<T>, kLanes>(params, vector, keys, first, last);
    case 128: return score_keys<128 / kDimensionsOf<T>, kLanes>(params, vector, keys, first, last);
    default: return score_keys<0, kWidth>(params, vector, keys, first, last);
  }
}

// Applies soft cap and bias; keys that a query does not see get -inf.
void cap_bias_and_mask(const Params& params, const QueryState& state, int64_t vector,
                       const QueryVectors& vectors, int64_t block_start, int64_t from,
                       int64_t to) {
  const float* bias[kLanes];
  for (int64_t lane = 0; lane < kLanes; lane++) {
    bias[lane] = bias_row(params, state, min(vector * kLanes + lane, state.num_queries - 1));
  }
  const int32_t start = static_cast<int32_t>(block_start);
  const Ints begin = load<Ints>(vectors.key_begin) - start;
  const Ints end = load<Ints>(vectors.key_end) - start;
  for (int64_t i = from; i < to; i++) {
    float* const at = vectors.scores + i * kLanes;
    Floats score = load(at);
    if (params.soft_cap > 0) score = params.soft_cap * tanh(score / params.soft_cap);
    if (params.bias.data && block_start + i < params.bias.num_keys) {
      for (int64_t lane = 0; lane < kLanes; lane++) score[lane] += bias[lane][block_start + i];
    }
    const Ints key = static_cast<int32_t>(i);
    store(at, (key >= begin & key < end) ? score : Floats(-INFINITY));
  }
}

// softmax_block() for one vector of queries.
template <typename T>
void softmax_vector(const Params& params, const QueryState& state, int64_t vector,
                    int64_t block_start, int64_t from, int64_t to) {
  const QueryVectors vectors(params, state, vector);
  const Ints sees_all = load<Ints>(vectors.key_begin) <= static_cast<int32_t>(block_start + from) &
                        load<Ints>(vectors.key_end) >= static_cast<int32_t>(block_start + to);
  if (any_true(~sees_all) || params.soft_cap > 0 || params.bias.data) {
    cap_bias_and_mask(params, state, vector, vectors, block_start, from, to);
  }
  float* const scores = vectors.scores;
  const Floats old_max = load(vectors.max_scores);
  Floats new_max = old_max;
  for (int64_t i = from; i < to; i++) new_max = max(load(scores + i * kLanes), new_max);
  Floats rescale = power<T>(old_max - new_max);
  rescale = old_max == Floats(-FLT_MAX) ? Floats(0.0f) : rescale;
  rescale = old_max == new_max ? Floats(1.0f) : rescale;
  // As in softmax_block(), denominator `lane` sums the keys that fall in that lane, in order.
  for (int64_t lane = 0; lane < kLanes; lane++) {
    float* const at = vectors.denominators + lane * kLanes;
    Floats denominator = load(at) * rescale;
    for (int64_t i = from + lane; i < to; i += kLanes) {
      const Floats weight = power<T>(load(scores + i * kLanes) - new_max);
      store(scores + i * kLanes, weight);
      denominator += weight;
    }
    store(at, denominator);
  }
  store(vectors.max_scores, new_max);
  store(vectors.rescale, rescale);
}

// Packs the weights of keys from .. to - 1 [keys][kLanes] into pairs of keys; `from` is even.
void round_weights(float* weights, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i += 2) {
    const float* const at = weights + i * kLanes;
    const Floats second = i + 1 < to ? load(at + kLanes) : Floats(0.0f);
    store(weights + i / 2 * kLanes, round_to_pairs(load(at), second));
  }
}

// Updates the state of Q vectors of queries with a block. T: float, or int32_t for pairs.
template <int Q, typename T>
void attend_vectors(const Params& params, const QueryState& state, int64_t vector,
                    int64_t block_start, const T* keys, const T* values) {
  const int64_t size = params.head_size, keys_per_block = params.keys_per_block();
  const QueryVectors vectors(params, state, vector);
  int64_t from = keys_per_block, ends[Q], to = 0;
  for (int q = 0; q < Q; q++) {
    const int32_t begin = -reduce_max(-load<Ints>(vectors.key_begin + q * kLanes));
    const int32_t end = reduce_max(load<Ints>(vectors.key_end + q * kLanes));
    ends[q] = min(end - block_start, keys_per_block);
    from = min(from, begin - block_start);
    to = max(to, ends[q]);
  }
  from = max(from, 0) / kLanes * kLanes;
  if (from >= to) return;
  constexpr bool kRounds = __is_same(T, int32_t);
  for (int q = 0; q < Q; q++) {
    score_keys(params, QueryVectors(params, state, vector + q), keys, from, ends[q]);
    softmax_vector<T>(params, state, vector + q, block_start, from, to);
    if constexpr (kRounds) round_weights(vectors.scores + q * keys_per_block * kLanes, from, to);
  }
  const int64_t first = kRounds ? from / 2 : from, last = kRounds ? div_ceil(to, 2) : to;
  for (int64_t i = 0; i < size; i += kDimensions) {
    accumulate_tile<Q>(vectors.scores + first * kLanes, keys_per_block * kLanes,
                       values + first * size + i, size, last - first, vectors.rescale,
                       vectors.accumulators + i * kLanes);
  }
}

}  // namespace

QueryState spread_over_lanes(const Params& params, const QueryState& state) {
  const int64_t size = params.head_size, last = state.num_queries - 1;
  const int64_t end = round_up(state.num_queries, kLanes);
  for (int64_t query = state.num_queries; query < end; query++) {
    memcpy(state.queries + query * size, state.queries + last * size, size * sizeof(float));
    state.max_scores[query] = -FLT_MAX;
    state.key_begin[query] = state.key_begin[last];
    state.key_end[query] = state.key_end[last];
  }
  QueryState spread = state;
  spread.queries = state.accumulators;
  spread.accumulators = state.queries;
  for (int64_t query = 0; query < end; query += kLanes) {
    transpose(state.queries + query * size, size, kLanes, size, spread.queries + query * size,
              kLanes);
  }
  if (rounds_decoder(params)) {
    for (int64_t i = 0; i < end * size; i += 2 * kLanes) {
      store(spread.queries + i / 2,
            round_to_pairs(load(spread.queries + i), load(spread.queries + i + kLanes)));
    }
  }
  memset(spread.accumulators, 0, end * size * sizeof(float));
  memset(spread.denominators, 0, end * kLanes * sizeof(float));
  return spread;
}

template <typename T>
void attend_block_in_lanes(const Params& params, const QueryState& state, int64_t block_start,
                           const T* keys, const T* values) {
  for_each_vector_tile(state.num_queries, [&](int64_t vector, auto q) {
    attend_vectors<q.kCount>(params, state, vector, block_start, keys, values);
  });
}
template void attend_block_in_lanes(const Params&, const QueryState&, int64_t, const float*,
                                    const float*);
template void attend_block_in_lanes(const Params&, const QueryState&, int64_t, const int32_t*,
                                    const int32_t*);

QueryState gather_from_lanes(const Params& params, const QueryState& state) {
  const int64_t size = params.head_size;
  QueryState gathered = state;
  gathered.accumulators = state.queries;
  gathered.denominators = state.scores;
  for (int64_t query = 0; query < round_up(state.num_queries, kLanes); query += kLanes) {
    transpose(state.accumulators + query * size, kLanes, size, kLanes,
              gathered.accumulators + query * size, size);
    transpose(state.denominators + query * kLanes, kLanes, kLanes, kLanes,
              gathered.denominators + query * kLanes, kLanes);
  }
  return gathered;
}

}  // namespace attention::SIMD

#include "end_target.h"

#endif
