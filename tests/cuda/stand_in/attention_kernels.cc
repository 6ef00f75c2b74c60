// Attention of one new token (XQA), memory-efficient attention, and the table of attention kernels.
// Source: onnxruntime/contrib_ops/cuda/bert/{xqa/mha.h,xqa/mha_impl.cuh,xqa/mhaUtils.cuh,
// cutlass_fmha/kernel_forward.h,cutlass_fmha/fmha_launch_template.h}.

#include <algorithm>

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "attention.h"

namespace stand_in {

Attended MeanOf(std::vector<float> scores, const Head& head, KeyRange range, float sink) {
  Attended found = {std::vector<float>(static_cast<size_t>(head.value_size)), -INFINITY};
  float largest = sink;
  for (float score : scores) largest = std::max(largest, score);
  if (largest == -INFINITY) return found;
  float sum = expf(sink - largest);
  for (size_t i = 0; i < scores.size(); ++i) {
    const float weight = expf(scores[i] - largest);
    const float* row =
        head.values.data() + (range.begin + static_cast<int64_t>(i)) * head.value_size;
    sum += weight;
    for (size_t j = 0; j < found.values.size(); ++j) found.values[j] += weight * row[j];
  }
  for (float& value : found.values) value /= sum;
  found.log_sum = largest + logf(sum);
  return found;
}

namespace {

// The kernel's parameter for the keys and values.
struct Cache {
  void *keys, *values;  // [batch, key heads, capacity, size]; or, by token, with heads third
  const uint32_t* lengths;
  uint32_t capacity;
  bool is_by_token;
  uint32_t num_new;  // to add to `lengths`
};
static_assert(sizeof(Cache) == 40 && offsetof(Cache, num_new) == 32);

// T: the type of queries; U: that of the cache.
template <typename T, typename U>
struct TokenAttention {
  int64_t num_key_heads, window;  // window: number of last keys
  float scale;
  T* output;       // [batch, heads, size]
  const T* query;  // the same
  const float* sinks;
  Cache cache;
  int64_t batch_size;
  const float *key_scale, *value_scale;  // scales of an integer cache
  int64_t size, num_group_heads;

  void operator()() const {
    for (int64_t batch = 0; batch < batch_size; ++batch) {
      for (int64_t head = 0; head < num_key_heads; ++head) Group(batch, head);
    }
  }

 private:
  void Group(int64_t batch, int64_t key_head) const {
    const int64_t length = cache.lengths[batch] + cache.num_new;
    const int64_t stride = cache.is_by_token ? num_key_heads * size : size;
    const int64_t first = batch * num_key_heads * cache.capacity * size +
                          key_head * (cache.is_by_token ? size : cache.capacity * size);
    const Head head = {size, size,
                       FloatsOf(static_cast<const U*>(cache.keys) + first, stride, length, size),
                       FloatsOf(static_cast<const U*>(cache.values) + first, stride, length, size)};
    const KeyRange range = {std::max<int64_t>(0, length - window), length};
    const bool is_scaled = sizeof(U) < sizeof(T);
    const float of_scores = is_scaled ? scale * *key_scale : scale;
    for (int64_t i = 0; i < num_group_heads; ++i) {
      const int64_t query_head = key_head * num_group_heads + i;
      const int64_t place = (batch * num_key_heads * num_group_heads + query_head) * size;
      const float sink = sinks == nullptr ? -INFINITY : sinks[query_head];
      std::vector<float> found =
          Attend(FloatsOf(query + place, 0, 1, size), head, range, sink,
                 [&](float product, int64_t) { return product * of_scores; })
              .values;
      for (float& value : found) value *= is_scaled ? *value_scale : 1;
      Store(found, output + place);
    }
  }
};

// The number after a word in a name.
int NumberAfter(const std::string& name, const char* word) {
  return atoi(name.c_str() + name.find(word) + strlen(word));
}

// H<size>::grp<queries per key head>_<types>::kernel_mha(key heads, window, scale, output, query,
// sinks, cache, batch size, key scale, value scale, ...)
Computation MakeTokenAttention(const Launch& launch) {
  Computation made;
  const std::string& base = launch.name.base;
  const auto make = [&](auto tag, auto cache_tag) {
    using T = typename decltype(tag)::Type;
    made = TokenAttention<T, typename decltype(cache_tag)::Type>{
        .num_key_heads = launch.Integer(0),
        .window = launch.Integer(1),
        .scale = launch.Get<float>(2),
        .output = launch.Get<T*>(3),
        .query = launch.Get<const T*>(4),
        .sinks = launch.Get<const float*>(5),
        .cache = launch.Get<Cache>(6),
        .batch_size = launch.Integer(7),
        .key_scale = launch.Get<const float*>(8),
        .value_scale = launch.Get<const float*>(9),
        .size = NumberAfter(base, "::H"),
        .num_group_heads = NumberAfter(base, "::grp"),
    };
  };
  const bool is_integer = base.find("int8") != std::string::npos;
  const bool is_bfloat = base.find("bf16") != std::string::npos;
  if (is_bfloat && is_integer) make(Tag<BFloat>(), Tag<int8_t>());
  if (is_bfloat && !is_integer) make(Tag<BFloat>(), Tag<BFloat>());
  if (!is_bfloat && is_integer) make(Tag<Half>(), Tag<int8_t>());
  if (!is_bfloat && !is_integer) make(Tag<Half>(), Tag<Half>());
  return made;
}

// The parameters of memory-efficient attention in ONNX Runtime 1.31.1. Strides are in elements.
struct EfficientParameters {
  void *query, *key, *value, *bias;
  int32_t *query_starts, *key_starts, *key_lengths;
  uint32_t unused0;
  void* output;
  void *unused1, *unused2;
  int32_t window;
  float scale, cap;
  int32_t key_size, value_size, num_queries, num_keys, unused3;
  uint8_t mask_type;
  int32_t query_row, key_row, value_row, bias_row, output_row, query_head, key_head, value_head;
  int64_t bias_head, query_batch, key_batch, value_batch, bias_batch;
  int32_t num_batches, num_heads;
  bool is_smooth;
};
static_assert(offsetof(EfficientParameters, output) == 64);
static_assert(offsetof(EfficientParameters, query_row) == 124);
static_assert(offsetof(EfficientParameters, bias_head) == 160);
static_assert(offsetof(EfficientParameters, num_heads) == 204);

template <typename T>
struct EfficientAttention {
  EfficientParameters p;

