// The attention of one warp to a tile of keys and values; encoder_attention.h divides the work.
#pragma once

#include "arguments.h"
#include "thread.h"

namespace device {

constexpr int kEncoderWarps = 4, kEncoderThreads = kEncoderWarps * kWarp;
constexpr int kTileQueries = 16;  // rows of an mma

// Query tiles per warp, which share the fragments of keys and values that it loads: two, or one for
// wide heads, which need more registers.
template <int Head>
constexpr int kQueryTiles = block_queries(Head) / (kEncoderWarps * kTileQueries);

// A tile of keys and values in shared memory. Row pitches avoid bank conflicts: an odd multiple of
// 64 bytes for keys, a multiple of 64 bytes plus 16 for values.
template <typename T, int Head>
struct KvTile {
  static constexpr int kTokens = 32;
  static constexpr int kKeyPitch = Head % 64 ? Head : Head + 32;
  static constexpr int kValuePitch = Head + 8;

  T keys[kTokens][kKeyPitch];
  T values[kTokens][kValuePitch];
};

// The state of a warp, whose lanes hold matrix fragments as mma() defines them. The elements of a
// head along k are permuted, alike in queries and keys, so that a lane loads 8 consecutive elements
// of each step of 32. store() describes the order of a value's elements.
template <typename T, int Head>
struct WarpQueries {
  using KvTile = device::KvTile<T, Head>;
  static constexpr int kSteps = Head / 32;
  static constexpr int kWhole = Head / 64;  // groups of 64 elements of a value
  static constexpr int kPairs = Head / 16;  // pairs of elements of a value that a lane holds
  static constexpr int kFragments = KvTile::kTokens / 8;  // score fragments: 16 queries, 8 tokens

  // 16 queries. Index q of the arrays [2] is the query group_id + 8 q.
  struct QueryTile {
    Words query[2][kSteps];
    float even[kPairs][4], odd[kPairs][4];  // unnormalized outputs: see store()
    float running_max[2], running_sum[2];   // the sum is over the lane's tokens
    float scores[kFragments][4];  // of both queries, for tokens 2t and 2t + 1; t = thread_in_group
  };

  const int group_id = lane() / 4, thread_in_group = lane() % 4;
  QueryTile query_tiles[kQueryTiles<Head>];

  WarpQueries() {
    UNROLLED
    for (QueryTile& tile : query_tiles) {
      UNROLLED
      for (int p = 0; p < kPairs; p++) {
        UNROLLED
        for (int i = 0; i < 4; i++) tile.even[p][i] = tile.odd[p][i] = 0.f;
      }
      UNROLLED
      for (int q = 0; q < 2; q++) {
        tile.running_max[q] = -__builtin_inff();
        tile.running_sum[q] = 0.f;
      }
    }
  }

  int row(int first, int tile, int q) const {
    return first + tile * kTileQueries + group_id + 8 * q;
  }

  // Loads the queries from `first` on and adds the bias.
  void load(const EncoderAttentionArguments<T>& a, const T* queries, const T* bias, int first) {
    UNROLLED
    for (int s = 0; s < kQueryTiles<Head>; s++) {
      UNROLLED
      for (int q = 0; q < 2; q++) {
        const int at = row(first, s, q);
        const T* from = queries + static_cast<long>(at) * a.query_stride + thread_in_group * kWide;
        UNROLLED
        for (int step = 0; step < kSteps; step++) {
          query_tiles[s].query[q][step] = load_if(at < a.length, from + step * 32);
        }
      }
    }
    if (!bias) return;
    UNROLLED
    for (int step = 0; step < kSteps; step++) {
      const Wide<T> added = Wide<T>::load(bias + step * 32 + thread_in_group * kWide);
      UNROLLED
      for (QueryTile& tile : query_tiles) {
        UNROLLED
        for (int q = 0; q < 2; q++) {
          Wide<T> wide = Wide<T>::of(tile.query[q][step]);
          UNROLLED
          for (int i = 0; i < kWide; i++) wide.values[i] += added.values[i];
          tile.query[q][step] = wide.narrowed();
        }
      }
    }
  }

