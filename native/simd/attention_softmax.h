// From scores to weights, and from sums of values to what attention returns.
#pragma once

#include "../attention_state.h"
#include "vectors.h"

#include "begin_target.h"

namespace attention::SIMD {

using namespace ::SIMD;

// Turns scores of queries first .. last - 1 and of keys from .. to - 1 of a block into weights;
// both bounds of keys are multiples of kLanes.
void weigh(const Call& call, const Queries& queries, int64_t first, int64_t last, int64_t block,
           int64_t from, int64_t to);

// The sums of a query of a head, over all its weights.
void finish(const Call& call, int64_t head, const Queries& queries, int64_t query, float* output);

}  // namespace attention::SIMD

#include "end_target.h"
