// What attention knows of some queries while it goes through their keys, block by block.
#pragma once

#include "attention.h"
#include "integers.h"

namespace attention {

constexpr int64_t kMaxLanes = 16;  // floats of the largest register

// A part's queries of the heads of one key head, token by token, and what is known of each.
struct Queries {
  Part part;
  int64_t kv_head, count;
  float* vectors;         // [count][size], turned and scaled
  float* sums;            // [count][size]: of values, weighted
  float* scores;          // [count][block]
  float* totals;          // [count][kMaxLanes]: of weights, by position modulo a register's floats
  float* best;            // [count]: the largest score
  float* rescale;         // [count]: what a block's max one makes of what was before
  int32_t *begin, *end;   // [count]: the keys it sees

  Queries(const Call& call, const Part& part, int64_t kv_head, float* scratch)
      : part(part),
        kv_head(kv_head),
        count(part.num_rows * part.num_tokens() * call.group()) {
    const auto take = [&](int64_t size) {
      float* taken = scratch;
      scratch += rounded_up(count * size);
      return taken;
    };
    vectors = take(call.size);
    sums = take(call.size);
    scores = take(call.block());
    totals = take(kMaxLanes);
    best = take(1);
    rescale = take(1);
    begin = reinterpret_cast<int32_t*>(take(1));
    end = reinterpret_cast<int32_t*>(take(1));
  }
  static size_t scratch_size(const Call& call, int64_t count) {
    return 2 * rounded_up(count * call.size) + count * (call.block() + kMaxLanes) +
           4 * rounded_up(count);
  }

 private:
  // Each begins where a register's worth does.
  static int64_t rounded_up(int64_t size) { return div_ceil(size, kMaxLanes) * kMaxLanes; }
};

}  // namespace attention
