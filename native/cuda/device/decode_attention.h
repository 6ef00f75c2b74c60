// Attention of one new token of each row, which first joins the cache.
//
// A block computes up to G query heads of a row that share keys and values, over a part of the tokens.
// Parts of a row are combined by a kernel of their own.
#pragma once

#include "arguments.h"
#include "rotary.h"
#include "thread.h"

namespace device {

constexpr int kAttentionThreads = 128, kAttentionWarps = kAttentionThreads / kWarp;
constexpr int kTile = 256;           // tokens whose scores are in shared memory at once
constexpr int kMaxHead = 128;
constexpr int kLoads = 4;            // vectors that a thread loads before it uses them

// An element of a head of `x` after the rotation by its position's angles, rounded as if stored.
template <typename T>
inline float rotated(const DecodeAttentionArguments<T>& a, const T* x, int position, int i) {
  const float value = T::widen(x[i]);
  if (i >= a.rotary_size) return value;
  const Rotation rotation = Rotation::of(i, a.rotary_size, a.is_interleaved);
  const long angle = static_cast<long>(position) * (a.rotary_size / 2) + rotation.angle;
  const float cosine = T::widen(a.cosines[angle]), sine = T::widen(a.sines[angle]);
  const float paired = T::widen(x[rotation.other]);
  return T::widen(T::narrow(rotation.rotate(value, paired, cosine, sine)));
}

// Where a block is, and what it computes.
struct Part {
  int row, kv_head, first_head, num_heads;  // query heads, of those of the key/value head
  int split, begin, end;                    // tokens
  int length;                               // of the row, with the new token

  template <typename T>
  static Part of(const DecodeAttentionArguments<T>& a, int heads_of_block) {
    Part part;
    int index = block();
    part.split = index % a.num_splits;
    index /= a.num_splits;
    const int num_chunks = (a.group + heads_of_block - 1) / heads_of_block;
    part.first_head = index % num_chunks * heads_of_block;
    index /= num_chunks;
    part.num_heads = a.group - part.first_head < heads_of_block ? a.group - part.first_head
                                                                : heads_of_block;
    part.kv_head = index % a.num_kv_heads;
    part.row = index / a.num_kv_heads;
    const int length = a.last_positions[part.row] + 1;
    part.length = length < 1 ? 1 : length > a.capacity ? a.capacity : length;
    const int first = a.window > 0 && part.length > a.window ? part.length - a.window : 0;
    part.begin = first + part.split * a.split_size;
    const bool is_last = part.split == a.num_splits - 1;
    const int end = part.begin + a.split_size;
    part.end = is_last || end > part.length ? part.length : end;
    return part;
  }
};

template <typename T, int G>
struct AttentionBlock {
  const DecodeAttentionArguments<T>& a;
  const Part part;
  const int lanes;   // of a token: each has one vector of a head
  const int piece;   // which
  const int stride;  // tokens that the block reads at once
  const int first;   // the thread's, of those
  const int new_token;  // its position; -1: all tokens are in the cache
  const long cache;     // where the keys and values of the row's head begin
  float (*queries)[kMaxHead], *new_key, *new_value, (*scores)[kTile];
  float *maxima, *sums, *factors;

  // Puts the queries, the new key and the new value into shared memory, and the latter two into the
  // cache.
  void prepare() {
    const int position = part.length - 1, head = a.head_size;
    const T* query = a.query + part.row * a.query_stride +
                     static_cast<long>(part.kv_head * a.group + part.first_head) * head;
    for (int i = thread(); i < part.num_heads * head; i += kAttentionThreads) {
      queries[i / head][i % head] = rotated(a, query + i / head * head, position, i % head) * a.scale;
    }
    const bool is_here = new_token >= part.begin && new_token < part.end;
    if (!is_here) return;
    const T* key = a.new_key + part.row * a.query_stride + static_cast<long>(part.kv_head) * head;
    const T* value = a.new_value + part.row * a.query_stride + static_cast<long>(part.kv_head) * head;
    for (int i = thread(); i < head; i += kAttentionThreads) {
      new_key[i] = rotated(a, key, position, i);
      new_value[i] = T::widen(value[i]);
      if (part.first_head != 0) continue;  // another block writes them
      a.keys[cache + static_cast<long>(position) * head + i] = T::narrow(new_key[i]);
      a.values[cache + static_cast<long>(position) * head + i] = value[i];
    }
  }

