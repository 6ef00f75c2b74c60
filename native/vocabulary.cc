// Called by server/runtime/kernels/vocabulary.py: vocabulary.h says what each does.

#include "vocabulary.h"

#include "exported.h"
#include "kernels.h"

EXPORTED double triune_log_sum_exp(const float* x, int64_t size) {
  return kernels().log_sum_exp(x, size);
}

EXPORTED int64_t triune_top(const float* x, int64_t size, int64_t count, int64_t* places) {
  return kernels().top(x, size, count, places);
}

EXPORTED void triune_likeliest(const float* const* rows, int64_t num_rows, int64_t size,
                               int64_t count, double* totals, int64_t* places, double* logprobs) {
  kernels().likeliest(rows, num_rows, size, count, totals, places, logprobs);
}
