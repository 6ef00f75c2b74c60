// A panel in blocks, as the micro-kernels read it. They multiply up to kMr<P> rows by P adjacent
// panels. With more than kMaxStoredRows rows, the first rows expand the panels for the others.
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

// How micro-kernels read a panel: as it is stored; as stored, while they also expand it to scratch
// (AVX2 and NEON expand it first); or expanded, from scratch.
enum class Reading { kStored, kExpand, kExpanded };

template <Reading kReading>
struct StaticReading {
  static constexpr Reading kValue = kReading;
};

// The first of P adjacent panels, and the scratch into which they are expanded.
struct Panels {
  const uint8_t* stored;
  uint8_t* expanded;
};

template <typename Part>
constexpr bool kIsInt4 = !__is_same(Part, Int8Pair) && !__is_same(Part, Int6Pair);

// The bytes of a group of 8-bit weights. Words holds one word (4 bytes) per output, for one or more
// outputs from `lane` on.
template <typename Words>
INLINE Words words_of(const Int8Pair& pair, int block, int64_t group, int64_t lane) {
  return load<Words>(pair.numbers[block][group][lane]);
}
template <typename Words>
INLINE Words words_of(const Int6Pair& pair, int block, int64_t group, int64_t lane) {
  const auto stored = [&](int64_t i) __attribute__((always_inline)) {
    return load<Words>(pair.numbers[block][group / 4][i][lane]);
  };
  const int64_t i = group % 4;
  if (i < 3) return stored(i) & ~0x03030303;
  return (stored(0) << 6 & ~0x3f3f3f3f) | (stored(1) << 4 & 0x30303030) |
         (stored(2) << 2 & 0x0c0c0c0c);
}

// The blocks or pairs of a panel, which follow its units.
template <typename Part>
INLINE const Part* parts_of(const uint8_t* panel) {
  return reinterpret_cast<const Part*>(panel + PackedMatrix::kUnitBytes);
}

// The units of outputs v * kLanes and on.
INLINE Floats units_of(const uint8_t* panel, int v) {
  return load(reinterpret_cast<const float*>(panel) + v * kLanes);
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
