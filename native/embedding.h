// The sum of the embeddings of a token: simd/embedding.cc has the kernel.
#pragma once

#include <stdint.h>

namespace embedding {

// The embeddings of one token, each [size].
struct Token {
  const uint8_t* quantized;  // with zero point 128
  float scale;
  const float *position, *segment;  // or null
};

// y [size] = (quantized - 128) scale factor + position + segment, from left to right. The rounding
// is therefore that of separate operators.
using Sum = void(const Token& token, float factor, int64_t size, float* y);

}  // namespace embedding
