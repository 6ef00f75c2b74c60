// FlashAttention, including splits of the keys (Flash-Decoding) and new keys for the cache.
// Source: onnxruntime/contrib_ops/cuda/bert/flash_attention/{flash.h,flash_fwd_kernel.h,mask.h,
// softmax.h}.

#include <algorithm>

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "attention.h"

namespace stand_in {
namespace {

// Strides of a tensor, in elements.
struct Tensor {
  int64_t batch, row, head;
};

// The parameters of FlashAttention in ONNX Runtime 1.31.1.
struct FlashParameters {
  void *query, *key, *value;
  int64_t query_batch, key_batch, value_batch, query_row, key_row, value_row, query_head,
      key_head, value_head;
  int32_t num_heads, num_key_heads, num_group_heads;
  void* output;
  float* partial_output;  // [splits, batch, heads, queries, padded size]
  Tensor output_strides;
  void* unused0;
  float *log_sums, *partial_log_sums;  // [batch, heads, queries]; [splits, ...]
  int32_t batch_size, query_length, key_length, new_length, size, padded_query_length,
      padded_key_length, padded_size, rotary_size, unused1;
  float scale, scale_of_powers_of_2;
  float capped_scale;  // scores are scale * tanh(capped_scale * product)
  int32_t *query_starts, *key_lengths;
  void *unused2, *unused3;
  void *new_key, *new_value;
  int64_t new_key_batch, new_value_batch, new_key_row, new_value_row, new_key_head,
      new_value_head;
  void *cosines, *sines;  // [positions, rotary size / 2]
  void *batch_indices, *pages;
  int64_t pages_stride;
  int32_t page_size, window_left, window_right;
  bool is_bfloat, is_causal, has_key_starts, is_interleaved;
  void* sinks;  // [heads]
  bool is_smooth;
  int32_t num_parts;
  void* slopes;
};
static_assert(offsetof(FlashParameters, output) == 112);
static_assert(offsetof(FlashParameters, batch_size) == 176);
static_assert(offsetof(FlashParameters, capped_scale) == 224);
static_assert(offsetof(FlashParameters, new_key) == 264);
static_assert(offsetof(FlashParameters, window_left) == 372);
static_assert(offsetof(FlashParameters, num_parts) == 396);

// Template arguments: the traits and booleans. `traits`: head size, queries and keys per block,
// ..., element type.
struct Traits {
  bool is_causal, is_local, is_capped, is_split, appends;
  int64_t block_keys;
  std::string element;
};

Traits TraitsOf(const Name& name) {
  const std::vector<std::string>& arguments = name.arguments;
  const std::string& traits = arguments[0];
  const size_t begin = traits.find('<') + 1;
  const std::vector<std::string> parts = PartsOf(traits.substr(begin, traits.rfind('>') - begin));
  const bool is_of_parts = arguments.size() > 8;  // the other kernel's seventh: returns weights
  const auto is_true = [&](size_t i) { return i < arguments.size() && arguments[i] == "true"; };
  return {is_true(1), is_true(2), is_true(6), is_of_parts && is_true(7),
          is_of_parts && is_true(8), atoi(parts[2].c_str()), parts[6]};
}

// Whether parameters use no ALiBi slopes, pages or unpadded sequences, which no model here uses.
bool IsKnown(const FlashParameters& p) {
  return p.slopes == nullptr && p.pages == nullptr && p.batch_indices == nullptr &&
         p.query_starts == nullptr && !(p.has_key_starts && p.key_lengths != nullptr);
}

template <typename T>
class Flash {
 public:
  Flash(const FlashParameters& parameters, const Traits& traits) : p(parameters), traits(traits) {}

  void operator()() const {
    for (int64_t batch = 0; batch < p.batch_size; ++batch) {
      for (int64_t head = 0; head < p.num_key_heads; ++head) {
        if (traits.appends) Append(batch, head);
        const int64_t length = KeyLength(batch);
        const Head found = {
            p.size, p.size,
            FloatsOf(static_cast<const T*>(p.key) + batch * p.key_batch + head * p.key_head,
                     p.key_row, length, p.size),
            FloatsOf(static_cast<const T*>(p.value) + batch * p.value_batch + head * p.value_head,
                     p.value_row, length, p.size)};
        for (int64_t i = 0; i < p.num_group_heads; ++i) {
          const int64_t query_head = head * p.num_group_heads + i;
          for (int64_t row = 0; row < p.query_length; ++row) Query(batch, query_head, row, found);
        }
      }
    }
  }

 private:
  // The number of keys before new keys are appended.
  int64_t PastLength(int64_t batch) const {
    return p.key_lengths == nullptr ? p.key_length : p.key_lengths[batch];
  }
  int64_t KeyLength(int64_t batch) const {
    return PastLength(batch) + (traits.appends ? p.new_length : 0);
  }

  // A query or a new key, with rotary positions if the kernel applies them.
  std::vector<float> RowOf(const void* begin, int64_t offset, int64_t position) const {
    std::vector<float> row = FloatsOf(static_cast<const T*>(begin) + offset, 0, 1, p.size);
    if (!traits.appends || p.rotary_size == 0) return row;
    const int64_t num_pairs = p.rotary_size / 2;
    Rotate(static_cast<const T*>(p.cosines) + position * num_pairs,
           static_cast<const T*>(p.sines) + position * num_pairs, num_pairs, p.is_interleaved,
           &row);
    for (float& value : row) value = static_cast<float>(static_cast<T>(value));
    return row;
  }

