#include "attention_kv.h"

#include <string.h>

#include "begin_target.h"

namespace attention::SIMD {

void fetch(const float* x, int64_t size) {
  for (int64_t i = 0; i < size; i += kLine) __builtin_prefetch(x + i);
}

namespace {

INLINE void copy(const float* x, int64_t size, float* y) {
  for (int64_t i = 0; i < size; i += kLanes8) store(y + i, load<Floats8>(x + i));
}

// Fetches the key and the value of a new token that comes soon, if there is one.
INLINE void fetch_ahead(const Call& call, int64_t row, int64_t head, int64_t token,
                        int64_t num_tokens) {
  if (token + kAhead >= num_tokens) return;
  fetch(call.key.of(row, token + kAhead) + head, call.size);
  fetch(call.value.of(row, token + kAhead) + head, call.size);
}

}  // namespace

void turn(const Call& call, const float* x, int64_t position, float factor, float* y) {
  const Rotary& rotary = call.rotary;
  const int64_t half = rotary.cos ? rotary.half : 0;
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
  i = 2 * half;
  for (; i + kLanes <= call.size; i += kLanes) store(y + i, load(x + i) * factor);
  for (; i + kLanes8 <= call.size; i += kLanes8) {
    store(y + i, load<Floats8>(x + i) * factor);
  }
  for (; i < call.size; i++) y[i] = x[i] * factor;
}

void gather(const Call& call, int64_t row, int64_t kv_head, int64_t start, int64_t first,
            int64_t last, float* keys, float* values) {
  for (int64_t position = first; position < last; position++) {
    const int64_t head = kv_head * call.size, token = position - start;
    const int64_t at = (position - first) * call.size;
    fetch_ahead(call, row, head, token, call.length(row) - start);
    turn(call, call.key.of(row, token) + head, position, 1.0f, keys + at);
    copy(call.value.of(row, token) + head, call.size, values + at);
  }
}

void gather_columns(const Call& call, int64_t row, int64_t kv_head, int64_t first, int64_t last,
                    float* keys, float* values, float* rows) {
  const int64_t size = call.size, head = kv_head * size;
  const int64_t num_columns = div_ceil(last - first, kLanes) * kLanes;
  for (int64_t column = 0; column < num_columns; column += kLanes8) {
    const int64_t begin = min(last, first + column), end = min(last, begin + kLanes8);
    const int64_t count = end - begin;
    if (count == kLanes8 && !call.rotary.cos) {
      for (int64_t token = begin; token < end; token++) {
        fetch_ahead(call, row, head, token, call.length(row));
        copy(call.value.of(row, token) + head, size, values + (token - first) * size);
      }
      const float* key = call.key.of(row, begin) + head;
      for (int64_t i = 0; i < size; i += kLanes8) {
        transpose_8x8(key + i, call.key.token, keys + i * call.block() + column, call.block());
      }
      continue;
    }
    gather(call, row, kv_head, 0, begin, end, rows, values + column * size);
    memset(rows + count * size, 0, (kLanes8 - count) * size * sizeof(float));
    for (int64_t i = 0; i < size; i += kLanes8) {
      transpose_8x8(rows + i, size, keys + i * call.block() + column, call.block());
    }
  }
}

void write(const Call& call, int64_t row, int64_t kv_head) {
  const Memory &past = call.past, &memory = call.memory;
  const int64_t length = call.length(row), start = call.start(row);
  const int64_t size = call.size, head = row * call.num_kv_heads + kv_head;
  const int64_t at = head * memory.capacity * size;
  if (past.keys != memory.keys) {
    const size_t num_bytes = start * size * sizeof(float);
    const int64_t rest = (memory.capacity - length) * size;
    if (past.keys) {
      memcpy(memory.keys + at, past.keys + head * past.capacity * size, num_bytes);
      memcpy(memory.values + at, past.values + head * past.capacity * size, num_bytes);
    }
    memset(memory.keys + at + length * size, 0, rest * sizeof(float));
    memset(memory.values + at + length * size, 0, rest * sizeof(float));
  }
  if (call.num_new) {
    gather(call, row, kv_head, start, start, length, memory.keys + at + start * size,
           memory.values + at + start * size);
  }
}

}  // namespace attention::SIMD

#include "end_target.h"
