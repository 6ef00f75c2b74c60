// The CUDA operators, in the domain triune, and their registration with ONNX Runtime. Operators
// over 16-bit floats exist twice: their names end with Fp16 and Bf16. A row is the last axis; its
// size is a multiple of 8.
//
//   Norm: LayerNormalization or RMSNormalization of x + x_bias + residual.
//     Inputs: x [.., size], x_bias [size] (optional), residual [.., size] (optional), scale [size],
//     bias [size] (optional). Outputs: y; x + x_bias + residual (optional). Both have x's shape.
//     Attributes: epsilon; is_centered, 1 for LayerNormalization.
//   Activation: act(x + bias), or act(a) * b, where a and b are the halves of x + bias.
//     Inputs: x [.., size], bias [size] (optional). Output: y [.., size], or half of it.
//     Attributes: kind, a device::Activation; is_gated: 1 for act(a) * b.
//   Split: splits x + bias into the heads of queries, keys and values, with rotary positions.
//     Inputs: x [texts, length, (num_heads + 2 num_kv_heads) head size], bias of a row (optional),
//     cosines and sines [positions, rotary size / 2] (optional). Outputs: queries, keys and values,
//     each [texts, length, num_heads head size]; key/value heads are repeated.
//     Attributes: num_heads, num_kv_heads, is_interleaved.
//   EncoderAttention: each token of a text attends to the text's first `lengths` tokens.
//     Inputs: query [texts, length, num_heads head size], or packed with keys and values [texts,
//     length, (num_heads + 2 num_kv_heads) head size]; lengths [texts] int32; bias of a packed row
//     (optional); key and value [texts, length, num_kv_heads head size], unless they are packed.
//     Output: y [texts, length, num_heads head size].
//     Attributes: num_heads, num_kv_heads, scale (0: 1 / sqrt(head size)). Head sizes: 32, 64, 96
//     or 128.
//   Linear: act(x W^T + bias), or act(gate) * up of the halves of x W^T + bias, for few rows.
//     Inputs: x [.., in], weight [features, in], bias [features] (optional), residual [.., in]
//     (optional), scale [in] (optional): with it, x is replaced by RMSNorm(x + residual) * scale.
//     Outputs: y [.., features], or half of it if gated; x + residual (optional, with scale).
//     Attributes: activation, a device::Activation; is_gated; epsilon.
//     At most 16 rows, or 8 with scale; `in` is a multiple of 32, and features of 16.
//   Pool: mean pooling over each text's tokens.
//     Inputs: x [texts, length, size], lengths [texts] int32. Output: y [texts, size] fp32.
//     Attributes: is_normalized: 1 divides by max(L2 norm, min_norm); min_norm.
//   KeyRanges: cumulative sequence lengths, the mask of a MultiHeadAttention over padded texts.
//     Inputs: x [texts, length, size] (for its shape), lengths [texts] int32.
//     Output: int32 [3 texts + 2], described at KeyRangesArguments.
//   BestToken: the lowest id among the largest logits of each row; -1 if one is NaN or +inf,
//     or all are -inf.
//     Inputs: logits [rows, vocabulary] fp32, suppressed [vocabulary] uint8 (optional), 1 for tokens
//     that are never chosen. Output: tokens [rows] int64.
//   TopTokens: the tokens with the largest logits of each row; among equals, lower ids come first.
//     Inputs: logits [.., vocabulary] fp32; rows [n] int64 (optional), the rows to search, else all
//     n; targets [n] int64 (optional), a token id for each row; suppressed [vocabulary] uint8
//     (optional), 1 for tokens whose logit is replaced by suppressed_logit.
//     Output: top [n, 2 count + 1, or 2 count + 2 with targets] fp32: logits, ids, the sum over
//     the row of exp(logit - the largest one), and the target's logit.
//     Attributes: count, at most the vocabulary; suppressed_logit.
//   Advance: prepares the next step of greedy decoding.
//     Inputs: best_tokens [rows] int64, num_cached_tokens [rows] int32, is_live [rows] int32, 0 for
//     padding. Outputs: next_token_ids [rows, 1] int64, best_tokens where they are positive and the
//     row is live, else 0; next_num_cached_tokens [rows] int32, num_cached_tokens + is_live.
//     Outputs may be in place.
//   Extreme: the maximum or minimum along an axis; NaN if any element is NaN.
//     Input: x fp32. Output: y. Attributes: is_min; is_last: 1 reduces the last axis to size 1, 0
//     drops axis 1 of three.

#include "operators.h"

#include "../exported.h"

namespace cuda {
namespace {

template <bool IsBFloat>
struct Norm : Typed<IsBFloat> {
  using Typed<IsBFloat>::kType;
  static constexpr const char* kName = IsBFloat ? "NormBf16" : "NormFp16";
  static constexpr Parameter kInputs[] = {
      {kType}, {kType, true}, {kType, true}, {kType}, {kType, true}};
  static constexpr Parameter kOutputs[] = {{kType}, {kType, true}};
  static constexpr int kMaxVectors = 4;

