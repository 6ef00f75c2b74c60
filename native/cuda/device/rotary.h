// Rotary positions (Su et al. 2021, RoFormer).
#pragma once

namespace device {

// Where the element `index` of a head gets its angle from, and the element that it is rotated with.
struct Rotation {
  int angle, other;
  bool is_first;  // of the two

  // `size`: of the first elements of a head, which are rotated. Neighbours are rotated together if
  // `is_interleaved`, else elements half of the size apart.
  static Rotation of(int index, int size, bool is_interleaved) {
    const int half = size / 2;
    if (is_interleaved) return {index / 2, index ^ 1, index % 2 == 0};
    const bool is_first = index < half;
    return {is_first ? index : index - half, is_first ? index + half : index - half, is_first};
  }

  float rotate(float x, float x_of_other, float cosine, float sine) const {
    return x * cosine + (is_first ? -x_of_other : x_of_other) * sine;
  }
};

}  // namespace device
