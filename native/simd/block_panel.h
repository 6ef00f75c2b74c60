// A panel in blocks, as the micro-kernels read it. They multiply up to kMr rows by a panel. For
// more than kMaxStoredRows rows, a panel of 4 bits is expanded first.
#pragma once

#include "../block_matmul.h"
#include "prefetch.h"
#include "vectors.h"

#include "begin_target.h"

namespace block_matmul::SIMD {

using namespace ::SIMD;

constexpr int64_t kKr = 4;  // adjacent inputs of an output, whose four products one lane adds
constexpr int64_t kBlockGroups = kBlockInputs / kKr;
constexpr int64_t kGroupBytes = kKr * kPanelWidth;
constexpr int64_t kBlockBytes = kBlockGroups * kGroupBytes;

// What follows the units of a panel.
template <typename Part>
INLINE const Part* parts_of(const uint8_t* panel) {
  return reinterpret_cast<const Part*>(panel + PackedMatrix::kUnitBytes);
}

// Of outputs v * kLanes and on.
INLINE Floats units_of(const uint8_t* panel, int v) {
  return load(reinterpret_cast<const float*>(panel) + v * kLanes);
}

// Writes the numbers of a block to `to` [8][16][4], one byte each, plus the bytes of `biases`.
INLINE void expand_block(const uint32_t (*words)[kPanelWidth], uint8_t* to, Ints biases) {
  for (int64_t i = 0; i < kBlockGroups / 2; i++) {
    for (int64_t lane = 0; lane < kPanelWidth; lane += kLanes) {
      const Ints both = load<Ints>(words[i] + lane);
      store(to + 2 * i * kGroupBytes + lane * kKr, (both & 0x0f0f0f0f) + biases);
      store(to + (2 * i + 1) * kGroupBytes + lane * kKr, (both >> 4 & 0x0f0f0f0f) + biases);
    }
  }
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
