#include "../embedding.h"

#include "vectors.h"

#include "begin_target.h"

namespace embedding::SIMD {
namespace {

using namespace ::SIMD;

// Without their zero point.
INLINE Floats load_quantized(const uint8_t* from) {
  using Bytes = uint8_t __attribute__((ext_vector_type(kLanes)));
  return __builtin_convertvector(__builtin_convertvector(load<Bytes>(from), Ints) - 128, Floats);
}

}  // namespace

void sum(const Token& token, float factor, int64_t size, float* y) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    Floats value = load_quantized(token.quantized + i) * token.scale * factor;
    if (token.position) value += load(token.position + i);
    if (token.segment) value += load(token.segment + i);
    store(y + i, value);
  }
  for (; i < size; i++) {
    y[i] = static_cast<float>(token.quantized[i] - 128) * token.scale * factor;
    if (token.position) y[i] += token.position[i];
    if (token.segment) y[i] += token.segment[i];
  }
}

}  // namespace embedding::SIMD

#include "end_target.h"
