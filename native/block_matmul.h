// y = epilogue(x W), W in blocks of 32 inputs with 8 or 4 bits each, x quantized at run time to 8 bits
// in the same blocks. Each block of each row and of each output has a scale, as in GGUF's Q8_0 and
// Q4_1, so that an outlier coarsens 32 values only.
//
// y = sum over blocks of scale_x scale_w sum(number_x (number_w - zero_w)). The blocks are added in order,
// so that each target gives the same bits for any number of rows. AVX2 adds them as floats. AVX-512
// rounds scales, and the sums of 8-bit weights, to 16 bits, and adds two blocks in integers.
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
  float scale;  // of the numbers
  float sum;    // scale * sum(numbers)
  int32_t padding[2];
};

// Two blocks of a row of x for AVX-512, which adds both in integers. A block has the scale
// scales[b] 2^(exponent of the pair - 15), and a row adds pairs in units of its largest exponent.
struct RowPair {
  int8_t numbers[2][kBlockInputs];
  // -128 * sum(numbers), since the micro-kernels' bytes of weights are + 128. With 8-bit weights, plus
  // half of what is rounded away.
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

// Of a block's sum of products with 8-bit weights, below 2^19 - 2^12, AVX-512 rounds so many bits away.
constexpr int kRoundedBits = 4;

// W [num_inputs, num_outputs] as panels: float units [16], then Int8Pair or Int4Pair [num_pairs]. The
// second block after an odd last one is zero.
struct PackedMatrix {
  static constexpr int64_t kUnitBytes = kPanelWidth * sizeof(float);

  const uint8_t* data;
  WeightFormat format;  // kInt8Blocks or kInt4Blocks
  int64_t num_inputs;   // a multiple of 32, up to kMaxInputs
  int64_t num_outputs;
  // About the largest sum of |numbers| of a block of x. With AVX-512 and 4 bits, the sums of its
  // products with number - zero point then fit into 16 bits.
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
// a target may first expand a panel to scratch, in a form that takes fewer instructions to read.
constexpr int64_t kMinExpandedRows = 9;
constexpr int64_t kExpandedBytes = 1280;  // of a panel's pair

// Bytes of scratch to multiply `num_rows` rows.
inline int64_t scratch_size(const PackedMatrix& matrix, int64_t num_rows) {
  const bool may_expand = num_rows >= kMinExpandedRows && matrix.has_4_bits();
  return may_expand ? PackedMatrix::kUnitBytes + matrix.num_pairs() * kExpandedBytes : 0;
}

// Quantizes rows of x [.., num_inputs] for products with `matrix`: quantized [rows.count][row_bytes].
using Quantize = void(const float* x, const Rows& rows, const PackedMatrix& matrix,
                      uint8_t* quantized);

// Computes panels first_panel .. last_panel - 1 of the given rows of y [.., width]. `quantized` begins
// with the first of those rows.
using Multiply = void(const uint8_t* quantized, const Rows& rows, const PackedMatrix& matrix,
                      const Epilogue& epilogue, int64_t first_panel, int64_t last_panel,
                      uint8_t* scratch, float* y);

}  // namespace block_matmul
