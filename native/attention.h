// softmax(Q K^T scale) V over a cache, with grouped heads (Vaswani et al. 2017, Ainslie et al.
// 2023), in blocks of keys with a running maximum (Milakov and Gimelshein 2018; Dao et al. 2022).
//
// Blocks begin at multiples of their size of a row's positions, so that a token's numbers depend
// neither on the rows beside it, nor on threads, nor on how its row was cut into runs.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace attention {

constexpr int64_t kLine = 16;  // floats of a cache's line

// Vectors of new tokens: head h of token t of row r is at data + r * row + t * token + h * size.
struct Vectors {
  const float* data;
  int64_t row, token;  // floats from one to the next

  const float* of(int64_t at_row, int64_t at_token) const {
    return data + at_row * row + at_token * token;
  }
};

// [rows][kv_heads][capacity][size] each; null keys: there is none.
struct Memory {
  float* keys;
  float* values;
  int64_t capacity;
};

// Added to scores: [rows or 1][heads or 1][tokens][keys]; a stride is 0 where there is one of all.
struct Bias {
  const float* data;
  int64_t row, head, num_keys;
};

// Angles of positions, [positions][half] each: the first 2 * half dimensions turn.
struct Rotary {
  const float* cos;
  const float* sin;
  int64_t half;
  bool is_interleaved;  // pairs are neighbours, else half apart
};

struct Call {
  int64_t num_heads, num_kv_heads, size;  // size: a multiple of 8
  float scale, soft_cap;                  // soft_cap 0: none
  int64_t window;                         // keys that a token sees, itself included; 0: all
  bool is_causal;
  bool is_fresh;  // tokens begin at position 0 of each row, and those behind its length are padding
  int64_t num_rows, num_tokens;
  int64_t num_new;      // keys: num_tokens, or 0 if all are in memory
  const int32_t* last;  // [rows]: the position of the last key
  Vectors query, key, value;
  Memory past, memory;  // memory: what is read, and where new keys go; it may be past
  Rotary rotary;        // cos null: none
  Bias bias;            // data null: none
  const int32_t* sources;  // [rows]: whose memory each reads; null: its own
  const float* sinks;      // [heads]: scores of nothing; null: none
  bool has_zero_sink;
  float* output;  // [rows][tokens][heads * size]

  int64_t block() const { return size <= 32 ? 128 : 64; }  // keys; never another for a size
  int64_t group() const { return num_heads / num_kv_heads; }
  int64_t length(int64_t row) const { return last[row] + 1; }
  int64_t source(int64_t row) const { return sources ? sources[row] : row; }
  float* output_of(int64_t row, int64_t token, int64_t head) const {
    return output + ((row * num_tokens + token) * num_heads + head) * size;
  }
  // The position of the first new token.
  int64_t start(int64_t row) const { return is_fresh ? 0 : length(row) - num_new; }
};

// Tokens first .. last - 1 of each of some rows, which read one memory.
struct Part {
  const int32_t* rows;
  int64_t num_rows, first, last;

  int64_t num_tokens() const { return last - first; }
};

// Tokens, and rows of one memory, to attend at a time, and the floats of scratch that takes.
int64_t tokens_at_once(const Call& call);
int64_t rows_at_once(const Call& call);
size_t scratch_size(const Call& call);

// Fetches what is first read of the memory of a row.
void fetch(const Call& call, int64_t row, int64_t kv_head);

// Puts a row's new keys and values into memory; copies the past if that is elsewhere.
using Write = void(const Call& call, int64_t row, int64_t kv_head);

// The output of a part for the heads of kv_head, whose keys are written.
using Attend = void(const Call& call, const Part& part, int64_t kv_head, float* scratch);

}  // namespace attention