  // scale > 0 turns scores into exponents of 2. num_left: tokens to attend to from this tile on.
  void attend(const KvTile& kv_tile, int num_left, float scale) {
    multiply_keys(kv_tile);
    UNROLLED
    for (QueryTile& tile : query_tiles) {
      if (num_left < KvTile::kTokens) mask_scores(tile, num_left);
      const float factors[] = {softmax_block(tile, 0, scale), softmax_block(tile, 1, scale)};
      if (any_lane(factors[0] != 1.f || factors[1] != 1.f)) rescale(tile, factors);
    }
    add_values(kv_tile);
  }

  void multiply_keys(const KvTile& kv_tile) {
    UNROLLED
    for (int f = 0; f < kFragments; f++) {
      UNROLLED
      for (QueryTile& tile : query_tiles) {
        UNROLLED
        for (int i = 0; i < 4; i++) tile.scores[f][i] = 0.f;
      }
      UNROLLED
      for (int step = 0; step < kSteps; step++) {
        const T* from = &kv_tile.keys[f * 8 + group_id][step * 32 + thread_in_group * kWide];
        const Words k = *reinterpret_cast<const Words*>(from);
        UNROLLED
        for (QueryTile& tile : query_tiles) {
          const Words &x = tile.query[0][step], &y = tile.query[1][step];
          mma<T::kIsBFloat>(tile.scores[f], {x[0], y[0], x[1], y[1]}, {k[0], k[1]});
          mma<T::kIsBFloat>(tile.scores[f], {x[2], y[2], x[3], y[3]}, {k[2], k[3]});
        }
      }
    }
  }

  // Masks the scores of tokens from `num_left` on.
  void mask_scores(QueryTile& tile, int num_left) const {
    UNROLLED
    for (int f = 0; f < kFragments; f++) {
      UNROLLED
      for (int i = 0; i < 4; i++) {
                if (f * 8 + thread_in_group * 2 + i % 2 >= num_left) {
                  tile.scores[f][i] = -__builtin_inff();
                }
      }
    }
  }

  // One step of the online softmax (FlashAttention-2, algorithm 1): updates the maximum and sum of
  // query q, and replaces its scores by exp2((score - running_max) scale). Returns the factor by
  // which the caller rescales the query's output.
  float softmax_block(QueryTile& tile, int q, float scale) const {
    float largest = tile.running_max[q];
    UNROLLED
    for (int f = 0; f < kFragments; f++) {
      const float* scores = tile.scores[f] + 2 * q;
      largest = __builtin_fmaxf(largest, __builtin_fmaxf(scores[0], scores[1]));
    }
    largest = __builtin_fmaxf(largest, shuffle_xor(largest, 1));
    largest = __builtin_fmaxf(largest, shuffle_xor(largest, 2));
    const float factor = exp2((tile.running_max[q] - largest) * scale);
    const float offset = largest * scale;
    tile.running_max[q] = largest;
    tile.running_sum[q] *= factor;
    UNROLLED
    for (int f = 0; f < kFragments; f++) {
      UNROLLED
      for (int i = 2 * q; i < 2 * q + 2; i++) {
        tile.scores[f][i] = exp2(tile.scores[f][i] * scale - offset);
        tile.running_sum[q] += tile.scores[f][i];
      }
    }
    return factor;
  }

  static void rescale(QueryTile& tile, const float (&factors)[2]) {
    UNROLLED
    for (int p = 0; p < kPairs; p++) {
      UNROLLED
      for (int i = 0; i < 4; i++) {
        tile.even[p][i] *= factors[i / 2];
        tile.odd[p][i] *= factors[i / 2];
      }
    }
  }

