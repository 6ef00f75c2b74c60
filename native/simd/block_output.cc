// Reads one output of a matrix in blocks, such as the embedding of a token.
#include "block_panel.h"

#include "begin_target.h"

namespace block_matmul::SIMD {
namespace {

// One output's block: weight = (number - zero_point) scale unit.
struct Block {
  int8_t numbers[kBlockInputs];
  float scale, zero_point;
};

template <typename Pair>
INLINE Block read_block(const Pair& pair, int block, int64_t lane) {
  Block found;
  for (int64_t group = 0; group < kBlockGroups; group++) {
    const int32_t word = words_of<int32_t>(pair, block, group, lane);
    memcpy(found.numbers + group * kKr, &word, kKr);
  }
  found.scale = pair.scales[lane][block], found.zero_point = 0;
  return found;
}

INLINE void read_words(const Int4Words& words, int block, int64_t lane, int8_t* numbers) {
  for (int64_t group = 0; group < kBlockGroups; group += 2) {
    const uint32_t word = words[block][group / 2][lane];
    const uint32_t halves[] = {word & 0x0f0f0f0f, word >> 4 & 0x0f0f0f0f};
    memcpy(numbers + group * kKr, halves, sizeof halves);
  }
}

constexpr float kZeroPointUnit = 1.0f / (1 << kZeroPointBits);

INLINE Block read_block(const Int4Pair& pair, int block, int64_t lane) {
  Block found;
  read_words(pair.words, block, lane, found.numbers);
  found.scale = pair.scales[lane][block];
  found.zero_point = pair.zero_points[lane][block] * kZeroPointUnit;
  return found;
}

INLINE Block read_block(const SmallInt4Pair& pair, int block, int64_t lane) {
  using Pair = SmallInt4Pair;
  Block found;
  read_words(pair.words, block, lane, found.numbers);
  found.scale = pair.scales[lane][block] << Pair::kScaleShift;
  found.zero_point = (pair.zero_points[lane][block] << Pair::kZeroPointShift) * kZeroPointUnit;
  return found;
}

template <typename Pair>
void read_pairs(const PackedMatrix& matrix, int64_t output, float* y) {
  using Bytes = int8_t __attribute__((ext_vector_type(kLanes)));
  const uint8_t* const panel = matrix.panel(output / kPanelWidth);
  const int64_t lane = output % kPanelWidth;
  const float unit = reinterpret_cast<const float*>(panel)[lane];
  const Pair* const pairs = parts_of<Pair>(panel);
  for (int64_t i = 0; i < matrix.num_blocks(); i++, y += kBlockInputs) {
    const Block block = read_block(pairs[i / 2], static_cast<int>(i % 2), lane);
    const float scale = block.scale * unit;
    for (int64_t j = 0; j < kBlockInputs; j += kLanes) {
      const Floats numbers = __builtin_convertvector(load<Bytes>(block.numbers + j), Floats);
      store(y + j, (numbers - block.zero_point) * scale);
    }
  }
}

}  // namespace

void read_output(const PackedMatrix& matrix, int64_t output, float* y) {
  switch (matrix.format) {
    case WeightFormat::kInt4Blocks: return read_pairs<Int4Pair>(matrix, output, y);
    case WeightFormat::kSmallInt4Blocks: return read_pairs<SmallInt4Pair>(matrix, output, y);
    case WeightFormat::kInt6Blocks: return read_pairs<Int6Pair>(matrix, output, y);
    default: return read_pairs<Int8Pair>(matrix, output, y);
  }
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
