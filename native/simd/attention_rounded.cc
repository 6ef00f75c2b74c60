#if SIMD_BITS == 512

#include "attention_rounded.h"

#include "../integers.h"
#include "attention_kv.h"
#include "attention_lanes.h"
#include "attention_query_tiles.h"
#include "attention_softmax.h"

#include "begin_target.h"

namespace attention::SIMD {
namespace {

// Scores of R queries, pairs of dimensions [R][size / 2], with keys first .. last - 1 of a block,
// [keys][size], in fours: those past `last` repeat the last key's score. Reads no other key.
// Prefetches the values of these keys unless `values` is null. N: size, or 0 if it is not constant.
template <int R, int N>
void score_keys(const int32_t* queries, int64_t runtime_size, const float* keys, int64_t first,
                int64_t last, const float* values, float* scores, int64_t scores_stride) {
  const int64_t size = N ? N : runtime_size;
  for (int64_t key = first; key < last; key += 4) {
    if (values) prefetch_vector(values + key * size, 4 * size);
    Floats sums[R][4];
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
      for (int c = 0; c < 4; c++) sums[r][c] = 0.0f;
    }
    for (int64_t i = 0; i < size; i += 2 * kLanes) {
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const float* const from = keys + min(key + c, last - 1) * size + i;
        const Pairs pairs = reinterpret_cast<Pairs>(
            _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + kLanes), _mm512_loadu_ps(from)));
#pragma unroll
        for (int r = 0; r < R; r++) {
          const auto query = load<Pairs>(queries + (r * size + i) / 2);
          sums[r][c] = multiply_add(sums[r][c], query, pairs);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
      store(scores + r * scores_stride + key,
            reduce_sum_4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]));
    }
  }
}

// out = out * rescale + weights * values, for R queries and D vectors of dimensions: out [R][size],
// weights [R][weights_stride] pairs of keys, values [num_keys][size], rescale [R].
template <int R, int D>
INLINE void accumulate_tile(const int32_t* weights, int64_t weights_stride, const float* values,
                            int64_t size, int64_t num_keys, const float* rescale, float* out) {
  Floats sums[R][D];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int d = 0; d < D; d++) sums[r][d] = load(out + r * size + d * kLanes) * rescale[r];
  }
  const auto add = [&](int64_t pair, auto has_second) __attribute__((always_inline)) {
    const float* const first = values + 2 * pair * size;
#pragma unroll
    for (int d = 0; d < D; d++) {
      const Floats second = has_second.kCount ? load(first + size + d * kLanes) : Floats(0.0f);
      const Pairs value = round_to_pairs(load(first + d * kLanes), second);
#pragma unroll
      for (int r = 0; r < R; r++) {
        const Pairs weight = weights[r * weights_stride + pair];
        sums[r][d] = multiply_add(sums[r][d], weight, value);
      }
    }
  };
  for (int64_t pair = 0; pair < num_keys / 2; pair++) add(pair, StaticCount<1>());
  if (num_keys % 2) add(num_keys / 2, StaticCount<0>());
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int d = 0; d < D; d++) store(out + r * size + d * kLanes, sums[r][d]);
  }
}

// accumulate_tile() for all dimensions; `size` is a multiple of 2 * kLanes.
template <int R>
void accumulate_values(const int32_t* weights, int64_t weights_stride, const float* values,
                       int64_t size, int64_t num_keys, const float* rescale, float* out) {
  int64_t i = 0;
  const auto step = [&](auto count) __attribute__((always_inline)) {
    for (; i + count.kCount * kLanes <= size; i += count.kCount * kLanes) {
      accumulate_tile<R, count.kCount>(weights, weights_stride, values + i, size, num_keys,
                                       rescale, out + i);
    }
  };
  step(StaticCount<4>());
  step(StaticCount<2>());
}

// Updates the state of a few queries with a block of keys and values, both [keys][head_size].
void attend_few(const Params& params, const QueryState& state, int64_t block_start,
                const float* keys, const float* values) {
  constexpr int64_t kStep = 2 * kLanes;  // keys whose weights are packed into pairs together
  const int64_t size = params.head_size, stride = params.keys_per_block();
  const auto* const queries = reinterpret_cast<const int32_t*>(state.queries);
  for_each_tile(state.num_queries, [&](int64_t query, auto mr) {
    constexpr int kRows = decltype(mr)::kCount;
    const KeyRange seen = visible_keys(params, state, query, kRows, block_start);
    if (seen.from >= seen.to) return;
    const int64_t from = seen.from / kStep * kStep, to = round_up(seen.to, kStep);
    float* const scores = state.scores + query * stride;
    const auto score = size == 64 ? score_keys<kRows, 64> : score_keys<kRows, 0>;
    score(queries + query * size / 2, size, keys, from, seen.to, query ? nullptr : values, scores,
          stride);
    softmax_block<int32_t>(params, state, query, query + kRows, block_start, from, to);
    for (int r = 0; r < kRows; r++) {
      float* const weights = scores + r * stride;
      round_neighbours(weights + from, to - from, weights + from / 2);
    }
    const auto* const weights = reinterpret_cast<const int32_t*>(scores) + from / 2;
    accumulate_values<kRows>(weights, stride, values + from * size, size, seen.to - from,
                             state.rescale + query, state.accumulators + query * size);
  });
}

// Rounds a block's keys and values, both [count][head_size], to `pairs`, as in RoundedCache.
void round_block(const Params& params, const float* keys, const float* values, int64_t count,
                 int32_t* pairs) {
  const int64_t size = params.head_size;
  round_keys(keys, size, count, size, pairs);
  round_values(values, size, count, size, pairs + params.keys_per_block() * size / 2);
}

}  // namespace

void round_cache(const Params& params, int64_t row, int64_t kv_head, int64_t first, int64_t last) {
  const int64_t num_keys = params.keys_per_block();
  for (int64_t start = first; start < last; start += num_keys) {
    const int64_t at = params.cached_at(row, kv_head, start);
    round_block(params, params.cache.keys + at, params.cache.values + at,
                min(num_keys, last - start),
                params.rounded_block(row, kv_head, start / num_keys));
  }
}

void attend_rounded(const Params& params, const QueryState& state, int64_t row,
                    int64_t block_start, int64_t end, float* scratch) {
  const int64_t num_keys = params.keys_per_block();
  const int64_t at = params.cached_at(row, state.kv_head, block_start);
  const float *keys = params.cache.keys + at, *values = params.cache.values + at;
  if (!uses_lanes(params, state)) return attend_few(params, state, block_start, keys, values);
  auto* pairs = reinterpret_cast<int32_t*>(scratch);
  if (params.rounded.pairs) {
    pairs = params.rounded_block(row, state.kv_head, block_start / num_keys);
  } else {
    round_block(params, keys, values, min(num_keys, end - block_start), pairs);
  }
  attend_block_in_lanes(params, state, block_start, pairs,
                        pairs + num_keys * params.head_size / 2);
}

}  // namespace attention::SIMD

#include "end_target.h"

#endif
