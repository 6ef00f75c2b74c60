// Attention of a warp: decode_attention.h divides the work.
#pragma once

#include "arguments.h"
#include "rotary.h"
#include "thread.h"

namespace device {

constexpr int kAttentionThreads = 128, kAttentionWarps = kAttentionThreads / kWarp;
constexpr int kQueries = 8;  // heads of a block
constexpr int kTokens = 16;  // that a warp reads at once
constexpr int kStride = kAttentionWarps * kTokens;

// Vectors of heads and the rotation by their position's angles. All loads start before the first
// value is used.
template <typename T, int Count>
struct Rotated {
  Words x[Count], others[Count], cosines[Count], sines[Count];

  // The vectors of a head from elements first, first + step, … on; zeros unless they are needed.
  void load(const DecodeAttentionArguments<T>& a, const T* head, int position, int first, int step,
            bool is_needed) {
    const long angles = static_cast<long>(position) * (a.rotary_size / 2);
    UNROLLED
    for (int i = 0; i < Count; i++) {
      const int at = first + i * step;
      const bool is_rotated = is_needed && at < a.rotary_size;
      const Rotation rotation = Rotation::of(at, a.rotary_size, a.is_interleaved);
      // Neighbours share an angle: 4 are needed, one half of the vector that is loaded.
      const int angle = a.is_interleaved ? rotation.angle / kWide * kWide : rotation.angle;
      x[i] = load_if(is_needed, head + at);
      others[i] = load_if(is_rotated && !a.is_interleaved, head + rotation.other);
      cosines[i] = load_if(is_rotated, a.cosines + angles + angle);
      sines[i] = load_if(is_rotated, a.sines + angles + angle);
    }
  }

  // Of the vector `i`, which begins at the element `at`; rounded as if stored.
  Words result(const DecodeAttentionArguments<T>& a, int i, int at) const {
    if (at >= a.rotary_size) return x[i];
    const Wide<T> value = Wide<T>::of(x[i]), other = Wide<T>::of(others[i]);
    const Wide<T> cosine = Wide<T>::of(cosines[i]), sine = Wide<T>::of(sines[i]);
    const bool is_high = at / 2 % kWide != 0;  // the needed half
    const Rotation whole = Rotation::of(at, a.rotary_size, false);
    Wide<T> rotated;
    UNROLLED
    for (int e = 0; e < kWide; e++) {
      if (a.is_interleaved) {
        const Rotation pair = Rotation::of(e, kWide, true);
        const int high = pair.angle + kWide / 2;
        rotated.values[e] = pair.rotate(
            value.values[e], value.values[pair.other],
            is_high ? cosine.values[high] : cosine.values[pair.angle],
            is_high ? sine.values[high] : sine.values[pair.angle]);
      } else {
        rotated.values[e] = whole.rotate(value.values[e], other.values[e], cosine.values[e],
                                         sine.values[e]);
      }
    }
    return rotated.narrowed();
  }
};

// Where a block is, and what it computes.
struct Part {
  int row, kv_head, first_head, num_heads;  // query heads, of those of the key/value head
  int split, begin, end;                    // tokens
  int last;                                 // the position of the row's last token

  // All but the tokens: by the arguments alone.
  template <typename T>
  explicit Part(const DecodeAttentionArguments<T>& a) {
    int index = block();
    split = index % a.num_splits;
    index /= a.num_splits;
    const int num_chunks = (a.group + kQueries - 1) / kQueries;
    first_head = index % num_chunks * kQueries;
    index /= num_chunks;
    num_heads = a.group - first_head < kQueries ? a.group - first_head : kQueries;
    kv_head = index % a.num_kv_heads;
    row = index / a.num_kv_heads;
  }

  // After the kernel before, which may have written the positions.
  template <typename T>
  void find_tokens(const DecodeAttentionArguments<T>& a) {
    int length = a.last_positions[row] + 1;
    length = length < 1 ? 1 : length > a.capacity ? a.capacity : length;
    last = length - 1;
    const int first = a.window > 0 && length > a.window ? length - a.window : 0;
    begin = first + split * a.split_size;
    end = begin + a.split_size;
    if (split == a.num_splits - 1 || end > length) end = length;
  }

  bool has(int token) const { return token >= begin && token < end; }
};

// What a warp computes. Its lanes have the parts of matrices that multiply_add() defines. Columns
// of queries and keys are in another order, the same for both: a lane loads 8 consecutive ones of
// each step of 32. Rows of transposed values are in the order in which lanes load them.
template <typename T, int Head>
struct WarpAttention {
  static constexpr int kSteps = Head / 32;
  static constexpr int kWhole = Head / 64;  // vectors of a token's value that a lane uses whole
  static constexpr int kPairs = Head / 16;  // of the value's elements, that a lane has
  // Of values, parts of up to 128 elements are loaded at once: a lane has no more registers.
  static constexpr int kParts = (Head + 127) / 128;
  static constexpr int kVectors = (Head / kParts + 63) / 64, kPartPairs = kPairs / kParts;

  const DecodeAttentionArguments<T>& a;
  const Part& part;
  const T *keys, *values;  // of the row's head
  const int group = lane() / 4, quarter = lane() % 4;
  const float scale;  // of products: to exponents of 2
  Words query[kSteps];         // of head `group`
  Words key[2][kSteps];        // of tokens `group` and `group` + 8 of 16
  Words value[4][kVectors];    // of tokens 2 `quarter`, the next one, and those 8 later
  float output[kPairs][4] = {};  // of heads 2 `quarter` and the next one; elements: see column()
  float maximum = -__builtin_inff(), sum = 0.f;  // of head `group`; the sum: of the lane's tokens

