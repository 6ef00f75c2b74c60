// The AVX-512 micro-kernels of blocks: up to 8 rows times one panel, or 6 rows times two.
//
// vpdpbusd adds four products of an unsigned number of x and a signed weight to each 32-bit lane.
// One vpdpwssd then multiplies the sums of two blocks, in 16 bits, by their scales: a single one,
// since it competes with the products for execution ports.
#pragma once

#include "block_panel_avx512.h"
#include "panel_epilogue.h"
#include "row_pointers.h"

#include "begin_target.h"

namespace block_matmul::SIMD {

using PanelEpilogue = ::SIMD::PanelEpilogue<Factors::kRounded>;

// Sums of 4-bit weights and totals take 16 of 32 registers with one panel, and 24 with two panels,
// which share each load of x.
template <int P>
constexpr int kMr = P == 1 ? 8 : 6;
constexpr int kNrPanels = 2;
constexpr int64_t kMaxStoredRows = kMinExpandedRows - 1;

// The 32 bits at `offset` of a row, in each lane.
template <int R>
INLINE __m512i broadcast(const RowPointers<R>& rows, int row, int64_t offset) {
  return _mm512_set1_epi32(rows.template at<int32_t>(row, offset));
}

template <int R, int P>
INLINE void fill(__m512i (*sums)[P], int value) {
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int p = 0; p < P; p++) sums[r][p] = _mm512_set1_epi32(value);
  }
}

// sums[r][p] += x[r] . weights[p], for one block.
template <int kBlock, int R, int P, typename Reader>
INLINE void multiply_block(const RowPointers<R>& rows, Reader* readers, __m512i (*sums)[P]) {
#pragma unroll
  for (int p = 0; p < P; p++) readers[p].template begin_block<kBlock>();
#pragma unroll
  for (int64_t group = 0; group < kBlockGroups; group++) {
    __m512i weights[P];
#pragma unroll
    for (int p = 0; p < P; p++) weights[p] = readers[p].template weights<kBlock>(group);
#pragma unroll
    for (int r = 0; r < R; r++) {
      const __m512i x = broadcast(rows, r, kBlock * kBlockInputs + group * kKr);
#pragma unroll
      for (int p = 0; p < P; p++) sums[r][p] = _mm512_dpbusd_epi32(sums[r][p], x, weights[p]);
    }
  }
}

// Adds the corrections of a block whose weights were read as they are stored.
template <int kBlock, int R, int P, typename Reader>
INLINE void correct_block(const RowPointers<R>& rows, const Reader* readers, __m512i (*sums)[P]) {
  if constexpr (Reader::kIsStored) {
    const int64_t at = offsetof(RowPair, corrections) + kBlock * sizeof(RowPair::corrections[0]);
#pragma unroll
    for (int p = 0; p < P; p++) {
      const __m512i of_weights = readers[p].template sums<kBlock>();
#pragma unroll
      for (int r = 0; r < R; r++) {
        sums[r][p] = _mm512_dpwssd_epi32(sums[r][p], of_weights, broadcast(rows, r, at));
      }
    }
  }
}

// sums[r][p] = x[r] . weights[p] for two blocks, in 16 bits each, the first in the lower half. With
// Reading::kStored, the result is corrected for the zero points of x. Sums of 4-bit weights share
// one register: a negative lower sum borrows 1 from the upper. Every other pair adds 1 to the upper
// sum, so that borrows do not bias totals.
template <int R, int P, typename Reader>
INLINE void multiply_pair(const RowPointers<R>& rows, Reader* readers, bool adds_one,
                          __m512i (*sums)[P]) {
  constexpr int kBits = Reader::kHas4Bits ? 0 : kRoundedBits;
  constexpr int kStart = kBits ? 1 << (kBits - 1) : 0;  // so that dropping bits rounds
  const int start = Reader::kHas4Bits && Reader::kIsStored ? adds_one : kStart;
  fill<R, P>(sums, start);
  multiply_block<1, R, P>(rows, readers, sums);
  correct_block<1, R, P>(rows, readers, sums);
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int p = 0; p < P; p++) sums[r][p] = _mm512_slli_epi32(sums[r][p], 16 - kBits);
  }
  if constexpr (Reader::kHas4Bits) {
    multiply_block<0, R, P>(rows, readers, sums);
    correct_block<0, R, P>(rows, readers, sums);
  } else {
    __m512i lower[R][P];
    fill<R, P>(lower, kStart);
    multiply_block<0, R, P>(rows, readers, lower);
    correct_block<0, R, P>(rows, readers, lower);
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
      for (int p = 0; p < P; p++) {
        sums[r][p] = _mm512_mask_mov_epi16(sums[r][p], 0x55555555,
                                           _mm512_srai_epi32(lower[r][p], kBits));
      }
    }
  }
}

