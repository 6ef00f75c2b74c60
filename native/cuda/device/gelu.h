// GELU: x P(X < x) for a standard normal X (Hendrycks and Gimpel 2016), and its tanh approximation.
#pragma once

#include "thread.h"

namespace device {

// P(X > |x|) for a standard normal X: erfc(|x| / sqrt(2)) / 2, with an error below 1e-7.
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

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), written as a sigmoid.
inline float gelu_of_tanh(float x) {
  return x * reciprocal(1.f + exp(-1.5957691f * (x + 0.044715f * x * x * x)));
}

}  // namespace device
