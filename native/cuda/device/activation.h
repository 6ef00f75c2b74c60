// Activations of 16-bit floats: act(x + bias), or act(a) * b of the halves a and b of a row.
#pragma once

#include "arguments.h"
#include "gelu.h"
#include "thread.h"

namespace device {

inline float activated(float x, int kind) {
  if (kind == kSilu) return x / (1.f + exp(-x));
  if (kind == kGelu) return gelu(x);
  if (kind == kGeluOfTanh) return gelu_of_tanh(x);
  return x < 0.f ? 0.f : x;
}

template <float (*Activate)(float)>
inline void activate_each(float (&values)[kWide]) {
  UNROLLED
  for (int i = 0; i < kWide; i++) values[i] = Activate(values[i]);
}

template <typename T>
inline void activate(const ActivationArguments<T>& a) {
  expect_threads<256, 4>();
  let_next_start();
  wait_for_previous();
  const long index = static_cast<long>(block()) * num_threads() + thread();
  if (index >= a.num_vectors) return;
  const long row = index / a.row_vectors;
  const int column = static_cast<int>(index - row * a.row_vectors) * kWide;
  const int width = a.row_vectors * kWide;
  const T* x = a.x + row * (a.is_gated ? 2 * width : width) + column;
  Wide<T> y = Wide<T>::load(x);
  if (a.bias) y.add(a.bias + column);
  if (a.kind == kGelu) {  // one branch outside the loop: this kernel is compute-bound
    activate_each<gelu>(y.values);
  } else if (a.kind == kGeluOfTanh) {
    activate_each<gelu_of_tanh>(y.values);
  } else {
    UNROLLED
    for (int i = 0; i < kWide; i++) y.values[i] = activated(y.values[i], a.kind);
  }
  if (a.is_gated) {
    Wide<T> factor = Wide<T>::load(x + width);
    if (a.bias) factor.add(a.bias + width + column);
    UNROLLED
    for (int i = 0; i < kWide; i++) y.values[i] *= factor.values[i];
  }
  y.store(a.y + index * kWide);
}

}  // namespace device
