#include "../embedding.h"

#include "vectors.h"

#include "begin_target.h"

namespace embedding::SIMD {

using namespace ::SIMD;

void restore(const uint8_t* row, float scale, int64_t size, float* y) {
  using Bytes = uint8_t __attribute__((ext_vector_type(kLanes)));
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Ints numbers = __builtin_convertvector(load<Bytes>(row + i), Ints) - 128;
    store(y + i, __builtin_convertvector(numbers, Floats) * scale);
  }
  for (; i < size; i++) y[i] = static_cast<float>(row[i] - 128) * scale;
}

void add(const Others& others, float factor, int64_t size, float* y) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    Floats value = load(y + i) * factor;
    if (others.position) value += load(others.position + i);
    if (others.segment) value += load(others.segment + i);
    store(y + i, value);
  }
  for (; i < size; i++) {
    y[i] *= factor;
    if (others.position) y[i] += others.position[i];
    if (others.segment) y[i] += others.segment[i];
  }
}

}  // namespace embedding::SIMD

#include "end_target.h"
