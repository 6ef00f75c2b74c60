// Attention of one new token of each row, which first joins the cache.
//
// A block computes up to 8 query heads of a row that share keys and values, over a part of the
// tokens. Its warps each compute with every fourth 16 of them, on tensor cores, as FlashAttention-2
// does (Dao 2023): queries times keys, then values times weights. Parts of a row are combined by a
// kernel of their own.
#pragma once

#include "warp_attention.h"

namespace device {

constexpr int kMaxHead = 128;
constexpr int kPartsAtOnce = 8;  // whose loads a thread starts together

template <typename T, int Head>
inline void attend(const DecodeAttentionArguments<T>& a) {
  expect_threads<kAttentionThreads, Head <= 64 ? 4 : 2>();
  constexpr int kPitch = Head + 4;  // reads and writes of a warp meet few conflicts
  SHARED float outputs[kAttentionWarps][kQueries][kPitch];
  SHARED float maxima[kAttentionWarps][kQueries], sums[kAttentionWarps][kQueries];
  let_next_start();
  wait_for_previous();
  const Part part = Part::of(a);
  const long kv_row = static_cast<long>(part.row) * a.num_kv_heads + part.kv_head;
  const long cache = kv_row * a.capacity * Head;
  const long first_head = part.kv_head * a.group + part.first_head;
  const long row = part.row * a.query_stride;
  WarpAttention<T, Head> of_warp(a, part, cache);
  of_warp.load_queries(a.query + row + first_head * Head);
  if (a.new_key && part.has(part.last)) {
    // All blocks of these keys and values that need the new ones write them, the same.
    const int i = thread() % (Head / kWide) * kWide;
    const long to = cache + static_cast<long>(part.last) * Head + i, from = row + part.kv_head * Head;
    if (thread() < Head / kWide) {
      *reinterpret_cast<Words*>(a.keys + to) = rotated(a, a.new_key + from, part.last, i);
    } else if (thread() < 2 * Head / kWide) {
      *reinterpret_cast<Words*>(a.values + to) =
          *reinterpret_cast<const Words*>(a.new_value + from + i);
    }
    wait_for_block();
  }
  of_warp.run();

  const int group = of_warp.group, quarter = of_warp.quarter;
  UNROLLED
  for (int p = 0; p < of_warp.kPairs; p++) {
    UNROLLED
    for (int i = 0; i < 4; i++) {
      outputs[warp()][quarter * 2 + i % 2][of_warp.column(p) + i / 2] = of_warp.output[p][i];
    }
  }
  if (quarter == 0) {
    maxima[warp()][group] = of_warp.maximum;
    sums[warp()][group] = of_warp.sum;
  }
  wait_for_block();
  UNROLLED
  for (int n = 0; n < kQueries * Head / kAttentionThreads; n++) {
    const int i = n * kAttentionThreads + thread(), head = i / Head, column = i % Head;
    if (head >= part.num_heads) break;
    float largest = maxima[0][head], total = 0.f, weights = 0.f;
    UNROLLED
    for (int w = 1; w < kAttentionWarps; w++) largest = __builtin_fmaxf(largest, maxima[w][head]);
    UNROLLED
    for (int w = 0; w < kAttentionWarps; w++) {
      if (!(sums[w][head] != 0.f)) continue;  // it had no tokens
      const float factor = exp2(maxima[w][head] - largest);
      total += factor * outputs[w][head][column];
      weights += factor * sums[w][head];
    }
    const long at = part.row * static_cast<long>(a.num_heads) + first_head + head;
    if (a.num_splits == 1) {
      a.y[at * Head + column] = T::narrow(total / weights);
      continue;
    }
    float* to = a.parts + (at * a.num_splits + part.split) * (Head + 2);
    to[column] = total;
    if (column == 0) {
      to[Head] = largest;
      to[Head + 1] = weights;
    }
  }
}

// Combines the parts of a head: a block for each row and head, with a thread for each element.
template <typename T>
inline void combine_parts(const DecodeAttentionArguments<T>& a) {
  expect_threads<kMaxHead, 8>();
  let_next_start();
  wait_for_previous();
  const int size = a.head_size + 2, column = thread();
  const float* parts = a.parts + static_cast<long>(block()) * a.num_splits * size;
  const float *maxima = parts + a.head_size, *sums = maxima + 1;
  float largest = -__builtin_inff();
  for (int s = lane(); s < a.num_splits; s += kWarp) {
    largest = __builtin_fmaxf(largest, maxima[s * size]);
  }
  for (int d = kWarp / 2; d; d /= 2) largest = __builtin_fmaxf(largest, from_lane(largest, d));
  float sum = 0.f, weights = 0.f;
  for (int begin = 0; begin < a.num_splits; begin += kWarp) {
    const int count = a.num_splits - begin < kWarp ? a.num_splits - begin : kWarp;
    float factor = 0.f;  // of the lane's part; 0 of one without tokens
    if (lane() < count) {
      factor = exp2(maxima[(begin + lane()) * size] - largest);
      weights += factor * sums[(begin + lane()) * size];
    }
    for (int s = 0; s < count; s += kPartsAtOnce) {
      float values[kPartsAtOnce];
      UNROLLED
      for (int i = 0; i < kPartsAtOnce; i++) {
        values[i] = s + i < count ? parts[(begin + s + i) * size + column] : 0.f;
      }
      UNROLLED
      for (int i = 0; i < kPartsAtOnce; i++) sum += of_lane(factor, s + i) * values[i];
    }
  }
  for (int d = kWarp / 2; d; d /= 2) weights += from_lane(weights, d);
  a.y[static_cast<long>(block()) * a.head_size + column] = T::narrow(sum / weights);
}

}  // namespace device
