// triune.RowInt8MatMul: y = epilogue(x W) in int8, rows of x quantised as they come.
//
// Inputs: x, float [..., inputs]; W, scales and offsets as row_int8::Matrix has them; factors, float
// [inputs], optional, that x is multiplied with first; then those of Product (product.h).
// Output: y, float [..., Epilogue::width_of(outputs)].
#pragma once

#include "ort_api.h"

namespace ort {

const Operator& row_int8_matmul();

}  // namespace ort
