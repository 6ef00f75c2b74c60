#if SIMD_BITS == 512

#include "attention_bfloat16.h"

#include <float.h>
#include <string.h>

#include "../integers.h"
#include "attention_kv.h"
#include "attention_lane_tiles.h"
#include "attention_prefetch.h"

#include "begin_target.h"

namespace attention::SIMD {
namespace {

constexpr int kKeys = 8;  // per micro-tile of scores

// Keys of a block as pairs of dimensions, [num_keys][size / 2], padded with zeros to a multiple of
// kKeys; values as pairs of keys, [div_ceil(num_keys, 2)][size].
struct Block {
  int64_t num_keys;
  int32_t *keys, *values;
};

// Rounds keys and values first .. last - 1 of a row into `scratch`.
Block make_block(const Params& params, int64_t row, int64_t head, int64_t first, int64_t last,
                 float* scratch) {
  const int64_t size = params.head_size, num_keys = last - first;
  const float *keys = params.key.at(row, first) + head * size,
              *values = params.value.at(row, first) + head * size;
  int64_t key_stride = params.key.token_stride, value_stride = params.value.token_stride;
  if (params.rotary.cos) {  // pairs overwrite the gathered floats
    float* const gathered = scratch + params.keys_per_block() * size;
    gather_kv(params, row, head, 0, first, last, scratch, gathered);
    keys = scratch, values = gathered;
    key_stride = value_stride = size;
  }
  Block block{num_keys, reinterpret_cast<int32_t*>(scratch),
              reinterpret_cast<int32_t*>(scratch + params.keys_per_block() * size)};
  round_keys(keys, key_stride, num_keys, size, block.keys);
  memset(block.keys + num_keys * size / 2, 0,
         (round_up(num_keys, kKeys) - num_keys) * size / 2 * sizeof(int32_t));
  round_values(values, value_stride, num_keys, size, block.values);
  return block;
}

// Tokens first .. first + kLanes - 1 of a block; those past its end are copies of its last token.
struct Tokens {
  int64_t first, count;  // count: without the copies

