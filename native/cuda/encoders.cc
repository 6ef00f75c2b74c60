// Operators of encoders: native/cuda/operators.cc describes them.

#include "operators.h"

namespace cuda {
namespace {

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

const ort::Operator& pool(bool is_bfloat) {
  return is_bfloat ? ort::make_operator<Pool<true>>() : ort::make_operator<Pool<false>>();
}

const ort::Operator& key_ranges() { return ort::make_operator<KeyRanges>(); }

}  // namespace cuda
