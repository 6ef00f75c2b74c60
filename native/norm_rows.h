// Normalization of all rows of a tensor, in tasks.
#pragma once

#include "norm.h"
#include "operator.h"

namespace ort {

// y [num_rows, norm.size] of x [num_rows, norm.size]; y may be x.
Status* normalize_rows(const Api& api, const KernelContext* context, const norm::Norm& norm,
                       const float* x, int64_t num_rows, float* y);

}  // namespace ort
