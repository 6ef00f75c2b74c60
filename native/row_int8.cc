#include "row_int8.h"

#include <immintrin.h>

#include <math.h>
#include <string.h>

#include "numbers.h"

#define AVX2 __attribute__((target("avx2")))

namespace row_int8 {
namespace {

constexpr float kSmallest = 1e-9f;
constexpr float kStep = 1.0f / 127.0f;

// A NaN stays one.
float at_least(float largest) { return largest < kSmallest ? kSmallest : largest; }

// A row as it is.
struct Plain {
  const float* x;
  AVX2 __m256 eight(int64_t i) const { return _mm256_loadu_ps(x + i); }
  float one(int64_t i) const { return x[i]; }
};

// A row times a factor for each input.
struct Scaled {
  const float *x, *factors;
  AVX2 __m256 eight(int64_t i) const {
    return _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(factors + i));
  }
  float one(int64_t i) const { return x[i] * factors[i]; }
};

// The largest magnitude; NaN if there is one.
template <typename Row>
AVX2 float magnitude(const Row& row, int64_t size) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 best = _mm256_setzero_ps(), strange = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const __m256 value = row.eight(i);
    strange = _mm256_or_ps(strange, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    best = _mm256_max_ps(best, _mm256_andnot_ps(sign, value));
  }
  float lanes[8], largest = 0.0f;
  _mm256_storeu_ps(lanes, best);
  bool is_strange = _mm256_movemask_ps(strange) != 0;
  for (float lane : lanes) largest = fmaxf(largest, lane);
  for (; i < size; i++) {
    is_strange |= isnan(row.one(i));
    largest = fmaxf(largest, fabsf(row.one(i)));
  }
  return is_strange ? NAN : largest;
}

// As divided by the largest magnitude and then by kStep, in whole steps. The product with one over
// both is off by less than 4e-5, which decides only where it is about half between two steps.
template <typename Row>
AVX2 void quantize_row(const Row& row, int64_t size, float largest, uint8_t* bytes) {
  const __m256 divisor = _mm256_set1_ps(largest), step = _mm256_set1_ps(kStep);
  const __m256 factor = _mm256_set1_ps(static_cast<float>(1.0 / (double{largest} * kStep)));
  const __m256 sign = _mm256_set1_ps(-0.0f), almost_half = _mm256_set1_ps(0.4999f);
  const __m256i middle = _mm256_set1_epi32(128);
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const __m256 value = row.eight(i), about = _mm256_mul_ps(value, factor);
    __m256i whole = _mm256_cvtps_epi32(about);
    const __m256 off = _mm256_andnot_ps(sign, _mm256_sub_ps(about, _mm256_cvtepi32_ps(whole)));
    if (_mm256_movemask_ps(_mm256_cmp_ps(off, almost_half, _CMP_NLE_UQ))) {  // also NaN
      whole = _mm256_cvtps_epi32(_mm256_div_ps(_mm256_div_ps(value, divisor), step));
    }
    whole = _mm256_add_epi32(whole, middle);
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(whole),
                                     _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(bytes + i), _mm_packus_epi16(words, words));
  }
  for (; i < size; i++) {
    bytes[i] = static_cast<uint8_t>(nearbyintf(row.one(i) / largest / kStep) + 128.0f);
  }
}

template <typename Row>
void quantize_one(const Row& row, int64_t size, int64_t stride, uint8_t* bytes, float* largest) {
  *largest = at_least(magnitude(row, size));
  quantize_row(row, size, *largest, bytes);
  memset(bytes + size, 0, stride - size);
}

// One panel of a matrix.
struct Panel {
  const int8_t* weights;
  const uint16_t* inputs;  // where those of each group are, in bytes
  int64_t num_groups, num_paired;
  const float* scales;
  const int32_t* offsets;

  Panel(const Matrix& matrix, int64_t index)
      : weights(matrix.weights + index * matrix.num_groups() * kGroup * kPanel),
        inputs(matrix.order + index * (matrix.num_groups() + 1) + 1),
        num_groups(matrix.num_groups()),
        num_paired(inputs[-1]),
        scales(matrix.scales + index * kPanel),
        offsets(matrix.offsets + index * kPanel) {}
};

// The four bytes at `offset`, eight times.
AVX2 __m256i broadcast(const uint8_t* row, uint64_t offset) {
  int32_t bytes;
  memcpy(&bytes, row + offset, sizeof(bytes));
  return _mm256_set1_epi32(bytes);
}

// maddubs with what would be loaded into a register if it were told in C.
AVX2 __m256i multiply_from(const __m256i* w, __m256i x) {
  __m256i products;
  asm("vpmaddubsw %2, %1, %0" : "=x"(products) : "x"(x), "m"(*w));
  return products;
}

