// GELU: x times the chance that a normal variable is less than x.
#pragma once

#include "thread.h"

namespace device {

// The chance that a normal variable exceeds |x|, erfc(|x| / sqrt(2)) / 2, to 1e-7.
// Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26.
inline float normal_tail(float x) {
  const float t = reciprocal(1.f + 0.3275911f * 0.70710678f * __builtin_fabsf(x));
  float sum = 0.5f * 1.061405429f;
  sum = sum * t - 0.5f * 1.453152027f;
  sum = sum * t + 0.5f * 1.421413741f;
  sum = sum * t - 0.5f * 0.284496736f;
  sum = sum * t + 0.5f * 0.254829592f;
  return sum * t * exp2(-0.72134752f * x * x);  // log2(e) / 2
}

inline float gelu(float x) {
  const float tail = normal_tail(x);
  return x * (x < 0.f ? tail : 1.f - tail);
}

// By tanh(sqrt(2 / pi) (x + 0.044715 x^3)).
inline float gelu_of_tanh(float x) {
  return x * reciprocal(1.f + exp(-1.5957691f * (x + 0.044715f * x * x * x)));
}

}  // namespace device
