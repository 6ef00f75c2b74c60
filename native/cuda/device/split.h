// Adds a bias and splits each row into three: queries, keys and values.
#pragma once

#include "arguments.h"
#include "thread.h"

namespace device {

template <typename T>
inline void split(const SplitArguments<T>& a) {
  let_next_start();
  wait_for_previous();
  const long index = static_cast<long>(block()) * num_threads() + thread();
  if (index >= a.num_vectors) return;
  const long row = index / a.row_vectors;
  int column = static_cast<int>(index - row * a.row_vectors);
  Wide<T> x = Wide<T>::load(a.x + index * kWide);
  if (a.bias) x.add(a.bias + column * kWide);
  int part = 0;
  while (column >= a.part_vectors[part]) column -= a.part_vectors[part++];
  T* to = part == 0 ? a.parts[0] : part == 1 ? a.parts[1] : a.parts[2];
  x.store(to + (row * a.part_vectors[part] + column) * kWide);
}

}  // namespace device
