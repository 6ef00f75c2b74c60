// The attention of one warp in decode steps; decode_attention.h divides the work among warps.
#pragma once

#include "arguments.h"
#include "rotary.h"
#include "thread.h"

namespace device {

constexpr int kAttentionThreads = 128, kAttentionWarps = kAttentionThreads / kWarp;
constexpr int kBlockHeads = 8;  // query heads per thread block
constexpr int kTokens = 16;  // cached tokens per iteration of a warp
constexpr int kStride = kAttentionWarps * kTokens;

// Rotates `Count` vectors of a head by the angles of a position. All loads start before the first
// loaded value is used.
template <typename T, int Count>
struct Rotated {
  Words x[Count], others[Count], cosines[Count], sines[Count];

  // Loads the vectors that begin at elements first, first + step, …; zeros if `is_needed` is false.
  void load(const DecodeAttentionArguments<T>& a, const T* head, int position, int first, int step,
            bool is_needed) {
    const long angles = static_cast<long>(position) * (a.rotary_size / 2);
    UNROLLED
    for (int i = 0; i < Count; i++) {
      const int at = first + i * step;
      const bool is_rotated = is_needed && at < a.rotary_size;
      const Rotation rotation = Rotation::of(at, a.rotary_size, a.is_interleaved);
          // Neighbours share an angle, so a vector needs 4 angles: one half of the loaded vector.
      const int angle = a.is_interleaved ? rotation.angle / kWide * kWide : rotation.angle;
      x[i] = load_if(is_needed, head + at);
      others[i] = load_if(is_rotated && !a.is_interleaved, head + rotation.other);
      cosines[i] = load_if(is_rotated, a.cosines + angles + angle);
      sines[i] = load_if(is_rotated, a.sines + angles + angle);
    }
  }

