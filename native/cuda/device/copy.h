// Copies in device memory: many in one launch, since a launch costs the host more than a small copy
// costs the device.
#pragma once

#include "arguments.h"
#include "thread.h"

namespace device {

// Copies parts in units of T, which divides their bytes, both pitches and both addresses. There are
// fewer than 2^31 units: dividing longer integers would take longer than a copy.
template <typename T>
void copy_units(const Copy& copy, uint first, uint step) {
  const long source_pitch = copy.source_pitch / sizeof(T);
  const long target_pitch = copy.target_pitch / sizeof(T);
  const uint part_units = copy.width / sizeof(T);
  const uint num_units = copy.num_parts * part_units;
  const T* source = reinterpret_cast<const T*>(copy.source);
  T* target = reinterpret_cast<T*>(copy.target);
  const auto load_one = [&](uint unit) {
    return source[unit / part_units * source_pitch + unit % part_units];
  };
  for_each_loaded(first, num_units, step, load_one, [&](uint unit, T value) {
    target[unit / part_units * target_pitch + unit % part_units] = value;
  });
}

// `num_blocks` blocks for each copy.
inline void copy_in_parts(const CopyArguments& a) {
  expect_threads<256, 4>();
  let_next_start();
  wait_for_previous();
  const Copy copy = a.copies[block() / a.num_blocks];
  const uint first = block() % a.num_blocks * num_threads() + thread();
  const uint step = a.num_blocks * num_threads();
  const long bits = reinterpret_cast<long>(copy.source) | reinterpret_cast<long>(copy.target) |
                    copy.width | copy.source_pitch | copy.target_pitch;
  if (bits % sizeof(Words) == 0) {
    copy_units<Words>(copy, first, step);
  } else {
    copy_units<char>(copy, first, step);
  }
}

}  // namespace device
