// The sum of a token's embeddings; simd/embedding.cc has the kernels.
#pragma once

#include <stdint.h>

namespace embedding {

// y [size] = (row - 128) scale.
using Restore = void(const uint8_t* row, float scale, int64_t size, float* y);

// Embeddings to add to a token's row, each [size], or null.
struct Others {
  const float *position, *segment;
};

// y [size] = y factor + position + segment, from left to right, so that it rounds like separate
// operators.
using Add = void(const Others& others, float factor, int64_t size, float* y);

}  // namespace embedding
