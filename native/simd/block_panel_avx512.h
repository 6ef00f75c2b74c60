// How the AVX-512 micro-kernels of blocks read panels, and what they expand to scratch for the next
// rows.
//
// x has zero points, so (x - zero point) . weights = x . weights - zero point * sum(weights). Where
// a panel is read as it is stored, these sums are computed each time. Scratch holds their products
// with each zero point.
#pragma once

#include "block_panel.h"

#include "begin_target.h"

namespace block_matmul::SIMD {

// Two blocks of 16 outputs.
using Shorts = int16_t __attribute__((ext_vector_type(2 * kPanelWidth)));

// Indexed by RowPair::zero_points, an offset in bytes: -zero point of x * sum(weights) of each
// block, in 16 bits.
using Corrections = int16_t[4][2 * kPanelWidth];
static_assert(sizeof(Shorts) == kOneSidedFlag);

// Two blocks of a panel, expanded to scratch.
template <typename Pair>
struct Expanded {
  Corrections corrections;
  int16_t scales[kPanelWidth][2];
  int8_t numbers[2][kBlockGroups][kGroupBytes];  // minus the whole parts of zero points
  uint8_t offsets[kGroupBytes];  // in even pairs: of this pair and the next, + 128
};
template <>
struct Expanded<Int8Pair> {
  Corrections corrections;
};
template <>
struct Expanded<Int6Pair> {
  Corrections corrections;
  int8_t numbers[2][kBlockGroups][kGroupBytes];
};
static_assert(sizeof(Expanded<Int4Pair>) <= kExpandedBytes);
static_assert(sizeof(Expanded<Int6Pair>) <= kExpandedBytes);
static_assert(sizeof(Expanded<Int8Pair>) <= kExpandedInt8Bytes);

// The scales and zero points of a pair.
template <typename Pair>
INLINE __m512i scales_of(const Pair& pair) {
  return load<__m512i>(pair.scales);
}
template <int kShift>
INLINE __m512i shifted_bytes(const uint8_t (*values)[2]) {
  return _mm512_slli_epi16(_mm512_cvtepu8_epi16(load<__m256i>(values)), kShift);
}
template <>
INLINE __m512i scales_of(const SmallInt4Pair& pair) {
  return shifted_bytes<SmallInt4Pair::kScaleShift>(pair.scales);
}
INLINE Shorts zero_points_of(const Int4Pair& pair) { return load<Shorts>(pair.zero_points); }
INLINE Shorts zero_points_of(const SmallInt4Pair& pair) {
  return reinterpret_cast<Shorts>(
      shifted_bytes<SmallInt4Pair::kZeroPointShift>(pair.zero_points));
}

// A zero point has a whole part, which is subtracted from the numbers, and a fraction from -1/2 to
// 1/2, whose product with the scale and the sum of x is subtracted as an offset.
template <typename Pair>
INLINE Shorts whole_parts_of(const Pair& pair) {
  constexpr int kBits = kZeroPointBits;
  return (zero_points_of(pair) + static_cast<int16_t>(1 << kBits >> 1)) >> kBits;
}

// x y / 2^15, rounded.
INLINE __m512i multiply_high(__m512i x, __m512i y) { return _mm512_mulhrs_epi16(x, y); }

// -fraction of the zero point * scale.
template <typename Pair>
INLINE __m512i offsets_of(const Pair& pair) {
  const Shorts fractions = (whole_parts_of(pair) << kZeroPointBits) - zero_points_of(pair);
  const Shorts factors = fractions << (15 - kZeroPointBits);
  return multiply_high(scales_of(pair), reinterpret_cast<__m512i>(factors));
}

// The offsets of two pairs, + 128, as bytes [16 outputs][4].
template <typename Pair>
INLINE __m512i offset_bytes_of(const Pair& first, const Pair& second) {
  const auto rounded = [](const Pair& pair) __attribute__((always_inline)) {
    const auto offsets = reinterpret_cast<Shorts>(offsets_of(pair));
    return reinterpret_cast<__m512i>((offsets + (1 << kOffsetBits >> 1)) >> kOffsetBits);
  };
  const __m128i order = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  const __m512i bytes = _mm512_shuffle_epi8(_mm512_packs_epi16(rounded(first), rounded(second)),
                                            _mm512_broadcast_i32x4(order));
  return _mm512_xor_si512(bytes, _mm512_set1_epi8(-128));
}

// The whole parts of a block's zero points, as bytes [16 outputs][4].
template <int kBlock, typename Pair>
INLINE __m512i whole_bytes_of(const Pair& pair) {
  const auto whole = reinterpret_cast<__m512i>(whole_parts_of(pair));
  constexpr char kFirst = 2 * kBlock;  // byte of an output
  const __m128i order = _mm_add_epi8(
      _mm_set1_epi8(kFirst), _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
  return _mm512_shuffle_epi8(whole, _mm512_broadcast_i32x4(order));
}

// Reads the pairs of a panel in order. With Reading::kExpand, it also writes them to scratch.
template <typename Pair, Reading kReading>
class PairReader {
  static constexpr bool kIsExpanded = kReading == Reading::kExpanded;
  static constexpr bool kSubtracts = kIsInt4<Pair> && kReading == Reading::kExpand;
  static constexpr bool kHasNumbers = !__is_same(Pair, Int8Pair);  // whether scratch has numbers

 public:
  static constexpr bool kHas4Bits = kIsInt4<Pair>;
  static constexpr bool kIsStored = kReading == Reading::kStored;

  // `index` counts the adjacent panels.
  INLINE PairReader(const PackedMatrix& matrix, const Panels& panels, int index)
      : stored_(parts_of<Pair>(panels.stored + index * matrix.panel_bytes())),
        expanded_(reinterpret_cast<Expanded<Pair>*>(panels.expanded) +
                  index * matrix.num_pairs()) {}

  template <int kBlock>
  INLINE void begin_block() {
    if constexpr (kSubtracts) whole_ = whole_bytes_of<kBlock>(*stored_);
    if constexpr (!kIsExpanded) sums_[kBlock] = _mm512_setzero_si512();
  }
  // A group of weights as bytes [16 outputs][4]: numbers minus the whole parts of zero points, or
  // only the numbers if they are read as stored.
  template <int kBlock>
  INLINE __m512i weights(int64_t group) {
    __m512i& sums = sums_[kBlock];
    if constexpr (kHasNumbers && kIsExpanded) {
      return load<__m512i>(expanded_->numbers[kBlock][group]);
    } else if constexpr (kHas4Bits) {
      const Ints words = load<Ints>(stored_->words[kBlock][group / 2]) >> (group % 2 ? 4 : 0);
      auto bytes = reinterpret_cast<__m512i>(words & 0x0f0f0f0f);
      if constexpr (kSubtracts) {
        bytes = _mm512_sub_epi8(bytes, whole_);
        store(expanded_->numbers[kBlock][group], bytes);
        sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), bytes);
      } else {
        sums = _mm512_add_epi8(sums, bytes);
      }
      return bytes;
    } else {
      const auto bytes = reinterpret_cast<__m512i>(words_of<Ints>(*stored_, kBlock, group, 0));
      if constexpr (kHasNumbers && kReading == Reading::kExpand) {
        store(expanded_->numbers[kBlock][group], bytes);
      }
      if constexpr (!kIsExpanded) sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), bytes);
      return bytes;
    }
  }
  // The factors of RowPair::corrections for a block whose weights were read as stored: the whole
  // parts of the zero points, and the sums of the weights.
  template <int kBlock>
  INLINE __m512i sums() const {
    if constexpr (kHas4Bits) {
      const __m512i ones = _mm512_set1_epi8(1);
      const __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), sums_[kBlock], ones);
      const auto whole = reinterpret_cast<__m512i>(whole_parts_of(*stored_));
      const __m512i lower = kBlock ? _mm512_srli_epi32(whole, 16) : whole;
      return _mm512_mask_mov_epi16(lower, 0xaaaaaaaa, _mm512_slli_epi32(sums, 16));
    } else {
      return _mm512_slli_epi32(sums_[kBlock], 16);
    }
  }
  // The Corrections of a pair; not for Reading::kStored. With 4 bits, adds_one adds 1 to the upper
  // ones.
  INLINE const char* corrections(bool adds_one) {
    if constexpr (kReading == Reading::kExpand) {
      constexpr int kUnit = kOneSided >> (kHas4Bits ? 0 : kRoundedBits);
      static_assert(kMiddle == 2 * kOneSided);
      const Ints first = reinterpret_cast<Ints>(sums_[0]) * -kUnit;
      const Ints second = reinterpret_cast<Ints>(sums_[1]) * -kUnit;
      const Ints one = adds_one ? 1 << 16 : 0;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const Ints lower = i % 2 ? first : 2 * first, upper = i / 2 ? second : 2 * second;
        store(expanded_->corrections[i],
              kHas4Bits ? lower + (upper << 16) + one : (lower & 0xffff) | upper << 16);
      }
    }
    return reinterpret_cast<const char*>(expanded_->corrections);
  }
  INLINE __m512i scales() const {
    if constexpr (kHas4Bits && kIsExpanded) {
      return load<__m512i>(expanded_->scales);
    } else {
      const __m512i scales = scales_of(*stored_);
      if constexpr (kHas4Bits && kReading == Reading::kExpand) store(expanded_->scales, scales);
      return scales;
    }
  }
  // The offsets of 4-bit weights, [16 outputs][4], of this pair and the next, or twice those of
  // this pair if it is the last.
  INLINE __m512i offsets(bool is_last) const {
    if constexpr (kIsExpanded) {
      return load<__m512i>(expanded_->offsets);
    } else {
      const __m512i offsets = offset_bytes_of(stored_[0], stored_[is_last ? 0 : 1]);
      if constexpr (kReading == Reading::kExpand) store(expanded_->offsets, offsets);
      return offsets;
    }
  }
  INLINE void advance(int64_t num_pairs = 1) {
    if constexpr (!kHas4Bits || !kIsExpanded) stored_ += num_pairs;
    if constexpr (kReading != Reading::kStored) expanded_ += num_pairs;
  }

 private:
  const Pair* stored_;
  Expanded<Pair>* expanded_;
  __m512i whole_;
  __m512i sums_[2];  // of each block's weights; with kIsStored and 4 bits, per byte
};

}  // namespace block_matmul::SIMD

#include "end_target.h"
