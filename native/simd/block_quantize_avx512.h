// Quantizes rows of x to 8 bits in blocks, for the AVX-512 micro-kernels: RowPair and RowEnd.
#pragma once

#include <stddef.h>

#include "../block_matmul.h"
#include "reduce_16.h"
#include "vectors.h"

#include "begin_target.h"

namespace block_matmul::SIMD {

using namespace ::SIMD;

constexpr float kMinMaxAbs = 1e-9f;  // avoids division by zero in a block of zeros
constexpr float kMaxNumber = 255.0f;
constexpr int64_t kGroupBlocks = 16;  // quantized together

template <typename V>
INLINE V at_least_min(V max_abs) {  // a NaN stays NaN
  return max_abs < V(kMinMaxAbs) ? V(kMinMaxAbs) : max_abs;
}

// Stores the four quarters of `x` at to, to + stride, ..; stride in bytes.
INLINE void store_quarters(__m512i x, char* to, int64_t stride) {
  store(to, _mm512_extracti32x4_epi32(x, 0));
  store(to + stride, _mm512_extracti32x4_epi32(x, 1));
  store(to + 2 * stride, _mm512_extracti32x4_epi32(x, 2));
  store(to + 3 * stride, _mm512_extracti32x4_epi32(x, 3));
}

constexpr int kMantissaBits = 23, kExponentBias = 127;  // of a float

// The least n for which the finite float with these bits is below 2^n.
template <typename V>
INLINE V exponent_of(V bits) {
  return (bits >> kMantissaBits) - (kExponentBias - 1);
}
// The bits of 2^exponent.
template <typename V>
INLINE V bits_of_power(V exponent) {
  return (exponent + kExponentBias) << kMantissaBits;
}

// combine({low half of a, low half of b}, {high half of a, high half of b}).
template <typename Combine>
INLINE Ints fold_halves(Ints a, Ints b, const Combine& combine) {
  const auto x = reinterpret_cast<__m512i>(a), y = reinterpret_cast<__m512i>(b);
  return combine(reinterpret_cast<Ints>(_mm512_shuffle_i64x2(x, y, 0x44)),
                 reinterpret_cast<Ints>(_mm512_shuffle_i64x2(x, y, 0xee)));
}

// Combines the bits of the floats within each block of N pairs, into the first 2 N lanes.
template <int N, bool kHasSecond, typename Combine>
INLINE Ints combine_pairs(const float* x, const Combine& combine) {
  const auto lanes_of = [&](const float* block) __attribute__((always_inline)) {
    return combine(load<Ints>(block), load<Ints>(block + kLanes));
  };
  Ints partial[N];
#pragma unroll
  for (int p = 0; p < N; p++) {
    const float* const from = x + 2 * p * kBlockInputs;
    const Ints second = kHasSecond ? lanes_of(from + kBlockInputs) : Ints(0);
    partial[p] = fold_halves(lanes_of(from), second, combine);
  }
  return reduce_halves<N>(partial, combine);
}

constexpr int64_t kMaxBlocks = kMaxInputs / kBlockInputs + kLanes;  // the last group writes more

// Adding this to a number from 0 to 255 rounds it to an integer, in the lowest bits of the sum.
constexpr float kRoundNumber = 8388608.0f;
INLINE Ints number_in(Floats sum) { return reinterpret_cast<Ints>(sum) & 255; }

// How the blocks of a row are rounded: number = value * inverse + zero point.
struct Rounding {
  float inverses[kMaxBlocks];  // 1 / scale
  float zero_points[kMaxBlocks];  // + kRoundNumber
};

// Chooses the rounding of the blocks of N pairs from index `index` on. Returns the bits of each
// block's largest magnitude.
template <int N, bool kHasSecond>
INLINE Ints choose_rounding(const float* x, int64_t index, Rounding& out) {
  const auto larger = [](auto a, auto b) __attribute__((always_inline)) { return max(a, b); };
  // As integers, the bits of positive floats are in order and above those of negative floats; as
  // unsigned integers, the bits of negative floats are in order and above those of positive floats.
  const auto larger_unsigned = [](auto a, auto b) __attribute__((always_inline)) {
    using Unsigned = uint32_t __attribute__((ext_vector_type(sizeof(a) / sizeof(uint32_t))));
    return reinterpret_cast<decltype(a)>(__builtin_elementwise_max(
        reinterpret_cast<Unsigned>(a), reinterpret_cast<Unsigned>(b)));
  };
  const Ints above = max(combine_pairs<N, kHasSecond>(x, larger), Ints(0));
  const Ints below = max(combine_pairs<N, kHasSecond>(x, larger_unsigned) ^ INT32_MIN, Ints(0));
  const Ints largest = max(above, below);
  const Floats max_abs = at_least_min(reinterpret_cast<Floats>(largest));
  const Floats opposite = reinterpret_cast<Floats>(min(above, below));
  const Floats middle = max_abs * (1.0f / (kMaxNumber - kMiddle));
  const Floats one_sided =
      max(max_abs * (1.0f / (kMaxNumber - kOneSided)), opposite * (1.0f / kOneSided));
  const Ints is_one_sided = one_sided < middle;
  const Ints sign = is_one_sided & (below > above) & INT32_MIN;
  const auto inverses = reinterpret_cast<Ints>(1.0f / (is_one_sided ? one_sided : middle));
  store(out.inverses + index, reinterpret_cast<Floats>(inverses ^ sign));
  const Floats zero_points = is_one_sided ? Floats(kOneSided) : Floats(kMiddle);
  store(out.zero_points + index, zero_points + kRoundNumber);
  return largest;
}

// Sums over each block.
struct BlockSums {
  Ints numbers, distances;  // of the numbers, and of |number - zero point|
};

// Rounds the blocks of N pairs to out[..].numbers.
template <int N, bool kHasSecond>
INLINE BlockSums round_pairs(const float* x, const float* inverses, const float* zero_points,
                             RowPair* out) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  // Repeats the low byte of two blocks' zero points eight times each.
  const __m512i eight_bytes = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4));
  Ints partial[N];
