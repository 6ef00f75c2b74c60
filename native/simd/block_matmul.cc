#include "../block_matmul.h"

#include <stddef.h>

#include "../integers.h"
#if SIMD_BITS == 512
#include "block_microkernel_avx512.h"
#include "reduce_16.h"
#else
#include "block_microkernel_avx2.h"
#endif

#include "begin_target.h"

namespace block_matmul::SIMD {
namespace {

using namespace ::SIMD;

static_assert(kMaxStoredRows >= kMinExpandedRows - 1, "there is no scratch for fewer rows");

constexpr float kBias = 12582912.0f;  // the float whose bits are kFloatBias
constexpr float kMinMaxAbs = 1e-9f;   // avoids division by zero in a block of zeros
constexpr uint32_t kScaleBits = ~3u;  // clears the two lowest bits of the mantissa

float round_scale(float scale) {
  uint32_t bits;
  memcpy(&bits, &scale, sizeof bits);
  bits &= kScaleBits;
  memcpy(&scale, &bits, sizeof bits);
  return scale;
}

// The largest of 32 magnitudes; NaN if one is.
INLINE float max_abs_of(const float* x) {
  Ints largest = 0;
#pragma unroll
  for (int64_t i = 0; i < kBlockInputs; i += kLanes) {
    largest = max(largest, magnitude_bits(load(x + i)));
  }
  return float_of(reduce_max(largest));
}

// `index`: of the block in its row.
INLINE void store_sum(float sum, int64_t index, RowBlock* out) {
  uint32_t bits;
  memcpy(&bits, &sum, sizeof bits);
  if constexpr (SIMD_BITS == 256) {
    memcpy(out->sums, &bits, sizeof bits);
    return;
  }
  const auto half = static_cast<uint16_t>(round_to_upper_half(bits) >> 16);
  if (index % 2) {
    out[-1].sums[1] = half;
  } else {
    out->sums[0] = half, out->sums[1] = 0;
  }
}

INLINE void quantize_block(const float* x, int64_t index, RowBlock* out) {
  const float found = max_abs_of(x);
  const float max_abs = found < kMinMaxAbs ? kMinMaxAbs : found;  // a NaN stays NaN
  const float inverse = 127.0f / max_abs;
  Ints total = 0;
#pragma unroll
  for (int64_t i = 0; i < kBlockInputs; i += kLanes) {
    const Ints numbers = nearest_int(load(x + i) * inverse);
    store_low_bytes(out->numbers + i, numbers);
    total += numbers;
  }
  // Unsigned: the numbers of a block with an infinity are arbitrary.
  const uint32_t sum = static_cast<uint32_t>(reduce_sum(total));
  out->scale = round_scale(max_abs * (1.0f / 127.0f));
  out->shift = -kBias * out->scale;
  out->start = static_cast<int32_t>(kFloatBias - 128 * sum);
  store_sum(out->scale * static_cast<float>(static_cast<int32_t>(sum)), index, out);
}

#if SIMD_BITS == 512

constexpr int64_t kGroupBlocks = 16;  // that are quantized together

// Stores what follows the numbers of kGroupBlocks blocks: a transposition.
INLINE void store_parameters(Floats scales, Floats shifts, Ints starts, Ints sums, RowBlock* out) {
  const __m512i a = reinterpret_cast<__m512i>(scales), b = reinterpret_cast<__m512i>(shifts);
  const __m512i c = reinterpret_cast<__m512i>(starts), d = reinterpret_cast<__m512i>(sums);
  const __m512i low_ab = _mm512_unpacklo_epi32(a, b), high_ab = _mm512_unpackhi_epi32(a, b);
  const __m512i low_cd = _mm512_unpacklo_epi32(c, d), high_cd = _mm512_unpackhi_epi32(c, d);
  const auto store_lanes = [&](__m512i rows, int64_t first) __attribute__((always_inline)) {
    constexpr int64_t kBegin = offsetof(RowBlock, scale);
    static_assert(sizeof(RowBlock) == kBegin + sizeof(__m128i));
    auto* const to = reinterpret_cast<char*>(out + first) + kBegin;
    store(to, _mm512_extracti32x4_epi32(rows, 0));
    store(to + 4 * sizeof(RowBlock), _mm512_extracti32x4_epi32(rows, 1));
    store(to + 8 * sizeof(RowBlock), _mm512_extracti32x4_epi32(rows, 2));
    store(to + 12 * sizeof(RowBlock), _mm512_extracti32x4_epi32(rows, 3));
  };
  store_lanes(_mm512_unpacklo_epi64(low_ab, low_cd), 0);
  store_lanes(_mm512_unpackhi_epi64(low_ab, low_cd), 1);
  store_lanes(_mm512_unpacklo_epi64(high_ab, high_cd), 2);
  store_lanes(_mm512_unpackhi_epi64(high_ab, high_cd), 3);
}

// As quantize_block, for kGroupBlocks neighbours.
INLINE void quantize_group(const float* x, RowBlock* out) {
  const auto load_half = [&](int64_t block, int64_t half) __attribute__((always_inline)) {
    return load(x + block * kBlockInputs + half * kLanes);
  };
  __m512i partial[kGroupBlocks];
#pragma unroll
  for (int64_t b = 0; b < kGroupBlocks; b++) {
    partial[b] = reinterpret_cast<__m512i>(
        max(magnitude_bits(load_half(b, 0)), magnitude_bits(load_half(b, 1))));
  }
  const Floats found = reinterpret_cast<Floats>(max_16(partial));
  const Floats max_abs = found < Floats(kMinMaxAbs) ? Floats(kMinMaxAbs) : found;
  const Floats inverses = 127.0f / max_abs;
#pragma unroll
  for (int64_t b = 0; b < kGroupBlocks; b++) {
    const Floats inverse = inverses[b];
    const Ints low = nearest_int(load_half(b, 0) * inverse);
    const Ints high = nearest_int(load_half(b, 1) * inverse);
    store_low_bytes(out[b].numbers, low);
    store_low_bytes(out[b].numbers + kLanes, high);
    partial[b] = reinterpret_cast<__m512i>(low + high);
  }
  const Ints sums = sum_16(partial);
  const Floats scales = reinterpret_cast<Floats>(
      reinterpret_cast<Ints>(max_abs * (1.0f / 127.0f)) & static_cast<int32_t>(kScaleBits));
  const Floats shifts = -kBias * scales;
  const Ints starts = static_cast<int32_t>(kFloatBias) - (sums << 7);
  const Ints halves = round_to_upper_half(
      reinterpret_cast<Ints>(scales * __builtin_convertvector(sums, Floats)));
  const Ints next = __builtin_shufflevector(halves, halves, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13,
                                            13, 15, 15);
  const Ints pairs = (halves >> 16 & 0xffff) | (next & static_cast<int32_t>(0xffff0000));
  store_parameters(scales, shifts, starts, pairs, out);
}

#endif

// P panels times up to mc rows.
template <int P, Source kSource, bool kHasOffsets, bool kHasBfloat16>
void multiply_panels(const RowBlock* blocks, int64_t num_blocks, int64_t num_rows,
                     const Panel* panels, const Panel& next, PanelEpilogue* epilogues) {
  // Spread over the whole run, so that memory is read all the time.
  RangePrefetcher next_panels(next.blocks, P * next.num_bytes, div_ceil(num_rows, kMr) * num_blocks);
  while (num_rows) {
    const int64_t count = div_ceil(num_rows, div_ceil(num_rows, kMr));
    with_static_count<kMr>(count, [&](auto mr) {
      multiply_micro_tile<mr.kCount, P, kSource, kHasOffsets, kHasBfloat16>(
          blocks, num_blocks, panels, epilogues, next_panels);
    });
    blocks += count * num_blocks;
    num_rows -= count;
    for (int p = 0; p < P; p++) epilogues[p].advance(count);
  }
}

// P panels times all rows. Many rows read 4-bit panels from `scratch`.
template <int P, bool kHasOffsets, bool kHasBfloat16>
void multiply_rows(const RowBlock* blocks, int64_t num_blocks, int64_t num_rows, Panel* panels,
                   PanelEpilogue* epilogues, uint8_t* scratch) {
  const Panel next(panels[P - 1].blocks + panels[P - 1].num_bytes, panels[0].num_bytes);
  if constexpr (kHasOffsets) {
    if (num_rows > kMaxStoredRows) {
      for (int p = 0; p < P; p++) {
        expand(panels[p], num_blocks, scratch + p * num_blocks * kExpandedBytes);
      }
      return multiply_panels<P, Source::kExpanded, true, kHasBfloat16>(
          blocks, num_blocks, num_rows, panels, next, epilogues);
    }
  }
  multiply_panels<P, Source::kStored, kHasOffsets, kHasBfloat16>(blocks, num_blocks, num_rows,
                                                                panels, next, epilogues);
}

// Panels index .. index + P - 1.
template <int P, bool kHasBfloat16>
void multiply_at(int64_t index, const RowBlock* blocks, const Rows& rows,
                 const PackedMatrix& matrix, const Epilogue& epilogue, uint8_t* scratch, float* y) {
  const auto multiply_with = [&](Panel* panels, PanelEpilogue* epilogues) {
    const int64_t num_blocks = matrix.num_blocks();
    if (matrix.format == WeightFormat::kInt4Blocks) {
      multiply_rows<P, true, kHasBfloat16>(blocks, num_blocks, rows.count, panels, epilogues,
                                           scratch);
    } else {
      multiply_rows<P, false, false>(blocks, num_blocks, rows.count, panels, epilogues, scratch);
    }
  };
  const auto panel_epilogue = [&](int64_t i) {
    return PanelEpilogue(epilogue, Factors::kRounded, matrix.num_outputs, rows, i, y);
  };
  if constexpr (P == 2) {
    Panel panels[] = {{matrix, index}, {matrix, index + 1}};
    PanelEpilogue epilogues[] = {panel_epilogue(index), panel_epilogue(index + 1)};
    multiply_with(panels, epilogues);
  } else {
    Panel panels[] = {{matrix, index}};
    PanelEpilogue epilogues[] = {panel_epilogue(index)};
    multiply_with(panels, epilogues);
  }
}

template <bool kHasBfloat16>
void multiply_all(const RowBlock* blocks, const Rows& rows, const PackedMatrix& matrix,
                  const Epilogue& epilogue, int64_t first_panel, int64_t last_panel,
                  uint8_t* scratch, float* y) {
  int64_t index = first_panel;
  if constexpr (kNrPanels == 2) {
    for (; index + 2 <= last_panel; index += 2) {
      multiply_at<2, kHasBfloat16>(index, blocks, rows, matrix, epilogue, scratch, y);
    }
  }
  for (; index < last_panel; index++) {
    multiply_at<1, kHasBfloat16>(index, blocks, rows, matrix, epilogue, scratch, y);
  }
}

}  // namespace

void quantize(const float* x, const Rows& rows, int64_t num_inputs, RowBlock* blocks) {
  for (int64_t row = 0; row < rows.count; row++) {
    const float* const from = x + rows[row] * num_inputs;
    int64_t i = 0;
#if SIMD_BITS == 512
    for (; i + kGroupBlocks * kBlockInputs <= num_inputs; i += kGroupBlocks * kBlockInputs) {
      quantize_group(from + i, blocks);
      blocks += kGroupBlocks;
    }
#endif
    for (; i < num_inputs; i += kBlockInputs) quantize_block(from + i, i / kBlockInputs, blocks++);
  }
}

void multiply(const RowBlock* blocks, const Rows& rows, const PackedMatrix& matrix,
              const Epilogue& epilogue, int64_t first_panel, int64_t last_panel, uint8_t* scratch,
              float* y) {
  multiply_all<false>(blocks, rows, matrix, epilogue, first_panel, last_panel, scratch, y);
}

#if SIMD_BITS == 512
void multiply_with_bfloat16(const RowBlock* blocks, const Rows& rows, const PackedMatrix& matrix,
                            const Epilogue& epilogue, int64_t first_panel, int64_t last_panel,
                            uint8_t* scratch, float* y) {
  multiply_all<true>(blocks, rows, matrix, epilogue, first_panel, last_panel, scratch, y);
}
#endif

}  // namespace block_matmul::SIMD

#include "end_target.h"
