// The arguments of the kernels, which native/cuda/operators.cc fills. T is a 16-bit float.
#pragma once

namespace device {

// Arrays of `size` columns; those that may be null are marked.
template <typename T>
struct NormArguments {
  const T* x;
  const T* x_bias;    // null, or added to each row of x
  const T* residual;  // null, or added to x
  const T* scale;
  const T* bias;  // null, or added to the result
  T* y;
  T* sum;  // null, or x + x_bias + residual
  int size;
  float epsilon;
  int is_centered;  // 1: LayerNormalization
};

// act(x + bias), or act(a) * b of the halves a and b of a row of x + bias.
enum Activation : int { kNone = -1, kSilu, kRelu, kGelu, kGeluOfTanh };

template <typename T>
struct ActivationArguments {
  const T* x;
  const T* bias;  // null, or as long as a row of x
  T* y;
  long num_vectors;  // of y
  int row_vectors;   // of a row of y
  int kind;
  int is_gated;  // 1: a row of x is twice as long as one of y
};

// Heads of texts of `length` tokens. Rows of x: the heads of queries, then of keys, then of values.
template <typename T>
struct SplitArguments {
  const T* x;        // [rows, num_heads + 2 num_kv_heads, head_size]
  const T* bias;     // null, or as long as a row of x
  const T* cosines;  // [positions, rotary_size / 2]
  const T* sines;    // likewise
  T* parts[3];       // [rows, num_heads, head_size]; keys and values are repeated
  long num_vectors;  // of the parts
  int num_heads, num_kv_heads, head_size, length;
  int rotary_size;     // the first elements of a head, which are rotated; 0: none
  int is_interleaved;  // 1: neighbours are rotated together; 0: elements half of them apart
};

// act(x W^T + bias), or act(gate) * up, of x or its RMSNormalization. `weight` and `bias` have
// `out` features, or as many of the gate and then of the other factor.
template <typename T>
struct LinearArguments {
  const T* x;       // [num_rows, in]
  const T* weight;  // [features, in]
  const T* bias;    // null, or [features]
  const T* residual;  // null, or [num_rows, in], added to x
  const T* scale;     // null, or [in]: x is normalized
  T* y;               // [num_rows, out]
  T* sum;             // null, or x + residual
  int num_rows, in, out;
  int num_blocks;
  int activation;
  int is_gated;
  float epsilon;
};

// Attention of one new token of each row. `group` query heads share a key/value head.
template <typename T>
struct DecodeAttentionArguments {
  const T* query;      // of row r from r * query_stride on: [num_heads, head_size]
  const T* new_key;    // as query: [num_kv_heads, head_size]; null: all tokens are in the cache
  const T* new_value;  // likewise
  T* keys;             // [rows, num_kv_heads, capacity, head_size]
  T* values;           // likewise
  const int* last_positions;  // [rows], of the last token
  const T* cosines;           // [positions, rotary_size / 2]
  const T* sines;             // likewise
  T* y;                       // [rows, num_heads, head_size]
  float* parts;  // [rows, num_heads, num_splits, head_size + 2]: weighted values, maximum, sum
  long query_stride;
  int num_heads, num_kv_heads, group, head_size, capacity;
  int rotary_size;     // the first elements of a head, which are rotated; 0: none
  int is_interleaved;  // 1: neighbours are rotated together; 0: elements half of them apart
  int window;          // the last tokens that are attended to; 0: all
  int num_splits, split_size;
  float scale;
  float softcap;  // 0: none
};

// Attention of all tokens of each text to its first ones. A block computes so many queries of a head.
constexpr int block_queries(int head_size) { return head_size <= 64 ? 128 : 64; }

template <typename T>
struct EncoderAttentionArguments {
  const T* query;  // of token t of text x from (x length + t) query_stride on: [num_heads, head_size]
  const T* key;    // likewise, from key_stride on: [num_kv_heads, head_size]
  const T* value;  // likewise
  const T* bias;   // null, or of the queries, keys and values
  const int* lengths;  // [texts]: of the tokens that are attended to
  T* y;                // as query, from y_stride on
  int query_stride, key_stride, y_stride;
  int num_heads, num_kv_heads, length;
  float scale;
};

// Of tokens that are not padding: the mean, or with is_normalized the mean with the norm 1.
template <typename T>
struct PoolArguments {
  const T* x;          // [texts, max_length, size]
  const int* lengths;  // [texts]
  float* y;            // [texts, size]
  int max_length, size;
  int is_normalized;
  float min_norm;  // divides means that have a smaller one
};

// Where the queries and keys of each text begin, as attention takes them: the lengths [texts], then
// the multiples of max_length up to that of the end [texts + 1], twice.
struct KeyRangesArguments {
  const int* lengths;
  int* ranges;
  int num_texts, max_length;
};

struct BestTokenArguments {
  const float* logits;              // [rows, vocabulary]
  const unsigned char* suppressed;  // null, or [vocabulary]: 1 for tokens that are never chosen
  long* tokens;                     // [rows]
  int vocabulary;
};

struct TopTokensArguments {
  const float* logits;              // [.., vocabulary]
  const long* rows;                 // null, or the rows of logits
  const long* targets;              // null, or a token of each row
  const unsigned char* suppressed;  // null, or [vocabulary]: 1 for tokens whose logit is replaced
  float* top;  // [rows, width]: logits, ids, the sum of exp(logit - the largest), the target's logit
  int vocabulary, count, width;
  float suppressed_logit;
};

// Arrays of `num_rows`. The outputs may be in the memory of the inputs.
struct AdvanceArguments {
  const long* best_tokens;
  const int* num_cached_tokens;
  const int* is_live;  // 0: padding
  long* next_token_ids;
  int* next_num_cached_tokens;
  int num_rows;
};

// Copies `num_parts` parts of `width` bytes, which begin a pitch apart.
struct Copy {
  const char* source;
  char* target;
  long width, source_pitch, target_pitch, num_parts;
};

// Copies that may be made in any order. A kernel has up to 4 KB of arguments.
struct CopyArguments {
  static constexpr int kMaxCopies = 80;
  Copy copies[kMaxCopies];
  int num_blocks;  // that share a copy
};

// x [rows, size, inner], y [rows, inner].
struct ExtremeArguments {
  const float* x;
  float* y;
  long num_outputs;
  int size, inner;
  int is_min;
};

}  // namespace device