#pragma unroll
  for (int p = 0; p < N; p++) {
    // 32 numbers in 16 bits.
    const auto rounded = [&](int block) __attribute__((always_inline)) {
      const int i = 2 * p + block;
      const Floats inverse = inverses[i], zero_point = zero_points[i];
      const auto numbers = [&](int64_t lane) __attribute__((always_inline)) {
        const bool exists = block == 0 || kHasSecond;
        const Floats values = exists ? load(x + i * kBlockInputs + lane) : Floats(0.0f);
        const Floats number = fma(values, inverse, zero_point);
        return reinterpret_cast<__m512i>(number_in(number));
      };
      return _mm512_packus_epi32(numbers(0), numbers(kLanes));
    };
    // In each quarter, eight numbers of the first block, then eight of the second.
    const __m512i numbers = _mm512_packus_epi16(rounded(0), rounded(1));
    store(out[p].numbers, _mm512_permutexvar_epi32(order, numbers));
    const __m512i zero = _mm512_shuffle_epi8(
        _mm512_broadcast_i32x4(load<__m128i>(zero_points + 2 * p)), eight_bytes);
    const __m512i distances = _mm512_sad_epu8(numbers, zero);
    partial[p] = reinterpret_cast<Ints>(_mm512_add_epi32(
        _mm512_sad_epu8(numbers, _mm512_setzero_si512()), _mm512_slli_epi32(distances, 16)));
  }
  const Ints both = sum_alternate<N>(partial);
  return {both & 0xffff, both >> 16};
}

// Values that the pairs of a row share.
struct PairedRow {
  float max_sum;     // PackedMatrix::max_sum
  int32_t exponent;  // 2^exponent exceeds the scales of the blocks
  float scale;       // RowEnd::scale

