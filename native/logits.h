// Log-sum-exp and the largest values of rows of logits, for sampling and beam search on the host.
// simd/logits.cc has the kernels; server/runtime/kernels/logits.py calls them.
#pragma once

#include <stdint.h>

namespace logits {

// log(sum(exp(x))) of x [size], without overflow; NaN if any element is NaN.
using LogSumExp = double(const float* x, int64_t size);

// Indices of the `count` largest of x [size], largest first, the lower index first among equals.
// Ignores NaN. Returns the number written: fewer than `count` if x has fewer numbers.
using TopIndices = int64_t(const float* x, int64_t size, int64_t count, int64_t* indices);

// For each of the rows of logits [size]: its log-sum-exp, log_sum_exps [rows]; the indices and
// log-probabilities of its `count` largest values, [rows][count]. Missing indices are -1, with
// log-probability -inf.
using TopTokens = void(const float* const* rows, int64_t num_rows, int64_t size, int64_t count,
                       double* log_sum_exps, int64_t* indices, double* logprobs);

}  // namespace logits
