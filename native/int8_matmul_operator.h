// triune.DynamicInt8MatMul: y = epilogue(x W) in int8, x quantized row by row at run time
// (int8_matmul.h).
//
// Inputs: x, float [.., num_inputs]; weights, group order, scales and zero-point sums as in
// int8_matmul::PackedMatrix; input factors, float [num_inputs], optional; MATMUL_PARAMETERS; then,
// optional, for a product of x [rows, num_inputs] without activation, residual and norms: the
// columns of W as in candidate_matmul::Matrix, and candidates, int32 [rows, width]; then those of
// InputNorm. Output: y, float [.., Epilogue::width_of(num_outputs)], or [rows, width] of the
// candidates unless width is 0.
// Attributes, all required: those of MatMulAttributes and InputNorm.
#pragma once

#include "ort_api.h"

namespace ort {

const Operator& dynamic_int8_matmul();

}  // namespace ort
