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

// One panel as it is stored: block b has its numbers at numbers + b * numbers_stride, [8 groups][16
// outputs][4 inputs] if they are bytes, and its scales [16] at halves + b * halves_stride, followed
// by the offsets [16] of 4-bit weights. `expand` replaces some of these, as each target needs.
struct Panel {
  const uint8_t* numbers;
  const uint8_t* halves;
  int64_t numbers_stride, halves_stride;  // bytes

  // As it is stored.
  Panel(const PackedMatrix& matrix, int64_t index) : halves(matrix.panel(index)) {
    const bool has_4_bits = matrix.format == WeightFormat::kInt4Blocks;
    numbers = halves + (has_4_bits ? offsetof(Int4Block, words) : offsetof(Int8Block, words));
    numbers_stride = halves_stride = has_4_bits ? sizeof(Int4Block) : sizeof(Int8Block);
  }

  const uint16_t* scales(int64_t block) const {
    return reinterpret_cast<const uint16_t*>(halves + block * halves_stride);
  }
};

// Scales or offsets of lanes v * kLanes and on.
INLINE Floats load_halves(const uint16_t* halves, int v) { return load_float16(halves + v * kLanes); }

// Writes the 4-bit numbers of a block to `to` [8][16][4], one byte each.
INLINE void expand_4_bits(const uint8_t* from, uint8_t* to) {
  for (int64_t i = 0; i < kBlockBytes / 2; i += kGroupBytes) {
    for (int64_t lane = 0; lane < kGroupBytes; lane += kLanes * kKr) {
      const Ints words = load<Ints>(from + i + lane);
      store(to + 2 * i + lane, words & 0x0f0f0f0f);
      store(to + 2 * i + kGroupBytes + lane, words >> 4 & 0x0f0f0f0f);
    }
  }
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
