// The operator of attention in decode steps. It has the inputs, outputs and attributes of ONNX
// Runtime's GroupQueryAttention (its docs/ContribOperators.md), and one more output.
//
//   DecodeAttention: attention of exactly one new token of each row.
//     Inputs: query [rows, 1, heads * head], or packed with the new key and value [rows, 1,
//     (heads + 2 * kv_heads) * head]; key and value (optional), which are not read: new ones are
//     packed, or the cache has all tokens; past_key and past_value [rows, kv_heads, capacity,
//     head]; seqlens_k [rows] int32: the position of the last token; total_sequence_length int32,
//     in host memory: an upper bound of the rows' lengths; cos_cache and sin_cache [positions,
//     rotary / 2] (optional).
//     Outputs: y [rows, 1, heads * head]; present_key and present_value, in place of the past ones;
//     parts, a workspace of the kernel.
//     Attributes: num_heads, kv_num_heads, do_rotary, rotary_interleaved, local_window_size (-1:
//     none), scale (0: 1 / sqrt(head)), softcap (0: none).
//     Head sizes: 32, 64, 96, 128 or 256. The rotated part of a head is a multiple of 16 elements.

#include "operators.h"

namespace cuda {
namespace {

constexpr int64_t kThreads = 128;
constexpr int64_t kBlockHeads = 8;  // query heads per thread block
// The fewest tokens of a split: twice those that a block reads at once. With smaller splits,
// combining them takes longer. kFullDevice: two blocks on each multiprocessor of an H100.
constexpr int64_t kMinSplit = 128, kFullDevice = 264;

template <bool IsBFloat>
struct DecodeAttention : Typed<IsBFloat> {
  using Typed<IsBFloat>::kType;
  static constexpr const char* kName =
      IsBFloat ? "DecodeAttentionBf16" : "DecodeAttentionFp16";
  static constexpr Parameter kInputs[] = {{kType},        {kType, true},
                                          {kType, true},  {kType},
                                          {kType},        {ort::kInt32},
                                          {ort::kInt32, false, true},
                                          {kType, true},  {kType, true}};
  static constexpr Parameter kOutputs[] = {{kType}, {kType}, {kType}, {ort::kFloat}};

  int64_t num_heads, num_kv_heads, do_rotary, is_interleaved, window;
  float scale, softcap;

  Status* create(const Api& api, const KernelInfo* info) {
    RETURN_IF_FAILED(api.Attribute(info, "num_heads", &num_heads));
    RETURN_IF_FAILED(api.Attribute(info, "kv_num_heads", &num_kv_heads));
    RETURN_IF_FAILED(api.Attribute(info, "do_rotary", &do_rotary));
    RETURN_IF_FAILED(api.Attribute(info, "rotary_interleaved", &is_interleaved));
    RETURN_IF_FAILED(api.Attribute(info, "local_window_size", &window));
    if (num_kv_heads <= 0 || num_heads % num_kv_heads) return refuse(api, "heads do not divide");
    return load_and_read(api, info, "scale", scale, "softcap", softcap);
  }

