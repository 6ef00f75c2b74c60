// Normalization by the matrix products: of rows of x just before they are quantized, and of y.
#pragma once

#include "epilogue.h"
#include "kernels.h"
#include "norm.h"
#include "operator.h"

namespace ort {

// Inputs of a product for one norm, both optional: scale and bias as Norm has them. Without scale,
// there is no norm.
#define NORM_PARAMETERS {kFloat, true}, {kFloat, true}
constexpr size_t kNumNormParameters = 2;

// Attributes of a norm, both required.
struct NormAttributes {
  float epsilon;
  int64_t is_centered;

  Status* read(const Api& api, const KernelInfo* info, const char* epsilon_name,
               const char* is_centered_name) {
    RETURN_IF_FAILED(api.Attribute(info, epsilon_name, &epsilon));
    return api.Attribute(info, is_centered_name, &is_centered);
  }

  // Reads the inputs from `first` on. `size`: of a row.
  Status* read(const Api& api, const KernelContext* context, size_t first, int64_t size,
               norm::Norm& out) const {
    out = {nullptr, nullptr, size, epsilon, is_centered != 0};
    const Value* scale = nullptr;
    RETURN_IF_FAILED(api.Input(context, first, &scale));
    if (!scale) return nullptr;
    Dimensions shape;
    RETURN_IF_FAILED(dimensions(api, scale, shape));
    if (shape.last() != size) {
      return api.CreateStatus(kInvalidArgument, "the norm's scale must be as long as a row");
    }
    RETURN_IF_FAILED(data_of(api, scale, out.scale));
    return input_data(api, context, first + 1, out.bias);
  }
};

constexpr int64_t kMaxNormalizedInputs = 8192;  // a row's buffer is on the stack

inline Status* check_normalized(const Api& api, const norm::Norm& norm) {
  if (!norm.scale || norm.size <= kMaxNormalizedInputs) return nullptr;
  return api.CreateStatus(kInvalidArgument, "at most 8192 inputs can be normalized");
}

// Calls quantize(x, part, begin), where the first row of `part` is row `begin` of `rows`: once for
// all rows, or for each row once it is normalized.
template <typename Quantize>
void normalize_and_quantize(const norm::Norm& norm, const float* x, const Rows& rows,
                            const Quantize& quantize) {
  if (!norm.scale) return quantize(x, rows, 0);
  alignas(64) float normal[kMaxNormalizedInputs];
  for (int64_t row = 0; row < rows.count; row++) {
    kernels().normalize(norm, x + rows[row] * norm.size, 1, normal);
    quantize(normal, Rows{nullptr, 0, 1}, row);
  }
}

}  // namespace ort
