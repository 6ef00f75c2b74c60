// Attention of one new token of each row, which first joins the cache.
//
// A block computes up to 8 query heads of a row that share keys and values, over a part of the
// tokens. Its warps each compute with every fourth 16 of them, on tensor cores, as FlashAttention-2
// does (Dao 2023): queries times keys, then values times weights. Parts of a row are combined by a
// kernel of their own.
#pragma once

#include "warp_attention.h"

namespace device {

constexpr int kMaxHead = 256;
constexpr int kPartsAtOnce = 16;  // whose loads a thread starts together: a divisor of kWarp

template <typename T, int Head>
inline void attend(const DecodeAttentionArguments<T>& a) {
  expect_threads<kAttentionThreads, Head <= 64 ? 4 : 2>();
  SHARED float outputs[kAttentionWarps][kQueries][Head + 1];
  SHARED float maxima[kAttentionWarps][kQueries], sums[kAttentionWarps][kQueries];
  let_next_start();
  Part part(a);
  const long kv_row = static_cast<long>(part.row) * a.num_kv_heads + part.kv_head;
  const long cache = kv_row * a.capacity * Head;
  const long first_head = part.kv_head * a.group + part.first_head;
  const long row = part.row * a.query_stride;
  wait_for_previous();
  part.find_tokens(a);
  WarpAttention<T, Head> of_warp(a, part, cache);
  of_warp.load_first();
  of_warp.load_queries(a.query + row + first_head * Head);
  if (a.new_key && part.has(part.last)) {
    // All blocks of these keys and values that need the new ones write them, the same.
    const int i = thread() % (Head / kWide) * kWide;
    const long to = cache + static_cast<long>(part.last) * Head + i;
    const long from = row + part.kv_head * Head;
    if (thread() < Head / kWide) {
      Rotated<T, 1> key;
      key.load(a, a.new_key + from, part.last, i, 0, true);
      *reinterpret_cast<Words*>(a.keys + to) = key.result(a, 0, i);
    } else if (thread() < 2 * Head / kWide) {
      *reinterpret_cast<Words*>(a.values + to) =
          *reinterpret_cast<const Words*>(a.new_value + from + i);
    }
    wait_for_block();
    if ((part.last - part.begin) / kTokens == warp()) of_warp.load_first();
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
  // Threads next to each other have the columns of a head in turn.
  constexpr int kThreadsOfHead = kAttentionThreads / kQueries;
  const int head = thread() / kThreadsOfHead;
  if (head >= part.num_heads) return;
  float factors[kAttentionWarps], largest = maxima[0][head], weight = 0.f;
  UNROLLED
  for (int w = 1; w < kAttentionWarps; w++) largest = __builtin_fmaxf(largest, maxima[w][head]);
  UNROLLED
  for (int w = 0; w < kAttentionWarps; w++) {
    const float of_tokens = sums[w][head];  // 0 if the warp had none
    factors[w] = of_tokens == 0.f ? 0.f : exp2(maxima[w][head] - largest);
    weight += factors[w] * of_tokens;
  }
  const float scale = a.num_splits == 1 ? 1.f / weight : 1.f;
  const long at = part.row * static_cast<long>(a.num_heads) + first_head + head;
  float* to = a.parts + (at * a.num_splits + part.split) * (Head + 2);
  UNROLLED
  for (int i = 0; i < Head / kThreadsOfHead; i++) {
    const int column = i * kThreadsOfHead + thread() % kThreadsOfHead;
    float total = 0.f;
    UNROLLED
    for (int w = 0; w < kAttentionWarps; w++) total += factors[w] * outputs[w][head][column];
    if (a.num_splits == 1) {
      a.y[at * Head + column] = T::narrow(total * scale);
    } else {
      to[column] = total;
    }
  }
  if (a.num_splits > 1 && thread() % kThreadsOfHead == 0) {
    to[Head] = largest;
    to[Head + 1] = weight;
  }
}

// Combines the parts of a head: a block for each row and head, with a thread for each element.
template <typename T>
inline void combine_parts(const DecodeAttentionArguments<T>& a) {
  expect_threads<kMaxHead, 4>();
  let_next_start();
  const int size = a.head_size + 2, column = thread();
  const float* parts = a.parts + static_cast<long>(block()) * a.num_splits * size;
  const float* maxima = parts + a.head_size;
  wait_for_previous();
  float values[kPartsAtOnce];
  const auto load_values = [&](int first) {  // parts beyond the end have the factor 0
    UNROLLED
    for (int i = 0; i < kPartsAtOnce; i++) {
      const int part = first + i < a.num_splits ? first + i : 0;
      values[i] = load(parts + part * size + column);
    }
  };
  load_values(0);
  float largest = -__builtin_inff();
  for (int s = lane(); s < a.num_splits; s += kWarp) {
    largest = __builtin_fmaxf(largest, maxima[s * size]);
  }
  for (int d = kWarp / 2; d; d /= 2) largest = __builtin_fmaxf(largest, from_lane(largest, d));
  float sum = 0.f, weight = 0.f, factor = 0.f;
  for (int first = 0; first < a.num_splits; first += kPartsAtOnce) {
    if (first % kWarp == 0) {  // the lane's part; 0 of one without tokens
      const int own = first + lane();
      factor = own < a.num_splits ? exp2(maxima[own * size] - largest) : 0.f;
      weight += own < a.num_splits ? factor * maxima[own * size + 1] : 0.f;
    }
    UNROLLED
    for (int i = 0; i < kPartsAtOnce; i++) {
      sum += of_lane(factor, (first + i) % kWarp) * values[i];
    }
    if (first + kPartsAtOnce < a.num_splits) load_values(first + kPartsAtOnce);
  }
  for (int d = kWarp / 2; d; d /= 2) weight += from_lane(weight, d);
  a.y[static_cast<long>(block()) * a.head_size + column] = T::narrow(sum / weight);
}

}  // namespace device
