// y = epilogue(x W), W in blocks of 32 inputs with 8 or 4 bits each (weight_format.h), x quantized
// at run time to 8 bits in the same blocks. Each block of each row and of each output has a scale,
// as in GGUF's Q8_0 and Q4_1, so that an outlier coarsens 32 values only.
//
// y = sum over blocks of scale_x scale_w sum(number_x (number_w - zero_w)). Sums of products of integers
// are exact and the blocks are added in order, so that each target gives the same bits for any number
// of rows.
#pragma once

#include <stdint.h>

#include "epilogue.h"
#include "weight_format.h"

namespace block_matmul {

using weight_format::kBlockInputs;

// An int32 sum s below 2^22 added to the bits of the float 1.5 * 2^23 gives the float 1.5 * 2^23 + s
// without a conversion.
constexpr uint32_t kFloatBias = 0x4b400000;

// 32 inputs of a row of x.
struct RowBlock {
  int8_t numbers[kBlockInputs];
  float scale;    // of the numbers; its two lowest bits are 0, so that 1.5 * 2^23 * scale is exact
  float shift;    // -1.5 * 2^23 * scale
  int32_t start;  // kFloatBias - 128 * sum(numbers): the micro-kernels' bytes of weights are + 128
  // scale * sum(numbers). AVX2: a float. AVX-512: in bfloat16, of this block and of the next, or 0
  // after the last one; only the first, third, .. block has them.
  uint16_t sums[2];
};

// After the point. Zero points are from -112 to 112, so that 128 + number - zero point is a byte.
constexpr int kZeroPointBits = 8;

// W [num_inputs, num_outputs] as panels in kInt8Blocks, or in kInt4Blocks with zero points instead of
// offsets: int16, in units of 2^-kZeroPointBits.
struct PackedMatrix {
  const uint8_t* data;
  WeightFormat format;
  int64_t num_inputs;  // a multiple of 32
  int64_t num_outputs;

  int64_t num_blocks() const { return num_inputs / kBlockInputs; }
  const uint8_t* panel(int64_t index) const {
    return data + index * weight_format::panel_bytes(format, num_inputs);
  }
};

// With fewer rows than these, 4-bit panels are multiplied as they are stored. From so many rows on,
// a target may first expand a panel to scratch, in a form that takes fewer instructions to read.
constexpr int64_t kMinExpandedRows = 7;
constexpr int64_t kMaxNrPanels = 2;
constexpr int64_t kExpandedBytes = 640;  // of a panel's block

// Bytes of scratch to multiply `num_rows` rows.
inline int64_t scratch_size(const PackedMatrix& matrix, int64_t num_rows) {
  const bool may_expand =
      num_rows >= kMinExpandedRows && matrix.format == WeightFormat::kInt4Blocks;
  return may_expand ? kMaxNrPanels * matrix.num_blocks() * kExpandedBytes : 0;
}

// Quantizes rows of x [.., num_inputs] to blocks [rows.count][num_inputs / 32].
using Quantize = void(const float* x, const Rows& rows, int64_t num_inputs, RowBlock* blocks);

// Computes panels first_panel .. last_panel - 1 of the given rows of y [.., width]. `blocks` begins
// with the first of those rows.
using Multiply = void(const RowBlock* blocks, const Rows& rows, const PackedMatrix& matrix,
                      const Epilogue& epilogue, int64_t first_panel, int64_t last_panel,
                      uint8_t* scratch, float* y);

}  // namespace block_matmul