  // Calls use(token, vector) for each of the thread's tokens from `begin` to before `end` that the
  // cache has; all threads call it as often, with tokens at or beyond `end` too.
  template <typename F>
  void for_each(const T* from, int begin, int end, F use) {
    for (int base = begin; base < end; base += stride * kLoads) {
      Words words[kLoads];
      UNROLLED
      for (int i = 0; i < kLoads; i++) {
        const int token = base + i * stride + first;
        words[i] = load_if(token < end && token != new_token,
                           from + cache + static_cast<long>(token) * a.head_size + piece * kWide);
      }
      UNROLLED
      for (int i = 0; i < kLoads; i++) use(base + i * stride + first, Wide<T>::of(words[i]));
    }
  }

  float dot(const float (&query)[kWide], const float* values) const {
    float sum = 0.f;
    UNROLLED
    for (int i = 0; i < kWide; i++) sum += query[i] * values[i];
    for (int distance = lanes / 2; distance; distance /= 2) sum += from_lane(sum, distance);
    return sum;
  }

  void score(int begin, int end) {
    float query[G][kWide];
    UNROLLED
    for (int g = 0; g < G; g++) {
      UNROLLED
      for (int i = 0; i < kWide; i++) query[g][i] = queries[g][piece * kWide + i];
    }
    for_each(a.keys, begin, end, [&](int token, const Wide<T>& key) {
      UNROLLED
      for (int g = 0; g < G; g++) {
        const float score = dot(query[g], key.values);
        if (piece == 0 && token < end && token != new_token) scores[g][token - begin] = score;
      }
    });
    if (warp() != 0 || new_token < begin || new_token >= end) return;
    UNROLLED
    for (int g = 0; g < G; g++) {
      const float score = dot(query[g], new_key + piece * kWide);
      if (lane() == 0) scores[g][new_token - begin] = score;
    }
  }

  // Replaces scores by their weights relative to the largest so far.
  void weigh(int count) {
    for (int g = warp(); g < part.num_heads; g += kAttentionWarps) {
      float largest = maxima[g];
      for (int i = lane(); i < count; i += kWarp) {
        float score = scores[g][i];
        if (a.softcap > 0.f) {
          const float grown = exp(2.f * score / a.softcap);  // tanh is 1 where it is infinite
          score = a.softcap * (1.f - 2.f / (grown + 1.f));
          scores[g][i] = score;
        }
        largest = __builtin_fmaxf(largest, score);
      }
      for (int d = kWarp / 2; d; d /= 2) largest = __builtin_fmaxf(largest, from_lane(largest, d));
      float sum = 0.f;
      for (int i = lane(); i < count; i += kWarp) {
        const float weight = exp(scores[g][i] - largest);
        scores[g][i] = weight;
        sum += weight;
      }
      for (int d = kWarp / 2; d; d /= 2) sum += from_lane(sum, d);
      if (lane() != 0) continue;
      factors[g] = exp(maxima[g] - largest);
      sums[g] = sums[g] * factors[g] + sum;
      maxima[g] = largest;
    }
  }

  void add_values(float (&output)[G][kWide], int begin, int end) {
    UNROLLED
    for (int g = 0; g < G; g++) {
      UNROLLED
      for (int i = 0; i < kWide; i++) output[g][i] *= factors[g];
    }
    const auto add = [&](int token, const float* value) {
      UNROLLED
      for (int g = 0; g < G; g++) {
        const float weight = scores[g][token - begin];
        UNROLLED
        for (int i = 0; i < kWide; i++) output[g][i] += weight * value[i];
      }
    };
    for_each(a.values, begin, end, [&](int token, const Wide<T>& value) {
      if (token < end && token != new_token) add(token, value.values);
    });
    const bool is_here = new_token >= begin && new_token < end;
    if (is_here && thread() < lanes) add(new_token, new_value + piece * kWide);
  }

