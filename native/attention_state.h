// The running state of attention: queries of a block with their maximum score, denominator and
// accumulator, updated block of keys by block of keys.
#pragma once

#include "attention.h"
#include "integers.h"

namespace attention {

constexpr int64_t kMaxLanes = 16;  // in the widest register

// All queries of a QueryBlock for one key head, ordered [row][token][head of the group]. The arrays
// lie in scratch, with space for a multiple of kMaxLanes queries.
struct QueryState {
  QueryBlock block;
  int64_t kv_head, num_queries;
  float* queries;                // [num_queries][head_size], rotated and scaled
  float* accumulators;           // [num_queries][head_size]: weighted sums of values
  float* scores;                 // [num_queries][keys_per_block], then softmax weights
  float* denominators;           // [num_queries][kMaxLanes]: sums of weights, one per vector lane
  float* max_scores;             // [num_queries]
  float* rescale;                // [num_queries]: factor of earlier sums after a new maximum
  int32_t *key_begin, *key_end;  // [num_queries]: the positions that a query sees

  QueryState(const Params& params, const QueryBlock& block, int64_t kv_head, float* scratch)
      : block(block),
        kv_head(kv_head),
        num_queries(block.num_rows * block.num_tokens() * params.group_size()) {
    const auto take = [&](int64_t size) {
      float* taken = scratch;
      scratch += round_up(num_queries, kMaxLanes) * size;
      return taken;
    };
    queries = take(params.head_size);
    accumulators = take(params.head_size);
    scores = take(params.keys_per_block());
    denominators = take(kMaxLanes);
    max_scores = take(1);
    rescale = take(1);
    key_begin = reinterpret_cast<int32_t*>(take(1));
    key_end = reinterpret_cast<int32_t*>(take(1));
  }

  // Number of floats in all arrays; each begins at a multiple of kMaxLanes.
  static size_t scratch_size(const Params& params, int64_t num_queries) {
    return round_up(num_queries, kMaxLanes) *
           (2 * params.head_size + params.keys_per_block() + kMaxLanes + 4);
  }
};

}  // namespace attention