  Status* run(const Api& api, KernelContext* context) const {
    device::DecodeAttentionArguments<Element> a{};
    Dimensions query, past, past_values, last, cos, sin, keys{};
    RETURN_IF_FAILED(shaped_input(api, context, 0, a.query, query));
    const Element *past_key = nullptr, *past_value = nullptr;
    RETURN_IF_FAILED(shaped_input(api, context, 3, past_key, past));
    RETURN_IF_FAILED(shaped_input(api, context, 4, past_value, past_values));
    RETURN_IF_FAILED(shaped_input(api, context, 5, a.last_positions, last));
    const int32_t* total = nullptr;
    RETURN_IF_FAILED(ort::input_data(api, context, 6, total));
    if (query.rank != 3 || past.rank != 4 || query.sizes[1] != 1 ||
        past.sizes[0] != query.sizes[0] || past.sizes[1] != num_kv_heads) {
      return refuse(api, "attention is over one new token of each row, and a cache of its shape");
    }
    if (!are_equal(past, past_values) || last.rank != 1 || last.sizes[0] != query.sizes[0]) {
      return refuse(api, "keys, values and positions have different shapes");
    }
    const int64_t rows = query.sizes[0], head = past.sizes[3], capacity = past.sizes[2];
    const bool is_narrow = head >= 32 && head <= 128 && head % 32 == 0;
    if ((!is_narrow && head != 256) || capacity <= 0 || capacity > INT32_MAX) {
      return refuse(api, "heads have an unsupported size");
    }
    const bool is_packed = query.last() == (num_heads + 2 * num_kv_heads) * head;
    if (!is_packed) {
      const Element* key = nullptr;
      RETURN_IF_FAILED(shaped_input(api, context, 1, key, keys));
      const bool has_new = keys.rank != 3 || keys.sizes[1] != 0;
      if (query.last() != num_heads * head || has_new) {
        return refuse(api, "new keys and values are packed with the queries, or there are none");
      }
    }
    if (do_rotary) {
      RETURN_IF_FAILED(shaped_input(api, context, 7, a.cosines, cos));
      RETURN_IF_FAILED(shaped_input(api, context, 8, a.sines, sin));
      if (cos.rank != 2 || !are_equal(cos, sin) || 2 * cos.last() > head || cos.last() % 8 ||
          cos.sizes[0] < capacity) {
        return refuse(api, "angles of the rotation have an unsupported shape");
      }
      a.rotary_size = static_cast<int>(2 * cos.last());
    }
    RETURN_IF_FAILED(ort::output_data(api, context, 1, past.sizes, past.rank, a.keys));
    RETURN_IF_FAILED(ort::output_data(api, context, 2, past.sizes, past.rank, a.values));
    if (rows && (past_key != a.keys || past_value != a.values)) {
      return refuse(api, "past and present keys and values are in different memory");
    }
    Dimensions shape = query;
    shape.sizes[2] = num_heads * head;
    RETURN_IF_FAILED(ort::output_data(api, context, 0, shape.sizes, shape.rank, a.y));
    a.query_stride = query.last();
    if (is_packed) {
      a.new_key = a.query + num_heads * head;
      a.new_value = a.new_key + num_kv_heads * head;
    }
    a.num_heads = static_cast<int>(num_heads);
    a.num_kv_heads = static_cast<int>(num_kv_heads);
    a.group = static_cast<int>(num_heads / num_kv_heads);
    a.head_size = static_cast<int>(head);
    a.capacity = static_cast<int>(capacity);
    a.window = window > 0 ? static_cast<int>(window) : 0;
    a.is_interleaved = static_cast<int>(is_interleaved);
    a.scale = scale != 0.f ? scale : 1.f / __builtin_sqrtf(static_cast<float>(head));
    a.softcap = softcap;
    const int64_t blocks = rows * num_kv_heads * divide_up(a.group, kBlockHeads);
    const int64_t longest = a.window && a.window < *total ? a.window : *total;
    int64_t splits = blocks && blocks < kFullDevice ? kFullDevice / blocks : 1;
    const int64_t most = divide_up(longest > 0 ? longest : 1, kMinSplit);
    if (splits > most) splits = most;
    a.num_splits = static_cast<int>(splits);
    a.split_size = static_cast<int>(divide_up(longest > 0 ? longest : 1, splits));
    const int64_t parts[] = {splits == 1 ? 0 : rows * num_heads, splits, head + 2};
    RETURN_IF_FAILED(ort::output_data(api, context, 3, parts, 3, a.parts));
    const int variant = is_narrow ? static_cast<int>(head) / 32 - 1 : 4;
    RETURN_IF_FAILED(launch(api, context, kAttend + 2 * variant + IsBFloat, blocks * splits,
                            kThreads, &a));
    if (splits == 1) return nullptr;
    return launch(api, context, kCombineParts + IsBFloat, rows * num_heads,
                  static_cast<int>(head), &a);
  }
};

}  // namespace

const ort::Operator& decode_attention(bool is_bfloat) {
  return is_bfloat ? ort::make_operator<DecodeAttention<true>>()
                   : ort::make_operator<DecodeAttention<false>>();
}

}  // namespace cuda
