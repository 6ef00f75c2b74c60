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
  Floats best = 0.0f, sum = 0.0f;
#pragma unroll
  for (int64_t i = 0; i < kBlockInputs; i += kLanes) {
    const Floats value = abs(load(x + i));
    best = max(best, value);
    sum += value;
  }
  const Ints is_nan = sum != sum;
  return any_true(is_nan) ? __builtin_nanf("") : reduce_max(best);
}

INLINE void quantize_block(const float* x, bool has_8_bits, RowBlock& out) {
  const float found = max_abs_of(x);
  const float max_abs = found < kMinMaxAbs ? kMinMaxAbs : found;  // a NaN stays NaN
  const float inverse = 127.0f / max_abs;
  Ints total = 0;
#pragma unroll
  for (int64_t i = 0; i < kBlockInputs; i += kLanes) {
    const Ints numbers = nearest_int(load(x + i) * inverse);
    store_low_bytes(out.numbers + i, numbers);
    total += numbers;
  }
  // Unsigned: the numbers of a block with an infinity are arbitrary.
  const uint32_t sum = static_cast<uint32_t>(reduce_sum(total));
  out.scale = round_scale(max_abs * (1.0f / 127.0f));
  out.shift = -kBias * out.scale;
  out.start = static_cast<int32_t>(has_8_bits ? kFloatBias - 128 * sum : kFloatBias);
  out.sum = out.scale * static_cast<float>(static_cast<int32_t>(sum));
}

#if SIMD_BITS == 512

constexpr int64_t kGroupBlocks = 16;  // that are quantized together

// As quantize_block, for kGroupBlocks neighbours.
INLINE void quantize_group(const float* x, bool has_8_bits, RowBlock* out) {
  const auto load_half = [&](int64_t block, int64_t half) __attribute__((always_inline)) {
    return load(x + block * kBlockInputs + half * kLanes);
  };
  __m512i partial[kGroupBlocks];
#pragma unroll
  for (int64_t b = 0; b < kGroupBlocks; b++) {
    // As unsigned numbers, magnitudes have the same order, and a NaN is the largest.
    partial[b] = _mm512_max_epu32(reinterpret_cast<__m512i>(abs(load_half(b, 0))),
                                  reinterpret_cast<__m512i>(abs(load_half(b, 1))));
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
  const Ints starts = static_cast<int32_t>(kFloatBias) - (has_8_bits ? sums << 7 : Ints(0));
  const Floats scaled_sums = scales * __builtin_convertvector(sums, Floats);
#pragma unroll
  for (int64_t b = 0; b < kGroupBlocks; b++) {
    out[b].scale = scales[b];
    out[b].shift = shifts[b];
    out[b].start = starts[b];
    out[b].sum = scaled_sums[b];
  }
}

#endif

// P panels times up to mc rows.
template <int P, Source kSource, bool kHasOffsets>
void multiply_panels(const RowBlock* blocks, int64_t num_blocks, int64_t num_rows,
                     const Panel* panels, PanelEpilogue* epilogues) {
  // Spread over the whole run, so that memory is read all the time.
  const int64_t panel_bytes = num_blocks * panels[0].halves_stride;
  RangePrefetcher next_panels(panels[0].halves + P * panel_bytes, P * panel_bytes,
                              div_ceil(num_rows, kMr) * num_blocks);
  while (num_rows) {
    const int64_t count = div_ceil(num_rows, div_ceil(num_rows, kMr));
    with_static_count<kMr>(count, [&](auto mr) {
      multiply_micro_tile<mr.kCount, P, kSource, kHasOffsets>(blocks, num_blocks, panels,
                                                               epilogues, next_panels);
    });
    blocks += count * num_blocks;
    num_rows -= count;
    for (int p = 0; p < P; p++) epilogues[p].advance(count);
  }
}

// P panels times all rows. Many rows read 4-bit panels from `scratch`.
template <int P, bool kHasOffsets>
void multiply_rows(const RowBlock* blocks, int64_t num_blocks, int64_t num_rows, Panel* panels,
                   PanelEpilogue* epilogues, uint8_t* scratch) {
  if constexpr (kHasOffsets) {
    if (num_rows > kMaxStoredRows) {
      for (int p = 0; p < P; p++) {
        expand(panels[p], num_blocks, scratch + p * num_blocks * kMaxExpandedBytes);
      }
      return multiply_panels<P, Source::kExpanded, true>(blocks, num_blocks, num_rows, panels,
                                                         epilogues);
    }
  }
  multiply_panels<P, Source::kStored, kHasOffsets>(blocks, num_blocks, num_rows, panels, epilogues);
}

// Panels index .. index + P - 1.
template <int P>
void multiply_at(int64_t index, const RowBlock* blocks, const Rows& rows,
                 const PackedMatrix& matrix, const Epilogue& epilogue, uint8_t* scratch, float* y) {
  const auto multiply_with = [&](Panel* panels, PanelEpilogue* epilogues) {
    const int64_t num_blocks = matrix.num_blocks();
    if (matrix.format == WeightFormat::kInt4Blocks) {
      multiply_rows<P, true>(blocks, num_blocks, rows.count, panels, epilogues, scratch);
    } else {
      multiply_rows<P, false>(blocks, num_blocks, rows.count, panels, epilogues, scratch);
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

}  // namespace

void quantize(const float* x, const Rows& rows, int64_t num_inputs, WeightFormat format,
              RowBlock* blocks) {
  const bool has_8_bits = format == WeightFormat::kInt8Blocks;
  for (int64_t row = 0; row < rows.count; row++) {
    const float* const from = x + rows[row] * num_inputs;
    int64_t i = 0;
#if SIMD_BITS == 512
    for (; i + kGroupBlocks * kBlockInputs <= num_inputs; i += kGroupBlocks * kBlockInputs) {
      quantize_group(from + i, has_8_bits, blocks);
      blocks += kGroupBlocks;
    }
#endif
    for (; i < num_inputs; i += kBlockInputs) quantize_block(from + i, has_8_bits, *blocks++);
  }
}

void multiply(const RowBlock* blocks, const Rows& rows, const PackedMatrix& matrix,
              const Epilogue& epilogue, int64_t first_panel, int64_t last_panel, uint8_t* scratch,
              float* y) {
  int64_t index = first_panel;
  if constexpr (kNrPanels == 2) {
    for (; index + 2 <= last_panel; index += 2) {
      multiply_at<2>(index, blocks, rows, matrix, epilogue, scratch, y);
    }
  }
  for (; index < last_panel; index++) {
    multiply_at<1>(index, blocks, rows, matrix, epilogue, scratch, y);
  }
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
