// Attention of encoders: every token of a text to the text's first tokens.
//
// A block computes 64 queries of a head, each of its warps 16 of them, on tensor cores, as
// FlashAttention-2 does (Dao 2023). Keys and values come to shared memory in tiles, while the block
// computes with the tile before.
#pragma once

#include "arguments.h"
#include "thread.h"

namespace device {

constexpr int kEncoderWarps = 4, kEncoderThreads = kEncoderWarps * kWarp;
constexpr int kWarpQueries = 16, kBlockQueries = kEncoderWarps * kWarpQueries;

// A tile of keys and values. Rows are apart so that the reads of a warp meet no conflict: those of
// keys by an odd multiple of 64 bytes, those of values by a multiple of 64 and 16 bytes.
template <typename T, int Head>
struct Tile {
  static constexpr int kTokens = Head <= 64 ? 64 : 32;
  static constexpr int kKeyPitch = Head % 64 ? Head : Head + 32;
  static constexpr int kValuePitch = Head + 8;

  T keys[kTokens][kKeyPitch];
  T values[kTokens][kValuePitch];
};

// What a warp computes. Its lanes have the parts of matrices that multiply_add() defines. Columns of
// queries and keys are in another order, the same for both: a lane loads 8 consecutive ones of each
// step of 32. Columns of values are in the order in which lanes load them.
template <typename T, int Head>
struct WarpQueries {
  using TileOf = Tile<T, Head>;
  static constexpr int kSteps = Head / 32;
  static constexpr int kWhole = Head / 64;  // vectors of a token's value that a lane uses whole
  static constexpr int kVectors = (Head + 63) / 64;
  static constexpr int kPairs = Head / 16;            // of a value's elements, that a lane has
  static constexpr int kEights = TileOf::kTokens / 8;  // of tokens of a tile

  const int group = lane() / 4, quarter = lane() % 4;
  Words low[kSteps], high[kSteps];    // of queries `group` and `group` + 8
  float even[kPairs][4], odd[kPairs][4];  // outputs: see store()
  float maxima[2], sums[2];               // of queries `group` and `group` + 8; sums: of the lane's

  WarpQueries() {
    UNROLLED
    for (int p = 0; p < kPairs; p++) {
      UNROLLED
      for (int i = 0; i < 4; i++) even[p][i] = odd[p][i] = 0.f;
    }
    UNROLLED
    for (int i = 0; i < 2; i++) {
      maxima[i] = -__builtin_inff();
      sums[i] = 0.f;
    }
  }

  // The queries from `first` on, after a bias.
  void load(const EncoderAttentionArguments<T>& a, const T* queries, const T* bias, int first) {
    UNROLLED
    for (int step = 0; step < kSteps; step++) {
      const int column = step * 32 + quarter * kWide;
      const T* from = queries + static_cast<long>(first + group) * a.query_stride + column;
      low[step] = load_if(first + group < a.length, from);
      high[step] = load_if(first + group + 8 < a.length, from + 8l * a.query_stride);
    }
    UNROLLED
    for (int step = 0; step < kSteps; step++) {
      if (!bias) break;
      const Wide<T> added = Wide<T>::load(bias + step * 32 + quarter * kWide);
      low[step] = sum(low[step], added);
      high[step] = sum(high[step], added);
    }
  }

  static Words sum(Words words, const Wide<T>& added) {
    Wide<T> wide = Wide<T>::of(words);
    wide.add(added);
    return wide.narrowed();
  }

  // `scale`: of scores, to exponents of 2, positive. `count`: tokens of the tile.
  void attend(const TileOf& tile, int count, float scale) {
    float scores[kEights][4];  // of both queries, for tokens 2 `quarter` and the next one of eight
    UNROLLED
    for (int e = 0; e < kEights; e++) {
      UNROLLED
      for (int i = 0; i < 4; i++) scores[e][i] = 0.f;
      UNROLLED
      for (int step = 0; step < kSteps; step++) {
        const T* from = &tile.keys[e * 8 + group][step * 32 + quarter * kWide];
        const Words k = *reinterpret_cast<const Words*>(from), &l = low[step], &h = high[step];
        multiply_add<T::kIsBFloat>(scores[e], {l[0], h[0], l[1], h[1]}, {k[0], k[1]});
        multiply_add<T::kIsBFloat>(scores[e], {l[2], h[2], l[3], h[3]}, {k[2], k[3]});
      }
    }
    if (count < TileOf::kTokens) {
      UNROLLED
      for (int e = 0; e < kEights; e++) {
        UNROLLED
        for (int i = 0; i < 4; i++) {
          const bool is_needed = e * 8 + quarter * 2 + i % 2 < count;
          if (!is_needed) scores[e][i] = -__builtin_inff();
        }
      }
    }
    UNROLLED
    for (int q = 0; q < 2; q++) weigh(scores, q, scale);
    add_values(tile, scores);
  }