  float epsilon;
  int64_t is_centered;

  Status* create(const Api& api, const KernelInfo* info) {
    return load_and_read(api, info, "epsilon", epsilon, "is_centered", is_centered);
  }

  Status* run(const Api& api, KernelContext* context) const {
    device::NormArguments<Element> a{};
    Dimensions shape;
    RETURN_IF_FAILED(shaped_input(api, context, 0, a.x, shape));
    RETURN_IF_FAILED(check_width(api, shape.last(), kMaxThreads * kVector * kMaxVectors));
    RETURN_IF_FAILED(ort::input_data(api, context, 1, a.x_bias));
    RETURN_IF_FAILED(ort::input_data(api, context, 2, a.residual));
    RETURN_IF_FAILED(ort::input_data(api, context, 3, a.scale));
    RETURN_IF_FAILED(ort::input_data(api, context, 4, a.bias));
    RETURN_IF_FAILED(ort::output_data(api, context, 0, shape.sizes, shape.rank, a.y));
    RETURN_IF_FAILED(ort::output_data(api, context, 1, shape.sizes, shape.rank, a.sum));
    a.size = static_cast<int>(shape.last());
    a.epsilon = epsilon;
    a.is_centered = static_cast<int>(is_centered);
    const int64_t num_vectors = a.size / kVector;
    const bool is_long = num_vectors > kMaxThreads;
    const int64_t per_thread = is_long ? kMaxVectors : 1;
    const int64_t num_threads = divide_up(divide_up(num_vectors, per_thread), kWarp) * kWarp;
    return launch(api, context, (is_long ? kNorm4 : kNorm1) + IsBFloat, shape.num_rows(),
                  static_cast<int>(num_threads), &a);
  }
};

constexpr int kThreads = 256;

template <bool IsBFloat>
struct Activation : Typed<IsBFloat> {
  using Typed<IsBFloat>::kType;
  static constexpr const char* kName = IsBFloat ? "ActivationBf16" : "ActivationFp16";
  static constexpr Parameter kInputs[] = {{kType}, {kType, true}};
  static constexpr Parameter kOutputs[] = {{kType}};

  int64_t kind, is_gated;

  Status* create(const Api& api, const KernelInfo* info) {
    return load_and_read(api, info, "kind", kind, "is_gated", is_gated);
  }

  Status* run(const Api& api, KernelContext* context) const {
    device::ActivationArguments<Element> a{};
    Dimensions shape;
    RETURN_IF_FAILED(shaped_input(api, context, 0, a.x, shape));
    RETURN_IF_FAILED(ort::input_data(api, context, 1, a.bias));
    if (is_gated) shape.sizes[shape.rank - 1] /= 2;
    RETURN_IF_FAILED(check_width(api, shape.last(), INT32_MAX));
    RETURN_IF_FAILED(ort::output_data(api, context, 0, shape.sizes, shape.rank, a.y));
    a.row_vectors = static_cast<int>(shape.last() / kVector);
    a.num_vectors = shape.num_rows() * a.row_vectors;
    a.kind = static_cast<int>(kind);
    a.is_gated = static_cast<int>(is_gated);
    return launch(api, context, kActivate + IsBFloat, divide_up(a.num_vectors, kThreads), kThreads,
                  &a);
  }
};

struct BestToken {
  static constexpr const char* kName = "BestToken";
  static constexpr const char* kProvider = kProviderName;
  static constexpr Parameter kInputs[] = {{ort::kFloat}, {ort::kUInt8, true}};
  static constexpr Parameter kOutputs[] = {{ort::kInt64}};

  Status* create(const Api& api, const KernelInfo*) { return load(api); }

  Status* run(const Api& api, KernelContext* context) const {
    device::BestTokenArguments a{};
    Dimensions shape;
    RETURN_IF_FAILED(shaped_input(api, context, 0, a.logits, shape));
    RETURN_IF_FAILED(ort::input_data(api, context, 1, a.suppressed));
    const int64_t num_rows = shape.num_rows();
    RETURN_IF_FAILED(ort::output_data(api, context, 0, &num_rows, 1, a.tokens));
    a.vocabulary = static_cast<int>(shape.last());
    return launch(api, context, kBestToken, num_rows, kMaxThreads, &a);
  }
};

struct TopTokens {
  static constexpr const char* kName = "TopTokens";
  static constexpr const char* kProvider = kProviderName;
  static constexpr Parameter kInputs[] = {
      {ort::kFloat}, {ort::kInt64, true}, {ort::kInt64, true}, {ort::kUInt8, true}};
  static constexpr Parameter kOutputs[] = {{ort::kFloat}};

  int64_t count;
  float suppressed_logit;

  Status* create(const Api& api, const KernelInfo* info) {
    return load_and_read(api, info, "count", count, "suppressed_logit", suppressed_logit);
  }

