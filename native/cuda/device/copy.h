// Batched copies in device memory: one launch makes many, since a launch costs the host more time
// than a small copy costs the device.
#pragma once

#include "arguments.h"
#include "thread.h"

namespace device {

// Copies in units of T; sizeof(T) divides the width, both pitches and both addresses. A copy has
// fewer than 2^31 units: 64-bit divisions would take longer than the copy.
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

// Each copy has `num_blocks` blocks.
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
