// What attention knows of some queries while it goes through their keys, block by block.
#pragma once

#include "attention.h"
#include "attention_tiles.h"

namespace attention {

// A part's queries of the heads of one key head, token by token, and what is known of each.
struct Queries {
  Part part;
  int64_t kv_head, count;
  float* vectors;         // [count][size], turned and scaled
  float* sums;            // [count][size]: of values, weighted
  float* scores;          // [count][block]
  float* totals;          // [count][8]: of weights, by position modulo 8
  float* best;            // [count]: the largest score
  float* rescale;         // [count]: what a block's larger one makes of what was before
  int32_t *begin, *end;   // [count]: the keys it sees

  Queries(const Call& call, const Part& part, int64_t kv_head, float* scratch)
      : part(part),
        kv_head(kv_head),
        count(part.num_rows * part.num_tokens() * call.group()) {
    const auto take = [&](int64_t size) {
      float* taken = scratch;
      scratch += count * size;
      return taken;
    };
    vectors = take(call.size);
    sums = take(call.size);
    scores = take(call.block());
    totals = take(kLanes);
    best = take(1);
    rescale = take(1);
    begin = reinterpret_cast<int32_t*>(take(1));
    end = reinterpret_cast<int32_t*>(take(1));
  }
  static size_t scratch_size(const Call& call, int64_t count) {
    return count * (2 * call.size + call.block() + kLanes + 4);
  }
};

// Turns scores of keys from .. to - 1 of a block into weights; both are multiples of 8.
void weigh(const Call& call, const Queries& queries, int64_t query, int64_t block, int64_t from,
           int64_t to);

// The sums of a query of a head, over all its weights.
void finish(const Call& call, int64_t head, const Queries& queries, int64_t query, float* output);

}  // namespace attention
