// y = epilogue(x W), W in blocks of 32 inputs with 8 or 4 bits each, x quantized at run time to 8
// bits in the same blocks. Each block of each row and of each output has a scale, as in GGUF's Q8_0
// and Q4_1, so that an outlier coarsens 32 values only.
//
// y = sum over blocks of scale_x scale_w sum(number_x (number_w - zero_w)). Blocks are added in
// order, so that each target gives the same bits for any number of rows. Scales of an output are
// 16-bit numbers of one unit: a scale that is 1000 times smaller than the largest is off by up to
// 1.5 %. AVX2 adds blocks as floats. AVX-512 rounds scales of x, and the sums of 8-bit weights, to
// 16 bits too, and adds two blocks in integers.
#pragma once

#include <stdint.h>

#include "epilogue.h"
#include "integers.h"
#include "weight_format.h"

namespace block_matmul {

using weight_format::kBlockInputs;

// 32 inputs of a row of x for AVX2. After an odd number comes one of zeros.
struct RowBlock {
  int8_t numbers[kBlockInputs];
  float scale;  // of the numbers, / kScaleUnit
  float sum;    // scale * sum(numbers)
  int32_t padding[2];
};

// Two blocks of a row of x for AVX-512, which adds both in integers. A block has the scale
// scales[b] 2^(exponent of the pair - 15). The exponent of the row is at least that of each pair.
struct RowPair {
  int8_t numbers[2][kBlockInputs];
  // -128 * sum(numbers), since the micro-kernels' bytes of weights are + 128. With 8-bit weights,
  // plus half of 2^kRoundedBits, so that dropping those bits rounds.
  int32_t starts[2];
  int16_t scales[2];  // the larger one is at least 2^14
  int16_t sums[2];    // scale * sum(numbers) / 2^15
  int32_t shift;      // the row's exponent - the pair's
  float row_scale;    // 2^(the row's exponent); NaN if an input of the row is not finite
  int32_t padding[2];
};
static_assert(sizeof(RowPair) == 2 * sizeof(RowBlock));

// Two blocks of a panel.
struct Int8Pair {
  int16_t scales[kPanelWidth][2];                    // in units of the output
  uint32_t words[2][kBlockInputs / 4][kPanelWidth];  // as in weight_format::QuantizedBlock<8>
};
struct Int4Pair {
  static constexpr int kZeroPointBits = 8;  // after the point

  int16_t scales[kPanelWidth][2];
  int16_t zero_points[kPanelWidth][2];               // in 2^-kZeroPointBits
  uint32_t words[2][kBlockInputs / 8][kPanelWidth];  // as in weight_format::QuantizedBlock<4>
};

constexpr int64_t kMaxInputs = 65536;
constexpr int64_t kMinMaxSum = 256;  // of PackedMatrix::max_sum

// Scales of outputs are below this, so that AVX2 divides those of x by it: products stay finite.
constexpr float kScaleUnit = 32768.0f;

// The lowest bits of a block's sum with 8-bit weights that AVX-512 rounds away. At most 2^19 -
// 2^12, it then fits into 16 bits.
constexpr int kRoundedBits = 4;

// W [num_inputs, num_outputs] as panels: float units [16], then Int8Pair or Int4Pair [num_pairs].
// The second block after an odd last one is zero.
struct PackedMatrix {
  static constexpr int64_t kUnitBytes = kPanelWidth * sizeof(float);

  const uint8_t* data;
  WeightFormat format;  // kInt8Blocks or kInt4Blocks
  int64_t num_inputs;   // a multiple of 32, up to kMaxInputs
  int64_t num_outputs;
  // AVX-512 makes blocks of x coarser whose sum of |numbers| is larger, to about this sum. With 4
  // bits, the sums of their products with number - zero point then fit into 16 bits.
  int64_t max_sum;

  bool has_4_bits() const { return format == WeightFormat::kInt4Blocks; }
  int64_t num_blocks() const { return num_inputs / kBlockInputs; }
  int64_t num_pairs() const { return div_ceil(num_blocks(), 2); }
  int64_t panel_bytes() const {
    return kUnitBytes + num_pairs() * (has_4_bits() ? sizeof(Int4Pair) : sizeof(Int8Pair));
  }
  const uint8_t* panel(int64_t index) const { return data + index * panel_bytes(); }
  // Of a row of x: RowPair [num_pairs] or RowBlock [2 * num_pairs].
  int64_t row_bytes() const { return num_pairs() * static_cast<int64_t>(sizeof(RowPair)); }
};

// With fewer rows than these, 4-bit panels are multiplied as they are stored. From so many rows on,
// a target may first expand panels to scratch, in a form that takes fewer instructions to read.
constexpr int64_t kMinExpandedRows = 9;
constexpr int64_t kMaxExpandedPanels = 2;  // at once
constexpr int64_t kExpandedBytes = 1280;   // of a panel's pair, at most

// Bytes of scratch to multiply `num_rows` rows.
inline int64_t scratch_size(const PackedMatrix& matrix, int64_t num_rows) {
  const bool may_expand = num_rows >= kMinExpandedRows && matrix.has_4_bits();
  return may_expand ? kMaxExpandedPanels * matrix.num_pairs() * kExpandedBytes : 0;
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

}  // namespace block_matmul