  Status* run(const Api& api, KernelContext* context) const {
    device::TopTokensArguments a{};
    Dimensions shape;
    RETURN_IF_FAILED(shaped_input(api, context, 0, a.logits, shape));
    if (count < 1 || count > shape.last()) return refuse(api, "there are not so many tokens");
    RETURN_IF_FAILED(ort::input_data(api, context, 2, a.targets));
    RETURN_IF_FAILED(ort::input_data(api, context, 3, a.suppressed));
    int64_t sizes[] = {shape.num_rows(), 2 * count + (a.targets ? 2 : 1)};
    RETURN_IF_FAILED(optional_rows(api, context, 1, a.rows, sizes[0]));
    RETURN_IF_FAILED(ort::output_data(api, context, 0, sizes, 2, a.top));
    a.vocabulary = static_cast<int>(shape.last());
    a.count = static_cast<int>(count);
    a.width = static_cast<int>(sizes[1]);
    a.suppressed_logit = suppressed_logit;
    return launch(api, context, kTopTokens, sizes[0], kMaxThreads, &a);
  }
};

struct Advance {
  static constexpr const char* kName = "Advance";
  static constexpr const char* kProvider = kProviderName;
  static constexpr Parameter kInputs[] = {{ort::kInt64}, {ort::kInt32}, {ort::kInt32}};
  static constexpr Parameter kOutputs[] = {{ort::kInt64}, {ort::kInt32}};

  Status* create(const Api& api, const KernelInfo*) { return load(api); }

  Status* run(const Api& api, KernelContext* context) const {
    device::AdvanceArguments a{};
    Dimensions shape;
    RETURN_IF_FAILED(shaped_input(api, context, 0, a.best_tokens, shape));
    RETURN_IF_FAILED(ort::input_data(api, context, 1, a.num_cached_tokens));
    RETURN_IF_FAILED(ort::input_data(api, context, 2, a.is_live));
    const int64_t sizes[] = {shape.last(), 1};
    RETURN_IF_FAILED(ort::output_data(api, context, 0, sizes, 2, a.next_token_ids));
    RETURN_IF_FAILED(ort::output_data(api, context, 1, sizes, 1, a.next_num_cached_tokens));
    a.num_rows = static_cast<int>(shape.last());
    return launch(api, context, kAdvance, divide_up(a.num_rows, kThreads), kThreads, &a);
  }
};

struct Extreme {
  static constexpr const char* kName = "Extreme";
  static constexpr const char* kProvider = kProviderName;
  static constexpr Parameter kInputs[] = {{ort::kFloat}};
  static constexpr Parameter kOutputs[] = {{ort::kFloat}};

  int64_t is_min, is_last;

  Status* create(const Api& api, const KernelInfo* info) {
    return load_and_read(api, info, "is_min", is_min, "is_last", is_last);
  }

  Status* run(const Api& api, KernelContext* context) const {
    device::ExtremeArguments a{};
    Dimensions shape;
    RETURN_IF_FAILED(shaped_input(api, context, 0, a.x, shape));
    a.is_min = static_cast<int>(is_min);
    if (is_last) {
      a.size = static_cast<int>(shape.last());
      a.num_outputs = shape.num_rows();
      shape.sizes[shape.rank - 1] = 1;
    } else if (shape.rank == 3) {
      a.size = static_cast<int>(shape.sizes[1]);
      a.inner = static_cast<int>(shape.sizes[2]);
      a.num_outputs = shape.sizes[0] * shape.sizes[2];
      shape.sizes[1] = shape.sizes[2];
      shape.rank = 2;
    }
    if (a.size <= 0) return refuse(api, "an axis is empty or missing");
    RETURN_IF_FAILED(ort::output_data(api, context, 0, shape.sizes, shape.rank, a.y));
    if (is_last) return launch(api, context, kExtremeOfRow, a.num_outputs, kMaxThreads, &a);
    return launch(api, context, kExtremesAcross, divide_up(a.num_outputs, kThreads), kThreads, &a);
  }
};

}  // namespace
}  // namespace cuda

// ONNX Runtime calls this for each session that registers the library.
EXPORTED ort::Status* RegisterCustomOps(ort::Session* options, const ort::ApiBase* base) {
  return ort::register_operators(
      options, base,
      {&ort::make_operator<cuda::Norm<false>>(), &ort::make_operator<cuda::Norm<true>>(),
       &ort::make_operator<cuda::Activation<false>>(), &ort::make_operator<cuda::Activation<true>>(),
       &cuda::split(false), &cuda::split(true),
       &cuda::linear(false), &cuda::linear(true), &cuda::decode_attention(false),
       &cuda::decode_attention(true), &cuda::encoder_attention(false),
       &cuda::encoder_attention(true), &cuda::pool(false), &cuda::pool(true), &cuda::key_ranges(),
       &ort::make_operator<cuda::BestToken>(), &ort::make_operator<cuda::TopTokens>(),
       &ort::make_operator<cuda::Advance>(), &ort::make_operator<cuda::Extreme>()});
}
