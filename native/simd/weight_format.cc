#include "weight_format.h"

#include <math.h>
#include <string.h>

#include "vectors.h"

#include "begin_target.h"

namespace weight_format::SIMD {
namespace {

using namespace ::SIMD;

uint16_t to_half(float x) {
  const _Float16 half = static_cast<_Float16>(x);
  uint16_t bits;
  memcpy(&bits, &half, sizeof bits);
  return bits;
}

float from_half(uint16_t bits) {
  _Float16 half;
  memcpy(&half, &bits, sizeof half);
  return half;
}

uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

bool compress_float16(const float* panel, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; i++) {
    out[i] = to_half(panel[i]);
    if (!(from_half(out[i]) == panel[i])) return false;
  }
  return true;
}

bool compress_bfloat16(const float* panel, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; i++) {
    const uint32_t bits = bits_of(panel[i]);
    if (bits & 0xffff) return false;
    out[i] = static_cast<uint16_t>(bits >> 16);
  }
  return true;
}

// Finds integers n from `lowest` to `highest` with n * scale + offset equal to each weight of an
// output's block. `column` has the stride of a panel. Returns false if a weight has no such
// integer.
bool quantize_exactly(const float* column, float scale, float offset, int lowest, int highest,
                      int* numbers) {
  for (int64_t i = 0; i < kBlockInputs; i++) {
    const float value = column[i * kPanelWidth];
    const float number = scale == 0.0f ? 0.0f : roundf((value - offset) / scale);
    if (!(number >= lowest && number <= highest)) return false;
    numbers[i] = static_cast<int>(number);
    if (!(fmaf(number, scale, offset) == value)) return false;
  }
  return true;
}

struct Bounds {
  float lowest, highest;
};

Bounds bounds_of(const float* column) {
  Bounds found{column[0], column[0]};
  for (int64_t i = 1; i < kBlockInputs; i++) {
    found.lowest = fminf(found.lowest, column[i * kPanelWidth]);
    found.highest = fmaxf(found.highest, column[i * kPanelWidth]);
  }
  return found;
}

// A scale and an offset, each float16.
struct Scale {
  uint16_t scale, offset;
};

// Q8_0: the largest magnitude has the number 127.
bool find_scale(const QuantizedBlock<8>&, const float* column, Scale& found, int* numbers) {
  const Bounds bounds = bounds_of(column);
  const float max_abs = fmaxf(bounds.highest, -bounds.lowest);
  found = {to_half(max_abs / 127.0f), 0};
  return quantize_exactly(column, from_half(found.scale), 0.0f, -128, 127, numbers);
}

// Q4_1: 15 steps from the lowest to the highest value. Q4_0: the value of largest magnitude is -8
// steps.
bool find_scale(const QuantizedBlock<4>&, const float* column, Scale& found, int* numbers) {
  const Bounds bounds = bounds_of(column);
  const float extreme = bounds.highest > -bounds.lowest ? bounds.highest : bounds.lowest;
  const Scale candidates[] = {
      {to_half((bounds.highest - bounds.lowest) / 15.0f), to_half(bounds.lowest)},
      {to_half(extreme / -8.0f), to_half(extreme)}};
  for (const Scale& candidate : candidates) {
    found = candidate;
    if (quantize_exactly(column, from_half(candidate.scale), from_half(candidate.offset), 0, 15,
                         numbers)) {
      return true;
    }
  }
  return false;
}

constexpr uint32_t kStored0 = 0x80808080;  // a word of four 8-bit numbers 0

template <int kBits>
bool compress_blocks(const float* panel, int64_t num_inputs, QuantizedBlock<kBits>* out) {
  using Block = QuantizedBlock<kBits>;
  constexpr uint32_t kMask = (1u << kBits) - 1, kZero = kBits == 8 ? 128 : 0;
  for (int64_t begin = 0; begin < num_inputs; begin += kBlockInputs, out++) {
    memset(out, 0, sizeof *out);
    for (int64_t output = 0; output < kPanelWidth; output++) {
      Scale found;
      int numbers[kBlockInputs];
      if (!find_scale(*out, panel + begin * kPanelWidth + output, found, numbers)) return false;
      out->halves[Block::kScales + output] = found.scale;
      if (Block::kHasOffsets) out->halves[Block::kOffsets + output] = found.offset;
      for (int64_t i = 0; i < kBlockInputs; i++) {
        out->words[i / Block::kInputsPerWord * kPanelWidth + output] |=
            (static_cast<uint32_t>(numbers[i] + kZero) & kMask) << Block::bit_of(i);
      }
    }
  }
  return true;
}

