// A panel in blocks, as the micro-kernels read it, and its numbers expanded to one byte each.
#pragma once

#include "../block_matmul.h"
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

constexpr int kToL2 = 2;  // locality argument of __builtin_prefetch

// How a micro-kernel reads numbers: packed as two to a byte, or one byte each.
enum class Numbers { kPacked4, kBytes };

// One panel: block b has its numbers at numbers + b * numbers_stride, [8 groups][16 outputs][4
// inputs] if they are bytes, and its scales [16] at halves + b * halves_stride, followed by the
// offsets [16] of 4-bit weights.
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

  // Prefetches block `block` of the panel `distance` panels further, of `num_blocks` blocks. It may
  // be past the end of the matrix.
  INLINE void prefetch_after(int64_t distance, int64_t num_blocks, int64_t block) const {
    constexpr int64_t kLineBytes = 64;
    const uint8_t* const next = halves + (distance * num_blocks + block) * halves_stride;
    for (int64_t i = 0; i < halves_stride; i += kLineBytes) __builtin_prefetch(next + i, 0, kToL2);
  }

  const uint16_t* scales(int64_t block) const {
    return reinterpret_cast<const uint16_t*>(halves + block * halves_stride);
  }
};

// Scales or offsets of lanes v * kLanes and on.
INLINE Floats load_halves(const uint16_t* halves, int v) { return load_float16(halves + v * kLanes); }

// Writes the 4-bit numbers of `panel`, one byte each, to scratch [num_blocks][8][16][4]. The panel
// then reads them from there.
inline void expand_4_bits(Panel& panel, int64_t num_blocks, uint8_t* scratch) {
  for (int64_t block = 0; block < num_blocks; block++) {
    const uint8_t* from = panel.numbers + block * panel.numbers_stride;
    uint8_t* to = scratch + block * kBlockBytes;
    for (int64_t i = 0; i < kBlockBytes / 2; i += kGroupBytes) {
      for (int64_t lane = 0; lane < kGroupBytes; lane += kLanes * kKr) {
        const Ints words = load<Ints>(from + i + lane);
        store(to + 2 * i + lane, words & 0x0f0f0f0f);
        store(to + 2 * i + kGroupBytes + lane, words >> 4 & 0x0f0f0f0f);
      }
    }
  }
  panel.numbers = scratch;
  panel.numbers_stride = kBlockBytes;
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
