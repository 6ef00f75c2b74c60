// Broadcasting: which element of an input belongs to an element of the output.

#pragma once

#include "computations.h"

namespace stand_in {

class Broadcast {
 public:
  // The element at the same index.
  static Broadcast Each() { return {}; }

  // Always the first element.
  static Broadcast Scalar() {
    Broadcast made;
    made.kind_ = Kind::kScalar;
    return made;
  }

  // One of `count` channels; `size` consecutive elements of the output share a channel.
  static Broadcast Channels(int64_t size, int64_t count) {
    Broadcast made;
    made.kind_ = Kind::kChannels;
    made.size_ = size;
    made.count_ = count;
    return made;
  }

  // By coordinates. `sizes`: number of elements of the output that share a coordinate.
  static Broadcast Strides(int rank, const Array<Divisor>& sizes, const Array<int64_t>& strides) {
    Broadcast made;
    made.kind_ = Kind::kStrides;
    made.rank_ = rank;
    made.sizes_ = sizes;
    made.strides_ = strides;
    return made;
  }

  int64_t operator()(int64_t place) const {
    if (kind_ == Kind::kEach) return place;
    if (kind_ == Kind::kScalar) return 0;
    if (kind_ == Kind::kChannels) return place / size_ % count_;
    int64_t found = 0;
    for (int i = 0; i < rank_; ++i) {
      found += place / sizes_.values[i].value * strides_.values[i];
      place %= sizes_.values[i].value;
    }
    return found;
  }

 private:
  enum class Kind { kEach, kScalar, kChannels, kStrides };

  Kind kind_ = Kind::kEach;
  int64_t size_ = 1, count_ = 1;
  int rank_ = 0;
  Array<Divisor> sizes_{};
  Array<int64_t> strides_{};
};

// Copies to each element of the output the element of the input that belongs to it.
template <typename T>
Computation MakeExpansion(const T* from, T* to, int64_t count, Broadcast places) {
  return [=] {
    for (int64_t i = 0; i < count; ++i) to[i] = from[places(i)];
  };
}

}  // namespace stand_in
