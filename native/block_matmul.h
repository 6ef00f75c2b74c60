// y = epilogue(x W), W in blocks of 32 inputs with 8, 6 or 4 bits each, x quantized at run time to
// 8 bits in the same blocks. Each block of each row and of each output has a scale, as in GGUF's
// Q8_0 and Q4_1, so that an outlier coarsens 32 values only.
//
// y = sum over blocks of scale_x scale_w sum((number_x - zero_x) (number_w - zero_w)). Blocks are
// added in order, so that each target gives the same bits for any number of rows. Scales of an
// output are 16-bit multiples of one unit: a scale that is 1000 times smaller than the largest is
// off by up to 1.5 %. AVX2 and NEON add blocks in fp32, with zero_x = 0. AVX-512 chooses zero_x,
// rounds scales of x and the sums of 8-bit weights to 16 bits too, and adds two blocks in integers.
// It adds the contribution of the fractions of zero_w at the end of a row, in 8 bits.
#pragma once

#include <stdint.h>

#include "epilogue.h"
#include "integers.h"
#include "weight_format.h"

namespace block_matmul {

using weight_format::kBlockInputs;

// 32 inputs of a row of x for AVX2 and NEON. An odd number of blocks is followed by one of zeros.
struct RowBlock {
  int8_t numbers[kBlockInputs];
  float scale;  // scale of x / kScaleUnit
  float sum;    // scale * sum(numbers)
  int32_t padding[2];
};

// The zero points of a block of x for AVX-512. Numbers from 0 to 255 have 127 steps on either side
// of kMiddle, or 191 on one side and 64 on the other, whichever makes steps finer: beside an
// outlier, up to 1.5 times. The scale is negative if the longer side is that of negative values.
constexpr int kMiddle = 128, kOneSided = 64;
constexpr int kOneSidedFlag = 64;

// Two blocks of a row of x for AVX-512, which adds both in integers. The scale of block b is
// scales[b] 2^(exponent of the pair - 15). The row's exponent is at least that of each pair.
struct RowPair {
  uint8_t numbers[2][kBlockInputs];
  int16_t scales[2];    // the larger magnitude is at least 2^14, unless both blocks are zero
  int32_t shift;        // the row's exponent minus the pair's
  int32_t zero_points;  // sum of kOneSidedFlag << b over the blocks b with zero point kOneSided
  int32_t padding;
  int16_t corrections[2][2];  // of each block: sum(zero point - numbers), -zero point
  int32_t more_padding[2];
};

// Follows the pairs of a row. With 8-bit weights, only the scale is used.
struct RowEnd {
  float scale;       // 2^(the row's exponent); NaN if an input of the row is not finite
  float mean_scale;  // of sum(means * offsets); units and `scale` multiply the result
  int32_t start;     // -128 * sum(means): offset bytes are stored + 128
  int32_t padding;
  int8_t means[];  // of x in each block, then zeros to a multiple of kMeansAlignment
};
constexpr int64_t kMeansAlignment = 16;

// Offsets: the fractions of the zero points of 4-bit weights, times the scales, as 8-bit multiples
// of 2^kOffsetBits units of the output.
constexpr int kOffsetBits = 7;

// Two adjacent blocks of a panel.
struct Int8Pair {
  int16_t scales[kPanelWidth][2];  // in units of the output
  int8_t numbers[2][kBlockInputs / 4][kPanelWidth][4];
};
// Int8Pair for numbers that are multiples of 4, in 3/4 of the memory. The two free low bits of
// three groups hold the fourth group: bits 7 and 6, then 5 and 4, then 3 and 2.
struct Int6Pair {
  int16_t scales[kPanelWidth][2];
  uint8_t numbers[2][kBlockInputs / 16][3][kPanelWidth][4];
};
constexpr int kZeroPointBits = 8;  // fractional bits
using Int4Words = uint32_t[2][kBlockInputs / 8][kPanelWidth];  // as weight_format::QuantizedBlock<4>
struct Int4Pair {
  int16_t scales[kPanelWidth][2];
  int16_t zero_points[kPanelWidth][2];  // in 2^-kZeroPointBits
  Int4Words words;
};
// Int4Pair in a tenth less memory: its fields are these shifted left. Zero points are 0 to 15
// 15/16.
struct SmallInt4Pair {
  static constexpr int kScaleShift = 7, kZeroPointShift = 4;

