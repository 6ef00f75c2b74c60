// softmax(Q K^T scale) V over a key/value cache, with grouped query heads (Vaswani et al. 2017,
// Ainslie et al. 2023), one block of keys at a time with a running maximum, as in FlashAttention
// (Milakov and Gimelshein 2018; Dao et al. 2022). simd/attention.cc has the kernel,
// simd/attention_microkernels.h its micro-kernels. With AVX-512, simd/attention_lanes.h has those
// of prompts. In models with int8 products, bfloat16 kernels replace them:
// simd/attention_bfloat16.h in encoders, simd/attention_rounded.h in decoders.
//
// A row is a sequence of the batch. Blocks of keys begin at multiples of their size in a row's
// positions, so that a token's result depends neither on other rows, nor on threads, nor on how a
// prompt was cut into chunks.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace attention {

constexpr int64_t kLineFloats = 16;  // per cache line

// Query, key or value vectors of new tokens: [rows][tokens][heads][head_size], with strides in
// floats, since all three may lie in one tensor.
struct TokenVectors {
  const float* data;
  int64_t row_stride, token_stride;

  const float* at(int64_t row, int64_t token) const {
    return data + row * row_stride + token * token_stride;
  }
};

// [rows][kv_heads][capacity][head_size] each; keys are null if there is no cache.
struct KvCache {
  float* keys;
  float* values;
  int64_t capacity;
};

// A cache rounded to bfloat16: for each block, pairs of keys, then of values (attention_pairs.h).
// Shared by all QueryBlocks of a row:
// [rows][kv_heads][num_blocks][2][keys_per_block * head_size / 2].
struct RoundedCache {
  int32_t* pairs;  // null: each QueryBlock rounds the keys and values that it reads
  int64_t num_blocks;
};

// Added to scores: [rows or 1][heads or 1][tokens][num_keys]. The stride of an axis of 1 is 0.
struct Bias {
  const float* data;
  int64_t row_stride, head_stride, num_keys;
};

// Cosines and sines of rotary embeddings (Su et al. 2021), [positions][half_dim]: the first
// 2 * half_dim dimensions of a head rotate.
struct Rotary {
  const float* cos;
  const float* sin;
  int64_t half_dim;
  bool is_interleaved;  // pairs are dimensions 2i and 2i + 1; otherwise i and i + half_dim
};

// One call of the operator.
struct Params {
  int64_t num_heads, num_kv_heads, head_size;  // head_size: a multiple of 8
  float scale, soft_cap;                       // soft_cap: 0 for none
  int64_t window;                              // last keys that a token sees, with itself; 0: all
  bool is_causal;
  bool is_prefill;  // tokens begin at position 0 and end with padding: num_outputs()
  int64_t num_rows, num_tokens;
  int64_t num_new_keys;           // num_tokens, or 0 if all keys are in the cache
  const int32_t* last_positions;  // [rows], the position of each row's last key
  const int32_t* num_valid;       // [rows], tokens without padding; null: as many as keys
  TokenVectors query, key, value;
  KvCache past;               // earlier keys and values, copied if `cache` is other memory
  KvCache cache;              // where new keys go and attention reads; may share memory with `past`
  RoundedCache rounded;       // of `cache`
  Rotary rotary;              // cos is null for none
  Bias bias;                  // data is null for none
  bool has_chosen;            // only the outputs of `chosen` are read; others may stay unwritten
  const int32_t* chosen;      // [num_chosen]: row * num_tokens + token
  int64_t num_chosen;
  const int32_t* cache_rows;  // [rows]: the row whose cache each reads; null: its own
  const float* sinks;         // [heads]: logits of an extra key without a value; null: none
  bool has_zero_sink;         // a sink of logit 0 (smooth softmax)
  bool allows_bfloat16;       // products may round their factors to bfloat16
  float* output;              // [rows][tokens][heads][head_size]

  // Small heads have larger blocks. The block size affects rounding.
  int64_t keys_per_block() const { return head_size <= 32 ? 128 : 64; }
  // Query heads that share a key head.
  int64_t group_size() const { return num_heads / num_kv_heads; }
  // Keys of a row, new ones included.
  int64_t length(int64_t row) const { return last_positions[row] + 1; }
  // Tokens of a row in a prefill that are not padding. Those after the last key see all keys.
  int64_t num_outputs(int64_t row) const { return num_valid ? num_valid[row] : length(row); }
  int64_t cache_row(int64_t row) const { return cache_rows ? cache_rows[row] : row; }
  float* output_at(int64_t row, int64_t token, int64_t head) const {
    return output + ((row * num_tokens + token) * num_heads + head) * head_size;
  }
  // Where the cache that a row reads has the key and the value of a position.
  int64_t cached_at(int64_t row, int64_t kv_head, int64_t position) const {
    return ((cache_row(row) * num_kv_heads + kv_head) * cache.capacity + position) * head_size;
  }
  // The blocks of a row that reads its own cache.
  int32_t* rounded_block(int64_t row, int64_t kv_head, int64_t block) const {
    const int64_t index = (row * num_kv_heads + kv_head) * rounded.num_blocks + block;
    return rounded.pairs + index * keys_per_block() * head_size;
  }
  // Whether the factors of products may round to bfloat16, for whole registers of pairs; and
  // whether those of products with a cache may (simd/attention_rounded.h).
  bool may_round() const {
    return allows_bfloat16 && soft_cap == 0 && !bias.data && !sinks && !has_zero_sink &&
           head_size % (2 * kLineFloats) == 0;
  }
  bool may_round_cache() const { return may_round() && cache.keys && is_causal && !cache_rows; }
  int64_t max_length() const {
    int64_t longest = 0;
    for (int64_t row = 0; row < num_rows; row++) {
      if (length(row) > longest) longest = length(row);
    }
    return longest;
  }
  // Number of positions to write in each cache, from the first: new memory gets zeros after the
  // keys.
  int64_t num_written() const {
    return past.keys != cache.keys ? cache.capacity : max_length();
  }
  // The position of a row's first new token.
  int64_t start(int64_t row) const { return is_prefill ? 0 : length(row) - num_new_keys; }
};

// Tokens first_token .. last_token - 1 of rows that read the same cache: they share one pass over
// its keys.
struct QueryBlock {
  const int32_t* rows;
  int64_t num_rows, first_token, last_token;

  int64_t num_tokens() const { return last_token - first_token; }
};

// Whether the output of a token of the block is read.
bool is_chosen(const Params& params, const QueryBlock& block);

// The most tokens and rows in a QueryBlock, and the floats of scratch that one needs.
int64_t max_block_tokens(const Params& params);
int64_t max_block_rows(const Params& params);
size_t scratch_size(const Params& params);

// Prefetches the first keys and values of a row's cache.
void prefetch_cache(const Params& params, int64_t row, int64_t kv_head);

// Writes positions first .. last - 1 of a row's and head's cache; `first` is a multiple of
// keys_per_block. Writes new keys and values; if the past is in other memory, also the past and
// zeros. Then fills the RoundedCache, if there is one, for positions that a token sees.
using WriteCache = void(const Params& params, int64_t row, int64_t kv_head, int64_t first,
                        int64_t last);

// Computes the output of a block for the query heads of kv_head. Their keys must be in the cache if
// there is one. `scratch` [scratch_size] is aligned to 64 bytes.
using Attend = void(const Params& params, const QueryBlock& block, int64_t kv_head,
                    float* scratch);

}  // namespace attention
