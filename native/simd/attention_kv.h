// Vectors of tokens on their way to where attention reads them.
#pragma once

#include "../attention.h"
#include "../integers.h"
#include "vectors.h"

#include "begin_target.h"

namespace attention::SIMD {

using namespace ::SIMD;

constexpr int64_t kAhead = 4;  // tokens, of which one is fetched

// Asks for memory that is read soon.
void fetch(const float* x, int64_t size);

// y = x, turned by the angles of a position, times factor.
void turn(const Call& call, const float* x, int64_t position, float factor, float* y);

// New keys and values of positions first .. last - 1 of a row, where new tokens begin at start.
void gather(const Call& call, int64_t row, int64_t kv_head, int64_t start, int64_t first,
            int64_t last, float* keys, float* values);

// The same of a block, where tokens begin at 0, with keys side by side: keys[dimension][block]. Up
// to the next multiple of kLanes they are 0. Rows: floats for kLanes8 keys.
void gather_columns(const Call& call, int64_t row, int64_t kv_head, int64_t first, int64_t last,
                    float* keys, float* values, float* rows);

Write write;

}  // namespace attention::SIMD

#include "end_target.h"
