// The arguments of the kernels; the operators in native/cuda/ fill them. T is a 16-bit float.
#pragma once

namespace device {

// Rows have `size` columns. Pointers that may be null are marked.
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

// act(x + bias), or act(a) * b, where a and b are the halves of a row of x + bias.
enum Activation : int { kNone = -1, kSilu, kRelu, kGelu, kGeluOfTanh };

template <typename T>
struct ActivationArguments {
  const T* x;
  const T* bias;  // null, or as long as a row of x
  T* y;
  long num_vectors;  // 8-element vectors of y
  int row_vectors;   // vectors of a row of y
  int kind;
  int is_gated;  // 1: a row of x is twice as long as one of y
};

// Texts of `length` tokens. A row of x has the heads of queries, then of keys, then of values.
template <typename T>
struct SplitArguments {
  const T* x;        // [rows, num_heads + 2 num_kv_heads, head_size]
  const T* bias;     // null, or as long as a row of x
  const T* cosines;  // [positions, rotary_size / 2]
  const T* sines;    // likewise
  T* parts[3];       // [rows, num_heads, head_size]: queries, keys, values; kv heads are repeated
  long num_vectors;  // 8-element vectors of all parts
  int num_heads, num_kv_heads, head_size, length;
  int rotary_size;     // leading elements of a head that are rotated; 0: none
  int is_interleaved;  // 1: neighbours form a pair; 0: elements rotary_size / 2 apart do
};

// act(x W^T + bias), or act(gate) * up, where x may be normalized (RMSNorm) first. `weight` has
// `out` features, or 2 `out` if gated: those of the gate, then those of `up`. So has `bias`.
template <typename T>
struct LinearArguments {
  const T* x;       // [num_rows, in]
  const T* weight;  // [features, in]
  const T* bias;    // null, or [features]
  const T* residual;  // null, or [num_rows, in], added to x
  const T* scale;     // null, or [in]: the scale of the RMSNorm of x
  T* y;               // [num_rows, out]
  T* sum;             // null, or x + residual
  int num_rows, in, out;
  int num_blocks;
  int activation;
  int is_gated;
  float epsilon;
};

// Attention of one new token of each row. `group` query heads share a key/value head (GQA).
template <typename T>
struct DecodeAttentionArguments {
  const T* query;      // [num_heads, head_size]; row r begins at r * query_stride
  const T* new_key;    // likewise [num_kv_heads, head_size]; null: the cache has all tokens
  const T* new_value;  // likewise
  T* keys;             // [rows, num_kv_heads, capacity, head_size]
  T* values;           // likewise
  const int* last_positions;  // [rows], the position of each row's new token
  const T* cosines;           // [positions, rotary_size / 2]
  const T* sines;             // likewise
  T* y;                       // [rows, num_heads, head_size]
  float* parts;  // [rows, num_heads, num_splits, head_size + 2]: weighted values, max, sum
  long query_stride;
  int num_heads, num_kv_heads, group, head_size, capacity;
  int rotary_size;     // leading elements of a head that are rotated; 0: none
  int is_interleaved;  // 1: neighbours form a pair; 0: elements rotary_size / 2 apart do
  int window;          // number of last tokens to attend to; 0: all
  int num_splits, split_size;
  float scale;
  float softcap;  // 0: none
};

// Encoder attention: each token of a text attends to the text's first `lengths` tokens.
// Queries of one head that a thread block computes:
constexpr int block_queries(int head_size) { return head_size <= 64 ? 128 : 64; }

template <typename T>
struct EncoderAttentionArguments {
  const T* query;  // [num_heads, head_size]; token t of text x is at (x length + t) query_stride
  const T* key;    // likewise [num_kv_heads, head_size], with key_stride
  const T* value;  // likewise
  const T* bias;   // null, or a bias of the packed queries, keys and values
  const int* lengths;  // [texts]: numbers of tokens to attend to
  T* y;                // as query, with y_stride
  int query_stride, key_stride, y_stride;
  int num_heads, num_kv_heads, length;
  float scale;
};

// The mean over a text's tokens without padding; is_normalized scales it to the L2 norm 1.
template <typename T>
struct PoolArguments {
  const T* x;          // [texts, max_length, size]
  const int* lengths;  // [texts]
  float* y;            // [texts, size]
  int max_length, size;
  int is_normalized;
  float min_norm;  // a smaller L2 norm is replaced by this one
};

// Cumulative sequence lengths for ONNX Runtime's attention over padded texts. ranges: the lengths
// [texts], then max_length * i for i = 0 … texts, twice: for queries and for keys.
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
  const long* rows;                 // null, or the indices of the rows of logits to search
  const long* targets;              // null, or a token id for each row
  const unsigned char* suppressed;  // null, or [vocabulary]: 1 for tokens whose logit is replaced
  // [rows, width]: logits, ids, the sum of exp(logit - the largest one), the logit of the target.
  float* top;
  int vocabulary, count, width;
  float suppressed_logit;
};

// Arrays have num_rows elements. Outputs may be in place.
struct AdvanceArguments {
  const long* best_tokens;
  const int* num_cached_tokens;
  const int* is_live;  // 0: padding
  long* next_token_ids;
  int* next_num_cached_tokens;
  int num_rows;
};

// Copies `num_parts` parts of `width` bytes. Parts begin a pitch (in bytes) apart.
struct Copy {
  const char* source;
  char* target;
  long width, source_pitch, target_pitch, num_parts;
};

// Independent copies, made in any order. The arguments of a kernel take up to 4 KB.
struct CopyArguments {
  static constexpr int kMaxCopies = 80;
  Copy copies[kMaxCopies];
  int num_blocks;  // blocks per copy
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
