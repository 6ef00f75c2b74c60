// Activations of 16-bit floats: act(x + bias), or act(a) * b of the halves a and b of each row.
#pragma once

#include "arguments.h"
#include "thread.h"

namespace device {

// Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26: an error below 1.5e-7.
inline float erf(float x) {
  const float magnitude = __builtin_fabsf(x);
  const float t = 1.f / (1.f + 0.3275911f * magnitude);
  const float series =
      t * (0.254829592f +
           t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  return __builtin_copysignf(1.f - series * exp(-magnitude * magnitude), x);
}

inline float activated(float x, int kind) {
  if (kind == kSilu) return x / (1.f + exp(-x));
  if (kind == kGelu) return 0.5f * x * (1.f + erf(x * 0.70710678f));
  return x < 0.f ? 0.f : x;
}

template <typename T>
inline void activate(const ActivationArguments<T>& a) {
  const long index = static_cast<long>(block()) * num_threads() + thread();
  if (index >= a.num_vectors) return;
  const long row = index / a.row_vectors;
  const int column = static_cast<int>(index - row * a.row_vectors) * kWide;
  const int width = a.row_vectors * kWide;
  const T* x = a.x + row * (a.is_gated ? 2 * width : width) + column;
  Wide<T> y = Wide<T>::load(x);
  if (a.bias) {
    const Wide<T> bias = Wide<T>::load(a.bias + column);
    UNROLLED
    for (int i = 0; i < kWide; i++) y.values[i] = T::widen(T::narrow(y.values[i] + bias.values[i]));
  }
  UNROLLED
  for (int i = 0; i < kWide; i++) y.values[i] = activated(y.values[i], a.kind);
  if (a.is_gated) {
    Wide<T> factor = Wide<T>::load(x + width);
    if (a.bias) {
      const Wide<T> bias = Wide<T>::load(a.bias + width + column);
      UNROLLED
      for (int i = 0; i < kWide; i++) {
        factor.values[i] = T::widen(T::narrow(factor.values[i] + bias.values[i]));
      }
    }
    UNROLLED
    for (int i = 0; i < kWide; i++) y.values[i] *= factor.values[i];
  }
  y.store(a.y + index * kWide);
}

}  // namespace device
