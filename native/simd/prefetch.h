// Software prefetch of memory that comes next.
#pragma once

#include "../integers.h"
#include "vectors.h"

#include "begin_target.h"

namespace SIMD {

constexpr int kToL2 = 2;  // locality argument of __builtin_prefetch

// Prefetches consecutive cache lines into L2, `lines_per_step` with each step().
class LinePrefetcher {
 public:
  static constexpr int64_t kLineBytes = 64;

  INLINE explicit LinePrefetcher(const void* begin, int64_t lines_per_step = 1)
      : next_(static_cast<const char*>(begin)), lines_per_step_(lines_per_step) {}

  INLINE void step() {
    for (int64_t i = 0; i < lines_per_step_; i++) fetch();
  }

  INLINE void fetch() {
    __builtin_prefetch(next_, 0, kToL2);
    skip(1);
  }
  INLINE void skip(int64_t num_lines) { next_ += num_lines * kLineBytes; }
  INLINE void skip_steps(int64_t count) { skip(count * lines_per_step_); }

 private:
  const char* next_;
  int64_t lines_per_step_;
};

// Prefetches a range of memory into L2, in steps of as many lines each.
class RangePrefetcher {
 public:
  RangePrefetcher() = default;
  INLINE RangePrefetcher(const void* begin, int64_t num_bytes, int64_t num_steps)
      : lines_(begin),
        num_left_(div_ceil(num_bytes, LinePrefetcher::kLineBytes)),
        lines_per_step_(div_ceil(num_left_, num_steps)) {}

  INLINE void step() {
    const int64_t count = min(num_left_, lines_per_step_);
    for (int64_t i = 0; i < count; i++) lines_.fetch();
    num_left_ -= count;
  }

 private:
  LinePrefetcher lines_{nullptr};
  int64_t num_left_ = 0, lines_per_step_ = 0;
};

}  // namespace SIMD

#include "end_target.h"
