// What a product reads: rows side by side, and what comes after.
#pragma once

#include "vectors.h"

#include "begin_target.h"

namespace SIMD {

// R rows that lie a stride apart, by few registers: an instruction adds the stride once or twice.
template <int R>
class RowsAhead {
 public:
  // `stride`: bytes.
  INLINE RowsAhead(const void* first, int64_t stride) : stride_(stride) {
    for (int i = 0; i < kBases; i++) {
      bases_[i] = static_cast<const char*>(first) + 3 * i * stride;
      asm("" : "+r"(bases_[i]));  // stays: it is not made of the first row by row
    }
  }

  template <typename T>
  INLINE T at(int row, int64_t offset) const {
    return load<T>(bases_[row / 3] + row % 3 * stride_ + offset);
  }
  INLINE void skip(int64_t num_bytes) {
    for (int i = 0; i < kBases; i++) bases_[i] += num_bytes;
  }

 private:
  static constexpr int kBases = (R + 2) / 3;
  const char* bases_[kBases];
  int64_t stride_;
};

// Memory that is read next, and is fetched to the second cache, line by line.
class Ahead {
 public:
  INLINE explicit Ahead(const void* begin) : next_(static_cast<const char*>(begin)) {}

  INLINE void fetch() {
    __builtin_prefetch(next_, 0, kSecondCache);
    skip(1);
  }
  INLINE void skip(int64_t num_lines) { next_ += num_lines * kLineBytes; }

 private:
  static constexpr int kSecondCache = 2;
  static constexpr int64_t kLineBytes = 64;
  const char* next_;
};

}  // namespace SIMD

#include "end_target.h"
