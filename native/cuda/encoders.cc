// The operators of encoders; native/cuda/operators.cc documents them.

#include "operators.h"

namespace cuda {
namespace {

Status* check_groups(const Api& api, int64_t num_heads, int64_t num_kv_heads) {
  if (num_kv_heads > 0 && num_heads > 0 && num_heads % num_kv_heads == 0) return nullptr;
  return refuse(api, "heads are not in equal groups");
}

template <bool IsBFloat>
struct Split : Typed<IsBFloat> {
  using Typed<IsBFloat>::kType;
  static constexpr const char* kName = IsBFloat ? "SplitBf16" : "SplitFp16";
  static constexpr Parameter kInputs[] = {{kType}, {kType, true}, {kType, true}, {kType, true}};
  static constexpr Parameter kOutputs[] = {{kType}, {kType}, {kType}};

  int64_t num_heads, num_kv_heads, is_interleaved;

  Status* create(const Api& api, const KernelInfo* info) {
    RETURN_IF_FAILED(api.Attribute(info, "is_interleaved", &is_interleaved));
    return load_and_read(api, info, "num_heads", num_heads, "num_kv_heads", num_kv_heads);
  }

  Status* run(const Api& api, KernelContext* context) const {
    constexpr int kThreads = 256;
    device::SplitArguments<Element> a{};
    Dimensions shape;
    RETURN_IF_FAILED(shaped_input(api, context, 0, a.x, shape));
    RETURN_IF_FAILED(ort::input_data(api, context, 1, a.bias));
    RETURN_IF_FAILED(ort::input_data(api, context, 2, a.cosines));
    RETURN_IF_FAILED(ort::input_data(api, context, 3, a.sines));
    if (shape.rank != 3) return refuse(api, "texts have three axes");
    RETURN_IF_FAILED(check_groups(api, num_heads, num_kv_heads));
    const int64_t all_heads = num_heads + 2 * num_kv_heads, head_size = shape.last() / all_heads;
    if (head_size * all_heads != shape.last()) return refuse(api, "a row has no whole heads");
    RETURN_IF_FAILED(check_width(api, head_size, INT32_MAX));
    a.num_heads = static_cast<int>(num_heads);
    a.num_kv_heads = static_cast<int>(num_kv_heads);
    a.head_size = static_cast<int>(head_size);
    a.length = static_cast<int>(shape.sizes[1]);
    a.is_interleaved = static_cast<int>(is_interleaved);
    if (a.cosines) {
      RETURN_IF_FAILED(read_angles(api, context, a));
    }
    shape.sizes[2] = num_heads * head_size;
    for (size_t part = 0; part < 3; part++) {
      RETURN_IF_FAILED(ort::output_data(api, context, part, shape.sizes, shape.rank, a.parts[part]));
    }
    a.num_vectors = 3 * shape.num_rows() * shape.last() / kVector;
    return launch(api, context, kSplit + IsBFloat, divide_up(a.num_vectors, kThreads), kThreads,
                  &a);
  }

 private:
  // Checks the angles: each vector must be rotated with itself or with one other vector.
  Status* read_angles(const Api& api, KernelContext* context,
                      device::SplitArguments<Element>& a) const {
    Dimensions angles;
    RETURN_IF_FAILED(shaped_input(api, context, 2, a.cosines, angles));
    if (!a.sines || angles.rank != 2) return refuse(api, "angles have two axes");
    const int64_t unit = is_interleaved ? kVector / 2 : kVector;
    if (angles.last() % unit || 2 * angles.last() > a.head_size || angles.sizes[0] < a.length) {
      return refuse(api, "the angles have an unsupported size");
    }
    a.rotary_size = static_cast<int>(2 * angles.last());
    return nullptr;
  }
};

template <bool IsBFloat>
struct EncoderAttention : Typed<IsBFloat> {
  using Typed<IsBFloat>::kType;
  static constexpr const char* kName =
      IsBFloat ? "EncoderAttentionBf16" : "EncoderAttentionFp16";
  static constexpr Parameter kInputs[] = {
      {kType}, {ort::kInt32}, {kType, true}, {kType, true}, {kType, true}};
  static constexpr Parameter kOutputs[] = {{kType}};

  int64_t num_heads, num_kv_heads;
  float scale;

  Status* create(const Api& api, const KernelInfo* info) {
    RETURN_IF_FAILED(api.Attribute(info, "scale", &scale));
    return load_and_read(api, info, "num_heads", num_heads, "num_kv_heads", num_kv_heads);
  }

