// Normalization of rows of x just before they are quantized, for the operators that quantize.
#pragma once

#include "epilogue.h"
#include "kernels.h"
#include "norm.h"
#include "operator.h"

namespace ort {

// Inputs of such an operator, both optional: scale and bias as Norm has them. Without scale, x is
// not normalized.
#define NORM_PARAMETERS {kFloat, true}, {kFloat, true}

constexpr int64_t kMaxNormalizedInputs = 8192;  // a row's buffer is on the stack

// Attributes of such an operator, both required: norm_epsilon and norm_is_centered.
struct NormAttributes {
  float epsilon;
  int64_t is_centered;

  Status* read(const Api& api, const KernelInfo* info) {
    RETURN_IF_FAILED(api.Attribute(info, "norm_epsilon", &epsilon));
    return api.Attribute(info, "norm_is_centered", &is_centered);
  }

  // Reads the inputs from `first` on.
  Status* read(const Api& api, const KernelContext* context, size_t first, int64_t num_inputs,
               norm::Norm& out) const {
    out = {nullptr, nullptr, num_inputs, epsilon, is_centered != 0};
    const Value* scale = nullptr;
    RETURN_IF_FAILED(api.Input(context, first, &scale));
    if (!scale) return nullptr;
    Dimensions shape;
    RETURN_IF_FAILED(dimensions(api, scale, shape));
    if (shape.last() != num_inputs || num_inputs > kMaxNormalizedInputs) {
      return api.CreateStatus(kInvalidArgument,
                              "the norm's scale must be as long as a row, up to 8192");
    }
    RETURN_IF_FAILED(data_of(api, scale, out.scale));
    return input_data(api, context, first + 1, out.bias);
  }
};

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