constexpr int64_t kGroupMeans = 4;  // means of x per vpdpbusd

// totals[r] += sum of means of x[r] times offsets of a panel. `rows` point to their RowEnds.
template <int R, int P, typename Reader>
INLINE void add_offsets(RowPointers<R> rows, const PackedMatrix& matrix, Reader reader,
                        Floats* totals) {
  __m512i sums[R];
  Floats mean_scales[R];
#pragma unroll
  for (int r = 0; r < R; r++) {
    sums[r] = broadcast(rows, r, offsetof(RowEnd, start));
    mean_scales[r] = rows.template at<float>(r, offsetof(RowEnd, mean_scale));
  }
#pragma nounroll
  for (int64_t left = matrix.num_pairs(); left > 0; left -= 2) {
    const __m512i offsets = reader.offsets(left == 1);
    reader.advance(2);
#pragma unroll
    for (int r = 0; r < R; r++) {
      sums[r] = _mm512_dpbusd_epi32(sums[r], offsets, broadcast(rows, r, sizeof(RowEnd)));
    }
    rows.advance(kGroupMeans);
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
    const auto sum = reinterpret_cast<Floats>(_mm512_cvtepi32_ps(sums[r]));
    totals[r * P] = fma(sum, mean_scales[r], totals[r * P]);
  }
}

// R rows times P panels of Pairs. Prefetches a part of the next panels with each pair.
template <int R, int P, typename Pair, Reading kReading>
void multiply_micro_tile(const uint8_t* quantized, const PackedMatrix& matrix, const Panels& panels,
                         const PanelEpilogue* epilogues, RangePrefetcher& next_panels) {
  using Reader = PairReader<Pair, kReading>;
  constexpr bool kHas8Bits = !Reader::kHas4Bits;
  constexpr int kBits = kHas8Bits ? kRoundedBits : 0;
  constexpr bool kIsStored = Reader::kIsStored;
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
    __m512i sums[R][P], scales[P];
    const char* corrections[P];
    const bool adds_one = left % 2;
    multiply_pair<R, P>(rows, readers, adds_one, sums);
#pragma unroll
    for (int p = 0; p < P; p++) {
      scales[p] = readers[p].scales();
      if constexpr (!kIsStored) corrections[p] = readers[p].corrections(adds_one);
      readers[p].advance();
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
      const __m512i row_scales = broadcast(rows, r, offsetof(RowPair, scales));
      const __m512i shift = broadcast(rows, r, offsetof(RowPair, shift));
      const int64_t zero_points = rows.template at<int32_t>(r, offsetof(RowPair, zero_points));
#pragma unroll
      for (int p = 0; p < P; p++) {
        if constexpr (!kIsStored) {
          const auto correction = load<__m512i>(corrections[p] + zero_points);
          sums[r][p] = kHas8Bits ? _mm512_add_epi16(sums[r][p], correction)
                                 : _mm512_add_epi32(sums[r][p], correction);
        }
        const __m512i factors = multiply_high(scales[p], row_scales);
        __m512i total = _mm512_dpwssd_epi32(_mm512_setzero_si512(), sums[r][p], factors);
        total = _mm512_srav_epi32(total, shift);
        totals[r][p] += reinterpret_cast<Floats>(_mm512_cvtepi32_ps(total));
      }
    }
    rows.advance(sizeof(RowPair));
  }
#pragma unroll
  for (int p = 0; p < P; p++) {
    if constexpr (!kHas8Bits) {
      add_offsets<R, P>(rows, matrix, Reader(matrix, panels, p), totals[0] + p);
    }
    const Floats units = units_of(panels.stored + p * matrix.panel_bytes(), 0) * (1 << kBits);
#pragma unroll
    for (int r = 0; r < R; r++) {
      totals[r][p] *= units * rows.template at<float>(r, offsetof(RowEnd, scale));
    }
    epilogues[p].apply<R>(totals[0] + p, P);
  }
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
