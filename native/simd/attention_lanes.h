// Attention with one query per SIMD lane, for blocks of many queries that read the cache: those of
// prompts, and of tokens with many heads per key head. It needs no sums across lanes. AVX-512 only:
// with AVX2's 16 registers, it is slower.
//
// Every sum has the terms and the order of attention_microkernels.h (of pairs, those of
// attention_rounded.cc) and attention_softmax.h, so that a query's result has the same bits either
// way. Only a value that is not finite reaches other tokens of its row, since a masked key counts
// with weight 0.
//
// Queries, accumulators and scores of QueryState are transposed here, kLanes queries at a time:
// [num_queries / kLanes][head_size][kLanes] and [..][keys_per_block][kLanes].
// Denominators are [num_queries / kLanes][kLanes of keys][kLanes].
#pragma once

#include "../attention_state.h"
#include "vectors.h"

#include "begin_target.h"

namespace attention::SIMD {

using namespace ::SIMD;

// Whether the queries of a block are computed here. With fewer, most lanes would be empty.
inline bool uses_lanes(const Params& params, const QueryState& state) {
  constexpr int64_t kMinQueries = 9;
  return params.cache.keys && state.num_queries >= kMinQueries;
}

// The state after init_state, transposed. The last query fills the lanes after it.
QueryState spread_over_lanes(const Params& params, const QueryState& state);

// Adds a block of keys and values to the state of all queries: [keys][head_size] both, or int32_t
// pairs as attention_pairs.h rounds them.
template <typename T>
void attend_block_in_lanes(const Params& params, const QueryState& state, int64_t block_start,
                           const T* keys, const T* values);

// Transposes accumulators and denominators back; returns the state that write_outputs reads.
QueryState gather_from_lanes(const Params& params, const QueryState& state);

}  // namespace attention::SIMD

#include "end_target.h"
