// Mean pooling over a text's tokens, and the cumulative sequence lengths of attention.
#pragma once

#include "arguments.h"
#include "thread.h"

namespace device {

// One block per text. The threads of a column vector each sum every num_groups-th token, so the
// order of the additions does not depend on the padding.
template <typename T>
inline void pool(const PoolArguments<T>& a) {
  SHARED float sums[kMaxWarps * kWarp * kWide];  // [groups, size]
  expect_threads<kMaxThreads, 1>();
  let_next_start();
  wait_for_previous();
  const int num_vectors = a.size / kWide, num_groups = num_threads() / num_vectors;
  const int group = thread() / num_vectors, column = thread() % num_vectors * kWide;
  const int length = a.lengths[block()];
  Wide<T> mean;
  UNROLLED
  for (int i = 0; i < kWide; i++) mean.values[i] = 0.f;
  if (group < num_groups) {
    const T* x = a.x + static_cast<long>(block()) * a.max_length * a.size + column;
    const auto load_one = [&](int token) {
      return load_if(true, x + static_cast<long>(token) * a.size);
    };
    for_each_loaded(group, length, num_groups, load_one, [&](int, Words words) {
      const Wide<T> value = Wide<T>::of(words);
      UNROLLED
      for (int i = 0; i < kWide; i++) mean.values[i] += value.values[i];
    });
    UNROLLED
    for (int i = 0; i < kWide; i++) sums[group * a.size + column + i] = mean.values[i];
  }
  wait_for_block();
  float square = 0.f;
  if (group == 0) {
    for (int other = 1; other < num_groups; other++) {
      UNROLLED
      for (int i = 0; i < kWide; i++) mean.values[i] += sums[other * a.size + column + i];
    }
    UNROLLED
    for (int i = 0; i < kWide; i++) {
      mean.values[i] /= length;
      square += mean.values[i] * mean.values[i];
    }
  }
  float divisor = 1.f;
  if (a.is_normalized) {
    divisor = __builtin_sqrtf(sum_over_block(square));
    if (divisor < a.min_norm) divisor = a.min_norm;
  }
  if (group != 0) return;
  float* y = a.y + static_cast<long>(block()) * a.size + column;
  UNROLLED
  for (int i = 0; i < kWide; i++) y[i] = mean.values[i] / divisor;
}

inline void find_key_ranges(const KeyRangesArguments& a) {
  expect_threads<256, 4>();
  let_next_start();
  wait_for_previous();
  const int index = block() * num_threads() + thread(), first = index - a.num_texts;
  if (first < 0) {
    a.ranges[index] = a.lengths[index];
  } else if (first < 2 * (a.num_texts + 1)) {
    a.ranges[index] = first % (a.num_texts + 1) * a.max_length;
  }
}

}  // namespace device