  // `max_abs`: the row's largest magnitude.
  INLINE PairedRow(float max_abs, const PackedMatrix& matrix)
      : max_sum(static_cast<float>(matrix.max_sum)) {
    constexpr float kMargin = 1.0001f, kMaxDistance = kMaxNumber - kMiddle;
    constexpr float kLargestSum = kBlockInputs * kMaxDistance;
    const float coarsest = kLargestSum > max_sum ? kLargestSum / max_sum : 1.0f;
    const float max_scale = max_abs * (kMargin / kMaxDistance) * coarsest;
    int32_t bits;
    memcpy(&bits, &max_scale, sizeof bits);
    exponent = exponent_of(bits);
    scale = max_abs < __builtin_inff() ? float_of(bits_of_power(exponent)) : __builtin_nanf("");
  }
};

// {x[1], x[0], x[3], x[2], ..}
INLINE Ints swap_neighbours(Ints x) {
  return reinterpret_cast<Ints>(
      _mm512_shuffle_epi32(reinterpret_cast<__m512i>(x), _MM_PERM_CDAB));
}
// Even lanes: the lower half of the lane, then the lower half of the next lane.
INLINE Ints pair_halves(Ints x) { return (x & 0xffff) | swap_neighbours(x) << 16; }
// {a[0], b[0], a[2], b[2], ..}
INLINE __m512i alternate(Ints a, Ints b) {
  return _mm512_mask_shuffle_epi32(reinterpret_cast<__m512i>(a), 0xaaaa,
                                   reinterpret_cast<__m512i>(b), _MM_PERM_CCAA);
}

// Stores {a[0], a[1], b[0], b[1]} at `offset` of the first of N pairs, {a[2], a[3], b[2], b[3]} at
// that of the second, ..
template <int N>
INLINE void store_pairs(__m512i a, __m512i b, RowPair* pairs, int64_t offset) {
  auto* const to = reinterpret_cast<char*>(pairs) + offset;
  const __m512i even = _mm512_unpacklo_epi64(a, b), odd = _mm512_unpackhi_epi64(a, b);
  if constexpr (N == 1) {
    store(to, _mm512_castsi512_si128(even));
  } else {
    constexpr int64_t kSize = sizeof(RowPair);
    store_quarters(even, to, 2 * kSize);
    store_quarters(odd, to + kSize, 2 * kSize);
  }
}

// Quantizes N pairs (1 or 8). Returns the mean of x over each block; 0 for blocks that do not
// exist.
template <int N, bool kHasSecond>
INLINE Floats quantize_pairs(const float* x, const float* inverses, const float* zero_points,
                             const PairedRow& row, RowPair* out) {
  BlockSums sums = round_pairs<N, kHasSecond>(x, inverses, zero_points, out);
  Floats divisors = load(inverses);
  const Floats excess = __builtin_convertvector(sums.distances, Floats) * (1.0f / row.max_sum);
  if (any_true(excess > Floats(1.0f))) {  // rare: most magnitudes are large
    divisors /= max(Floats(1.0f), excess);
    float coarser[kLanes];
    store(coarser, divisors);
    sums = round_pairs<N, kHasSecond>(x, coarser, zero_points, out);
  }
  const Floats scales = 1.0f / divisors;
  const Ints bits = magnitude_bits(scales);
  const Ints exponents = exponent_of(max(bits, swap_neighbours(bits)));
  const Floats factors = reinterpret_cast<Floats>(bits_of_power(15 - exponents));
  // Scale 0: a block of zeros adds nothing, even if a borrow is compensated in it.
  const Ints fixed = max(Ints(-INT16_MAX), min(Ints(INT16_MAX), nearest_int(scales * factors))) &
                     (sums.distances != 0);
  const Ints zeros = number_in(load(zero_points));
  const Ints flags = (zeros == Ints(kOneSided)) & kOneSidedFlag;
  const Ints differences = sums.numbers - zeros * static_cast<int>(kBlockInputs);
  constexpr int64_t kScales = offsetof(RowPair, scales);
  static_assert(offsetof(RowPair, shift) == kScales + 4 &&
                offsetof(RowPair, zero_points) == kScales + 8);
  store_pairs<N>(alternate(pair_halves(fixed), row.exponent - exponents),
                 reinterpret_cast<__m512i>(flags | swap_neighbours(flags) << 1), out, kScales);
  const auto corrections = reinterpret_cast<__m512i>((-differences & 0xffff) | -zeros << 16);
  store_pairs<N>(corrections, corrections, out, offsetof(RowPair, corrections));
  const Ints exists = reinterpret_cast<Ints>(_mm512_movm_epi32((1 << 2 * N) - 1));
  const Floats means =
      __builtin_convertvector(differences, Floats) * (scales * (1.0f / kBlockInputs));
  return reinterpret_cast<Floats>(reinterpret_cast<Ints>(means) & exists);
}

