// Normalization of rows of x just before quantization, for the quantizing products.
#pragma once

#include "epilogue.h"
#include "kernels.h"
#include "norm_call.h"

namespace ort {

constexpr int64_t kMaxNormalizedInputs = 8192;  // a row's buffer is on the stack

// The norm of x: attributes x_norm_epsilon and x_norm_is_centered, inputs NORM_PARAMETERS.
struct InputNorm {
  NormAttributes attributes;

  Status* read(const Api& api, const KernelInfo* info) {
    return attributes.read(api, info, "x_norm_epsilon", "x_norm_is_centered");
  }
  // `first`: index of the norm's first input.
  Status* norm(const Api& api, const KernelContext* context, size_t first, int64_t num_inputs,
               norm::Norm& out) const {
    RETURN_IF_FAILED(attributes.norm(api, context, first, num_inputs, out));
    if (!out.scale || num_inputs <= kMaxNormalizedInputs) return nullptr;
    return api.CreateStatus(kInvalidArgument, "at most 8192 inputs can be normalized");
  }
};

// Calls quantize(x, part, begin), where the first row of `part` is row `begin` of `rows`: once for
// all rows, or for each row right after it is normalized.
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
