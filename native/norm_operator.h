#pragma once

#include "ort_api.h"

namespace ort {

// LayerNormalization and RMSNormalization of the last axis, in fp32.
//
// Attributes: epsilon, is_centered: both given. Inputs: x [..., size], scale [size], bias [size]?.
const Operator& norm();

}  // namespace ort
