// Rotary position embeddings (Su et al. 2021, RoFormer).
#pragma once

namespace device {

// The angle of an element of a head, and the element that it forms a pair with.
struct Rotation {
  int angle, other;
  bool is_first;  // whether the element is the first of its pair

  // The first `size` elements of a head are rotated. Neighbours form a pair if `is_interleaved`,
  // else elements size / 2 apart.
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
