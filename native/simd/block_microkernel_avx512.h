// The AVX-512 micro-kernel of blocks: up to 6 rows times two panels. vpdpbusd adds four products of
// an unsigned weight and a signed number of x to each 32-bit lane.
#pragma once

#include "block_panel.h"
#include "panel_epilogue.h"
#include "row_pointers.h"

#include "begin_target.h"

namespace block_matmul::SIMD {

constexpr int kMr = 6, kNrPanels = 2;  // exact sums and totals in 24 of 32 registers

// 4-bit panels are expanded for more rows than these.
constexpr int64_t kMaxStoredRows = kMinExpandedRows - 1;

// A zero point has a whole part, which is subtracted from the numbers, and a rest from -1/2 to 1/2
// step, whose product with the sum of x is added as an offset. Offsets are small, so that bfloat16 is
// fine enough for them, and one instruction of AVX-512 BF16 adds the offsets of two blocks.
INLINE Ints whole_part(Ints zero_points) {
  return (zero_points + (1 << kZeroPointBits >> 1)) >> kZeroPointBits;
}

// What to add to the bytes of numbers [16 outputs][4]: 128 minus the whole part.
INLINE Ints biases_of(const Int4Block& block) {
  return (128 - whole_part(zero_points_of(block, 0))) * 0x01010101;
}

// Minus the rest, as the bits of a float.
INLINE Ints offset_bits(const Int4Block& block) {
  const Ints zero_points = zero_points_of(block, 0);
  const Ints rest = zero_points - (whole_part(zero_points) << kZeroPointBits);
  return reinterpret_cast<Ints>(__builtin_convertvector(rest, Floats) *
                                (scales_of(block, 0) * -kZeroPointUnit));
}

// The offsets of a block and of the next as pairs of bfloat16; 0 after the last one.
INLINE Ints offset_pairs_of(const Int4Block* block, bool is_last) {
  const Ints first = round_to_upper_half(offset_bits(block[0])) >> 16 & 0xffff;
  if (is_last) return first;
  const Ints second = round_to_upper_half(offset_bits(block[1]));
  return first | (second & static_cast<int32_t>(0xffff0000));
}
INLINE Ints offset_pairs_of(const ExpandedBlock* block, bool) { return load<Ints>(block->offsets); }

// total + the products of two blocks' sums of x with their offsets.
template <bool kHasBfloat16>
INLINE Floats add_offsets(Floats total, Ints sums, Ints offsets) {
  if constexpr (kHasBfloat16) {
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(total),
                                                     reinterpret_cast<__m512bh>(sums),
                                                     reinterpret_cast<__m512bh>(offsets)));
  }
  // vdpbf16ps adds the upper halves first.
  const auto upper = [](Ints pairs) __attribute__((always_inline)) {
    return reinterpret_cast<Floats>(pairs & static_cast<int32_t>(0xffff0000));
  };
  const auto lower = [](Ints pairs) __attribute__((always_inline)) {
    return reinterpret_cast<Floats>(pairs << 16);
  };
  return fma(lower(sums), lower(offsets), fma(upper(sums), upper(offsets), total));
}

// Writes `panel` to scratch as ExpandedBlock [num_blocks], from where it is then read: numbers with
// their biases, and the offsets of the first, third, .. block as pairs.
inline void expand(Panel& panel, int64_t num_blocks, uint8_t* scratch) {
  const auto* from = reinterpret_cast<const Int4Block*>(panel.blocks);
  auto* to = reinterpret_cast<ExpandedBlock*>(scratch);
  for (int64_t i = 0; i < num_blocks; i++, from++, to++) {
    store(to->scales, scales_of(*from, 0));
    if (i % 2 == 0) store(to->offsets, offset_pairs_of(from, i + 1 == num_blocks));
    expand_4_bits(numbers_of(*from), to->numbers, biases_of(*from));
  }
  panel = {scratch, num_blocks * kExpandedBytes};
}

