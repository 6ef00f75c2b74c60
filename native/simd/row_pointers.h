// Pointers to the rows of a micro-tile.
#pragma once

#include "vectors.h"

#include "begin_target.h"

namespace SIMD {

// R rows at one stride, addressed from one base register per three rows: x86 addresses hold the
// base plus once or twice the stride. One pointer per row would not fit the general registers.
template <int R>
class RowPointers {
 public:
  // `stride`: in bytes.
  INLINE RowPointers(const void* first, int64_t stride) : stride_(stride) {
    for (int i = 0; i < kBases; i++) {
      bases_[i] = static_cast<const char*>(first) + 3 * i * stride;
      asm("" : "+r"(bases_[i]));  // keeps clang from computing each row from the first
    }
  }

  // `offset`: in bytes.
  template <typename T>
  INLINE T at(int row, int64_t offset) const {
    return load<T>(bases_[row / 3] + row % 3 * stride_ + offset);
  }
  INLINE void advance(int64_t num_bytes) {
    for (int i = 0; i < kBases; i++) bases_[i] += num_bytes;
  }

 private:
  static constexpr int kBases = (R + 2) / 3;
  const char* bases_[kBases];
  int64_t stride_;
};

}  // namespace SIMD

#include "end_target.h"
