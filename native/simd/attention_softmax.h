// The online softmax of attention: a block's scores become weights, earlier sums are rescaled to
// the new maximum, and the accumulators are normalized at the end.
#pragma once

#include "../attention_state.h"
#include "attention_pairs.h"

#include "begin_target.h"

namespace attention::SIMD {

using namespace ::SIMD;

// The bias of a query for each key of the row; null without a bias.
const float* bias_row(const Params& params, const QueryState& state, int64_t query);

// One step of the online softmax, for queries first_query .. last_query - 1: applies the soft cap,
// bias and mask to scores, and replaces them by power<T>(score - maximum). The scores are of keys
// from .. to - 1 of the block that begins at position `block_start`; `from` and `to` are multiples
// of kLanes. Updates each query's maximum, denominator and rescale factor. T: float, or int32_t if
// the scores are of pairs.
template <typename T>
void softmax_block(const Params& params, const QueryState& state, int64_t first_query,
                   int64_t last_query, int64_t block_start, int64_t from, int64_t to);

// Divides a query's accumulator by its denominator, the sink of its head included; output
// [head_size].
void write_output(const Params& params, int64_t head, const QueryState& state, int64_t query,
                  float* output);

}  // namespace attention::SIMD

#include "end_target.h"
