// Reads and validates the attributes and inputs of triune.Attention: attention_operator.h.
#pragma once

#include "attention.h"
#include "operator.h"

namespace ort {

struct AttentionAttributes {
  int64_t num_heads, num_kv_heads, is_causal, window, is_interleaved, is_smooth, allows_bfloat16;
  float scale, soft_cap;

  Status* read(const Api& api, const KernelInfo* info);
};

// The order of the operator's inputs.
enum AttentionInput : size_t {
  kQuery,
  kKey,
  kValue,
  kPastKeys,
  kPastValues,
  kLastPositions,
  kTotal,
  kCos,
  kSin,
  kBias,
  kSinks,
  kCacheRows,
  kChosen,
  kLengths,
  kNumAttentionInputs
};

class AttentionInputs {
 public:
  explicit AttentionInputs(const AttentionAttributes& attributes) : attributes_(attributes) {}

  Status* read(const Api& api, KernelContext* context);
  // Fills all of `params` but `cache` and `output`. Returns an error if a shape or a value is
  // invalid, so that kernels need no checks.
  Status* fill(const Api& api, attention::Params& params) const;
  // The largest number of keys.
  int64_t total() const { return *inputs_[kTotal].integers(); }

 private:
  // An optional tensor.
  struct Input {
    bool is_given;
    void* data;  // may be null for an empty tensor
    Dimensions shape;

    float* floats() const { return static_cast<float*>(data); }
    const int32_t* integers() const { return static_cast<const int32_t*>(data); }
    bool has_shape(int64_t a, int64_t b, int64_t c) const;
    bool has_cache_shape(const attention::Params& params, int64_t capacity) const;
  };

  // Each returns an error message, or null if its inputs are valid.
  const char* fill_query(attention::Params& params) const;
  const char* fill_key_value(attention::Params& params) const;
  const char* fill_past(attention::Params& params) const;
  const char* fill_lengths(attention::Params& params) const;
  const char* fill_rotary(attention::Params& params) const;
  const char* fill_bias(attention::Params& params) const;
  const char* fill_sinks(attention::Params& params) const;
  const char* fill_cache_rows(attention::Params& params) const;
  const char* fill_chosen(attention::Params& params) const;
  const char* fill_num_valid(attention::Params& params) const;
  void fill_settings(attention::Params& params) const;
  const char* check_length(const attention::Params& params, int64_t row) const;

  const AttentionAttributes& attributes_;
  Input inputs_[kNumAttentionInputs] = {};
};

}  // namespace ort
