// Products of rows with the factors of LoRA adapters: simd/adapters.cc.
#pragma once

#include "matmul.h"

namespace adapters {

// Computes panels first_panel .. last_panel - 1 of the given rows of y [.., num_outputs], a multiple
// of 16, from x [.., num_inputs]. The matrix is in fp32, fp16 or bf16. Rows need not be adjacent, and an
// output has the same bits for any number of rows.
using Multiply = void(const float* x, const Rows& rows, const matmul::PackedMatrix& matrix,
                      int64_t first_panel, int64_t last_panel, float* y);

}  // namespace adapters