  Tokens(const QueryBlock& block, int64_t vector)
      : first(block.first_token + vector * kLanes),
        count(min(block.last_token - first, kLanes)) {}
};

// Initializes the state of a vector of queries, stored as pairs of dimensions [size / 2][kLanes].
// `rows`: scratch [kLanes][size].
void init_vector(const Params& params, const QueryState& state, int64_t vector, float* rows) {
  const int64_t size = params.head_size, row = state.block.rows[0], first = vector * kLanes;
  const Tokens tokens(state.block, vector);
  const float* from = params.query.at(row, tokens.first) + state.kv_head * size;
  int64_t stride = params.query.token_stride;
  if (params.rotary.cos || tokens.count < kLanes) {
    for (int64_t lane = 0; lane < kLanes; lane++) {
      const int64_t token = tokens.first + min(lane, tokens.count - 1);
      apply_rotary(params, params.query.at(row, token) + state.kv_head * size, token, 1.0f,
                   rows + lane * size);
    }
    from = rows, stride = size;
  }
  float* const columns = state.accumulators + first * size;
  transpose(from, stride, kLanes, size, columns, kLanes);
  const float factor = params.scale * kLog2e;
  for (int64_t i = 0; i < size; i += 2) {
    store(state.queries + first * size / 2 + i / 2 * kLanes,
          round_to_pairs(load(columns + i * kLanes) * factor,
                         load(columns + (i + 1) * kLanes) * factor));
  }
  memset(columns, 0, kLanes * size * sizeof(float));
  memset(state.denominators + first * 2, 0, 2 * kLanes * sizeof(float));
  store(state.max_scores + first, Floats(-FLT_MAX));
}

// Divides a vector's accumulators by their denominators, and writes them to the output.
void write_vector(const Params& params, const QueryState& state, int64_t vector, float* rows) {
  const int64_t size = params.head_size, first = vector * kLanes;
  const float* const denominators = state.denominators + first * 2;
  const Floats factor = 1.0f / (load(denominators) + load(denominators + kLanes));
  float* const columns = state.accumulators + first * size;
  for (int64_t i = 0; i < size; i++) {
    store(columns + i * kLanes, load(columns + i * kLanes) * factor);
  }
  const Tokens tokens(state.block, vector);
  float* const output = params.output_at(state.block.rows[0], tokens.first, state.kv_head);
  const int64_t stride = params.num_heads * size;
  if (tokens.count == kLanes) return transpose(columns, kLanes, size, kLanes, output, stride);
  transpose(columns, kLanes, size, kLanes, rows, size);
  for (int64_t lane = 0; lane < tokens.count; lane++) {
    memcpy(output + lane * stride, rows + lane * size, size * sizeof(float));
  }
}

// In each lane, the maximum of `least` and of scores [num_keys][kLanes]; ignores NaN.
INLINE Floats max_score(const float* scores, int64_t num_keys, Floats least) {
  constexpr int kChains = 4;  // independent maxima, to hide latency
  Floats largest[kChains];
#pragma unroll
  for (int i = 0; i < kChains; i++) largest[i] = least;
  int64_t key = 0;
  for (; key + kChains <= num_keys; key += kChains) {
#pragma unroll
    for (int i = 0; i < kChains; i++) {
      largest[i] = max(load(scores + (key + i) * kLanes), largest[i]);
    }
  }
  for (; key < num_keys; key++) largest[0] = max(load(scores + key * kLanes), largest[0]);
  return max(max(largest[0], largest[1]), max(largest[2], largest[3]));
}

// One step of the online softmax: replaces the scores [num_keys][kLanes] of kLanes queries by pairs
// of weights [div_ceil(num_keys, 2)][kLanes], and updates maxima, denominators and rescale factors.
void softmax_vector(float* scores, int64_t num_keys, float* denominators, float* max_scores,
                    float* rescale) {
  const Floats old_max = load(max_scores);
  const Floats new_max = max_score(scores, num_keys, old_max);
  Floats factor = old_max == Floats(-FLT_MAX) ? Floats(0.0f) : exp2_coarse(old_max - new_max);
  factor = old_max == new_max ? Floats(1.0f) : factor;  // exp2_coarse(0) is not exactly 1
  Floats even = load(denominators) * factor, odd = load(denominators + kLanes) * factor;
  for (int64_t key = 0; key < num_keys; key += 2) {
    const Floats first = exp2_coarse(load(scores + key * kLanes) - new_max);
    Floats second = 0.0f;
    if (key + 1 < num_keys) second = exp2_coarse(load(scores + (key + 1) * kLanes) - new_max);
    store(scores + key / 2 * kLanes, round_to_pairs(first, second));
    even += first;
    odd += second;
  }
  store(denominators, even);
  store(denominators + kLanes, odd);
  store(max_scores, new_max);
  store(rescale, factor);
}

// Updates the state of Q vectors of queries with a block.
template <int Q>
void attend_vectors(const Params& params, const QueryState& state, int64_t vector,
                    const Block& block, HeadPrefetcher& next_head) {
  const int64_t size = params.head_size, first = vector * kLanes;
  const int64_t scores_stride = params.keys_per_block() * kLanes, num_pairs = size / 2;
  const float* const queries = state.queries + first * num_pairs;
  for (int64_t key = 0; key < block.num_keys; key += kKeys) {
    next_head.step();
    multiply<Q, kKeys>(queries, block.keys + key * num_pairs, num_pairs, 0, 1)
        .store_to(state.scores + key * kLanes, scores_stride);
  }
  for (int64_t q = 0; q < Q; q++) {
    const int64_t query = first + q * kLanes;
    softmax_vector(state.scores + q * scores_stride, block.num_keys,
                   state.denominators + query * 2, state.max_scores + query,
                   state.rescale + query);
  }
  for (int64_t i = 0; i < size; i += kDimensions) {
    accumulate_tile<Q>(state.scores, scores_stride, block.values + i, size,
                       div_ceil(block.num_keys, 2), state.rescale + first,
                       state.accumulators + first * size + i * kLanes);
  }
}

}  // namespace

void attend_in_bfloat16(const Params& params, const QueryBlock& block, int64_t head,
                        float* scratch) {
  const QueryState state(params, block, head, scratch);
  const int64_t num_keys = params.keys_per_block(), row = block.rows[0];
  float* const packed = scratch + QueryState::scratch_size(params, state.num_queries);
  float* const rows = packed + 2 * num_keys * params.head_size;
  const int64_t count = div_ceil(state.num_queries, kLanes);
  for (int64_t vector = 0; vector < count; vector++) init_vector(params, state, vector, rows);
  const int64_t num_tiles = div_ceil(count, kMaxVectors) * div_ceil(params.length(row), kKeys);
  HeadPrefetcher next_head(params, block, head, num_tiles);
  for (int64_t start = 0; start < params.length(row); start += num_keys) {
    const Block keys =
        make_block(params, row, head, start, min(start + num_keys, params.length(row)), packed);
    for_each_vector_tile(state.num_queries, [&](int64_t vector, auto q) {
      attend_vectors<q.kCount>(params, state, vector, keys, next_head);
    });
  }
  for (int64_t vector = 0; vector < count; vector++) write_vector(params, state, vector, rows);
}

}  // namespace attention::SIMD

#include "end_target.h"

#endif
