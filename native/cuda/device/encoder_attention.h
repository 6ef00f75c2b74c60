// Attention of encoders: each token of a text attends to the text's first `lengths` tokens.
//
// A block computes 128 queries of a head, or 64 of a head wider than 64. Each of its 4 warps has a
// quarter of them, on tensor cores, as FlashAttention-2 does (Dao 2023). Tiles of keys and values
// are double-buffered in shared memory: one is copied while the block computes with the other.
#pragma once

#include "warp_queries.h"

namespace device {

// Starts to copy the tile whose first token is `first`; writes zeros for tokens from `end` on.
template <typename T, int Head>
inline void start_tile(KvTile<T, Head>& tile, const EncoderAttentionArguments<T>& a, const T* keys,
                       const T* values, int first, int end) {
  constexpr int kRow = Head / kWide, kCount = KvTile<T, Head>::kTokens * kRow / kEncoderThreads;
  UNROLLED
  for (int i = 0; i < kCount; i++) {
    const int index = i * kEncoderThreads + thread(), row = index / kRow;
    const int column = index % kRow * kWide, token = first + row;
    const long from = static_cast<long>(token) * a.key_stride + column;
    start_copy(&tile.keys[row][column], keys + from, token < end);
    start_copy(&tile.values[row][column], values + from, token < end);
  }
}

template <typename T, int Head>
inline void attend_text(const EncoderAttentionArguments<T>& a) {
  expect_threads<kEncoderThreads, Head <= 64 ? 3 : 2>();
  SHARED Words memory[2 * sizeof(KvTile<T, Head>) / sizeof(Words)];
  KvTile<T, Head>* tiles = (KvTile<T, Head>*)memory;
  constexpr int kTokens = KvTile<T, Head>::kTokens;
  let_next_start();
  int index = block();
  constexpr int kBlockQueries = block_queries(Head);
  const int num_parts = (a.length + kBlockQueries - 1) / kBlockQueries;
  const int first = index % num_parts * kBlockQueries + warp() * kBlockQueries / kEncoderWarps;
  index /= num_parts;
  const int head = index % a.num_heads, text = index / a.num_heads;
  const int kv_head = head / (a.num_heads / a.num_kv_heads);
  wait_for_previous();
  const int given = a.lengths[text], end = given < 1 ? 1 : given > a.length ? a.length : given;
  const long row = static_cast<long>(text) * a.length;
  const T* keys = a.key + row * a.key_stride + kv_head * Head;
  const T* values = a.value + row * a.key_stride + kv_head * Head;
  start_tile(tiles[0], a, keys, values, 0, end);
  end_copies();
  // The bias of keys adds the same to all scores of a query, so it cancels in the softmax. The bias
  // of values is added to the output, since the weights sum to 1.
  const T* bias_of_query = a.bias ? a.bias + head * Head : nullptr;
  const T* bias_of_value =
      a.bias ? a.bias + (a.num_heads + a.num_kv_heads + kv_head) * Head : nullptr;
  WarpQueries<T, Head> queries;
  queries.load(a, a.query + row * a.query_stride + head * Head, bias_of_query, first);
  const float scale = a.scale * kLog2E;
  int current = 0;
  for (int token = 0; token < end; token += kTokens) {
    if (token + kTokens < end) {
      start_tile(tiles[1 - current], a, keys, values, token + kTokens, end);
    }
    end_copies();
    wait_for_earlier_copies();  // of the tile before
    wait_for_block();
    if (first < a.length) queries.attend(tiles[current], end - token, scale);
    wait_for_block();  // the next copies overwrite this tile
    current = 1 - current;
  }
  queries.store(a, a.y + row * a.y_stride + head * Head, bias_of_value, first);
}

}  // namespace device
