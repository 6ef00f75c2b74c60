// triune.PackedMatMul: y = epilogue(x W) in fp32 (matmul.h).
//
// Inputs: x, float [.., num_inputs]; W, uint8, the bytes of a matmul::PackedMatrix; then
// MATMUL_PARAMETERS. Output: y, float [.., Epilogue::width_of(num_outputs)].
// Attributes, all required: those of MatMulAttributes; weight_format, a number of WeightFormat.
#pragma once

#include "ort_api.h"

namespace ort {

const Operator& packed_matmul();

}  // namespace ort