  uint8_t scales[kPanelWidth][2];
  uint8_t zero_points[kPanelWidth][2];
  Int4Words words;
};

constexpr int64_t kMaxInputs = 65536;
constexpr int64_t kMinMaxSum = 256;  // lower bound of PackedMatrix::max_sum

// Scales of outputs are below this. AVX2 and NEON divide the scales of x by it, so that products
// stay finite.
constexpr float kScaleUnit = 32768.0f;

// The low bits that AVX-512 rounds off a block's sum with 8-bit weights: the sum is below 2^19 and
// then fits into 16 bits.
constexpr int kRoundedBits = 4;

// W [num_inputs, num_outputs] as panels: float units [16], then [num_pairs] of the format's pairs.
// If the number of blocks is odd, the last block is zero.
struct PackedMatrix {
  static constexpr int64_t kUnitBytes = kPanelWidth * sizeof(float);

  const uint8_t* data;
  WeightFormat format;  // one of the block formats
  int64_t num_inputs;   // a multiple of 32, up to kMaxInputs
  int64_t num_outputs;
  // A bound on a block's sum of |number - zero point|. AVX-512 quantizes blocks of x above it more
  // coarsely, so that the sums of their products with weights fit into 16 bits.
  int64_t max_sum;

  bool has_4_bits() const {
    return format == WeightFormat::kInt4Blocks || format == WeightFormat::kSmallInt4Blocks;
  }
  int64_t pair_bytes() const {
    switch (format) {
      case WeightFormat::kInt4Blocks: return sizeof(Int4Pair);
      case WeightFormat::kSmallInt4Blocks: return sizeof(SmallInt4Pair);
      case WeightFormat::kInt6Blocks: return sizeof(Int6Pair);
      default: return sizeof(Int8Pair);
    }
  }
  int64_t num_blocks() const { return num_inputs / kBlockInputs; }
  int64_t num_pairs() const { return div_ceil(num_blocks(), 2); }
  int64_t panel_bytes() const { return kUnitBytes + num_pairs() * pair_bytes(); }
  const uint8_t* panel(int64_t index) const { return data + index * panel_bytes(); }
  // Bytes of a quantized row of x: RowPair [num_pairs] and a RowEnd, or RowBlock [2 * num_pairs].
  int64_t row_bytes() const {
    static_assert(sizeof(RowPair) <= 2 * sizeof(RowBlock));
    constexpr int64_t kPair = sizeof(RowPair), kEnd = sizeof(RowEnd);
    return num_pairs() * kPair + kEnd + round_up(num_blocks(), kMeansAlignment);
  }
};

// For fewer rows, panels are multiplied as they are stored. From this number on, a target may first
// expand panels to scratch, in a form that takes fewer instructions to read.
constexpr int64_t kMinExpandedRows = 9;
constexpr int64_t kMaxExpandedPanels = 2;  // expanded together
// Upper bounds per pair of a panel. Numbers of 8 bits are not expanded.
constexpr int64_t kExpandedBytes = 1408, kExpandedInt8Bytes = 256;

// Bytes of scratch to multiply `num_rows` rows.
inline int64_t scratch_size(const PackedMatrix& matrix, int64_t num_rows) {
  if (num_rows < kMinExpandedRows) return 0;
  const bool has_8_bits = matrix.format == WeightFormat::kInt8Blocks;
  return kMaxExpandedPanels * matrix.num_pairs() *
         (has_8_bits ? kExpandedInt8Bytes : kExpandedBytes);
}

// Quantizes rows of x [.., num_inputs] for products with `matrix`: quantized
// [rows.count][row_bytes].
using Quantize = void(const float* x, const Rows& rows, const PackedMatrix& matrix,
                      uint8_t* quantized);

// Computes panels first_panel .. last_panel - 1 of the given rows of y [.., width]. `quantized`
// begins with the first of those rows.
using Multiply = void(const uint8_t* quantized, const Rows& rows, const PackedMatrix& matrix,
                      const Epilogue& epilogue, int64_t first_panel, int64_t last_panel,
                      uint8_t* scratch, float* y);

// Dequantizes the weights of one output, W[:, output], to y [num_inputs].
using ReadOutput = void(const PackedMatrix& matrix, int64_t output, float* y);

}  // namespace block_matmul
