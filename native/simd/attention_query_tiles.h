// Micro-tiles of a block's queries, and the keys that each tile sees.
#pragma once

#include "../attention_state.h"
#include "../integers.h"
#include "vectors.h"

#include "begin_target.h"

namespace attention::SIMD {

using namespace ::SIMD;

constexpr int kMr = SIMD_BITS == 512 ? 6 : 3;  // queries per micro-tile

struct KeyRange {
  int64_t from, to;
};

// The keys of a block that at least one of `count` queries sees, relative to the block; `from` is
// rounded down to a whole vector. Empty if from >= to.
inline KeyRange visible_keys(const Params& params, const QueryState& state, int64_t query,
                             int count, int64_t block_start) {
  int64_t from = params.keys_per_block(), to = 0;
  for (int64_t q = query; q < query + count; q++) {
    from = min(from, state.key_begin[q] - block_start);
    to = max(to, state.key_end[q] - block_start);
  }
  return {max(from, 0) / kLanes * kLanes, min(to, params.keys_per_block())};
}

// Calls step(query, StaticCount) for micro-tiles of queries. Avoids a last tile of a single query
// after a full tile.
template <typename Step>
INLINE void for_each_tile(int64_t num_queries, const Step& step) {
  for (int64_t query = 0; query < num_queries;) {
    const int64_t left = num_queries - query;
    const int64_t tile = left == kMr + 1 ? left / 2 : min(left, kMr);
    with_static_count<kMr>(tile, [&](auto mr) { step(query, mr); });
    query += tile;
  }
}

}  // namespace attention::SIMD

#include "end_target.h"
