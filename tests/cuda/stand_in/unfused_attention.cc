// Attention by separate matrix products: softmax of scores, and transposition of heads and tokens.
// Source: onnxruntime/contrib_ops/cuda/bert/{unfused_attention.cu,attention_softmax.cu,
// attention_transpose.cu,add_bias_transpose.cu}.

#include <algorithm>

#include <math.h>

#include "attention.h"

namespace stand_in {
namespace {

struct Rows {
  int64_t num_batches, num_heads, num_queries, num_keys;
};

// Biases of scores, [batch or 1, heads or 1, queries, keys]; or null.
template <typename T>
struct Biases {
  const T* values;
  bool has_one_batch, has_one_head;

  float Of(const Rows& rows, int64_t batch, int64_t head, int64_t query, int64_t key) const {
    if (values == nullptr) return 0;
    const int64_t num_heads = has_one_head ? 1 : rows.num_heads;
    const int64_t matrix = (has_one_batch ? 0 : batch * num_heads) + (has_one_head ? 0 : head);
    return static_cast<float>(values[(matrix * rows.num_queries + query) * rows.num_keys + key]);
  }
};

// Softmax over the keys in `range_of(batch, query)`. Other keys get 0; so do all if the range is
// empty. `score_of(score)` is applied before a bias.
template <typename From, typename T, typename RangeOf, typename ScoreOf>
void Softmax(const From* from, const Biases<T>& biases, T* to, const Rows& rows,
             const RangeOf& range_of, const ScoreOf& score_of) {
  std::vector<float> scores(static_cast<size_t>(rows.num_keys));
  for (int64_t row = 0; row < rows.num_batches * rows.num_heads * rows.num_queries; ++row) {
    const int64_t query = row % rows.num_queries;
    const int64_t head = row / rows.num_queries % rows.num_heads;
    const int64_t batch = row / rows.num_queries / rows.num_heads;
    const KeyRange range = range_of(batch, query);
    float largest = -INFINITY, sum = 0;
    for (int64_t key = range.begin; key < range.end; ++key) {
      float& score = scores[static_cast<size_t>(key)];
      score = score_of(static_cast<float>(from[row * rows.num_keys + key])) +
              biases.Of(rows, batch, head, query, key);
      largest = std::max(largest, score);
    }
    for (int64_t key = range.begin; key < range.end && largest != -INFINITY; ++key) {
      sum += expf(scores[static_cast<size_t>(key)] - largest);
    }
    for (int64_t key = 0; key < rows.num_keys; ++key) {
      const bool is_seen = key >= range.begin && key < range.end && sum > 0;
      const float weight = is_seen ? expf(scores[static_cast<size_t>(key)] - largest) / sum : 0;
      to[row * rows.num_keys + key] = static_cast<T>(weight);
    }
  }
}

Rows RowsOf(const Launch& launch, int64_t num_queries, int64_t num_keys) {
  return {launch.grid.y, launch.grid.x / num_queries, num_queries, num_keys};
}

// Scores are already scaled. `lengths` and `starts` of keys may be null.
template <typename T>
Computation SoftmaxOf(const Launch& launch, const int* lengths, const int* starts, int first_bias,
                      bool is_causal) {
  const Rows rows = RowsOf(launch, launch.Integer(1), launch.Integer(0));
  const Biases<T> biases = {launch.Get<const T*>(first_bias), launch.Get<bool>(first_bias + 1),
                            launch.Get<bool>(first_bias + 2)};
  return [=, from = launch.Get<const T*>(first_bias + 3), to = launch.Get<T*>(first_bias + 4)] {
    const auto range_of = [&](int64_t batch, int64_t query) {
      KeyRange range = {0, rows.num_keys};
      if (starts != nullptr) range.begin = std::max(starts[batch], 0);
      if (lengths != nullptr) range.end = std::min<int64_t>(range.end, lengths[batch]);
      if (range.begin >= range.end) range = {0, rows.num_keys};  // an empty range means all keys
      if (is_causal) range.end = std::min(range.end, query + rows.num_keys - rows.num_queries + 1);
      return range;
    };
    Softmax(from, biases, to, rows, range_of, [](float score) { return score; });
  };
}

int64_t SizeOf(const std::string& type) {
  if (type == "float4") return 16;
  if (type == "float2" || type == "onnxruntime::cuda::Half4") return 8;
  if (type == "float" || type == "__half2" || type == "__nv_bfloat162") return 4;
  return type == "__half" || type == "__nv_bfloat16" ? 2 : 0;
}

// Swaps the first two dimensions of each of `num_matrices` [first, second, size], size in bytes.
void Swap(const char* from, char* to, int64_t num_matrices, int64_t first, int64_t second,
          int64_t size) {
  for (int64_t i = 0; i < num_matrices * first * second; ++i) {
    const int64_t matrix = i / (first * second), row = i / second % first, column = i % second;
    memcpy(to + ((matrix * second + column) * first + row) * size, from + i * size,
           static_cast<size_t>(size));
  }
}

}  // namespace

// UnfusedSoftmaxKernel<T, ...>(queries, keys, heads, scores, biases, has biases, biases have one
// batch, or one head, lengths of keys, is causal, window, past length, scale, cap, -, to)
Computation MakeUnfusedSoftmax(const Launch& launch) {
  Computation made;
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Rows rows = RowsOf(launch, launch.Integer(0), launch.Integer(1));
    const T* values = launch.Get<bool>(5) ? launch.Get<const T*>(4) : nullptr;
    const Biases<T> biases = {values, launch.Get<bool>(6), launch.Get<bool>(7)};
    made = [=, from = launch.Get<const float*>(3), lengths = launch.Get<const int*>(8),
            is_causal = launch.Get<bool>(9), window = launch.Integer(10),
            past_length = launch.Integer(11), scale = launch.Get<float>(12),
            cap = launch.Get<float>(13), to = launch.Get<T*>(15)] {
      const auto range_of = [&](int64_t batch, int64_t query) {
        int64_t length = rows.num_keys, past = past_length;
        if (lengths != nullptr) {
          length = std::clamp<int64_t>(lengths[batch], 0, rows.num_keys);
          past = length - rows.num_queries;
        }
        KeyRange range = {0, length};
        if (is_causal) range.end = std::min(length, past + query + 1);
        if (window >= 0) range.begin = std::max<int64_t>(0, past + query - window);
        return range;
      };
      Softmax(from, biases, to, rows, range_of, [&](float score) {
        return cap > 0 ? cap * tanhf(score * scale / cap) : score * scale;
      });
    };
  });
  return made;
}

