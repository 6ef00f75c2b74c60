// Products of a block of inputs for NEON, whose SDOT adds four products of signed bytes in each
// 32-bit lane. 4-bit weights are 0 to 15.
#pragma once

#include "block_panel.h"
#include "row_pointers.h"

#include "begin_target.h"

namespace block_matmul::SIMD {

constexpr int64_t kMaxStoredRows = 32;

// Of R rows times one panel.
template <int R>
using Sums = Ints[R][2];

// sums += the products of a group of inputs with weights [2].
template <int R>
INLINE void multiply_group(const RowPointers<R>& rows, int64_t group, const Ints* weights,
                           Sums<R>& sums) {
#pragma unroll
  for (int r = 0; r < R; r++) {
    const Ints x = rows.template at<int32_t>(r, group * kKr);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      sums[r][half] = add_dot_products(sums[r][half], weights[half], x);
    }
  }
}

// sums += the products of a block of 8-bit weights.
template <int R, typename Pair>
INLINE void multiply_8_bits(const RowPointers<R>& rows, const Pair& pair, int block,
                            Sums<R>& sums) {
#pragma unroll
  for (int64_t group = 0; group < kBlockGroups; group++) {
    const Ints weights[] = {words_of<Ints>(pair, block, group, 0),
                            words_of<Ints>(pair, block, group, kLanes)};
    multiply_group<R>(rows, group, weights, sums);
  }
}

// sums += the products of a block of 4-bit weights, two per byte.
template <int R>
INLINE void multiply_4_bits(const RowPointers<R>& rows, const uint32_t (*words)[kPanelWidth],
                            Sums<R>& sums) {
#pragma unroll
  for (int64_t group = 0; group < kBlockGroups; group += 2) {
    const Ints both[] = {load<Ints>(words[group / 2]), load<Ints>(words[group / 2] + kLanes)};
    const Ints low[] = {both[0] & 0x0f0f0f0f, both[1] & 0x0f0f0f0f};
    const Ints high[] = {both[0] >> 4 & 0x0f0f0f0f, both[1] >> 4 & 0x0f0f0f0f};
    multiply_group<R>(rows, group, low, sums);
    multiply_group<R>(rows, group + 1, high, sums);
  }
}

// sums += the products of a block of 4-bit weights, one per byte.
template <int R>
INLINE void multiply_expanded(const RowPointers<R>& rows, const uint8_t (*numbers)[kGroupBytes],
                              Sums<R>& sums) {
#pragma unroll
  for (int64_t group = 0; group < kBlockGroups; group++) {
    const Ints weights[] = {load<Ints>(numbers[group]),
                            load<Ints>(numbers[group] + sizeof(Ints))};
    multiply_group<R>(rows, group, weights, sums);
  }
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