  WarpAttention(const DecodeAttentionArguments<T>& arguments, const Part& of_block, long cache)
      : a(arguments), part(of_block), keys(a.keys + cache), values(a.values + cache),
        scale(a.scale * kLog2E * (a.softcap > 0.f ? 2.f / a.softcap : 1.f)) {}

  void load_queries(const T* head) {
    constexpr int kAtOnce = kSteps < 4 ? kSteps : 4;
    UNROLLED
    for (int begin = 0; begin < kSteps; begin += kAtOnce) {
      const int first = begin * 32 + quarter * kWide;
      Rotated<T, kAtOnce> rotated;
      rotated.load(a, head + group * Head, part.last, first, 32, group < part.num_heads);
      UNROLLED
      for (int i = 0; i < kAtOnce; i++) {
        query[begin + i] = rotated.result(a, i, first + i * 32);
      }
    }
  }

  void load_keys(int first) {
    UNROLLED
    for (int half = 0; half < 2; half++) {
      const int token = first + half * 8 + group;
      const T* from = keys + static_cast<long>(token) * Head + quarter * kWide;
      UNROLLED
      for (int step = 0; step < kSteps; step++) {
        key[half][step] = load_or_leave(token < part.end, from + step * 32);
      }
    }
  }

  void load_values(int first, int value_part) {
    UNROLLED
    for (int i = 0; i < 4; i++) {
      const int token = first + i / 2 * 8 + quarter * 2 + i % 2;
      const T* from = values + static_cast<long>(token) * Head + value_part * 128;
      UNROLLED
      for (int v = 0; v < kVectors; v++) {
        const int at = v * 64 + (v < kWhole ? group : group / 2) * kWide;
        value[i][v] = load_if(token < part.end, from + at);
      }
    }
  }

  // The first element of a pair, of all parts.
  int column(int pair) const {
    return pair / 4 * 64 + pair % 4 * 2 + group * (pair / 4 < kWhole ? 8 : 4);
  }

  uint pair_of(int token, int pair) const {
    const Words& words = value[token][pair / 4];
    if (pair / 4 < kWhole) return words[pair % 4];
    return one_of(words[pair % 4], words[2 + pair % 4], group % 2);
  }

  // Weights of the 16 tokens from `first` on, relative to the largest score so far: of head
  // `group`, for the lane's tokens. Scales what was summed up before to them.
  void weigh(int first, uint (&weights)[2]) {
    // Rows 0 to 7 of the left matrix are the first words of each lane's columns of the queries,
    // rows 8 to 15 the last ones: of each product, one half of the rows is needed.
    float low[2][4] = {}, high[2][4] = {};
    UNROLLED
    for (int step = 0; step < kSteps; step++) {
      const Words& q = query[step];
      UNROLLED
      for (int half = 0; half < 2; half++) {
        const Words& k = key[half][step];
        multiply_add<T::kIsBFloat>(low[half], {q[0], q[2], q[1], q[3]}, {k[0], k[1]});
        multiply_add<T::kIsBFloat>(high[half], {q[0], q[2], q[1], q[3]}, {k[2], k[3]});
      }
    }
    float scores[4], largest = maximum;
    UNROLLED
    for (int i = 0; i < 4; i++) {
      float score = (low[i / 2][i % 2] + high[i / 2][2 + i % 2]) * scale;
      if (a.softcap > 0.f) {  // tanh, which is 1 where its power is infinite
        score = a.softcap * kLog2E * (1.f - 2.f * reciprocal(exp2(score) + 1.f));
      }
      const bool is_needed = first + i / 2 * 8 + quarter * 2 + i % 2 < part.end;
      scores[i] = is_needed ? score : -__builtin_inff();
      largest = __builtin_fmaxf(largest, scores[i]);
    }
    largest = __builtin_fmaxf(largest, from_lane(largest, 1));
    largest = __builtin_fmaxf(largest, from_lane(largest, 2));
    const float factor = exp2(maximum - largest);
    maximum = largest;
    sum *= factor;
    UNROLLED
    for (int i = 0; i < 4; i++) {
      scores[i] = exp2(scores[i] - largest);
      sum += scores[i];
    }
    UNROLLED
    for (int half = 0; half < 2; half++) {
      weights[half] = T::pair(scores[half * 2], scores[half * 2 + 1]);
    }
    const float factors[] = {of_lane(factor, quarter * 8), of_lane(factor, quarter * 8 + 4)};
    UNROLLED
    for (int p = 0; p < kPairs; p++) {
      UNROLLED
      for (int i = 0; i < 4; i++) output[p][i] *= factors[i % 2];
    }
  }

  void add_values(const uint (&weights)[2], int value_part) {
    UNROLLED
    for (int p = 0; p < kPartPairs; p++) {
      const uint x = pair_of(0, p), y = pair_of(1, p), z = pair_of(2, p), w = pair_of(3, p);
      multiply_add<T::kIsBFloat>(output[value_part * kPartPairs + p],
                                 {low_halves(x, y), high_halves(x, y), low_halves(z, w),
                                  high_halves(z, w)},
                                 weights);
    }
  }

  void load_first() {
    load_keys(part.begin + warp() * kTokens);
    load_values(part.begin + warp() * kTokens, 0);
  }

  // After load_first(). The loads of the next tokens start as soon as there is room for them.
  void run() {
    for (int first = part.begin + warp() * kTokens; first < part.end; first += kStride) {
      uint weights[2];
      weigh(first, weights);
      load_keys(first + kStride);
      UNROLLED
      for (int value_part = 0; value_part < kParts; value_part++) {
        if (value_part) load_values(first, value_part);
        add_values(weights, value_part);
      }
      load_values(first + kStride, 0);
    }
    sum += from_lane(sum, 1);
    sum += from_lane(sum, 2);
  }
};

}  // namespace device
