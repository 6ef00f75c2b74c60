#include "../attention.h"

#include <float.h>
#include <string.h>

#include "../attention_state.h"
#include "../integers.h"
#include "attention_bfloat16.h"
#include "attention_kv.h"
#include "attention_lanes.h"
#include "attention_microkernels.h"
#include "attention_query_tiles.h"
#include "attention_rounded.h"
#include "attention_softmax.h"

#include "begin_target.h"

namespace attention::SIMD {
namespace {

// Rotates and scales the queries, and sets which keys each sees.
void init_state(const Params& params, const QueryState& state) {
  const QueryBlock& block = state.block;
  const int64_t group_size = params.group_size(), size = params.head_size;
  const int64_t head_offset = state.kv_head * group_size * size;
  const float scale = rounds_decoder(params) ? params.scale * kLog2e : params.scale;
  int64_t query = 0;
  for (int64_t index = 0; index < block.num_rows; index++) {
    const int64_t row = block.rows[index], length = params.length(row);
    for (int64_t token = block.first_token; token < block.last_token; token++) {
      const int64_t position = params.start(row) + token;
      const int64_t end = params.is_causal ? min(length, position + 1) : length;
      const int64_t begin = params.window > 0 ? max(0, position + 1 - params.window) : 0;
      if (token + kPrefetchTokens < block.last_token) {
        prefetch_vector(params.query.at(row, token + kPrefetchTokens) + head_offset,
                        group_size * size);
      }
      for (int64_t head = 0; head < group_size; head++, query++) {
        apply_rotary(params, params.query.at(row, token) + head_offset + head * size, position,
                     scale, state.queries + query * size);
        state.max_scores[query] = -FLT_MAX;
        state.key_begin[query] = static_cast<int32_t>(begin);
        state.key_end[query] = static_cast<int32_t>(end);
      }
    }
  }
  memset(state.accumulators, 0, state.num_queries * size * sizeof(float));
  memset(state.denominators, 0, state.num_queries * kMaxLanes * sizeof(float));
}

constexpr int kPacked = -1;

// Updates the state of all queries with a block of keys and values. N: the template argument of
// score_keys, or kPacked for packed keys.
template <int N, typename V>
void attend_block(const Params& params, const QueryState& state, int64_t block_start,
                  const float* keys, const float* values) {
  const int64_t size = params.head_size, scores_stride = params.keys_per_block();
  for_each_tile(state.num_queries, [&](int64_t query, auto mr) {
    constexpr int kRows = decltype(mr)::kCount;
    const KeyRange seen = visible_keys(params, state, query, kRows, block_start);
    if (seen.from >= seen.to) return;
    const float* queries = state.queries + query * size;
    float* scores = state.scores + query * scores_stride;
    if constexpr (N == kPacked) {
      score_packed_keys<kRows>(queries, size, keys, seen.from, round_up(seen.to, kLanes), scores,
                               scores_stride);
    } else {
      score_keys<kRows, N, V>(queries, size, keys, seen.from, seen.to, query ? nullptr : values,
                              scores, scores_stride);
    }
    softmax_block<float>(params, state, query, query + kRows, block_start, seen.from,
                         round_up(seen.to, kLanes));
  });
  for_each_tile(state.num_queries, [&](int64_t query, auto mr) {
    constexpr int kRows = decltype(mr)::kCount;
    const KeyRange seen = visible_keys(params, state, query, kRows, block_start);
    if (seen.from >= seen.to) return;
    accumulate_values<kRows, V>(state.scores + query * scores_stride + seen.from, scores_stride,
                                values + seen.from * size, size, seen.to - seen.from,
                                state.rescale + query, state.accumulators + query * size);
  });
}

// Attends to keys and values in the cache.
void attend_cached(const Params& params, const QueryState& state, int64_t row,
                   int64_t block_start) {
  const int64_t size = params.head_size;
  const int64_t at = params.cached_at(row, state.kv_head, block_start);
  const float *keys = params.cache.keys + at, *values = params.cache.values + at;
#if SIMD_BITS == 512
  if (uses_lanes(params, state)) {
    return attend_block_in_lanes(params, state, block_start, keys, values);
  }
#endif
  switch (size) {
    case 32: return attend_block<32 / kLanes, Floats>(params, state, block_start, keys, values);
    case 64: return attend_block<64 / kLanes, Floats>(params, state, block_start, keys, values);
    case 128: return attend_block<128 / kLanes, Floats>(params, state, block_start, keys, values);
    default: return attend_block<0, Floats8>(params, state, block_start, keys, values);
  }
}

// Packs the inputs' keys and values up to position `end` into `scratch`, and attends to them.
void attend_packed(const Params& params, const QueryState& state, int64_t row,
                   int64_t block_start, int64_t end, float* scratch) {
  const int64_t num_keys = params.keys_per_block(), size = params.head_size;
  float *keys = scratch, *values = keys + num_keys * size, *rows = values + num_keys * size;
  pack_kv(params, row, state.kv_head, block_start, min(block_start + num_keys, end), keys, values,
          rows);
  if (size % kLanes == 0) {
    attend_block<kPacked, Floats>(params, state, block_start, keys, values);
  } else {
    attend_block<kPacked, Floats8>(params, state, block_start, keys, values);
  }
}

// Writes zeros to the padding tokens of a prompt; returns the block without them.
QueryBlock clear_padding(const Params& params, const QueryBlock& block, int64_t first_head) {
  if (!params.is_prefill) return block;
  const int64_t row = block.rows[0];
  QueryBlock valid = block;
  valid.last_token = max(block.first_token, min(block.last_token, params.num_outputs(row)));
  for (int64_t token = valid.last_token; token < block.last_token; token++) {
    memset(params.output_at(row, token, first_head), 0,
           params.group_size() * params.head_size * sizeof(float));
  }
  return valid;
}

// Prefetches the memory of a block's output before it is written.
class OutputPrefetcher {
 public:
  OutputPrefetcher(const Params& params, const QueryBlock& block, int64_t first_head,
                   int64_t num_steps)
      : params_(params),
        block_(block),
        first_head_(first_head),
        tokens_per_step_(div_ceil(block.num_tokens(), max(1, num_steps))) {}

