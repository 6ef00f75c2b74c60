// DynamicBlockMatMul: y = epilogue(x W), W in blocks of 8 or 4 bits (block_matmul.h).
// server/runtime/kernels/blocks.py makes its nodes.
//
// Inputs: x [.., num_inputs]; the packed matrix, uint8; MATMUL_PARAMETERS (matmul_call.h); then those
// of InputNorm. Attributes, all required: weight_format, 3 to 5 (weight_format.h), for the packing of
// block_matmul.h; max_sum (block_matmul.h); and those of MatMulAttributes and InputNorm.
#pragma once

#include "ort_api.h"

namespace ort {

const Operator& dynamic_block_matmul();

}  // namespace ort