  // Returns the rotated vector `i`, which begins at element `at`, rounded to T.
  Words result(const DecodeAttentionArguments<T>& a, int i, int at) const {
    if (at >= a.rotary_size) return x[i];
    const Wide<T> value = Wide<T>::of(x[i]), other = Wide<T>::of(others[i]);
    const Wide<T> cosine = Wide<T>::of(cosines[i]), sine = Wide<T>::of(sines[i]);
    const bool is_high = at / 2 % kWide != 0;  // whether the angles are in the upper half
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

// The part of the work that a block computes.
struct Part {
  int row, kv_head, first_head, num_heads;  // query heads, counted within the group of kv_head
  int split, begin, end;                    // the tokens [begin, end)
  int last;                                 // the position of the row's last token

  // Sets everything but the tokens; reads no memory that a kernel writes.
  template <typename T>
  explicit Part(const DecodeAttentionArguments<T>& a) {
    int index = block();
    split = index % a.num_splits;
    index /= a.num_splits;
    const int num_chunks = (a.group + kBlockHeads - 1) / kBlockHeads;
    first_head = index % num_chunks * kBlockHeads;
    index /= num_chunks;
    num_heads = a.group - first_head < kBlockHeads ? a.group - first_head : kBlockHeads;
    kv_head = index % a.num_kv_heads;
    row = index / a.num_kv_heads;
  }

  // Sets the tokens, after wait_for_previous(): the previous kernel may write the positions.
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

// The state of a warp, whose lanes hold matrix fragments as mma() defines them. The elements of a
// head along k are permuted, alike in queries and keys, so that a lane loads 8 consecutive elements
// of each step of 32. column() gives the order of a value's elements.
template <typename T, int Head>
struct WarpAttention {
  static constexpr int kSteps = Head / 32;
  static constexpr int kWhole = Head / 64;  // value vectors of which a lane uses all 8 elements
  static constexpr int kPairs = Head / 16;  // pairs of elements of a value that a lane holds
  // Values are loaded in parts of up to 128 elements, for lack of registers.
  static constexpr int kParts = (Head + 127) / 128;
  static constexpr int kVectors = (Head / kParts + 63) / 64, kPartPairs = kPairs / kParts;

  const DecodeAttentionArguments<T>& a;
  const Part& part;
  const T *keys, *values;  // of this row and key/value head
  const int group_id = lane() / 4, thread_in_group = lane() % 4;
  const float scale;  // turns scores into exponents of 2; with softcap, of exp(2 x) in tanh
  Words query[kSteps];       // of head group_id
  Words key[2][kSteps];      // of tokens group_id and group_id + 8 of 16
  Words value[4][kVectors];  // of tokens 2t, 2t + 1, 2t + 8 and 2t + 9; t = thread_in_group
  float output[kPairs][4] = {};  // unnormalized, of heads 2t and 2t + 1; elements: see column()
  // The online softmax of head group_id; until run() ends, the sum covers the lane's tokens only.
  float running_max = -__builtin_inff(), running_sum = 0.f;

  WarpAttention(const DecodeAttentionArguments<T>& arguments, const Part& of_block, long cache)
      : a(arguments), part(of_block), keys(a.keys + cache), values(a.values + cache),
        scale(a.scale * kLog2E * (a.softcap > 0.f ? 2.f / a.softcap : 1.f)) {}

  void load_queries(const T* head) {
    constexpr int kAtOnce = kSteps < 4 ? kSteps : 4;
    UNROLLED
    for (int begin = 0; begin < kSteps; begin += kAtOnce) {
      const int first = begin * 32 + thread_in_group * kWide;
      Rotated<T, kAtOnce> rotated;
      rotated.load(a, head + group_id * Head, part.last, first, 32, group_id < part.num_heads);
      UNROLLED
      for (int i = 0; i < kAtOnce; i++) {
        query[begin + i] = rotated.result(a, i, first + i * 32);
      }
    }
  }

  void load_keys(int first) {
    UNROLLED
    for (int half = 0; half < 2; half++) {
      const int token = first + half * 8 + group_id;
      const T* from = keys + static_cast<long>(token) * Head + thread_in_group * kWide;
      UNROLLED
      for (int step = 0; step < kSteps; step++) {
        key[half][step] = load_or_leave(token < part.end, from + step * 32);
      }
    }
  }

  void load_values(int first, int value_part) {
    UNROLLED
    for (int i = 0; i < 4; i++) {
      const int token = first + i / 2 * 8 + thread_in_group * 2 + i % 2;
      const T* from = values + static_cast<long>(token) * Head + value_part * 128;
      UNROLLED
      for (int v = 0; v < kVectors; v++) {
        const int at = v * 64 + (v < kWhole ? group_id : group_id / 2) * kWide;
        value[i][v] = load_if(token < part.end, from + at);
      }
    }
  }

  // The first element of the pair `pair` in the head.
  int column(int pair) const {
    return pair / 4 * 64 + pair % 4 * 2 + group_id * (pair / 4 < kWhole ? 8 : 4);
  }

  uint value_pair(int token, int pair) const {
    const Words& words = value[token][pair / 4];
    if (pair / 4 < kWhole) return words[pair % 4];
    return select(words[pair % 4], words[2 + pair % 4], group_id % 2);
  }

  // One step of the online softmax, over the 16 tokens from `first` on (FlashAttention-2, algorithm
  // 1): updates the maximum and sum of head group_id and rescales `output`. weights: exp2(score -
  // running_max) of the lane's tokens, two to a word.
  void softmax_block(int first, uint (&weights)[2]) {
    // Rows 0 to 7 of A hold the first two words of each lane's query vector, rows 8 to 15 the last
    // two: only one half of each product's rows is used.
    float low[2][4] = {}, high[2][4] = {};
    UNROLLED
    for (int step = 0; step < kSteps; step++) {
      const Words& q = query[step];
      UNROLLED
      for (int half = 0; half < 2; half++) {
        const Words& k = key[half][step];
        mma<T::kIsBFloat>(low[half], {q[0], q[2], q[1], q[3]}, {k[0], k[1]});
        mma<T::kIsBFloat>(high[half], {q[0], q[2], q[1], q[3]}, {k[2], k[3]});
      }
    }
    float scores[4], largest = running_max;
    UNROLLED
    for (int i = 0; i < 4; i++) {
      float score = (low[i / 2][i % 2] + high[i / 2][2 + i % 2]) * scale;
      if (a.softcap > 0.f) {  // tanh; it is 1 where exp2() is infinite
        score = a.softcap * kLog2E * (1.f - 2.f * reciprocal(exp2(score) + 1.f));
      }
      const bool is_needed = first + i / 2 * 8 + thread_in_group * 2 + i % 2 < part.end;
      scores[i] = is_needed ? score : -__builtin_inff();
      largest = __builtin_fmaxf(largest, scores[i]);
    }
    largest = __builtin_fmaxf(largest, shuffle_xor(largest, 1));
    largest = __builtin_fmaxf(largest, shuffle_xor(largest, 2));
    const float factor = exp2(running_max - largest);
    running_max = largest;
    running_sum *= factor;
    UNROLLED
    for (int i = 0; i < 4; i++) {
      scores[i] = exp2(scores[i] - largest);
      running_sum += scores[i];
    }
    UNROLLED
    for (int half = 0; half < 2; half++) {
      weights[half] = T::pair(scores[half * 2], scores[half * 2 + 1]);
    }
    const float factors[] = {shuffle_idx(factor, thread_in_group * 8),
                             shuffle_idx(factor, thread_in_group * 8 + 4)};
    UNROLLED
    for (int p = 0; p < kPairs; p++) {
      UNROLLED
      for (int i = 0; i < 4; i++) output[p][i] *= factors[i % 2];
    }
  }

  void add_values(const uint (&weights)[2], int value_part) {
    UNROLLED
    for (int p = 0; p < kPartPairs; p++) {
      const uint x = value_pair(0, p), y = value_pair(1, p);
      const uint z = value_pair(2, p), w = value_pair(3, p);
      mma<T::kIsBFloat>(output[value_part * kPartPairs + p],
                        {low_halves(x, y), high_halves(x, y), low_halves(z, w), high_halves(z, w)},
                        weights);
    }
  }

  void load_first() {
    load_keys(part.begin + warp() * kTokens);
    load_values(part.begin + warp() * kTokens, 0);
  }

  // Call it after load_first(). The loads of the next tokens start as soon as registers are free.
  void run() {
    for (int first = part.begin + warp() * kTokens; first < part.end; first += kStride) {
      uint weights[2];
      softmax_block(first, weights);
      load_keys(first + kStride);
      UNROLLED
      for (int value_part = 0; value_part < kParts; value_part++) {
        if (value_part) load_values(first, value_part);
        add_values(weights, value_part);
      }
      load_values(first + kStride, 0);
    }
    running_sum += shuffle_xor(running_sum, 1);
    running_sum += shuffle_xor(running_sum, 2);
  }
};

}  // namespace device