  // Replaces the scores of a query by weights relative to its largest score so far.
  void weigh(float (&scores)[kEights][4], int q, float scale) {
    float largest = maxima[q];
    UNROLLED
    for (int e = 0; e < kEights; e++) {
      largest = __builtin_fmaxf(largest, __builtin_fmaxf(scores[e][2 * q], scores[e][2 * q + 1]));
    }
    largest = __builtin_fmaxf(largest, from_lane(largest, 1));
    largest = __builtin_fmaxf(largest, from_lane(largest, 2));
    const float factor = exp2((maxima[q] - largest) * scale), offset = largest * scale;
    maxima[q] = largest;
    sums[q] *= factor;
    UNROLLED
    for (int e = 0; e < kEights; e++) {
      UNROLLED
      for (int i = 2 * q; i < 2 * q + 2; i++) {
        scores[e][i] = exp2(scores[e][i] * scale - offset);
        sums[q] += scores[e][i];
      }
    }
    UNROLLED
    for (int p = 0; p < kPairs; p++) {
      UNROLLED
      for (int i = 2 * q; i < 2 * q + 2; i++) {
        even[p][i] *= factor;
        odd[p][i] *= factor;
      }
    }
  }

  void add_values(const TileOf& tile, const float (&weights)[kEights][4]) {
    UNROLLED
    for (int e = 0; e < kEights; e += 2) {  // 16 tokens
      const uint left[] = {T::pair(weights[e][0], weights[e][1]),
                           T::pair(weights[e][2], weights[e][3]),
                           T::pair(weights[e + 1][0], weights[e + 1][1]),
                           T::pair(weights[e + 1][2], weights[e + 1][3])};
      Words value[4][kVectors];  // of tokens 2 `quarter`, the next one, and those 8 later
      UNROLLED
      for (int i = 0; i < 4; i++) {
        const T* row = tile.values[e * 8 + i / 2 * 8 + quarter * 2 + i % 2];
        UNROLLED
        for (int v = 0; v < kVectors; v++) {
          const int at = v * 64 + (v < kWhole ? group : group / 2) * kWide;
          value[i][v] = *reinterpret_cast<const Words*>(row + at);
        }
      }
      const auto pair_of = [&](int token, int pair) {
        const Words& words = value[token][pair / 4];
        if (pair / 4 < kWhole) return words[pair % 4];
        return one_of(words[pair % 4], words[2 + pair % 4], group % 2);
      };
      UNROLLED
      for (int p = 0; p < kPairs; p++) {
        const uint x = pair_of(0, p), y = pair_of(1, p), z = pair_of(2, p), w = pair_of(3, p);
        multiply_add<T::kIsBFloat>(even[p], left, {low_halves(x, y), low_halves(z, w)});
        multiply_add<T::kIsBFloat>(odd[p], left, {high_halves(x, y), high_halves(z, w)});
      }
    }
  }

  // Writes the outputs of the queries from `first` on, after a bias. Of a whole vector of 64 columns,
  // a lane has 16 consecutive ones from 16 `quarter` on: of each 8, pair p has columns 2p (even) and
  // 2p + 1 (odd). Of the half of a vector it has 8.
  void store(const EncoderAttentionArguments<T>& a, T* y, const T* bias, int first) {
    UNROLLED
    for (int q = 0; q < 2; q++) {
      float sum = sums[q];
      sum += from_lane(sum, 1);
      sum += from_lane(sum, 2);
      const float factor = 1.f / sum;
      const int row = first + group + 8 * q;
      UNROLLED
      for (int v = 0; v < kVectors; v++) {
        const bool is_whole = v < kWhole;
        UNROLLED
        for (int part = 0; part < (is_whole ? 2 : 1); part++) {
          const int column = v * 64 + quarter * (is_whole ? 16 : 8) + part * kWide;
          Wide<T> outputs;
          UNROLLED
          for (int i = 0; i < kWide; i++) {
            // The half has 4 columns of each of two lanes' groups.
            const int pair = v * 4 + (is_whole ? i / 2 : i / 2 % 2);
            const int at = 2 * q + (is_whole ? part : i / 4);
            outputs.values[i] = (i % 2 ? odd[pair][at] : even[pair][at]) * factor;
          }
          if (bias) {
            const Wide<T> added = Wide<T>::load(bias + column);
            UNROLLED
            for (int i = 0; i < kWide; i++) outputs.values[i] += added.values[i];
          }
          if (row < a.length) outputs.store(y + static_cast<long>(row) * a.y_stride + column);
        }
      }
    }
  }
};

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
  const int num_parts = (a.length + kBlockQueries - 1) / kBlockQueries;
  const int first = index % num_parts * kBlockQueries + warp() * kWarpQueries;
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
  int current = 0;
  for (int token = 0; token < end; token += kTokens) {
    if (token + kTokens < end) {
      start_tile(tiles[1 - current], a, keys, values, token + kTokens, end);
    }
    end_copies();
    wait_for_copies();  // of the tile before
    wait_for_block();
    queries.attend(tiles[current], end - token, a.scale * 1.4426950408889634f);
    wait_for_block();  // the next copies overwrite this tile
    current = 1 - current;
  }
  queries.store(a, a.y + row * a.y_stride + head * Head, bias_of_value, first);
}

}  // namespace device