  // Adds what the threads have, and writes it: the result, or the part of the combining kernel.
  void write(float (&output)[G][kWide]) {
    SHARED float partial[kAttentionWarps][G][kMaxHead];
    UNROLLED
    for (int g = 0; g < G; g++) {
      UNROLLED
      for (int i = 0; i < kWide; i++) {
        float sum = output[g][i];
        for (int d = kWarp / 2; d >= lanes; d /= 2) sum += from_lane(sum, d);
        if (lane() < lanes) partial[warp()][g][piece * kWide + i] = sum;
      }
    }
    wait_for_block();
    const int head = a.head_size;
    const int first_head = part.kv_head * a.group + part.first_head;
    for (int i = thread(); i < part.num_heads * head; i += kAttentionThreads) {
      const int g = i / head, column = i % head;
      float sum = 0.f;
      UNROLLED
      for (int w = 0; w < kAttentionWarps; w++) sum += partial[w][g][column];
      const long at = static_cast<long>(part.row) * a.num_heads + first_head + g;
      if (a.num_splits == 1) {
        a.y[at * head + column] = T::narrow(sum / sums[g]);
        continue;
      }
      float* to = a.parts + (at * a.num_splits + part.split) * (head + 2);
      to[column] = sum;
      if (column == 0) {
        to[head] = maxima[g];
        to[head + 1] = sums[g];
      }
    }
  }
};

template <typename T, int G>
inline void attend(const DecodeAttentionArguments<T>& a) {
  SHARED float queries[G][kMaxHead], new_key[kMaxHead], new_value[kMaxHead], scores[G][kTile];
  SHARED float maxima[G], sums[G], factors[G];
  let_next_start();
  wait_for_previous();
  const Part part = Part::of(a, G);
  const int lanes = a.head_size / kWide, per_warp = kWarp / lanes;
  AttentionBlock<T, G> block{
      a, part, lanes, lane() % lanes, kAttentionWarps * per_warp,
      warp() * per_warp + lane() / lanes, a.new_key ? part.length - 1 : -1,
      (static_cast<long>(part.row) * a.num_kv_heads + part.kv_head) * a.capacity * a.head_size,
      (float(*)[kMaxHead])queries, (float*)new_key, (float*)new_value, (float(*)[kTile])scores,
      (float*)maxima, (float*)sums, (float*)factors};
  if (thread() < G) {
    maxima[thread()] = -__builtin_inff();
    sums[thread()] = 0.f;
  }
  for (int i = thread(); i < G * kMaxHead; i += kAttentionThreads) {
    queries[i / kMaxHead][i % kMaxHead] = 0.f;  // of heads that there are not
  }
  wait_for_block();
  block.prepare();
  float output[G][kWide] = {};
  for (int begin = part.begin; begin < part.end; begin += kTile) {
    const int end = begin + kTile < part.end ? begin + kTile : part.end;
    wait_for_block();  // for what prepare() wrote, and for reads of the scores before
    block.score(begin, end);
    wait_for_block();
    block.weigh(end - begin);
    wait_for_block();
    block.add_values(output, begin, end);
  }
  wait_for_block();  // for the sums of a block without tokens
  block.write(output);
}

// Combines the parts of a head: a block for each row and head.
template <typename T>
inline void combine_parts(const DecodeAttentionArguments<T>& a) {
  let_next_start();
  wait_for_previous();
  const int head = a.head_size;
  const float* parts = a.parts + static_cast<long>(block()) * a.num_splits * (head + 2);
  float largest = -__builtin_inff();
  for (int s = 0; s < a.num_splits; s++) {
    largest = __builtin_fmaxf(largest, parts[s * (head + 2) + head]);
  }
  for (int column = thread(); column < head; column += num_threads()) {
    float sum = 0.f, weights = 0.f;
    for (int s = 0; s < a.num_splits; s++) {
      const float* part = parts + s * (head + 2);
      const float factor = exp(part[head] - largest);  // 0 for a part without tokens
      sum += factor * part[column];
      weights += factor * part[head + 1];
    }
    a.y[static_cast<long>(block()) * head + column] = T::narrow(sum / weights);
  }
}

}  // namespace device
