#if SIMD_BITS == 512

#include "attention_rounded.h"

#include "attention_lanes.h"
#include "attention_microkernels.h"
#include "attention_query_tiles.h"
#include "attention_softmax.h"

#include "begin_target.h"

namespace attention::SIMD {
namespace {

// y[c][r] = x[r][c] of 16 x 16 lanes; y is `y_stride` lanes apart.
INLINE void transpose_16x16(const __m512i* x, int32_t* y, int64_t y_stride) {
  __m512i pairs[16], fours[16];
#pragma unroll
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma unroll
  for (int i = 0; i < 16; i += 4) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
      fours[i + 2 * k] = _mm512_unpacklo_epi64(pairs[i + k], pairs[i + k + 2]);
      fours[i + 2 * k + 1] = _mm512_unpackhi_epi64(pairs[i + k], pairs[i + k + 2]);
    }
  }
  constexpr int kEven = 0x88, kOdd = 0xdd;  // 128-bit parts 0 and 2, or 1 and 3, of both
#pragma unroll
  for (int c = 0; c < 4; c++) {
    const __m512i even_low = _mm512_shuffle_i32x4(fours[c], fours[c + 4], kEven);
    const __m512i even_high = _mm512_shuffle_i32x4(fours[c + 8], fours[c + 12], kEven);
    const __m512i odd_low = _mm512_shuffle_i32x4(fours[c], fours[c + 4], kOdd);
    const __m512i odd_high = _mm512_shuffle_i32x4(fours[c + 8], fours[c + 12], kOdd);
    store(y + c * y_stride, _mm512_shuffle_i32x4(even_low, even_high, kEven));
    store(y + (c + 4) * y_stride, _mm512_shuffle_i32x4(odd_low, odd_high, kEven));
    store(y + (c + 8) * y_stride, _mm512_shuffle_i32x4(even_low, even_high, kOdd));
    store(y + (c + 12) * y_stride, _mm512_shuffle_i32x4(odd_low, odd_high, kOdd));
  }
}

// Rounds keys [num_keys][size] to pairs of dimensions [size / 2][stride], and zeros up to a multiple
// of kLanes keys.
void round_columns(const float* keys, int64_t num_keys, int64_t size, int64_t stride,
                   int32_t* to) {
  for (int64_t first = 0; first < num_keys; first += kLanes) {
    for (int64_t i = 0; i < size; i += 2 * kLanes) {
      __m512i rows[kLanes];
#pragma unroll
      for (int64_t k = 0; k < kLanes; k++) {
        const float* const key = keys + (first + k) * size + i;
        rows[k] = first + k < num_keys
                      ? reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(
                            _mm512_loadu_ps(key + kLanes), _mm512_loadu_ps(key)))
                      : _mm512_setzero_si512();
      }
      transpose_16x16(rows, to + i / 2 * stride + first, stride);
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

// Adds a block of keys, pairs of dimensions [head_size / 2][keys_per_block], and values
// [keys][head_size] to the state of a few queries.
void attend_few(const Params& params, const QueryState& state, int64_t block_start,
                const int32_t* keys, const float* values) {
  constexpr int64_t kStep = 2 * kLanes;  // keys whose weights become pairs together
  const int64_t size = params.head_size, stride = params.keys_per_block();
  const auto* const queries = reinterpret_cast<const int32_t*>(state.queries);
  for_each_tile(state.num_queries, [&](int64_t query, auto mr) {
    constexpr int kRows = decltype(mr)::kCount;
    const KeyRange seen = visible_keys(params, state, query, kRows, block_start);
    if (seen.from >= seen.to) return;
    const int64_t from = seen.from / kStep * kStep, to = round_up(seen.to, kStep);
    float* const scores = state.scores + query * stride;
    score_packed_keys<kRows>(queries + query * size / 2, size / 2, keys, from, to, scores, stride);
    softmax_block<int32_t>(params, state, query, query + kRows, block_start, from, to);
    for (int r = 0; r < kRows; r++) {
      float* const weights = scores + r * stride;
      round_neighbours(weights + from, to - from, weights + from / 2);
    }
    const auto* const weights = reinterpret_cast<const int32_t*>(scores) + from / 2;
    for (int64_t i = 0; i < size; i += 2 * kLanes) {
      accumulate_tile<kRows, 2>(weights, stride, values + from * size + i, size, seen.to - from,
                                state.rescale + query, state.accumulators + query * size + i);
    }
  });
}

}  // namespace

void attend_rounded(const Params& params, const QueryState& state, int64_t row,
                    int64_t block_start, int64_t end, float* scratch) {
  const int64_t size = params.head_size, num_keys = params.keys_per_block();
  const int64_t at = cached_at(params, state, row, block_start);
  const int64_t count = min(num_keys, end - block_start);
  const float *keys = params.cache.keys + at, *values = params.cache.values + at;
  auto* const key_pairs = reinterpret_cast<int32_t*>(scratch);
  if (!uses_lanes(params, state)) {
    round_columns(keys, count, size, num_keys, key_pairs);
    return attend_few(params, state, block_start, key_pairs, values);
  }
  auto* const value_pairs = key_pairs + num_keys * size / 2;
  round_keys(keys, size, count, size, key_pairs);
  memset(key_pairs + count * size / 2, 0,
         (round_up(count, kLanes) - count) * size / 2 * sizeof(int32_t));
  round_values(values, size, count, size, value_pairs);
  attend_block_in_lanes(params, state, block_start, key_pairs, value_pairs);
}

}  // namespace attention::SIMD

#include "end_target.h"

#endif
