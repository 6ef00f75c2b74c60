// Runs a DynamicInt8MatMul that computes only the candidates of each row (candidate_matmul.h).
#pragma once

#include "candidate_matmul.h"
#include "matmul_call.h"
#include "operator.h"

namespace ort {

// Candidates, int32 [rows, width]: ascending, then -1. Width 0 asks for the full product.
struct Candidates {
  const int32_t* ids = nullptr;
  int64_t num_rows = 0, width = 0;

  // Reads the value, which may be null.
  Status* read(const Api& api, const Value* value);
  // Fails unless there is one row of candidates for each of `num_rows`, with ids below
  // `num_outputs`.
  Status* check(const Api& api, int64_t num_rows, int64_t num_outputs) const;
};

// Computes y [rows, width], the output of the node, from x [rows, num_inputs], its first input.
Status* multiply_candidates(const Api& api, KernelContext* context, const Candidates& candidates,
                            const MatMulAttributes& attributes,
                            const candidate_matmul::Matrix& matrix,
                            const float* input_factors);

}  // namespace ort
