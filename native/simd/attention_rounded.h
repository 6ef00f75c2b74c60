// Attention over a cache with factors rounded to bfloat16, for decoders whose other products are in
// 8 bits. AVX-512 BF16 only.
//
// attention_lanes.h computes many queries, attention_rounded.cc few. A sum has the same terms in
// the same order either way: over pairs of dimensions, and over pairs of keys that begin at an even
// position. So a token's result depends neither on other rows nor on how a prompt was cut into
// chunks.
#pragma once

#include "../attention_state.h"
#include "attention_pairs.h"

#include "begin_target.h"

namespace attention::SIMD {

// Rounds positions first .. last - 1 of a row and a head into the RoundedCache.
void round_cache(const Params& params, int64_t row, int64_t kv_head, int64_t first, int64_t last);

// Updates the state of all queries, which are pairs of dimensions, with keys and values of
// positions block_start .. end - 1 of a row's cache, at most a block. `scratch`: keys_per_block *
// head_size floats.
void attend_rounded(const Params& params, const QueryState& state, int64_t row,
                    int64_t block_start, int64_t end, float* scratch);

}  // namespace attention::SIMD

#include "end_target.h"
