#include "norm_operator.h"

#include "norm_rows.h"

namespace ort {
namespace {

enum Input : size_t { kX, kScale, kBias, kNumInputs };

struct Norm {
  static constexpr const char* kName = "Norm";
  static constexpr Parameter kInputs[] = {{kFloat}, {kFloat}, {kFloat, true}};
  static constexpr Parameter kOutputs[] = {{kFloat}};
  static constexpr int kInPlaceInput = kX;

  float epsilon;
  int64_t is_centered;

  Status* create(const Api& api, const KernelInfo* info) {
    RETURN_IF_FAILED(api.Attribute(info, "epsilon", &epsilon));
    return api.Attribute(info, "is_centered", &is_centered);
  }

  Status* run(const Api& api, KernelContext* context) const {
    const Value* values[kNumInputs];
    const void* inputs[kNumInputs] = {};
    for (size_t index = 0; index < kNumInputs; index++) {
      RETURN_IF_FAILED(api.Input(context, index, &values[index]));
      RETURN_IF_FAILED(data_of(api, values[index], inputs[index]));
    }
    Dimensions shape, scale;
    RETURN_IF_FAILED(dimensions(api, values[kX], shape));
    RETURN_IF_FAILED(dimensions(api, values[kScale], scale));
    const int64_t size = shape.last();
    if (scale.last() != size) {
      return api.CreateStatus(kInvalidArgument, "scale must be as long as the last axis of x");
    }
    Value* output = nullptr;
    void* y = nullptr;
    RETURN_IF_FAILED(api.Output(context, 0, shape.sizes, shape.rank, &output));
    RETURN_IF_FAILED(api.Data(output, &y));
    const norm::Norm norm{static_cast<const float*>(inputs[kScale]),
                          static_cast<const float*>(inputs[kBias]), size, epsilon,
                          is_centered != 0};
    return normalize_rows(api, context, norm, static_cast<const float*>(inputs[kX]),
                          shape.num_rows(), static_cast<float*>(y));
  }
};

}  // namespace

const Operator& norm() { return make_operator<Norm>(); }

}  // namespace ort
