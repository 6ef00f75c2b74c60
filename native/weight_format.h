// The formats in which a packed panel [num_inputs][16 outputs] of fp32 weights is stored. They are
// lossless: a panel gets a smaller format only if every weight is restored bit for bit, as in
// checkpoints of 16 bits and those quantized to 8 or 4 bits in blocks of 32 inputs.
//
// The fp32 micro-kernel multiplies fp32 only: simd/matmul.cc decompresses panels first.
#pragma once

#include <stdint.h>

#include "epilogue.h"

// kInt8Blocks is GGUF's Q8_0, kInt4Blocks its Q4_0 and Q4_1. Only block_matmul.h has
// kSmallInt4Blocks and kInt6Blocks. server/runtime/kernels/weights.py has the same numbers.
enum class WeightFormat : int32_t {
  kFloat32 = 0,
  kFloat16 = 1,
  kBFloat16 = 2,
  kInt8Blocks = 3,
  kInt4Blocks = 4,
  kSmallInt4Blocks = 5,
  kInt6Blocks = 6
};

namespace weight_format {

constexpr int64_t kBlockInputs = 32;  // inputs that share a scale

// 32 inputs of a panel's 16 outputs: weight = number * scale + offset. Scales and offsets are
// float16; only 4-bit numbers have offsets. 8-bit numbers are stored + 128. A word holds
// consecutive inputs of one output: four 8-bit numbers, or eight 4-bit numbers, the first four in
// the low halves of its bytes. The words of the 16 outputs precede those of the next inputs.
template <int kBits>
struct QuantizedBlock {
  static constexpr int64_t kInputsPerWord = 32 / kBits;
  static constexpr bool kHasOffsets = kBits == 4;
  static constexpr int64_t kScales = 0, kOffsets = kPanelWidth;  // where they begin in `halves`
  static constexpr int64_t kNumHalves = kHasOffsets ? 32 : 16;
  static constexpr int64_t kNumWords = kBlockInputs / kInputsPerWord * kPanelWidth;

  // The lowest bit of input i in its word.
  static constexpr int bit_of(int64_t i) {
    const int in_word = static_cast<int>(i % kInputsPerWord);
    return in_word % 4 * 8 + in_word / 4 * 4;
  }

  uint16_t halves[kNumHalves];
  uint32_t words[kNumWords];
};

// Bytes of a panel; 0 if the format cannot store that number of inputs.
int64_t panel_bytes(WeightFormat format, int64_t num_inputs);

// Writes `panel` [num_inputs][16] to `out` [panel_bytes]. Returns false if a weight would change;
// -0 may become 0, which changes no sum of products.
using Compress = bool(WeightFormat format, const float* panel, int64_t num_inputs, void* out);

// Writes inputs first .. last - 1 of a panel to out [last - first][16]. Both are multiples of
// kBlockInputs, unless they end the panel.
using Decompress = void(WeightFormat format, const void* panel, int64_t first, int64_t last,
                        float* out);

}  // namespace weight_format
