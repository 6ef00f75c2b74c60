// Rounds rows of x to 8 bits in blocks: ../block_matmul.h.
#include "../block_matmul.h"

#include <stddef.h>

#include "reduce_16.h"
#include "vectors.h"

#include "begin_target.h"

namespace block_matmul::SIMD {
namespace {

using namespace ::SIMD;

constexpr float kMinMaxAbs = 1e-9f;  // avoids division by zero in a block of zeros
constexpr float kMaxNumber = 127.0f;

#if SIMD_BITS == 256

void quantize_row(const float* x, const PackedMatrix& matrix, RowBlock* out) {
  for (const float* end = x + matrix.num_inputs; x < end; x += kBlockInputs, out++) {
    Ints largest = 0;
#pragma unroll
    for (int64_t i = 0; i < kBlockInputs; i += kLanes) {
      largest = max(largest, magnitude_bits(load(x + i)));
    }
    const float found = float_of(reduce_max(largest));
    const float max_abs = found < kMinMaxAbs ? kMinMaxAbs : found;  // a NaN stays NaN
    const float inverse = kMaxNumber / max_abs;
    Ints total = 0;
#pragma unroll
    for (int64_t i = 0; i < kBlockInputs; i += kLanes) {
      const Ints numbers = nearest_int(load(x + i) * inverse);
      store_low_bytes(out->numbers + i, numbers);
      total += numbers;
    }
    out->scale = max_abs * (1.0f / kMaxNumber / kScaleUnit);
    out->sum = out->scale * static_cast<float>(reduce_sum(total));
  }
  if (matrix.num_blocks() % 2) memset(out, 0, sizeof *out);
}

#else

constexpr int64_t kGroupBlocks = 16;  // that are quantized together

// Stores the four quarters of `x` at to, to + stride, ..; strides in bytes.
INLINE void store_quarters(__m512i x, char* to, int64_t stride) {
  store(to, _mm512_extracti32x4_epi32(x, 0));
  store(to + stride, _mm512_extracti32x4_epi32(x, 1));
  store(to + 2 * stride, _mm512_extracti32x4_epi32(x, 2));
  store(to + 3 * stride, _mm512_extracti32x4_epi32(x, 3));
}

INLINE Floats at_least_min(Floats max_abs) {  // a NaN stays NaN
  return max_abs < Floats(kMinMaxAbs) ? Floats(kMinMaxAbs) : max_abs;
}

// The bits of the magnitudes of a block: the larger one of each lane.
INLINE Ints larger_magnitudes(const float* block) {
  return max(magnitude_bits(load(block)), magnitude_bits(load(block + kLanes)));
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

// {low eight lanes of a, of b} combined with {high eight lanes of a, of b}.
template <typename Combine>
INLINE Ints fold_halves(Ints a, Ints b, const Combine& combine) {
  const auto x = reinterpret_cast<__m512i>(a), y = reinterpret_cast<__m512i>(b);
  return combine(reinterpret_cast<Ints>(_mm512_shuffle_i64x2(x, y, 0x44)),
                 reinterpret_cast<Ints>(_mm512_shuffle_i64x2(x, y, 0xee)));
}

// The largest magnitudes of the blocks of N pairs, in the first 2 N lanes; the others get
// kMinMaxAbs, and so does the second block of a pair that has none.
template <int N, bool kHasSecond>
INLINE Floats max_abs_of_pairs(const float* x) {
  const auto larger = [](auto a, auto b) __attribute__((always_inline)) { return max(a, b); };
  Ints partial[N];
#pragma unroll
  for (int p = 0; p < N; p++) {
    const float* const from = x + 2 * p * kBlockInputs;
    const Ints second = kHasSecond ? larger_magnitudes(from + kBlockInputs) : Ints(0);
    partial[p] = fold_halves(larger_magnitudes(from), second, larger);
  }
  return at_least_min(reinterpret_cast<Floats>(reduce_halves<N>(partial, larger)));
}

// Rounds the blocks of N pairs to out[..].numbers. Returns for each block the sum of its numbers
// plus 2^16 times that of their magnitudes.
template <int N, bool kHasSecond>
INLINE Ints round_pairs(const float* x, Floats inverses, RowPair* out) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i ones = _mm512_set1_epi8(1), zero = _mm512_setzero_si512();
  Ints partial[N];
#pragma unroll
  for (int p = 0; p < N; p++) {
    const auto rounded = [&](int i) __attribute__((always_inline)) {
      const float* const from = x + 2 * p * kBlockInputs + i * kLanes;
      return reinterpret_cast<__m512i>(nearest_int(load(from) * inverses[2 * p + i / 2]));
    };
    const __m512i first = _mm512_packs_epi32(rounded(0), rounded(1));
    const __m512i second = kHasSecond ? _mm512_packs_epi32(rounded(2), rounded(3)) : zero;
    const __m512i numbers = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first, second));
    store(out[p].numbers, numbers);
    const __m512i sums = _mm512_dpbusd_epi32(zero, ones, numbers);
    const __m512i magnitudes = _mm512_dpbusd_epi32(zero, _mm512_abs_epi8(numbers), ones);
    partial[p] = reinterpret_cast<Ints>(sums) + (reinterpret_cast<Ints>(magnitudes) << 16);
  }
  const auto add = [](auto a, auto b) __attribute__((always_inline)) { return a + b; };
  return reduce_halves<N>(partial, add);
}

// What the pairs of a row have in common.
struct PairedRow {
  float max_sum;     // PackedMatrix::max_sum
  int32_t rounding;  // to add to sums
  int32_t exponent;  // 2^exponent exceeds the scales of the blocks
  float scale;       // RowPair::row_scale