// R rows times one panel. The sums are those of unsigned bytes: the offsets are taken off.
template <int R>
AVX2_FMA void multiply_tile(const uint8_t* bytes, int64_t stride, const float* largest,
                            const Panel& panel, const Output& out) {
  __m256i sums[R][2];
  const uint8_t* rows[R];
  for (int r = 0; r < R; r++) {
    sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    rows[r] = bytes + r * stride;
    out.fetch(r);
  }
  __m256i ones = _mm256_set1_epi16(1);
  asm("" : "+x"(ones));  // is made once, and stays in its register
  // With as few instructions as there can be: they are what another thread of the core leaves.
  const __m256i* w = reinterpret_cast<const __m256i*>(panel.weights);
  int64_t g = 0;
  for (; g < panel.num_paired; g += 2, w += 4) {
    const __m256i w00 = _mm256_loadu_si256(w), w01 = _mm256_loadu_si256(w + 1);
    const __m256i w10 = _mm256_loadu_si256(w + 2);
    for (int r = 0; r < R; r++) {
      const __m256i x = broadcast(rows[r], panel.inputs[g]);
      const __m256i z = broadcast(rows[r], panel.inputs[g + 1]);
      const __m256i first =
          _mm256_add_epi16(_mm256_maddubs_epi16(x, w00), _mm256_maddubs_epi16(z, w10));
      const __m256i second =
          _mm256_add_epi16(_mm256_maddubs_epi16(x, w01), multiply_from(w + 3, z));
      sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(first, ones));
      sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(second, ones));
    }
  }
  for (; g < panel.num_groups; g++, w += 2) {
    const __m256i w0 = _mm256_loadu_si256(w), w1 = _mm256_loadu_si256(w + 1);
    for (int r = 0; r < R; r++) {
      const __m256i x = broadcast(rows[r], panel.inputs[g]);
      const __m256i first = _mm256_maddubs_epi16(x, w0), second = _mm256_maddubs_epi16(x, w1);
      sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(first, ones));
      sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(second, ones));
    }
  }
  for (int r = 0; r < R; r++) {
    __m256 values[2];
    for (int half = 0; half < 2; half++) {
      const __m256 scale = _mm256_loadu_ps(panel.scales + 8 * half);
      const __m256i offset =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel.offsets + 8 * half));
      const __m256 sum = _mm256_cvtepi32_ps(_mm256_sub_epi32(sums[r][half], offset));
      values[half] = _mm256_mul_ps(_mm256_mul_ps(sum, scale), _mm256_set1_ps(largest[r]));
    }
    out.finish(r, values);
  }
}

void multiply_panel(const uint8_t* bytes, int64_t stride, const float* largest, int64_t num_rows,
                    const Panel& panel, Output out) {
  const auto tile = [&](auto multiply_rows, int64_t count) {
    multiply_rows(bytes, stride, largest, panel, out);
    bytes += count * stride;
    largest += count;
    num_rows -= count;
    out.skip(count);
  };
  while (num_rows >= 4) tile(multiply_tile<4>, 4);
  if (num_rows == 3) tile(multiply_tile<3>, 3);
  if (num_rows == 2) tile(multiply_tile<2>, 2);
  if (num_rows == 1) tile(multiply_tile<1>, 1);
}

// Rows whose bytes, with a panel, stay in the first caches.
constexpr int64_t kRowBlock = 64;

}  // namespace

void quantize(const float* x, const float* factors, const Rows& rows, int64_t num_inputs,
              uint8_t* bytes, float* largest) {
  const int64_t stride = (num_inputs + kGroup - 1) / kGroup * kGroup;
  for (int64_t row = 0; row < rows.count; row++) {
    const float* const from = x + rows[row] * num_inputs;
    uint8_t* const to = bytes + row * stride;
    if (factors) {
      quantize_one(Scaled{from, factors}, num_inputs, stride, to, largest + row);
    } else {
      quantize_one(Plain{from}, num_inputs, stride, to, largest + row);
    }
  }
}

void multiply(const uint8_t* bytes, const float* largest, const Rows& rows, const Matrix& matrix,
              const Epilogue& epilogue, int64_t first, int64_t last, float* y) {
  const int64_t stride = matrix.num_groups() * kGroup;
  for (int64_t row = 0; row < rows.count; row += kRowBlock) {
    const Rows part = rows.part(row, smaller(kRowBlock, rows.count - row));
    for (int64_t panel = first; panel < last; panel++) {
      multiply_panel(bytes + row * stride, stride, largest + row, part.count,
                     Panel(matrix, panel), Output(epilogue, matrix.num_outputs, part, panel, y));
    }
  }
}

}  // namespace row_int8
