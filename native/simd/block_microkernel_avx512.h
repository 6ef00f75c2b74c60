// The AVX-512 micro-kernels of blocks: up to 8 rows times one panel, or 6 rows times two.
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

// With one panel, the sums of two blocks and totals are in 24 of 32 registers. With two, totals are
// in memory, but each number of x is read once for both.
template <int P>
constexpr int kMr = P == 1 ? 8 : 6;
constexpr int kNrPanels = 2;
constexpr int64_t kMaxStoredRows = kMinExpandedRows - 1;

// Two blocks of a panel of 4 bits as many rows read them.
struct ExpandedPair {
  int16_t scales[kPanelWidth][2], offsets[kPanelWidth][2];
  uint8_t numbers[2][kBlockGroups][kGroupBytes];  // with their biases
};
static_assert(sizeof(ExpandedPair) <= kExpandedBytes);

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

// Reads one pair of a panel after another. With Reading::kExpand, it also writes them to scratch.
template <typename Pair, Reading kReading>
class PairReader {
 public:
  // `index`: of one of the adjacent panels.
  INLINE PairReader(const PackedMatrix& matrix, const Panels& panels, int index)
      : stored_(parts_of<Pair>(panels.stored + index * matrix.panel_bytes())),
        expanded_(reinterpret_cast<ExpandedPair*>(panels.expanded) + index * matrix.num_pairs()) {}

  template <int kBlock>
  INLINE void begin_block() {
    if constexpr (kConverts) biases_ = biases_of<kBlock>(*stored_);
  }
  // The bytes [16 outputs][4] of a group, with their biases.
  template <int kBlock>
  INLINE __m512i weights(int64_t group) const {
    if constexpr (kReading == Reading::kExpanded) {
      return load<__m512i>(expanded_->numbers[kBlock][group]);
    } else if constexpr (!kConverts) {
      return load<__m512i>(stored_->words[kBlock][group]);
    } else {
      const Ints words = load<Ints>(stored_->words[kBlock][group / 2]) >> (group % 2 ? 4 : 0);
      const auto bytes = reinterpret_cast<__m512i>((words & 0x0f0f0f0f) + biases_);
      if constexpr (kReading == Reading::kExpand) store(expanded_->numbers[kBlock][group], bytes);
      return bytes;
    }
  }
  INLINE __m512i scales() const {
    if constexpr (kReading == Reading::kExpanded) return load<__m512i>(expanded_->scales);
    const __m512i scales = load<__m512i>(stored_->scales);
    if constexpr (kReading == Reading::kExpand) store(expanded_->scales, scales);
    return scales;
  }
  // Of 4-bit weights.
  INLINE __m512i offsets() const {
    if constexpr (kReading == Reading::kExpanded) return load<__m512i>(expanded_->offsets);
    const __m512i offsets = offsets_of(*stored_);
    if constexpr (kReading == Reading::kExpand) store(expanded_->offsets, offsets);
    return offsets;
  }
  INLINE void advance() {
    if constexpr (kReading != Reading::kExpanded) stored_++;
    if constexpr (kReading != Reading::kStored) expanded_++;
  }

 private:
  static constexpr bool kConverts = __is_same(Pair, Int4Pair) && kReading != Reading::kExpanded;

  const Pair* stored_;
  ExpandedPair* expanded_;
  Ints biases_;
};

// sums[r][p] = x[r] . weights[p], of one block.
template <int kBlock, int R, int P, typename Reader>
INLINE void multiply_block(const RowPointers<R>& rows, Reader* readers, __m512i (*sums)[P]) {
#pragma unroll
  for (int r = 0; r < R; r++) {
    const int64_t at = offsetof(RowPair, starts) + kBlock * sizeof(int32_t);
    const __m512i start = _mm512_set1_epi32(rows.template at<int32_t>(r, at));
#pragma unroll
    for (int p = 0; p < P; p++) sums[r][p] = start;
  }
#pragma unroll
  for (int p = 0; p < P; p++) readers[p].template begin_block<kBlock>();
#pragma unroll
  for (int64_t group = 0; group < kBlockGroups; group++) {
    __m512i weights[P];
#pragma unroll
    for (int p = 0; p < P; p++) weights[p] = readers[p].template weights<kBlock>(group);
#pragma unroll
    for (int r = 0; r < R; r++) {
      const int64_t at = kBlock * kBlockInputs + group * kKr;
      const __m512i x = _mm512_set1_epi32(rows.template at<int32_t>(r, at));
#pragma unroll
      for (int p = 0; p < P; p++) sums[r][p] = _mm512_dpbusd_epi32(sums[r][p], weights[p], x);
    }
  }
}