  // `max_abs`: of the row.
  INLINE PairedRow(float max_abs, const PackedMatrix& matrix)
      : max_sum(static_cast<float>(matrix.max_sum)),
        rounding(matrix.has_4_bits() ? 0 : 1 << (kRoundedBits - 1)) {
    constexpr float kMargin = 1.0001f, kLargestSum = kBlockInputs * kMaxNumber;
    const float coarsest = kLargestSum > max_sum ? kLargestSum / max_sum : 1.0f;
    const float max_scale = max_abs * (kMargin / kMaxNumber) * coarsest;
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
// Each even lane gets the lower halves of itself and of the next lane.
INLINE Ints pair_halves(Ints x) { return (x & 0xffff) | swap_neighbours(x) << 16; }
// {a[0], b[0], a[2], b[2], ..}
INLINE __m512i alternate(Ints a, Ints b) {
  return _mm512_mask_shuffle_epi32(reinterpret_cast<__m512i>(a), 0xaaaa,
                                   reinterpret_cast<__m512i>(b), _MM_PERM_CCAA);
}

// Quantizes N pairs, eight or one, whose largest magnitudes are max_abs_of_pairs().
template <int N, bool kHasSecond>
INLINE void quantize_pairs(const float* x, Floats max_abs, const PairedRow& row, RowPair* out) {
  const Floats inverses = kMaxNumber / max_abs;
  Floats scales = max_abs * (1.0f / kMaxNumber);
  const auto lower = [](Ints both) { return both << 16 >> 16; };
  Ints both = round_pairs<N, kHasSecond>(x, inverses, out);
  const Ints magnitudes = (both - lower(both)) >> 16;
  const Floats excess = __builtin_convertvector(magnitudes, Floats) * (1.0f / row.max_sum);
  if (any_true(excess > Floats(1.0f))) {  // rare: most magnitudes are large
    const Floats coarser = max(Floats(1.0f), excess);
    scales *= coarser;
    both = round_pairs<N, kHasSecond>(x, inverses / coarser, out);
  }
  const Ints sums = lower(both);
  const Ints bits = reinterpret_cast<Ints>(scales);
  const Ints exponents = exponent_of(max(bits, swap_neighbours(bits)));
  const Floats factors = reinterpret_cast<Floats>(bits_of_power(15 - exponents));
  const Ints fixed = min(Ints(INT16_MAX), nearest_int(scales * factors));
  const Ints products = (sums * fixed + (1 << 14)) >> 15;
  // Stores what follows the numbers: a transposition.
  const __m512i a = reinterpret_cast<__m512i>(row.rounding - (sums << 7));
  const __m512i b = alternate(pair_halves(fixed), pair_halves(products));
  const __m512i c =
      alternate(row.exponent - exponents, reinterpret_cast<Ints>(Floats(row.scale)));
  constexpr int64_t kBegin = offsetof(RowPair, starts), kNext = kBegin + sizeof(__m128i);
  static_assert(offsetof(RowPair, scales) == kBegin + 8 && offsetof(RowPair, shift) == kNext &&
                sizeof(RowPair) == kNext + sizeof(__m128i));
  auto* const to = reinterpret_cast<char*>(out);
  if constexpr (N == 1) {
    store(to + kBegin, _mm512_castsi512_si128(_mm512_unpacklo_epi64(a, b)));
    store(to + kNext, _mm512_castsi512_si128(c));
  } else {
    constexpr int64_t kSize = sizeof(RowPair);
    store_quarters(_mm512_unpacklo_epi64(a, b), to + kBegin, 2 * kSize);
    store_quarters(_mm512_unpackhi_epi64(a, b), to + kSize + kBegin, 2 * kSize);
    store_quarters(_mm512_unpacklo_epi64(c, c), to + kNext, 2 * kSize);
    store_quarters(_mm512_unpackhi_epi64(c, c), to + kSize + kNext, 2 * kSize);
  }
}

// Calls step(first pair, StaticCount<pairs>(), whether the second block of the last pair exists).
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

void quantize_row(const float* x, const PackedMatrix& matrix, RowPair* out) {
  // Of each block, then some lanes that are not read.
  float max_abs[kMaxInputs / kBlockInputs + kLanes];
  Ints largest = 0;  // bits
  for_each_group(matrix.num_blocks(), [&](int64_t pair, auto count, auto has_second) {
    const float* const from = x + 2 * pair * kBlockInputs;
    const Floats found = max_abs_of_pairs<count.kCount, has_second.kCount>(from);
    store(max_abs + 2 * pair, found);
    largest = max(largest, reinterpret_cast<Ints>(found));
  });
  const PairedRow row(float_of(reduce_max(largest)), matrix);
  for_each_group(matrix.num_blocks(), [&](int64_t pair, auto count, auto has_second) {
    quantize_pairs<count.kCount, has_second.kCount>(x + 2 * pair * kBlockInputs,
                                                    load(max_abs + 2 * pair), row, out + pair);
  });
}

#endif

}  // namespace

void quantize(const float* x, const Rows& rows, const PackedMatrix& matrix, uint8_t* quantized) {
  for (int64_t row = 0; row < rows.count; row++, quantized += matrix.row_bytes()) {
#if SIMD_BITS == 256
    auto* const out = reinterpret_cast<RowBlock*>(quantized);
#else
    auto* const out = reinterpret_cast<RowPair*>(quantized);
#endif
    quantize_row(x + rows[row] * matrix.num_inputs, matrix, out);
  }
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
