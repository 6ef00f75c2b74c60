// triune.Norm: LayerNormalization and RMSNormalization over the last axis, in fp32 (norm.h).
//
// Inputs: x [.., size], scale [size], bias [size] (optional). Output: y, shaped as x.
// Attributes, both required: epsilon; is_centered, 1 for LayerNormalization.
#pragma once

#include "ort_api.h"

namespace ort {

const Operator& norm();

}  // namespace ort
