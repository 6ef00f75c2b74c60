// Attention of one new token of each row, whose key and value a block first appends to the cache.
//
// A block computes up to 8 query heads that share a key/value head of a row, over one split of the
// cached tokens (Flash-Decoding). Its 4 warps take turns at groups of 16 tokens. On tensor cores,
// they multiply queries and keys, then values and weights, with the online softmax of
// FlashAttention-2 (Dao 2023). combine_parts() combines the splits.
#pragma once

#include "warp_attention.h"

namespace device {

constexpr int kMaxHead = 256;
constexpr int kPartsAtOnce = 16;  // splits whose loads a thread starts together; divides kWarp

template <typename T, int Head>
inline void attend(const DecodeAttentionArguments<T>& a) {
  expect_threads<kAttentionThreads, Head <= 64 ? 4 : 2>();
  SHARED float outputs[kAttentionWarps][kBlockHeads][Head + 1];
  SHARED float maxima[kAttentionWarps][kBlockHeads], sums[kAttentionWarps][kBlockHeads];
  let_next_start();
  Part part(a);
  const long kv_row = static_cast<long>(part.row) * a.num_kv_heads + part.kv_head;
  const long cache = kv_row * a.capacity * Head;
  const long first_head = part.kv_head * a.group + part.first_head;
  const long row = part.row * a.query_stride;
  wait_for_previous();
  part.find_tokens(a);
  WarpAttention<T, Head> warp_attention(a, part, cache);
  warp_attention.load_first();
  warp_attention.load_queries(a.query + row + first_head * Head);
  if (a.new_key && part.has(part.last)) {
    // Every block that needs the new key and value writes them; all write the same bytes.
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
    if ((part.last - part.begin) / kTokens == warp()) warp_attention.load_first();
  }
  warp_attention.run();

  const int group_id = warp_attention.group_id, thread_in_group = warp_attention.thread_in_group;
  UNROLLED
  for (int p = 0; p < warp_attention.kPairs; p++) {
    UNROLLED
    for (int i = 0; i < 4; i++) {
      const int column = warp_attention.column(p) + i / 2;
      outputs[warp()][thread_in_group * 2 + i % 2][column] = warp_attention.output[p][i];
    }
  }
  if (thread_in_group == 0) {
    maxima[warp()][group_id] = warp_attention.running_max;
    sums[warp()][group_id] = warp_attention.running_sum;
  }
  wait_for_block();
  // Threads next to each other have consecutive columns of a head.
  constexpr int kThreadsOfHead = kAttentionThreads / kBlockHeads;
  const int head = thread() / kThreadsOfHead;
  if (head >= part.num_heads) return;
  float factors[kAttentionWarps], largest = maxima[0][head], weight = 0.f;
  UNROLLED
  for (int w = 1; w < kAttentionWarps; w++) largest = __builtin_fmaxf(largest, maxima[w][head]);
  UNROLLED
  for (int w = 0; w < kAttentionWarps; w++) {
    const float of_tokens = sums[w][head];  // 0 if the warp had no tokens
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

// Combines the splits of a head: one block for each row and head, one thread for each element.
template <typename T>
inline void combine_parts(const DecodeAttentionArguments<T>& a) {
  expect_threads<kMaxHead, 4>();
  let_next_start();
  const int size = a.head_size + 2, column = thread();
  const float* parts = a.parts + static_cast<long>(block()) * a.num_splits * size;
  const float* maxima = parts + a.head_size;
  wait_for_previous();
  float values[kPartsAtOnce];
  const auto load_values = [&](int first) {  // splits beyond the last have the factor 0
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
  for (int d = kWarp / 2; d; d /= 2) largest = __builtin_fmaxf(largest, shuffle_xor(largest, d));
  float sum = 0.f, weight = 0.f, factor = 0.f;
  for (int first = 0; first < a.num_splits; first += kPartsAtOnce) {
    if (first % kWarp == 0) {  // the factor of the lane's split; 0 without tokens
      const int own = first + lane();
      factor = own < a.num_splits ? exp2(maxima[own * size] - largest) : 0.f;
      weight += own < a.num_splits ? factor * maxima[own * size + 1] : 0.f;
    }
    UNROLLED
    for (int i = 0; i < kPartsAtOnce; i++) {
      sum += shuffle_idx(factor, (first + i) % kWarp) * values[i];
    }
    if (first + kPartsAtOnce < a.num_splits) load_values(first + kPartsAtOnce);
  }
  for (int d = kWarp / 2; d; d /= 2) weight += shuffle_xor(weight, d);
  a.y[static_cast<long>(block()) * a.head_size + column] = T::narrow(sum / weight);
}

}  // namespace device