  void Append(int64_t batch, int64_t head) const {
    for (int64_t row = 0; row < p.new_length; ++row) {
      const int64_t place = PastLength(batch) + row;
      const int64_t key =
          batch * p.new_key_batch + row * p.new_key_row + head * p.new_key_head;
      const T* value = static_cast<const T*>(p.new_value) + batch * p.new_value_batch +
                       row * p.new_value_row + head * p.new_value_head;
      Store(RowOf(p.new_key, key, place), static_cast<T*>(p.key) + batch * p.key_batch +
                                              place * p.key_row + head * p.key_head);
      std::copy(value, value + p.size, static_cast<T*>(p.value) + batch * p.value_batch +
                                           place * p.value_row + head * p.value_head);
    }
  }

  // The last query is aligned with the last key.
  KeyRange KeysOf(int64_t batch, int64_t row) const {
    const int64_t length = KeyLength(batch), last = row + length - p.query_length;
    KeyRange range = {0, length};
    if (traits.is_causal) range.end = std::min(length, last + 1);
    if (traits.is_local && p.window_right >= 0) {
      range.end = std::min(length, last + p.window_right + 1);
    }
    if (traits.is_local && p.window_left >= 0) {
      range.begin = std::max<int64_t>(0, last - p.window_left);
    }
    return range;
  }

  float Score(float product) const {
    return traits.is_capped ? p.scale * tanhf(product * p.capped_scale) : product * p.scale;
  }

  void Query(int64_t batch, int64_t head, int64_t row, const Head& keys) const {
    const auto score_of = [&](float product, int64_t) { return Score(product); };
    const std::vector<float> query =
        RowOf(p.query, batch * p.query_batch + row * p.query_row + head * p.query_head,
              PastLength(batch) + row);
    const KeyRange range = KeysOf(batch, row);
    float sink = p.is_smooth ? 0 : -INFINITY;
    if (p.sinks != nullptr) sink = static_cast<float>(static_cast<const T*>(p.sinks)[head]);
    if (!traits.is_split) {
      const Tensor& strides = p.output_strides;
      Store(Attend(query, keys, range, sink, score_of).values,
            static_cast<T*>(p.output) + batch * strides.batch + row * strides.row +
                head * strides.head);
      return;
    }
    // All splits have the same number of blocks of keys.
    const int64_t num_blocks = (KeyLength(batch) + traits.block_keys - 1) / traits.block_keys;
    const int64_t part_keys = (num_blocks + p.num_parts - 1) / p.num_parts * traits.block_keys;
    const int64_t num_rows = static_cast<int64_t>(p.batch_size) * p.num_heads * p.query_length;
    for (int64_t part = 0; part < p.num_parts; ++part) {
      const KeyRange keys_of_part = {std::max(range.begin, part * part_keys),
                                     std::min(range.end, (part + 1) * part_keys)};
      const Attended found = Attend(query, keys, keys_of_part, -INFINITY, score_of);
      const int64_t index =
          part * num_rows + (batch * p.num_heads + head) * p.query_length + row;
      p.partial_log_sums[index] = found.log_sum;
      Store(found.values, p.partial_output + index * p.padded_size);
    }
  }

  FlashParameters p;
  Traits traits;
};

// Combines the splits' means, weighted by their sums of exponentials.
template <typename T>
void Combine(const FlashParameters& p) {
  const int64_t num_rows = static_cast<int64_t>(p.batch_size) * p.num_heads * p.query_length;
  for (int64_t index = 0; index < num_rows; ++index) {
    float largest = -INFINITY, sum = 0;
    std::vector<float> mean(static_cast<size_t>(p.size));
    for (int64_t part = 0; part < p.num_parts; ++part) {
      largest = std::max(largest, p.partial_log_sums[part * num_rows + index]);
    }
    for (int64_t part = 0; part < p.num_parts && largest != -INFINITY; ++part) {
      const float weight = expf(p.partial_log_sums[part * num_rows + index] - largest);
      const float* values = p.partial_output + (part * num_rows + index) * p.padded_size;
      sum += weight;
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += weight * values[i];
    }
    for (float& value : mean) value = sum == 0 ? 0 : value / sum;
    const int64_t row = index % p.query_length, head = index / p.query_length % p.num_heads;
    const int64_t batch = index / p.query_length / p.num_heads;
    Store(mean, static_cast<T*>(p.output) + batch * p.output_strides.batch +
                    row * p.output_strides.row + head * p.output_strides.head);
  }
}

}  // namespace

// flash_fwd_kernel<traits, is causal, is local, has slopes, -, -, is capped, ->(parameters), and
// flash_fwd_splitkv_kernel<traits, the same six, is split, appends>(parameters)
Computation MakeFlash(const Launch& launch) {
  const auto p = launch.Get<FlashParameters>(0);
  const Traits traits = TraitsOf(launch.name);
  const bool has_sinks = p.sinks != nullptr || p.is_smooth;
  Computation made;
  if (!IsKnown(p) || (traits.is_split && has_sinks)) return made;
  VisitFloat(traits.element, [&](auto tag) {
    made = Flash<typename decltype(tag)::Type>(p, traits);
  });
  return made;
}

// flash_fwd_splitkv_combine_kernel<traits, ...>(parameters)
Computation MakeCombinedFlash(const Launch& launch) {
  const auto p = launch.Get<FlashParameters>(0);
  Computation made;
  VisitFloat(TraitsOf(launch.name).element, [&](auto tag) {
    made = [p] { Combine<typename decltype(tag)::Type>(p); };
  });
  return made;
}

}  // namespace stand_in
