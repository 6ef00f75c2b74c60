// Software prefetch of memory that is read next.
#pragma once

#include "../integers.h"
#include "vectors.h"

#include "begin_target.h"

namespace SIMD {

constexpr int kToL2 = 2;  // locality argument of __builtin_prefetch

// Prefetches consecutive cache lines into L2, one per call.
class LinePrefetcher {
 public:
  static constexpr int64_t kLineBytes = 64;

  INLINE explicit LinePrefetcher(const void* begin) : next_(static_cast<const char*>(begin)) {}

  INLINE void fetch() {
    __builtin_prefetch(next_, 0, kToL2);
    skip(1);
  }
  INLINE void skip(int64_t num_lines) { next_ += num_lines * kLineBytes; }

 private:
  const char* next_;
};

// Prefetches the next panels into L2 while micro-tiles read the current ones: `num_lines` lines for
// each step of a tile, spread over `num_tiles` tiles. A tile gets a copy, which stays in registers.
class PanelPrefetcher {
 public:
  INLINE PanelPrefetcher(const void* begin, int64_t num_lines, int64_t num_tiles)
      : lines_(begin), num_left_(num_lines), lines_per_step_(div_ceil(num_lines, num_tiles)) {}

  INLINE int64_t lines_per_step() const { return lines_per_step_; }
  INLINE void step() {
    for (int64_t i = 0; i < lines_per_step_; i++) lines_.fetch();
  }
  // Call after a tile of `num_steps` steps.
  INLINE void next_tile(int64_t num_steps) {
    lines_.skip(num_steps * lines_per_step_);
    num_left_ -= lines_per_step_;
    lines_per_step_ = min(lines_per_step_, num_left_);
  }

 private:
  LinePrefetcher lines_;
  int64_t num_left_, lines_per_step_;
};

// Prefetches a range of memory into L2, an equal number of lines per step.
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
