#include "attention_inputs.h"

#include <math.h>

#include "cpu_features.h"

namespace ort {

using attention::Params;

Status* AttentionAttributes::read(const Api& api, const KernelInfo* info) {
  RETURN_IF_FAILED(api.Attribute(info, "num_heads", &num_heads));
  RETURN_IF_FAILED(api.Attribute(info, "kv_num_heads", &num_kv_heads));
  RETURN_IF_FAILED(api.Attribute(info, "causal", &is_causal));
  RETURN_IF_FAILED(api.Attribute(info, "local_window_size", &window));
  RETURN_IF_FAILED(api.Attribute(info, "rotary_interleaved", &is_interleaved));
  RETURN_IF_FAILED(api.Attribute(info, "smooth_softmax", &is_smooth));
  RETURN_IF_FAILED(api.Attribute(info, "allows_bfloat16", &allows_bfloat16));
  allows_bfloat16 = allows_bfloat16 && cpu_features::has_avx512_bf16();
  RETURN_IF_FAILED(api.Attribute(info, "scale", &scale));
  RETURN_IF_FAILED(api.Attribute(info, "softcap", &soft_cap));
  if (num_heads < 1 || num_kv_heads < 1 || num_heads % num_kv_heads) {
    return api.CreateStatus(kInvalidArgument, "num_heads must be a multiple of kv_num_heads");
  }
  return nullptr;
}

bool AttentionInputs::Input::has_shape(int64_t a, int64_t b, int64_t c) const {
  return shape.rank == 3 && shape.sizes[0] == a && shape.sizes[1] == b && shape.sizes[2] == c;
}

bool AttentionInputs::Input::has_cache_shape(const Params& params, int64_t capacity) const {
  const int64_t* sizes = shape.sizes;
  return shape.rank == 4 && sizes[0] == params.num_rows && sizes[1] == params.num_kv_heads &&
         sizes[2] == capacity && sizes[3] == params.head_size;
}

Status* AttentionInputs::read(const Api& api, KernelContext* context) {
  for (size_t index = 0; index < kNumAttentionInputs; index++) {
    Input& input = inputs_[index];
    const Value* value = nullptr;
    RETURN_IF_FAILED(api.Input(context, index, &value));
    if (!value) continue;
    input.is_given = true;
    RETURN_IF_FAILED(api.Data(value, &input.data));
    const bool is_scalar = index == kTotal;
    if (!is_scalar) RETURN_IF_FAILED(dimensions(api, value, input.shape));
  }
  return nullptr;
}

// The order matters: later functions use fields that earlier ones fill.
Status* AttentionInputs::fill(const Api& api, Params& params) const {
  const char* error = fill_query(params);
  if (!error) error = fill_key_value(params);
  if (!error) error = fill_past(params);
  if (!error) error = fill_lengths(params);
  if (!error) error = fill_rotary(params);
  if (!error) error = fill_bias(params);
  if (!error) error = fill_sinks(params);
  if (!error) error = fill_cache_rows(params);
  if (!error) error = fill_chosen(params);
  if (!error) error = fill_num_valid(params);
  if (error) return api.CreateStatus(kInvalidArgument, error);
  fill_settings(params);
  return nullptr;
}

const char* AttentionInputs::fill_query(Params& params) const {
  const Input& query = inputs_[kQuery];
  if (query.shape.rank != 3) return "query must have 3 dimensions";
  const bool reads_source = inputs_[kCacheRows].is_given;
  const bool is_packed = !inputs_[kKey].is_given && !reads_source;  // has new keys, values
  const int64_t width = query.shape.sizes[2];
  const int64_t num_vectors =
      attributes_.num_heads + (is_packed ? 2 * attributes_.num_kv_heads : 0);
  params.num_heads = attributes_.num_heads;
  params.num_kv_heads = attributes_.num_kv_heads;
  params.head_size = width / num_vectors;
  if (width % num_vectors || params.head_size % 8) return "head_size must be a multiple of 8";
  params.num_rows = query.shape.sizes[0];
  params.num_tokens = query.shape.sizes[1];
  params.num_new_keys = reads_source ? 0 : params.num_tokens;
  params.query = {query.floats(), params.num_tokens * width, width};
  return nullptr;
}

const char* AttentionInputs::fill_key_value(Params& params) const {
  const Input &key = inputs_[kKey], &value = inputs_[kValue];
  if (inputs_[kCacheRows].is_given) {
    return key.is_given || value.is_given ? "cache_rows allows neither key nor value" : nullptr;
  }
  if (!key.is_given) {
    params.key = params.value = params.query;
    params.key.data += params.num_heads * params.head_size;
    params.value.data += (params.num_heads + params.num_kv_heads) * params.head_size;
    return nullptr;
  }
  if (key.shape.rank != 3) return "key must have 3 dimensions";
  const int64_t width = params.num_kv_heads * params.head_size;
  params.num_new_keys = key.shape.sizes[1];
  if (!key.has_shape(params.num_rows, params.num_new_keys, width) || !value.is_given ||
      !value.has_shape(params.num_rows, params.num_new_keys, width) ||
      (params.num_new_keys && params.num_new_keys != params.num_tokens)) {
    return "key and value must be [rows, tokens or 0, kv_heads * head_size]";
  }
  params.key = {key.floats(), params.num_new_keys * width, width};
  params.value = {value.floats(), params.num_new_keys * width, width};
  return nullptr;
}

const char* AttentionInputs::fill_past(Params& params) const {
  const Input &keys = inputs_[kPastKeys], &values = inputs_[kPastValues];
  if (!keys.is_given) return nullptr;
  const int64_t capacity = keys.shape.rank == 4 ? keys.shape.sizes[2] : -1;
  if (!keys.has_cache_shape(params, capacity) || !values.has_cache_shape(params, capacity)) {
    return "past_key and past_value must be [rows, kv_heads, capacity, head_size]";
  }
  params.past = {keys.floats(), values.floats(), capacity};
  return nullptr;
}

const char* AttentionInputs::fill_lengths(Params& params) const {
  const Input& last = inputs_[kLastPositions];
  params.is_prefill = params.num_new_keys && params.num_tokens == total();
  if (params.num_new_keys > 1 && !params.is_prefill && params.num_rows != 1) {
    return "only one row may add several tokens to its past";
  }
  if (last.shape.num_rows() * last.shape.last() != params.num_rows) {
    return "seqlens_k must be [rows]";
  }
  params.last_positions = last.integers();
  for (int64_t row = 0; row < params.num_rows; row++) {
    if (const char* error = check_length(params, row)) return error;
  }
  return nullptr;
}

const char* AttentionInputs::check_length(const Params& params, int64_t row) const {
  const int64_t length = params.length(row), start = params.start(row);
  const Input &bias = inputs_[kBias], &cos = inputs_[kCos];
  if (length < 1 || length > max(total(), params.past.capacity) || start < 0 ||
      (!params.is_prefill && start > params.past.capacity) ||
      (params.is_prefill && length > total()) || (bias.data && length > bias.shape.last())) {
    return "a row's length must be 1 to the capacity";
  }
  if (cos.data && (!params.num_new_keys || length > cos.shape.sizes[0])) {
    return "a position is not in cos_cache";
  }
  return nullptr;
}

const char* AttentionInputs::fill_rotary(Params& params) const {
  if (!inputs_[kCos].data) return nullptr;
  const Dimensions &cos = inputs_[kCos].shape, &sin = inputs_[kSin].shape;
  if (cos.rank != 2 || sin.rank != 2 || cos.sizes[0] != sin.sizes[0] ||
      cos.last() != sin.last() || 2 * cos.last() > params.head_size) {
    return "cos_cache and sin_cache must be [positions, half]";
  }
  params.rotary = {inputs_[kCos].floats(), inputs_[kSin].floats(), cos.last(),
                   attributes_.is_interleaved != 0};
  return nullptr;
}

const char* AttentionInputs::fill_bias(Params& params) const {
  if (!inputs_[kBias].data) return nullptr;
  const Dimensions& bias = inputs_[kBias].shape;
  if (bias.rank != 4 || (bias.sizes[0] != 1 && bias.sizes[0] != params.num_rows) ||
      (bias.sizes[1] != 1 && bias.sizes[1] != params.num_heads) ||
      bias.sizes[2] != params.num_tokens) {
    return "attention_bias must be [rows or 1, heads or 1, tokens, keys]";
  }
  const int64_t head_stride = params.num_tokens * bias.last();
  params.bias = {inputs_[kBias].floats(), bias.sizes[0] == 1 ? 0 : bias.sizes[1] * head_stride,
                 bias.sizes[1] == 1 ? 0 : head_stride, bias.last()};
  return nullptr;
}

const char* AttentionInputs::fill_sinks(Params& params) const {
  const Input& sinks = inputs_[kSinks];
  if (sinks.data && sinks.shape.last() != params.num_heads) return "head_sink must be [heads]";
  params.sinks = sinks.floats();
  return nullptr;
}

const char* AttentionInputs::fill_cache_rows(Params& params) const {
  const Input& cache_rows = inputs_[kCacheRows];
  if (!cache_rows.is_given) return nullptr;
  if (cache_rows.shape.last() != params.num_rows) return "cache_rows must be [rows]";
  params.cache_rows = cache_rows.integers();
  for (int64_t row = 0; row < params.num_rows; row++) {
    const int64_t source = params.cache_row(row);
    if (source < 0 || source >= params.num_rows ||
        params.last_positions[source] != params.last_positions[row]) {
      return "cache_rows must name rows of equal length";
    }
  }
  return nullptr;
}

const char* AttentionInputs::fill_chosen(Params& params) const {
  const Input& chosen = inputs_[kChosen];
  if (!chosen.is_given) return nullptr;
  if (chosen.shape.rank != 1) return "chosen_tokens must be [chosen]";
  params.has_chosen = true;
  params.num_chosen = chosen.shape.last();
  params.chosen = chosen.integers();
  return nullptr;
}

const char* AttentionInputs::fill_num_valid(Params& params) const {
  const Input& lengths = inputs_[kLengths];
  if (!lengths.is_given) return nullptr;
  if (!params.is_prefill || lengths.shape.num_rows() * lengths.shape.last() != params.num_rows) {
    return "lengths must be [rows], of whole texts";
  }
  params.num_valid = lengths.integers();
  for (int64_t row = 0; row < params.num_rows; row++) {
    if (params.num_valid[row] < 1 || params.num_valid[row] > params.num_tokens) {
      return "lengths must be 1 to the number of tokens";
    }
    if (params.rotary.cos && params.num_valid[row] > inputs_[kCos].shape.sizes[0]) {
      return "a position is not in cos_cache";
    }
  }
  return nullptr;
}

void AttentionInputs::fill_settings(Params& params) const {
  params.has_zero_sink = attributes_.is_smooth == 1;
  params.allows_bfloat16 = attributes_.allows_bfloat16 != 0;
  params.is_causal = attributes_.is_causal != 0;
  params.window = attributes_.window > 0 ? attributes_.window : 0;
  params.soft_cap = attributes_.soft_cap;
  params.scale = attributes_.scale != 0.0f
                     ? attributes_.scale
                     : 1.0f / sqrtf(static_cast<float>(params.head_size));
}

}  // namespace ort
