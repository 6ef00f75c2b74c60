#include "attention_kv.h"

#include <string.h>

#include "attention_rounded.h"

#include "begin_target.h"

namespace attention::SIMD {

void prefetch_vector(const float* x, int64_t size) {
  for (int64_t i = 0; i < size; i += kLineFloats) __builtin_prefetch(x + i);
}

namespace {

INLINE void copy(const float* x, int64_t size, float* y) {
  for (int64_t i = 0; i < size; i += kLanes8) store(y + i, load<Floats8>(x + i));
}

// Prefetches the key and the value of the token kPrefetchTokens ahead, if there is one.
INLINE void prefetch_token(const Params& params, int64_t row, int64_t head_offset, int64_t token,
                           int64_t num_tokens) {
  if (token + kPrefetchTokens >= num_tokens) return;
  prefetch_vector(params.key.at(row, token + kPrefetchTokens) + head_offset, params.head_size);
  prefetch_vector(params.value.at(row, token + kPrefetchTokens) + head_offset, params.head_size);
}

}  // namespace

void apply_rotary(const Params& params, const float* x, int64_t position, float factor, float* y) {
  const Rotary& rotary = params.rotary;
  const int64_t half = rotary.cos ? rotary.half_dim : 0;
  const float *cos = rotary.cos + position * half, *sin = rotary.sin + position * half;
  int64_t i = 0;
  if (rotary.is_interleaved) {
    for (; i < half; i++) {
      const float a = x[2 * i], b = x[2 * i + 1];
      y[2 * i] = (a * cos[i] - b * sin[i]) * factor;
      y[2 * i + 1] = (b * cos[i] + a * sin[i]) * factor;
    }
  }
  for (; i + kLanes8 <= half; i += kLanes8) {
    const Floats8 a = load<Floats8>(x + i), b = load<Floats8>(x + half + i);
    const Floats8 c = load<Floats8>(cos + i), s = load<Floats8>(sin + i);
    const Floats8 first = fma(a, c, -(b * s));
    const Floats8 second = fma(b, c, a * s);
    store(y + i, first * factor);
    store(y + half + i, second * factor);
  }
  for (; i < half; i++) {
    const float a = x[i], b = x[half + i];
    y[i] = (a * cos[i] - b * sin[i]) * factor;
    y[half + i] = (b * cos[i] + a * sin[i]) * factor;
  }
  i = 2 * half;  // dimensions that do not rotate
  for (; i + kLanes <= params.head_size; i += kLanes) store(y + i, load(x + i) * factor);
  for (; i + kLanes8 <= params.head_size; i += kLanes8) {
    store(y + i, load<Floats8>(x + i) * factor);
  }
  for (; i < params.head_size; i++) y[i] = x[i] * factor;
}

void gather_kv(const Params& params, int64_t row, int64_t kv_head, int64_t start, int64_t first,
               int64_t last, float* keys, float* values) {
  for (int64_t position = first; position < last; position++) {
    const int64_t head_offset = kv_head * params.head_size, token = position - start;
    const int64_t at = (position - first) * params.head_size;
    prefetch_token(params, row, head_offset, token, params.length(row) - start);
    apply_rotary(params, params.key.at(row, token) + head_offset, position, 1.0f, keys + at);
    copy(params.value.at(row, token) + head_offset, params.head_size, values + at);
  }
}

void pack_kv(const Params& params, int64_t row, int64_t kv_head, int64_t first, int64_t last,
             float* keys, float* values, float* rows) {
  const int64_t size = params.head_size, head_offset = kv_head * size;
  const int64_t stride = params.keys_per_block();
  const int64_t num_columns = div_ceil(last - first, kLanes) * kLanes;
  for (int64_t column = 0; column < num_columns; column += kLanes8) {
    const int64_t begin = min(last, first + column), end = min(last, begin + kLanes8);
    const int64_t count = end - begin;
    if (count == kLanes8 && !params.rotary.cos) {  // transposes straight from the input
      for (int64_t token = begin; token < end; token++) {
        prefetch_token(params, row, head_offset, token, params.length(row));
        copy(params.value.at(row, token) + head_offset, size, values + (token - first) * size);
      }
      const float* key = params.key.at(row, begin) + head_offset;
      transpose(key, params.key.token_stride, kLanes8, size, keys + column, stride);
      continue;
    }
    gather_kv(params, row, kv_head, 0, begin, end, rows, values + column * size);
    memset(rows + count * size, 0, (kLanes8 - count) * size * sizeof(float));
    transpose(rows, size, kLanes8, size, keys + column, stride);
  }
}

void write_cache(const Params& params, int64_t row, int64_t kv_head, int64_t first,
                 int64_t last) {
  const KvCache &past = params.past, &cache = params.cache;
  const int64_t length = params.length(row), start = params.start(row);
  const int64_t size = params.head_size, head = row * params.num_kv_heads + kv_head;
  float* const keys = cache.keys + head * cache.capacity * size;
  float* const values = cache.values + head * cache.capacity * size;
  if (past.keys != cache.keys) {
    const int64_t num_past = (min(last, start) - first) * size;
    if (past.keys && num_past > 0) {
      const int64_t from = (head * past.capacity + first) * size;
      memcpy(keys + first * size, past.keys + from, num_past * sizeof(float));
      memcpy(values + first * size, past.values + from, num_past * sizeof(float));
    }
    const int64_t unused = max(first, length), num_unused = (last - unused) * size;
    if (num_unused > 0) {
      memset(keys + unused * size, 0, num_unused * sizeof(float));
      memset(values + unused * size, 0, num_unused * sizeof(float));
    }
  }
  const int64_t begin = max(first, start), end = min(last, length);
  if (params.num_new_keys && begin < end) {
    gather_kv(params, row, kv_head, start, begin, end, keys + begin * size, values + begin * size);
  }
#if SIMD_BITS == 512
  const int64_t first_seen = params.window > 0 ? start + 1 - params.window : 0;
  if (params.rounded.pairs && end > first_seen) round_cache(params, row, kv_head, first, end);
#endif
}

}  // namespace attention::SIMD

#include "end_target.h"
