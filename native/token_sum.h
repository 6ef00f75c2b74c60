// Sums over the tokens of a text, for pooling. simd/token_sum.cc has the kernel.
#pragma once

#include <stdint.h>

namespace token_sum {

// y [size]: the sum of the rows of x [num_rows, size], added from the first to the last. Rows of
// zeros after the last token, the padding of a batch, therefore change no bit.
using Sum = void(const float* x, int64_t num_rows, int64_t size, float* y);

}  // namespace token_sum
