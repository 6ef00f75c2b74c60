// triune.PackedMatMul: y = epilogue(x W) in fp32.
//
// Inputs: x, float [..., inputs]; W as matmul::Matrix has it; settings, int32 [outputs,
// Activation]; bias and rest as Epilogue has them, optional.
// Output: y, float [..., Epilogue::width_of(outputs)].
#pragma once

#include "ort_api.h"

namespace ort {

const Operator& packed_matmul();

}  // namespace ort
