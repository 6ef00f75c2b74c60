// Splits each row into the heads of queries, keys and values, after a bias, and applies rotary
// positions to queries and keys.
#pragma once

#include "arguments.h"
#include "rotary.h"
#include "thread.h"

namespace device {

// The vector `vector` of a row of x, plus the bias.
template <typename T>
inline Wide<T> biased(const SplitArguments<T>& a, const T* x, int vector) {
  Wide<T> found = Wide<T>::load(x + vector * kWide);
  if (a.bias) found.add(a.bias + vector * kWide);
  return found;
}

// The vector `piece`, with rotary positions, of the head that begins at the vector `head` of a row.
template <typename T>
inline Wide<T> rotated(const SplitArguments<T>& a, const T* x, int head, int piece, int position) {
  const int first = piece * kWide;
  const Rotation rotation = Rotation::of(first, a.rotary_size, a.is_interleaved);
  const long angle = static_cast<long>(position) * (a.rotary_size / 2) + rotation.angle;
  const T *cosines = a.cosines + angle, *sines = a.sines + angle;
  Wide<T> found = biased(a, x, head + piece);
  if (a.is_interleaved) {
    UNROLLED
    for (int i = 0; i < kWide; i += 2) {
      const float cosine = T::widen(cosines[i / 2]), sine = T::widen(sines[i / 2]);
      const float one = found.values[i], other = found.values[i + 1];
      found.values[i] = one * cosine - other * sine;
      found.values[i + 1] = other * cosine + one * sine;
    }
  } else {
    const Wide<T> others = biased(a, x, head + rotation.other / kWide);
    const Wide<T> cosine = Wide<T>::load(cosines), sine = Wide<T>::load(sines);
    UNROLLED
    for (int i = 0; i < kWide; i++) {
      found.values[i] = rotation.rotate(found.values[i], others.values[i], cosine.values[i],
                                        sine.values[i]);
    }
  }
  return found;
}

template <typename T>
inline void split(const SplitArguments<T>& a) {
  expect_threads<256, 4>();
  let_next_start();
  wait_for_previous();
  const long index = static_cast<long>(block()) * num_threads() + thread();
  if (index >= a.num_vectors) return;
  // Position in the output. All three outputs have num_heads heads.
  const int head_vectors = a.head_size / kWide, part_vectors = a.num_heads * head_vectors;
  const long row = index / (3 * part_vectors);
  const int column = static_cast<int>(index - row * 3 * part_vectors);
  const int part = column / part_vectors, place = column % part_vectors;
  const int head = place / head_vectors, piece = place % head_vectors;
  // Position in the input.
  const int kv_head = head / (a.num_heads / a.num_kv_heads);
  const int input_head = part == 0 ? head : a.num_heads + (part - 1) * a.num_kv_heads + kv_head;
  const T* x = a.x + row * (a.num_heads + 2 * a.num_kv_heads) * a.head_size;
  const int first = input_head * head_vectors;
  T* to = part == 0 ? a.parts[0] : part == 1 ? a.parts[1] : a.parts[2];
  to += (row * part_vectors + place) * kWide;
  if (part < 2 && piece * kWide < a.rotary_size) {
    rotated(a, x, first, piece, static_cast<int>(row % a.length)).store(to);
  } else {
    biased(a, x, first + piece).store(to);
  }
}

}  // namespace device
