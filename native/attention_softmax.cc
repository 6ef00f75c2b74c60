#include "attention_softmax.h"

#include <math.h>

#include "vectors.h"

namespace attention {
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
AVX2_FMA void adjust(const Call& call, const Queries& queries, int64_t query, int64_t block,
                     int64_t from, int64_t to) {
  float* scores = queries.scores + query * call.block();
  const float* bias = bias_of(call, queries, query);
  const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i before =
      _mm256_set1_epi32(queries.begin[query] - static_cast<int32_t>(block) - 1);
  const __m256i behind = _mm256_set1_epi32(queries.end[query] - static_cast<int32_t>(block));
  const __m256 nothing = _mm256_set1_ps(-INFINITY), cap = _mm256_set1_ps(call.soft_cap);
  for (int64_t i = from; i < to; i += kLanes) {
    __m256 score = _mm256_loadu_ps(scores + i);
    const __m256i place = _mm256_add_epi32(places, _mm256_set1_epi32(static_cast<int32_t>(i)));
    const __m256i seen =
        _mm256_and_si256(_mm256_cmpgt_epi32(place, before), _mm256_cmpgt_epi32(behind, place));
    if (call.soft_cap > 0) {
      score = _mm256_mul_ps(cap, vectors::tanh(_mm256_div_ps(score, cap)));
    }
    if (bias) score = _mm256_add_ps(score, _mm256_maskload_ps(bias + block + i, seen));
    _mm256_storeu_ps(scores + i, _mm256_blendv_ps(nothing, score, _mm256_castsi256_ps(seen)));
  }
}

}  // namespace

AVX2_FMA void weigh(const Call& call, const Queries& queries, int64_t query, int64_t block,
                    int64_t from, int64_t to) {
  const bool is_whole = queries.begin[query] <= block + from && block + to <= queries.end[query];
  if (!is_whole || call.soft_cap > 0 || call.bias.data) {
    adjust(call, queries, query, block, from, to);
  }
  float* scores = queries.scores + query * call.block();
  __m256 best = _mm256_set1_ps(queries.best[query]);
  for (int64_t i = from; i < to; i += kLanes) {
    best = _mm256_max_ps(_mm256_loadu_ps(scores + i), best);
  }
  const float largest = vectors::largest(best);
  const __m256 offset = _mm256_set1_ps(largest);
  __m256 rescale = _mm256_set1_ps(1.0f);
  if (queries.best[query] != largest) {
    rescale = vectors::exp(_mm256_sub_ps(_mm256_set1_ps(queries.best[query]), offset));
  }
  float* totals = queries.totals + query * kLanes;
  __m256 total = _mm256_mul_ps(_mm256_loadu_ps(totals), rescale);
  for (int64_t i = from; i < to; i += kLanes) {
    const __m256 weight = vectors::exp(_mm256_sub_ps(_mm256_loadu_ps(scores + i), offset));
    _mm256_storeu_ps(scores + i, weight);
    total = _mm256_add_ps(total, weight);
  }
  _mm256_storeu_ps(totals, total);
  queries.best[query] = largest;
  queries.rescale[query] = _mm256_cvtss_f32(rescale);
}

AVX2_FMA void finish(const Call& call, int64_t head, const Queries& queries, int64_t query,
                     float* output) {
  float best = queries.best[query], factor = 1.0f;
  float total = vectors::sum(_mm256_loadu_ps(queries.totals + query * kLanes));
  if (call.sinks || call.has_zero_sink) {
    const float sink = call.sinks ? call.sinks[head] : 0.0f;
    const float largest = fmaxf(best, sink);
    factor = vectors::exp(best - largest);
    total = total * factor + vectors::exp(sink - largest);
  }
  factor = total == 0.0f ? 0.0f : factor / total;
  const float* sums = queries.sums + query * call.size;
  const __m256 factors = _mm256_set1_ps(factor);
  for (int64_t i = 0; i < call.size; i += kLanes) {
    _mm256_storeu_ps(output + i, _mm256_mul_ps(_mm256_loadu_ps(sums + i), factors));
  }
}

}  // namespace attention
