// Rotates new queries and keys, and copies keys and values to where attention reads them: the
// cache, or, without a cache, a packed block in scratch.
#pragma once

#include "../attention.h"
#include "../integers.h"
#include "vectors.h"

#include "begin_target.h"

namespace attention::SIMD {

using namespace ::SIMD;

constexpr int64_t kPrefetchTokens = 4;  // how many tokens ahead vectors are prefetched

// Prefetches `size` floats into L1.
void prefetch_vector(const float* x, int64_t size);

// y = rotary(x, position) * factor; x and y [head_size].
void apply_rotary(const Params& params, const float* x, int64_t position, float factor, float* y);

// Copies a row's new keys, rotated, and values of positions first .. last - 1 to keys and values
// [last - first][head_size]. `start`: position of the row's first new token.
void gather_kv(const Params& params, int64_t row, int64_t kv_head, int64_t start, int64_t first,
               int64_t last, float* keys, float* values);

// The same for a block of a prompt without a cache, which starts at position 0. Keys are transposed:
// keys [head_size][keys_per_block], padded with zeros to a multiple of kLanes; values
// [last - first][head_size]. `rows`: scratch [kLanes8][head_size].
void pack_kv(const Params& params, int64_t row, int64_t kv_head, int64_t first, int64_t last,
             float* keys, float* values, float* rows);

WriteCache write_cache;

}  // namespace attention::SIMD

#include "end_target.h"
