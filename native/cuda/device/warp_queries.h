// Attention of a warp to a tile of keys and values: encoder_attention.h divides the work.
#pragma once

#include "arguments.h"
#include "thread.h"

namespace device {

constexpr int kEncoderWarps = 4, kEncoderThreads = kEncoderWarps * kWarp;
constexpr int kSetQueries = 16;  // that a warp multiplies at once

// Sets of a warp, which share what it reads of a tile: two, or with wider heads, for which a lane has
// more in registers, one.
template <int Head>
constexpr int kSets = block_queries(Head) / (kEncoderWarps * kSetQueries);

// A tile of keys and values. Rows are apart so that the reads of a warp meet no conflict: those of
// keys by an odd multiple of 64 bytes, those of values by a multiple of 64 and 16 bytes.
template <typename T, int Head>
struct Tile {
  static constexpr int kTokens = 32;
  static constexpr int kKeyPitch = Head % 64 ? Head : Head + 32;
  static constexpr int kValuePitch = Head + 8;

  T keys[kTokens][kKeyPitch];
  T values[kTokens][kValuePitch];
};

// What a warp computes. Its lanes have the parts of matrices that multiply_add() defines. Columns
// of queries and keys are in another order, the same for both: a lane loads 8 consecutive ones of
// each step of 32. Columns of values are in the order in which lanes load them.
template <typename T, int Head>
struct WarpQueries {
  using TileOf = Tile<T, Head>;
  static constexpr int kSteps = Head / 32;
  static constexpr int kWhole = Head / 64;             // groups of 64 elements of a value
  static constexpr int kPairs = Head / 16;             // of a value's elements, that a lane has
  static constexpr int kEights = TileOf::kTokens / 8;  // of tokens of a tile

  // 16 queries. Two elements of arrays are of the queries `group` and `group` + 8.
  struct Set {
    Words query[2][kSteps];
    float even[kPairs][4], odd[kPairs][4];  // outputs: see store()
    float maxima[2], sums[2];               // sums: of the weights of the lane's tokens
    float scores[kEights][4];  // of both queries, for tokens 2 `quarter` and the next one of eight
  };

  const int group = lane() / 4, quarter = lane() % 4;
  Set sets[kSets<Head>];

  WarpQueries() {
    UNROLLED
    for (Set& set : sets) {
      UNROLLED
      for (int p = 0; p < kPairs; p++) {
        UNROLLED
        for (int i = 0; i < 4; i++) set.even[p][i] = set.odd[p][i] = 0.f;
      }
      UNROLLED
      for (int q = 0; q < 2; q++) {
        set.maxima[q] = -__builtin_inff();
        set.sums[q] = 0.f;
      }
    }
  }

  int row(int first, int set, int q) const { return first + set * kSetQueries + group + 8 * q; }

  // The queries from `first` on, after a bias.
  void load(const EncoderAttentionArguments<T>& a, const T* queries, const T* bias, int first) {
    UNROLLED
    for (int s = 0; s < kSets<Head>; s++) {
      UNROLLED
      for (int q = 0; q < 2; q++) {
        const int at = row(first, s, q);
        const T* from = queries + static_cast<long>(at) * a.query_stride + quarter * kWide;
        UNROLLED
        for (int step = 0; step < kSteps; step++) {
          sets[s].query[q][step] = load_if(at < a.length, from + step * 32);
        }
      }
    }
    if (!bias) return;
    UNROLLED
    for (int step = 0; step < kSteps; step++) {
      const Wide<T> added = Wide<T>::load(bias + step * 32 + quarter * kWide);
      UNROLLED
      for (Set& set : sets) {
        UNROLLED
        for (int q = 0; q < 2; q++) {
          Wide<T> wide = Wide<T>::of(set.query[q][step]);
          UNROLLED
          for (int i = 0; i < kWide; i++) wide.values[i] += added.values[i];
          set.query[q][step] = wide.narrowed();
        }
      }
    }
  }

  // `scale`: of scores, to exponents of 2, positive. `num_left`: tokens from the tile's first on.
  void attend(const TileOf& tile, int num_left, float scale) {
    multiply_keys(tile);
    UNROLLED
    for (Set& set : sets) {
      if (num_left < TileOf::kTokens) forget(set, num_left);
      const float factors[] = {weigh(set, 0, scale), weigh(set, 1, scale)};
      if (any_lane(factors[0] != 1.f || factors[1] != 1.f)) rescale(set, factors);
    }
    add_values(tile);
  }

  void multiply_keys(const TileOf& tile) {
    UNROLLED
    for (int e = 0; e < kEights; e++) {
      UNROLLED
      for (Set& set : sets) {
        UNROLLED
        for (int i = 0; i < 4; i++) set.scores[e][i] = 0.f;
      }
      UNROLLED
      for (int step = 0; step < kSteps; step++) {
        const T* from = &tile.keys[e * 8 + group][step * 32 + quarter * kWide];
        const Words k = *reinterpret_cast<const Words*>(from);
        UNROLLED
        for (Set& set : sets) {
          const Words &x = set.query[0][step], &y = set.query[1][step];
          multiply_add<T::kIsBFloat>(set.scores[e], {x[0], y[0], x[1], y[1]}, {k[0], k[1]});
          multiply_add<T::kIsBFloat>(set.scores[e], {x[2], y[2], x[3], y[3]}, {k[2], k[3]});
        }
      }
    }
  }