  void add_values(const KvTile& kv_tile) {
    UNROLLED
    for (int f = 0; f < kFragments; f += 2) {  // 16 tokens: the k of an mma
      uint value[4][kPairs];  // of tokens 2t, 2t + 1, 2t + 8 and 2t + 9; t = thread_in_group
      UNROLLED
      for (int i = 0; i < 4; i++) {
        load_pairs(kv_tile.values[f * 8 + i / 2 * 8 + thread_in_group * 2 + i % 2], value[i]);
      }
      uint a_fragments[kQueryTiles<Head>][4];
      UNROLLED
      for (int s = 0; s < kQueryTiles<Head>; s++) {
        UNROLLED
        for (int i = 0; i < 4; i++) {
          const float* weights = query_tiles[s].scores[f + i / 2] + i % 2 * 2;
          a_fragments[s][i] = T::pair(weights[0], weights[1]);
        }
      }
      UNROLLED
      for (int p = 0; p < kPairs; p++) {
        const uint x = value[0][p], y = value[1][p], z = value[2][p], w = value[3][p];
        const uint low[] = {low_halves(x, y), low_halves(z, w)};
        const uint high[] = {high_halves(x, y), high_halves(z, w)};
        UNROLLED
        for (int s = 0; s < kQueryTiles<Head>; s++) {
          mma<T::kIsBFloat>(query_tiles[s].even[p], a_fragments[s], low);
          mma<T::kIsBFloat>(query_tiles[s].odd[p], a_fragments[s], high);
        }
      }
    }
  }

  // Loads the lane's elements of a value: 8 of each 64, and 4 of a remainder of 32.
  void load_pairs(const T* value, uint (&pairs)[kPairs]) const {
    UNROLLED
    for (int v = 0; v < kWhole; v++) {
      const Words words = *reinterpret_cast<const Words*>(value + v * 64 + group_id * kWide);
      UNROLLED
      for (int i = 0; i < 4; i++) pairs[v * 4 + i] = words[i];
    }
    if constexpr (Head % 64) {
      const uint* words = reinterpret_cast<const uint*>(value + kWhole * 64 + group_id * 4);
      pairs[kWhole * 4] = words[0];
      pairs[kWhole * 4 + 1] = words[1];
    }
  }

  // Normalizes the outputs of the queries from `first` on, adds the bias and writes them. A lane
  // holds 16 of each 64 columns, from 16 thread_in_group on: of each 8 of them, pair p has columns
  // 2p (even) and 2p + 1 (odd). It holds 8 of a remainder of 32 columns, in two pairs.
  void store(const EncoderAttentionArguments<T>& a, T* y, const T* bias, int first) const {
    UNROLLED
    for (int s = 0; s < kQueryTiles<Head>; s++) {
      UNROLLED
      for (int q = 0; q < 2; q++) {
        float sum = query_tiles[s].running_sum[q];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        const int at = row(first, s, q);
        T* to = y + static_cast<long>(at) * a.y_stride;
        UNROLLED
        for (int v = 0; v < Head / 32; v++) {
          const bool is_whole = v / 2 < kWhole;
          const int column =
              v / 2 * 64 + thread_in_group * (is_whole ? 16 : 8) + (is_whole ? v % 2 * kWide : 0);
          Wide<T> outputs;
          UNROLLED
          for (int i = 0; i < kWide; i++) {
            const int pair = v / 2 * 4 + (is_whole ? i / 2 : i / 2 % 2);
            const int place = 2 * q + (is_whole ? v % 2 : i / 4);
            const QueryTile& tile = query_tiles[s];
            const float total = i % 2 ? tile.odd[pair][place] : tile.even[pair][place];
            outputs.values[i] = total * (1.f / sum);
          }
          if (bias) {
            const Wide<T> added = Wide<T>::load(bias + column);
            UNROLLED
            for (int i = 0; i < kWide; i++) outputs.values[i] += added.values[i];
          }
          if (at < a.length) outputs.store(to + column);
        }
      }
    }
  }
};

}  // namespace device