  Status* run(const Api& api, KernelContext* context) const {
    constexpr int kThreads = 128;
    device::EncoderAttentionArguments<Element> a{};
    Dimensions shape, lengths, bias, keys, values;
    RETURN_IF_FAILED(shaped_input(api, context, 0, a.query, shape));
    RETURN_IF_FAILED(shaped_input(api, context, 1, a.lengths, lengths));
    RETURN_IF_FAILED(ort::input_data(api, context, 2, a.bias));
    if (a.bias) RETURN_IF_FAILED(shaped_input(api, context, 2, a.bias, bias));
    RETURN_IF_FAILED(ort::input_data(api, context, 3, a.key));
    RETURN_IF_FAILED(ort::input_data(api, context, 4, a.value));
    if (shape.rank != 3) return refuse(api, "texts have three axes");
    RETURN_IF_FAILED(check_groups(api, num_heads, num_kv_heads));
    if (lengths.rank != 1 || lengths.sizes[0] != shape.sizes[0]) {
      return refuse(api, "there is a length for each text");
    }
    const bool is_packed = !a.key && !a.value;
    const int64_t num_packed = is_packed ? num_heads + 2 * num_kv_heads : num_heads;
    const int64_t head = shape.last() / num_packed;
    if (head * num_packed != shape.last()) return refuse(api, "a row has no whole heads");
    if (head < 32 || head > 128 || head % 32) {
      return refuse(api, "heads have an unsupported size");
    }
    if (scale < 0.f) return refuse(api, "the scale is negative");
    a.query_stride = a.key_stride = static_cast<int>(shape.last());
    if (is_packed) {
      if (a.bias && (bias.rank != 1 || bias.last() != shape.last())) {
        return refuse(api, "a bias is as long as a row");
      }
      a.key = a.query + num_heads * head;
      a.value = a.key + num_kv_heads * head;
    } else {
      if (a.bias || !a.key || !a.value) return refuse(api, "a bias is of packed heads");
      RETURN_IF_FAILED(shaped_input(api, context, 3, a.key, keys));
      RETURN_IF_FAILED(shaped_input(api, context, 4, a.value, values));
      Dimensions expected = shape;
      expected.sizes[2] = num_kv_heads * head;
      if (!are_equal(keys, expected) || !are_equal(values, expected)) {
        return refuse(api, "keys and values have other shapes than the queries");
      }
      a.key_stride = static_cast<int>(keys.last());
    }
    shape.sizes[2] = num_heads * head;
    RETURN_IF_FAILED(ort::output_data(api, context, 0, shape.sizes, shape.rank, a.y));
    a.y_stride = static_cast<int>(shape.last());
    a.num_heads = static_cast<int>(num_heads);
    a.num_kv_heads = static_cast<int>(num_kv_heads);
    a.length = static_cast<int>(shape.sizes[1]);
    a.scale = scale != 0.f ? scale : 1.f / __builtin_sqrtf(static_cast<float>(head));
    const int variant = static_cast<int>(head) / 32 - 1;
    const int64_t queries = device::block_queries(static_cast<int>(head));
    const int64_t blocks = shape.sizes[0] * num_heads * divide_up(a.length, queries);
    return launch(api, context, kAttendText + 2 * variant + IsBFloat, blocks, kThreads, &a);
  }
};

template <bool IsBFloat>
struct Pool : Typed<IsBFloat> {
  using Typed<IsBFloat>::kType;
  static constexpr const char* kName = IsBFloat ? "PoolBf16" : "PoolFp16";
  static constexpr Parameter kInputs[] = {{kType}, {ort::kInt32}};
  static constexpr Parameter kOutputs[] = {{ort::kFloat}};

  int64_t is_normalized;
  float min_norm;

  Status* create(const Api& api, const KernelInfo* info) {
    return load_and_read(api, info, "is_normalized", is_normalized, "min_norm", min_norm);
  }

  Status* run(const Api& api, KernelContext* context) const {
    device::PoolArguments<Element> a{};
    Dimensions shape;
    RETURN_IF_FAILED(shaped_input(api, context, 0, a.x, shape));
    RETURN_IF_FAILED(check_width(api, shape.last(), kMaxThreads * kVector));
    if (shape.rank != 3) return refuse(api, "texts have three axes");
    RETURN_IF_FAILED(ort::input_data(api, context, 1, a.lengths));
    a.max_length = static_cast<int>(shape.sizes[1]);
    a.size = static_cast<int>(shape.sizes[2]);
    a.is_normalized = static_cast<int>(is_normalized);
    a.min_norm = min_norm;
    const int64_t outputs[] = {shape.sizes[0], shape.sizes[2]};
    RETURN_IF_FAILED(ort::output_data(api, context, 0, outputs, 2, a.y));
    const int64_t num_vectors = a.size / kVector;
    const int64_t num_threads = kMaxThreads / num_vectors * num_vectors;
    return launch(api, context, kPool + IsBFloat, shape.sizes[0],
                  static_cast<int>(divide_up(num_threads, kWarp) * kWarp), &a);
  }
};

struct KeyRanges : Typed<false> {
  static constexpr const char* kName = "KeyRangesFp16";
  static constexpr Parameter kInputs[] = {{kType}, {ort::kInt32}};
  static constexpr Parameter kOutputs[] = {{ort::kInt32}};

  Status* create(const Api& api, const KernelInfo*) { return load(api); }

  Status* run(const Api& api, KernelContext* context) const {
    constexpr int kThreads = 256;
    device::KeyRangesArguments a{};
    Dimensions shape;
    const Element* x = nullptr;
    RETURN_IF_FAILED(shaped_input(api, context, 0, x, shape));
    if (shape.rank != 3) return refuse(api, "texts have three axes");
    RETURN_IF_FAILED(ort::input_data(api, context, 1, a.lengths));
    a.num_texts = static_cast<int>(shape.sizes[0]);
    a.max_length = static_cast<int>(shape.sizes[1]);
    const int64_t count = 3 * shape.sizes[0] + 2;
    RETURN_IF_FAILED(ort::output_data(api, context, 0, &count, 1, a.ranges));
    return launch(api, context, kKeyRanges, divide_up(count, kThreads), kThreads, &a);
  }
};

}  // namespace

const ort::Operator& split(bool is_bfloat) {
  return is_bfloat ? ort::make_operator<Split<true>>() : ort::make_operator<Split<false>>();
}

const ort::Operator& encoder_attention(bool is_bfloat) {
  return is_bfloat ? ort::make_operator<EncoderAttention<true>>()
                   : ort::make_operator<EncoderAttention<false>>();
}

const ort::Operator& pool(bool is_bfloat) {
  return is_bfloat ? ort::make_operator<Pool<true>>() : ort::make_operator<Pool<false>>();
}

const ort::Operator& key_ranges() { return ort::make_operator<KeyRanges>(); }

}  // namespace cuda
