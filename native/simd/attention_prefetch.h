// Software prefetch of what bfloat16 attention without a cache reads and writes next.
#pragma once

#include "../attention.h"
#include "../integers.h"
#include "prefetch.h"

#include "begin_target.h"

namespace attention::SIMD {

using namespace ::SIMD;

// Prefetches into L2, for the tokens of a block, the next head's queries, keys, values and output.
// Lines of different tokens are too far apart for the hardware prefetcher.
class HeadPrefetcher {
 public:
  // Spreads the tokens over `num_steps` steps: too many lines at once would hold up other reads.
  INLINE HeadPrefetcher(const Params& params, const QueryBlock& block, int64_t head,
                        int64_t num_steps)
      : params_(params),
        row_(block.rows[0]),
        head_(head + 1),
        next_(block.first_token),
        last_(block.last_token),
        tokens_per_step_(div_ceil(block.num_tokens(), num_steps)) {
    if (head_ < params.num_heads) return;
    head_ = 0;
    if (++row_ >= params.num_rows) last_ = next_;
  }

  INLINE void step() {
    const int64_t end = min(next_ + tokens_per_step_, last_), offset = head_ * params_.head_size;
    for (; next_ < end; next_++) {
      fetch(params_.query.at(row_, next_) + offset);
      fetch(params_.key.at(row_, next_) + offset);
      fetch(params_.value.at(row_, next_) + offset);
      fetch(params_.output_at(row_, next_, head_));
    }
  }

 private:
  INLINE void fetch(const float* vector) const {
    for (int64_t i = 0; i < params_.head_size; i += kLineFloats) {
      __builtin_prefetch(vector + i, 0, kToL2);
    }
  }

  const Params& params_;
  int64_t row_, head_, next_, last_, tokens_per_step_;
};

}  // namespace attention::SIMD

#include "end_target.h"
