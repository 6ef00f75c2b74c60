#include "attention_softmax.h"

#include <float.h>
#include <math.h>

#include "begin_target.h"

namespace attention::SIMD {

const float* bias_row(const Params& params, const QueryState& state, int64_t query) {
  if (!params.bias.data) return nullptr;
  const int64_t group_size = params.group_size();
  const int64_t head = state.kv_head * group_size + query % group_size;
  const int64_t token = query / group_size, num_tokens = state.block.num_tokens();
  return params.bias.data + state.block.rows[token / num_tokens] * params.bias.row_stride +
         head * params.bias.head_stride +
         (state.block.first_token + token % num_tokens) * params.bias.num_keys;
}

namespace {

// Applies soft cap and bias to a query's scores; keys that it does not see get -inf.
void cap_bias_and_mask(const Params& params, const QueryState& state, int64_t query,
                       int64_t block_start, int64_t from, int64_t to) {
  float* scores = state.scores + query * params.keys_per_block();
  const float* bias = bias_row(params, state, query);
  const int32_t begin = state.key_begin[query] - static_cast<int32_t>(block_start);
  const int32_t end = state.key_end[query] - static_cast<int32_t>(block_start);
  for (int64_t i = from; i < to; i += kLanes) {
    Floats score = load(scores + i);
    const Ints key = iota() + static_cast<int32_t>(i);
    if (params.soft_cap > 0) score = params.soft_cap * tanh(score / params.soft_cap);
    if (bias) {
      const int64_t num_left = params.bias.num_keys - block_start - i;
      const float* at = bias + block_start + i;
      score += num_left >= kLanes ? load(at) : load_n(at, max(0, num_left));
    }
    store(scores + i, (key >= begin & key < end) ? score : Floats(-INFINITY));
  }
}

// softmax_block() for one query.
template <typename T>
INLINE void softmax_query(const Params& params, const QueryState& state, int64_t query,
                          int64_t block_start, int64_t from, int64_t to) {
  const bool sees_all =
      state.key_begin[query] <= block_start + from && block_start + to <= state.key_end[query];
  if (!sees_all || params.soft_cap > 0 || params.bias.data) {
    cap_bias_and_mask(params, state, query, block_start, from, to);
  }
  float* scores = state.scores + query * params.keys_per_block();
  const float old_max = state.max_scores[query];
  Floats maxima = old_max;
  for (int64_t i = from; i < to; i += kLanes) maxima = max(load(scores + i), maxima);
  const float new_max = reduce_max(maxima);
  float rescale = 1.0f;  // 0 if this is the first block
  if (old_max != new_max) {
    rescale = old_max == -FLT_MAX ? 0.0f : power<T>(Floats(old_max - new_max))[0];
  }
  float* denominators = state.denominators + query * kMaxLanes;
  Floats denominator = load(denominators) * rescale;
  for (int64_t i = from; i < to; i += kLanes) {
    const Floats weight = power<T>(load(scores + i) - new_max);
    store(scores + i, weight);
    denominator += weight;
  }
  store(denominators, denominator);
  state.max_scores[query] = new_max;
  state.rescale[query] = rescale;
}

}  // namespace

template <typename T>
void softmax_block(const Params& params, const QueryState& state, int64_t first_query,
                   int64_t last_query, int64_t block_start, int64_t from, int64_t to) {
  for (int64_t query = first_query; query < last_query; query++) {
    softmax_query<T>(params, state, query, block_start, from, to);
  }
}
template void softmax_block<float>(const Params&, const QueryState&, int64_t, int64_t, int64_t,
                                   int64_t, int64_t);
#if SIMD_BITS == 512
template void softmax_block<int32_t>(const Params&, const QueryState&, int64_t, int64_t, int64_t,
                                     int64_t, int64_t);
#endif

void write_output(const Params& params, int64_t head, const QueryState& state, int64_t query,
                  float* output) {
  float max_score = state.max_scores[query], factor = 1.0f;
  float denominator = reduce_sum(load(state.denominators + query * kMaxLanes));
  if (params.sinks || params.has_zero_sink) {
    const float sink = params.sinks ? params.sinks[head] : 0.0f;
    const float new_max = fmaxf(max_score, sink);
    factor = exp_scalar(max_score - new_max);
    denominator = denominator * factor + exp_scalar(sink - new_max);
  }
  factor = denominator == 0.0f ? 0.0f : factor / denominator;
  const float* accumulator = state.accumulators + query * params.head_size;
  for (int64_t i = 0; i < params.head_size; i += kLanes8) {
    store(output + i, load<Floats8>(accumulator + i) * factor);
  }
}

}  // namespace attention::SIMD

#include "end_target.h"
