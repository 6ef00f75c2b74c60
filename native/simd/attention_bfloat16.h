// Attention with products in bfloat16 and sums in fp32, for encoders whose other products are in
// int8 (attention_pairs.h). AVX-512 BF16 only. Decoders use attention_rounded.h.
//
// A SIMD lane holds one query, as in attention_lanes.h: both use attention_lane_tiles.h.
#pragma once

#include "../attention_state.h"
#include "attention_pairs.h"

#include "begin_target.h"

namespace attention::SIMD {

using namespace ::SIMD;

// Whether this kernel can compute a call: all queries of a row see all its keys.
inline bool rounds_encoder(const Params& params) {
  return params.may_round() && !params.cache.keys && !params.is_causal && params.window == 0 &&
         params.group_size() == 1;
}

// Implements Attend for a block without padding.
void attend_in_bfloat16(const Params& params, const QueryBlock& block, int64_t head,
                        float* scratch);

}  // namespace attention::SIMD

#include "end_target.h"
