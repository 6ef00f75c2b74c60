// What the host asks of rows of logits.
#pragma once

#include <stdint.h>

namespace vocabulary {

// log(sum(exp(x))) of x [size], without overflow; NaN if one is.
using LogSumExp = double(const float* x, int64_t size);

// Places of the `count` largest of x [size], largest first, of equal ones the lower first. Returns
// how many there are: a NaN is none.
using Top = int64_t(const float* x, int64_t size, int64_t count, int64_t* places);

// Of each row of logits [size], its log-sum-exp, and of the `count` largest the places and
// log-probabilities [rows][count]. A place is -1 where there are fewer.
using Likeliest = void(const float* const* rows, int64_t num_rows, int64_t size, int64_t count,
                       double* totals, int64_t* places, double* logprobs);

}  // namespace vocabulary
