// triune.Embedding and triune.BlockEmbedding: the sum of each token's embeddings (embedding.h),
// optionally normalized.
//
// Attributes, required: factor; y_norm_epsilon and y_norm_is_centered; for blocks, also
// weight_format, num_tokens and size.
// Inputs (? is optional):
//   Embedding: table, uint8 [tokens, size], with zero point 128; scales [tokens, 1]
//   BlockEmbedding: a matrix [size, tokens] of block_matmul.h, packed for products. A tied output
//     matrix can share its memory.
//   token_ids, int64 [batch, length]
//   positions? [positions, size]; num_cached?, int32 [batch]: the position of each row's first
//     token; 0 if absent
//   segments? [segments, size]; segment_ids?, int64 [batch, length]: the index of each token in
//     `segments`, which may be any second table
//   norm scale?, bias? [size]
// Output: [batch, length, size]. An index outside its table is an error.
#pragma once

#include "ort_api.h"

namespace ort {

const Operator& embedding();
const Operator& block_embedding();

}  // namespace ort
