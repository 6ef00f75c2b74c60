// Attention of encoders: every token of a text to the text's first tokens.
//
// A block computes 128 queries of a head, or 64 of a wide one, each of its warps a quarter of them,
// on tensor cores, as FlashAttention-2 does (Dao 2023). Keys and values come to shared memory in
// tiles, while the block computes with the tile before.
#pragma once

#include "warp_queries.h"

namespace device {

// Starts the copies of the tokens of a tile from `first` on; zeros beyond `end`.
template <typename T, int Head>
inline void start_tile(Tile<T, Head>& tile, const EncoderAttentionArguments<T>& a, const T* keys,
                       const T* values, int first, int end) {
  constexpr int kRow = Head / kWide, kCount = Tile<T, Head>::kTokens * kRow / kEncoderThreads;
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
  SHARED Words memory[2 * sizeof(Tile<T, Head>) / sizeof(Words)];
  Tile<T, Head>* tiles = (Tile<T, Head>*)memory;
  constexpr int kTokens = Tile<T, Head>::kTokens;
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
  // A bias of the keys adds the same to all scores of a query, and so changes no weight. One of the
  // values is added to their weighted mean.
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
