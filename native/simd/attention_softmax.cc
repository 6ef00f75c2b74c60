#include "attention_softmax.h"

#include <float.h>
#include <math.h>

#include "begin_target.h"

namespace attention::SIMD {
namespace {

const float* bias_of(const Call& call, const Queries& queries, int64_t query) {
  if (!call.bias.data) return nullptr;
  const int64_t group = call.group(), head = queries.kv_head * group + query % group;
  const int64_t token = query / group, num_tokens = queries.part.num_tokens();
  return call.bias.data + queries.part.rows[token / num_tokens] * call.bias.row +
         head * call.bias.head +
         (queries.part.first + token % num_tokens) * call.bias.num_keys;
}

// Scores of keys from .. to - 1 of a block, capped, biased, and nothing where a key is not seen.
void adjust(const Call& call, const Queries& queries, int64_t query, int64_t block, int64_t from,
            int64_t to) {
  float* scores = queries.scores + query * call.block();
  const float* bias = bias_of(call, queries, query);
  const int32_t begin = queries.begin[query] - static_cast<int32_t>(block);
  const int32_t end = queries.end[query] - static_cast<int32_t>(block);
  for (int64_t i = from; i < to; i += kLanes) {
    Floats score = load(scores + i);
    const Ints place = iota() + static_cast<int32_t>(i);
    if (call.soft_cap > 0) score = call.soft_cap * tanh(score / call.soft_cap);
    if (bias) {
      const int64_t left = call.bias.num_keys - block - i;
      const float* from = bias + block + i;
      score += left >= kLanes ? load(from) : load_n(from, max(0, left));
    }
    store(scores + i, (place >= begin & place < end) ? score : Floats(-INFINITY));
  }
}

// What weigh does for one query.
INLINE void weigh_one(const Call& call, const Queries& queries, int64_t query, int64_t block,
                      int64_t from, int64_t to) {
  const bool is_whole = queries.begin[query] <= block + from && block + to <= queries.end[query];
  if (!is_whole || call.soft_cap > 0 || call.bias.data) {
    adjust(call, queries, query, block, from, to);
  }
  float* scores = queries.scores + query * call.block();
  const float before = queries.best[query];
  Floats best = before;
  for (int64_t i = from; i < to; i += kLanes) best = max(load(scores + i), best);
  const float most = largest(best);
  float rescale = 1.0f;  // 0 where nothing was before
  if (before != most) rescale = before == -FLT_MAX ? 0.0f : exp_scalar(before - most);
  float* totals = queries.totals + query * kMaxLanes;
  Floats total = load(totals) * rescale;
  for (int64_t i = from; i < to; i += kLanes) {
    const Floats weight = exp(load(scores + i) - most);
    store(scores + i, weight);
    total += weight;
  }
  store(totals, total);
  queries.best[query] = most;
  queries.rescale[query] = rescale;
}

}  // namespace

void weigh(const Call& call, const Queries& queries, int64_t first, int64_t last, int64_t block,
           int64_t from, int64_t to) {
  for (int64_t query = first; query < last; query++) {
    weigh_one(call, queries, query, block, from, to);
  }
}

void finish(const Call& call, int64_t head, const Queries& queries, int64_t query, float* output) {
  float best = queries.best[query], factor = 1.0f;
  float total = sum(load(queries.totals + query * kMaxLanes));
  if (call.sinks || call.has_zero_sink) {
    const float sink = call.sinks ? call.sinks[head] : 0.0f;
    const float most = fmaxf(best, sink);
    factor = exp_scalar(best - most);
    total = total * factor + exp_scalar(sink - most);
  }
  factor = total == 0.0f ? 0.0f : factor / total;
  const float* sums = queries.sums + query * call.size;
  for (int64_t i = 0; i < call.size; i += 8) store(output + i, load<Floats8>(sums + i) * factor);
}

}  // namespace attention::SIMD

#include "end_target.h"