void decompress_float16(const uint16_t* from, int64_t count, float* out) {
#pragma unroll 4
  for (int64_t i = 0; i < count; i += kLanes) store(out + i, load_float16(from + i));
}

void decompress_bfloat16(const uint16_t* from, int64_t count, float* out) {
#pragma unroll 4
  for (int64_t i = 0; i < count; i += kLanes) store(out + i, load_bfloat16(from + i));
}

// Converts words of stored 8-bit numbers (+ 128) to two's complement.
template <int kBits>
INLINE Ints signed_words(Ints words) {
  return kBits == 8 ? words ^ static_cast<int>(kStored0) : words;
}

// The i-th number in each of the signed_words().
template <int kBits>
INLINE Floats number_at(Ints words, int i) {
  if constexpr (kBits == 4) {
    return __builtin_convertvector(words >> QuantizedBlock<4>::bit_of(i) & 15, Floats);
  }
  return __builtin_convertvector(words << (24 - 8 * i) >> 24, Floats);
}

template <int kBits>
void decompress_blocks(const QuantizedBlock<kBits>* from, int64_t num_inputs, float* out) {
  using Block = QuantizedBlock<kBits>;
  for (; num_inputs > 0; num_inputs -= kBlockInputs, from++, out += kBlockInputs * kPanelWidth) {
    for (int64_t output = 0; output < kPanelWidth; output += kLanes) {
      const Floats scale = load_float16(from->halves + Block::kScales + output);
      Floats offset = 0.0f;
      if constexpr (Block::kHasOffsets) {
        offset = load_float16(from->halves + Block::kOffsets + output);
      }
      float* to = out + output;
      for (int64_t word = 0; word < Block::kNumWords; word += kPanelWidth) {
        const Ints words = signed_words<kBits>(load<Ints>(from->words + word + output));
#pragma unroll
        for (int i = 0; i < Block::kInputsPerWord; i++, to += kPanelWidth) {
          const Floats numbers = number_at<kBits>(words, i);
          store(to, Block::kHasOffsets ? fma(numbers, scale, offset) : numbers * scale);
        }
      }
    }
  }
}

}  // namespace

bool compress(WeightFormat format, const float* panel, int64_t num_inputs, void* out) {
  const int64_t count = num_inputs * kPanelWidth;
  switch (format) {
    case WeightFormat::kFloat32: memcpy(out, panel, count * sizeof(float)); return true;
    case WeightFormat::kFloat16:
      return compress_float16(panel, count, static_cast<uint16_t*>(out));
    case WeightFormat::kBFloat16:
      return compress_bfloat16(panel, count, static_cast<uint16_t*>(out));
    case WeightFormat::kInt8Blocks:
      return compress_blocks(panel, num_inputs, static_cast<QuantizedBlock<8>*>(out));
    case WeightFormat::kInt4Blocks:
      return compress_blocks(panel, num_inputs, static_cast<QuantizedBlock<4>*>(out));
    case WeightFormat::kSmallInt4Blocks:
    case WeightFormat::kInt6Blocks: break;
  }
  return false;
}

void decompress(WeightFormat format, const void* panel, int64_t first, int64_t last, float* out) {
  const int64_t begin = first * kPanelWidth, num_inputs = last - first;
  const int64_t count = num_inputs * kPanelWidth, block = first / kBlockInputs;
  switch (format) {
    case WeightFormat::kFloat32:
      memcpy(out, static_cast<const float*>(panel) + begin, count * sizeof(float));
      break;
    case WeightFormat::kFloat16:
      decompress_float16(static_cast<const uint16_t*>(panel) + begin, count, out);
      break;
    case WeightFormat::kBFloat16:
      decompress_bfloat16(static_cast<const uint16_t*>(panel) + begin, count, out);
      break;
    case WeightFormat::kInt8Blocks:
      decompress_blocks(static_cast<const QuantizedBlock<8>*>(panel) + block, num_inputs, out);
      break;
    case WeightFormat::kInt4Blocks:
      decompress_blocks(static_cast<const QuantizedBlock<4>*>(panel) + block, num_inputs, out);
      break;
    case WeightFormat::kSmallInt4Blocks:
    case WeightFormat::kInt6Blocks: break;
  }
}

}  // namespace weight_format::SIMD

#include "end_target.h"
