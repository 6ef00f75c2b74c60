// A panel in blocks, as the micro-kernels read it.
#pragma once

#include "../block_matmul.h"
#include "prefetch.h"
#include "vectors.h"

#include "begin_target.h"

namespace block_matmul::SIMD {

using namespace ::SIMD;
using Int8Block = weight_format::QuantizedBlock<8>;
using Int4Block = weight_format::QuantizedBlock<4>;

constexpr int64_t kKr = 4;  // adjacent inputs of an output, whose four products one lane adds
constexpr int64_t kBlockGroups = kBlockInputs / kKr;
constexpr int64_t kGroupBytes = kKr * kPanelWidth;
constexpr int64_t kBlockBytes = kBlockGroups * kGroupBytes;

// From where a micro-kernel reads a panel: as it is stored, or as `expand` wrote it to scratch.
enum class Source { kStored, kExpanded };

// A block of 4-bit weights as many rows read it. The target says what offsets and numbers are.
struct ExpandedBlock {
  float scales[kPanelWidth];
  int32_t offsets[kPanelWidth];
  uint8_t numbers[kBlockBytes];
};
static_assert(sizeof(ExpandedBlock) == kExpandedBytes);

// The type of a panel's blocks.
template <Source kSource, bool kHasOffsets>
struct BlockOf {
  using Type = ExpandedBlock;
};
template <bool kHasOffsets>
struct BlockOf<Source::kStored, kHasOffsets> {
  using Type = weight_format::QuantizedBlock<kHasOffsets ? 4 : 8>;
};

// One panel as it is stored, or as `expand` wrote it.
struct Panel {
  const uint8_t* blocks;
  int64_t num_bytes;  // of all blocks

  Panel(const uint8_t* blocks, int64_t num_bytes) : blocks(blocks), num_bytes(num_bytes) {}
  // As it is stored.
  Panel(const PackedMatrix& matrix, int64_t index)
      : Panel(matrix.panel(index),
              weight_format::panel_bytes(matrix.format, matrix.num_inputs)) {}
};

INLINE const uint8_t* numbers_of(const ExpandedBlock& block) { return block.numbers; }
template <int kBits>
INLINE const uint8_t* numbers_of(const weight_format::QuantizedBlock<kBits>& block) {
  return reinterpret_cast<const uint8_t*>(block.words);
}

// Scales of outputs v * kLanes and on.
INLINE Floats scales_of(const ExpandedBlock& block, int v) { return load(block.scales + v * kLanes); }
template <int kBits>
INLINE Floats scales_of(const weight_format::QuantizedBlock<kBits>& block, int v) {
  return load_float16(block.halves + v * kLanes);
}

constexpr float kZeroPointUnit = 1.0f / (1 << kZeroPointBits);

// Zero points of outputs v * kLanes and on, in that unit.
INLINE Ints zero_points_of(const Int4Block& block, int v) {
  using Shorts = int16_t __attribute__((ext_vector_type(kLanes)));
  return __builtin_convertvector(load<Shorts>(block.halves + Int4Block::kOffsets + v * kLanes), Ints);
}

// The upper halves of the result are `bits`, of floats, in bfloat16: rounded to nearest, ties to even.
// A NaN need not stay one.
template <typename V>
INLINE V round_to_upper_half(V bits) {
  return bits + 0x7fff + (bits >> 16 & 1);
}

// Writes the 4-bit numbers of a block to `to` [8][16][4], one byte each, plus the bytes of `biases`.
INLINE void expand_4_bits(const uint8_t* from, uint8_t* to, Ints biases) {
  for (int64_t i = 0; i < kBlockBytes / 2; i += kGroupBytes) {
    for (int64_t lane = 0; lane < kGroupBytes; lane += kLanes * kKr) {
      const Ints words = load<Ints>(from + i + lane);
      store(to + 2 * i + lane, (words & 0x0f0f0f0f) + biases);
      store(to + 2 * i + kGroupBytes + lane, (words >> 4 & 0x0f0f0f0f) + biases);
    }
  }
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
