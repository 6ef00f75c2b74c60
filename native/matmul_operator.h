// triune.PackedMatMul: y = activation(x W + bias) + rest, in fp32.
//
// Inputs: x, float [..., inputs]; W as matmul::Matrix has it; settings, int32 [outputs,
// Activation]; bias, float [outputs], optional; rest, float [..., outputs], optional.
// Output: y, float [..., outputs].
#pragma once

#include "ort_api.h"

namespace ort {

const Operator& packed_matmul();

}  // namespace ort
