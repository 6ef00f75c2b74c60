#include "norm_operator.h"

#include "norm_call.h"

namespace ort {
namespace {

enum Input : size_t { kX, kFirstParameter };

struct Norm {
  static constexpr const char* kName = "Norm";
  static constexpr Parameter kInputs[] = {{kFloat}, {kFloat}, {kFloat, true}};
  static constexpr Parameter kOutputs[] = {{kFloat}};
  static constexpr int kInPlaceInput = kX;

  NormAttributes attributes;

  Status* create(const Api& api, const KernelInfo* info) {
    return attributes.read(api, info, "epsilon", "is_centered");
  }

  Status* run(const Api& api, KernelContext* context) const {
    const Value* value = nullptr;
    const float* x = nullptr;
    float* y = nullptr;
    Dimensions shape;
    norm::Norm norm;
    RETURN_IF_FAILED(api.Input(context, kX, &value));
    RETURN_IF_FAILED(data_of(api, value, x));
    RETURN_IF_FAILED(dimensions(api, value, shape));
    RETURN_IF_FAILED(attributes.norm(api, context, kFirstParameter, shape.last(), norm));
    RETURN_IF_FAILED(output_data(api, context, 0, shape.sizes, shape.rank, y));
    return normalize_rows(api, context, norm, x, shape.num_rows(), y);
  }
};

}  // namespace

const Operator& norm() { return make_operator<Norm>(); }

}  // namespace ort