  // Scores of tokens that are not attended to.
  void forget(Set& set, int num_left) const {
    UNROLLED
    for (int e = 0; e < kEights; e++) {
      UNROLLED
      for (int i = 0; i < 4; i++) {
        if (e * 8 + quarter * 2 + i % 2 >= num_left) set.scores[e][i] = -__builtin_inff();
      }
    }
  }

  // Replaces the scores of a query by weights relative to its largest score so far. Returns by how
  // much the weights of tokens before change.
  float weigh(Set& set, int q, float scale) const {
    float largest = set.maxima[q];
    UNROLLED
    for (int e = 0; e < kEights; e++) {
      const float* scores = set.scores[e] + 2 * q;
      largest = __builtin_fmaxf(largest, __builtin_fmaxf(scores[0], scores[1]));
    }
    largest = __builtin_fmaxf(largest, from_lane(largest, 1));
    largest = __builtin_fmaxf(largest, from_lane(largest, 2));
    const float factor = exp2((set.maxima[q] - largest) * scale), offset = largest * scale;
    set.maxima[q] = largest;
    set.sums[q] *= factor;
    UNROLLED
    for (int e = 0; e < kEights; e++) {
      UNROLLED
      for (int i = 2 * q; i < 2 * q + 2; i++) {
        set.scores[e][i] = exp2(set.scores[e][i] * scale - offset);
        set.sums[q] += set.scores[e][i];
      }
    }
    return factor;
  }

  static void rescale(Set& set, const float (&factors)[2]) {
    UNROLLED
    for (int p = 0; p < kPairs; p++) {
      UNROLLED
      for (int i = 0; i < 4; i++) {
        set.even[p][i] *= factors[i / 2];
        set.odd[p][i] *= factors[i / 2];
      }
    }
  }

  void add_values(const TileOf& tile) {
    UNROLLED
    for (int e = 0; e < kEights; e += 2) {  // 16 tokens
      uint value[4][kPairs];  // of tokens 2 `quarter`, the next one, and those 8 later
      UNROLLED
      for (int i = 0; i < 4; i++) {
        load_pairs(tile.values[e * 8 + i / 2 * 8 + quarter * 2 + i % 2], value[i]);
      }
      uint left[kSets<Head>][4];
      UNROLLED
      for (int s = 0; s < kSets<Head>; s++) {
        UNROLLED
        for (int i = 0; i < 4; i++) {
          const float* weights = sets[s].scores[e + i / 2] + i % 2 * 2;
          left[s][i] = T::pair(weights[0], weights[1]);
        }
      }
      UNROLLED
      for (int p = 0; p < kPairs; p++) {
        const uint x = value[0][p], y = value[1][p], z = value[2][p], w = value[3][p];
        const uint low[] = {low_halves(x, y), low_halves(z, w)};
        const uint high[] = {high_halves(x, y), high_halves(z, w)};
        UNROLLED
        for (int s = 0; s < kSets<Head>; s++) {
          multiply_add<T::kIsBFloat>(sets[s].even[p], left[s], low);
          multiply_add<T::kIsBFloat>(sets[s].odd[p], left[s], high);
        }
      }
    }
  }

  // The lane's elements of a value: 8 of each 64, and 4 of the last 32 if there are.
  void load_pairs(const T* value, uint (&pairs)[kPairs]) const {
    UNROLLED
    for (int v = 0; v < kWhole; v++) {
      const Words words = *reinterpret_cast<const Words*>(value + v * 64 + group * kWide);
      UNROLLED
      for (int i = 0; i < 4; i++) pairs[v * 4 + i] = words[i];
    }
    if constexpr (Head % 64) {
      const uint* words = reinterpret_cast<const uint*>(value + kWhole * 64 + group * 4);
      pairs[kWhole * 4] = words[0];
      pairs[kWhole * 4 + 1] = words[1];
    }
  }

  // Writes the outputs of the queries from `first` on, after a bias. Of 64 columns, a lane has 16
  // from 16 `quarter` on: of each 8, pair p has columns 2p (even) and 2p + 1 (odd). Of the last 32
  // it has 8, of two pairs.
  void store(const EncoderAttentionArguments<T>& a, T* y, const T* bias, int first) const {
    UNROLLED
    for (int s = 0; s < kSets<Head>; s++) {
      UNROLLED
      for (int q = 0; q < 2; q++) {
        float sum = sets[s].sums[q];
        sum += from_lane(sum, 1);
        sum += from_lane(sum, 2);
        const int at = row(first, s, q);
        T* to = y + static_cast<long>(at) * a.y_stride;
        UNROLLED
        for (int v = 0; v < Head / 32; v++) {
          const bool is_whole = v / 2 < kWhole;
          const int column =
              v / 2 * 64 + quarter * (is_whole ? 16 : 8) + (is_whole ? v % 2 * kWide : 0);
          Wide<T> outputs;
          UNROLLED
          for (int i = 0; i < kWide; i++) {
            const int pair = v / 2 * 4 + (is_whole ? i / 2 : i / 2 % 2);
            const int place = 2 * q + (is_whole ? v % 2 : i / 4);
            const float total = i % 2 ? sets[s].odd[pair][place] : sets[s].even[pair][place];
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