  INLINE void step() {
    const int64_t end = min(block_.last_token, block_.first_token + tokens_per_step_);
    for (; block_.first_token < end; block_.first_token++) {
      const float* const output =
          params_.output_at(block_.rows[0], block_.first_token, first_head_);
      for (int64_t i = 0; i < params_.group_size() * params_.head_size; i += kLineFloats) {
        __builtin_prefetch(output + i, 1);
      }
    }
  }

 private:
  const Params& params_;
  QueryBlock block_;  // the remaining tokens
  int64_t first_head_, tokens_per_step_;
};

void write_outputs(const Params& params, const QueryState& state, int64_t first_head) {
  const QueryBlock& block = state.block;
  int64_t query = 0;
  for (int64_t index = 0; index < block.num_rows; index++) {
    for (int64_t token = block.first_token; token < block.last_token; token++) {
      for (int64_t i = 0; i < params.group_size(); i++, query++) {
        const int64_t head = first_head + i;
        write_output(params, head, state, query,
                     params.output_at(block.rows[index], token, head));
      }
    }
  }
}

}  // namespace

void attend(const Params& params, const QueryBlock& block, int64_t kv_head, float* scratch) {
  const int64_t row = block.rows[0], first_head = kv_head * params.group_size();
  const QueryBlock valid = clear_padding(params, block, first_head);
  if (valid.num_tokens() == 0) return;
#if SIMD_BITS == 512
  if (rounds_encoder(params)) return attend_in_bfloat16(params, valid, kv_head, scratch);
#endif

  QueryState state(params, valid, kv_head, scratch);
  init_state(params, state);
  int64_t begin = params.length(row), end = 0;
  for (int64_t query = 0; query < state.num_queries; query++) {
    begin = min(begin, state.key_begin[query]);
    end = max(end, state.key_end[query]);
  }
#if SIMD_BITS == 512
  const bool is_spread = uses_lanes(params, state);
  if (is_spread) {
    state = spread_over_lanes(params, state);
  } else if (rounds_decoder(params)) {
    round_neighbours(state.queries, state.num_queries * params.head_size, state.queries);
  }
#endif
  const int64_t num_keys = params.keys_per_block(), first_start = begin / num_keys * num_keys;
  float* packed = scratch + QueryState::scratch_size(params, state.num_queries);
  OutputPrefetcher output(params, valid, first_head, div_ceil(end - first_start, num_keys));
  for (int64_t start = first_start; start < end; start += num_keys) {
    output.step();
#if SIMD_BITS == 512
    if (rounds_decoder(params)) {
      attend_rounded(params, state, row, start, end, packed);
      continue;
    }
#endif
    if (params.cache.keys) {
      attend_cached(params, state, row, start);
    } else {
      attend_packed(params, state, row, start, end, packed);
    }
  }
#if SIMD_BITS == 512
  if (is_spread) state = gather_from_lanes(params, state);
#endif
  write_outputs(params, state, first_head);
}

}  // namespace attention::SIMD

#include "end_target.h"
