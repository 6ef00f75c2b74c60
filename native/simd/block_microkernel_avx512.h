// The AVX-512 micro-kernels of blocks: up to 8 rows times one panel.
//
// vpdpbusd adds four products of an unsigned weight and a signed number of x to each 32-bit lane.
// One vpdpwssd then multiplies the sums of two blocks, in 16 bits, by their scales: what follows
// the products competes with them for the same execution ports.
#pragma once

#include "block_panel.h"
#include "panel_epilogue.h"
#include "row_pointers.h"

#include "begin_target.h"

namespace block_matmul::SIMD {

using PanelEpilogue = ::SIMD::PanelEpilogue<Factors::kRounded>;

constexpr int kMr = 8;  // sums of two blocks and totals in 24 of 32 registers
constexpr int64_t kMaxStoredRows = kMinExpandedRows - 1;

// Two blocks of a panel of 4 bits as many rows read them.
struct ExpandedPair {
  int16_t scales[kPanelWidth][2], offsets[kPanelWidth][2];
  uint8_t numbers[2][kBlockBytes];  // with their biases
};
static_assert(sizeof(ExpandedPair) <= kExpandedBytes);
using Expanded = ExpandedPair;

// 16 outputs, two blocks each.
using Shorts = int16_t __attribute__((ext_vector_type(2 * kPanelWidth)));

// A zero point has a whole part, which is subtracted from the numbers, and a rest from -1/2 to 1/2,
// whose product with the scale and the sum of x is subtracted as an offset.
INLINE Shorts whole_parts_of(const Int4Pair& pair) {
  constexpr int kBits = Int4Pair::kZeroPointBits;
  return (load<Shorts>(pair.zero_points) + static_cast<int16_t>(1 << kBits >> 1)) >> kBits;
}

// x y / 2^15, rounded.
INLINE __m512i multiply_high(__m512i x, __m512i y) { return _mm512_mulhrs_epi16(x, y); }

// Minus the rests, times the scales.
INLINE __m512i offsets_of(const Int4Pair& pair) {
  const Shorts whole = whole_parts_of(pair) << Int4Pair::kZeroPointBits;
  const Shorts rests = whole - load<Shorts>(pair.zero_points);
  const Shorts fractions = rests << (15 - Int4Pair::kZeroPointBits);
  return multiply_high(load<__m512i>(pair.scales), reinterpret_cast<__m512i>(fractions));
}
INLINE __m512i offsets_of(const ExpandedPair& pair) { return load<__m512i>(pair.offsets); }

// What to add to the bytes [16 outputs][4] of a block: 128 minus the whole parts.
template <int kBlock>
INLINE Ints biases_of(const Int4Pair& pair) {
  const Shorts biases = 128 - whole_parts_of(pair);
  constexpr char kFirst = 2 * kBlock;  // byte of an output
  const __m128i order = _mm_add_epi8(
      _mm_set1_epi8(kFirst), _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
  return reinterpret_cast<Ints>(_mm512_shuffle_epi8(reinterpret_cast<__m512i>(biases),
                                                    _mm512_broadcast_i32x4(order)));
}

template <int kBlock>
INLINE const uint8_t* bytes_of(const ExpandedPair& pair) {
  return pair.numbers[kBlock];
}
template <int kBlock>
INLINE const uint8_t* bytes_of(const Int8Pair& pair) {
  return reinterpret_cast<const uint8_t*>(pair.words[kBlock]);
}

// Adds the products of one block of a pair: sums[r] += x[r] . weights.
template <int kBlock, int R, typename Pair>
INLINE void multiply_block(const RowPointers<R>& rows, const Pair& pair, __m512i* sums) {
  const auto multiply_add = [&](int64_t group, __m512i weights) __attribute__((always_inline)) {
#pragma unroll
    for (int r = 0; r < R; r++) {
      const int64_t at = kBlock * kBlockInputs + group * kKr;
      const __m512i x = _mm512_set1_epi32(rows.template at<int32_t>(r, at));
      sums[r] = _mm512_dpbusd_epi32(sums[r], weights, x);
    }
  };
#pragma unroll
  for (int r = 0; r < R; r++) {
    const int64_t at = offsetof(RowPair, starts) + kBlock * sizeof(int32_t);
    sums[r] = _mm512_set1_epi32(rows.template at<int32_t>(r, at));
  }
  if constexpr (__is_same(Pair, Int4Pair)) {
    const Ints biases = biases_of<kBlock>(pair);
#pragma unroll
    for (int64_t group = 0; group < kBlockGroups; group += 2) {
      const Ints both = load<Ints>(pair.words[kBlock][group / 2]);
      multiply_add(group, reinterpret_cast<__m512i>((both & 0x0f0f0f0f) + biases));
      multiply_add(group + 1, reinterpret_cast<__m512i>((both >> 4 & 0x0f0f0f0f) + biases));
    }
  } else {
    const auto* const bytes = bytes_of<kBlock>(pair);
#pragma unroll
    for (int64_t group = 0; group < kBlockGroups; group++) {
      multiply_add(group, load<__m512i>(bytes + group * kGroupBytes));
    }
  }
}

// {first, second} as 16 bits each, without their lowest kBits.
template <int kBits>
INLINE __m512i join_sums(__m512i first, __m512i second) {
  if constexpr (kBits) first = _mm512_srai_epi32(first, kBits);
  return _mm512_mask_mov_epi16(first, 0xaaaaaaaa, _mm512_slli_epi32(second, 16 - kBits));
}

// R rows times a panel of Int8Pair, Int4Pair or ExpandedPair. Prefetches a part of the next panel
// with each pair.
template <int R, typename Pair>
void multiply_panel(const uint8_t* quantized, const PackedMatrix& matrix, const uint8_t* panel,
                    const PanelEpilogue& epilogue, RangePrefetcher& next_panel) {
  constexpr bool kHas8Bits = __is_same(Pair, Int8Pair);
  constexpr int kBits = kHas8Bits ? kRoundedBits : 0;
  Floats totals[R];
#pragma unroll
  for (int r = 0; r < R; r++) {
    totals[r] = 0.0f;
    epilogue.prefetch(r);
  }
  RowPointers<R> rows(quantized, matrix.row_bytes());
  const auto* pair = parts_of<Pair>(panel);
  const int64_t num_pairs = matrix.num_pairs();
#pragma nounroll
  for (int64_t i = 0; i < num_pairs; i++, pair++) {
    next_panel.step();
    __m512i sums[2][R];
    multiply_block<0, R>(rows, *pair, sums[0]);
    multiply_block<1, R>(rows, *pair, sums[1]);
    const __m512i scales = load<__m512i>(pair->scales);
    __m512i offsets;
    if constexpr (!kHas8Bits) offsets = offsets_of(*pair);
#pragma unroll
    for (int r = 0; r < R; r++) {
      const auto broadcast = [&](int64_t offset) __attribute__((always_inline)) {
        return _mm512_set1_epi32(rows.template at<int32_t>(r, offset));
      };
      const __m512i factors = multiply_high(scales, broadcast(offsetof(RowPair, scales)));
      __m512i total = _mm512_setzero_si512();
      if constexpr (!kHas8Bits) {
        total = _mm512_madd_epi16(offsets, broadcast(offsetof(RowPair, sums)));
      }
      total = _mm512_dpwssd_epi32(total, join_sums<kBits>(sums[0][r], sums[1][r]), factors);
      total = _mm512_srav_epi32(total, broadcast(offsetof(RowPair, shift)));
      totals[r] += reinterpret_cast<Floats>(_mm512_cvtepi32_ps(total));
    }
    rows.advance(sizeof(RowPair));
  }
  const Floats units = units_of(panel, 0) * (1 << kBits);
#pragma unroll
  for (int r = 0; r < R; r++) {
    constexpr int64_t kInLast = offsetof(RowPair, row_scale) - sizeof(RowPair);
    totals[r] *= units * rows.template at<float>(r, kInLast);
  }
  epilogue.apply<R>(totals, 1);
}

// Writes a panel of 4 bits to scratch: its units, then ExpandedPair [num_pairs].
inline void expand(const PackedMatrix& matrix, const uint8_t* panel, uint8_t* scratch) {
  memcpy(scratch, panel, PackedMatrix::kUnitBytes);
  const auto* from = parts_of<Int4Pair>(panel);
  auto* to = reinterpret_cast<ExpandedPair*>(scratch + PackedMatrix::kUnitBytes);
  for (int64_t i = 0; i < matrix.num_pairs(); i++, from++, to++) {
    memcpy(to->scales, from->scales, sizeof to->scales);
    store(to->offsets, offsets_of(*from));
    expand_block(from->words[0], to->numbers[0], biases_of<0>(*from));
    expand_block(from->words[1], to->numbers[1], biases_of<1>(*from));
  }
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
