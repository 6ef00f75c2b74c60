#include "attention_operator.h"

#include "attention_inputs.h"
#include "attention_tasks.h"
#include "operator.h"

namespace ort {
namespace {

struct Attention {
  static constexpr const char* kName = "Attention";
  static constexpr Parameter kInputs[kNumAttentionInputs] = {
      {kFloat},       {kFloat, true}, {kFloat, true}, {kFloat, true}, {kFloat, true}, {kInt32},
      {kInt32},       {kFloat, true}, {kFloat, true}, {kFloat, true}, {kFloat, true},
      {kInt32, true}, {kInt32, true}, {kInt32, true}};
  static constexpr Parameter kOutputs[] = {{kFloat}, {kFloat, true}, {kFloat, true}};

  AttentionAttributes attributes;

  Status* create(const Api& api, const KernelInfo* info) { return attributes.read(api, info); }
  Status* run(const Api& api, KernelContext* context) const;
};

// Allocates the output and, if the node has them, present keys and values of `capacity`.
Status* make_outputs(const Api& api, KernelContext* context, int64_t capacity,
                     attention::Params& params) {
  const int64_t width = params.num_heads * params.head_size;
  const int64_t output_shape[] = {params.num_rows, params.num_tokens, width};
  const int64_t cache_shape[] = {params.num_rows, params.num_kv_heads, capacity, params.head_size};
  float *keys = nullptr, *values = nullptr;
  RETURN_IF_FAILED(output_data(api, context, 0, output_shape, 3, params.output));
  RETURN_IF_FAILED(output_data(api, context, 1, cache_shape, 4, keys));
  RETURN_IF_FAILED(output_data(api, context, 2, cache_shape, 4, values));
  if (keys && values) params.cache = {keys, values, capacity};
  return nullptr;
}

Status* Attention::run(const Api& api, KernelContext* context) const {
  AttentionInputs inputs(attributes);
  attention::Params params{};
  RETURN_IF_FAILED(inputs.read(api, context));
  RETURN_IF_FAILED(inputs.fill(api, params));
  const int64_t capacity = max(inputs.total(), params.past.capacity);
  RETURN_IF_FAILED(make_outputs(api, context, capacity, params));
  if (!params.num_rows || !params.num_tokens) return nullptr;
  if (!params.cache.keys && (!params.is_prefill || params.past.keys)) {
    return api.CreateStatus(kInvalidArgument, "a node with a past must have present outputs");
  }
  return run_attention(api, context, params);
}

}  // namespace

const Operator& attention() { return make_operator<Attention>(); }

}  // namespace ort