// {first, second} as 16 bits each, without their lowest kBits.
template <int kBits>
INLINE __m512i join_sums(__m512i first, __m512i second) {
  if constexpr (kBits) first = _mm512_srai_epi32(first, kBits);
  return _mm512_mask_mov_epi16(first, 0xaaaaaaaa, _mm512_slli_epi32(second, 16 - kBits));
}

// R rows times P panels of Pairs. Prefetches a part of the next panels with each pair.
template <int R, int P, typename Pair, Reading kReading>
void multiply_micro_tile(const uint8_t* quantized, const PackedMatrix& matrix, const Panels& panels,
                         const PanelEpilogue* epilogues, RangePrefetcher& next_panels) {
  using Reader = PairReader<Pair, kReading>;
  constexpr bool kHas8Bits = __is_same(Pair, Int8Pair);
  constexpr int kBits = kHas8Bits ? kRoundedBits : 0;
  Floats totals[R][P];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int p = 0; p < P; p++) {
      totals[r][p] = 0.0f;
      epilogues[p].prefetch(r);
    }
  }
  RowPointers<R> rows(quantized, matrix.row_bytes());
  Reader readers[kNrPanels] = {Reader(matrix, panels, 0), Reader(matrix, panels, P - 1)};
#pragma nounroll
  for (int64_t left = matrix.num_pairs(); left; left--) {
    next_panels.step();
    __m512i sums[2][R][P], scales[P], offsets[P];
    multiply_block<0, R, P>(rows, readers, sums[0]);
    multiply_block<1, R, P>(rows, readers, sums[1]);
#pragma unroll
    for (int p = 0; p < P; p++) {
      scales[p] = readers[p].scales();
      if constexpr (!kHas8Bits) offsets[p] = readers[p].offsets();
      readers[p].advance();
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
      const auto broadcast = [&](int64_t offset) __attribute__((always_inline)) {
        return _mm512_set1_epi32(rows.template at<int32_t>(r, offset));
      };
      const __m512i row_scales = broadcast(offsetof(RowPair, scales));
      const __m512i row_sums = broadcast(offsetof(RowPair, sums));
      const __m512i shift = broadcast(offsetof(RowPair, shift));
#pragma unroll
      for (int p = 0; p < P; p++) {
        const __m512i factors = multiply_high(scales[p], row_scales);
        __m512i total = _mm512_setzero_si512();
        if constexpr (!kHas8Bits) total = _mm512_madd_epi16(offsets[p], row_sums);
        total = _mm512_dpwssd_epi32(total, join_sums<kBits>(sums[0][r][p], sums[1][r][p]), factors);
        total = _mm512_srav_epi32(total, shift);
        totals[r][p] += reinterpret_cast<Floats>(_mm512_cvtepi32_ps(total));
      }
    }
    rows.advance(sizeof(RowPair));
  }
#pragma unroll
  for (int p = 0; p < P; p++) {
    const Floats units = units_of(panels.stored + p * matrix.panel_bytes(), 0) * (1 << kBits);
#pragma unroll
    for (int r = 0; r < R; r++) {
      constexpr int64_t kInLast = offsetof(RowPair, row_scale) - sizeof(RowPair);
      totals[r][p] *= units * rows.template at<float>(r, kInLast);
    }
    epilogues[p].apply<R>(totals[0] + p, P);
  }
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