// Fills `end`, whose scale is set. `means` [num_blocks] are the means of x, followed by zeros.
INLINE void round_means(const float* means, int64_t num_blocks, RowEnd* end) {
  constexpr float kMaxMean = 127.0f;
  Ints largest = 0;
  for (int64_t i = 0; i < num_blocks; i += kLanes) {
    largest = max(largest, magnitude_bits(load(means + i)));
  }
  const float max_abs = at_least_min(float_of(reduce_max(largest)));
  const Floats inverse = kMaxMean / max_abs;
  Ints total = 0;
  for (int64_t i = 0; i < num_blocks; i += kLanes) {
    const Ints numbers = nearest_int(load(means + i) * inverse);
    store_low_bytes(end->means + i, numbers);
    total += numbers;
  }
  end->mean_scale = max_abs / end->scale * ((kBlockInputs << kOffsetBits) / kMaxMean);
  end->start = reduce_sum(-128 * total);
}

// Calls step(first pair, StaticCount<pairs>(), StaticCount<1 if the last pair has a second
// block>()).
template <typename Step>
INLINE void for_each_group(int64_t num_blocks, const Step& step) {
  constexpr int kGroupPairs = kGroupBlocks / 2;
  int64_t pair = 0;
  for (; 2 * (pair + kGroupPairs) <= num_blocks; pair += kGroupPairs) {
    step(pair, StaticCount<kGroupPairs>(), StaticCount<1>());
  }
  for (; 2 * (pair + 1) <= num_blocks; pair++) step(pair, StaticCount<1>(), StaticCount<1>());
  if (num_blocks % 2) step(pair, StaticCount<1>(), StaticCount<0>());
}

inline void quantize_row(const float* x, const PackedMatrix& matrix, RowPair* out) {
  Rounding rounding;
  Ints largest = 0;  // as bits
  for_each_group(matrix.num_blocks(), [&](int64_t pair, auto count, auto has_second) {
    largest = max(largest, choose_rounding<count.kCount, has_second.kCount>(
                               x + 2 * pair * kBlockInputs, 2 * pair, rounding));
  });
  const PairedRow row(at_least_min(float_of(reduce_max(largest))), matrix);
  float means[kMaxBlocks];
  for_each_group(matrix.num_blocks(), [&](int64_t pair, auto count, auto has_second) {
    store(means + 2 * pair, quantize_pairs<count.kCount, has_second.kCount>(
                               x + 2 * pair * kBlockInputs, rounding.inverses + 2 * pair,
                               rounding.zero_points + 2 * pair, row, out + pair));
  });
  auto* const end = reinterpret_cast<RowEnd*>(out + matrix.num_pairs());
  end->scale = row.scale;
  if (matrix.has_4_bits()) round_means(means, matrix.num_blocks(), end);
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
