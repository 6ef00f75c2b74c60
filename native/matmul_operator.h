// triune.PackedMatMul: y = epilogue(x W) in fp32.
//
// Inputs: x, float [..., inputs]; W as matmul::Matrix has it; then those of
// Product (product.h).
// Output: y, float [..., Epilogue::width_of(outputs)].
#pragma once

#include "ort_api.h"

namespace ort {

const Operator& packed_matmul();

}  // namespace ort
