#include "attention_memory.h"

#include <string.h>

#include "attention_tiles.h"
#include "vectors.h"

namespace attention {
namespace {

// Of a row's keys and values: in more, the processor sees by itself what will be read.
constexpr int64_t kFetched = 48;
constexpr int kSecondCache = 2;  // of what __builtin_prefetch fetches to

}  // namespace

void fetch(const float* x, int64_t size) {
  for (int64_t i = 0; i < size; i += kLine) __builtin_prefetch(x + i);
}

void fetch(const Call& call, int64_t row, int64_t kv_head) {
  const int64_t at =
      (call.source(row) * call.num_kv_heads + kv_head) * call.memory.capacity * call.size;
  const int64_t size = smaller(call.length(row), kFetched) * call.size;
  for (int64_t i = at; i < at + size; i += kLine) {
    __builtin_prefetch(call.memory.keys + i, 0, kSecondCache);
    __builtin_prefetch(call.memory.values + i, 0, kSecondCache);
  }
}

AVX2_FMA void turn(const Call& call, const float* x, int64_t position, float factor, float* y) {
  const Rotary& rotary = call.rotary;
  const int64_t half = rotary.cos ? rotary.half : 0;
  const float *cos = rotary.cos + position * half, *sin = rotary.sin + position * half;
  const __m256 factors = _mm256_set1_ps(factor);
  int64_t i = 0;
  if (rotary.is_interleaved) {
    for (; i < half; i++) {
      const float a = x[2 * i], b = x[2 * i + 1];
      y[2 * i] = (a * cos[i] - b * sin[i]) * factor;
      y[2 * i + 1] = (b * cos[i] + a * sin[i]) * factor;
    }
  }
  for (; i + kLanes <= half; i += kLanes) {
    const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
    const __m256 c = _mm256_loadu_ps(cos + i), s = _mm256_loadu_ps(sin + i);
    const __m256 first = _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s));
    const __m256 second = _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s));
    _mm256_storeu_ps(y + i, _mm256_mul_ps(first, factors));
    _mm256_storeu_ps(y + half + i, _mm256_mul_ps(second, factors));
  }
  for (; i < half; i++) {
    const float a = x[i], b = x[half + i];
    y[i] = (a * cos[i] - b * sin[i]) * factor;
    y[half + i] = (b * cos[i] + a * sin[i]) * factor;
  }
  i = 2 * half;
  for (; i + kLanes <= call.size; i += kLanes) {
    _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), factors));
  }
  for (; i < call.size; i++) y[i] = x[i] * factor;
}

void gather(const Call& call, int64_t row, int64_t kv_head, int64_t start, int64_t first,
            int64_t last, float* keys, float* values) {
  for (int64_t position = first; position < last; position++) {
    const int64_t head = kv_head * call.size, token = position - start;
    const int64_t at = (position - first) * call.size;
    if (position + kAhead < call.length(row)) {
      fetch(call.key.of(row, token + kAhead) + head, call.size);
      fetch(call.value.of(row, token + kAhead) + head, call.size);
    }
    turn(call, call.key.of(row, token) + head, position, 1.0f, keys + at);
    memcpy(values + at, call.value.of(row, token) + head, call.size * sizeof(float));
  }
}

AVX2_FMA void gather_columns(const Call& call, int64_t row, int64_t kv_head, int64_t first,
                             int64_t last, float* keys, float* values, float* rows) {
  const int64_t size = call.size;
  for (int64_t position = first; position < last; position += kLanes) {
    const int64_t end = smaller(position + kLanes, last), count = end - position;
    const int64_t at = position - first;
    gather(call, row, kv_head, 0, position, end, rows, values + at * size);
    memset(rows + count * size, 0, (kLanes - count) * size * sizeof(float));
    for (int64_t i = 0; i < size; i += kLanes) {
      vectors::transpose(rows + i, size, keys + i * call.block() + at, call.block());
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

}  // namespace attention
