// The operator of a linear layer for few rows; native/cuda/operators.cc documents it.

#include "operators.h"

namespace cuda {
namespace {

constexpr int64_t kStep = 32, kMaxRows = 16, kMaxNormRows = 8, kFeatures = 16, kThreads = 256;

template <bool IsBFloat>
struct Linear : Typed<IsBFloat> {
  using Typed<IsBFloat>::kType;
  static constexpr const char* kName = IsBFloat ? "LinearBf16" : "LinearFp16";
  static constexpr Parameter kInputs[] = {
      {kType}, {kType}, {kType, true}, {kType, true}, {kType, true}};
  static constexpr Parameter kOutputs[] = {{kType}, {kType, true}};

  int64_t activation, is_gated;
  float epsilon;

  Status* create(const Api& api, const KernelInfo* info) {
    RETURN_IF_FAILED(api.Attribute(info, "epsilon", &epsilon));
    return load_and_read(api, info, "activation", activation, "is_gated", is_gated);
  }

  Status* run(const Api& api, KernelContext* context) const {
    device::LinearArguments<Element> a{};
    Dimensions shape, weight_shape;
    RETURN_IF_FAILED(shaped_input(api, context, 0, a.x, shape));
    RETURN_IF_FAILED(shaped_input(api, context, 1, a.weight, weight_shape));
    RETURN_IF_FAILED(ort::input_data(api, context, 2, a.bias));
    RETURN_IF_FAILED(ort::input_data(api, context, 3, a.residual));
    RETURN_IF_FAILED(ort::input_data(api, context, 4, a.scale));
    const int64_t num_rows = shape.num_rows(), in = shape.last();
    const int64_t features = weight_shape.sizes[0];
    if (num_rows > (a.scale ? kMaxNormRows : kMaxRows)) return refuse(api, "too many rows");
    if (in <= 0 || in > INT32_MAX || in % kStep || weight_shape.rank != 2 ||
        weight_shape.last() != in || features <= 0 || features > INT32_MAX ||
        features % kFeatures) {
      return refuse(api, "the weights have an unsupported size");
    }
    if (a.residual && !a.scale) return refuse(api, "a residual is added before a norm only");
    RETURN_IF_FAILED(ort::output_data(api, context, 1, shape.sizes, shape.rank, a.sum));
    if (a.sum && !a.scale) return refuse(api, "a sum is written before a norm only");
    shape.sizes[shape.rank - 1] = is_gated ? features / 2 : features;
    RETURN_IF_FAILED(ort::output_data(api, context, 0, shape.sizes, shape.rank, a.y));
    a.num_rows = static_cast<int>(num_rows);
    a.in = static_cast<int>(in);
    a.out = static_cast<int>(shape.last());
    a.num_blocks = static_cast<int>(features / kFeatures);
    a.activation = static_cast<int>(activation);
    a.is_gated = static_cast<int>(is_gated);
    a.epsilon = epsilon;
    const int kernel = a.scale ? kLinearNorm : num_rows > kMaxNormRows ? kLinear16 : kLinear8;
    return launch(api, context, kernel + IsBFloat, num_rows ? a.num_blocks : 0, kThreads, &a);
  }
};

}  // namespace

const ort::Operator& linear(bool is_bfloat) {
  return is_bfloat ? ort::make_operator<Linear<true>>() : ort::make_operator<Linear<false>>();
}

}  // namespace cuda