// MaskedSoftmaxKernelSmall<T, ...>(keys, queries, lengths of keys, where they start, biases, biases
// have one batch, or one head, from, to, is causal); MaskedSoftmaxKernel is never causal.
Computation MakeMaskedSoftmax(const Launch& launch) {
  Computation made;
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    const bool is_causal = launch.name.parameters.size() > 9 && launch.Get<bool>(9);
    made = SoftmaxOf<typename decltype(tag)::Type>(launch, launch.Get<const int*>(2),
                                                   launch.Get<const int*>(3), 4, is_causal);
  });
  return made;
}

// SoftmaxKernelSmall<T, ...>(keys, queries, biases, they have one batch, or one head, from, to, is
// causal); SoftmaxKernel is never causal.
Computation MakeSoftmax(const Launch& launch) {
  Computation made;
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    const bool is_causal = launch.name.parameters.size() > 7 && launch.Get<bool>(7);
    made = SoftmaxOf<typename decltype(tag)::Type>(launch, nullptr, nullptr, 2, is_causal);
  });
  return made;
}

// AddBiasTranspose<T>(from, biases, to): [tokens, heads] to [heads, tokens]
Computation MakeHeads(const Launch& launch) {
  const int64_t size = SizeOf(launch.name.arguments[0]) * launch.block.x;
  const bool has_biases = launch.Get<void*>(1) != nullptr;
  if (size == 0 || has_biases) return {};
  return [from = launch.Get<const char*>(0), to = launch.Get<char*>(2), size, grid = launch.grid,
          num_heads = launch.block.y] {
    Swap(from, to, grid.y * grid.z, grid.x, num_heads, size);
  };
}

// TransposeQKV<T>(head size, tokens are first, from, to, matrices): [tokens, heads] to [heads,
// tokens]
Computation MakeHeadsOfSize(const Launch& launch) {
  const int64_t size = SizeOf(launch.name.arguments[0]) * launch.Integer(0);
  const bool has_tokens_first = launch.Get<bool>(1), has_matrices = launch.grid.z > 1;
  if (size == 0 || has_tokens_first || has_matrices) return {};
  return [from = launch.Get<const char*>(2), to = launch.Get<char*>(3), size, grid = launch.grid,
          num_heads = launch.block.y] { Swap(from, to, grid.y, grid.x, num_heads, size); };
}

// TransposeCtx<T>(head size, tokens are first, from, to): [heads, tokens] to [tokens, heads]
Computation MakeTokens(const Launch& launch) {
  const int64_t size = SizeOf(launch.name.arguments[0]) * launch.Integer(0);
  const bool has_tokens_first = launch.Get<bool>(1);
  if (size == 0 || has_tokens_first) return {};
  return [from = launch.Get<const char*>(2), to = launch.Get<char*>(3), size, grid = launch.grid,
          num_heads = launch.block.y] { Swap(from, to, grid.y, num_heads, grid.x, size); };
}

}  // namespace stand_in
