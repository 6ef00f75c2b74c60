// Exports the kernels of logits.h to server/runtime/kernels/logits.py.

#include "logits.h"

#include "exported.h"
#include "kernels.h"

EXPORTED double triune_log_sum_exp(const float* x, int64_t size) {
  return kernels().log_sum_exp(x, size);
}

EXPORTED int64_t triune_top_indices(const float* x, int64_t size, int64_t count,
                                    int64_t* indices) {
  return kernels().top_indices(x, size, count, indices);
}

EXPORTED void triune_top_tokens(const float* const* rows, int64_t num_rows, int64_t size,
                                int64_t count, double* log_sum_exps, int64_t* indices,
                                double* logprobs) {
  kernels().top_tokens(rows, num_rows, size, count, log_sum_exps, indices, logprobs);
}
