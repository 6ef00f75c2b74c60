// The maximum or minimum along an axis of an fp32 tensor; NaN if any element is NaN.
#pragma once

#include "arguments.h"
#include "thread.h"

namespace device {

inline float more_extreme(float a, float b, int is_min) {
  if (a != a) return a;
  if (b != b) return b;
  return is_min ? __builtin_fminf(a, b) : __builtin_fmaxf(a, b);
}

// x [rows, size]: one block per row.
inline void find_extreme_of_row(const ExtremeArguments& a) {
  SHARED float found[kMaxWarps];
  expect_threads<kMaxThreads, 1>();
  let_next_start();
  wait_for_previous();
  const float* row = a.x + static_cast<long>(block()) * a.size;
  float extreme = row[0];
  const auto load_one = [&](int i) { return load(row + i); };
  for_each_loaded(thread(), a.size, num_threads(), load_one,
                  [&](int, float value) { extreme = more_extreme(extreme, value, a.is_min); });
  for (int distance = kWarp / 2; distance; distance /= 2) {
    extreme = more_extreme(extreme, shuffle_xor(extreme, distance), a.is_min);
  }
  if (lane() == 0) found[warp()] = extreme;
  wait_for_block();
  if (thread() != 0) return;
  for (int w = 1; w < num_warps(); w++) extreme = more_extreme(extreme, found[w], a.is_min);
  a.y[block()] = extreme;
}

// x [rows, size, inner]: one thread for each element of y [rows, inner].
inline void find_extremes_across(const ExtremeArguments& a) {
  expect_threads<256, 4>();
  let_next_start();
  wait_for_previous();
  const long index = static_cast<long>(block()) * num_threads() + thread();
  if (index >= a.num_outputs) return;
  const long row = index / a.inner;
  const float* x = a.x + row * a.size * a.inner + (index - row * a.inner);
  float extreme = x[0];
  const auto load_one = [&](int i) { return load(x + static_cast<long>(i) * a.inner); };
  for_each_loaded(1, a.size, 1, load_one,
                  [&](int, float value) { extreme = more_extreme(extreme, value, a.is_min); });
  a.y[index] = extreme;
}

}  // namespace device
