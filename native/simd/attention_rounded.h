// Attention over a cache with factors rounded to bfloat16, for decoders whose other products are in
// 8 bits anyway. AVX-512 BF16 only.
//
// Many queries are computed in lanes (attention_lanes.h), few in attention_rounded.cc. A sum has the
// same terms in the same order either way: over pairs of dimensions, and over pairs of keys that
// begin at an even position. So a token's result depends neither on other rows nor on how a prompt
// was cut.
#pragma once

#include "../attention_state.h"
#include "attention_pairs.h"

#include "begin_target.h"

namespace attention::SIMD {

// Fills the part of a RoundedCache that a row and a head have of positions first .. last - 1.
void round_cache(const Params& params, int64_t row, int64_t kv_head, int64_t first, int64_t last);

// Adds keys and values of positions block_start .. end - 1 of a row's cache, at most a block, to the
// state of all queries, which are pairs of dimensions. `scratch`: keys_per_block * head_size
// floats.
void attend_rounded(const Params& params, const QueryState& state, int64_t row,
                    int64_t block_start, int64_t end, float* scratch);

}  // namespace attention::SIMD

#include "end_target.h"
