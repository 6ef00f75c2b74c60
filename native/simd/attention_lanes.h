// Attention with one query per SIMD lane, for blocks of many queries that read the cache: prompts,
// and tokens with many query heads per key head. It needs no sums across lanes. AVX-512 only: with
// the 16 registers of AVX2, it is slower.
//
// Every sum has the terms and the order of attention_microkernels.h (for pairs, those of
// attention_rounded.cc) and attention_softmax.h, so a query's result has the same bits either way.
// A non-finite value reaches other tokens of its row, though, since masked keys count with weight
// 0.
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

// Whether this kernel computes a block's queries. With fewer, most lanes would be empty.
inline bool uses_lanes(const Params& params, const QueryState& state) {
  constexpr int64_t kMinQueries = 9;
  return params.cache.keys && state.num_queries >= kMinQueries;
}

// The state after init_state, transposed. Copies of the last query fill the remaining lanes.
QueryState spread_over_lanes(const Params& params, const QueryState& state);

// Updates the state of all queries with a block of keys and values, both [keys][head_size], or
// int32_t pairs as attention_pairs.h rounds them.
template <typename T>
void attend_block_in_lanes(const Params& params, const QueryState& state, int64_t block_start,
                           const T* keys, const T* values);

// Transposes accumulators and denominators back; returns the state that write_outputs reads.
QueryState gather_from_lanes(const Params& params, const QueryState& state);

}  // namespace attention::SIMD

#include "end_target.h"
