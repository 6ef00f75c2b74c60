// LayerNorm and RMSNorm of 16-bit floats, after a residual addition.
#pragma once

#include "arguments.h"
#include "thread.h"

namespace device {

// One block per row. A thread has `Vectors` vectors of the row, num_threads() vectors apart.
template <typename T, int Vectors>
inline void normalize_row(const NormArguments<T>& a) {
  expect_threads<kMaxThreads, 1>();
  let_next_start();
  wait_for_previous();
  const long row = static_cast<long>(block()) * a.size;
  const int stride = num_threads() * kWide;
  Words values[Vectors];  // already rounded to T, so that storing them is exact
  float sum = 0.f;
  UNROLLED
  for (int v = 0; v < Vectors; v++) {
    const int column = thread() * kWide + v * stride;
    if (column >= a.size) continue;
    Wide<T> value = Wide<T>::load(a.x + row + column);
    if (a.x_bias) value.add(a.x_bias + column);
    if (a.residual) value.add(a.residual + row + column);
    values[v] = value.narrowed();
    if (a.sum) *reinterpret_cast<Words*>(a.sum + row + column) = values[v];
    UNROLLED
    for (int i = 0; i < kWide; i++) sum += a.is_centered ? value.values[i]
                                                         : value.values[i] * value.values[i];
  }
  sum = sum_over_block(sum);
  float mean = 0.f;
  if (a.is_centered) {
    mean = sum / a.size;
    sum = 0.f;
    UNROLLED
    for (int v = 0; v < Vectors; v++) {
      if (thread() * kWide + v * stride >= a.size) continue;
      const Wide<T> value = Wide<T>::of(values[v]);
      UNROLLED
      for (int i = 0; i < kWide; i++) {
        const float distance = value.values[i] - mean;
        sum += distance * distance;
      }
    }
    sum = sum_over_block(sum);
  }
  const float factor = rsqrt(sum / a.size + a.epsilon);
  UNROLLED
  for (int v = 0; v < Vectors; v++) {
    const int column = thread() * kWide + v * stride;
    if (column >= a.size) continue;
    const Wide<T> value = Wide<T>::of(values[v]), scale = Wide<T>::load(a.scale + column);
    Wide<T> y;
    UNROLLED
    for (int i = 0; i < kWide; i++) y.values[i] = (value.values[i] - mean) * factor * scale.values[i];
    if (a.bias) {
      const Wide<T> bias = Wide<T>::load(a.bias + column);
      UNROLLED
      for (int i = 0; i < kWide; i++) y.values[i] += bias.values[i];
    }
    y.store(a.y + row + column);
  }
}

}  // namespace device
