// The largest or smallest element along an axis of an fp32 tensor; NaN if one is NaN.
#pragma once

#include "arguments.h"
#include "thread.h"

namespace device {

inline float more_extreme(float a, float b, int is_min) {
  if (a != a) return a;
  if (b != b) return b;
  return is_min ? __builtin_fminf(a, b) : __builtin_fmaxf(a, b);
}

// x [rows, size]: a row per block.
inline void find_extreme_of_row(const ExtremeArguments& a) {
  SHARED float found[kMaxWarps];
  let_next_start();
  wait_for_previous();
  const float* row = a.x + static_cast<long>(block()) * a.size;
  float extreme = row[0];
  for (int i = thread(); i < a.size; i += num_threads()) {
    extreme = more_extreme(extreme, row[i], a.is_min);
  }
  for (int distance = kWarp / 2; distance; distance /= 2) {
    extreme = more_extreme(extreme, from_lane(extreme, distance), a.is_min);
  }
  if (lane() == 0) found[warp()] = extreme;
  wait_for_block();
  if (thread() != 0) return;
  for (int w = 1; w < num_warps(); w++) extreme = more_extreme(extreme, found[w], a.is_min);
  a.y[block()] = extreme;
}

// x [rows, size, inner]: a thread for each of y [rows, inner].
inline void find_extremes_across(const ExtremeArguments& a) {
  let_next_start();
  wait_for_previous();
  const long index = static_cast<long>(block()) * num_threads() + thread();
  if (index >= a.num_outputs) return;
  const long row = index / a.inner;
  const float* x = a.x + row * a.size * a.inner + (index - row * a.inner);
  float extreme = x[0];
  for (int i = 1; i < a.size; i++) {
    extreme = more_extreme(extreme, x[static_cast<long>(i) * a.inner], a.is_min);
  }
  a.y[index] = extreme;
}

}  // namespace device
