// Software prefetch of the packed panels that come next, for the micro-kernels of two panels.
#pragma once

#include "vectors.h"

#include "begin_target.h"

namespace SIMD {

// Prefetches consecutive cache lines into L2, one per call.
class LinePrefetcher {
 public:
  INLINE explicit LinePrefetcher(const void* begin) : next_(static_cast<const char*>(begin)) {}

  INLINE void fetch() {
    __builtin_prefetch(next_, 0, kToL2);
    skip(1);
  }
  INLINE void skip(int64_t num_lines) { next_ += num_lines * kLineBytes; }

 private:
  static constexpr int kToL2 = 2;  // locality argument of __builtin_prefetch
  static constexpr int64_t kLineBytes = 64;
  const char* next_;
};

}  // namespace SIMD

#include "end_target.h"