// Adds one block's products: sums[r][p] += x[r] . weights[p], which are bytes.
template <int R, int P, typename Block>
INLINE void multiply_block(const RowPointers<R>& rows, const Block* const* blocks,
                           __m512i (*sums)[P]) {
  const uint8_t* numbers[P];
#pragma unroll
  for (int p = 0; p < P; p++) numbers[p] = numbers_of(*blocks[p]);
  const auto multiply_add = [&](int64_t group, const __m512i* weights) __attribute__((always_inline)) {
#pragma unroll
    for (int r = 0; r < R; r++) {
      const __m512i x = _mm512_set1_epi32(rows.template at<int32_t>(r, group * kKr));
#pragma unroll
      for (int p = 0; p < P; p++) sums[r][p] = _mm512_dpbusd_epi32(sums[r][p], weights[p], x);
    }
  };
  if constexpr (!__is_same(Block, Int4Block)) {
#pragma unroll
    for (int64_t group = 0; group < kBlockGroups; group++) {
      __m512i weights[P];
#pragma unroll
      for (int p = 0; p < P; p++) weights[p] = load<__m512i>(numbers[p] + group * kGroupBytes);
      multiply_add(group, weights);
    }
  } else {
    Ints biases[P];
#pragma unroll
    for (int p = 0; p < P; p++) biases[p] = biases_of(*blocks[p]);
#pragma unroll
    for (int64_t group = 0; group < kBlockGroups; group += 2) {
      Ints words[P];
      __m512i weights[P];
#pragma unroll
      for (int p = 0; p < P; p++) {
        words[p] = load<Ints>(numbers[p] + group / 2 * kGroupBytes);
        weights[p] = reinterpret_cast<__m512i>((words[p] & 0x0f0f0f0f) + biases[p]);
      }
      multiply_add(group, weights);
#pragma unroll
      for (int p = 0; p < P; p++) {
        weights[p] = reinterpret_cast<__m512i>((words[p] >> 4 & 0x0f0f0f0f) + biases[p]);
      }
      multiply_add(group + 1, weights);
    }
  }
}

// The micro-kernel: R rows times P panels. Prefetches a part of the next panels with each block.
template <int R, int P, Source kSource, bool kHasOffsets, bool kHasBfloat16>
void multiply_micro_tile(const RowBlock* blocks, int64_t num_blocks, const Panel* panels,
                         const PanelEpilogue* epilogues, RangePrefetcher& next_panels) {
  using Block = typename BlockOf<kSource, kHasOffsets>::Type;
  Floats totals[R][P];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int p = 0; p < P; p++) {
      totals[r][p] = 0.0f;
      epilogues[p].prefetch(r);
    }
  }
  RowPointers<R> rows(blocks, num_blocks * sizeof(RowBlock));
  const Block* weights[P];
#pragma unroll
  for (int p = 0; p < P; p++) weights[p] = reinterpret_cast<const Block*>(panels[p].blocks);
  const auto add_two_offsets = [&](bool is_last) __attribute__((always_inline)) {
    if constexpr (kHasOffsets) {
      Ints offsets[P];
#pragma unroll
      for (int p = 0; p < P; p++) offsets[p] = offset_pairs_of(weights[p], is_last);
#pragma unroll
      for (int r = 0; r < R; r++) {
        const Ints row_sums = rows.template at<int32_t>(r, offsetof(RowBlock, sums));
#pragma unroll
        for (int p = 0; p < P; p++) {
          totals[r][p] = add_offsets<kHasBfloat16>(totals[r][p], row_sums, offsets[p]);
        }
      }
    }
  };
  const auto add_block = [&]() __attribute__((always_inline)) {
    __m512i sums[R][P];
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
      for (int p = 0; p < P; p++) {
        sums[r][p] = _mm512_set1_epi32(rows.template at<int32_t>(r, offsetof(RowBlock, start)));
      }
    }
    next_panels.step();
    multiply_block<R, P>(rows, weights, sums);
    Floats scales[P];
#pragma unroll
    for (int p = 0; p < P; p++) scales[p] = scales_of(*weights[p], 0);
#pragma unroll
    for (int r = 0; r < R; r++) {
      const Floats scale = rows.template at<float>(r, offsetof(RowBlock, scale));
      const Floats shift = rows.template at<float>(r, offsetof(RowBlock, shift));
#pragma unroll
      for (int p = 0; p < P; p++) {
        const Floats sum = fma(reinterpret_cast<Floats>(sums[r][p]), scale, shift);
        totals[r][p] = fma(sum, scales[p], totals[r][p]);
      }
    }
    rows.advance(sizeof(RowBlock));
#pragma unroll
    for (int p = 0; p < P; p++) weights[p]++;
  };
#pragma nounroll
  for (int64_t i = 0; i < num_blocks; i++) {
    if (i % 2 == 0) add_two_offsets(i + 1 == num_blocks);
    add_block();
  }
  PanelEpilogue::apply_all<R, P>(epilogues, totals[0]);
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
