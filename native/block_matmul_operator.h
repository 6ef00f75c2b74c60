// DynamicBlockMatMul: y = epilogue(x W), W in blocks of 8 or 4 bits (block_matmul.h).
// server/runtime/kernels/blocks.py makes its nodes.
//
// Inputs: x [.., num_inputs]; the packed matrix, uint8; MATMUL_PARAMETERS (matmul_call.h); then
// NORM_PARAMETERS (fused_norm.h) of x. Attributes, all required: weight_format, 3 or 4
// (weight_format.h), for the packing of block_matmul.h; max_sum (block_matmul.h); x_norm_epsilon
// and x_norm_is_centered; and those of MatMulAttributes.
#pragma once

#include "ort_api.h"

namespace ort {

const Operator& dynamic_block_matmul();

}  // namespace ort
