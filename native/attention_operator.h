// triune.Attention: com.microsoft.GroupQueryAttention in fp32 (attention.h). Attributes and inputs
// have its names and meanings, except where noted:
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
//
// Attributes, all required: num_heads, kv_num_heads, scale, softcap, causal, local_window_size,
// rotary_interleaved, smooth_softmax; not in GroupQueryAttention: allows_bfloat16, whether
// products may round their factors to bfloat16.
// Inputs (? is optional):
//   query [rows, tokens, heads * head_size]; with keys and values after each token's queries if
//     neither key nor cache_rows is given
//   key?, value? [rows, tokens or 0, kv_heads * head_size]
//   past_key?, past_value? [rows, kv_heads, capacity, head_size]
//   seqlens_k, int32 [rows]: the position of each row's last key
//   total_sequence_length, int32 []: the largest number of keys
//   cos_cache?, sin_cache? [positions, half]; given only if queries and keys rotate
//   attention_bias? [rows or 1, heads or 1, tokens, keys]
//   head_sink? [heads]
//   cache_rows?, int32 [rows], not in GroupQueryAttention: the row, of equal length, whose cache
//     each row reads; there are no new keys then. Rows with one cache share a pass over it.
//   chosen_tokens?, int32 [chosen], not in GroupQueryAttention: row * tokens + token, not negative,
//     of those whose outputs are read; others may be anything
//   lengths?, int32 [rows], not in GroupQueryAttention: the tokens of each row of whole texts, if
//     they may be more than its keys; others are padding
// Outputs: [rows, tokens, heads * head_size]; present keys and values?, written in place if past
// and present share memory.
#pragma once

#include "ort_api.h"

namespace ort {

const Operator& attention();

}  // namespace ort