  void operator()() const {
    for (int64_t batch = 0; batch < p.num_batches; ++batch) {
      for (int64_t head = 0; head < p.num_heads; ++head) OfHead(batch, head);
    }
  }

 private:
  // The queries and keys of a batch entry: numbers of rows, and where they begin.
  struct Rows {
    const T *query, *key, *value;
    T* output;
    int64_t num_queries, num_keys;
  };

  Rows RowsOf(int64_t batch) const {
    const auto *query = static_cast<const T*>(p.query), *key = static_cast<const T*>(p.key);
    const auto* value = static_cast<const T*>(p.value);
    auto* output = static_cast<T*>(p.output);
    if (p.query_starts == nullptr) {
      return {query + batch * p.query_batch, key + batch * p.key_batch,
              value + batch * p.value_batch, output + batch * p.num_queries * p.output_row,
              p.num_queries, p.num_keys};
    }
    const int64_t first_query = p.query_starts[batch], first_key = p.key_starts[batch];
    const int64_t num_keys = p.key_lengths != nullptr ? p.key_lengths[batch]
                                                      : p.key_starts[batch + 1] - first_key;
    return {query + first_query * p.query_row, key + first_key * p.key_row,
            value + first_key * p.value_row, output + first_query * p.output_row,
            p.query_starts[batch + 1] - first_query, num_keys};
  }

