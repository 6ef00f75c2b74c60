// Code shared by the operators that normalize: attributes, the inputs after x, and the division of
// rows into tasks.
#pragma once

#include "norm.h"
#include "operator.h"

namespace ort {

// Inputs of a norm: scale and bias, as in Norm. Without a scale, there is no norm.
#define NORM_PARAMETERS {kFloat, true}, {kFloat, true}
constexpr size_t kNumNormParameters = 2;

// Attributes of a norm, both required.
struct NormAttributes {
  float epsilon;
  int64_t is_centered;

  Status* read(const Api& api, const KernelInfo* info, const char* epsilon_name,
               const char* is_centered_name);
  // Reads the norm of rows of `size` from the inputs from `first` on.
  Status* norm(const Api& api, const KernelContext* context, size_t first, int64_t size,
               norm::Norm& out) const;
};

// y [num_rows, norm.size] of x [num_rows, norm.size]; y may be x.
Status* normalize_rows(const Api& api, const KernelContext* context, const norm::Norm& norm,
                       const float* x, int64_t num_rows, float* y);

}  // namespace ort
