// The micro-kernels of blocks for AVX2 and NEON: up to 3 rows times one panel.
#pragma once

#ifdef __aarch64__
#include "block_products_neon.h"
#else
#include "block_products_avx2.h"
#endif
#include "panel_epilogue.h"

#include "begin_target.h"

namespace block_matmul::SIMD {

using PanelEpilogue = ::SIMD::PanelEpilogue<Factors::kRounded>;

template <int P>
constexpr int kMr = 3;
constexpr int kNrPanels = 1;

// totals += sums times the scales of rows and outputs.
template <int R>
INLINE void add_products(const RowPointers<R>& rows, const Sums<R>& sums, int half, Floats scales,
                         Floats (*totals)[2]) {
#pragma unroll
  for (int r = 0; r < R; r++) {
    const Floats scale = rows.template at<float>(r, offsetof(RowBlock, scale));
    const Floats product = __builtin_convertvector(sums[r][half], Floats) * scale;
    totals[r][half] = fma(product, scales, totals[r][half]);
  }
}

// A block of a panel of 4-bit weights, expanded for many rows.
struct ExpandedBlock {
  float scales[kPanelWidth], offsets[kPanelWidth];
  uint8_t numbers[kBlockGroups][kGroupBytes];
};
static_assert(2 * sizeof(ExpandedBlock) <= kExpandedBytes);

// The values of block `block` for outputs half * 8 and on; a pair's two blocks are interleaved.
INLINE Floats alternate_of(const int16_t (*values)[2], int block, int half) {
  const Ints both = load<Ints>(values + half * kLanes);
  return __builtin_convertvector((block ? both : both << 16) >> 16, Floats);
}

// The same for 8-bit values, times 2^kShift.
template <int kShift>
INLINE Floats alternate_of(const uint8_t (*values)[2], int block, int half) {
  using Words = uint16_t __attribute__((ext_vector_type(kLanes)));
  const Ints both = __builtin_convertvector(load<Words>(values + half * kLanes), Ints);
  return __builtin_convertvector((block ? both >> 8 : both & 255) << kShift, Floats);
}

template <typename Pair>
INLINE Floats scales_of(const Pair& pair, int block, int half) {
  return alternate_of(pair.scales, block, half);
}
template <>
INLINE Floats scales_of(const SmallInt4Pair& pair, int block, int half) {
  return alternate_of<SmallInt4Pair::kScaleShift>(pair.scales, block, half);
}
template <>
INLINE Floats scales_of(const ExpandedBlock& block, int, int half) {
  return load(block.scales + half * kLanes);
}

INLINE Floats zero_points_of(const Int4Pair& pair, int block, int half) {
  return alternate_of(pair.zero_points, block, half);
}
INLINE Floats zero_points_of(const SmallInt4Pair& pair, int block, int half) {
  return alternate_of<SmallInt4Pair::kZeroPointShift>(pair.zero_points, block, half);
}

// -zero point * scale of each output.
template <typename Pair>
INLINE Floats offsets_of(const Pair& pair, int block, int half) {
  constexpr float kUnit = 1.0f / (1 << kZeroPointBits);
  return zero_points_of(pair, block, half) * (scales_of(pair, block, half) * -kUnit);
}
template <>
INLINE Floats offsets_of(const ExpandedBlock& block, int, int half) {
  return load(block.offsets + half * kLanes);
}

// Adds one block's products to `sums`, which are zero.
template <int R, typename Pair>
INLINE void multiply_block(const RowPointers<R>& rows, const Pair& pair, int block, Sums<R>& sums) {
  if constexpr (kIsInt4<Pair>) {
    multiply_4_bits<R>(rows, pair.words[block], sums);
  } else {
    multiply_8_bits<R>(rows, pair, block, sums);
  }
}
template <int R>
INLINE void multiply_block(const RowPointers<R>& rows, const ExpandedBlock& block, int,
                           Sums<R>& sums) {
  multiply_expanded<R>(rows, block.numbers, sums);
}

// Expands the blocks of a panel of 4-bit weights to scratch.
template <typename Pair>
inline void expand(const PackedMatrix& matrix, const Pair* from, ExpandedBlock* to) {
  for (int64_t i = 0; i < matrix.num_blocks(); i++, to++) {
    const Pair& pair = from[i / 2];
    const int block = i % 2;
    for (int half = 0; half < 2; half++) {
      store(to->scales + half * kLanes, scales_of(pair, block, half));
      store(to->offsets + half * kLanes, offsets_of(pair, block, half));
    }
    for (int64_t group = 0; group < kBlockGroups; group += 2) {
      for (int64_t lane = 0; lane < kPanelWidth; lane += kLanes) {
        const Ints both = load<Ints>(pair.words[block][group / 2] + lane);
        store(to->numbers[group] + lane * kKr, both & 0x0f0f0f0f);
        store(to->numbers[group + 1] + lane * kKr, both >> 4 & 0x0f0f0f0f);
      }
    }
  }
}

// R rows times the blocks or pairs of a panel.
template <int R, typename Part>
INLINE void multiply_parts(const uint8_t* quantized, const PackedMatrix& matrix,
                           const Panels& panel, const Part* part, const PanelEpilogue& epilogue,
                           RangePrefetcher& next_panels) {
  Floats totals[R][2];
#pragma unroll
  for (int r = 0; r < R; r++) {
    totals[r][0] = totals[r][1] = 0.0f;
    epilogue.prefetch(r);
  }
  RowPointers<R> rows(quantized, matrix.row_bytes());
  const auto add_block = [&](const Part& part, int block) __attribute__((always_inline)) {
    Sums<R> sums = {};
    multiply_block<R>(rows, part, block, sums);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      add_products<R>(rows, sums, half, scales_of(part, block, half), totals);
      if constexpr (kIsInt4<Part>) {
        const Floats offsets = offsets_of(part, block, half);
#pragma unroll
        for (int r = 0; r < R; r++) {
          const Floats row_sum = rows.template at<float>(r, offsetof(RowBlock, sum));
          totals[r][half] = fma(row_sum, offsets, totals[r][half]);
        }
      }
    }
    rows.advance(sizeof(RowBlock));
  };
  constexpr int kBlocks = __is_same(Part, ExpandedBlock) ? 1 : 2;
  for (int64_t i = 0; i < matrix.num_blocks(); i += kBlocks, part++) {
    next_panels.step();
    add_block(*part, 0);
    if constexpr (kBlocks == 2) add_block(*part, 1);
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      totals[r][half] *= units_of(panel.stored, half) * kScaleUnit;
    }
  }
  epilogue.apply<R>(totals[0], 2);
}

// R rows times a panel of Pairs.
template <int R, int P, typename Pair, Reading kReading>
void multiply_micro_tile(const uint8_t* quantized, const PackedMatrix& matrix, const Panels& panel,
                         const PanelEpilogue* epilogue, RangePrefetcher& next_panels) {
  const auto* const stored = parts_of<Pair>(panel.stored);
  if constexpr (kReading == Reading::kStored) {
    multiply_parts<R>(quantized, matrix, panel, stored, *epilogue, next_panels);
  } else {
    auto* const expanded = reinterpret_cast<ExpandedBlock*>(panel.expanded);
    if constexpr (kReading == Reading::kExpand) expand(matrix, stored, expanded);
    multiply_parts<R>(quantized, matrix, panel, expanded, *epilogue, next_panels);
  }
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