  void OfHead(int64_t batch, int64_t head) const {
    const Rows rows = RowsOf(batch);
    const Head keys = {
        p.key_size, p.value_size,
        FloatsOf(rows.key + head * p.key_head, p.key_row, rows.num_keys, p.key_size),
        FloatsOf(rows.value + head * p.value_head, p.value_row, rows.num_keys, p.value_size)};
    // Type 2 aligns the last query with the last key, type 1 the first query with the first key.
    const int64_t offset = p.mask_type == 2 ? rows.num_keys - rows.num_queries : 0;
    for (int64_t row = 0; row < rows.num_queries; ++row) {
      KeyRange range = {0, rows.num_keys};
      if (p.mask_type != 0) range.end = std::min(rows.num_keys, row + offset + 1);
      if (p.window > 0) range.begin = std::max<int64_t>(0, row + offset - p.window + 1);
      const T* bias = p.bias == nullptr ? nullptr
                                        : static_cast<const T*>(p.bias) + batch * p.bias_batch +
                                              head * p.bias_head + row * p.bias_row;
      const auto score_of = [&](float product, int64_t key) {
        float score = product * p.scale;
        if (p.cap > 0) score = p.cap * tanhf(score / p.cap);
        return bias == nullptr ? score : score + static_cast<float>(bias[key]);
      };
      const auto query =
          FloatsOf(rows.query + row * p.query_row + head * p.query_head, 0, 1, p.key_size);
      const float sink = p.is_smooth ? 0 : -INFINITY;
      Store(Attend(query, keys, range, sink, score_of).values,
            rows.output + row * p.output_row + head * p.value_size);
    }
  }
};

// attention_kernel_batched_impl<AttentionKernel<T, ...>>(parameters)
Computation MakeEfficientAttention(const Launch& launch) {
  Computation made;
  const std::string& type = launch.name.arguments[0];
  const size_t begin = type.find('<') + 1;
  VisitFloat(type.substr(begin, type.find(',') - begin), [&](auto tag) {
    made = EfficientAttention<typename decltype(tag)::Type>{launch.Get<EfficientParameters>(0)};
  });
  return made;
}

// SanitizeMask1DKeySeqLenStartValues(from, to, batch size, query length, key length): lengths of
// keys, [batch]; then the starts of queries and the starts of keys, [batch + 1] each.
Computation MakeRanges(const Launch& launch) {
  return [from = launch.Get<const int*>(0), to = launch.Get<int*>(1),
          batch_size = launch.Get<int>(2), num_queries = launch.Get<int>(3),
          num_keys = launch.Get<int>(4)] {
    // Starts are made non-decreasing, from the first token to the last.
    const auto write_starts = [&](int first, int total) {
      int start = 0;
      for (int i = 0; i <= batch_size; ++i) {
        start = std::min(std::max(start, from[first + i]), total);
        to[first + i] = start;
      }
      to[first] = 0;
      to[first + batch_size] = total;
    };
    const int first_key = 2 * batch_size + 1;
    write_starts(batch_size, batch_size * num_queries);
    write_starts(first_key, batch_size * num_keys);
    for (int i = 0; i < batch_size; ++i) {
      to[i] = std::min(std::max(from[i], 0), to[first_key + i + 1] - to[first_key + i]);
    }
  };
}

#define CUDA "onnxruntime::contrib::cuda::"
#define FLASH "onnxruntime::flash::flash_fwd_"
#define SOFTMAX "onnxruntime::contrib::attention_softmax_cuda::"
#define TOKEN(size, group, type) \
  {CUDA #size "::" #group "_" #type "::kernel_mha", MakeTokenAttention}
#define TOKEN_GROUPS(size, type)                                                          \
  TOKEN(size, grp1, type), TOKEN(size, grp2, type), TOKEN(size, grp4, type),              \
      TOKEN(size, grp5, type), TOKEN(size, grp8, type), TOKEN(size, grp16, type),         \
      TOKEN(size, grp32, type)
#define TOKEN_TYPES(size)                                                                 \
  TOKEN_GROUPS(size, fp16), TOKEN_GROUPS(size, bf16), TOKEN_GROUPS(size, int8),           \
      TOKEN_GROUPS(size, bf16_int8)

constexpr Kernel kKernels[] = {
    TOKEN_TYPES(H64),
    TOKEN_TYPES(H128),
    TOKEN_TYPES(H256),
    {"attention_kernel_batched_impl", MakeEfficientAttention},
    {FLASH "kernel", MakeFlash},
    {FLASH "splitkv_kernel", MakeFlash},
    {FLASH "splitkv_combine_kernel", MakeCombinedFlash},
    {CUDA "AddBiasTranspose", MakeHeads},
    {CUDA "ConvertHeadSinkToFloatKernel", MakeSinks},
    {CUDA "DequantizeKVPairKernel", MakeDequantizedPair},
    {CUDA "DequantizeKVVectorizedKernel", MakeDequantized},
    {CUDA "GetSequenceLengths", MakeSequenceLengths},
    {CUDA "RotaryEmbeddingBSNH", MakeRotary},
    {CUDA "QuantizeKernel", MakeQuantized},
    {CUDA "SanitizeMask1DKeySeqLenStartValues", MakeRanges},
    {CUDA "TransposeCtx", MakeTokens},
    {CUDA "TransposeCtxLarge", MakeTokens},
    {CUDA "TransposeQKV", MakeHeadsOfSize},
    {CUDA "TransposeQKVLarge", MakeHeadsOfSize},
    {CUDA "UnfusedSoftmaxKernel", MakeUnfusedSoftmax},
    {CUDA "UnpackRoPEAppend", MakeAppend},
    {SOFTMAX "MaskedSoftmaxKernel", MakeMaskedSoftmax},
    {SOFTMAX "MaskedSoftmaxKernelSmall", MakeMaskedSoftmax},
    {SOFTMAX "SoftmaxKernel", MakeSoftmax},
    {SOFTMAX "SoftmaxKernelSmall", MakeSoftmax},
};

}  // namespace

const Kernels kAttentionKernels = {kKernels, sizeof(kKernels) / sizeof(kKernels[0])};

}  // namespace stand_in
