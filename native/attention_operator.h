#pragma once

#include "ort_api.h"

namespace ort {

// Attention as com.microsoft.GroupQueryAttention computes it, in fp32.
//
// Attributes: num_heads, kv_num_heads, scale, softcap, causal, local_window_size,
// rotary_interleaved, smooth_softmax: all given. Inputs: query [rows, tokens, heads * size], or
// with keys and values behind each token's queries; key and value [rows, tokens or 0,
// kv_heads * size]?; past keys and values [rows, kv_heads, capacity, size]?; the position of each
// row's last key [rows]; the largest number of keys []; cos and sin [positions, half]?;
// bias [rows or 1, heads or 1, tokens, keys]?; sinks [heads]?; of rows without new keys, the row
// whose memory each reads [rows]?, which is as long: rows of one memory go through it together.
// Outputs: [rows, tokens, heads * size]; present keys and values?, which are written in place if
// past and present share memory.
const Operator& attention();

}  // namespace ort
